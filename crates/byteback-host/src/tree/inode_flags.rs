//! Flags of an inode that forbid changes, as `chattr` sets them. While one is set, not even root
//! can write, rename, link or remove. So a restore sets them last, and clears them first on files
//! that it must change.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{IFlags, OFlags, ioctl_getflags, ioctl_setflags};

use super::stat::InodeFlags;
use super::{reopen, stat_fd, uninterrupted};
use byteback_model::NodeKind;

/// The flags of the file that a descriptor names; an `O_PATH` one will do. Asks the inode itself,
/// because a FUSE file system forwards that ioctl but reports no flags by `statx`. Falls back to
/// the flags of `statx` if the inode cannot be asked.
///
/// # Errors
/// The error of `statx`.
pub fn inode_flags(fd: impl AsFd) -> io::Result<InodeFlags> {
    let stat = stat_fd(&fd)?;
    // Opening any other kind of file has side effects.
    if !matches!(stat.kind, NodeKind::File | NodeKind::Directory) {
        return Ok(stat.inode_flags);
    }
    let asked = reopen(&fd, OFlags::RDONLY | OFlags::NONBLOCK).and_then(|fd| uninterrupted(|| ioctl_getflags(&fd)));
    Ok(asked.map_or(stat.inode_flags, |flags| InodeFlags::from_bits(flags.bits())))
}

/// Sets these flags of a file or directory and clears the other flags of this type; all others
/// stay. An `O_PATH` descriptor will do. Returns the previous flags.
///
/// # Errors
/// `PermissionDenied` without the capability `LINUX_IMMUTABLE`; `Unsupported` (`ENOTTY`,
/// `EOPNOTSUPP`) if the file system has no flags. Neither is reported if nothing has to change.
pub fn set_inode_flags(fd: impl AsFd, flags: InodeFlags) -> io::Result<InodeFlags> {
    let opened = reopen(&fd, OFlags::RDONLY | OFlags::NONBLOCK)?;
    let before = match uninterrupted(|| ioctl_getflags(&opened)) {
        Ok(before) => before,
        Err(_) if flags.is_empty() => return Ok(InodeFlags::NONE),
        Err(error) => return Err(error),
    };
    let had = InodeFlags::from_bits(before.bits());
    if had != flags {
        let kept = before.bits() & !had.bits();
        let after = IFlags::from_bits_retain(kept | flags.bits());
        uninterrupted(|| ioctl_setflags(&opened, after))?;
    }
    Ok(had)
}
