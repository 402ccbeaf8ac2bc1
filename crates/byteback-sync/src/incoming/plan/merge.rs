//! Decides which node each name is to stand for: others' changes are laid over the tree here, and
//! the fate of nodes that then have no name is decided.
//!
//! The merge runs in rounds until nothing new is found: a node that comes back needs its names,
//! these need their directories, and directories must not end up inside themselves. Findings about
//! the server's names (`names`) and identities (`View`) are kept from round to round, all else is
//! made anew. Each round adds at least one name of the server to `names`, of which there are
//! finitely many.

mod adopt;
mod blocked;
mod together;
mod unfit;
mod vanish;

use byteback_model::{Attributes, ByteString, FileId, Place, Seq};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::names::{is_name_of_new, is_name_on_its_way};
use super::{
    ContentFrom, Given, HeadNode, Identity, LocalNode, LocalTree, Member, NameChange, Need, Others, Outcome, PlanError,
    Step, is_directory,
};

use self::unfit::Unfit;

type Result<T> = std::result::Result<T, PlanError>;

/// The tree here, by the identities that nodes are to have.
pub(super) struct View<'a> {
    here: &'a dyn LocalTree,
    /// For nodes that get other identities: the new ones, by those that they have.
    aliases: HashMap<FileId, FileId>,
    back: HashMap<FileId, FileId>,
    /// Nodes that the server will learn of only now.
    unknown: HashSet<FileId>,
    nodes: HashMap<FileId, Option<LocalNode>>,
    entries: HashMap<Place<FileId>, Option<FileId>>,
}

impl View<'_> {
    fn inner(&self, id: FileId) -> Option<FileId> {
        match self.back.get(&id) {
            Some(inner) => Some(*inner),
            None if self.aliases.contains_key(&id) => None,
            None => Some(id),
        }
    }

    fn outer(&self, id: FileId) -> FileId {
        self.aliases.get(&id).copied().unwrap_or(id)
    }

    fn alias(&mut self, was: FileId, becomes: FileId) {
        self.aliases.insert(was, becomes);
        self.back.insert(becomes, was);
        let known = self.nodes.get(&was).cloned().flatten();
        match known.filter(|node| !is_directory(&node.attributes)) {
            // It has no entries: only what is known of the node itself changes.
            Some(node) => {
                self.nodes.remove(&was);
                self.nodes.remove(&becomes);
                for place in node.places {
                    self.entries.remove(&place);
                }
            }
            None => {
                self.nodes.clear();
                self.entries.clear();
            }
        }
    }

    pub(super) fn node(&mut self, id: FileId) -> Result<Option<LocalNode>> {
        if let Some(known) = self.nodes.get(&id) {
            return Ok(known.clone());
        }
        let mut node = match self.inner(id) {
            Some(inner) => self.here.node(inner)?,
            None => None,
        };
        if let Some(node) = &mut node {
            for place in &mut node.places {
                place.parent = self.outer(place.parent);
            }
            node.is_known &= !self.unknown.contains(&id);
        }
        self.nodes.insert(id, node.clone());
        Ok(node)
    }

    fn inner_place(&self, place: &Place<FileId>) -> Option<Place<FileId>> {
        Some(Place {
            parent: self.inner(place.parent)?,
            name: place.name.clone(),
        })
    }

    pub(super) fn entry(&mut self, place: &Place<FileId>) -> Result<Option<FileId>> {
        if let Some(known) = self.entries.get(place) {
            return Ok(*known);
        }
        let entry = match self.inner_place(place) {
            Some(inner)
                if self
                    .here
                    .node(inner.parent)?
                    .is_some_and(|node| is_directory(&node.attributes)) =>
            {
                self.here.entry(&inner)?
            }
            _ => None,
        };
        let entry = entry.map(|id| self.outer(id));
        self.entries.insert(place.clone(), entry);
        Ok(entry)
    }

    fn is_unsent(&self, place: &Place<FileId>) -> Result<bool> {
        Ok(match self.inner_place(place) {
            Some(inner) => self.here.is_unsent(&inner)?,
            None => false,
        })
    }

    pub(super) fn entries(&self, directory: FileId) -> Result<Vec<(Vec<u8>, FileId)>> {
        let mut entries = match self.inner(directory) {
            Some(inner) => self.here.entries(inner)?,
            None => Vec::new(),
        };
        entries.iter_mut().for_each(|(_, id)| *id = self.outer(*id));
        Ok(entries)
    }

    pub(super) fn root(&self) -> FileId {
        self.outer(self.here.root())
    }
}

