//! The tree as it is now, seen from the log's side: from a node of the log to the file on the disk.
//!
//! The mount goes from names to nodes; reading a picture, settling a checkpoint and scanning go the
//! other way. The log knows the names that lead to a node; each step is opened below the last, and
//! the inode found must be the one that the record names. A concurrent rename is met by asking
//! again.
//!
//! Out of scope: nodes without a name (an open picture keeps descriptors of those that it
//! still needs).

mod kept_directories;

use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::Arc;

use byteback_host::clock::Clock;
use byteback_host::errno_of;
use byteback_host::tree::{Inode, Stat};
use byteback_model::{NodeId, NodeKind};
use byteback_oplog::{Fence, Log, LogError, Settler, TreeView};
use rustix::fs::OFlags;

use self::kept_directories::{KeptDirectories, Way, WayError};

/// A rename between asking for the way and walking it is answered by asking again; nobody renames
/// this often in a row.
const ATTEMPTS: u32 = 8;

/// No tree is deeper: what seems to be is a cycle in a damaged log.
const DEPTH_MAX: usize = 1 << 20;

/// `OVERLAYFS_SUPER_MAGIC`.
pub(crate) const OVERLAYFS_TYPE: i64 = 0x794c_7630;

/// Number of files from which syncing their file system as a whole is cheaper than syncing each.
const SYNC_ALL_FROM_FILES: usize = 64;

/// A tracked directory and its log.
#[derive(Clone)]
pub struct LiveTree {
    root: Arc<Inode>,
    log: Arc<Log>,
    clock: Arc<dyn Clock>,
    settle_up_to_ns: Option<i64>,
    directories: Arc<KeptDirectories>,
}

impl LiveTree {
    /// The tree below `root`, which `log` tracks.
    #[must_use]
    pub fn new(root: Arc<Inode>, log: Arc<Log>, clock: Arc<dyn Clock>) -> Self {
        Self {
            root,
            log,
            clock,
            settle_up_to_ns: None,
            directories: Arc::default(),
        }
    }

    /// The same tree, settling only what was last changed before the wall clock said `time_ns`:
    /// after an unmount, whatever is younger may have been changed without passing the gate.
    #[must_use]
    pub fn settling_up_to(self, time_ns: i64) -> Self {
        Self {
            settle_up_to_ns: Some(time_ns),
            ..self
        }
    }

    /// The log of the tree.
    #[must_use]
    pub fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// An `O_PATH` descriptor of the root.
    #[must_use]
    pub fn root(&self) -> &Arc<Inode> {
        &self.root
    }

    /// An `O_PATH` descriptor of `node`, with what it is; `None` if it has no name any more. May
    /// wait for changes that are under way: not to be called from within one, nor holding a lock
    /// that one may want.
    ///
    /// # Errors
    /// The system's error on the way; an error of the log.
    pub fn find(&self, node: NodeId) -> io::Result<Option<(Inode, Stat)>> {
        let mut failed = None;
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                // A rename that is done and not yet logged leads nowhere, however often it is
                // asked.
                self.log.wait_for_operations();
            }
            match self.follow(node) {
                Ok(None) => return Ok(None),
                Ok(Some((fd, stat))) => {
                    if self.log.is_same(node, &stat.identity()).map_err(io::Error::other)? {
                        return Ok(Some((fd, stat)));
                    }
                    failed = None;
                }
                // A name on the way was moved, and something else may be there now.
                Err(error) if matches!(errno_of(&error), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP)) => {
                    failed = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(failed.unwrap_or_else(|| {
            io::Error::other("another file has taken its place, bypassing the mount; remount to track it")
        }))
    }

