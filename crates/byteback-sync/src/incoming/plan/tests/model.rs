//! Trees in memory: the server's, and the one here with its unsent changes.

use byteback_model::{Attributes, FileId, NodeKind, Place};
use std::collections::{BTreeMap, BTreeSet};

use byteback_control::ServiceError;
use byteback_host::random::SplitMix64;

use super::super::{
    ContentFrom, HeadNode, Identity, LocalNode, LocalTree, Member, NameChange, Need, NodeChange, Others, Step,
};

pub(super) const ROOT: FileId = FileId(1);

const SINCE: u64 = 5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) kind: NodeKind,
    /// Content of a file, as a number; target of a symlink.
    pub(super) content: u64,
    pub(super) mode: u32,
    pub(super) mtime_ns: i128,
}

impl Node {
    fn new(kind: NodeKind, content: u64) -> Self {
        Self {
            kind,
            content: if kind == NodeKind::Directory { 0 } else { content },
            mode: 0o700,
            mtime_ns: content.into(),
        }
    }

    fn attributes(&self) -> Attributes {
        Attributes {
            kind: self.kind,
            mode: self.mode,
            uid: 0,
            gid: 0,
            size: if self.kind == NodeKind::File { self.content } else { 0 },
            mtime_ns: self.mtime_ns,
            rdev: 0,
            inode_flags: 0,
            target: (self.kind == NodeKind::Symlink).then(|| self.content.to_string().into()),
            xattrs: Vec::new(),
            user: None,
            group: None,
        }
    }
}

/// A tree by paths, with identities.
pub(super) type Paths = BTreeMap<Vec<u8>, (FileId, Node)>;

#[derive(Clone, Debug)]
pub(super) struct Tree {
    pub(super) nodes: BTreeMap<FileId, Node>,
    pub(super) entries: BTreeMap<Place<FileId>, FileId>,
}

/// Operation of a program, by paths.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Create(Vec<u8>, NodeKind, u64),
    Write(Vec<u8>, u64),
    Chmod(Vec<u8>, u32),
    Rename(Vec<u8>, Vec<u8>),
    Swap(Vec<u8>, Vec<u8>),
    Link(Vec<u8>, Vec<u8>),
    Remove(Vec<u8>),
    RemoveAll(Vec<u8>),
    /// A new file takes over the name.
    Save(Vec<u8>, u64),
}

/// Names and nodes that an operation touched.
#[derive(Default)]
pub(super) struct Touched {
    places: BTreeSet<Place<FileId>>,
    contents: BTreeSet<FileId>,
    attributes: BTreeSet<FileId>,
}

fn place(parent: FileId, name: &[u8]) -> Place<FileId> {
    Place {
        parent,
        name: name.into(),
    }
}

impl Tree {
    pub(super) fn new() -> Self {
        let nodes = BTreeMap::from([(ROOT, Node::new(NodeKind::Directory, 0))]);
        let entries = BTreeMap::new();
        Self { nodes, entries }
    }

    fn inside(&self, directory: FileId) -> Vec<(Vec<u8>, FileId)> {
        let entries = self.entries.range(place(directory, b"")..);
        let entries = entries.take_while(|(place, _)| place.parent == directory);
        entries.map(|(place, id)| (place.name.0.clone(), *id)).collect()
    }

    pub(super) fn paths(&self) -> Paths {
        let mut paths = Paths::new();
        let mut to_do = vec![(Vec::new(), ROOT)];
        while let Some((path, id)) = to_do.pop() {
            for (name, child) in self.inside(id) {
                let path = match path.is_empty() {
                    true => name,
                    false => [&path[..], b"/", &name].concat(),
                };
                assert!(path.len() < 100_000, "a directory is inside itself");
                if self.nodes[&child].kind == NodeKind::Directory {
                    to_do.push((path.clone(), child));
                }
                assert!(paths.insert(path, (child, self.nodes[&child].clone())).is_none());
            }
        }
        paths
    }

    pub(super) fn reachable(&self) -> BTreeSet<FileId> {
        self.paths().values().map(|(id, _)| *id).chain([ROOT]).collect()
    }

    pub(super) fn path_of(&self, id: FileId) -> Option<Vec<u8>> {
        self.paths()
            .into_iter()
            .find(|(_, (at, _))| *at == id)
            .map(|(path, _)| path)
    }

