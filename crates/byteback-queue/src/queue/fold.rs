//! Folding: the way out when the queue would grow past its bounds, or may have missed events.
//!
//! The operation log knows of each file and name what changed since its mark, in memory that does
//! not grow with the number of operations. A fold gives the fine order up for that: all that waits
//! becomes one node, which takes in what follows, and becomes one group at a cut. Causal order
//! holds still: the cut is one moment of the origin, and nothing behind it is sent before it is
//! applied.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{GroupId, Position};
use crate::queue::{Change, Event, Fold, FoldScope, Group, GroupState, Queue, QueueError, QueueOptions, nodes_before};
use byteback_model::NodeId;

/// Delays for which a fold waits that is added to all the time.
const FOLD_DELAYS_MAX: u64 = 3;

impl Queue {
    /// Folds if more waits than allowed.
    pub(super) fn keep_within(&mut self, now_ns: u64) {
        let (load, max) = (self.waiting, self.options);
        if load.nodes > max.nodes_max || load.extents > max.extents_max || load.bytes > max.bytes_max {
            self.give_up_together_waiting();
            self.fold_waiting(now_ns);
        }
    }

    /// Folds the waiting nodes, so that changes landing from elsewhere meet nothing that is in an
    /// order, or so that there is a cut.
    pub fn fold(&mut self, now_ns: u64) {
        if self.fold.is_none() {
            // The fold's group is behind all that was frozen, even if nothing waits.
            self.position.0 += 1;
            self.fold_waiting(now_ns);
        }
        self.settle();
    }

    /// Folds all that waits.
    pub(super) fn fold_waiting(&mut self, now_ns: u64) {
        let first = self.first_waiting();
        self.fold_together(first);
        let (mut enqueued_ns, mut touched_ns) = (now_ns, 0);
        let mut scope = FoldScope::Items {
            contents: BTreeMap::new(),
            attributes: BTreeSet::new(),
            names: BTreeMap::new(),
            times: BTreeSet::new(),
        };
        let waiting = self
            .nodes
            .range(first..)
            .map(|(position, _)| *position)
            .collect::<Vec<_>>();
        for position in waiting {
            if let Some(node) = self.remove(position) {
                enqueued_ns = enqueued_ns.min(node.enqueued_ns);
                touched_ns = touched_ns.max(node.touched_ns);
                scope.add(&node.change);
            }
        }
        self.spans.forget_after(self.frozen);
        self.end_relations();
        let mut is_too_much = scope.keep_within(self.options.fold_items_max);
        let fold = match self.fold.take() {
            None => Fold {
                first,
                enqueued_ns,
                touched_ns,
                scope,
            },
            // The refused group comes before everything that was folded already.
            Some(mut fold) => {
                fold.first = fold.first.min(first);
                fold.enqueued_ns = fold.enqueued_ns.min(enqueued_ns);
                fold.touched_ns = fold.touched_ns.max(touched_ns);
                fold.scope.lay_over(scope);
                is_too_much |= fold.scope.keep_within(self.options.fold_items_max);
                fold
            }
        };
        if is_too_much {
            self.together.folded.clear();
        }
        self.fold = Some(fold);
    }

    /// Adds what happened to a fold.
    pub(super) fn absorb(&mut self, event: &Event, now_ns: u64) {
        let version = match event {
            Event::Wrote { node, base, .. } => self
                .latest_version(*node)
                .or(base.filter(|_| !self.is_version_open(*node))),
            _ => None,
        };
        let Some(fold) = &mut self.fold else { return };
        if !matches!(event, Event::Mark { .. }) {
            fold.touched_ns = now_ns;
        }
        match event {
            Event::Name(operation) => fold.scope.add(&Change::Name(operation.clone())),
            Event::Wrote { node, .. } => fold.scope.add_content(*node, version),
            Event::Attributes { node, .. } => fold.scope.add_attributes(*node),
            Event::Closed { .. } | Event::Mark { .. } => {}
        }
        if fold.scope.keep_within(self.options.fold_items_max) {
            self.together.folded.clear();
        }
    }