    /// The inode at the place where the log says that `node` is.
    fn follow(&self, node: NodeId) -> io::Result<Option<(Inode, Stat)>> {
        let place_of = |node| Ok(self.log.places_of(node)?.into_iter().next());
        let way = self.directories.way_to(node, place_of, DEPTH_MAX);
        let Some(Way { from, steps }) = way.map_err(|error| match error {
            WayError::Log(error) => io::Error::other::<LogError>(error),
            WayError::TooDeep => io::Error::other("it is too deep in the folder"),
        })?
        else {
            return Ok(None);
        };
        let mut directory = from.unwrap_or_else(|| Arc::clone(&self.root));
        let mut steps = steps.into_iter().peekable();
        while let Some((step, name)) = steps.next() {
            if steps.peek().is_none() {
                let fd = directory.open_at(&name, OFlags::PATH)?;
                let stat = fd.stat()?;
                return Ok(Some((fd, stat)));
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            directory = Arc::new(directory.open_at(&name, flags)?);
            // One that took the place of another without passing the gate may still hold what is
            // looked for.
            let identity = directory.stat()?.identity();
            if self.log.is_same(step, &identity).map_err(io::Error::other)? {
                self.directories.keep(step, Arc::clone(&directory));
            }
        }
        let root = self.root.try_clone()?;
        let stat = root.stat()?;
        Ok(Some((root, stat)))
    }

    /// Writes back and makes durable what is in memory of the whole file system.
    ///
    /// # Errors
    /// The system's error.
    pub fn sync(&self) -> io::Result<()> {
        // An O_PATH descriptor cannot be synced.
        let root = self.root.reopen(OFlags::RDONLY | OFlags::DIRECTORY)?;
        root.sync_all()
    }

    fn settle_one(&self, node: NodeId, sync: bool) -> Option<Fence> {
        let (fd, stat) = self.find(node).ok().flatten()?;
        if stat.kind == NodeKind::File && sync {
            let file = fd.reopen(OFlags::RDONLY).ok()?;
            file.sync(false).ok()?;
        }
        // The time first: between the two this thread may have to wait.
        let now_ns = self.clock.now_ns();
        let stat = fd.stat().ok()?;
        let latest_ns = self.settle_up_to_ns.map_or(now_ns, |time_ns| time_ns.min(now_ns));
        Some(Fence::of(&stat)).filter(|fence| fence.proves_at(latest_ns))
    }
}

impl Settler for LiveTree {
    fn settle(&self, nodes: &[NodeId]) -> Vec<Option<Fence>> {
        let all_at_once = nodes.len() >= SYNC_ALL_FROM_FILES && self.sync().is_ok();
        nodes.iter().map(|node| self.settle_one(*node, !all_at_once)).collect()
    }
}

impl TreeView for LiveTree {
    type Dir = Inode;

    fn root(&self) -> io::Result<(Inode, Stat)> {
        let stat = self.root.stat()?;
        Ok((self.root.reopen(OFlags::RDONLY | OFlags::DIRECTORY)?, stat))
    }

    fn keeps_births(&self) -> bool {
        self.root.system_type().is_ok_and(|kind| kind != Some(OVERLAYFS_TYPE))
    }

    fn sync(&self) -> Option<i64> {
        let now_ns = self.clock.now_ns();
        Self::sync(self).ok().map(|()| now_ns)
    }

    fn enter(&self, dir: &Inode, name: &OsStr) -> io::Result<Inode> {
        dir.open_dir_at(name)
    }

    fn entries(&self, dir: &Inode) -> io::Result<Vec<(OsString, Stat)>> {
        let mut entries = Vec::new();
        for entry in dir.read_dir(0)? {
            let entry = entry?;
            match dir.stat_at(&entry.name) {
                Ok(stat) => entries.push((entry.name, stat)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(entries)
    }

    fn look(&self, dir: &Inode, name: &OsStr) -> io::Result<Option<Stat>> {
        match dir.stat_at(name) {
            Ok(stat) => Ok(Some(stat)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether content can be read from a node of this kind.
#[must_use]
pub fn has_content(kind: NodeKind) -> bool {
    kind == NodeKind::File
}

/// A descriptor for a scan or a read that must not disturb the file's access time, where that is
/// allowed.
pub(crate) fn open_for_reading(fd: &Inode) -> io::Result<Inode> {
    match fd.reopen(OFlags::RDONLY | OFlags::NOATIME | OFlags::NONBLOCK) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => fd.reopen(OFlags::RDONLY | OFlags::NONBLOCK),
        done => done,
    }
}

#[cfg(test)]
mod tests;