    pub(super) fn contents(&self) -> BTreeSet<u64> {
        let files = self.nodes.values().filter(|node| node.kind == NodeKind::File);
        files.map(|node| node.content).collect()
    }

    pub(super) fn forget_nameless(&mut self) {
        let reachable = self.reachable();
        self.nodes.retain(|id, _| reachable.contains(id));
        self.entries.retain(|place, _| reachable.contains(&place.parent));
    }

    fn places_of(&self, id: FileId) -> Vec<Place<FileId>> {
        let entries = self.entries.iter().filter(|(_, child)| **child == id);
        entries.map(|(place, _)| place.clone()).collect()
    }

    /// Place of a path, if its directory exists.
    fn locate(&self, path: &[u8]) -> Option<Place<FileId>> {
        let mut names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        let last = names.pop()?;
        let mut current = ROOT;
        for name in names {
            current = *self.entries.get(&place(current, name))?;
        }
        (self.nodes.get(&current)?.kind == NodeKind::Directory).then(|| place(current, last))
    }

    fn is_inside(&self, directory: FileId, outer: FileId) -> bool {
        let mut current = directory;
        loop {
            if current == outer {
                return true;
            }
            match self.places_of(current).first() {
                Some(place) => current = place.parent,
                None => return false,
            }
        }
    }

    /// Renames as the kernel does; `None`: it refuses.
    fn rename(&mut self, from: &Place<FileId>, to: &Place<FileId>) -> Option<()> {
        let id = *self.entries.get(from)?;
        let is_directory = self.nodes[&id].kind == NodeKind::Directory;
        if is_directory && self.is_inside(to.parent, id) {
            return None;
        }
        if let Some(other) = self.entries.get(to) {
            let other_is_directory = self.nodes[other].kind == NodeKind::Directory;
            if *other == id || is_directory != other_is_directory || !self.inside(*other).is_empty() {
                return None;
            }
        }
        self.entries.remove(from);
        self.entries.insert(to.clone(), id);
        Some(())
    }

    /// Does an operation, if possible. A server may keep the entries of a removed directory.
    pub(super) fn apply(&mut self, op: &Op, next: &mut u128, leaves_inside: bool) -> Touched {
        let mut touched = Touched::default();
        let done = self.try_apply(op, next, leaves_inside, &mut touched);
        if done.is_none() {
            return Touched::default();
        }
        touched
    }

    fn try_apply(&mut self, op: &Op, next: &mut u128, leaves_inside: bool, touched: &mut Touched) -> Option<()> {
        let mut new = || {
            *next += 1;
            FileId(*next)
        };
        match op {
            Op::Create(path, kind, content) => {
                let at = self.locate(path)?;
                if self.entries.contains_key(&at) {
                    return None;
                }
                let id = new();
                self.nodes.insert(id, Node::new(*kind, *content));
                self.entries.insert(at.clone(), id);
                touched.places.insert(at);
                touched.contents.insert(id);
            }
            Op::Write(path, content) => {
                let id = *self.entries.get(&self.locate(path)?)?;
                let node = self.nodes.get_mut(&id)?;
                if node.kind != NodeKind::File {
                    return None;
                }
                node.content = *content;
                node.mtime_ns = (*content).into();
                touched.contents.insert(id);
            }
            Op::Chmod(path, mode) => {
                let id = *self.entries.get(&self.locate(path)?)?;
                self.nodes.get_mut(&id)?.mode = *mode;
                touched.attributes.insert(id);
            }
            Op::Rename(from, to) => {
                let (from, to) = (self.locate(from)?, self.locate(to)?);
                self.rename(&from, &to)?;
                touched.places.extend([from, to]);
            }
            Op::Swap(one, other) => {
                let (one, other) = (self.locate(one)?, self.locate(other)?);
                let (a, b) = (*self.entries.get(&one)?, *self.entries.get(&other)?);
                if self.is_inside(one.parent, b) || self.is_inside(other.parent, a) {
                    return None;
                }
                self.entries.insert(one.clone(), b);
                self.entries.insert(other.clone(), a);
                touched.places.extend([one, other]);
            }
            Op::Link(from, to) => {
                let id = *self.entries.get(&self.locate(from)?)?;
                let to = self.locate(to)?;
                if self.nodes[&id].kind == NodeKind::Directory || self.entries.contains_key(&to) {
                    return None;
                }
                self.entries.insert(to.clone(), id);
                touched.places.insert(to);
            }
            Op::Remove(path) => {
                let at = self.locate(path)?;
                if !self.inside(*self.entries.get(&at)?).is_empty() {
                    return None;
                }
                self.entries.remove(&at);
                touched.places.insert(at);
            }
            Op::RemoveAll(path) => {
                let at = self.locate(path)?;
                let id = *self.entries.get(&at)?;
                let mut to_do = if leaves_inside { Vec::new() } else { vec![id] };
                while let Some(id) = to_do.pop() {
                    for (name, child) in self.inside(id) {
                        let inner = place(id, &name);
                        self.entries.remove(&inner);
                        touched.places.insert(inner);
                        to_do.push(child);
                    }
                }
                self.entries.remove(&at);
                touched.places.insert(at);
            }
            Op::Save(path, content) => {
                let at = self.locate(path)?;
                if self.nodes[self.entries.get(&at)?].kind != NodeKind::File {
                    return None;
                }
                let id = new();
                self.nodes.insert(id, Node::new(NodeKind::File, *content));
                self.entries.insert(at.clone(), id);
                touched.places.insert(at);
                touched.contents.insert(id);
            }
        }
        Some(())
    }
}

