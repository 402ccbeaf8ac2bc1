//! The relation table: recognises transactional saves (DeltaCFS section III-A).
//!
//! A program that saves carefully writes a new file and then gives it the old one's name; the old
//! content exists until the new one is complete, under another name or, where the program removed
//! it, kept aside for a moment. The table decides which new content ([`Decision::Relate`]: *new*)
//! is worth comparing with which old one (*base*), so that a small difference is sent instead of a
//! whole file.
//!
//! An *entry* `src -> node` says: `src` stood for this file a moment ago and stands for nothing
//! now. (The paper writes a second name; the node is what that name would lead to, and stays right
//! when the second name changes, too.)
//!
//! | what happens | what it does here |
//! |---|---|
//! | a file is renamed away, or loses a name | an entry for the old name, for [`RelationOptions::timeout_ns`] |
//! | a file is created under a name with an entry | the entry becomes a relation |
//! | a file with unsent content is renamed or linked to a name with an entry | the same |
//! | a file with unsent content is renamed over another one | a relation with what it replaced; this needs no entry |
//! | two names are exchanged | a relation of the one with unsent content with the other |
//! | anything else gets a name with an entry | the entry is gone: its name stands for something else now |
//! | the time is out | the entry is gone |
//! | the base can no longer be read | entries and relations with it are gone |
//!
//! How to call: before a file loses its last name, ask [`RelationTable::is_worth_keeping`]; if so,
//! keep it (a link in a folder of one's own), and say in [`Victim::is_kept`] whether that
//! succeeded. After each operation call [`RelationTable::observe`], and when
//! [`RelationTable::deadline_ns`] has come, [`RelationTable::expire`]. When a new content was
//! compared, sent, or removed, call [`RelationTable::finish`].
//!
//! Invariants, checked by [`RelationTable::check`]: a new content has one base; no node is a base,
//! or kept aside, without an entry or a relation that needs it; no entry outlives its time; there
//! are at most as many entries as allowed.
//!
//! A relation that is missed, for whatever reason, costs bytes and nothing else. So nothing of this
//! outlives the process: a new process removes the files kept aside and begins with an empty table.
//!
//! Out of scope: in-place rewriting (the file is its own base; the undo copies have it);
//! deciding whether comparing pays, which the queue knows; directories, symlinks.

use byteback_model::{NodeId, NodeKind, Place};
use std::collections::{BTreeMap, BTreeSet};

use crate::operation::{Moved, NameOperation, Victim};

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod traces;

/// A second in nanoseconds.
const SECOND_NS: u64 = 1_000_000_000;

/// How long and how much is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelationOptions {
    /// How long a name that stands for nothing is remembered, in nanoseconds. Saves are done within
    /// a second; the paper uses 1 to 3.
    pub timeout_ns: u64,
    /// The most entries; beyond it the oldest go first.
    pub entries_max: usize,
    /// Files kept aside at most, so that removing a large tree is not slowed down by keeping all of
    /// it.
    pub kept_files_max: usize,
    /// Bytes of files kept aside at most.
    pub kept_bytes_max: u64,
    /// Nothing is kept aside while the file system has less room than this many bytes.
    pub free_bytes_min: u64,
}

impl Default for RelationOptions {
    fn default() -> Self {
        Self {
            timeout_ns: 2 * SECOND_NS,
            entries_max: 4096,
            kept_files_max: 256,
            kept_bytes_max: 4 << 30,
            free_bytes_min: 1 << 30,
        }
    }
}

/// A consequence of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Decision {
    /// The content of `new`, as soon as it is complete, is to be compared with the content of
    /// `base`. Replaces an earlier relation of `new`.
    Relate {
        /// The file with the new content.
        new: NodeId,
        /// The file with the old content.
        base: NodeId,
        /// The base had lost its last name before this operation.
        is_base_removed: bool,
    },
    /// The base of this relation can no longer be read.
    Unrelate {
        /// The file with the new content.
        new: NodeId,
        /// The file with the old content.
        base: NodeId,
    },
    /// The table no longer needs this file, which was kept aside.
    Drop(NodeId),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    node: NodeId,
    expires_ns: u64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct RelationTable {
    options: RelationOptions,
    entries: BTreeMap<Place<NodeId>, Entry>,
    /// The entries by the end of their time.
    expiries: BTreeSet<(u64, Place<NodeId>)>,
    /// The base of each new content.
    bases: BTreeMap<NodeId, NodeId>,
    /// How many entries and relations need a node.
    uses: BTreeMap<NodeId, usize>,
    /// The files kept aside, with their lengths in bytes.
    kept: BTreeMap<NodeId, u64>,
    kept_bytes: u64,
}

impl RelationTable {
    /// An empty table.
    #[must_use]
    pub fn new(options: RelationOptions) -> Self {
        Self {
            options,
            ..Self::default()
        }
    }

