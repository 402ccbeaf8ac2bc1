//! Flushing the kernel's pages before a cut. Data that programs stored into shared mappings, and in
//! mode `fast` all written data, is in those pages first and passes the gate later.
//!
//! How: each node that some program can write is opened *through the mount* and synced there. For
//! the kernel this is an `fsync` like any other: it writes back the node's dirty pages and waits
//! for the answers of all of them, on old kernels as on new ones (`sync_file_range` does not wait
//! where FUSE copies pages before writing them back). Its last step, the `FSYNC` request, comes to
//! us on a handle that we know to be our own, and is answered without forcing the disk. A thread of
//! its own does it, see [`flusher`].
//!
//! Nodes are reached by name, one component at a time, never through a symlink, and the opened node
//! must be the one that was meant. Where that fails (no permission, renamed just now), the kernel
//! is asked to drop the node's pages instead, upon which it writes the dirty ones back first. A
//! file without a name is no part of any picture, but is flushed all the same, in this second way.

mod flusher;
pub(crate) mod holes;
mod late;

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use byteback_extents::ByteRange;
use byteback_host::tree::{self as host};
use fuser::{INodeNo, Notifier};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, statx};

use crate::inodes::InodeNumber;
use crate::tree::{Tree, stale};
pub(crate) use flusher::Flusher;
pub(crate) use late::LateAnswers;

/// A name that no file has; if one had it, the kernel would only ask for it once more.
const NO_NAME: &str = "\u{7f}byteback";

/// The result of a flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Nodes synced through the mount.
    pub synced: usize,
    /// Nodes whose pages were dropped instead, because they could not be opened.
    pub invalidated: usize,
}

/// Some stores may not have passed the gate.
#[derive(Debug, thiserror::Error)]
#[error("the kernel could not write back all data of {} open files (first: {first}): {source}", nodes.len())]
pub struct FlushError {
    /// The nodes concerned: a cut must treat their contents as unknown.
    pub nodes: Vec<InodeNumber>,
    /// The first of them, for people: its path or its number.
    pub first: String,
    /// The kernel's error for the first node.
    pub source: io::Error,
}

/// Registers a thread's opens as our own while it lives.
struct OwnOpens<'a> {
    tree: &'a Tree,
    thread: u32,
}

impl<'a> OwnOpens<'a> {
    fn begin(tree: &'a Tree, thread: u32) -> Self {
        tree.own_threads().push(thread);
        Self { tree, thread }
    }
}

impl Drop for OwnOpens<'_> {
    fn drop(&mut self) {
        let mut threads = self.tree.own_threads();
        if let Some(position) = threads.iter().position(|thread| *thread == self.thread) {
            threads.swap_remove(position);
        }
    }
}

/// The tree to flush, and the means to do so.
#[derive(Debug)]
pub(crate) struct Stores {
    tree: Arc<Tree>,
    /// `None` where programs do not come through a kernel: nothing is held back or remembered then.
    kernel: Option<Kernel>,
}

#[derive(Debug)]
struct Kernel {
    notifier: Notifier,
    /// Locked for a whole flush: a second one at the same time would only do the same again.
    flusher: Mutex<Flusher>,
}

impl Stores {
    pub(crate) fn new(tree: Arc<Tree>, notifier: Notifier, flusher: Flusher) -> Self {
        let flusher = Mutex::new(flusher);
        Self {
            tree,
            kernel: Some(Kernel { notifier, flusher }),
        }
    }