/// The result of the merge, for `order`.
pub(super) struct Merged<'a> {
    pub(super) view: View<'a>,
    pub(super) want: BTreeMap<Place<FileId>, Option<FileId>>,
    /// Names that are changes made here.
    pub(super) local: HashSet<Place<FileId>>,
    pub(super) identities: Vec<Step>,
    /// Nodes to be made, with their attributes.
    pub(super) made: BTreeMap<FileId, Attributes>,
    pub(super) contents: Vec<(FileId, ContentFrom)>,
    pub(super) attributes: Vec<(FileId, Attributes)>,
    pub(super) outcomes: Vec<Outcome>,
    /// Directories that come with all that is in them.
    pub(super) whole: HashSet<FileId>,
    pub(super) last_identities: Vec<Step>,
}

pub(super) struct Merge<'a, 'g> {
    others: &'a Others,
    given: &'g Given<'g>,
    fresh: &'g mut dyn FnMut() -> FileId,
    view: View<'a>,
    /// The server's names that are to be considered, and their changes.
    names: BTreeMap<Place<FileId>, NameChange>,
    /// The names that a node has by these.
    placed: HashMap<FileId, Vec<Place<FileId>>>,
    /// Names that a node has lost there.
    removed: HashMap<FileId, Vec<&'a Place<FileId>>>,
    /// Attributes of nodes in directories that were asked for.
    listed: HashMap<FileId, &'a Attributes>,
    /// Nodes here that became nodes of the server, as they are the same.
    same: HashSet<FileId>,
    /// Directories that come with all that is in them.
    whole: HashSet<FileId>,
    identities: Vec<Step>,
    needs: BTreeMap<FileId, bool>,
    /// Sets of files that were changed here in one atomic operation.
    sets: Vec<Vec<Member>>,
    /// Files that share a conflict, by the identities that they have now.
    parted: HashSet<FileId>,
    // State of a round:
    want: BTreeMap<Place<FileId>, Option<FileId>>,
    local: HashSet<Place<FileId>>,
    outcomes: Vec<Outcome>,
    gone: HashSet<FileId>,
    /// Directories that stay, with their new identities.
    recreated: Vec<(FileId, FileId)>,
    /// Directories that others removed and that stay, as something in them cannot be removed.
    above_blocked: HashSet<FileId>,
    /// Directories that stay for the ignored nodes in them, with identities that are never sent.
    withheld: BTreeMap<FileId, FileId>,
    /// Whether a directory of the server is, or will be, here.
    present: HashMap<FileId, bool>,
    /// Whether the findings call for another round.
    is_news: bool,
}

impl<'a, 'g> Merge<'a, 'g> {
    pub(super) fn new(
        others: &'a Others,
        here: &'a dyn LocalTree,
        given: &'g Given<'g>,
        fresh: &'g mut dyn FnMut() -> FileId,
    ) -> Self {
        let mut placed: HashMap<FileId, Vec<Place<FileId>>> = HashMap::new();
        let mut removed: HashMap<FileId, Vec<&Place<FileId>>> = HashMap::new();
        for (place, change) in &others.names {
            if let Some(before) = change.before.filter(|before| change.after != Some(*before)) {
                removed.entry(before).or_default().push(place);
            }
            if let Some(id) = change.after {
                placed.entry(id).or_default().push(place.clone());
            }
        }
        let reported = others.reported.values().flatten();
        let entries = reported.flat_map(|reported| reported.entries.iter().flatten());
        let listed = entries.map(|(_, id, attributes)| (*id, attributes)).collect();
        Self {
            others,
            given,
            fresh,
            view: View {
                here,
                aliases: HashMap::new(),
                back: HashMap::new(),
                unknown: HashSet::new(),
                nodes: HashMap::new(),
                entries: HashMap::new(),
            },
            names: others.names.clone(),
            placed,
            removed,
            listed,
            same: HashSet::new(),
            whole: HashSet::new(),
            identities: Vec::new(),
            needs: BTreeMap::new(),
            sets: Vec::new(),
            parted: HashSet::new(),
            want: BTreeMap::new(),
            local: HashSet::new(),
            outcomes: Vec::new(),
            gone: HashSet::new(),
            recreated: Vec::new(),
            above_blocked: HashSet::new(),
            withheld: BTreeMap::new(),
            present: HashMap::new(),
            is_news: false,
        }
    }

