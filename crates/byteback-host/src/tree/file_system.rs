//! Identifies the file system of a directory, stably across reboots and changed device names.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, ioctl, opcode};

/// The type of btrfs, see `statfs(2)`.
const BTRFS_TYPE: i64 = 0x9123_683E;

/// `struct fsuuid2` of `include/uapi/linux/fs.h`.
#[repr(C)]
#[derive(Clone, Copy)]
struct FsUuid {
    len: u8,
    uuid: [u8; 16],
}

#[allow(unsafe_code)]
fn uuid_of(directory: BorrowedFd<'_>) -> rustix::io::Result<FsUuid> {
    /// `FS_IOC_GETFSUUID` of the same file, since Linux 6.9.
    const GET_FS_UUID: Opcode = opcode::read::<FsUuid>(0x15, 0);
    // SAFETY: the call writes one `FsUuid` and reads nothing.
    unsafe { ioctl(directory, Getter::<GET_FS_UUID, FsUuid>::new()) }
}

/// A text that is the same for all directories of a file system during its life, and different for
/// other file systems: its UUID, and the subvolume on btrfs, whose inode numbers are its own.
/// `None` if the system does not report it. `directory` is open for reading.
pub(super) fn file_system_of(directory: BorrowedFd<'_>) -> io::Result<Option<String>> {
    let found = match uuid_of(directory) {
        Ok(found) => found,
        Err(Errno::NOTTY | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let uuid = found.uuid.get(..usize::from(found.len)).unwrap_or_default();
    if uuid.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let mut text: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    if rustix::fs::fstatfs(directory)?.f_type == BTRFS_TYPE {
        // Made of the UUID and the subvolume's number.
        text.push_str(&format!("-{:016x}", rustix::fs::fstatvfs(directory)?.f_fsid));
    }
    Ok(Some(text))
}