    /// Of a tree that no kernel stands before.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn without_kernel(tree: Arc<Tree>) -> Self {
        Self { tree, kernel: None }
    }

    /// See [`crate::Mount::flush_stores`].
    pub(crate) fn flush(&self) -> Result<Flushed, FlushError> {
        let Some(kernel) = &self.kernel else {
            return Ok(Flushed::default());
        };
        let flusher = kernel.flusher.lock().unwrap_or_else(PoisonError::into_inner);
        // Numbers and names, no open files: their last close must not happen in the flusher.
        let open = self.tree.handles.open_for_writing();
        let nodes = open.iter().map(|file| file.node()).collect();
        drop(open);
        flush_stores(&self.tree, &flusher, &kernel.notifier, nodes)
    }

    /// As [`Stores::flush`], of one node.
    pub(crate) fn flush_node(&self, node: InodeNumber) -> Result<Flushed, FlushError> {
        let Some(kernel) = self.kernel.as_ref().filter(|_| self.tree.handles.has_writer(node)) else {
            // A mapping holds the file open as long as it lasts.
            return Ok(Flushed::default());
        };
        let flusher = kernel.flusher.lock().unwrap_or_else(PoisonError::into_inner);
        flush_stores(&self.tree, &flusher, &kernel.notifier, vec![node])
    }

    /// Makes the kernel forget the node of a name, after it has waited for the calls that use the
    /// directory. If it does not know the name, or is gone, there is nothing to forget.
    pub(crate) fn forget_name(&self, parent: InodeNumber, name: &OsStr) {
        if let Some(kernel) = &self.kernel {
            let _ = kernel.notifier.inval_entry(INodeNo(parent.get()), name);
        }
    }

    /// Waits for the lookups and listings in a directory, until their answers are known to the
    /// kernel: it takes the lock of the directory for that.
    pub(crate) fn wait_for_lookups(&self, directory: InodeNumber) {
        self.forget_name(directory, OsStr::new(NO_NAME));
    }

    /// Whether there is a kernel that could have cached something.
    pub(crate) fn has_kernel(&self) -> bool {
        self.kernel.is_some()
    }

    /// Makes the kernel forget the attributes of a node.
    pub(crate) fn forget_attributes(&self, node: InodeNumber) {
        if let Some(kernel) = &self.kernel {
            let _ = kernel.notifier.inval_inode(INodeNo(node.get()), -1, 0);
        }
    }

    /// Makes the kernel forget the attributes of a node, and what it read of a range or of all of
    /// it, after it has handed on what was stored there.
    pub(crate) fn forget_pages(&self, node: InodeNumber, range: Option<ByteRange>) {
        let (start, len_bytes) = range.map_or((0, 0), |range| (range.start(), range.len_bytes()));
        let start = i64::try_from(start).unwrap_or(i64::MAX);
        let len_bytes = i64::try_from(len_bytes).unwrap_or(0);
        if let Some(kernel) = &self.kernel {
            let _ = kernel.notifier.inval_inode(INodeNo(node.get()), start, len_bytes);
        }
    }

    /// Makes the kernel learn the length of a file that has a name, if programs have it open: by a
    /// look at it through the mount. Then no program is shown anything beyond it.
    pub(crate) fn look_at(&self, node: InodeNumber) {
        let Some(kernel) = &self.kernel else { return };
        if self.tree.handles.any_of(node).is_none() {
            return;
        }
        if let Some(path) = self.tree.path_of(node) {
            let flusher = kernel.flusher.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = flusher.look(node, path);
        }
    }
}

