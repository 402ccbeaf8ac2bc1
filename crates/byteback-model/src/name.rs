//! Names in directories, and their changes. `Id` is the number of a node: [`NodeId`](crate::NodeId)
//! in the tree of a machine, [`FileId`](crate::FileId) at a server.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ByteString;

/// A name in a directory, whether or not it exists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place<Id> {
    /// The directory.
    pub parent: Id,
    /// The name in it: any bytes but `/` and NUL.
    pub name: ByteString,
}

impl<Id> Place<Id> {
    /// The name `name` in the directory `parent`.
    pub fn new(parent: Id, name: impl Into<ByteString>) -> Self {
        Self {
            parent,
            name: name.into(),
        }
    }
}

impl<Id: fmt::Display> fmt::Display for Place<Id> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' in directory {}", self.name, self.parent)
    }
}

/// The new meaning of a name from a moment on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameChange<Id> {
    /// The directory.
    pub parent: Id,
    /// The name in it.
    pub name: ByteString,
    /// The node that the name now refers to; `None` if the name is removed.
    pub child: Option<Id>,
}

impl<Id: Copy> NameChange<Id> {
    /// The name that changes.
    pub fn place(&self) -> Place<Id> {
        Place {
            parent: self.parent,
            name: self.name.clone(),
        }
    }
}
