//! Access to a directory tree of the machine through directory descriptors.
//!
//! A tracked folder lies below a descriptor, and everything in it is named by (directory
//! descriptor, single name). Nothing is ever opened by a path that was put together from pieces:
//! such a path can be longer than the kernel's `PATH_MAX`, means something else once a folder above
//! is renamed, and can be led out of the tree by a symlink put in its way. Names are bytes, not
//! text.
//!
//! Words: an *`O_PATH` descriptor* names a file without opening it (it works for sockets, for
//! devices without waking their driver, for symlinks and for files that we may not read);
//! [`reopen`] makes it a descriptor that reads or writes. A *cookie* is the position after a
//! directory entry, see [`ReadDir`].
//!
//! Trees that no kernel knows of, in a file system that is a library of this process, are reached
//! as those of the machine are: see [`Inode`].
//!
//! Errors here are the system's own numbers, not wrapped: a mount has to hand them to its caller as
//! they are. A name that is not a single component is refused with `InvalidInput`: it may come from
//! a server.
//!
//! Out of scope: caching, permissions on behalf of another user, anything recursive.

mod descent;
mod entries;
mod file_system;
mod inode;
mod inode_flags;
mod library_inode;
mod metadata;
mod ranges;
mod stat;
mod writers;
mod xattr;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path};

use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};
use rustix::io::Errno;

pub use descent::Descent;
pub use entries::{Entries, LibraryEntries, ReadDir, read_dir};
pub use inode::Inode;
pub use inode_flags::{inode_flags, set_inode_flags};
pub use library_inode::{Creator, Entry, LibraryInode, NewInode};
pub use metadata::{SetTime, set_mode, set_owner, set_times, timestamps};
pub use ranges::{DataRanges, FallocateFlags, copy_range, data_ranges, fallocate, punch_hole, seek_data, seek_hole};
pub use stat::{Identity, InodeFlags, Stat, clamped_ns, stat_at, stat_fd};
pub use writers::wait_for_writers;
pub use xattr::{SetXattr, get_xattr, list_xattrs, remove_xattr, set_xattr};

/// Refuses what is not a single name below a directory.
///
/// # Errors
/// `InvalidInput` for an empty name, `.`, `..`, or one that holds a slash or a NUL.
pub fn check_component(name: &OsStr) -> io::Result<&OsStr> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.iter().any(|byte| matches!(byte, 0 | b'/')) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("not a single file name: {name:?}"),
        ));
    }
    Ok(name)
}

/// Opens the directory `name` in `dir` for listing. A symlink is refused, also one to a directory.
///
/// # Errors
/// `NotADirectory` for anything else, symlinks included.
pub fn open_dir_at(dir: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    open_at(dir, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
}

/// Names `name` in `dir`, whatever it is, by an `O_PATH` descriptor; a symlink is named itself.
///
/// # Errors
/// The system's error.
pub fn open_path_at(dir: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    open_at(dir, name, OFlags::PATH, Mode::empty())
}

/// Opens `name` in `dir` with `flags`, never through a symlink; `mode` counts if `flags` create it.
///
/// # Errors
/// `FilesystemLoop` (`ELOOP`) if the name is a symlink and `flags` have no `O_PATH`; otherwise what
/// the system answered.
pub fn open_at(dir: impl AsFd, name: &OsStr, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    let name = check_component(name)?;
    uninterrupted(|| openat(dir.as_fd(), name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, mode))
}

/// Names what lies at the relative path `below` of `dir` by an `O_PATH` descriptor, walking one
/// component at a time: the path may have any length, and no symlink on it is followed (the last
/// component may be a symlink, which is then named itself). An empty path names `dir`.
///
/// # Errors
/// `InvalidInput` for an absolute path and for `..`; `NotADirectory` when a component on the way is
/// a symlink or a file; otherwise what the system answered.
pub fn open_beneath(dir: impl AsFd, below: &Path) -> io::Result<OwnedFd> {
    let mut at = open_dot(dir.as_fd())?;
    let mut components = below
        .components()
        .filter(|component| *component != Component::CurDir)
        .peekable();
    while let Some(component) = components.next() {
        let Component::Normal(name) = component else {
            let message = format!(
                "a path below a folder must not be absolute or contain '..': {}",
                below.display()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        };
        let on_the_way = components.peek().is_some() || below.as_os_str().as_bytes().ends_with(b"/");
        let flags = if on_the_way {
            OFlags::PATH | OFlags::DIRECTORY
        } else {
            OFlags::PATH
        };
        at = open_at(&at, name, flags, Mode::empty())?;
    }
    Ok(at)
}

/// Opens the file that `fd` names once more, with `flags` of its own: reads or writes what an
/// `O_PATH` descriptor only names, or gets a second, independent file position. Permissions are
/// checked anew. Needs `/proc`.
///
/// # Errors
/// `FilesystemLoop` (`ELOOP`) for a symlink; `Unsupported` without `/proc`; otherwise what the
/// system answered.
pub fn reopen(fd: impl AsFd, flags: OFlags) -> io::Result<OwnedFd> {
    // Borrowed, so that a descriptor given by value is still open when the link is followed.
    let path = proc_path(&fd);
    uninterrupted(|| openat(CWD, path.as_str(), flags | OFlags::CLOEXEC, Mode::empty())).map_err(explain_proc)
}

/// Where the symlink that the `O_PATH` descriptor `fd` names points to, as bytes.
///
/// # Errors
/// `NotFound` if it is not a symlink (so says the kernel for an empty name).
pub fn read_link_fd(fd: impl AsFd) -> io::Result<OsString> {
    let target = uninterrupted(|| readlinkat(fd.as_fd(), c"", Vec::new()))?;
    Ok(OsString::from_vec(target.into_bytes()))
}

/// The directory `dir` once more, by an `O_PATH` descriptor of its own.
fn open_dot(dir: impl AsFd) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match uninterrupted(|| openat(dir.as_fd(), c".", flags, Mode::empty())) {
        // "." is looked up in the directory, which needs search permission; the magic link does
        // not.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => reopen(dir, flags),
        done => done,
    }
}

/// The magic link that stands for `fd` in calls that accept no `O_PATH` descriptor. It names the
/// file itself, also after a rename or an unlink, and also when that file is a symlink. Of this
/// thread: one may have a table of its own.
fn proc_path(fd: impl AsFd) -> String {
    format!("/proc/thread-self/fd/{}", fd.as_fd().as_raw_fd())
}

/// A descriptor that we hold always has its magic link, so a missing one means a missing `/proc`.
fn explain_proc(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::NotFound && !Path::new("/proc/self/fd").exists() {
        return io::Error::new(io::ErrorKind::Unsupported, "/proc is not mounted; mount it");
    }
    error
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

#[cfg(test)]
mod tests;
