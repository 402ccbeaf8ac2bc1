//! Nodes that are asked for by their number alone: `open_by_handle_at`, which servers of NFS and
//! watchers of whole file systems use.
//!
//! A handle holds a node's number and generation. If the kernel has forgotten the node it looks up
//! `.` in it, and the parent of a directory as `..`. The number is that of the inode, of which the
//! log knows the names. The kernel compares the generation that it is told now with that of the
//! handle, so an inode that got the number later is not taken for the one that had it. Not found
//! are inodes without a name, inodes of another device, and any inode of a tree without a log.

use std::ffi::OsString;
use std::io;

use super::{Found, Tree, stale};
use crate::inodes::{InodeNumber, Interned};

impl Tree {
    /// Counts one lookup of a node that the kernel has a handle of.
    ///
    /// # Errors
    /// `ESTALE` if it is not found.
    pub(crate) fn lookup_node(&self, node: InodeNumber) -> io::Result<Found> {
        if node == InodeNumber::ROOT {
            let interned = Interned { node, generation: 0 };
            return Ok(Found {
                interned,
                stat: self.root.stat()?,
            });
        }
        let known = self.path_of(node).filter(|path| !path.is_empty());
        let logged = || self.tracked.paths_of_inode(node.get());
        let mut paths = known.into_iter().chain(std::iter::once_with(logged).flatten());
        paths.find_map(|path| self.walk_to(node, &path)).ok_or_else(stale)
    }

    /// Counts one lookup of the directory that the directory `node` is in.
    ///
    /// # Errors
    /// `ESTALE` if it is not found.
    pub(crate) fn lookup_parent(&self, node: InodeNumber) -> io::Result<Found> {
        let link = self.inodes().latest_link(node).ok_or_else(stale)?.0;
        self.lookup_node(link.parent)
    }

    /// Looks names up one after the other. Only a lookup of the last one stays counted, and only if
    /// it is `node`.
    fn walk_to(&self, node: InodeNumber, path: &[OsString]) -> Option<Found> {
        let mut at = InodeNumber::ROOT;
        let mut last = None;
        for name in path {
            let found = self.lookup(at, name).ok().flatten();
            // The link of what was found holds it in the table.
            self.forget(at, u64::from(at != InodeNumber::ROOT));
            let found = found?;
            at = found.interned.node;
            last = Some(found);
        }
        if at != node {
            self.forget(at, 1);
            return None;
        }
        last
    }
}