    pub(super) fn run(mut self) -> Result<Merged<'a>> {
        self.sets = self.view.here.together()?;
        loop {
            self.want.clear();
            self.local.clear();
            self.outcomes.clear();
            self.gone.clear();
            self.recreated.clear();
            self.withheld.clear();
            self.present.clear();
            self.is_news = false;
            self.changed_contents()?;
            self.part()?;
            self.arrivals()?;
            self.adopt()?;
            self.decide_names()?;
            if !self.is_news {
                self.one_name_each()?;
                self.parked()?;
            }
            if !self.is_news {
                self.nothing_inside_itself()?;
            }
            if self.needs.is_empty() && !self.is_news {
                self.vacate()?;
                self.vanished()?;
                self.come_back()?;
            }
            if self.needs.is_empty() && !self.is_news {
                self.share()?;
            }
            if !self.needs.is_empty() {
                let needs = self.needs.into_iter().map(|(id, entries)| Need { id, entries });
                return Err(PlanError::Needs(needs.collect()));
            }
            if !self.is_news {
                return self.finish();
            }
        }
    }

    /// The known state of a node at the head; asks if nothing is known.
    fn reported(&mut self, id: FileId, entries: bool) -> Option<&'a HeadNode> {
        match self.others.reported.get(&id) {
            Some(reported) if !entries => reported.as_ref(),
            Some(None) => None,
            Some(Some(reported)) if reported.entries.is_some() || !is_directory(&reported.attributes) => Some(reported),
            _ => {
                *self.needs.entry(id).or_default() |= entries;
                None
            }
        }
    }

    /// Takes in a name of the server, though it did not change there.
    fn add_name(&mut self, place: &Place<FileId>, id: FileId) {
        if !self.names.contains_key(place) {
            let (before, after) = (None, Some(id));
            self.names.insert(place.clone(), NameChange { before, after });
            self.placed.entry(id).or_default().push(place.clone());
            self.is_news = true;
        }
    }

    fn add_reported_names(&mut self, id: FileId) {
        if let Some(reported) = self.reported(id, false) {
            for place in &reported.places {
                self.add_name(place, id);
            }
        }
    }

    fn attributes_there(&mut self, id: FileId) -> Option<Attributes> {
        if let Some(change) = self.others.nodes.get(&id) {
            return Some(change.after.clone());
        }
        match self.listed.get(&id) {
            Some(listed) => Some((*listed).clone()),
            None => self.reported(id, false).map(|reported| reported.attributes.clone()),
        }
    }

    /// Files that others changed, and that were changed or removed here.
    fn changed_contents(&mut self) -> Result<()> {
        for (id, change) in &self.others.nodes {
            if !change.is_content_changed || change.before.is_none() {
                continue;
            }
            if let Some(node) = self.view.node(*id)? {
                if !node.is_unsent || self.given.landed.contains(id) {
                    continue;
                }
                if self.given.blocked.contents.contains(id) {
                    // It can be neither changed nor moved out of the way.
                    continue;
                }
                if self.same.contains(id) || self.is_same(*id, *id)? {
                    self.same.insert(*id);
                    continue;
                }
                if !self.view.here.is_changed_there(*id, change)? {
                    continue;
                }
                self.renounce(*id, change.since);
            } else if !self.view.here.is_changed_there(*id, change)? {
                continue;
            }
            // The server's file comes, or comes back.
            self.add_reported_names(*id);
        }
        Ok(())
    }

    /// Files that others changed keep the names that they have there, if they would be gone here
    /// otherwise.
    fn come_back(&mut self) -> Result<()> {
        let mut going: Vec<FileId> = self.gone.iter().copied().collect();
        going.sort_unstable();
        for id in going {
            if let Some(change) = self.others.nodes.get(&id)
                && change.is_content_changed
                && !is_directory(&change.after)
                && self.view.here.is_changed_there(id, change)?
            {
                self.add_reported_names(id);
            }
        }
        Ok(())
    }

    fn is_same(&self, here: FileId, there: FileId) -> Result<bool> {
        Ok(match self.view.inner(here) {
            Some(inner) => self.view.here.is_same(inner, there)?,
            None => false,
        })
    }

    /// Makes the node that is `id` here another file.
    fn renounce(&mut self, id: FileId, since: Seq) -> FileId {
        let becomes = (self.fresh)();
        self.identities.push(Step::Identity {
            was: self.view.inner(id).unwrap_or(id),
            becomes,
            kind: Identity::New(since),
        });
        self.view.unknown.insert(becomes);
        self.view.alias(id, becomes);
        becomes
    }

    /// Nodes that come from where this tree did not hold them: directories with all that is in
    /// them. One that is on its way is not whole yet.
    fn arrivals(&mut self) -> Result<()> {
        let mut to_do: Vec<FileId> = Vec::new();
        for (place, change) in &self.others.names {
            if let Some(id) = change.after
                && self.ignored(place, id)?.is_none()
            {
                to_do.push(id);
            }
        }
        for (name, id) in self.view.here.on_their_way()? {
            if is_name_of_new(&name) {
                to_do.push(self.view.outer(id));
            }
        }
        let mut inside = HashSet::new();
        let mut seen = HashSet::new();
        while let Some(id) = to_do.pop() {
            let change = self.others.nodes.get(&id);
            let is_new = change.is_some_and(|change| change.before.is_none());
            let is_file = change.is_some_and(|change| !is_directory(&change.after));
            if is_new || is_file || !seen.insert(id) {
                continue;
            }
            if let Some(node) = self.view.node(id)?
                && !(is_directory(&node.attributes)
                    && node.is_known
                    && (inside.contains(&id) || self.is_new_on_its_way(&node)))
            {
                continue;
            }
            let Some(reported) = self.reported(id, true) else {
                continue;
            };
            self.whole.insert(id);
            for (name, child, _) in reported.entries.iter().flatten() {
                let name = ByteString(name.clone());
                let place = Place { parent: id, name };
                if self.ignored(&place, *child)?.is_some() {
                    // Nothing below it matters.
                    self.add_name(&place, *child);
                    continue;
                }
                if self.view.node(*child)?.is_none() {
                    self.add_name(&place, *child);
                } else if self.view.entry(&place)? != Some(*child) {
                    continue;
                }
                inside.insert(*child);
                to_do.push(*child);
            }
        }
        Ok(())
    }

    fn is_new_on_its_way(&self, node: &LocalNode) -> bool {
        let root = self.view.root();
        let mut places = node.places.iter();
        places.any(|place| place.parent == root && is_name_of_new(place.name.as_bytes()))
    }

    /// Whether a directory is here, or will be.
    fn is_present(&mut self, directory: FileId) -> Result<bool> {
        let (mut way, mut walked) = (Vec::new(), HashSet::new());
        let mut current = directory;
        // The way up, until something is known.
        let known = loop {
            if let Some(known) = self.present.get(&current) {
                break *known;
            }
            if current == self.view.root() {
                break true;
            }
            if !walked.insert(current) {
                return Err(PlanError::Hostile(format!("directory {current} is inside itself")));
            }
            way.push(current);
            match self.placed.get(&current).and_then(|places| places.first()).cloned() {
                Some(place) => {
                    if self.unfit(&place, current)?.is_some() {
                        break false;
                    }
                    current = place.parent;
                }
                None if self.view.node(current)?.is_some() => {
                    if self.removed.contains_key(&current) {
                        break false;
                    }
                    let node = self.view.node(current)?;
                    let place = node.and_then(|node| node.places.into_iter().next());
                    match place {
                        // It is in the same place there.
                        Some(place) if !self.view.is_unsent(&place)? => current = place.parent,
                        _ => break true,
                    }
                }
                None => {
                    // It was removed here, or never held.
                    let before = self.names.len();
                    self.add_reported_names(current);
                    if self.names.len() == before {
                        break false;
                    }
                    way.pop();
                    walked.remove(&current);
                }
            }
        };
        for id in way {
            self.present.insert(id, known);
        }
        Ok(known)
    }

    /// Whether a node that is here is in the server's tree; asks if nothing is known of it.
    fn is_in_tree_there(&mut self, id: FileId) -> Result<bool> {
        let mut walked = HashSet::new();
        let mut current = id;
        while current != self.view.root() {
            if !walked.insert(current) {
                return Err(PlanError::Hostile(format!("directory {current} is inside itself")));
            }
            let mut place = self.placed.get(&current).and_then(|places| places.first()).cloned();
            if place.is_none() && self.removed.contains_key(&current) {
                return Ok(false);
            }
            if place.is_none()
                && let Some(node) = self.view.node(current)?
            {
                if !node.is_known {
                    return Ok(false);
                }
                let first = node.places.into_iter().next();
                if let Some(first) = first
                    && !self.view.is_unsent(&first)?
                {
                    place = Some(first);
                }
            }
            if place.is_none() {
                place = self
                    .reported(current, false)
                    .and_then(|reported| reported.places.first())
                    .cloned();
            }
            match place {
                Some(place) => current = place.parent,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    fn decide_names(&mut self) -> Result<()> {
        let names: Vec<(Place<FileId>, NameChange)> = self
            .names
            .iter()
            .map(|(place, change)| (place.clone(), *change))
            .collect();
        self.tell_blocked_inside()?;
        self.find_above_blocked()?;
        let held = self.held_by_blocked()?;
        for (place, change) in names {
            let mut after = change.after;
            let found = self.view.entry(&place)?;
            let holds_blocked = after.is_none()
                && found.is_some_and(|found| {
                    held.contains(&found) || (self.above_blocked.contains(&found) && !self.placed.contains_key(&found))
                });
            if found != after && (self.given.blocked.places.contains(&place) || holds_blocked) {
                if let Some(node) = after {
                    let (place, why, ignored) = (place.clone(), "it cannot be made here", None);
                    self.outcomes.push(Outcome::LeftOut {
                        place,
                        node,
                        why,
                        ignored,
                    });
                }
                let before = found;
                self.outcomes.push(Outcome::BlockedName { place, before, after });
                continue;
            }
            if let Some(id) = after {
                if let Some(Unfit { why, ignored }) = self.unfit(&place, id)? {
                    self.outcomes.push(Outcome::LeftOut {
                        place: place.clone(),
                        node: id,
                        why,
                        ignored,
                    });
                    after = None;
                } else if !self.is_present(place.parent)? {
                    after = None;
                } else if id == self.view.root() {
                    return Err(PlanError::Hostile("the root has a name".to_owned()));
                } else {
                    let here = self.view.node(id)?;
                    let there = match here {
                        Some(_) => self.others.nodes.get(&id).map(|change| change.after.clone()),
                        None => self.attributes_there(id),
                    };
                    match (here, there) {
                        (Some(here), Some(there)) if here.attributes.kind != there.kind => {
                            return Err(PlanError::Hostile(format!("node {id} has changed its type")));
                        }
                        // Its attributes have been asked for.
                        (None, None) => continue,
                        _ => {}
                    }
                }
            }
            if after.is_none() && found.is_some() && found != change.before && self.view.is_unsent(&place)? {
                // The node removed there is not the one here.
                continue;
            }
            if after.is_some() || found.is_some() {
                self.want.insert(place, after);
            }
        }
        Ok(())
    }

    /// Takes the old names from moved nodes: from a directory all, from a file those under which it
    /// is on its way, and, if it was moved here, too, the one that it got by that.
    fn one_name_each(&mut self) -> Result<()> {
        let mut wanted: BTreeMap<FileId, Vec<Place<FileId>>> = BTreeMap::new();
        for (place, id) in &self.want {
            if let Some(id) = id {
                wanted.entry(*id).or_default().push(place.clone());
            }
        }
        let root = self.view.root();
        for (id, places) in wanted {
            let Some(node) = self.view.node(id)? else {
                let there = self.attributes_there(id);
                if places.len() > 1 && there.is_some_and(|there| is_directory(&there)) {
                    return Err(PlanError::Hostile(format!("directory {id} has two names")));
                }
                continue;
            };
            let is_directory = is_directory(&node.attributes);
            if is_directory && places.len() > 1 {
                return Err(PlanError::Hostile(format!("directory {id} has two names")));
            }
            let mut moved_here_and_there = 0;
            for place in self.removed.get(&id).into_iter().flatten() {
                if self.view.is_unsent(place)? && self.view.entry(place)? != Some(id) {
                    moved_here_and_there += 1;
                }
            }
            let mut came = 0;
            for place in &places {
                if self.view.entry(place)? != Some(id) {
                    came += 1;
                }
            }
            let mut too_many = moved_here_and_there.min(came);
            for place in &node.places {
                if self.want.get(place).is_some_and(|wanted| *wanted != Some(id)) || places.contains(place) {
                    continue;
                }
                let is_on_its_way = place.parent == root && is_name_on_its_way(place.name.as_bytes());
                if is_directory || is_on_its_way {
                    self.want.insert(place.clone(), None);
                } else if too_many > 0 && self.view.is_unsent(place)? {
                    too_many -= 1;
                    self.want.insert(place.clone(), None);
                }
            }
        }
        Ok(())
    }

    /// Nodes that are on their way since an earlier attempt get their name, or go.
    fn parked(&mut self) -> Result<()> {
        for (name, id) in self.view.here.on_their_way()? {
            let id = self.view.outer(id);
            let name = ByteString(name);
            let parent = self.view.root();
            let place = Place { parent, name };
            let change = self.others.nodes.get(&id);
            let is_new = change.is_some_and(|change| change.before.is_none());
            // All names of a new node are known.
            if !is_new && self.view.node(id)?.is_some_and(|node| node.is_known) {
                self.add_reported_names(id);
            }
            self.want.entry(place).or_insert(None);
        }
        Ok(())
    }

    /// Takes moves of directories back that were made here, if these would be inside themselves
    /// otherwise.
    fn nothing_inside_itself(&mut self) -> Result<()> {
        let wanted: HashMap<FileId, Place<FileId>> = self
            .want
            .iter()
            .filter_map(|(place, id)| Some(((*id)?, place.clone())))
            .collect();
        let mut above_root: HashSet<FileId> = HashSet::from([self.view.root()]);
        let moved: BTreeSet<FileId> = wanted.keys().copied().collect();
        for id in moved {
            let mut way = Vec::new();
            let mut walked = HashSet::new();
            let mut current = id;
            while !above_root.contains(&current) {
                if !walked.insert(current) {
                    self.take_back(&way, &wanted)?;
                    break;
                }
                way.push(current);
                let place = match wanted.get(&current) {
                    Some(place) => Some(place.clone()),
                    None => {
                        let node = self.view.node(current)?;
                        let places = node.map(|node| node.places).unwrap_or_default();
                        let kept = places.iter().find(|place| !self.want.contains_key(place));
                        // A name that goes may have to stay.
                        kept.or(places.first()).cloned()
                    }
                };
                match place {
                    Some(place) => current = place.parent,
                    None => break,
                }
            }
            above_root.extend(way);
        }
        Ok(())
    }

    fn take_back(&mut self, way: &[FileId], wanted: &HashMap<FileId, Place<FileId>>) -> Result<()> {
        let (names, needs) = (self.names.len(), self.needs.len());
        for id in way {
            if !wanted.contains_key(id) {
                self.add_reported_names(*id);
            }
        }
        match self.names.len() > names || self.needs.len() > needs {
            true => Ok(()),
            false => Err(PlanError::Hostile("directories are inside themselves".to_owned())),
        }
    }
}
