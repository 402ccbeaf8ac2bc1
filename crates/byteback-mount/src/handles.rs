//! Open files.
//!
//! Each open of the kernel has one *handle*, with a descriptor of its own on the backing file. The descriptor may
//! differ from what the program asked for:
//! - Write-only becomes read-write where permissions allow: the gate reads old bytes, and with a write-back cache
//!   the kernel itself reads the rest of a page that is written in part.
//! - `O_APPEND`, `O_DIRECT`, `O_TRUNC`, `O_CREAT`, `O_EXCL` are stripped: the kernel computes the offset of an
//!   append, aligned buffers are not ours to promise, and the other three are separate steps of ours.
//! - `O_NONBLOCK` is added, so that a FIFO that somebody put in the place of a file below us cannot block a thread.
//!
//! An unlinked file that is still open has no name left; it is served through any of its handles.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use byteback_host::tree::{Identity, Inode};
use rustix::fs::OFlags;

use crate::inodes::NodeId;
use crate::tracked::Trimming;

/// An open file of the tree.
#[derive(Debug)]
pub struct OpenFile {
    inode: Inode,
    node: NodeId,
    identity: Identity,
    for_writing: bool,
    for_reading: bool,
    readable: bool,
    own: bool,
    trimming: Trimming,
}

impl OpenFile {
    /// The node that is open.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The inode that is open.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Whether the program may write through it.
    #[must_use]
    pub fn for_writing(&self) -> bool {
        self.for_writing
    }

    /// Whether the program may read through it.
    #[must_use]
    pub fn for_reading(&self) -> bool {
        self.for_reading
    }

    /// Whether the descriptor can be read, also when the program asked for write-only.
    #[must_use]
    pub fn readable(&self) -> bool {
        self.readable
    }

    /// Whether it was opened by [`crate::Mount::flush_stores`] rather than by a program: its `fsync` only asks the
    /// kernel for dirty pages and must not force the disk.
    pub(crate) fn own(&self) -> bool {
        self.own
    }

    /// Whether comparing what is written through it pays.
    pub(crate) fn trimming(&self) -> &Trimming {
        &self.trimming
    }

    pub(crate) fn new(inode: Inode, node: NodeId, identity: Identity, asked: OFlags, got: OFlags, own: bool) -> Self {
        Self {
            inode,
            node,
            identity,
            for_writing: writes(asked),
            for_reading: asked & OFlags::RWMODE != OFlags::WRONLY,
            readable: got & OFlags::RWMODE != OFlags::WRONLY,
            own,
            trimming: Trimming::default(),
        }
    }
}

impl Deref for OpenFile {
    type Target = Inode;

    fn deref(&self) -> &Inode {
        &self.inode
    }
}

/// Whether a file opened with `flags` can be written.
pub(crate) fn writes(flags: OFlags) -> bool {
    matches!(flags & OFlags::RWMODE, OFlags::WRONLY | OFlags::RDWR)
}

/// The flags with which the backing file is opened, best first, for a program that asked for `asked`.
pub(crate) fn backing_flags(asked: OFlags) -> Vec<OFlags> {
    let kept = asked & (OFlags::SYNC | OFlags::DSYNC | OFlags::NOATIME);
    let mode = asked & OFlags::RWMODE;
    let always = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let modes: &[OFlags] = match mode {
        OFlags::WRONLY => &[OFlags::RDWR, OFlags::WRONLY],
        OFlags::RDWR => &[OFlags::RDWR],
        _ => &[OFlags::RDONLY],
    };
    modes.iter().map(|mode| *mode | kept | always).collect()
}

#[derive(Debug, Default)]
struct Slots {
    files: Vec<Option<Arc<OpenFile>>>,
    free: Vec<usize>,
    by_node: HashMap<NodeId, Vec<usize>>,
}

/// All open files. A handle number is only used by the kernel between the open and the release that we saw, so a
/// number that is used again is no ambiguity.
#[derive(Debug, Default)]
pub(crate) struct HandleTable {
    slots: RwLock<Slots>,
}

impl HandleTable {
    fn read(&self) -> RwLockReadGuard<'_, Slots> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Slots> {
        self.slots.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps `file` and numbers it.
    pub(crate) fn insert(&self, file: Arc<OpenFile>) -> u64 {
        let mut slots = self.write();
        let node = file.node;
        let index = if let Some(index) = slots.free.pop() {
            if let Some(slot) = slots.files.get_mut(index) {
                *slot = Some(file);
            }
            index
        } else {
            slots.files.push(Some(file));
            slots.files.len() - 1
        };
        slots.by_node.entry(node).or_default().push(index);
        index as u64
    }

    /// The file with this handle number.
    pub(crate) fn get(&self, handle: u64) -> Option<Arc<OpenFile>> {
        let index = usize::try_from(handle).ok()?;
        self.read().files.get(index)?.clone()
    }

    /// Some open file of `node`: one that can be read and written if there is one.
    pub(crate) fn any_of(&self, node: NodeId) -> Option<Arc<OpenFile>> {
        let slots = self.read();
        let open = || {
            slots
                .by_node
                .get(&node)
                .into_iter()
                .flatten()
                .filter_map(|index| slots.files.get(*index)?.as_ref())
        };
        open()
            .find(|file| file.for_writing && file.readable)
            .or_else(|| open().next())
            .cloned()
    }

    /// Whether some program can write `node`.
    pub(crate) fn has_writer(&self, node: NodeId) -> bool {
        let slots = self.read();
        let indexes = slots.by_node.get(&node).into_iter().flatten();
        let mut open = indexes.filter_map(|index| slots.files.get(*index)?.as_ref());
        open.any(|file| file.for_writing)
    }

    /// One open file of each node that some program can write.
    pub(crate) fn open_for_writing(&self) -> Vec<Arc<OpenFile>> {
        let slots = self.read();
        slots
            .by_node
            .values()
            .filter_map(|indexes| {
                indexes
                    .iter()
                    .filter_map(|index| slots.files.get(*index)?.as_ref())
                    .find(|file| file.for_writing)
                    .cloned()
            })
            .collect()
    }

    /// Drops the handle.
    pub(crate) fn remove(&self, handle: u64) -> Option<Arc<OpenFile>> {
        let index = usize::try_from(handle).ok()?;
        let mut slots = self.write();
        let file = slots.files.get_mut(index)?.take()?;
        slots.free.push(index);
        if let Some(indexes) = slots.by_node.get_mut(&file.node) {
            indexes.retain(|other| *other != index);
            if indexes.is_empty() {
                slots.by_node.remove(&file.node);
            }
        }
        Some(file)
    }
}
