//! The observer of every change in order, while it happens: continuous sync.
//!
//! The log notes *that* something changed; an observer hears of each change by itself, early enough
//! to put old bytes aside, and in an order that any program would agree with.
//!
//! **Order.** Each tree has one [`Order`] lock. A change of content takes it shared and is reported
//! *before* it is performed: whatever a program does because it saw the new bytes is reported
//! later. Changes of names and attributes, and the last close of a writer, take it exclusively from
//! before to after the change, and are reported when they succeeded. So a thread that holds it
//! exclusively sees a moment at which each reported change has been performed, and each performed
//! change has been reported.
//!
//! **Locks**, in this order: the log's operation, then `Order`, then the observer's own. An intent
//! is made durable before `Order` is taken, so that no thread waits for a disk there. A thread that
//! holds `Order` must not begin an operation of the log, nor wait for one. A cut of the log needs
//! no `Order`: it waits for the operations, and all reports of an operation are made while it
//! lasts.
//!
//! **Failures.** Nothing that an observer does fails a program's call. A change of content that
//! failed, or was done in part, was reported nevertheless: [`Observer::after_content`] follows in
//! any case, and the reported bytes may have changed. Names are reported if they changed.
//!
//! Not reported: changes that land from elsewhere (see [`super::landing`]); changes of inodes that
//! the log does not know, but for [`Observer::before_content_of_unknown`]; changes that bypass the
//! gate.

use std::ffi::OsStr;
use std::io;

use byteback_extents::ByteRange;
use byteback_host::tree::{Identity, Inode};
use byteback_model::{NodeId, NodeKind};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The lock that makes one order of all changes of a tree; see the module.
#[derive(Debug, Default)]
pub struct Order(RwLock<()>);

impl Order {
    /// Waits until no change is under way, and keeps it so. For microseconds: programs wait.
    pub fn exclusive(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.write()
    }

    #[cfg(test)]
    pub(super) fn is_held(&self) -> bool {
        self.0.is_locked()
    }

    pub(super) fn guarded_shared(&self) -> OrderGuard<'_> {
        OrderGuard::Shared { _guard: self.0.read() }
    }

    pub(super) fn guarded_exclusive(&self) -> OrderGuard<'_> {
        OrderGuard::Exclusive {
            _guard: self.exclusive(),
        }
    }
}

/// The lock, held while a change is under way.
pub(super) enum OrderGuard<'a> {
    Shared { _guard: RwLockReadGuard<'a, ()> },
    Exclusive { _guard: RwLockWriteGuard<'a, ()> },
}

/// A name of the tree, as the log knows its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedAt<'a> {
    /// The directory.
    pub parent: NodeId,
    /// The name in it.
    pub name: &'a OsStr,
}

/// A node with its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownNode {
    /// The node.
    pub node: NodeId,
    /// The kind of node.
    pub kind: NodeKind,
}

/// A node that lost a name, or is about to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostName {
    /// The node.
    pub node: KnownNode,
    /// Whether the node has no name in the tree afterwards.
    pub is_last: bool,
    /// Its length in bytes before.
    pub len_bytes: u64,
}

/// A node that is about to lose a name.
#[derive(Clone, Copy, Debug)]
pub struct Removal<'a> {
    /// The node that loses it.
    pub lost: LostName,
    /// The identity of the node's inode.
    pub identity: Identity,
    /// Whether the node has names outside the tree, by which its content may change past the gate.
    pub has_other_names: bool,
    /// The directory of the name, as an `O_PATH` descriptor.
    pub dir: &'a Inode,
    /// The name.
    pub name: &'a OsStr,
}

/// A change of names that was performed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamesChanged<'a> {
    /// A new node under a name that stood for nothing.
    Created {
        /// The name.
        at: NamedAt<'a>,
        /// The new node.
        node: KnownNode,
    },
    /// A further name of a node was made, where there was none.
    Linked {
        /// The name.
        at: NamedAt<'a>,
        /// The node.
        node: KnownNode,
    },
    /// A name was removed; of a directory, too.
    Unlinked {
        /// The name.
        at: NamedAt<'a>,
        /// The node that it stood for.
        lost: LostName,
    },
    /// A node's name was changed.
    Renamed {
        /// The name it had.
        from: NamedAt<'a>,
        /// The name it has now.
        to: NamedAt<'a>,
        /// The node.
        node: KnownNode,
        /// The node that `to` stood for before.
        replaced: Option<LostName>,
    },
    /// Two names were exchanged.
    Exchanged {
        /// The first name.
        one: NamedAt<'a>,
        /// The node that it stood for before.
        one_node: KnownNode,
        /// The other name.
        other: NamedAt<'a>,
        /// The node that the other name stood for before.
        other_node: KnownNode,
    },
}