pub(super) fn random_op(tree: &Tree, random: &mut SplitMix64, names: &[u8]) -> Op {
    let paths: Vec<(Vec<u8>, NodeKind)> = tree
        .paths()
        .into_iter()
        .filter(|(path, _)| !path.starts_with(b".byteback"))
        .map(|(path, (_, node))| (path, node.kind))
        .collect();
    let mut pick = |wanted: Option<NodeKind>| {
        let fit: Vec<_> = paths
            .iter()
            .filter(|(_, kind)| wanted.is_none_or(|wanted| wanted == *kind))
            .collect();
        let at = random.below(fit.len().max(1) as u64) as usize;
        fit.get(at)
            .map(|(path, _)| path.clone())
            .unwrap_or_else(|| b"a".to_vec())
    };
    let (any, other, file, directory) = (
        pick(None),
        pick(None),
        pick(Some(NodeKind::File)),
        pick(Some(NodeKind::Directory)),
    );
    let name = [names[random.below(names.len() as u64) as usize]];
    let somewhere = match random.below(3) {
        0 => name.to_vec(),
        _ => [&directory[..], b"/", &name].concat(),
    };
    // Never 0, which is an empty file.
    let content = 1 + random.next_u64() % (1 << 50);
    match random.below(24) {
        0..4 => Op::Create(somewhere, NodeKind::File, content),
        4..8 => Op::Create(somewhere, NodeKind::Directory, content),
        8 => Op::Create(somewhere, NodeKind::Symlink, content),
        9..12 => Op::Write(file, content),
        12 => Op::Chmod(any, 0o600 + random.below(64) as u32),
        13..16 => Op::Rename(any, somewhere),
        16 => Op::Rename(directory, somewhere),
        17 => Op::Rename(any, other),
        18 => Op::Swap(any, other),
        19 => Op::Link(file, somewhere),
        20 | 21 => Op::Remove(any),
        22 => Op::RemoveAll(any),
        _ => Op::Save(file, content),
    }
}

/// The server's answer on the way from one tree to another.
pub(super) fn diff(base: &Tree, server: &Tree) -> Others {
    let reachable = server.reachable();
    let mut others = Others {
        head: 9,
        ..Others::default()
    };
    for place in base.entries.keys().chain(server.entries.keys()) {
        let before = base.entries.get(place).copied();
        let after = server.entries.get(place).copied();
        if before != after {
            if after.is_some() && !reachable.contains(&place.parent) {
                others.unreachable.insert(place.parent);
            }
            let after = after.filter(|_| reachable.contains(&place.parent));
            others.names.insert(place.clone(), NameChange { before, after });
        }
    }
    for (id, node) in &server.nodes {
        let before = base.nodes.get(id);
        if before == Some(node) {
            continue;
        }
        others.nodes.insert(
            *id,
            NodeChange {
                since: SINCE,
                before: before.map(Node::attributes),
                after: node.attributes(),
                is_content_changed: before.is_none_or(|before| before.content != node.content),
            },
        );
    }
    others
}

