//! Inode flags (`lsattr`, `chattr`) and project ids, read from and set on the backing file.
//!
//! The kernel has checked that the caller may set them.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::PoisonError;

use byteback_host::tree::Inode;
use rustix::fs::OFlags;

use super::Tree;
use crate::inodes::InodeNumber;
use crate::tracked::{FSX_LEN_BYTES, InodeFlags, Object, descriptor};

const FS_IOC_GETFLAGS: libc::Ioctl = 0x8008_6601;
const FS_IOC_FSGETXATTR: libc::Ioctl = 0x801c_581f;

impl Tree {
    pub(crate) fn inode_flags(&self, node: InodeNumber, handle: Option<u64>) -> io::Result<u32> {
        self.with_open(node, handle, |_, fd| {
            let fd = descriptor(fd)?;
            let mut word: u64 = 0;
            // SAFETY: the kernel writes four or eight bytes into the eight that are there.
            if unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_GETFLAGS, &mut word) } < 0 {
                return Err(io::Error::last_os_error());
            }
            let [a, b, c, d, ..] = word.to_ne_bytes();
            Ok(u32::from_ne_bytes([a, b, c, d]))
        })
    }

    pub(crate) fn inode_fsx(&self, node: InodeNumber, handle: Option<u64>) -> io::Result<[u8; FSX_LEN_BYTES]> {
        self.with_open(node, handle, |_, fd| {
            let fd = descriptor(fd)?;
            let mut raw = [0; FSX_LEN_BYTES];
            // SAFETY: the kernel writes the 28 bytes that are part of the request's number.
            if unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_FSGETXATTR, raw.as_mut_ptr()) } < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(raw)
        })
    }

    pub(crate) fn set_inode_flags(&self, node: InodeNumber, handle: Option<u64>, flags: InodeFlags) -> io::Result<()> {
        self.with_open(node, handle, |object, fd| {
            self.tracked.set_inode_flags(object, fd, flags)?;
            // The change time has moved.
            self.attributes_changed(node);
            Ok(())
        })
    }

    /// Hands out a descriptor that is really open: that of the handle, or the directory opened
    /// anew.
    fn with_open<T>(
        &self,
        node: InodeNumber,
        handle: Option<u64>,
        with: impl FnOnce(Object, &Inode) -> io::Result<T>,
    ) -> io::Result<T> {
        let object = self.object(node)?;
        if let Some(file) = handle.and_then(|handle| self.handles.get(handle)) {
            return with(object, &file);
        }
        let dir = {
            let _names = self.renames.read().unwrap_or_else(PoisonError::into_inner);
            self.directory(node)?
        };
        let open = dir.reopen(OFlags::RDONLY | OFlags::DIRECTORY)?;
        with(object, &open)
    }
}
