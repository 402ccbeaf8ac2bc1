//! Files that were changed here in one atomic operation share its outcome (DeltaCFS section III-C):
//! where one of them gets a conflict name because another device was first, so do the others that
//! lie in the same directory. Others see under the true names all of the operation or nothing of
//! it: a database never stands beside a log of another one.
//!
//! A round of the merge finds the files in conflict; the files changed together with them are
//! *parted* in the next: each gets an identity of its own, as a file that others changed, too,
//! does, and the server's version comes to the names that it has there. A file that is new here,
//! was moved here, or was removed by others only loses its names. Files that others have with the
//! same content stay.
//!
//! **Made again** after an interruption, the plan must have the same result. A file that was parted
//! already is recognized by its former identity ([`Member::was`]), and by having its conflict name
//! ([`Member::is_copy`]): both are durable before anything shows.

use byteback_model::{FileId, NodeKind, Place};
use std::collections::{HashMap, HashSet};

use super::super::{LocalNode, Member, Outcome, PlanError};
use super::Merge;

type Result<T> = std::result::Result<T, PlanError>;

impl Merge<'_, '_> {
    /// Gives identities of their own to the files that share a conflict, and lets the server's
    /// names come.
    pub(super) fn part(&mut self) -> Result<()> {
        for member in self.members() {
            let id = self.view.outer(member.id);
            let Some(node) = self.view.node(id)? else { continue };
            let is_blocked = self.given.blocked.contents.contains(&id);
            let is_to_be_parted =
                self.parted.contains(&member.id) && !is_blocked && node.is_known && self.is_changed_locally(id, &node);
            let Some(there) = member.was.or(is_to_be_parted.then_some(id)) else {
                continue;
            };
            let Some(reported) = self.reported(there, false) else {
                continue;
            };
            // Others may have removed it. Where a file was moved here, nothing of theirs is, unless
            // they moved it as well.
            let has_its_name = node.places.iter().any(|place| reported.places.contains(place));
            if reported.places.is_empty() || !(has_its_name || self.placed.contains_key(&there)) {
                continue;
            }
            if member.was.is_none() {
                if self.is_same(id, id)? {
                    self.same.insert(id);
                    continue;
                }
                let change = self.others.nodes.get(&id).filter(|change| change.before.is_some());
                let since = match change {
                    Some(change) if !self.given.landed.contains(&id) => change.since,
                    // Others did not change it, or it holds what they wrote and what was written
                    // here since.
                    _ => self.others.head,
                };
                self.renounce(id, since);
            }
            self.add_reported_names(there);
        }
        Ok(())
    }

    /// Takes their names from the files that share a conflict, as far as nothing else gets them.
    pub(super) fn vacate(&mut self) -> Result<()> {
        for member in self.members() {
            let id = self.view.outer(member.id);
            if member.is_copy || !self.parted.contains(&member.id) {
                continue;
            }
            let Some(node) = self.view.node(id)? else { continue };
            if self.is_changed_locally(id, &node) {
                for place in node.places {
                    self.want.entry(place).or_insert(None);
                }
            }
        }
        Ok(())
    }

    /// Finds the files that share the conflicts of this round. If any are new, another round
    /// follows.
    pub(super) fn share(&mut self) -> Result<()> {
        // Files in conflict and their directories, these by the identities that they have before
        // all else is done.
        let mut contested: HashSet<(FileId, FileId)> = HashSet::new();
        for outcome in &self.outcomes {
            if let Outcome::Conflict { place, node, .. } = outcome
                && let Some(inner) = self.view.inner(*node)
            {
                contested.insert((inner, place.parent));
            }
        }
        for member in self.members() {
            let id = self.view.outer(member.id);
            if member.is_copy
                && let Some(node) = self.view.node(id)?
            {
                contested.extend(node.places.iter().map(|place| (member.id, place.parent)));
            }
        }
        // Directories in which each node has names in the end, wherever it is now.
        let mut named: HashMap<FileId, Vec<FileId>> = HashMap::new();
        for (place, id) in &self.want {
            if let Some(id) = id {
                named.entry(*id).or_default().push(place.parent);
            }
        }
        let mut sharing = Vec::new();
        for set in &self.sets {
            let mut directories = HashSet::new();
            for member in set {
                let id = self.view.outer(member.id);
                let Some(node) = self.view.node(id)? else { continue };
                if node.attributes.kind == NodeKind::File && node.is_unsent && !self.same.contains(&id) {
                    let own = contested.iter().filter(|(inner, _)| *inner == member.id);
                    directories.extend(own.map(|(_, parent)| *parent));
                }
            }
            for member in set {
                let id = self.view.outer(member.id);
                let Some(node) = self.view.node(id)? else { continue };
                let is_left = |place: &&Place<FileId>| self.want.get(*place).is_none_or(|wanted| *wanted == Some(id));
                let left = node.places.iter().filter(is_left).map(|place| &place.parent);
                let mut parents = left.chain(named.get(&id).into_iter().flatten());
                if parents.any(|parent| directories.contains(parent)) {
                    sharing.push(member.id);
                }
            }
        }
        for id in sharing {
            self.is_news |= self.parted.insert(id);
        }
        Ok(())
    }

    /// Whether a node is a file with a content that was written here and that the server does not
    /// have.
    fn is_changed_locally(&self, id: FileId, node: &LocalNode) -> bool {
        node.attributes.kind == NodeKind::File && node.is_unsent && !self.same.contains(&id)
    }

    /// All members, each once.
    fn members(&self) -> Vec<Member> {
        let mut seen = HashSet::new();
        let members = self.sets.iter().flatten();
        members.filter(|member| seen.insert(member.id)).copied().collect()
    }
}