/// See the module. Calls come from any number of threads, with the lock held as said at each.
pub trait Observer: Send + Sync {
    /// The lock of the tree.
    fn order(&self) -> &Order;

    /// Whether it is worth finding out which bytes of `range` really change, although the log knows
    /// of all of them. The lock is held shared.
    fn wants_trimmed(&self, node: NodeId, range: ByteRange) -> bool;

    /// Whether what others changed is landing in this file just now: then each byte that a program
    /// writes counts, also if it is there already. The lock is held shared.
    fn is_landing(&self, _node: NodeId) -> bool {
        false
    }

    /// Of a file with [`Observer::is_landing`]: a page of the kernel's, which is at `offset` and
    /// may be from before something landed. Answers which bytes (ascending) a program has stored
    /// to, as far as that can be told; only these are written. The lock is held shared.
    ///
    /// # Errors
    /// If the file cannot be read.
    fn merge_page(&self, _node: NodeId, offset: u64, page: &[u8]) -> io::Result<Vec<ByteRange>> {
        let all = ByteRange::new(offset, offset.saturating_add(page.len() as u64));
        Ok(all.into_iter().collect())
    }

    /// Whether the kernel may believe a file to end where it ended before something landed in it.
    /// It is told of each new length, but drops that when a program writes just then, and an append
    /// that it aimed before may arrive at any time. The lock is held shared.
    fn may_stray(&self, _node: NodeId) -> bool {
        false
    }

    /// Of such a file, or one with [`Observer::is_landing`]: where a program's append goes, which
    /// the kernel aimed at `offset`. The lock is held shared.
    ///
    /// # Errors
    /// If the file cannot be looked at.
    fn append_at(&self, _node: NodeId, _fd: &Inode, offset: u64) -> io::Result<u64> {
        Ok(offset)
    }

    /// Whether something lands in any file just now: only then are [`Observer::cut_off`] and
    /// [`Observer::len_before`] asked.
    fn is_anything_landing(&self) -> bool {
        false
    }

    /// Fills `buffer` with the old bytes at `offset`, behind the end of a file that something that
    /// lands has cut off, as long as the kernel may still believe in the old end: it fills up with
    /// zeros what it does not get there, and programs would read zeros that nobody wrote. Answers
    /// how many bytes it filled. No lock is held.
    fn cut_off(&self, _node: NodeId, _offset: u64, _buffer: &mut [u8]) -> usize {
        0
    }

    /// The length of a file before the piece that lands, as long as the kernel may have pages from
    /// then: a page that was filled up with zeros behind the old end, met by the new length, would
    /// show them to programs. So would the new part of a file that grows, until all has landed. The
    /// lock may or may not be held.
    fn len_before(&self, _node: NodeId) -> Option<u64> {
        None
    }

    /// Bytes in `ranges` (ascending, at least one) of a file are about to change through `fd`,
    /// which need not be readable. `len_after_bytes`: its length afterwards, where that is set. The
    /// lock is held shared until after [`Observer::after_content`].
    fn before_content(&self, node: NodeId, fd: &Inode, ranges: &[ByteRange], len_after_bytes: Option<u64>);

    /// An announced change of content was done, as a whole, in part or not at all.
    fn after_content(&self, node: NodeId, fd: &Inode);

    /// As [`Observer::before_content`], of an inode that the log does not know: mostly one without
    /// a name that is still open. Nothing follows, and the lock may or may not be held.
    fn before_content_of_unknown(&self, identity: &Identity, fd: &Inode, ranges: &[ByteRange]);

    /// A write changed nothing but a file's times. The lock is held shared.
    fn times_changed(&self, node: NodeId);

    /// Attributes of a node are about to change. The lock is held exclusively until after
    /// [`Observer::after_attributes`].
    fn before_attributes(&self, node: NodeId, fd: &Inode);

    /// Attributes of a node changed, or some of them, or the attempt failed.
    fn after_attributes(&self, node: NodeId);

    /// A node is about to lose a name. The lock is held exclusively until after
    /// [`Observer::names_changed`] or [`Observer::removal_failed`], one of which follows on the
    /// same thread.
    fn before_removal(&self, removal: &Removal<'_>);

    /// The announced removal was not performed.
    fn removal_failed(&self);

    /// Names changed. The lock is held exclusively.
    fn names_changed(&self, change: &NamesChanged<'_>);

    /// The last program that could write a file closed it. The lock is held exclusively.
    fn closed(&self, node: NodeId);

    /// Something happened that cannot be told: what crosses the border between what the log knows
    /// and what it does not. The log covers it.
    fn lost_track(&self);
}

#[cfg(test)]
mod tests;
