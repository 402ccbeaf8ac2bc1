//! Orders the steps: each name when its preconditions hold, cycles by parking.

use byteback_model::{ByteString, FileId, NodeKind, Place};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::merge::{Merged, View};
use super::names::{is_name_on_its_way, name_on_its_way};
use super::{Plan, PlanError, Step, is_directory as holds_names};

type Result<T> = std::result::Result<T, PlanError>;

pub(super) fn order(merged: Merged<'_>) -> Result<Plan> {
    let Merged {
        view,
        want,
        local,
        identities,
        made,
        contents,
        attributes,
        outcomes,
        whole,
        last_identities,
    } = merged;
    let mut kinds = HashMap::new();
    for (id, attributes) in &made {
        kinds.insert(*id, attributes.kind);
    }
    let mut order = Order {
        view,
        want,
        local,
        kinds,
        now: HashMap::new(),
        places: HashMap::new(),
        inside: HashMap::new(),
        waiting: HashMap::new(),
        steps: identities,
        made,
    };
    order.make_on_the_way(&whole)?;
    let steps = &mut order.steps;
    steps.extend(contents.into_iter().map(|(id, from)| Step::Content { id, from }));
    let (directories, others): (Vec<_>, Vec<_>) = attributes
        .into_iter()
        .partition(|(_, attributes)| holds_names(attributes));
    let set = |(id, attributes)| Step::Attributes { id, attributes };
    // A node made with its attributes changes no more, except for a file's content.
    let is_made_so = |id: &FileId, kind| kind != NodeKind::File && order.made.contains_key(id);
    let others: Vec<_> = others
        .into_iter()
        .filter(|(id, attributes)| !is_made_so(id, attributes.kind))
        .collect();
    order.steps.extend(others.into_iter().map(set));
    order.names(&whole)?;
    order.steps.extend(directories.into_iter().map(set));
    order.steps.extend(last_identities);
    Ok(Plan {
        steps: order.steps,
        outcomes,
    })
}

struct Order<'a> {
    view: View<'a>,
    want: BTreeMap<Place<FileId>, Option<FileId>>,
    local: HashSet<Place<FileId>>,
    kinds: HashMap<FileId, NodeKind>,
    /// Names that differ from the tree here by now.
    now: HashMap<Place<FileId>, Option<FileId>>,
    /// All names of the nodes that were looked at.
    places: HashMap<FileId, BTreeSet<Place<FileId>>>,
    /// Entries of the directories that were looked at.
    inside: HashMap<FileId, BTreeSet<ByteString>>,
    /// Number of names that a node is still to get.
    waiting: HashMap<FileId, usize>,
    steps: Vec<Step>,
    /// Nodes to be made.
    made: BTreeMap<FileId, byteback_model::Attributes>,
}

