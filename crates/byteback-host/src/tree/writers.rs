//! Writes that are at work.
//!
//! A write moves a file's times when it begins, and may go on for long: a gigabyte in one call, a
//! slow disk. Who looks at the times, reads, and looks again has seen such a write in neither look,
//! and perhaps half of what it writes. Neither reading nor fsync waits for it everywhere.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;

use super::{remove_xattr, seek_data};

/// An attribute that no file has.
const ABSENT: &str = "user.byteback.absent";

/// Returns once the writes to what `fd` names that are at work have ended; an `O_PATH` descriptor
/// will do. A look at the times *before* this and one after the reading then show every change.
/// What nobody can wait for are asynchronous direct writes, and stores into mapped pages that are
/// not yet on the disk.
///
/// A write holds its inode from before it moves the times until its last byte. Here is asked for
/// what needs the inode alone: to take away an attribute that is not there, which changes nothing.
/// Whether that is allowed is found out behind the inode's lock; only a mount that is read-only for
/// us refuses before, and there is asked for the first data (not through `O_PATH`), for which most
/// file systems share the inode with readers and direct writes.
pub fn wait_for_writers(fd: impl AsFd) {
    if let Err(error) = remove_xattr(&fd, OsStr::new(ABSENT))
        && error.kind() == io::ErrorKind::ReadOnlyFilesystem
    {
        // Only the waiting counts.
        let _ = seek_data(&fd, 0);
    }
}
