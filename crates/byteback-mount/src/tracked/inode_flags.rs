//! Setting inode flags (`chattr`) and project ids on the backing file.
//!
//! The backing file system refuses flags that it does not know.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use byteback_host::tree::Inode;
use rustix::io::Errno;

/// The layout of `struct fsxattr`.
pub(crate) const FSX_LEN_BYTES: usize = 28;

/// The value of an inode's flags, in one of its two forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InodeFlags {
    /// The word of `FS_IOC_SETFLAGS`.
    Word(u32),
    /// The `struct fsxattr` of `FS_IOC_FSSETXATTR`, as the program passed it.
    Extended([u8; FSX_LEN_BYTES]),
}

const FS_IOC_SETFLAGS: libc::Ioctl = 0x4008_6602;
const FS_IOC_FSSETXATTR: libc::Ioctl = 0x401c_5820;

/// Sets the flags of what `fd` has open.
///
/// # Errors
/// `ENOTTY` or `EOPNOTSUPP` if the file system has no such flags; otherwise what the system
/// answered.
pub(crate) fn set_flags(fd: &Inode, flags: InodeFlags) -> io::Result<()> {
    let fd = descriptor(fd)?;
    let done = match flags {
        // The call is declared with a long but reads an int; eight bytes suit both. SAFETY: the
        // argument points to at least as many readable bytes as the kernel reads for this request.
        InodeFlags::Word(word) => unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_SETFLAGS, &u64::from(word)) },
        // SAFETY: as above; the array has the size that is part of the request's number.
        InodeFlags::Extended(raw) => unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_FSSETXATTR, raw.as_ptr()) },
    };
    if done < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// The descriptor to make an ioctl on; a library's inode has none.
pub(crate) fn descriptor(inode: &Inode) -> io::Result<BorrowedFd<'_>> {
    inode.descriptor().ok_or_else(|| Errno::NOTTY.into())
}
