//! The ioctls of inode flags, translated.

use std::io;

use rustix::io::Errno;

use crate::inodes::InodeNumber;
use crate::tracked::InodeFlags;
use crate::tree::Tree;

/// `_IOR('f', 1, long)` and friends: the inode flags that `lsattr` and `chattr` show and set.
const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;

/// Answers an ioctl on a node, by the open file of it that has this handle; `ENOTTY` if it is
/// another one.
pub(super) fn ioctl(
    tree: &Tree,
    (node, handle): (InodeNumber, Option<u64>),
    cmd: u32,
    in_data: &[u8],
) -> io::Result<Vec<u8>> {
    let too_short = || io::Error::from(Errno::INVAL);
    match cmd {
        FS_IOC_GETFLAGS => Ok(tree.inode_flags(node, handle)?.to_ne_bytes().to_vec()),
        FS_IOC_SETFLAGS => {
            let raw = in_data.first_chunk().ok_or_else(too_short)?;
            let flags = InodeFlags::Word(u32::from_ne_bytes(*raw));
            tree.set_inode_flags(node, handle, flags).map(|()| Vec::new())
        }
        FS_IOC_FSGETXATTR => Ok(tree.inode_fsx(node, handle)?.to_vec()),
        FS_IOC_FSSETXATTR => {
            let raw = in_data.first_chunk().ok_or_else(too_short)?;
            tree.set_inode_flags(node, handle, InodeFlags::Extended(*raw))
                .map(|()| Vec::new())
        }
        _ => Err(Errno::NOTTY.into()),
    }
}
