//! The tree here as the planner sees it: nodes by the identities that the server knows them by, and
//! their unsent changes.
//!
//! **Unsent changes** are those that the queue reports. Where it has been folded to "everything
//! since the log's mark" the log says what changed since then, including changes that landed or
//! were sent since. So nodes that others changed, too, are compared with their state at the server
//! when it was as here: equal ones were not changed here. Thus no restart and no late mark makes a
//! conflict.
//!
//! **Known to the server** are nodes that others made, which have their identity in the map, and
//! our own nodes that neither wait nor are new since the mark was sent. The server is asked about
//! the rest.
//!
//! **Ignored nodes and names** are not reported, by the rules that this attempt began with; a
//! withheld node that is not ignored any more is reported as new.
//!
//! Answers hold for one attempt: comparisons are remembered as long as the nodes are watched, see
//! the module above.

use byteback_model::{Attributes, ByteString, FileId, NodeId, NodeKind, Place, Seq};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;

use byteback_api::FolderName;
use byteback_control::{
    CutId, CutRequest, DirEntry, ErrorKind, LandingTree, Outcome, Result, ServiceError, TreeService, UnsentNode,
};
use byteback_oplog::TreeId;

use super::comparing::{Compared, Comparing, NotCompared};
use super::conflicts::Conflicts;
use super::log_changes::LogChanges;
use crate::identities::{Identities, Withheld};
use crate::ignored::{Ignored, path_of};
use crate::incoming::fetch::Incoming;
use crate::incoming::plan::{
    LocalNode, LocalTree, Member, NodeChange, Others, are_same_attributes, is_name_on_its_way,
};
use byteback_backup::BackupError;
use byteback_backup::Monitor;
use byteback_backup::file_id;
use byteback_client::ServerClient;
use byteback_client::ServerErrorKind;

/// Fewest files to compare ahead: a single one is compared when it is asked for.
const COMPARED_AHEAD_MIN: usize = 2;

/// The tree here as the planner sees it: see the module.
pub(super) struct Seen<'a> {
    pub(super) landing: &'a dyn LandingTree,
    pub(super) tree: &'a dyn TreeService,
    pub(super) tree_id: TreeId,
    pub(super) server: &'a ServerClient,
    pub(super) folder: &'a FolderName,
    pub(super) monitor: &'a dyn Monitor,
    pub(super) identities: &'a Identities,
    pub(super) conflicts: &'a Conflicts,
    pub(super) others: &'a Others,
    /// Others' changes up to here are in the tree.
    pub(super) cursor: Seq,
    pub(super) memory: &'a Memory,
    pub(super) ignored: &'a Ignored,
    /// Whether any node is withheld.
    pub(super) has_withheld: bool,
    /// Whether files that programs have open for writing count, as one was in the way.
    pub(super) counts_use: bool,
}

/// Answers found for one attempt.
#[derive(Default)]
pub(super) struct Memory {
    log: OnceCell<LogChanges>,
    known: RefCell<HashMap<FileId, bool>>,
    same: RefCell<HashMap<(NodeId, FileId, Seq), bool>>,
    changed_there: RefCell<HashMap<FileId, bool>>,
    /// Paths of directories.
    paths: RefCell<HashMap<NodeId, Option<Vec<u8>>>>,
    /// The cut at which contents are read: one for all, as making one costs with the size of the
    /// tree.
    cut: Cell<Option<CutId>>,
    /// Error of the server or the connection: the planner only sees that there was one.
    failure: RefCell<Option<BackupError>>,
}

impl Memory {
    pub(super) fn take_failure(&self) -> Option<BackupError> {
        self.failure.borrow_mut().take()
    }

    fn cut(&self, tree: &dyn TreeService) -> Result<CutId> {
        if let Some(cut) = self.cut.get() {
            return Ok(cut);
        }
        let cut = tree.cut(&CutRequest {
            anonymous: true,
            look_only: false,
            ..CutRequest::of("")
        })?;
        self.cut.set(Some(cut.cut));
        Ok(cut.cut)
    }

