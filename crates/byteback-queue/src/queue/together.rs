//! Sets of files that belong together: those whose contents changed within one span, an atomic
//! operation in the words of DeltaCFS section III-C. Should one of them turn out to be in conflict
//! with others' changes, all of them are.
//!
//! Spans of the queue say what has to be applied together, and grow beyond that: a refused group
//! waits again as one span, and a file that takes writes for an hour while no server is there makes
//! one of all that happened meanwhile. So the spans of atomic operations are kept apart: only what
//! operations joined, and only while from the first change to the last no more time passed than a
//! server that is there would have been kept waiting
//! ([`QueueOptions::together_ns_max`](crate::queue::QueueOptions)). They are kept until their
//! changes are applied. When these are folded, so that others' changes can be let in, each span
//! becomes the *set* of its files, which lasts until the fold is applied.
//!
//! **Given up**, so that each file is decided by itself, are sets of more than `FILES_MAX` files,
//! those beyond the bound of a fold, and all if the order is given up: past the bounds of the
//! queue, and where events may have been missed.
//!
//! Out of scope: ordering; knowledge of conflicts.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::Position;
use crate::operation::NameOperation;
use crate::queue::{Change, Group, Queue};
use byteback_model::{NodeId, NodeKind};

/// The most files in one set: a single operation is not meant for more, nor does a user decide
/// about more at once.
const FILES_MAX: usize = 1000;

/// Files whose contents changed in one atomic operation.
pub type FileSet = BTreeSet<NodeId>;

/// A span from its first position on.
pub(crate) type Reach = (Position, u64);

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Together {
    /// Of what waits or is in flight in its order: the last position of each span by its first,
    /// with the time of the first change.
    pub(crate) spans: BTreeMap<Position, Reach>,
    /// Of what is folded.
    pub(crate) folded: Vec<FileSet>,
    /// Of the fold in flight.
    pub(crate) in_flight: Vec<FileSet>,
}

impl Together {
    /// Joins all from `first`, a change of `first_ns`, to `last`, which happens at `now_ns`, and
    /// the spans that this touches; unless that took too long.
    pub(super) fn join(&mut self, (first, first_ns): (Position, u64), (last, now_ns): (Position, u64), ns_max: u64) {
        let last = last.max(first);
        let mut joined = (first, last, first_ns);
        let touching = self
            .spans
            .range(..=last)
            .rev()
            .take_while(|(_, (end, _))| *end >= first);
        let touching = touching.map(|(start, reach)| (*start, *reach)).collect::<Vec<_>>();
        for (start, (end, start_ns)) in &touching {
            joined = (joined.0.min(*start), joined.1.max(*end), joined.2.min(*start_ns));
        }
        if now_ns.saturating_sub(joined.2) > ns_max {
            return;
        }
        for (start, _) in touching {
            self.spans.remove(&start);
        }
        self.spans.insert(joined.0, (joined.1, joined.2));
    }

    /// Forgets the spans that begin at or before `position`.
    pub(super) fn forget_to(&mut self, position: Position) {
        self.spans = self.spans.split_off(&Position(position.0.saturating_add(1)));
    }

    /// Forgets everything.
    pub(super) fn give_up(&mut self) {
        *self = Self::default();
    }

    /// With another clock, the same time has passed for all.
    pub(super) fn resume(&mut self, now_ns: u64) {
        for (_, first_ns) in self.spans.values_mut() {
            *first_ns = now_ns;
        }
    }
}

/// The file whose content a change changes.
fn file_of(change: &Change) -> Option<NodeId> {
    match change {
        Change::Content(content) => Some(content.node),
        // An empty one has no content of its own in the queue.
        Change::Name(NameOperation::Created { node, .. }) if node.kind == NodeKind::File => Some(node.node),
        _ => None,
    }
}

/// Adds sets as long as there is room for them.
fn add(sets: &mut Vec<FileSet>, more: impl IntoIterator<Item = FileSet>, files_max: usize) {
    let mut files: usize = sets.iter().map(BTreeSet::len).sum();
    for set in more {
        if (2..=FILES_MAX).contains(&set.len()) && !sets.contains(&set) && files + set.len() <= files_max {
            files += set.len();
            sets.push(set);
        }
    }
}

impl Queue {
    /// The sets of files of which several changed in one atomic operation that waits in a fold. One
    /// file may be in several.
    #[must_use]
    pub fn together(&self) -> &[FileSet] {
        &self.together.folded
    }

    /// The same of a group that was handed out.
    #[must_use]
    pub fn together_in(&self, group: &Group) -> Vec<FileSet> {
        match group.fold {
            Some(_) => self.together.in_flight.clone(),
            None => self.sets_within(group.first, group.up_to),
        }
    }

    /// Adds sets that were noted elsewhere before all else was lost: their files are part of the
    /// fold.
    pub fn note_together(&mut self, sets: impl IntoIterator<Item = FileSet>) {
        if self.fold.is_some() {
            add(&mut self.together.folded, sets, self.options.fold_items_max);
        }
    }

    /// An operation counts as a whole from `first` to `last`.
    pub(super) fn join_files(&mut self, first: Position, last: Position) {
        let now_ns = self.now_ns;
        let begun = self.nodes.range(first..).next().map(|(_, node)| node.enqueued_ns);
        let first_ns = begun.unwrap_or(now_ns);
        let ns_max = self.options.together_ns_max;
        self.together.join((first, first_ns), (last, now_ns), ns_max);
        if self.together.spans.len() > self.options.nodes_max {
            // Of what came and went unsent, which is all that can be so much.
            self.together.spans.clear();
        }
    }

    fn sets_within(&self, first: Position, last: Position) -> Vec<FileSet> {
        let spans = self.together.spans.range(first..=last);
        let files = |(first, (last, _)): (&Position, &(Position, u64))| -> FileSet {
            let nodes = self.nodes.range(*first..=*last);
            nodes.filter_map(|(_, node)| file_of(&node.change)).collect()
        };
        let mut sets = Vec::new();
        add(&mut sets, spans.map(files), self.options.fold_items_max);
        sets
    }

    /// All that waits from `first` on is about to be folded.
    pub(super) fn fold_together(&mut self, first: Position) {
        let sets = self.sets_within(first, Position(u64::MAX));
        self.together.spans.split_off(&first);
        add(&mut self.together.folded, sets, self.options.fold_items_max);
    }

    /// More waits than allowed: what waits is given up.
    pub(super) fn give_up_together_waiting(&mut self) {
        let first = self.first_waiting();
        self.together.spans.split_off(&first);
    }

    /// The fold in flight was refused, and waits again.
    pub(super) fn refold_together(&mut self) {
        let sets = std::mem::take(&mut self.together.in_flight);
        add(&mut self.together.folded, sets, self.options.fold_items_max);
    }
}