    /// Whether a node that is about to lose its last name should be kept aside. `free_bytes`: the
    /// room of its file system.
    #[must_use]
    pub fn is_worth_keeping(&self, kind: NodeKind, len_bytes: u64, free_bytes: u64) -> bool {
        kind == NodeKind::File
            && free_bytes >= self.options.free_bytes_min
            && self.kept.len() < self.options.kept_files_max
            && self.kept_bytes.saturating_add(len_bytes) <= self.options.kept_bytes_max
    }

    /// Takes note of an operation that succeeded at `now_ns`, and of entries that are out of time
    /// by then. `is_unsent`: whether a file has content that waits to be sent.
    pub fn observe(
        &mut self,
        operation: &NameOperation,
        now_ns: u64,
        is_unsent: impl Fn(NodeId) -> bool,
    ) -> Vec<Decision> {
        let mut decisions = self.expire(now_ns);
        match operation {
            NameOperation::Created { at, node } => {
                let base = self.take_entry(at);
                if node.kind == NodeKind::File {
                    self.relate(*node, self.removed(base), &mut decisions);
                }
                self.release(base, &mut decisions);
            }
            NameOperation::Linked { at, node } => {
                let base = self.take_entry(at);
                if is_unsent(node.node) {
                    self.relate(*node, self.removed(base), &mut decisions);
                }
                self.release(base, &mut decisions);
            }
            NameOperation::Unlinked { at, victim } => {
                if self.lose(*victim, &mut decisions) {
                    self.remember(at, victim.node, now_ns, &mut decisions);
                    self.drop_if_unused(victim.node, &mut decisions);
                }
            }
            NameOperation::Renamed {
                from,
                to,
                node,
                replaced,
            } => {
                let entry = self.take_entry(to);
                let replaced = replaced.filter(|&victim| self.lose(victim, &mut decisions));
                let base = replaced.map(|victim| (victim.node, false));
                let base = base.or_else(|| self.removed(entry));
                if is_unsent(node.node) {
                    self.relate(*node, base, &mut decisions);
                }
                self.release(entry, &mut decisions);
                if let Some(victim) = replaced {
                    self.drop_if_unused(victim.node, &mut decisions);
                }
                if node.kind == NodeKind::File {
                    self.remember(from, node.node, now_ns, &mut decisions);
                }
            }
            NameOperation::Exchanged {
                one_node, other_node, ..
            } => {
                let (new, base) = match is_unsent(one_node.node) {
                    true => (one_node, other_node),
                    false => (other_node, one_node),
                };
                if is_unsent(new.node) && base.kind == NodeKind::File {
                    self.relate(*new, Some((base.node, false)), &mut decisions);
                }
            }
        }
        decisions
    }

    /// Forgets the entries whose time is out.
    pub fn expire(&mut self, now_ns: u64) -> Vec<Decision> {
        let mut decisions = Vec::new();
        while let Some((_, place)) = self.expiries.first().filter(|(at_ns, _)| *at_ns <= now_ns).cloned() {
            let node = self.take_entry(&place);
            self.release(node, &mut decisions);
        }
        decisions
    }

    /// When [`RelationTable::expire`] has something to do next.
    #[must_use]
    pub fn deadline_ns(&self) -> Option<u64> {
        self.expiries.first().map(|(at_ns, _)| *at_ns)
    }

    /// The content of `new` was compared, sent as it is, or removed: its base is no longer needed
    /// for it.
    pub fn finish(&mut self, new: NodeId) -> Vec<Decision> {
        let mut decisions = Vec::new();
        let base = self.bases.remove(&new);
        self.release(base, &mut decisions);
        decisions
    }

    /// The new content of `new` has another base than before, which must be the base of something
    /// still.
    pub fn rebase(&mut self, new: NodeId, base: NodeId) -> Vec<Decision> {
        let mut decisions = Vec::new();
        if self.uses.contains_key(&base) {
            self.acquire(base);
            let before = self.bases.insert(new, base);
            self.release(before, &mut decisions);
        }
        decisions
    }

    /// A change from elsewhere landed at these names, which is not a save. They stand for other
    /// nodes now, and the earlier ones may have no name any more (`gone`).
    pub fn landed(&mut self, places: &[Place<NodeId>], gone: Option<NodeId>) -> Vec<Decision> {
        let mut decisions = Vec::new();
        for place in places {
            let node = self.take_entry(place);
            self.release(node, &mut decisions);
        }
        if let Some(gone) = gone {
            self.forget(gone, &mut decisions);
        }
        decisions
    }

    /// The files that are kept aside, in order of their numbers.
    pub fn kept(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.kept.keys().copied()
    }

    /// The base of an entry, and whether it has no name.
    fn removed(&self, base: Option<NodeId>) -> Option<(NodeId, bool)> {
        base.map(|base| (base, self.kept.contains_key(&base)))
    }

