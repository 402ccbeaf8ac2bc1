//! Files and block devices of the machine.
//!
//! Opening one for writing takes it exclusively: by `flock`, as long as the descriptor is open, and
//! for a device also by `O_EXCL`, which the kernel refuses while it is mounted or part of another
//! device. Several processes may read one that has no writer.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom, fallocate, flock, open, seek};
use rustix::io::{Errno, pwritev};
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

use super::{BLOCK_LEN_BYTES, BlockDevice, check_place};
use crate::error::context;

/// Maximum number of slices in one write call, the kernel's limit (`IOV_MAX`).
const SLICES_MAX: usize = 1024;

/// The access for which a device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading; no one may write it meanwhile.
    Read,
    /// Reading and writing; no one else may have it open.
    ReadWrite,
}

/// A device that is open elsewhere.
#[derive(Debug, thiserror::Error)]
#[error("{path:?} is in use; unmount it, or stop the program that has it open")]
pub struct DeviceInUse {
    /// The file or device, as the caller named it.
    pub path: String,
}

/// See the module. Bytes after the last whole block are not part of it.
#[derive(Debug)]
pub struct RealBlockDevice {
    file: File,
    len_blocks: u64,
    is_file: bool,
    /// The caller's name for it; only for messages.
    label: String,
}

impl RealBlockDevice {
    /// Opens an existing file or device.
    ///
    /// # Errors
    /// `NotFound`; `ResourceBusy` with [`DeviceInUse`] inside; `InvalidInput` for what is neither
    /// file nor device; otherwise what the system answered.
    pub fn open(path: impl AsRef<Path>, access: Access) -> io::Result<Self> {
        let path = path.as_ref();
        let label = path.display().to_string();
        let failed = |error: Errno| match error {
            Errno::BUSY | Errno::WOULDBLOCK => in_use(&label),
            error => context("open", &label, error.into()),
        };
        let flags = match access {
            Access::Read => OFlags::RDONLY,
            Access::ReadWrite => OFlags::RDWR,
        };
        // Of anything but a device it is not looked at twice: a pipe would wait for its other end.
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let mut fd = open(path, flags, Mode::empty()).map_err(failed)?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd).map_err(failed)?.st_mode);
        match kind {
            FileType::RegularFile => {}
            FileType::BlockDevice if access == Access::ReadWrite => {
                fd = open(path, flags | OFlags::EXCL, Mode::empty()).map_err(failed)?;
            }
            FileType::BlockDevice => {}
            _ => {
                let what = io::Error::new(io::ErrorKind::InvalidInput, "neither a file nor a block device");
                return Err(context("open", &label, what));
            }
        }
        let lock = match access {
            Access::Read => FlockOperation::NonBlockingLockShared,
            Access::ReadWrite => FlockOperation::NonBlockingLockExclusive,
        };
        flock(&fd, lock).map_err(failed)?;
        // Only seeking reports the size of a device.
        let len_bytes = seek(&fd, SeekFrom::End(0)).map_err(failed)?;
        Ok(Self {
            file: File::from(fd),
            len_blocks: len_bytes / BLOCK_LEN_BYTES as u64,
            is_file: kind == FileType::RegularFile,
            label,
        })
    }

    /// Makes a new file of holes and opens it.
    ///
    /// # Errors
    /// `AlreadyExists`; otherwise what the system answered, and there is no file then.
    pub fn create(path: impl AsRef<Path>, len_blocks: u64) -> io::Result<Self> {
        let path = path.as_ref();
        let label = path.display().to_string();
        let failed = |error: io::Error| context("create", &label, error);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|error| failed(error.into()))?;
        let make = || -> io::Result<Self> {
            let len_bytes = len_blocks
                .checked_mul(BLOCK_LEN_BYTES as u64)
                .ok_or(io::ErrorKind::FileTooLarge)?;
            flock(&fd, FlockOperation::NonBlockingLockExclusive)?;
            let file = File::from(rustix::io::dup(&fd)?);
            file.set_len(len_bytes)?;
            Ok(Self {
                file,
                len_blocks,
                is_file: true,
                label: label.clone(),
            })
        };
        make().map_err(|error| {
            let _ = std::fs::remove_file(path);
            failed(error)
        })
    }

    fn failed(&self, operation: &'static str) -> impl FnOnce(io::Error) -> io::Error + '_ {
        move |source| context(operation, &self.label, source)
    }

    fn at_byte(first: u64) -> u64 {
        first.saturating_mul(BLOCK_LEN_BYTES as u64)
    }
}

