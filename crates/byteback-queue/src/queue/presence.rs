//! Whether the queue refers to a node or name: changes landing from elsewhere must not meet changes
//! on their way from here.

use crate::queue::{Change, FoldScope, Queue, places};
use byteback_model::{NodeId, Place};

/// How the queue refers to a node or a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Presence {
    /// Not at all.
    Absent,
    /// The node waits in a fold, which takes it as it is when it is cut.
    Folded,
    /// Anything of it waits in its order or is in flight, or a delta in the queue is one of its
    /// content.
    Ordered,
}

/// The parts of a node that wait to be sent, or are on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsent {
    /// A content.
    pub content: bool,
    /// Attributes, a name, or that it exists.
    pub other: bool,
    /// All that changed since the log's mark is to be sent: whether this node is part of it the log
    /// knows.
    pub is_everything: bool,
}

impl Queue {
    /// The parts of a node that wait or are in flight.
    #[must_use]
    pub fn unsent_of(&self, node: NodeId) -> Unsent {
        let mut unsent = Unsent::default();
        for position in self.subjects.get(&node).into_iter().flatten() {
            let is_content = self.content_at(*position).is_some_and(|content| content.node == node);
            unsent.content |= is_content;
            unsent.other |= !is_content;
        }
        let in_flight = self
            .groups
            .iter()
            .filter_map(|group| group.fold.as_ref())
            .map(|(scope, _)| scope);
        for scope in in_flight.chain(self.fold.as_ref().map(|fold| &fold.scope)) {
            match scope {
                FoldScope::Everything => unsent.is_everything = true,
                FoldScope::Items {
                    contents, attributes, ..
                } => {
                    unsent.content |= contents.contains_key(&node);
                    unsent.other |= attributes.contains(&node);
                }
            }
        }
        unsent
    }

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
    pub fn presence_of_name(&self, place: &Place<NodeId>) -> Presence {
        let is_ordered = self.parents.contains_key(&place.parent)
            && self.nodes.values().any(|node| match &node.change {
                Change::Name(operation) => places(operation).contains(&place),
                _ => false,
            });
        self.presence(is_ordered, |scope| match scope {
            FoldScope::Everything => true,
            FoldScope::Items { names, .. } => names.contains_key(place),
        })
    }

    /// Whether the time of a directory is sent to the server by a change that waits or is in
    /// flight, as names in it came or went. Where everything is to be sent, the directory's
    /// attributes are, if the log knows of a change.
    #[must_use]
    pub fn sends_time_of(&self, directory: NodeId) -> bool {
        let in_flight = self.groups.iter().filter_map(|group| group.fold.as_ref());
        let mut scopes = in_flight
            .map(|(scope, _)| scope)
            .chain(self.fold.as_ref().map(|fold| &fold.scope));
        self.parents.contains_key(&directory)
            || scopes.any(|scope| matches!(scope, FoldScope::Items { times, .. } if times.contains(&directory)))
    }

    /// How any name in a directory waits or is in flight, or that one came and went.
    #[must_use]
    pub fn presence_within(&self, directory: NodeId) -> Presence {
        let is_ordered = self.parents.contains_key(&directory);
        self.presence(is_ordered, |scope| match scope {
            FoldScope::Everything => true,
            FoldScope::Items { times, .. } => times.contains(&directory),
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
