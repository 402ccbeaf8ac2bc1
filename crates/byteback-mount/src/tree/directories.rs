//! The directories that are kept open, so that a deep path costs one `openat` rather than twenty.
//!
//! Two generations: new and used entries are in the young one; when that is full it becomes the old one, and what
//! the old one still held is closed. Both insert and lookup are O(1), and what was used recently survives. A
//! descriptor follows its directory through renames, so renames need no invalidation.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::inodes::NodeId;

/// Of one generation: at most twice as many descriptors are held.
const GENERATION_COUNT_MAX: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct DirectoryCache {
    young: HashMap<NodeId, Arc<OwnedFd>>,
    old: HashMap<NodeId, Arc<OwnedFd>>,
}

impl DirectoryCache {
    pub(crate) fn get(&mut self, node: NodeId) -> Option<Arc<OwnedFd>> {
        if let Some(fd) = self.young.get(&node) {
            return Some(Arc::clone(fd));
        }
        let fd = self.old.remove(&node)?;
        self.insert(node, Arc::clone(&fd));
        Some(fd)
    }

    pub(crate) fn insert(&mut self, node: NodeId, fd: Arc<OwnedFd>) {
        if self.young.len() >= GENERATION_COUNT_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(node, fd);
    }

    pub(crate) fn remove(&mut self, node: NodeId) {
        self.young.remove(&node);
        self.old.remove(&node);
    }
}