/// Not by `fallocate`: on a device that makes blocks read as zeros, which few can do but by writing
/// them.
#[allow(unsafe_code)]
fn discard_on_device(device: &File, start: u64, len_bytes: u64) -> rustix::io::Result<()> {
    /// `BLKDISCARD` of `include/uapi/linux/fs.h`.
    const BLKDISCARD: Opcode = opcode::none(0x12, 119);
    // SAFETY: the call reads where to begin and how far to go, 64 bits each, and nothing else.
    unsafe { ioctl(device, Setter::<BLKDISCARD, [u64; 2]>::new([start, len_bytes])) }
}

impl Drop for RealBlockDevice {
    fn drop(&mut self) {
        // A program that is just being started has the descriptor, too, until it execs: closing
        // would not be enough.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

fn in_use(label: &str) -> io::Error {
    let path = label.to_owned();
    io::Error::new(io::ErrorKind::ResourceBusy, DeviceInUse { path })
}

impl BlockDevice for RealBlockDevice {
    fn len_blocks(&self) -> u64 {
        self.len_blocks
    }

    fn read_blocks(&self, first: u64, blocks: &mut [u8]) -> io::Result<()> {
        check_place(self.len_blocks, first, blocks.len())?;
        self.file
            .read_exact_at(blocks, Self::at_byte(first))
            .map_err(self.failed("read"))
    }

    fn write_blocks(&self, first: u64, blocks: &[u8]) -> io::Result<()> {
        check_place(self.len_blocks, first, blocks.len())?;
        self.file
            .write_all_at(blocks, Self::at_byte(first))
            .map_err(self.failed("write"))
    }

    fn write_blocks_vectored(&self, first: u64, blocks: &[&[u8]]) -> io::Result<()> {
        let len_bytes = blocks.iter().map(|blocks| blocks.len()).sum();
        check_place(self.len_blocks, first, len_bytes)?;
        let mut at_byte = Self::at_byte(first);
        for some in blocks.chunks(SLICES_MAX) {
            let mut slices: Vec<IoSlice<'_>> = some.iter().map(|blocks| IoSlice::new(blocks)).collect();
            let mut rest = &mut slices[..];
            IoSlice::advance_slices(&mut rest, 0);
            while !rest.is_empty() {
                let written = match pwritev(&self.file, rest, at_byte) {
                    Ok(0) => return Err(self.failed("write")(io::ErrorKind::WriteZero.into())),
                    Ok(written) => written,
                    Err(Errno::INTR) => continue,
                    Err(error) => return Err(self.failed("write")(error.into())),
                };
                at_byte = at_byte.saturating_add(written as u64);
                IoSlice::advance_slices(&mut rest, written);
            }
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_data().map_err(self.failed("sync"))
    }

    fn discard(&self, first: u64, count: u64) -> io::Result<()> {
        let is_there = first.checked_add(count).is_some_and(|end| end <= self.len_blocks);
        if !is_there {
            check_place(self.len_blocks, self.len_blocks, BLOCK_LEN_BYTES)?;
        }
        let start = Self::at_byte(first);
        let len_bytes = count.saturating_mul(BLOCK_LEN_BYTES as u64);
        let discarded = match self.is_file {
            true => fallocate(
                &self.file,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                start,
                len_bytes,
            ),
            false => discard_on_device(&self.file, start, len_bytes),
        };
        match discarded {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            Err(error) => Err(self.failed("discard blocks of")(error.into())),
        }
    }
}
