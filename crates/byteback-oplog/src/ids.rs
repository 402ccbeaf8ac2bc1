//! The identifiers of a tracked tree, one type each, so that none can be taken for another.
//!
//! *Epoch*: the tree's one counter. A cut ends the current epoch; a mark is the first epoch that a
//! consumer has not saved. Epochs never repeat, also after a crash. *Tree*: 64 random bits drawn
//! when the log is created; tree and node ([`byteback_model::NodeId`]) together are the 128-bit
//! file identity that servers know.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A stretch of time of a tracked tree, between two cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The first epoch of a new log.
    pub const FIRST: Self = Self(1);

    /// The epoch after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A log, and with it the history of one tracked tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TreeId(pub u64);
