//! Operations on names, as the gate sees them after they succeeded.

use byteback_model::{NodeId, NodeKind, Place};

/// A node that gets another name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The node.
    pub node: NodeId,
    /// The kind of the node.
    pub kind: NodeKind,
}

/// A node that loses a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The node.
    pub node: NodeId,
    /// The kind of the node.
    pub kind: NodeKind,
    /// The node has no name left.
    pub is_last: bool,
    /// Its last name is gone, but the gate kept the file aside, because it was asked to beforehand.
    pub is_kept: bool,
    /// Its length in bytes.
    pub len_bytes: u64,
}

/// An operation on names that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameOperation {
    /// A new node under a name that stood for nothing.
    Created {
        /// The name.
        at: Place<NodeId>,
        /// The new node.
        node: Moved,
    },
    /// A further name was given, which stood for nothing before.
    Linked {
        /// The new name.
        at: Place<NodeId>,
        /// The node that it stands for.
        node: Moved,
    },
    /// A name was removed; of a directory, too.
    Unlinked {
        /// The name.
        at: Place<NodeId>,
        /// The node that it stood for.
        victim: Victim,
    },
    /// A node's name was changed. Not reported where both names stood for the same node: then
    /// nothing happens.
    Renamed {
        /// The name it had.
        from: Place<NodeId>,
        /// The name it has now.
        to: Place<NodeId>,
        /// The node.
        node: Moved,
        /// The node that `to` stood for before.
        replaced: Option<Victim>,
    },
    /// Two names were exchanged.
    Exchanged {
        /// The first name.
        one: Place<NodeId>,
        /// The node that it stood for before.
        one_node: Moved,
        /// The other name.
        other: Place<NodeId>,
        /// The node that the other name stood for before.
        other_node: Moved,
    },
}
