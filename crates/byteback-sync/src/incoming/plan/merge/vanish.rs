//! The fate of nodes here that lose all their names: nodes that are only here are kept, and so are
//! the directories that hold them; all else goes.

use byteback_model::{ByteString, FileId, NodeKind, Place};
use std::collections::{BTreeMap, HashMap, HashSet};

use super::super::names::{is_name_of_new, is_name_on_its_way};
use super::super::{
    ContentFrom, Identity, LocalNode, Outcome, PlanError, Step, are_same_attributes, is_directory, merged_attributes,
};
use super::{Merge, Merged};

type Result<T> = std::result::Result<T, PlanError>;

/// Name of a kept node that has none of its own.
const NAMELESS: &[u8] = b"file";

/// Nodes that lose names.
#[derive(Default)]
struct Losses {
    lost: BTreeMap<FileId, Vec<Place<FileId>>>,
    wanted: HashSet<FileId>,
    /// To be looked at.
    to_do: Vec<FileId>,
    /// Looked at, and without a name.
    decided: HashSet<FileId>,
    /// Directories that go, outer ones before inner ones.
    directories: Vec<FileId>,
    /// Nodes that are kept, whatever they hold; with the name to which one was moved here and which
    /// another node gets, if that is why.
    kept: Vec<(FileId, Option<Place<FileId>>)>,
    /// Directories that contain a kept node.
    kept_in: HashSet<FileId>,
    /// Directories that contain one kept for the ignored nodes in it.
    withheld_in: HashSet<FileId>,
}

