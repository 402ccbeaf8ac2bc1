//! Whether the queue speaks of something: what lands from elsewhere must not meet what is on its way from here.

use crate::ids::{NodeId, Place};
use crate::queue::{Change, FoldScope, Queue, places};

/// How the queue speaks of a node or a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Presence {
    /// Not at all.
    Absent,
    /// It waits in a fold, which takes it as it is when it is cut.
    Folded,
    /// It waits in its order, or is in flight, or something in the queue is a delta of what it holds.
    Ordered,
}

impl Queue {
    /// How a node's content, attributes or names wait or are in flight.
    #[must_use]
    pub fn presence_of(&self, node: NodeId) -> Presence {
        let is_ordered = self.subjects.contains_key(&node) || self.bases.contains_key(&node);
        self.presence(is_ordered, |scope| match scope {
            FoldScope::Everything => true,
            FoldScope::Items {
                contents, attributes, ..
            } => contents.contains_key(&node) || attributes.contains(&node),
        })
    }

    /// How a name waits or is in flight.
    #[must_use]
    pub fn presence_of_name(&self, place: &Place) -> Presence {
        let is_ordered = self.parents.contains_key(&place.parent)
            && self.nodes.values().any(|node| match &node.change {
                Change::Name(operation) => places(operation).contains(&place),
                _ => false,
            });
        self.presence(is_ordered, |scope| match scope {
            FoldScope::Everything => true,
            FoldScope::Items { names, .. } => names.contains(place),
        })
    }

    /// How any name in a directory waits or is in flight.
    #[must_use]
    pub fn presence_within(&self, directory: NodeId) -> Presence {
        let is_ordered = self.parents.contains_key(&directory);
        self.presence(is_ordered, |scope| match scope {
            FoldScope::Everything => true,
            FoldScope::Items { names, .. } => {
                let mut within = names.range(Place::new(directory, b"")..);
                within.next().is_some_and(|place| place.parent == directory)
            }
        })
    }

    fn presence(&self, is_ordered: bool, is_in: impl Fn(&FoldScope) -> bool) -> Presence {
        let mut in_flight = self.groups.iter().filter_map(|group| group.fold.as_ref());
        if is_ordered || in_flight.any(|(scope, _)| is_in(scope)) {
            Presence::Ordered
        } else if self.fold.as_ref().is_some_and(|fold| is_in(&fold.scope)) {
            Presence::Folded
        } else {
            Presence::Absent
        }
    }
}