pub(super) fn tell(server: &Tree, need: Need) -> Option<HeadNode> {
    let node = server.nodes.get(&need.id)?;
    let entries = server.inside(need.id);
    let entries = entries
        .into_iter()
        .map(|(name, id)| (name, id, server.nodes[&id].attributes()));
    Some(HeadNode {
        attributes: node.attributes(),
        places: server.places_of(need.id),
        entries: need.entries.then(|| entries.collect()),
    })
}

/// A tree with its unsent changes.
pub(super) struct Local {
    pub(super) tree: Tree,
    known: BTreeSet<FileId>,
    unsent_places: BTreeSet<Place<FileId>>,
    unsent: BTreeSet<FileId>,
    unsent_attributes: BTreeSet<FileId>,
    /// Files that programs have open for writing.
    pub(super) in_use: BTreeSet<FileId>,
    /// Files whose contents were changed in one operation.
    pub(super) sets: Vec<BTreeSet<FileId>>,
    /// Whether the operation goes on.
    is_set_open: bool,
    /// Former identities of nodes that got others.
    was: BTreeMap<FileId, FileId>,
    pub(super) next: u128,
}

/// Whether a name is that of a conflict copy.
pub(super) fn is_conflict_name(name: &[u8]) -> bool {
    name.windows(10).any(|part| part == b"(conflict ")
}

impl Local {
    pub(super) fn new(tree: Tree) -> Self {
        Self {
            known: tree.nodes.keys().copied().collect(),
            tree,
            unsent_places: BTreeSet::new(),
            unsent: BTreeSet::new(),
            unsent_attributes: BTreeSet::new(),
            in_use: BTreeSet::new(),
            sets: Vec::new(),
            is_set_open: false,
            was: BTreeMap::new(),
            next: 0,
        }
    }

    /// Begins an atomic operation of programs, or ends it.
    pub(super) fn operate(&mut self, together: bool) {
        if together {
            self.sets.push(BTreeSet::new());
        }
        self.is_set_open = together;
    }

    /// Programs open some files for writing.
    pub(super) fn open_some(&mut self, random: &mut SplitMix64) {
        let files = self.tree.nodes.iter().filter(|(_, node)| node.kind == NodeKind::File);
        self.in_use = files.map(|(id, _)| *id).filter(|_| random.below(3) == 0).collect();
    }

    /// The files of a set with unsent local contents.
    pub(super) fn unsent_of_set<'s>(&'s self, set: &'s BTreeSet<FileId>) -> impl Iterator<Item = FileId> + 's {
        let is_file = |id: &FileId| {
            let node = self.tree.nodes.get(id);
            node.is_some_and(|node| node.kind == NodeKind::File)
        };
        set.iter()
            .copied()
            .filter(move |id| self.unsent.contains(id) && is_file(id))
    }

    /// Does an operation of a program.
    pub(super) fn apply(&mut self, op: &Op, next: &mut u128) {
        let touched = self.tree.apply(op, next, false);
        self.unsent_places.extend(touched.places);
        if let Some(set) = self.sets.last_mut().filter(|_| self.is_set_open) {
            set.extend(touched.contents.iter().copied());
        }
        self.unsent.extend(touched.contents);
        self.unsent_attributes.extend(touched.attributes);
        self.forget_nameless();
    }

    fn forget_nameless(&mut self) {
        self.tree.forget_nameless();
        let nodes = &self.tree.nodes;
        self.unsent.retain(|id| nodes.contains_key(id));
        self.unsent_attributes.retain(|id| nodes.contains_key(id));
        self.in_use.retain(|id| nodes.contains_key(id));
    }

    pub(super) fn unsent_contents(&self) -> BTreeSet<u64> {
        let nodes = self.unsent.iter().map(|id| &self.tree.nodes[id]);
        nodes
            .filter(|node| node.kind == NodeKind::File)
            .map(|node| node.content)
            .collect()
    }

