//! The gate: each modification of the tree passes here, one method per kind, and nowhere else.
//!
//! What stands before the gate (the file system protocol) does not know what happens to a change; what stands
//! behind it (the backing directory) does not know who asked. A method is given everything that a log needs to
//! know about its change: the node, the inode it changes, the range, and for changes of names the directory, the
//! name, what was there before, and how many names that had.
//!
//! Order within a method: check, tell the log what is going to happen, perform, tell the log what happened.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use byteback_host::errno_of;
use byteback_host::tree::{self as host, FallocateFlags, FileKind, Identity, SetXattr, Stat};
use rustix::fs::{AtFlags, CWD, Dev, FileType, Mode, OFlags, RenameFlags, Timestamps};
use rustix::io::Errno;

use crate::handles::OpenFile;
use crate::inodes::NodeId;
pub use crate::tree::inode_flags::InodeFlags;
use crate::tree::inode_flags::set_flags;

/// Why the gate did not let a change through.
#[derive(Debug, thiserror::Error)]
pub enum TrackedError {
    /// The backing directory refused it.
    #[error("the backing directory could not {operation}: {source}")]
    Backing {
        /// What was attempted, as an infinitive.
        operation: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl TrackedError {
    /// The error number that the program sees.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Backing { source, .. } => errno_of(source).unwrap_or(libc::EIO),
        }
    }
}

impl From<TrackedError> for io::Error {
    fn from(error: TrackedError) -> Self {
        Self::from_raw_os_error(error.errno())
    }
}

/// A result of the gate.
pub type TrackedResult<T> = Result<T, TrackedError>;

/// An inode of the tree and the number it has in this mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its number while the mount lasts.
    pub node: NodeId,
    /// Which inode it is, beyond the mount.
    pub identity: Identity,
    /// What kind of file it is.
    pub kind: FileKind,
}

/// A name in a directory of the tree.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The directory.
    pub parent: NodeId,
    /// The directory, as an `O_PATH` descriptor.
    pub dir: BorrowedFd<'a>,
    /// The name.
    pub name: &'a OsStr,
}

/// What loses a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The inode.
    pub object: Object,
    /// How many names it has before.
    pub nlink: u64,
}

impl Victim {
    /// Whether the inode has no name left afterwards.
    #[must_use]
    pub fn is_last_link(&self) -> bool {
        self.object.kind == FileKind::Dir || self.nlink <= 1
    }
}

/// What becomes of an inode's attributes; `None` keeps one.
#[derive(Clone, Debug, Default)]
pub struct NewAttributes {
    /// The permission bits.
    pub mode: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// Last access and last modification, each to be set, kept or now (`UTIME_OMIT`, `UTIME_NOW`).
    pub times: Option<Timestamps>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Tracked {}

impl Tracked {
    /// A gate that only passes through.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes `data` at `offset`. Fewer bytes than asked are written only when the disk or a limit is reached.
    ///
    /// # Errors
    /// What the backing file answered, if not a single byte was written.
    pub fn write(&self, file: &OpenFile, offset: u64, data: &[u8]) -> TrackedResult<usize> {
        let mut written: usize = 0;
        while let Some(rest) = data.get(written..).filter(|rest| !rest.is_empty()) {
            let at = offset.saturating_add(written as u64);
            match rustix::io::pwrite(file, rest, at) {
                Ok(0) => break,
                Ok(count) => written = written.saturating_add(count),
                Err(Errno::INTR) => {}
                Err(_) if written > 0 => break,
                Err(errno) => return Err(backing("write")(errno.into())),
            }
        }
        Ok(written)
    }

    /// Sets the length of the file that `fd` can write.
    ///
    /// # Errors
    /// What the backing file answered.
    pub fn truncate(&self, object: Object, fd: BorrowedFd<'_>, len_bytes: u64) -> TrackedResult<()> {
        let _ = object;
        uninterrupted(|| rustix::fs::ftruncate(fd, len_bytes)).map_err(backing("truncate"))
    }

