//! `NodeId`: the number of a node in the tree of one machine.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A node of one tracked tree. The log assigns the number when it first meets the node and never
/// reuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root directory of every tree.
    pub const ROOT: Self = Self(1);
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