    fn is_unsent(&self, place: &Place<FileId>) -> bool {
        self.unsent_places.contains(place) || !self.known.contains(&place.parent)
    }

    /// Sends the unsent changes to a server.
    pub(super) fn send<'a>(&'a self, more: impl Iterator<Item = &'a Place<FileId>>, server: &mut Tree) {
        let unsent = self.tree.entries.keys().filter(|place| self.is_unsent(place));
        for place in self.unsent_places.iter().chain(unsent).chain(more) {
            match self.tree.entries.get(place) {
                Some(id) => server.entries.insert(place.clone(), *id),
                None => server.entries.remove(place),
            };
        }
        for (id, node) in &self.tree.nodes {
            if self.unsent.contains(id) || self.unsent_attributes.contains(id) || !self.known.contains(id) {
                server.nodes.insert(*id, node.clone());
            }
        }
    }

    /// Checks that a node that loses a name to a landing may go.
    fn assert_may_go(&self, id: FileId) {
        if self.tree.places_of(id).is_empty() {
            assert!(
                !self.unsent.contains(&id) || self.tree.nodes[&id].kind == NodeKind::Directory,
                "{id} is unsent and goes"
            );
            assert!(!self.in_use.contains(&id), "{id} is in use and goes");
        }
    }

    pub(super) fn execute(&mut self, step: &Step, base: &Tree, server: &Tree, forgets_identity: bool) {
        let here = |local: &Self, id: &FileId| assert!(local.tree.nodes.contains_key(id), "{id} is not here: {step:?}");
        match step {
            Step::Identity { was, becomes, kind } => {
                here(self, was);
                assert!(!self.tree.nodes.contains_key(becomes), "{step:?}");
                let node = self.tree.nodes.remove(was).unwrap();
                self.tree.nodes.insert(*becomes, node);
                self.tree.entries = std::mem::take(&mut self.tree.entries)
                    .into_iter()
                    .map(|(mut place, mut id)| {
                        for id in [&mut place.parent, &mut id] {
                            if *id == *was {
                                *id = *becomes;
                            }
                        }
                        (place, id)
                    })
                    .collect();
                self.unsent_places = std::mem::take(&mut self.unsent_places)
                    .into_iter()
                    .map(|mut place| {
                        if place.parent == *was {
                            place.parent = *becomes;
                        }
                        place
                    })
                    .collect();
                for set in [&mut self.unsent, &mut self.unsent_attributes, &mut self.in_use] {
                    if set.remove(was) {
                        set.insert(*becomes);
                    }
                }
                for set in &mut self.sets {
                    if set.remove(was) {
                        set.insert(*becomes);
                    }
                }
                match kind {
                    Identity::New(since) => {
                        assert!(*since == SINCE || *since == 9);
                        self.unsent.insert(*becomes);
                        self.was.insert(*becomes, *was);
                    }
                    Identity::Withheld => panic!("nothing is ignored"),
                    Identity::Theirs => {
                        self.known.insert(*becomes);
                    }
                }
            }
            Step::Make { id, place, attributes } => {
                assert!(
                    !self.tree.entries.contains_key(place) && !self.tree.nodes.contains_key(id),
                    "{step:?}"
                );
                assert_eq!(
                    self.tree.nodes.get(&place.parent).map(|node| node.kind),
                    Some(NodeKind::Directory)
                );
                let id = match forgets_identity {
                    true => {
                        self.next += 1;
                        FileId(self.next)
                    }
                    false => {
                        self.known.insert(*id);
                        *id
                    }
                };
                let content = match &attributes.target {
                    Some(target) => std::str::from_utf8(target.as_bytes()).unwrap().parse().unwrap(),
                    None => 0,
                };
                let mut node = Node::new(attributes.kind, content);
                (node.mode, node.mtime_ns) = (attributes.mode, attributes.mtime_ns);
                self.tree.nodes.insert(id, node);
                self.tree.entries.insert(place.clone(), id);
            }
            Step::Content { id, from } => {
                here(self, id);
                assert!(!self.unsent.contains(id), "{step:?}");
                let node = self.tree.nodes.get_mut(id).unwrap();
                let new = server.nodes[id].content;
                if *from == ContentFrom::Since(SINCE) {
                    assert!(
                        node.content == base.nodes[id].content || node.content == new,
                        "{step:?}"
                    );
                }
                node.content = new;
            }
            Step::Attributes { id, attributes } => {
                here(self, id);
                let node = self.tree.nodes.get_mut(id).unwrap();
                (node.mode, node.mtime_ns) = (attributes.mode, attributes.mtime_ns);
            }
            Step::Link { id, place } => {
                here(self, id);
                assert!(!self.tree.entries.contains_key(place), "{step:?}");
                assert_ne!(self.tree.nodes[id].kind, NodeKind::Directory);
                assert_eq!(self.tree.nodes[&place.parent].kind, NodeKind::Directory);
                self.tree.entries.insert(place.clone(), *id);
            }
            Step::Rename {
                id,
                from,
                to,
                replaces,
                is_local,
                leaves_old,
            } => {
                assert_eq!(self.tree.entries.get(from), Some(id), "{step:?}");
                assert_eq!(self.tree.entries.get(to), replaces.as_ref(), "{step:?}");
                assert_eq!(
                    self.tree.nodes.get(&to.parent).map(|node| node.kind),
                    Some(NodeKind::Directory),
                    "{step:?}"
                );
                if *leaves_old {
                    assert!(*is_local && replaces.is_none(), "{step:?}");
                    assert_ne!(self.tree.nodes[id].kind, NodeKind::Directory, "{step:?}");
                    self.tree.entries.insert(to.clone(), *id);
                    self.unsent_places.insert(to.clone());
                    return;
                }
                assert!(self.tree.rename(from, to).is_some(), "{step:?}");
                if *is_local {
                    self.unsent_places.extend([from.clone(), to.clone()]);
                }
                if let Some(replaced) = replaces {
                    assert_ne!(self.tree.nodes[replaced].kind, NodeKind::Directory);
                    self.assert_may_go(*replaced);
                }
                self.forget_nameless();
            }
            Step::Remove { id, place } => {
                assert_eq!(self.tree.entries.remove(place).as_ref(), Some(id), "{step:?}");
                assert!(self.tree.inside(*id).is_empty(), "{step:?}");
                self.assert_may_go(*id);
                self.forget_nameless();
            }
        }
    }
}