    /// Ends the fold whose turn has come, in the same moment as the cut of the operation log from
    /// which it will be read.
    ///
    /// # Errors
    /// If nothing is folded, or groups before it are in flight.
    pub fn cut(&mut self) -> Result<GroupId, QueueError> {
        if !self.groups.is_empty() {
            return Err(QueueError::NoFold);
        }
        let fold = self.fold.take().ok_or(QueueError::NoFold)?;
        let version = self.next_version();
        self.together.in_flight = std::mem::take(&mut self.together.folded);
        self.last_group += 1;
        let id = GroupId(self.last_group);
        // Nothing waits: up to here all is in the fold.
        self.frozen = self.position;
        self.groups.push_back(Group {
            id,
            first: fold.first,
            up_to: self.position,
            state: GroupState::InFlight,
            is_conflict: false,
            fold: Some((fold.scope, version)),
        });
        Ok(id)
    }
}

impl FoldScope {
    fn add(&mut self, change: &Change) {
        match change {
            Change::Content(content) => self.add_content(content.node, content.base),
            Change::Attributes { node, .. } => self.add_attributes(*node),
            Change::Times { directories } => self.add_times(directories),
            Change::Name(operation) => {
                let Self::Items {
                    names,
                    attributes,
                    times,
                    ..
                } = self
                else {
                    return;
                };
                for (place, node) in nodes_before(operation) {
                    names.entry(place.clone()).or_insert(node);
                }
                times.extend(change.parents());
                // A new name of a node may be the first that the server hears of it.
                attributes.extend(change.subjects());
            }
        }
    }

    fn add_content(&mut self, node: NodeId, base: Option<crate::ids::Version>) {
        if let Self::Items { contents, .. } = self {
            contents.entry(node).or_insert(base);
        }
    }

    fn add_attributes(&mut self, node: NodeId) {
        if let Self::Items { attributes, .. } = self {
            attributes.insert(node);
        }
    }

    fn add_times(&mut self, directories: &BTreeSet<NodeId>) {
        if let Self::Items { times, .. } = self {
            times.extend(directories);
        }
    }

    /// Lays this over `older`, which came before it; contents in both keep the older base, names
    /// the older node.
    pub(super) fn lay_over(&mut self, older: Self) {
        let newer = std::mem::replace(self, older);
        match (&mut *self, newer) {
            (
                Self::Items {
                    contents,
                    attributes,
                    names,
                    times,
                },
                Self::Items {
                    contents: more_contents,
                    attributes: more_attributes,
                    names: more_names,
                    times: more_times,
                },
            ) => {
                for (node, base) in more_contents {
                    contents.entry(node).or_insert(base);
                }
                attributes.extend(more_attributes);
                for (place, node) in more_names {
                    names.entry(place).or_insert(node);
                }
                times.extend(more_times);
            }
            _ => *self = Self::Everything,
        }
    }

    /// Whether it has become too much to be listed one by one.
    fn keep_within(&mut self, items_max: usize) -> bool {
        let is_too_much = match self {
            Self::Everything => false,
            Self::Items {
                contents,
                attributes,
                names,
                times,
            } => contents.len() + attributes.len() + names.len() + times.len() > items_max,
        };
        if is_too_much {
            *self = Self::Everything;
        }
        is_too_much
    }
}

impl Fold {
    /// When it is cut: once nothing was added for the delay, so that a file that a program is about
    /// to remove or to rename is not sent in between; but after some delays at the latest, as
    /// others' changes wait for it, too.
    pub(super) fn due_ns(&self, options: &QueueOptions) -> u64 {
        let delay_ns = options.delay_ns;
        let wait_max_ns = delay_ns.saturating_mul(FOLD_DELAYS_MAX).min(options.delay_max_ns);
        let quiet_ns = self.touched_ns.max(self.enqueued_ns).saturating_add(delay_ns);
        quiet_ns.min(self.enqueued_ns.saturating_add(wait_max_ns))
    }

    /// A fold of all since the mark.
    pub(super) fn everything(first: Position, now_ns: u64) -> Self {
        Self {
            first,
            enqueued_ns: now_ns,
            touched_ns: now_ns,
            scope: FoldScope::Everything,
        }
    }
}
