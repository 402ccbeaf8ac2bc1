//! The identifiers of this crate, one type each, so that none can be taken for another.

use std::fmt;

/// A file, directory or other inode of the origin's tree. The number is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a node is, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeKind {
    /// A regular file: the only kind with content.
    File,
    /// A directory: the only kind that other nodes are in.
    Directory,
    /// A symlink, pipe, socket or device.
    Other,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The directory.
    pub parent: NodeId,
    /// The name in it; any bytes but `/` and NUL.
    pub name: Box<[u8]>,
}

impl Place {
    /// The name `name` in the directory `parent`.
    #[must_use]
    pub fn new(parent: NodeId, name: &[u8]) -> Self {
        Self {
            parent,
            name: name.into(),
        }
    }
}

/// A client, by the number that the server gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// A version of a file (DeltaCFS section III-C): given by the client that made it, without asking the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Who made it.
    pub client: ClientId,
    /// The client's number for it; it only grows.
    pub counter: u64,
}

/// A place in the origin's order: the number of an event, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One transaction of a client; numbers only grow, and stand for one content each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u64);

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
