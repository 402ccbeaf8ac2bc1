//! Open files.
//!
//! Each open of the kernel has one *handle*, with a descriptor of its own on the backing file. The
//! descriptor may differ from what the program asked for:
//! - Write-only becomes read-write where permissions allow: the gate reads old bytes, and with a
//!   write-back cache the kernel itself reads the rest of a page that is written in part.
//! - `O_APPEND`, `O_DIRECT`, `O_TRUNC`, `O_CREAT`, `O_EXCL` are stripped: the kernel computes the
//!   offset of an append, aligned buffers are not ours to promise, truncation is asked for
//!   separately, and the other two are steps of ours.
//! - `O_APPEND` stays where nothing else is allowed: in a file with the append-only flag (`chattr
//!   +a`). Such a descriptor writes at the end wherever it is told to write, see
//!   [`crate::tree::Tree::write`].
//! - `O_NONBLOCK` is added, so that a FIFO that was put in the place of a file below us cannot
//!   block a thread.
//!
//! An unlinked file that is still open has no name left; it is served through any of its handles.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use byteback_host::tree::{Identity, Inode};
use rustix::fs::OFlags;

use crate::inodes::InodeNumber;
use crate::trimming::Trimming;

/// An open file of the tree.
#[derive(Debug)]
pub struct OpenFile {
    inode: Inode,
    node: InodeNumber,
    identity: Identity,
    for_writing: bool,
    for_reading: bool,
    readable: bool,
    only_appends: bool,
    own: bool,
    trimming: Trimming,
    /// Set once, before the kernel hears of the file, see [`Self::kernel_keeps_time`].
    kernel_keeps_time: AtomicBool,
    /// It is known that the kernel may hold pages of the node, see
    /// [`crate::tree::Tree::note_pages`].
    pages_noted: AtomicBool,
}

impl OpenFile {
    /// The node that is open.
    #[must_use]
    pub fn node(&self) -> InodeNumber {
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

    /// Whether whatever is written through the descriptor goes to the end.
    pub(crate) fn only_appends(&self) -> bool {
        self.only_appends
    }

    /// Whether it was opened by [`crate::Mount::flush_stores`] rather than by a program: its
    /// `fsync` only asks the kernel for dirty pages and must not force the disk.
    pub(crate) fn own(&self) -> bool {
        self.own
    }

    /// Whether the kernel knows when the file was modified, and says so by itself: what is written
    /// is not to move that time.
    pub(crate) fn kernel_keeps_time(&self) -> bool {
        self.kernel_keeps_time.load(Ordering::Relaxed)
    }

    pub(crate) fn let_kernel_keep_time(&self) {
        self.kernel_keeps_time.store(true, Ordering::Relaxed);
    }

    /// See [`crate::tree::Tree::note_pages`].
    pub(crate) fn pages_noted(&self) -> &AtomicBool {
        &self.pages_noted
    }

    /// Whether comparing what is written through it pays.
    pub(crate) fn trimming(&self) -> &Trimming {
        &self.trimming
    }

    pub(crate) fn new(
        inode: Inode,
        node: InodeNumber,
        identity: Identity,
        asked: OFlags,
        got: OFlags,
        own: bool,
    ) -> Self {
        Self {
            inode,
            node,
            identity,
            for_writing: writes(asked),
            for_reading: asked & OFlags::RWMODE != OFlags::WRONLY,
            readable: got & OFlags::RWMODE != OFlags::WRONLY,
            only_appends: got.contains(OFlags::APPEND),
            own,
            trimming: Trimming::default(),
            kernel_keeps_time: AtomicBool::new(false),
            pages_noted: AtomicBool::new(false),
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

/// The flags with which the backing file is opened, best first, for a program that asked for
/// `asked`. Those that append come last: they are for files that allow nothing else, which answer
/// `EPERM` to the others.
pub(crate) fn backing_flags(asked: OFlags) -> Vec<OFlags> {
    let kept = asked & (OFlags::SYNC | OFlags::DSYNC | OFlags::NOATIME);
    let mode = asked & OFlags::RWMODE;
    let always = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let modes: &[OFlags] = match mode {
        OFlags::WRONLY => &[OFlags::RDWR, OFlags::WRONLY],
        OFlags::RDWR => &[OFlags::RDWR],
        _ => &[OFlags::RDONLY],
    };
    let plain = modes.iter().map(|mode| *mode | kept | always);
    let appends = asked.contains(OFlags::APPEND) && mode != OFlags::RDONLY;
    let appending = plain.clone().filter(|_| appends).map(|flags| flags | OFlags::APPEND);
    plain.chain(appending).collect()
}

#[derive(Debug, Default)]
struct Slots {
    files: Vec<Option<Arc<OpenFile>>>,
    free: Vec<usize>,
    by_node: HashMap<InodeNumber, Vec<usize>>,
}

/// All open files. A handle number is only used by the kernel between the open and the release that
/// we saw, so a number that is used again is no ambiguity.
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
    pub(crate) fn any_of(&self, node: InodeNumber) -> Option<Arc<OpenFile>> {
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

    /// An open file of `node` that can be written anywhere.
    pub(crate) fn writer_anywhere(&self, node: InodeNumber) -> Option<Arc<OpenFile>> {
        let slots = self.read();
        let indexes = slots.by_node.get(&node).into_iter().flatten();
        let mut open = indexes.filter_map(|index| slots.files.get(*index)?.as_ref());
        open.find(|file| file.for_writing && !file.only_appends).cloned()
    }

    /// Whether some program can write `node`.
    pub(crate) fn has_writer(&self, node: InodeNumber) -> bool {
        self.is_open(node, OpenFile::for_writing)
    }

    /// Whether `node` is open in a way that `is_meant` accepts.
    pub(crate) fn is_open(&self, node: InodeNumber, is_meant: impl Fn(&OpenFile) -> bool) -> bool {
        let slots = self.read();
        let indexes = slots.by_node.get(&node).into_iter().flatten();
        let mut open = indexes.filter_map(|index| slots.files.get(*index)?.as_ref());
        open.any(|file| is_meant(file))
    }

    /// An open file of each node that some program can write.
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