    /// Ends the cut: bytes that are overwritten from now on need not be kept for it.
    pub(super) fn end_cut(&self, tree: &dyn TreeService) -> Result<()> {
        match self.cut.take() {
            Some(cut) => tree.finish(cut, &Outcome::Abandoned).map(|_| ()),
            None => Ok(()),
        }
    }

    fn keep(&self, error: impl Into<BackupError>) -> ServiceError {
        let error = error.into();
        let reported = ServiceError::new(ErrorKind::Refused, error.to_string());
        *self.failure.borrow_mut() = Some(error);
        reported
    }
}

impl Seen<'_> {
    pub(super) fn file_of(&self, node: NodeId) -> FileId {
        let own = file_id(self.tree_id, node);
        self.identities.file_of(node).unwrap_or(own)
    }

    pub(super) fn node_of(&self, id: FileId) -> Option<NodeId> {
        self.identities.node_of(id)
    }

    /// A name as the tree knows it, if its directory is here.
    pub(super) fn place_of(&self, place: &Place<FileId>) -> Option<Place<NodeId>> {
        Some(Place {
            parent: self.node_of(place.parent)?,
            name: place.name.clone(),
        })
    }

    fn log(&self) -> Result<&LogChanges> {
        if self.memory.log.get().is_none() {
            let _ = self.memory.log.set(LogChanges::ask(self.tree)?);
        }
        let missing = || ServiceError::new(ErrorKind::Log, "the log cannot be queried");
        self.memory.log.get().ok_or_else(missing)
    }

    /// Whether the server has, or had, a node of this identity.
    fn is_known(&self, id: FileId, node: NodeId, unsent: UnsentNode) -> Result<bool> {
        if self.identities.withheld(node).is_some() {
            return Ok(false);
        }
        if self.identities.is_bound(node) {
            // A directory that came back is there under its own ID.
            let origin = self.identities.origin_of(node);
            return Ok(origin.is_none_or(|origin| origin.file == id && origin.seq > 0));
        }
        let may_be_new = |log: &LogChanges| {
            let changed = log.node(node);
            changed.is_some_and(|changed| changed.is_new || unsent.was_left_out)
        };
        if unsent == UnsentNode::default() || !may_be_new(self.log()?) {
            return Ok(true);
        }
        if let Some(known) = self.memory.known.borrow().get(&id) {
            return Ok(*known);
        }
        let known = match self.server.node(self.folder, id, self.others.head) {
            Ok(_) => true,
            Err(error) if error.kind == ServerErrorKind::NotFound => false,
            Err(error) => return Err(self.memory.keep(error)),
        };
        self.memory.known.borrow_mut().insert(id, known);
        Ok(known)
    }

    /// Whether a name of a node is ignored.
    fn is_ignored_at(&self, place: &Place<NodeId>, kind: byteback_model::NodeKind) -> Result<bool> {
        if self.ignored.is_nothing() {
            return Ok(false);
        }
        let is_directory = kind == byteback_model::NodeKind::Directory;
        if let Some(path) = self.memory.paths.borrow().get(&place.parent) {
            return Ok(path
                .as_ref()
                .is_some_and(|path| self.ignored.has(place, path, is_directory)));
        }
        let path = path_of(self.landing, place.parent)?;
        let is_ignored = path
            .as_ref()
            .is_some_and(|path| self.ignored.has(place, path, is_directory));
        self.memory.paths.borrow_mut().insert(place.parent, path);
        Ok(is_ignored)
    }

    /// Whether a node is withheld as it was ignored: it is until that is recorded otherwise,
    /// wherever it is by now.
    fn is_kept_back(&self, node: NodeId) -> bool {
        self.identities.withheld(node) == Some(Withheld::Ignored)
    }

    /// The node that a name stands for, and whether it is ignored.
    fn child(&self, name: &Place<NodeId>) -> Result<Option<(NodeId, bool)>> {
        let Some(child) = self.landing.child(name)? else {
            return Ok(None);
        };
        if self.is_kept_back(child) {
            return Ok(Some((child, true)));
        }
        if self.ignored.is_nothing() {
            return Ok(Some((child, false)));
        }
        let kind = self.landing.look(child)?.map(|found| found.kind);
        let is_ignored = kind.map(|kind| self.is_ignored_at(name, kind)).transpose()?;
        Ok(Some((child, is_ignored.unwrap_or(false))))
    }

    /// Lists the entries of a directory, and whether each is ignored.
    fn listed(&self, directory: NodeId, take: &mut dyn FnMut(DirEntry, bool)) -> Result<()> {
        let mut after = None;
        loop {
            let page = self.landing.entries(directory, after.as_ref())?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.name.clone());
            for entry in page {
                let (parent, name) = (directory, entry.name.clone());
                let is_ignored =
                    self.is_kept_back(entry.node) || self.is_ignored_at(&Place { parent, name }, entry.kind)?;
                take(entry, is_ignored);
            }
        }
    }

    /// Whether a program has a file open for writing, where that counts.
    fn is_in_use(&self, node: NodeId, attributes: &Attributes) -> Result<bool> {
        let counts = self.counts_use && attributes.kind == NodeKind::File;
        Ok(counts && self.landing.is_open_for_writing(node)?)
    }

    /// Whether a file here has the content of the server's at a moment.
    fn holds(&self, node: NodeId, id: FileId, at: Seq) -> Result<bool> {
        let key = (node, id, at);
        if let Some(same) = self.memory.same.borrow().get(&key) {
            return Ok(*same);
        }
        let Some(there) = self.attributes_there(id, at)? else {
            return Ok(false);
        };
        let file = Compared {
            node,
            id,
            there: &there,
        };
        let same = self.comparing().compare(self.memory.cut(self.tree)?, at, &file);
        let same = same.map_err(|error| self.failed(error))?;
        self.memory.same.borrow_mut().insert(key, same);
        Ok(same)
    }

    /// A node's attributes at the server at a moment.
    fn attributes_there(&self, id: FileId, at: Seq) -> Result<Option<Attributes>> {
        if let Some(change) = self.others.nodes.get(&id) {
            match &change.before {
                _ if at == self.others.head => return Ok(Some(change.after.clone())),
                Some(before) if at == change.since => return Ok(Some(before.clone())),
                _ => {}
            }
        }
        match self.server.node(self.folder, id, at) {
            Ok(there) => Ok(Some(there.attributes)),
            Err(error) if error.kind == ServerErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.memory.keep(error)),
        }
    }

    fn comparing(&self) -> Comparing<'_> {
        Comparing {
            landing: self.landing,
            tree: self.tree,
            server: self.server,
            folder: self.folder,
            monitor: self.monitor,
        }
    }

    fn failed(&self, error: NotCompared) -> ServiceError {
        match error {
            NotCompared::Tree(error) => error,
            NotCompared::Server(error) => self.memory.keep(error),
        }
    }

    /// Whether a file's content was changed here and is not sent, if the queue knows only that
    /// everything since the mark is to be sent.
    fn is_content_unsent(&self, id: FileId, node: NodeId) -> Result<bool> {
        if self.log()?.node(node).is_none_or(|changed| !changed.is_content_changed) {
            return Ok(false);
        }
        match self.others.nodes.get(&id) {
            Some(change) if change.before.is_none() => Ok(!self.holds(node, id, self.others.head)?),
            Some(change) => Ok(!self.holds(node, id, change.since)?),
            // Others removed it, or only its names changed: changes that landed since the mark are
            // in the log, too.
            None if self.cursor > 0 => Ok(!self.holds(node, id, self.cursor)?),
            None => Ok(true),
        }
    }
}