/// The model as the planner sees it.
pub(super) struct Seen<'a> {
    pub(super) local: &'a Local,
    pub(super) server: &'a Tree,
}

impl LocalTree for Seen<'_> {
    fn root(&self) -> FileId {
        ROOT
    }

    fn node(&self, id: FileId) -> Result<Option<LocalNode>, ServiceError> {
        let local = self.local;
        Ok(local.tree.nodes.get(&id).map(|node| LocalNode {
            attributes: node.attributes(),
            places: local.tree.places_of(id),
            is_known: local.known.contains(&id),
            is_unsent: local.unsent.contains(&id),
            is_in_use: local.in_use.contains(&id),
            has_unsent_attributes: local.unsent_attributes.contains(&id),
        }))
    }

    fn entry(&self, place: &Place<FileId>) -> Result<Option<FileId>, ServiceError> {
        assert_eq!(self.local.tree.nodes[&place.parent].kind, NodeKind::Directory);
        Ok(self.local.tree.entries.get(place).copied())
    }

    fn is_unsent(&self, place: &Place<FileId>) -> Result<bool, ServiceError> {
        Ok(self.local.is_unsent(place))
    }

    fn entries(&self, directory: FileId) -> Result<Vec<(Vec<u8>, FileId)>, ServiceError> {
        Ok(self.local.tree.inside(directory))
    }

    fn together(&self) -> Result<Vec<Vec<Member>>, ServiceError> {
        let local = self.local;
        let member = |id: &FileId| {
            let places = local.tree.places_of(*id);
            Member {
                id: *id,
                was: local.was.get(id).copied(),
                is_copy: places.iter().any(|place| is_conflict_name(place.name.as_bytes())),
            }
        };
        Ok(local.sets.iter().map(|set| set.iter().map(member).collect()).collect())
    }

    fn is_same(&self, here: FileId, there: FileId) -> Result<bool, ServiceError> {
        let (here, there) = (&self.local.tree.nodes[&here], &self.server.nodes[&there]);
        Ok(here.kind == there.kind && here.content == there.content)
    }
}