fn flush_stores(
    tree: &Tree,
    flusher: &Flusher,
    notifier: &Notifier,
    nodes: Vec<InodeNumber>,
) -> Result<Flushed, FlushError> {
    let mut flushed = Flushed::default();
    let mut failed: Vec<(InodeNumber, String, io::Error)> = Vec::new();
    if nodes.is_empty() {
        return Ok(flushed);
    }
    let own = OwnOpens::begin(tree, flusher.thread_id());
    let mut named = Vec::new();
    let mut unreached = Vec::new();
    for node in nodes {
        match tree.path_of(node) {
            Some(path) => named.push((node, path)),
            None => unreached.push((node, None)),
        }
    }
    let answers = match flusher.sync(named.clone()) {
        Ok(answers) => answers,
        Err(gone) => {
            return Err(FlushError {
                first: named
                    .first()
                    .map_or_else(String::new, |(node, path)| describe(*node, Some(path))),
                nodes: named.into_iter().map(|(node, _)| node).collect(),
                source: gone,
            });
        }
    };
    drop(own);
    for ((node, path), answer) in named.into_iter().zip(answers) {
        match answer {
            Ok(()) => flushed.synced += 1,
            Err(reason) if is_unreachable(&reason) => unreached.push((node, Some(path))),
            Err(error) => failed.push((node, describe(node, Some(&path)), error)),
        }
    }
    for (node, path) in unreached {
        match notifier.inval_inode(INodeNo(node.get()), 0, 0) {
            Ok(()) => flushed.invalidated += 1,
            Err(error) => failed.push((node, describe(node, path.as_deref()), error)),
        }
    }
    let nodes = failed.iter().map(|(node, _, _)| *node).collect();
    match failed.into_iter().next() {
        None => Ok(flushed),
        Some((_, first, source)) => Err(FlushError { nodes, first, source }),
    }
}

/// Whether the node could not be opened, as opposed to: its pages could not be written.
fn is_unreachable(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ESTALE | libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::EACCES | libc::EPERM | libc::EMFILE)
    )
}

fn describe(node: InodeNumber, path: Option<&[std::ffi::OsString]>) -> String {
    match path {
        Some(names) => names.iter().collect::<std::path::PathBuf>().display().to_string(),
        None => node.to_string(),
    }
}

/// Looks at a file until the kernel has its length. An answer that crosses another one is not
/// believed, and asked for once more.
fn learn_len_through_mount(root: &OwnedFd, path: &[std::ffi::OsString], node: InodeNumber) -> io::Result<()> {
    const ATTEMPTS_MAX: usize = 8;
    let named = reach_through_mount(root, path, node)?;
    for _ in 0..ATTEMPTS_MAX {
        let len_bytes =
            |sync| statx(&named, "", AtFlags::EMPTY_PATH | sync, StatxFlags::SIZE).map(|stat| stat.stx_size);
        let reported_bytes = len_bytes(AtFlags::STATX_FORCE_SYNC)?;
        if len_bytes(AtFlags::STATX_DONT_SYNC)? == reported_bytes {
            break;
        }
    }
    Ok(())
}

/// Reaches a file by its names.
fn reach_through_mount(root: &OwnedFd, path: &[std::ffi::OsString], node: InodeNumber) -> io::Result<OwnedFd> {
    let (name, directories) = path.split_last().ok_or_else(stale)?;
    let mut held: Option<OwnedFd> = None;
    for directory in directories {
        let at = held.as_ref().unwrap_or(root).as_fd();
        held = Some(host::open_at(
            at,
            directory,
            OFlags::PATH | OFlags::DIRECTORY,
            Mode::empty(),
        )?);
    }
    let at = held.as_ref().unwrap_or(root).as_fd();
    // Named first, so that nothing but the file that is meant is ever opened: what is in its place
    // now may be a FIFO or a device.
    let named = host::open_path_at(at, name)?;
    let stat = host::stat_fd(&named)?;
    if stat.ino != node.get() || stat.kind != byteback_model::NodeKind::File {
        return Err(stale());
    }
    Ok(named)
}

fn sync_through_mount(root: &OwnedFd, path: &[std::ffi::OsString], node: InodeNumber) -> io::Result<()> {
    let named = reach_through_mount(root, path, node)?;
    let open = |flags| host::reopen(&named, flags | OFlags::NONBLOCK);
    let file = open(OFlags::RDONLY).or_else(|error| match error.raw_os_error() {
        // Our own user's file that may be written but not read.
        Some(libc::EACCES) => open(OFlags::WRONLY),
        _ => Err(error),
    })?;
    rustix::fs::fdatasync(&file)?;
    Ok(())
}
