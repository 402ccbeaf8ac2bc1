//! An open inode of a tree, wherever the tree lies.
//!
//! A tree lies in the system's file systems, where a descriptor holds an inode, or in a file system
//! that is a library of this process (a volume), unknown to any kernel. Code that works on a tree
//! uses [`Inode`]s. A descriptor is kept inline, and its calls are those of the free functions of
//! this folder: callers that only have descriptors pay for one comparison per call.
//!
//! Code that needs the kernel itself (ioctls, pages in its cache, mapping, locks of descriptors)
//! asks [`Inode::descriptor`], and handles its absence.
//!
//! **Creators.** The kernel takes a new file's owner and umask from the calling thread. A library
//! must be passed both explicitly ([`Creator`]); the system's file systems ignore that value.
//!
//! **Flags.** For an inode of a library, the only `open` flags that count are those that restrict
//! what may be opened (`DIRECTORY`, `PATH`, symlinks without it), and `SYNC`. Every open inode
//! there is readable and writable, because a library knows no permissions: the mount checks them
//! before.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, SeekFrom, StatVfs, Timestamps};
use rustix::io::Errno;

use super::entries::Entries;
use super::library_inode::{Creator, LibraryInode, NewInode};
use super::ranges::{DataRanges, FallocateFlags};
use super::stat::Stat;
use super::xattr::SetXattr;
use super::{SetTime, check_component, explain_proc, metadata, proc_path, uninterrupted};
use byteback_model::NodeKind;

/// See the module.
#[derive(Debug)]
pub enum Inode {
    /// Of the system's file systems.
    System(OwnedFd),
    /// Of a library.
    Library(Box<dyn LibraryInode>),
}

impl From<OwnedFd> for Inode {
    fn from(fd: OwnedFd) -> Self {
        Self::System(fd)
    }
}

impl From<File> for Inode {
    fn from(file: File) -> Self {
        Self::System(file.into())
    }
}

/// The error for two inodes in one call of which only one is a descriptor.
fn elsewhere() -> io::Error {
    Errno::XDEV.into()
}

