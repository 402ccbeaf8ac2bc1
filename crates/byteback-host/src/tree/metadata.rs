//! Owner, permissions and times of the file that a descriptor names, set without opening it and
//! without following a symlink.
//!
//! Order for restoring all three: owner first (changing it clears the set-id bits), then
//! permissions, times last (everything else moves them). Extended attributes come between
//! permissions and times: an ACL rewrites the group bits, and a read-only file still takes
//! attributes.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid, chmodat, chownat, utimensat};
use rustix::io::Errno;

use super::{explain_proc, proc_path, uninterrupted};

/// The change of one of a file's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// Keeps the time.
    Keep,
    /// Sets this time, in nanoseconds since 1970; the file system rounds it down to its own
    /// precision.
    To(i128),
}

/// Sets the permission bits of what `fd` names (`0o7777` at most; an `O_PATH` descriptor will do).
///
/// # Errors
/// `Unsupported` (`EOPNOTSUPP`) for a symlink, which has none; otherwise what the system answered.
pub fn set_mode(fd: impl AsFd, mode: u32) -> io::Result<()> {
    let mode = Mode::from_raw_mode(mode & 0o7777);
    uninterrupted(|| match rustix::fs::fchmod(&fd, mode) {
        Err(Errno::BADF) => chmodat(CWD, proc_path(&fd).as_str(), mode, AtFlags::empty()),
        done => done,
    })
    .map_err(explain_proc)
}

/// Sets owner and group of what `fd` names, `None` to keep one; symlinks have owners too.
///
/// # Errors
/// `PermissionDenied` unless privileged (a group of one's own excepted); otherwise what the system
/// answered.
pub fn set_owner(fd: impl AsFd, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
    // The number -1 means "keep" to the kernel and belongs to no user.
    if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
        return Err(Errno::INVAL.into());
    }
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    uninterrupted(|| chownat(fd.as_fd(), c"", uid, gid, AtFlags::EMPTY_PATH))
}

/// Sets the time of the last read and the last change of what `fd` names; symlinks have times too.
///
/// # Errors
/// `PermissionDenied` unless it is the caller's; otherwise what the system answered.
pub fn set_times(fd: impl AsFd, atime: SetTime, mtime: SetTime) -> io::Result<()> {
    let times = timestamps(atime, mtime);
    uninterrupted(|| match rustix::fs::futimens(&fd, &times) {
        // Through the magic link: an empty path is accepted for times only since Linux 5.8, and not
        // with glibc's call.
        Err(Errno::BADF) => utimensat(CWD, proc_path(&fd).as_str(), &times, AtFlags::empty()),
        done => done,
    })
    .map_err(explain_proc)
}

/// Both times in the system's form.
#[must_use]
pub fn timestamps(atime: SetTime, mtime: SetTime) -> Timestamps {
    Timestamps {
        last_access: timespec(atime),
        last_modification: timespec(mtime),
    }
}

fn timespec(time: SetTime) -> Timespec {
    match time {
        SetTime::Keep => Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        // Nanoseconds count forward also before 1970.
        SetTime::To(ns) => Timespec {
            tv_sec: i64::try_from(ns.div_euclid(1_000_000_000)).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX }),
            // Less than a second.
            tv_nsec: ns.rem_euclid(1_000_000_000) as i64,
        },
    }
}
