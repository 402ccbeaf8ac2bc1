//! The tracked directory as its own file system has it, whatever is mounted over parts of it.
//!
//! A disk that was mounted over a directory of the tree before the tree is mounted itself hides
//! what the log knows there. Programs are to see the disk. The log, readers that follow it, and
//! remote changes that are made here are about the folder's own files. So they reach the tree
//! through a mount that has no place and nothing mounted on it (`open_tree(2)`). That needs the
//! right to mount, and Linux 5.12; without it hidden files stay hidden, and [`hidden_in`] names the
//! mounts.
//!
//! Mount points keep their protection: the kernel refuses to rename or remove a mount point of its
//! own mount namespace, through whichever mount it is reached.
//!
//! **Not for every tree.** Network file systems mount parts of themselves when these are reached,
//! which is possible only in a mount that has a place: there the directory itself is taken unless
//! something is mounted over a part of it. Where another folder of ours lies in the tree, mounted
//! over itself, it is taken, too: the files that this hides change without passing the outer
//! folder's gate. If such a folder comes only after the outer one was opened,
//! [`folder_of_ours_in`] tells, and the outer one does not start.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use byteback_host::tree::{Inode, read_dir};
use rustix::fs::{CWD, Mode, OFlags, fstatfs, openat};
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::mount_table;

/// The types of file systems that mount parts of themselves, see `statfs(2)`: NFS, three of SMB,
/// two of AFS, autofs.
const MOUNTING_TYPES: [i64; 7] = [
    0x6969,
    0x517B,
    0xFF53_4D42,
    0xFE53_4D42,
    0x5346_414F,
    0x6B41_4653,
    0x0187,
];

/// A directory that is tracked.
#[derive(Debug)]
pub struct Root {
    /// An `O_PATH` descriptor of it, without what is mounted over parts of it where that is
    /// possible.
    pub inode: Inode,
    /// The same in its place, if that is another one: as long as this is open, the system refuses
    /// to unmount its file system.
    pub place: Option<OwnedFd>,
}

/// Opens `directory`, which is absolute and without symlinks, as the module says.
///
/// # Errors
/// The system's error for the directory.
pub fn open_root(directory: &Path) -> io::Result<Root> {
    let place = open_in_place(directory)?;
    Ok(match bare(&place, directory) {
        Some(bare) => Root {
            inode: bare.into(),
            place: Some(place),
        },
        None => Root {
            inode: place.into(),
            place: None,
        },
    })
}

/// The mount points over parts of `directory` that hide from this process what lies beneath: none
/// where [`open_root`] reaches it.
#[must_use]
pub fn hidden_in(directory: &Path) -> Vec<PathBuf> {
    let points = mount_table::hiding_below(directory);
    let is_reached = || open_in_place(directory).is_ok_and(|place| bare(&place, directory).is_some());
    match points.is_empty() || is_reached() {
        true => Vec::new(),
        false => points,
    }
}

fn open_in_place(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, directory, flags, Mode::empty())?)
}

/// A folder of ours that hides a part of `directory`, mounted over itself: its files change without
/// passing the gate of `directory`, so nothing may be claimed of them there.
#[must_use]
pub fn folder_of_ours_in(directory: &Path) -> Option<PathBuf> {
    let is_ours = |point: &PathBuf| mount_table::at(point).is_some_and(|mount| mount.directory == *point);
    mount_table::hiding_below(directory).into_iter().find(is_ours)
}

/// The directory that `place` names in a mount of its own. `None` if it is not wanted there, or
/// there is no way.
fn bare(place: &OwnedFd, directory: &Path) -> Option<OwnedFd> {
    let mounts_itself = || fstatfs(place).is_ok_and(|found| MOUNTING_TYPES.contains(&found.f_type));
    let is_hidden = || !mount_table::hiding_below(directory).is_empty();
    if folder_of_ours_in(directory).is_some() || (mounts_itself() && !is_hidden()) {
        return None;
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let bare = open_tree(place, c"", flags).ok()?;
    make_private(&bare).ok()?;
    // Security modules that judge by paths may not let it be used.
    let listed = read_dir(&bare, 0).ok()?.next();
    listed.is_none_or(|entry| entry.is_ok()).then_some(bare)
}

/// Lets nothing that is mounted elsewhere be mounted on a mount, too: on most systems mounts share
/// what is mounted on them.
#[allow(unsafe_code)]
fn make_private(mount: &OwnedFd) -> io::Result<()> {
    let wanted = libc::mount_attr {
        attr_set: 0,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    let descriptor = mount.as_raw_fd();
    // SAFETY: the call reads an empty path and `wanted`, whose size it is told; both outlive it.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            descriptor,
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const wanted,
            size_of::<libc::mount_attr>(),
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests;
