//! Blocked nodes and names stay as they are here, and so do the directories that contain them.

use byteback_model::{ByteString, FileId, Place};
use std::collections::HashSet;

use super::super::{Outcome, PlanError, is_directory};
use super::Merge;

type Result<T> = std::result::Result<T, PlanError>;

impl Merge<'_, '_> {
    /// Nodes here that were to get a name that cannot be given: they keep the names that they have,
    /// as they would be nowhere here.
    pub(super) fn held_by_blocked(&mut self) -> Result<HashSet<FileId>> {
        let mut held = HashSet::new();
        for place in &self.given.blocked.places {
            let wanted = self.names.get(place).and_then(|change| change.after);
            if let Some(node) = wanted
                && self.view.node(node)?.is_some()
            {
                held.insert(node);
            }
        }
        Ok(held)
    }

    /// Reports names that cannot be taken away in a directory that goes as a whole: others' changes
    /// do not list them.
    pub(super) fn tell_blocked_inside(&mut self) -> Result<()> {
        for place in &self.given.blocked.places {
            let before = self.view.entry(place)?;
            if before.is_some() && !self.names.contains_key(place) {
                let (place, after) = (place.clone(), None);
                self.outcomes.push(Outcome::BlockedName { place, before, after });
            }
        }
        Ok(())
    }

    /// The directories that cannot be taken away, or hold a name that cannot, except those with
    /// something new in them: these come back at the server with it.
    pub(super) fn find_above_blocked(&mut self) -> Result<()> {
        let mut above = HashSet::new();
        for place in &self.given.blocked.places {
            if let Some(found) = self.view.entry(place)?
                && self
                    .view
                    .node(found)?
                    .is_some_and(|node| is_directory(&node.attributes))
                && !self.holds_unsent(found)?
            {
                above.insert(found);
            }
            let mut current = place.parent;
            while self.view.entry(place)?.is_some() && current != self.view.root() && !above.contains(&current) {
                if self.holds_unsent(current)? {
                    break;
                }
                above.insert(current);
                let node = self.view.node(current)?;
                let Some(place) = node.and_then(|node| node.places.into_iter().next()) else {
                    break;
                };
                current = place.parent;
            }
        }
        self.above_blocked = above;
        Ok(())
    }

    fn holds_unsent(&mut self, directory: FileId) -> Result<bool> {
        for (name, child) in self.view.entries(directory)? {
            let place = Place {
                parent: directory,
                name: ByteString(name),
            };
            let is_unsent = self.view.node(child)?.is_some_and(|node| node.is_unsent);
            if is_unsent || self.view.is_unsent(&place)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