impl<'a> Merge<'a, '_> {
    pub(super) fn vanished(&mut self) -> Result<()> {
        let mut losses = Losses::default();
        for (place, wanted) in &self.want {
            losses.wanted.extend(*wanted);
            if let Some(found) = self.view.entry(place)?.filter(|found| Some(*found) != *wanted) {
                losses.lost.entry(found).or_default().push(place.clone());
                losses.to_do.push(found);
            }
        }
        while let Some(id) = losses.to_do.pop() {
            self.lose(id, &mut losses)?;
        }
        for (id, moved_to) in std::mem::take(&mut losses.kept) {
            self.keep(id, moved_to, false, &mut losses)?;
        }
        // A directory kept for its contents may keep the one above it.
        let mut directories = std::mem::take(&mut losses.directories);
        directories.reverse();
        loop {
            let mut going = Vec::new();
            let before = directories.len();
            for id in directories {
                if self.is_anything_left_in(id, &losses)? {
                    self.gone.remove(&id);
                    self.keep(id, None, true, &mut losses)?;
                } else if self.holds_hidden(id, &losses)? {
                    self.gone.remove(&id);
                    self.withhold(id, &mut losses)?;
                } else {
                    going.push(id);
                }
            }
            if going.len() == before {
                return self.gone_there();
            }
            directories = going;
        }
    }

    fn is_anything_left_in(&mut self, directory: FileId, losses: &Losses) -> Result<bool> {
        if losses.kept_in.contains(&directory) {
            return Ok(true);
        }
        for (name, _) in self.view.entries(directory)? {
            let name = ByteString(name);
            let place = Place {
                parent: directory,
                name,
            };
            let is_left = match self.want.get(&place) {
                Some(Some(wanted)) => !self.withheld.contains_key(wanted),
                Some(None) => false,
                None => true,
            };
            if is_left {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a directory contains anything that is not seen, because it is ignored.
    fn holds_hidden(&mut self, directory: FileId, losses: &Losses) -> Result<bool> {
        Ok(losses.withheld_in.contains(&directory) || self.view.holds_hidden(directory)?)
    }

    /// Keeps a directory for the ignored nodes in it where it is, without reporting it; if another
    /// node gets its name it is kept like a node that was changed here.
    fn withhold(&mut self, id: FileId, losses: &mut Losses) -> Result<()> {
        let places = losses.lost.get(&id).into_iter().flatten();
        let mut free = places.filter(|place| self.want.get(place).is_some_and(Option::is_none));
        let Some(place) = free.next().cloned() else {
            return self.keep(id, None, true, losses);
        };
        self.want.insert(place.clone(), Some(id));
        losses.withheld_in.insert(place.parent);
        let becomes = (self.fresh)();
        self.withheld.insert(id, becomes);
        Ok(())
    }

    /// Decides the fate of a node that loses names, if it has none left.
    fn lose(&mut self, id: FileId, losses: &mut Losses) -> Result<()> {
        if losses.wanted.contains(&id) || losses.decided.contains(&id) {
            return Ok(());
        }
        let Some(node) = self.view.node(id)? else { return Ok(()) };
        let has_left = |place: &Place<FileId>| self.want.get(place).is_none_or(|wanted| *wanted == Some(id));
        if node.places.iter().any(has_left) {
            return Ok(());
        }
        losses.decided.insert(id);
        if let Some(moved_to) = self.why_only_here(id, &node, losses)? {
            losses.kept.push((id, moved_to));
            return Ok(());
        }
        self.gone.insert(id);
        if !is_directory(&node.attributes) {
            return Ok(());
        }
        losses.directories.push(id);
        for (name, child) in self.view.entries(id)? {
            let name = ByteString(name);
            let place = Place { parent: id, name };
            let is_blocked = self.given.blocked.places.contains(&place);
            if is_blocked || self.want.contains_key(&place) || self.view.is_unsent(&place)? {
                continue;
            }
            self.want.insert(place.clone(), None);
            losses.lost.entry(child).or_default().push(place);
            losses.to_do.push(child);
        }
        Ok(())
    }

    /// Whether a node holds something that the server does not have, or may in a moment.
    fn is_unsent(&self, id: FileId, node: &LocalNode) -> bool {
        let is_in_use = node.is_in_use && !is_directory(&node.attributes);
        is_in_use || (node.is_unsent && !self.same.contains(&id))
    }

    /// Whether a node has to be kept for itself: it holds something that the server does not have,
    /// or was moved here to where others put another node.
    fn why_only_here(
        &mut self,
        id: FileId,
        node: &LocalNode,
        losses: &Losses,
    ) -> Result<Option<Option<Place<FileId>>>> {
        let is_directory = is_directory(&node.attributes);
        if self.is_unsent(id, node) && !(is_directory && (node.is_known || self.view.is_withheld(id))) {
            return Ok(Some(None));
        }
        for place in losses.lost.get(&id).into_iter().flatten() {
            let was_it = self.names.get(place).is_some_and(|change| change.before == Some(id));
            if self.want.get(place).is_some_and(Option::is_some) && !was_it && self.view.is_unsent(place)? {
                return Ok(Some(Some(place.clone())));
            }
        }
        Ok(None)
    }

    /// Directories that have no name there any more, and have one here, are made anew there, with
    /// the directories in them, which may hold there what is not seen here.
    fn gone_there(&mut self) -> Result<()> {
        let mut done: HashSet<FileId> = HashSet::new();
        let anew: HashSet<FileId> = self.recreated.iter().map(|(id, _)| *id).collect();
        let is_gone_there = |id: &FileId| {
            let is_kept = anew.contains(id) || self.withheld.contains_key(id) || self.above_blocked.contains(id);
            !self.placed.contains_key(id) && !self.gone.contains(id) && !is_kept
        };
        let removed = self.removed.keys().chain(&self.others.unreachable).copied();
        let mut to_do: Vec<(FileId, bool)> = removed.filter(is_gone_there).map(|id| (id, true)).collect();
        to_do.sort_unstable();
        to_do.extend(self.recreated.iter().map(|(id, _)| (*id, false)));
        while let Some((id, is_outermost)) = to_do.pop() {
            let Some(node) = self.view.node(id)? else { continue };
            if !is_directory(&node.attributes) || !node.is_known || !done.insert(id) || self.withheld.contains_key(&id)
            {
                continue;
            }
            if !anew.contains(&id) {
                let becomes = (self.fresh)();
                self.recreated.push((id, becomes));
                let wanted = self.want.iter().find(|(_, wanted)| **wanted == Some(id));
                let place = wanted.map(|(place, _)| place.clone());
                let place = place.or_else(|| node.places.first().cloned());
                if let Some(place) = place.filter(|_| is_outermost) {
                    self.outcomes.push(Outcome::Stays { place, node: becomes });
                }
            }
            for (name, child) in self.view.entries(id)? {
                let name = ByteString(name);
                let place = Place { parent: id, name };
                let is_left = self.want.get(&place).is_none_or(|wanted| *wanted == Some(child));
                // A node that was moved in here may be elsewhere there.
                if is_left && (!self.view.is_unsent(&place)? || !self.is_in_tree_there(child)?) {
                    to_do.push((child, false));
                }
            }
        }
        Ok(())
    }

    /// Keeps a node where it is, if that name is free and it was not moved to another one, or else
    /// under a conflict name.
    fn keep(
        &mut self,
        id: FileId,
        moved_to: Option<Place<FileId>>,
        is_recreated: bool,
        losses: &mut Losses,
    ) -> Result<()> {
        let Some(node) = self.view.node(id)? else { return Ok(()) };
        let places = losses.lost.remove(&id).unwrap_or_default();
        let is_changed_file = self.is_unsent(id, &node) && !is_directory(&node.attributes);
        let is_parted = self.view.inner(id).is_some_and(|inner| self.parted.contains(&inner));
        // The server's version of it may differ by now.
        let id = match node.is_known && is_changed_file {
            true => {
                let since = self
                    .others
                    .nodes
                    .get(&id)
                    .map_or(self.others.head, |change| change.since);
                self.renounce(id, since)
            }
            false => id,
        };
        let becomes = match node.is_known && is_recreated {
            true => {
                let becomes = (self.fresh)();
                self.recreated.push((id, becomes));
                becomes
            }
            false => id,
        };
        let root = self.view.root();
        let is_own_name = |place: &&Place<FileId>| place.parent != root || !is_name_on_its_way(place.name.as_bytes());
        let mut own_names = places.iter().filter(is_own_name);
        let first = own_names.clone().next();
        let free = own_names.find(|place| self.want.get(place).is_some_and(Option::is_none));
        if let Some(place) = free.filter(|_| moved_to.is_none() && !is_parted) {
            self.want.insert(place.clone(), Some(id));
            losses.kept_in.insert(place.parent);
            let place = place.clone();
            self.outcomes.push(Outcome::Stays { place, node: becomes });
            return Ok(());
        }
        let name = ByteString::from(NAMELESS);
        let place = moved_to
            .or_else(|| first.cloned())
            .unwrap_or(Place { parent: root, name });
        let copy = self.conflict_place(&place)?;
        self.want.insert(copy.clone(), Some(id));
        self.local.insert(copy.clone());
        losses.kept_in.insert(copy.parent);
        self.outcomes.push(Outcome::Conflict {
            place,
            copy,
            node: becomes,
        });
        Ok(())
    }

    /// Directories that are made anew at the server get their identities when all else is done:
    /// from then on everything in them is to be sent.
    fn last_identities(&mut self) -> Vec<Step> {
        let recreated: HashMap<FileId, FileId> = self.recreated.iter().copied().collect();
        for outcome in &mut self.outcomes {
            let places = match outcome {
                Outcome::Conflict { place, copy, .. } => [Some(place), Some(copy)],
                Outcome::Stays { place, .. } => [Some(place), None],
                Outcome::LeftOut { .. } | Outcome::BlockedName { .. } | Outcome::BlockedContent { .. } => [None, None],
            };
            for place in places.into_iter().flatten() {
                if let Some(becomes) = recreated.get(&place.parent) {
                    place.parent = *becomes;
                }
            }
        }
        let step = |(was, becomes)| Step::Identity {
            was,
            becomes,
            kind: Identity::New(self.others.head),
        };
        let withhold = |(was, becomes): (&FileId, &FileId)| Step::Identity {
            was: *was,
            becomes: *becomes,
            kind: Identity::Withheld,
        };
        let anew = self.recreated.iter().copied().map(step);
        anew.chain(self.withheld.iter().map(withhold)).collect()
    }

    fn conflict_place(&mut self, of: &Place<FileId>) -> Result<Place<FileId>> {
        let mut number = 1;
        loop {
            let name = ByteString(self.given.label.apply(of.name.as_bytes(), number));
            let place = Place {
                parent: of.parent,
                name,
            };
            let is_given =
                self.want.contains_key(&place) || self.names.contains_key(&place) || self.view.is_hidden(&place)?;
            if !is_given && !self.given.refused.contains(&place) && self.view.entry(&place)?.is_none() {
                return Ok(place);
            }
            number += 1;
        }
    }

    pub(super) fn finish(mut self) -> Result<Merged<'a>> {
        let mut made = BTreeMap::new();
        let mut touched = HashSet::new();
        let wanted: Vec<(Place<FileId>, Option<FileId>)> =
            self.want.iter().map(|(place, id)| (place.clone(), *id)).collect();
        for (place, id) in wanted {
            if self.view.entry(&place)? != id {
                touched.insert(place.parent);
            }
            let Some(id) = id else { continue };
            if !made.contains_key(&id) && self.view.node(id)?.is_none() {
                let attributes = self.attributes_there(id);
                let unknown = || PlanError::Hostile(format!("node {id} has a name but does not exist"));
                made.insert(id, attributes.ok_or_else(unknown)?);
            }
        }
        let mut of_same = Vec::new();
        // Nodes that both had before, and that did not change since.
        let mut same: Vec<FileId> = self.same.iter().copied().collect();
        same.sort_unstable();
        for id in same {
            if self.others.nodes.contains_key(&id) || made.contains_key(&id) || self.gone.contains(&id) {
                continue;
            }
            if let (Some(node), Some(there)) = (self.view.node(id)?, self.attributes_there(id))
                && !are_same_attributes(&there, &node.attributes)
            {
                of_same.push((id, there));
            }
        }
        let (mut contents, mut attributes) = (Vec::new(), Vec::new());
        let has_content = |id: &FileId| !self.given.landed.contains(id) && !self.same.contains(id);
        for (id, made) in &made {
            // An empty file is complete when it is made.
            if made.kind == NodeKind::File && made.size > 0 {
                contents.push((*id, ContentFrom::Nothing));
            }
            attributes.push((*id, made.clone()));
        }
        let mut done: HashSet<FileId> = made.keys().copied().collect();
        for (name, id) in self.view.here.on_their_way()? {
            let id = self.view.outer(id);
            if !is_name_of_new(&name) || self.gone.contains(&id) || done.contains(&id) {
                continue;
            }
            let Some(node) = self.view.node(id)?.filter(|node| node.is_known && !node.is_unsent) else {
                continue;
            };
            let there = match self.others.nodes.get(&id) {
                Some(change) => Some(&change.after),
                None => self
                    .others
                    .reported
                    .get(&id)
                    .and_then(Option::as_ref)
                    .map(|reported| &reported.attributes),
            };
            let Some(there) = there else { continue };
            if node.attributes.kind == NodeKind::File && has_content(&id) {
                contents.push((id, ContentFrom::Nothing));
            }
            attributes.push((id, there.clone()));
            done.insert(id);
        }
        attributes.extend(of_same);
        for (id, change) in &self.others.nodes {
            if done.contains(id) || self.gone.contains(id) {
                continue;
            }
            let Some(node) = self.view.node(*id)? else { continue };
            let is_file = node.attributes.kind == NodeKind::File;
            let is_to_come = change.is_content_changed && is_file && has_content(id);
            let gets_content = is_to_come && !node.is_unsent;
            if is_to_come && self.given.blocked.contents.contains(id) {
                let (node, since) = (*id, change.since);
                self.outcomes.push(Outcome::BlockedContent { node, since });
                continue;
            }
            if gets_content {
                let from = match change.before {
                    Some(_) => ContentFrom::Since(change.since),
                    None => ContentFrom::Nothing,
                };
                contents.push((*id, from));
            }
            let wanted = merged_attributes(&node, change);
            if gets_content || touched.contains(id) || !are_same_attributes(&wanted, &node.attributes) {
                attributes.push((*id, wanted));
            }
        }
        Ok(Merged {
            last_identities: self.last_identities(),
            whole: self.whole,
            view: self.view,
            want: self.want,
            local: self.local,
            identities: self.identities,
            made,
            contents,
            attributes,
            outcomes: self.outcomes,
        })
    }
}