#[expect(
    clippy::missing_errors_doc,
    reason = "what the system answers, or as the free functions of the same name say"
)]
impl Inode {
    /// The kernel's descriptor, for operations that only the kernel can do.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::System(fd) => Some(fd.as_fd()),
            Self::Library(_) => None,
        }
    }

    /// Whether `self` lies in the system's file systems.
    #[must_use]
    pub fn is_of_system(&self) -> bool {
        matches!(self, Self::System(_))
    }

    /// A second handle on the same inode, open in the same way.
    pub fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::System(fd) => fd.try_clone().map(Self::System),
            Self::Library(inode) => inode.again().map(Self::Library),
        }
    }

    /// As [`super::reopen`].
    pub fn reopen(&self, flags: OFlags) -> io::Result<Self> {
        match self {
            Self::System(fd) => super::reopen(fd, flags).map(Self::System),
            Self::Library(inode) => opened(inode.again()?, inode.stat()?.kind, flags),
        }
    }

    /// As [`super::stat_fd`].
    pub fn stat(&self) -> io::Result<Stat> {
        match self {
            Self::System(fd) => super::stat_fd(fd),
            Self::Library(inode) => inode.stat(),
        }
    }

    /// As [`super::stat_at`].
    pub fn stat_at(&self, name: &OsStr) -> io::Result<Stat> {
        match self {
            Self::System(fd) => super::stat_at(fd, name),
            Self::Library(inode) => inode.stat_at(check_component(name)?),
        }
    }

    /// As [`super::open_at`], for names that exist.
    pub fn open_at(&self, name: &OsStr, flags: OFlags) -> io::Result<Self> {
        match self {
            Self::System(fd) => super::open_at(fd, name, flags, Mode::empty()).map(Self::System),
            Self::Library(inode) => {
                let (found, stat) = inode.look_up(check_component(name)?)?;
                opened(found, stat.kind, flags)
            }
        }
    }

    /// As [`super::open_path_at`].
    pub fn open_path_at(&self, name: &OsStr) -> io::Result<Self> {
        self.open_at(name, OFlags::PATH)
    }

    /// As [`super::open_dir_at`].
    pub fn open_dir_at(&self, name: &OsStr) -> io::Result<Self> {
        self.open_at(name, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// Creates a regular file that does not exist yet, and opens it with `flags`.
    pub fn create_at(&self, name: &OsStr, flags: OFlags, mode: u32, creator: Creator) -> io::Result<Self> {
        match self {
            Self::System(fd) => {
                let flags = flags | OFlags::CREATE | OFlags::EXCL;
                super::open_at(fd, name, flags, Mode::from_raw_mode(mode)).map(Self::System)
            }
            Self::Library(dir) => {
                let made = dir.make(check_component(name)?, NewInode::File(mode), creator)?;
                opened(made, NodeKind::File, flags)
            }
        }
    }

    /// Creates an inode of any kind but a regular file.
    pub fn make_at(&self, name: &OsStr, new: NewInode<'_>, creator: Creator) -> io::Result<()> {
        let name = check_component(name)?;
        let fd = match self {
            Self::System(fd) => fd,
            Self::Library(dir) => return dir.make(name, new, creator).map(drop),
        };
        uninterrupted(|| match new {
            NewInode::File(mode) => rustix::fs::mknodat(fd, name, FileType::RegularFile, Mode::from_raw_mode(mode), 0),
            NewInode::Directory(mode) => rustix::fs::mkdirat(fd, name, Mode::from_raw_mode(mode)),
            NewInode::Symlink(target) => rustix::fs::symlinkat(target, fd, name),
            NewInode::Special(kind, mode, device) => {
                rustix::fs::mknodat(fd, name, kind, Mode::from_raw_mode(mode), device)
            }
        })
    }

    /// Gives `inode` another name, in this directory.
    pub fn link_at(&self, name: &OsStr, inode: &Self) -> io::Result<()> {
        let name = check_component(name)?;
        match (self, inode) {
            (Self::System(dir), Self::System(fd)) => {
                // The magic link names the inode itself, also that of a symlink; AT_EMPTY_PATH
                // would need a capability.
                let source = proc_path(fd);
                uninterrupted(|| rustix::fs::linkat(CWD, source.as_str(), dir, name, AtFlags::SYMLINK_FOLLOW))
            }
            (Self::Library(dir), Self::Library(inode)) => dir.link(name, &**inode),
            _ => Err(elsewhere()),
        }
    }

    /// Removes a name; with `AtFlags::REMOVEDIR` that of an empty directory.
    pub fn unlink_at(&self, name: &OsStr, flags: AtFlags) -> io::Result<()> {
        let name = check_component(name)?;
        match self {
            Self::System(fd) => uninterrupted(|| rustix::fs::unlinkat(fd, name, flags)),
            Self::Library(inode) => inode.unlink(name, flags.contains(AtFlags::REMOVEDIR)),
        }
    }

    /// Moves a name.
    pub fn rename_at(&self, name: &OsStr, to: &Self, to_name: &OsStr, flags: RenameFlags) -> io::Result<()> {
        let (name, to_name) = (check_component(name)?, check_component(to_name)?);
        match (self, to) {
            // File systems that refuse all flags, even none, still support the older call.
            (Self::System(from), Self::System(to)) if flags.is_empty() => {
                uninterrupted(|| rustix::fs::renameat(from, name, to, to_name))
            }
            (Self::System(from), Self::System(to)) => {
                uninterrupted(|| rustix::fs::renameat_with(from, name, to, to_name, flags))
            }
            (Self::Library(from), Self::Library(to)) => from.rename(name, &**to, to_name, flags),
            _ => Err(elsewhere()),
        }
    }

    /// As [`super::read_dir`].
    pub fn read_dir(&self, cookie: u64) -> io::Result<Entries> {
        match self {
            Self::System(fd) => super::read_dir(fd, cookie).map(Entries::System),
            Self::Library(inode) => {
                if inode.stat()?.kind != NodeKind::Directory {
                    return Err(Errno::NOTDIR.into());
                }
                Ok(Entries::of_library(inode.again()?, cookie))
            }
        }
    }

    /// As [`super::read_link_fd`].
    pub fn read_link(&self) -> io::Result<OsString> {
        match self {
            Self::System(fd) => super::read_link_fd(fd),
            Self::Library(inode) => inode.read_link(),
        }
    }

    /// Reads at `offset`; returns the number of bytes, 0 only at the end.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::System(fd) => uninterrupted(|| rustix::io::pread(fd, &mut *buffer, offset)),
            Self::Library(inode) => inode.read_at(offset, buffer),
        }
    }

    /// Writes at `offset`; returns the number of bytes.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        match self {
            Self::System(fd) => uninterrupted(|| rustix::io::pwrite(fd, data, offset)),
            Self::Library(inode) => inode.write_at(offset, data),
        }
    }

    /// Sets the length.
    pub fn truncate(&self, len_bytes: u64) -> io::Result<()> {
        match self {
            Self::System(fd) => uninterrupted(|| rustix::fs::ftruncate(fd, len_bytes)),
            Self::Library(inode) => inode.truncate(len_bytes),
        }
    }

    /// As [`super::fallocate`].
    pub fn fallocate(&self, mode: FallocateFlags, offset: u64, len_bytes: u64) -> io::Result<()> {
        match self {
            Self::System(fd) => super::fallocate(fd, mode, offset, len_bytes),
            Self::Library(inode) => inode.allocate(mode, offset, len_bytes),
        }
    }

    /// As [`super::punch_hole`].
    pub fn punch_hole(&self, offset: u64, len_bytes: u64) -> io::Result<()> {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.fallocate(mode, offset, len_bytes)
    }

    /// As `lseek(2)`; an inode of a library knows `SEEK_DATA` and `SEEK_HOLE` only.
    pub fn seek(&self, to: SeekFrom) -> io::Result<u64> {
        let found = match (self, to) {
            (Self::System(fd), _) => return uninterrupted(|| rustix::fs::seek(fd, to)),
            (Self::Library(inode), SeekFrom::Data(offset)) => inode.seek(offset, true)?,
            (Self::Library(inode), SeekFrom::Hole(offset)) => inode.seek(offset, false)?,
            (Self::Library(_), _) => return Err(Errno::INVAL.into()),
        };
        found.ok_or_else(|| Errno::NXIO.into())
    }

    /// As [`super::seek_data`].
    pub fn seek_data(&self, offset: u64) -> io::Result<Option<u64>> {
        match self {
            Self::System(fd) => super::seek_data(fd, offset),
            Self::Library(inode) => inode.seek(offset, true),
        }
    }

    /// As [`super::seek_hole`].
    pub fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>> {
        match self {
            Self::System(fd) => super::seek_hole(fd, offset),
            Self::Library(inode) => inode.seek(offset, false),
        }
    }

    /// As [`super::data_ranges`].
    #[must_use]
    pub fn data_ranges(&self, start: u64, end: u64) -> DataRanges<'_> {
        match self {
            Self::System(fd) => super::data_ranges(fd, start, end),
            Self::Library(inode) => DataRanges::of_library(&**inode, start, end),
        }
    }

    /// Copies inside the file system, in one call; returns the number of bytes. On `EXDEV` or
    /// `EOPNOTSUPP` the caller must read and write instead.
    pub fn copy_range_to(&self, offset: u64, to: &Self, to_offset: u64, len_bytes: usize) -> io::Result<usize> {
        match (self, to) {
            (Self::System(from), Self::System(to)) => uninterrupted(|| {
                let (mut read_at, mut write_at) = (offset, to_offset);
                rustix::fs::copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), len_bytes)
            }),
            (Self::Library(_), Self::Library(_)) => Err(Errno::OPNOTSUPP.into()),
            _ => Err(elsewhere()),
        }
    }

    /// Makes the inode durable; with `data_only` its times need not be. It must not be an `O_PATH`
    /// descriptor.
    pub fn sync(&self, data_only: bool) -> io::Result<()> {
        match self {
            Self::System(fd) if data_only => Ok(rustix::fs::fdatasync(fd)?),
            Self::System(fd) => Ok(rustix::fs::fsync(fd)?),
            Self::Library(inode) => inode.sync(),
        }
    }

    /// Makes its whole file system durable. It must not be an `O_PATH` descriptor.
    pub fn sync_all(&self) -> io::Result<()> {
        match self {
            Self::System(fd) => Ok(rustix::fs::syncfs(fd)?),
            Self::Library(inode) => inode.sync_all(),
        }
    }

    /// The free and total space of its file system.
    pub fn space(&self) -> io::Result<StatVfs> {
        match self {
            Self::System(fd) => Ok(rustix::fs::fstatvfs(fd)?),
            Self::Library(inode) => inode.space(),
        }
    }

    /// The kernel's number for the type of its file system; `None` for a library.
    pub fn system_type(&self) -> io::Result<Option<i64>> {
        match self {
            Self::System(fd) => Ok(Some(rustix::fs::fstatfs(fd)?.f_type)),
            Self::Library(_) => Ok(None),
        }
    }

    /// A stable identifier of its file system, the same after a reboot; `None` for a library, and
    /// if the system does not report it. The inode must be open for reading.
    pub fn file_system(&self) -> io::Result<Option<String>> {
        match self {
            Self::System(fd) => super::file_system::file_system_of(fd.as_fd()),
            Self::Library(_) => Ok(None),
        }
    }

    /// As [`super::set_owner`].
    pub fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        match self {
            Self::System(fd) => super::set_owner(fd, uid, gid),
            Self::Library(_) if uid == Some(u32::MAX) || gid == Some(u32::MAX) => Err(Errno::INVAL.into()),
            Self::Library(inode) => inode.set_owner(uid, gid),
        }
    }

    /// As [`super::set_mode`].
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        match self {
            Self::System(fd) => super::set_mode(fd, mode),
            Self::Library(inode) => inode.set_mode(mode & 0o7777),
        }
    }

    /// As [`super::set_times`].
    pub fn set_times(&self, atime: SetTime, mtime: SetTime) -> io::Result<()> {
        match self {
            Self::System(fd) => super::set_times(fd, atime, mtime),
            Self::Library(inode) => inode.set_times(&metadata::timestamps(atime, mtime)),
        }
    }

    /// The same with times in the system's form, including `UTIME_NOW` and `UTIME_OMIT`.
    pub fn set_timestamps(&self, times: &Timestamps) -> io::Result<()> {
        match self {
            Self::System(fd) => {
                let path = proc_path(fd);
                uninterrupted(|| rustix::fs::utimensat(CWD, path.as_str(), times, AtFlags::empty()))
                    .map_err(explain_proc)
            }
            Self::Library(inode) => inode.set_times(times),
        }
    }

    /// As [`super::list_xattrs`].
    pub fn list_xattrs(&self) -> io::Result<Vec<OsString>> {
        match self {
            Self::System(fd) => super::list_xattrs(fd),
            Self::Library(inode) => inode.list_xattrs(),
        }
    }

    /// As [`super::get_xattr`].
    pub fn get_xattr(&self, name: &OsStr) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::System(fd) => super::get_xattr(fd, name),
            Self::Library(inode) => inode.get_xattr(name),
        }
    }

    /// As [`super::set_xattr`].
    pub fn set_xattr(&self, name: &OsStr, value: &[u8], how: SetXattr) -> io::Result<()> {
        match self {
            Self::System(fd) => super::set_xattr(fd, name, value, how),
            Self::Library(inode) => inode.set_xattr(name, value, how),
        }
    }

    /// As [`super::remove_xattr`].
    pub fn remove_xattr(&self, name: &OsStr) -> io::Result<()> {
        match self {
            Self::System(fd) => super::remove_xattr(fd, name),
            Self::Library(inode) => inode.remove_xattr(name),
        }
    }

    /// As [`super::wait_for_writers`]. A write to a library's file moves the times with each part
    /// that it writes, so there is nothing to wait for.
    pub fn wait_for_writers(&self) {
        if let Self::System(fd) = self {
            super::wait_for_writers(fd);
        }
    }
}

/// The result of `open` for a library's inode.
fn opened(mut inode: Box<dyn LibraryInode>, kind: NodeKind, flags: OFlags) -> io::Result<Inode> {
    let writes = matches!(flags & OFlags::RWMODE, OFlags::WRONLY | OFlags::RDWR);
    match kind {
        _ if flags.contains(OFlags::DIRECTORY) && kind != NodeKind::Directory => return Err(Errno::NOTDIR.into()),
        _ if flags.contains(OFlags::PATH) => return Ok(Inode::Library(inode)),
        NodeKind::Symlink => return Err(Errno::LOOP.into()),
        NodeKind::Directory if writes => return Err(Errno::ISDIR.into()),
        _ => {}
    }
    if flags.intersects(OFlags::SYNC | OFlags::DSYNC) {
        inode.write_through();
    }
    Ok(Inode::Library(inode))
}
