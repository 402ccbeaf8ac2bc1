//! Waiting for writes in progress.
//!
//! A write moves a file's times when it begins, and may last long: a gigabyte in one call, a slow
//! disk. A reader that checks the times, reads, and checks again sees such a write in neither
//! check, and perhaps reads half of its bytes. Neither reading nor fsync waits for it on all file
//! systems.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;

use super::{remove_xattr, seek_data};

/// An attribute that no file has.
const ABSENT: &str = "user.byteback.absent";

/// Returns once the writes in progress to the file that `fd` names have ended; an `O_PATH`
/// descriptor will do. Checking the times *before* this call and again after the reading then shows
/// every change. Two kinds cannot be waited for: asynchronous direct writes, and stores into mapped
/// pages that are not yet on the disk.
///
/// A write locks its inode from before it moves the times until its last byte. This call makes a
/// request that needs only that lock: removing an absent attribute, which changes nothing. The
/// kernel checks permissions for it after taking the lock; only a mount that is read-only for us
/// refuses earlier. In that case this seeks the first data (not through `O_PATH`), for which most
/// file systems lock the inode shared, with readers and direct writes.
pub fn wait_for_writers(fd: impl AsFd) {
    if let Err(error) = remove_xattr(&fd, OsStr::new(ABSENT))
        && error.kind() == io::ErrorKind::ReadOnlyFilesystem
    {
        // Only the waiting counts.
        let _ = seek_data(&fd, 0);
    }
}