    /// A new content and its base, and whether that has no name; `None`, the same file or a circle
    /// is no relation.
    fn relate(&mut self, new: Moved, base: Option<(NodeId, bool)>, decisions: &mut Vec<Decision>) {
        let Some((base, is_base_removed)) = base.filter(|&(base, _)| base != new.node) else {
            return;
        };
        if new.kind != NodeKind::File || self.bases.get(&base) == Some(&new.node) {
            return;
        }
        // A program that makes the new content its backup gives it the name of a removed one: its
        // earlier base stays better.
        if is_base_removed && self.bases.contains_key(&new.node) {
            return;
        }
        let old = self.bases.insert(new.node, base);
        if old == Some(base) {
            return;
        }
        self.acquire(base);
        decisions.push(Decision::Relate {
            new: new.node,
            base,
            is_base_removed,
        });
        self.release(old, decisions);
    }

    /// A node loses a name. Whether its content can still be read.
    fn lose(&mut self, victim: Victim, decisions: &mut Vec<Decision>) -> bool {
        if victim.kind != NodeKind::File {
            return false;
        }
        if victim.is_last {
            if !victim.is_kept {
                self.forget(victim.node, decisions);
                return false;
            }
            if self.kept.insert(victim.node, victim.len_bytes).is_none() {
                self.kept_bytes = self.kept_bytes.saturating_add(victim.len_bytes);
            }
        }
        true
    }

    /// Drops all that needs a node which can no longer be read.
    fn forget(&mut self, node: NodeId, decisions: &mut Vec<Decision>) {
        if !self.uses.contains_key(&node) {
            return;
        }
        self.uses.remove(&node);
        self.expiries
            .retain(|(_, place)| self.entries.get(place).is_none_or(|entry| entry.node != node));
        self.entries.retain(|_, entry| entry.node != node);
        self.bases.retain(|&new, &mut base| {
            if base == node {
                decisions.push(Decision::Unrelate { new, base });
            }
            base != node
        });
    }

    /// Makes an entry.
    fn remember(&mut self, src: &Place<NodeId>, node: NodeId, now_ns: u64, decisions: &mut Vec<Decision>) {
        let before = self.take_entry(src);
        let expires_ns = now_ns.saturating_add(self.options.timeout_ns);
        self.entries.insert(src.clone(), Entry { node, expires_ns });
        self.expiries.insert((expires_ns, src.clone()));
        self.acquire(node);
        self.release(before, decisions);
        if self.entries.len() > self.options.entries_max
            && let Some((_, oldest)) = self.expiries.first().cloned()
        {
            let node = self.take_entry(&oldest);
            self.release(node, decisions);
        }
    }

    /// Takes an entry out. The nodes that it used must be released afterwards.
    fn take_entry(&mut self, src: &Place<NodeId>) -> Option<NodeId> {
        let entry = self.entries.remove(src)?;
        self.expiries.remove(&(entry.expires_ns, src.clone()));
        Some(entry.node)
    }

    fn acquire(&mut self, node: NodeId) {
        *self.uses.entry(node).or_default() += 1;
    }

    fn release(&mut self, node: Option<NodeId>, decisions: &mut Vec<Decision>) {
        let Some(node) = node else { return };
        if let Some(uses) = self.uses.get_mut(&node) {
            *uses -= 1;
            if *uses == 0 {
                self.uses.remove(&node);
            }
        }
        self.drop_if_unused(node, decisions);
    }

    fn drop_if_unused(&mut self, node: NodeId, decisions: &mut Vec<Decision>) {
        if !self.uses.contains_key(&node)
            && let Some(len_bytes) = self.kept.remove(&node)
        {
            self.kept_bytes = self.kept_bytes.saturating_sub(len_bytes);
            decisions.push(Decision::Drop(node));
        }
    }

    /// Checks the invariants; for tests of this crate and of others.
    ///
    /// # Errors
    /// Says what does not hold.
    #[doc(hidden)]
    pub fn check(&self, now_ns: u64) -> Result<(), String> {
        let mut uses = BTreeMap::<NodeId, usize>::new();
        let needed = self.entries.values().map(|entry| entry.node);
        for node in needed.chain(self.bases.values().copied()) {
            *uses.entry(node).or_default() += 1;
        }
        if uses != self.uses {
            return Err(format!("uses are {:?}, counted {uses:?}", self.uses));
        }
        let expiries = self
            .entries
            .iter()
            .map(|(place, entry)| (entry.expires_ns, place.clone()));
        if expiries.collect::<BTreeSet<_>>() != self.expiries {
            return Err("the entries and their times differ".to_owned());
        }
        if self.deadline_ns().is_some_and(|at_ns| at_ns <= now_ns) {
            return Err("an entry outlived its time".to_owned());
        }
        if let Some(idle) = self.kept.keys().find(|node| !self.uses.contains_key(node)) {
            return Err(format!("{idle} is kept, but unused"));
        }
        if self.kept.values().sum::<u64>() != self.kept_bytes || self.entries.len() > self.options.entries_max {
            return Err("the bounds are not kept".to_owned());
        }
        Ok(())
    }
}