impl Order<'_> {
    fn entry(&mut self, place: &Place<FileId>) -> Result<Option<FileId>> {
        match self.now.get(place) {
            Some(now) => Ok(*now),
            None => self.view.entry(place),
        }
    }

    fn places_of(&mut self, id: FileId) -> Result<&mut BTreeSet<Place<FileId>>> {
        if !self.places.contains_key(&id) {
            let node = self.view.node(id)?;
            let places = node.into_iter().flat_map(|node| node.places).collect();
            self.places.insert(id, places);
        }
        Ok(self.places.entry(id).or_default())
    }

    fn inside_of(&mut self, directory: FileId) -> Result<&mut BTreeSet<ByteString>> {
        if !self.inside.contains_key(&directory) {
            let mut names: BTreeSet<ByteString> = self
                .view
                .entries(directory)?
                .into_iter()
                .map(|(name, _)| ByteString(name))
                .collect();
            for (place, id) in self.now.iter().filter(|(place, _)| place.parent == directory) {
                match id {
                    Some(_) => names.insert(place.name.clone()),
                    None => names.remove(&place.name),
                };
            }
            self.inside.insert(directory, names);
        }
        Ok(self.inside.entry(directory).or_default())
    }

    fn set(&mut self, place: &Place<FileId>, id: Option<FileId>) -> Result<()> {
        if let Some(before) = self.entry(place)? {
            self.places_of(before)?.remove(place);
        }
        if let Some(id) = id {
            self.places_of(id)?.insert(place.clone());
        }
        self.now.insert(place.clone(), id);
        if let Some(names) = self.inside.get_mut(&place.parent) {
            match id {
                Some(_) => names.insert(place.name.clone()),
                None => names.remove(&place.name),
            };
        }
        Ok(())
    }

    fn is_directory(&mut self, id: FileId) -> Result<bool> {
        if let Some(kind) = self.kinds.get(&id) {
            return Ok(*kind == NodeKind::Directory);
        }
        let kind = self.view.node(id)?.map(|node| node.attributes.kind);
        self.kinds.extend(kind.map(|kind| (id, kind)));
        Ok(kind == Some(NodeKind::Directory))
    }

    fn on_the_way(&self, id: FileId, is_new: bool) -> Place<FileId> {
        Place {
            parent: self.view.root(),
            name: ByteString(name_on_its_way(id, is_new)),
        }
    }

    fn is_on_the_way(&self, place: &Place<FileId>) -> bool {
        place.parent == self.view.root() && is_name_on_its_way(place.name.as_bytes())
    }

    /// Makes new files, and directories that come with their contents, under a name on their way:
    /// they are whole before they have their own. The same holds for nodes that replace another.
    fn make_on_the_way(&mut self, whole: &HashSet<FileId>) -> Result<()> {
        let mut chosen = Vec::new();
        for (place, id) in &self.want {
            let Some((id, attributes)) = id.and_then(|id| self.made.get_key_value(&id)) else {
                continue;
            };
            let is_chosen = match attributes.kind {
                NodeKind::File => true,
                NodeKind::Directory => whole.contains(id) && !whole.contains(&place.parent),
                _ => self.view.entry(place)?.is_some(),
            };
            if is_chosen {
                chosen.push((*id, attributes.clone()));
            }
        }
        let mut seen = HashSet::new();
        for (id, attributes) in chosen {
            if !seen.insert(id) {
                continue;
            }
            let place = self.on_the_way(id, true);
            if let Some(left) = self.entry(&place)? {
                // It is left by an attempt that ended before its identity was known.
                self.steps.push(Step::Remove {
                    id: left,
                    place: place.clone(),
                });
                self.set(&place, None)?;
            }
            self.steps.push(Step::Make {
                id,
                place: place.clone(),
                attributes,
            });
            self.set(&place, Some(id))?;
            self.want.insert(place, None);
        }
        Ok(())
    }

    fn names(&mut self, whole: &HashSet<FileId>) -> Result<()> {
        let mut pending: Vec<Place<FileId>> = Vec::new();
        let mut last: Vec<Place<FileId>> = Vec::new();
        let want: Vec<(Place<FileId>, Option<FileId>)> =
            self.want.iter().map(|(place, id)| (place.clone(), *id)).collect();
        for (place, id) in want {
            let found = self.entry(&place)?;
            if found == id {
                continue;
            }
            if let Some(id) = id {
                *self.waiting.entry(id).or_default() += 1;
            }
            let is_last = match id {
                Some(id) => whole.contains(&id) && !whole.contains(&place.parent),
                None => found.is_some_and(|found| whole.contains(&found)) && self.is_on_the_way(&place),
            };
            if is_last { last.push(place) } else { pending.push(place) }
        }
        // Directories that come whole get their names once they are.
        for mut pending in [pending, last] {
            while !pending.is_empty() {
                let before = (pending.len(), self.steps.len());
                let mut later = Vec::new();
                for place in pending {
                    if !self.try_name(&place)? {
                        later.push(place);
                    }
                }
                pending = later;
                if (pending.len(), self.steps.len()) == before {
                    self.park_one(&pending)?;
                }
                // A chain is as often the one way round as the other.
                pending.reverse();
            }
        }
        Ok(())
    }

    /// Does the step for a name, if it can be done now.
    fn try_name(&mut self, place: &Place<FileId>) -> Result<bool> {
        let wanted = self.want.get(place).copied().flatten();
        let found = self.entry(place)?;
        if found == wanted {
            return Ok(true);
        }
        match wanted {
            Some(id) => self.try_place(place, id, found),
            None => match found {
                Some(id) => self.try_remove(place, id),
                None => Ok(true),
            },
        }
    }

    fn is_waiting(&self, id: FileId) -> bool {
        self.waiting.get(&id).is_some_and(|names| *names > 0)
    }

    fn try_remove(&mut self, place: &Place<FileId>, id: FileId) -> Result<bool> {
        if self.is_waiting(id) || (self.is_directory(id)? && !self.inside_of(id)?.is_empty()) {
            return Ok(false);
        }
        self.remove(place, id)?;
        Ok(true)
    }

    fn remove(&mut self, place: &Place<FileId>, id: FileId) -> Result<()> {
        let removed = place.clone();
        self.steps.push(Step::Remove { id, place: removed });
        self.set(place, None)
    }

    fn try_place(&mut self, place: &Place<FileId>, id: FileId, found: Option<FileId>) -> Result<bool> {
        let is_there = place.parent == self.view.root() || !self.places_of(place.parent)?.is_empty();
        let is_directory = self.is_directory(id)?;
        if !is_there || (is_directory && self.is_inside(place.parent, id)?) {
            return Ok(false);
        }
        let is_local = self.local.contains(place);
        let source = self.source(id, is_local)?;
        let mut replaces = None;
        if let Some(other) = found {
            // It must have a name left from which it can go on.
            if self.is_waiting(other) && self.places_of(other)?.len() < 2 {
                return Ok(false);
            }
            let can_replace = source.is_some() && !is_directory && !self.is_directory(other)?;
            if can_replace {
                replaces = Some(other);
            } else if self.is_directory(other)? && !self.inside_of(other)?.is_empty() {
                return Ok(false);
            } else {
                self.remove(place, other)?;
            }
        }
        let to = place.clone();
        match source {
            Some(from) => {
                let is_replaced = self.want.get(&from).is_some_and(Option::is_some);
                let leaves_old = is_local && !is_directory && is_replaced;
                if !leaves_old {
                    self.set(&from, None)?;
                }
                self.steps.push(Step::Rename {
                    id,
                    from,
                    to,
                    replaces,
                    is_local,
                    leaves_old,
                });
            }
            None if !self.places_of(id)?.is_empty() => self.steps.push(Step::Link { id, place: to }),
            None => {
                let attributes = self.made.get(&id).cloned();
                let unknown = || PlanError::Hostile(format!("node {id} is neither here nor at the server"));
                let attributes = attributes.ok_or_else(unknown)?;
                self.steps.push(Step::Make {
                    id,
                    place: to,
                    attributes,
                });
            }
        }
        self.set(place, Some(id))?;
        if let Some(names) = self.waiting.get_mut(&id) {
            *names = names.saturating_sub(1);
        }
        Ok(true)
    }

    /// The name that a node gives up for a new one, the last one only for the last: a node on its
    /// way is not whole until then.
    fn source(&mut self, id: FileId, gives_way: bool) -> Result<Option<Place<FileId>>> {
        if self.waiting.get(&id).is_some_and(|names| *names > 1) {
            return Ok(None);
        }
        let is_directory = self.is_directory(id)?;
        let places: Vec<Place<FileId>> = self.places_of(id)?.iter().cloned().collect();
        let mut source = None;
        for place in places {
            let Some(wanted) = self.want.get(&place) else { continue };
            // A name that another node takes over goes by that.
            if *wanted == Some(id) || (wanted.is_some() && !is_directory && !gives_way) {
                continue;
            }
            if source.is_none() || self.is_on_the_way(&place) {
                source = Some(place);
            }
        }
        Ok(source)
    }

    /// Whether a directory is `outer`, or inside it.
    fn is_inside(&mut self, directory: FileId, outer: FileId) -> Result<bool> {
        let mut walked = HashSet::new();
        let mut current = directory;
        loop {
            if current == outer {
                return Ok(true);
            }
            let parent = self.places_of(current)?.first().map(|place| place.parent);
            match parent {
                Some(parent) if walked.insert(current) => current = parent,
                _ => return Ok(false),
            }
        }
    }

    /// Moves one node of a cycle out of the others' way.
    fn park_one(&mut self, pending: &[Place<FileId>]) -> Result<()> {
        for place in pending {
            let Some(id) = self.want.get(place).copied().flatten() else {
                continue;
            };
            let places: Vec<Place<FileId>> = self.places_of(id)?.iter().cloned().collect();
            let gives_up = |of: &&Place<FileId>| self.want.get(of).is_some_and(|wanted| *wanted != Some(id));
            let Some(from) = places.iter().find(gives_up) else {
                continue;
            };
            if places.iter().any(|place| self.is_on_the_way(place)) {
                continue;
            }
            let to = self.on_the_way(id, false);
            self.steps.push(Step::Rename {
                id,
                from: from.clone(),
                to: to.clone(),
                replaces: None,
                is_local: false,
                leaves_old: false,
            });
            self.set(from, None)?;
            self.set(&to, Some(id))?;
            self.want.insert(to, None);
            return Ok(());
        }
        let first = pending
            .first()
            .map(|place| format!("'{}' in directory {}", place.name, place.parent));
        Err(PlanError::Hostile(format!(
            "there is no order in which {} names can be assigned, among them {}",
            pending.len(),
            first.unwrap_or_default()
        )))
    }
}