    /// Allocates, frees or zeroes a range, as `mode` says.
    ///
    /// # Errors
    /// What the backing file answered.
    pub fn allocate(&self, file: &OpenFile, mode: FallocateFlags, offset: u64, len_bytes: u64) -> TrackedResult<()> {
        host::fallocate(file, mode, offset, len_bytes).map_err(backing("allocate"))
    }

    /// Copies up to `len_bytes` inside the backing file system. Returns how many.
    ///
    /// # Errors
    /// What the backing file system answered; `EXDEV` and `EOPNOTSUPP` let the kernel copy through the page cache.
    pub fn copy_range(
        &self,
        from: &OpenFile,
        from_offset: u64,
        to: &OpenFile,
        to_offset: u64,
        len_bytes: usize,
    ) -> TrackedResult<usize> {
        uninterrupted(|| {
            let (mut read_at, mut write_at) = (from_offset, to_offset);
            rustix::fs::copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), len_bytes)
        })
        .map_err(backing("copy a range"))
    }

    /// Creates a regular file that must not exist and opens it with `flags`.
    ///
    /// # Errors
    /// `EEXIST`, or what the backing directory answered.
    pub fn create(&self, place: Place<'_>, mode: u32, flags: OFlags) -> TrackedResult<(OwnedFd, Stat)> {
        let flags = flags | OFlags::CREATE | OFlags::EXCL;
        let fd = host::open_at(place.dir, place.name, flags, Mode::from_raw_mode(mode)).map_err(backing("create"))?;
        let stat = host::stat_fd(&fd).map_err(backing("create"))?;
        Ok((fd, stat))
    }

    /// Creates a file of any kind but directory and symlink. `device` counts for device nodes.
    ///
    /// # Errors
    /// What the backing directory answered.
    pub fn mknod(&self, place: Place<'_>, kind: FileType, mode: u32, device: Dev) -> TrackedResult<Stat> {
        let mode = Mode::from_raw_mode(mode);
        uninterrupted(|| rustix::fs::mknodat(place.dir, place.name, kind, mode, device))
            .and_then(|()| host::stat_at(place.dir, place.name))
            .map_err(backing("make a node"))
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// What the backing directory answered.
    pub fn mkdir(&self, place: Place<'_>, mode: u32) -> TrackedResult<Stat> {
        uninterrupted(|| rustix::fs::mkdirat(place.dir, place.name, Mode::from_raw_mode(mode)))
            .and_then(|()| host::stat_at(place.dir, place.name))
            .map_err(backing("make a directory"))
    }

    /// Creates a symlink to `target`, which may be any bytes.
    ///
    /// # Errors
    /// What the backing directory answered.
    pub fn symlink(&self, place: Place<'_>, target: &OsStr) -> TrackedResult<Stat> {
        uninterrupted(|| rustix::fs::symlinkat(target, place.dir, place.name))
            .and_then(|()| host::stat_at(place.dir, place.name))
            .map_err(backing("make a symlink"))
    }

    /// Gives the inode that `fd` names one more name.
    ///
    /// # Errors
    /// What the backing directory answered.
    pub fn link(&self, object: Object, fd: BorrowedFd<'_>, place: Place<'_>) -> TrackedResult<Stat> {
        let _ = object;
        // The magic link names the inode itself, also that of a symlink; AT_EMPTY_PATH would need a capability.
        let source = magic_link(fd);
        uninterrupted(|| rustix::fs::linkat(CWD, source.as_str(), place.dir, place.name, AtFlags::SYMLINK_FOLLOW))
            .and_then(|()| host::stat_at(place.dir, place.name))
            .map_err(backing("link"))
    }

    /// Removes a name that is no directory.
    ///
    /// # Errors
    /// What the backing directory answered.
    pub fn unlink(&self, place: Place<'_>, victim: Victim) -> TrackedResult<()> {
        let _ = victim;
        uninterrupted(|| rustix::fs::unlinkat(place.dir, place.name, AtFlags::empty())).map_err(backing("unlink"))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// What the backing directory answered.
    pub fn rmdir(&self, place: Place<'_>, victim: Victim) -> TrackedResult<()> {
        let _ = victim;
        uninterrupted(|| rustix::fs::unlinkat(place.dir, place.name, AtFlags::REMOVEDIR))
            .map_err(backing("remove a directory"))
    }

    /// Moves a name. `replaced` is what the new name stood for before: it loses that name, or with
    /// `RenameFlags::EXCHANGE` gets the old one.
    ///
    /// # Errors
    /// What the backing directory answered.
    pub fn rename(
        &self,
        from: Place<'_>,
        to: Place<'_>,
        flags: RenameFlags,
        moved: Victim,
        replaced: Option<Victim>,
    ) -> TrackedResult<()> {
        let _ = (moved, replaced);
        uninterrupted(|| {
            if flags.is_empty() {
                // The older call is known to file systems that refuse any flags, even none.
                rustix::fs::renameat(from.dir, from.name, to.dir, to.name)
            } else {
                rustix::fs::renameat_with(from.dir, from.name, to.dir, to.name, flags)
            }
        })
        .map_err(backing("rename"))
    }

    /// Sets owner, permissions and times of what `fd` names, in this order: a new owner clears set-id bits, and
    /// everything else moves the times.
    ///
    /// # Errors
    /// What the backing file answered; earlier attributes of the list are then already set.
    pub fn set_attributes(&self, object: Object, fd: BorrowedFd<'_>, new: &NewAttributes) -> TrackedResult<()> {
        let _ = object;
        if new.uid.is_some() || new.gid.is_some() {
            host::set_owner(fd, new.uid, new.gid).map_err(backing("change the owner"))?;
        }
        if let Some(mode) = new.mode {
            host::set_mode(fd, mode).map_err(backing("change the mode"))?;
        }
        if let Some(times) = &new.times {
            let path = magic_link(fd);
            uninterrupted(|| rustix::fs::utimensat(CWD, path.as_str(), times, AtFlags::empty()))
                .map_err(backing("change the times"))?;
        }
        Ok(())
    }

    /// Sets an extended attribute of what `fd` names, POSIX ACLs included.
    ///
    /// # Errors
    /// What the backing file answered.
    pub fn set_xattr(
        &self,
        object: Object,
        fd: BorrowedFd<'_>,
        name: &OsStr,
        value: &[u8],
        how: SetXattr,
    ) -> TrackedResult<()> {
        let _ = object;
        host::set_xattr(fd, name, value, how).map_err(backing("set an extended attribute"))
    }

    /// Sets inode flags or the project id of what `fd` has open.
    ///
    /// # Errors
    /// What the backing file answered.
    pub fn set_inode_flags(&self, object: Object, fd: BorrowedFd<'_>, flags: InodeFlags) -> TrackedResult<()> {
        let _ = object;
        set_flags(fd, flags).map_err(backing("set inode flags"))
    }

    /// Removes an extended attribute of what `fd` names.
    ///
    /// # Errors
    /// What the backing file answered.
    pub fn remove_xattr(&self, object: Object, fd: BorrowedFd<'_>, name: &OsStr) -> TrackedResult<()> {
        let _ = object;
        host::remove_xattr(fd, name).map_err(backing("remove an extended attribute"))
    }
}

fn backing(operation: &'static str) -> impl FnOnce(io::Error) -> TrackedError {
    move |source| TrackedError::Backing { operation, source }
}

/// The path that stands for the inode of `fd` in calls that take no `O_PATH` descriptor.
fn magic_link(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Calls again while a signal interrupts.
fn uninterrupted<T>(mut call: impl FnMut() -> Result<T, Errno>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done.map_err(io::Error::from),
        }
    }
}
