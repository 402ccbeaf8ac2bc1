//! The calls into the kernel, behind a trait so that the logic is tested with answers that no real
//! kernel gives.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use byteback_host::tree::{Stat, stat_fd};

use super::descriptor::DESCRIPTOR_LEN;
use byteback_checksums::btrfs::SealItems;
use byteback_checksums::source::{Result, SourceError};

/// The `statfs` types of the file systems that are known to keep sealed files unchanged.
const EXT4_MAGIC: i64 = 0xef53;
const F2FS_MAGIC: i64 = 0xf2f5_2010;
const BTRFS_MAGIC: i64 = 0x9123_683e;

/// The hash of a sealed file's descriptor, which the kernel uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Measured {
    pub(super) algorithm: u16,
    pub(super) digest: Vec<u8>,
}

/// The kernel's interface for one open file.
pub(super) trait Kernel {
    fn stat(&self) -> io::Result<Stat>;

    /// `FS_IOC_MEASURE_VERITY`.
    fn measure(&self) -> io::Result<Measured>;

    /// The descriptor, without a signature.
    fn descriptor(&mut self, bytes: &mut [u8; DESCRIPTOR_LEN]) -> io::Result<()>;

    /// Reads bytes of the tree from `offset` on, as many as there are and fit, or fewer; none
    /// behind its end.
    fn tree(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
}

const FS_IOC_MEASURE_VERITY: libc::Ioctl = 0xc004_6686;
const FS_IOC_READ_VERITY_METADATA: libc::Ioctl = 0xc028_6687;

const TYPE_TREE: u64 = 1;
const TYPE_DESCRIPTOR: u64 = 2;

/// Limit of a hash's length.
const DIGEST_LEN_MAX: usize = 64;

/// `struct fsverity_digest` with room behind it.
#[repr(C)]
struct Digest {
    algorithm: u16,
    len: u16,
    digest: [u8; DIGEST_LEN_MAX],
}

/// `struct fsverity_read_metadata_arg`.
#[repr(C)]
struct Wanted {
    metadata_type: u64,
    offset: u64,
    len: u64,
    buffer: u64,
    reserved: u64,
}

/// The kernel that we run on.
#[derive(Debug)]
pub(super) struct RealKernel<'file> {
    file: BorrowedFd<'file>,
    /// The items that have the tree on btrfs.
    items: Option<SealItems<'file>>,
}

impl<'file> RealKernel<'file> {
    pub(super) fn new(file: BorrowedFd<'file>) -> Result<Self> {
        let statfs = rustix::fs::fstatfs(file)
            .map_err(|errno| SourceError::io("query the type of the file system")(errno.into()))?;
        // The width of the field differs between machines.
        #[allow(clippy::useless_conversion, clippy::unnecessary_cast)]
        let magic = statfs.f_type as i64 & 0xffff_ffff;
        match magic {
            EXT4_MAGIC | F2FS_MAGIC => Ok(Self { file, items: None }),
            BTRFS_MAGIC => Ok(Self {
                file,
                items: Some(SealItems::new(file)),
            }),
            _ => Err(SourceError::NotHere("the file is not on ext4, F2FS or btrfs")),
        }
    }

    fn read(&self, metadata_type: u64, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut wanted = Wanted {
            metadata_type,
            offset,
            len: buffer.len() as u64,
            buffer: buffer.as_mut_ptr() as u64,
            reserved: 0,
        };
        loop {
            // SAFETY: the call reads `wanted`, which has the length that its number says, and
            // writes at most `len` bytes to `buffer`, which has as many.
            let read = unsafe { libc::ioctl(self.file.as_raw_fd(), FS_IOC_READ_VERITY_METADATA, &raw mut wanted) };
            match usize::try_from(read) {
                Ok(read) => return Ok(read.min(buffer.len())),
                Err(_) => retry()?,
            }
        }
    }
}

/// The last error, unless a signal interrupted.
fn retry() -> io::Result<()> {
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        _ => Err(error),
    }
}

impl Kernel for RealKernel<'_> {
    fn stat(&self) -> io::Result<Stat> {
        stat_fd(self.file)
    }

    fn measure(&self) -> io::Result<Measured> {
        let mut digest = Digest {
            algorithm: 0,
            len: DIGEST_LEN_MAX as u16,
            digest: [0; DIGEST_LEN_MAX],
        };
        // SAFETY: the call reads the header and writes it and at most `len` bytes behind it;
        // `digest` has both.
        while unsafe { libc::ioctl(self.file.as_raw_fd(), FS_IOC_MEASURE_VERITY, &raw mut digest) } < 0 {
            retry()?;
        }
        let known = digest.digest.get(..usize::from(digest.len)).unwrap_or_default();
        Ok(Measured {
            algorithm: digest.algorithm,
            digest: known.to_vec(),
        })
    }

    fn descriptor(&mut self, bytes: &mut [u8; DESCRIPTOR_LEN]) -> io::Result<()> {
        let len = match &mut self.items {
            Some(items) => items.descriptor(bytes)?,
            None => self.read(TYPE_DESCRIPTOR, 0, bytes)?,
        };
        match len == DESCRIPTOR_LEN {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the descriptor is too short",
            )),
        }
    }

    fn tree(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.items {
            Some(items) => items.tree(offset, buffer),
            None => self.read(TYPE_TREE, offset, buffer),
        }
    }
}