impl LocalTree for Seen<'_> {
    fn root(&self) -> FileId {
        self.file_of(NodeId::ROOT)
    }

    fn node(&self, id: FileId) -> Result<Option<LocalNode>> {
        let Some(node) = self.node_of(id) else { return Ok(None) };
        let Some(found) = self.landing.look(node)? else {
            return Ok(None);
        };
        if (node != NodeId::ROOT && found.names.is_empty()) || self.is_kept_back(node) {
            return Ok(None);
        }
        let mut places: Vec<Place<FileId>> = Vec::new();
        for name in found.names {
            if !self.is_ignored_at(&name, found.kind)? {
                let parent = self.file_of(name.parent);
                places.push(Place {
                    parent,
                    name: name.name,
                });
            }
        }
        if node != NodeId::ROOT && places.is_empty() {
            return Ok(None);
        }
        let unsent = self.landing.unsent_of(node);
        let is_known = node == NodeId::ROOT || self.is_known(id, node, unsent)?;
        let root = self.root();
        let is_on_its_way = |place: &Place<FileId>| place.parent == root && is_name_on_its_way(place.name.as_bytes());
        if places.iter().any(is_on_its_way) && places.len() == 1 {
            // No program has written to it. An unknown one was made before a crash that came before
            // its identity was durable.
            return Ok(Some(LocalNode {
                is_in_use: self.is_in_use(node, &found.attributes)?,
                attributes: found.attributes,
                places,
                is_known,
                is_unsent: false,
                has_unsent_attributes: false,
            }));
        }
        let is_file = found.attributes.kind == NodeKind::File;
        let is_content_unsent = match unsent.is_everything {
            true => is_file && self.is_content_unsent(id, node)?,
            false => unsent.content,
        };
        let before = self.others.nodes.get(&id).and_then(|change| change.before.as_ref());
        let are_as_before = before.is_some_and(|before| are_same_attributes(before, &found.attributes));
        let are_attributes_unsent = match unsent.is_everything {
            true => self.log()?.node(node).is_some(),
            false => unsent.other || unsent.content,
        };
        Ok(Some(LocalNode {
            is_in_use: self.is_in_use(node, &found.attributes)?,
            attributes: found.attributes,
            places,
            is_known,
            is_unsent: !is_known || is_content_unsent,
            has_unsent_attributes: are_attributes_unsent && !are_as_before,
        }))
    }

    fn entry(&self, place: &Place<FileId>) -> Result<Option<FileId>> {
        let Some(place) = self.place_of(place) else {
            return Ok(None);
        };
        let child = self.child(&place)?.filter(|(_, is_ignored)| !is_ignored);
        Ok(child.map(|(child, _)| self.file_of(child)))
    }

    fn may_ignore(&self) -> bool {
        !self.ignored.is_nothing() || self.has_withheld
    }

    fn is_ignored(&self, path: &[u8], is_directory: bool) -> bool {
        self.ignored.rules.is_ignored(path, is_directory)
    }

    fn is_hidden(&self, place: &Place<FileId>) -> Result<bool> {
        let child = self.place_of(place).map(|place| self.child(&place)).transpose()?;
        Ok(child.flatten().is_some_and(|(_, is_ignored)| is_ignored))
    }

    fn is_withheld(&self, directory: FileId) -> bool {
        let node = self.node_of(directory);
        node.is_some_and(|node| self.identities.withheld(node).is_some())
    }

    fn holds_hidden(&self, directory: FileId) -> Result<bool> {
        let mut holds = false;
        if let Some(node) = self.node_of(directory) {
            self.listed(node, &mut |_, is_ignored| holds |= is_ignored)?;
        }
        Ok(holds)
    }

    fn is_unsent(&self, place: &Place<FileId>) -> Result<bool> {
        let Some(name) = self.place_of(place) else {
            return Ok(false);
        };
        let unsent = self.landing.unsent_of(name.parent);
        if name.parent != NodeId::ROOT && !self.is_known(place.parent, name.parent, unsent)? {
            return Ok(true);
        }
        if !self.landing.is_name_queued(&name) || (unsent.is_everything && !self.log()?.has_name(&name)) {
            return Ok(false);
        }
        // A name that is as before was not changed, or landed since the mark.
        let change = self.others.names.get(place);
        let now = self.entry(place)?;
        Ok(change.is_none_or(|change| change.before != now))
    }

    fn entries(&self, directory: FileId) -> Result<Vec<(Vec<u8>, FileId)>> {
        let Some(node) = self.node_of(directory) else {
            return Ok(Vec::new());
        };
        let mut entries = Vec::new();
        self.listed(node, &mut |entry, is_ignored| {
            if !is_ignored {
                entries.push((entry.name.into_bytes(), self.file_of(entry.node)));
            }
        })?;
        Ok(entries)
    }

    fn together(&self) -> Result<Vec<Vec<Member>>> {
        let mut copies: HashMap<u64, Vec<&ByteString>> = HashMap::new();
        for conflict in self.conflicts.noted() {
            copies.entry(conflict.node).or_default().push(&conflict.copy);
        }
        let member = |node: NodeId| -> Result<Member> {
            let id = self.file_of(node);
            let origin = self.identities.origin_of(node);
            let was = origin.filter(|origin| origin.seq > 0 && origin.file != id);
            let is_copy = match copies.get(&node.0) {
                Some(copies) => {
                    let mut names = self.landing.look(node)?.into_iter().flat_map(|found| found.names);
                    names.any(|place| copies.contains(&&place.name))
                }
                None => false,
            };
            let was = was.map(|origin| origin.file);
            Ok(Member { id, was, is_copy })
        };
        let sets = self.landing.together().into_iter();
        sets.map(|set| set.into_iter().map(&member).collect()).collect()
    }

    fn is_changed_there(&self, id: FileId, change: &NodeChange) -> Result<bool> {
        let was_as_long = change
            .before
            .as_ref()
            .is_some_and(|before| before.size == change.after.size);
        if !was_as_long {
            return Ok(true);
        }
        if let Some(changed) = self.memory.changed_there.borrow().get(&id) {
            return Ok(*changed);
        }
        let incoming = Incoming {
            server: self.server,
            folder: self.folder,
            cursor: self.cursor,
            head: self.others.head,
            takes_own: false,
            monitor: self.monitor,
        };
        let is_as_then = incoming.is_as_at(self.others, id, change.since);
        let changed = !is_as_then.map_err(|error| self.memory.keep(error))?;
        self.memory.changed_there.borrow_mut().insert(id, changed);
        Ok(changed)
    }

    fn compare_ahead(&self, pairs: &[(FileId, FileId)]) -> Result<()> {
        let head = self.others.head;
        let mut files = Vec::new();
        for (here, there) in pairs {
            let change = self.others.nodes.get(there);
            if let (Some(node), Some(change)) = (self.node_of(*here), change)
                && !self.memory.same.borrow().contains_key(&(node, *there, head))
            {
                files.push(Compared {
                    node,
                    id: *there,
                    there: &change.after,
                });
            }
        }
        if files.len() < COMPARED_AHEAD_MIN {
            return Ok(());
        }
        let cut = self.memory.cut(self.tree)?;
        let compared = self.comparing().compare_all(cut, head, &files);
        let compared = compared.map_err(|error| self.failed(error))?;
        let known = files.into_iter().map(|file| (file.node, file.id, head));
        self.memory.same.borrow_mut().extend(known.zip(compared));
        Ok(())
    }

    fn is_same(&self, here: FileId, there: FileId) -> Result<bool> {
        let Some(node) = self.node_of(here) else {
            return Ok(false);
        };
        let Some(found) = self.landing.look(node)? else {
            return Ok(false);
        };
        let head = self.others.head;
        if found.attributes.kind == NodeKind::File {
            return self.holds(node, there, head);
        }
        let Some(there) = self.attributes_there(there, head)? else {
            return Ok(false);
        };
        let key = |of: &Attributes| (of.kind, of.target.clone(), of.rdev);
        Ok(key(&found.attributes) == key(&there))
    }
}
