//! The directories that are kept open, so that a deep path costs one `openat` rather than twenty.
//!
//! Two generations: new and used entries are in the young one; when that is full it becomes the old
//! one, and what the old one still held is closed. Both insert and lookup are O(1), and what was
//! used recently survives. A descriptor follows its directory through renames, so renames need no
//! invalidation.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::ops::Deref;
use std::sync::Arc;

use byteback_host::tree::{Identity, Inode};

use crate::inodes::InodeNumber;
use crate::tracked::Place;

/// Of one generation: at most twice as many descriptors are held.
const GENERATION_COUNT_MAX: usize = 256;

/// A descriptor that is kept, and the inode that it holds: as long as it is open, no other can be
/// given its identity.
#[derive(Debug)]
pub(crate) struct HeldInode {
    pub(crate) inode: Inode,
    pub(crate) identity: Identity,
}

impl HeldInode {
    /// The gate's description of `name` in this directory, which is the node `parent`.
    pub(crate) fn place<'a>(&'a self, parent: InodeNumber, name: &'a OsStr) -> Place<'a> {
        Place {
            parent,
            dir: self,
            identity: self.identity,
            name,
        }
    }
}

impl Deref for HeldInode {
    type Target = Inode;

    fn deref(&self) -> &Inode {
        &self.inode
    }
}

#[derive(Debug, Default)]
pub(crate) struct DirectoryCache {
    young: HashMap<InodeNumber, Arc<HeldInode>>,
    old: HashMap<InodeNumber, Arc<HeldInode>>,
}

impl DirectoryCache {
    pub(crate) fn get(&mut self, node: InodeNumber) -> Option<Arc<HeldInode>> {
        if let Some(fd) = self.young.get(&node) {
            return Some(Arc::clone(fd));
        }
        let fd = self.old.remove(&node)?;
        self.insert(node, Arc::clone(&fd));
        Some(fd)
    }

    pub(crate) fn insert(&mut self, node: InodeNumber, fd: Arc<HeldInode>) {
        if self.young.len() >= GENERATION_COUNT_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(node, fd);
    }

    pub(crate) fn remove(&mut self, node: InodeNumber) {
        self.young.remove(&node);
        self.old.remove(&node);
    }
}
