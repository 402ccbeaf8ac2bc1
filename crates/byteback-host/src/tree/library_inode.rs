//! The inodes of a file system that is a library of this process, as a tree reaches them.
//!
//! A library implements [`LibraryInode`]; [`Inode`](super::Inode) calls it.

use std::any::Any;
use std::ffi::{OsStr, OsString};
use std::fmt::Debug;
use std::io;

use rustix::fs::{Dev, FallocateFlags, FileType, RenameFlags, StatVfs, Timestamps};

use super::stat::Stat;
use super::xattr::SetXattr;
use byteback_model::NodeKind;

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name, any bytes but `/` and NUL.
    pub name: OsString,
    /// The kind of file, if the file system reports it here; a hint, which may be outdated at once.
    pub kind_hint: Option<NodeKind>,
    /// The inode number; under a mount point, that of the directory below the mount.
    pub ino: u64,
    /// The position after this entry, to resume from.
    pub cookie: u64,
}

/// The user on whose behalf a library creates an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Creator {
    /// The owner of the new inode.
    pub uid: u32,
    /// Its group, unless its directory gives its own (a set-group-id bit).
    pub gid: u32,
    /// The permission bits to remove.
    pub umask: u32,
    /// Whether a requested set-group-id bit may stay.
    pub keeps_set_group_id: bool,
}

impl Creator {
    /// The credentials of this process, with every requested bit kept.
    #[must_use]
    pub fn process() -> Self {
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            umask: 0,
            keeps_set_group_id: true,
        }
    }
}

/// The inode to create.
#[derive(Clone, Copy, Debug)]
pub enum NewInode<'a> {
    /// A regular file, empty, with these permission bits.
    File(u32),
    /// A directory with these permission bits.
    Directory(u32),
    /// A symlink to this path.
    Symlink(&'a OsStr),
    /// A file of another kind with these permission bits; the device number counts for devices
    /// only.
    Special(FileType, u32, Dev),
}

/// An inode of a file system that is a library, held: it stays, also without a name, until this is
/// dropped.
///
/// Errors carry the number that the system's own file systems would answer.
#[expect(
    clippy::missing_errors_doc,
    reason = "what the system would answer, as the trait says"
)]
pub trait LibraryInode: Any + Debug + Send + Sync {
    /// `self`, for telling apart the inodes of different libraries.
    fn as_any(&self) -> &dyn Any;

    /// A second handle on the same inode.
    fn again(&self) -> io::Result<Box<dyn LibraryInode>>;

    /// Makes each later write through this handle durable before it returns, as with `O_SYNC`.
    fn write_through(&mut self);

    /// The inode's metadata.
    fn stat(&self) -> io::Result<Stat>;

    /// The metadata of the inode with this name in the directory.
    fn stat_at(&self, name: &OsStr) -> io::Result<Stat>;

    /// A handle on the inode with this name in the directory, and its metadata.
    fn look_up(&self, name: &OsStr) -> io::Result<(Box<dyn LibraryInode>, Stat)>;

    /// Creates an inode under a new name in the directory, and returns a handle on it.
    fn make(&self, name: &OsStr, new: NewInode<'_>, creator: Creator) -> io::Result<Box<dyn LibraryInode>>;

    /// Gives `inode` another name, in this directory.
    fn link(&self, name: &OsStr, inode: &dyn LibraryInode) -> io::Result<()>;

    /// Removes a name: that of an empty directory, or of another inode.
    fn unlink(&self, name: &OsStr, is_directory: bool) -> io::Result<()>;

    /// Moves a name.
    fn rename(&self, name: &OsStr, to: &dyn LibraryInode, to_name: &OsStr, flags: RenameFlags) -> io::Result<()>;

    /// Some names in the directory, from a position on; none only at the end.
    fn list(&self, cookie: u64, with_dots: bool) -> io::Result<Vec<Entry>>;

    /// The target of the symlink.
    fn read_link(&self) -> io::Result<OsString>;

    /// Reads: fewer bytes than asked only at the end.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes: fewer bytes than asked only without room for more.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<usize>;

    /// Sets the length.
    fn truncate(&self, len_bytes: u64) -> io::Result<()>;

    /// As `fallocate(2)`.
    fn allocate(&self, mode: FallocateFlags, offset: u64, len_bytes: u64) -> io::Result<()>;

    /// The first data, or the first hole, at or after `offset`; `None` if there is none before the
    /// end.
    fn seek(&self, offset: u64, to_data: bool) -> io::Result<Option<u64>>;

    /// Makes the inode and its name durable.
    fn sync(&self) -> io::Result<()>;

    /// Makes the whole file system durable.
    fn sync_all(&self) -> io::Result<()>;

    /// The free and total space.
    fn space(&self) -> io::Result<StatVfs>;

    /// Sets the owner, the group or both, and clears the set-id bits of a file.
    fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> io::Result<()>;

    /// Sets the permission bits.
    fn set_mode(&self, mode: u32) -> io::Result<()>;

    /// Sets times, `UTIME_NOW` and `UTIME_OMIT` included.
    fn set_times(&self, times: &Timestamps) -> io::Result<()>;

    /// The names of its extended attributes.
    fn list_xattrs(&self) -> io::Result<Vec<OsString>>;

    /// The value of an extended attribute, if present.
    fn get_xattr(&self, name: &OsStr) -> io::Result<Option<Vec<u8>>>;

    /// Sets an extended attribute.
    fn set_xattr(&self, name: &OsStr, value: &[u8], how: SetXattr) -> io::Result<()>;

    /// Removes an extended attribute.
    fn remove_xattr(&self, name: &OsStr) -> io::Result<()>;
}
