//! The calls into the kernel, behind a trait so that the logic is tested with answers that no real
//! kernel gives.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use byteback_host::tree::{Stat, stat_fd};

use super::answers::{EXTENT_LEN, STATUS_HEADER_LEN};
use byteback_checksums::source::{Result, SourceError, read_file_at};

const EXT4_MAGIC: i64 = 0xef53;

/// The kernel's interface for one open file.
pub(super) trait Kernel {
    fn stat(&self) -> io::Result<Stat>;

    /// The block length of the file system, which must be one whose addresses are those of its only
    /// device.
    fn block_len_bytes(&self) -> Result<u64>;

    /// The device mapper's status of the table of the device that has the file system.
    fn status(&self) -> Result<Vec<u8>>;

    /// The list of the file's extents from `from` on, and their number; 0 if there are none.
    fn extents(&self, from: u64) -> Result<(Vec<u8>, usize)>;

    /// Opens the device with the hashes (`MAJOR:MINOR`).
    fn open_hashes(&mut self, device: &str) -> Result<()>;

    /// Fills `buffer` from the device with the hashes, from `offset` on.
    fn read_hashes(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()>;
}

const DM_TABLE_STATUS: libc::Ioctl = 0xc138_fd0c;
/// Requests the table instead of the state.
const DM_STATUS_TABLE_FLAG: u32 = 1 << 4;
/// A table has some 500 bytes.
const STATUS_LEN: usize = 16 << 10;

const FS_IOC_FIEMAP: libc::Ioctl = 0xc020_660b;
const FIEMAP_LEN: usize = 32;
/// Extents requested at once.
const EXTENTS: usize = 512;

/// The kernel that we run on.
#[derive(Debug)]
pub(super) struct RealKernel<'file> {
    file: BorrowedFd<'file>,
    hashes: Option<File>,
}

impl<'file> RealKernel<'file> {
    pub(super) fn new(file: BorrowedFd<'file>) -> Self {
        Self { file, hashes: None }
    }
}

/// Calls ioctl `number`, again while a signal interrupts.
///
/// # Safety
/// `argument` points to the memory that the call reads and writes.
unsafe fn ioctl(file: BorrowedFd<'_>, number: libc::Ioctl, argument: *mut u8) -> io::Result<()> {
    loop {
        // SAFETY: as the caller promises.
        if unsafe { libc::ioctl(file.as_raw_fd(), number, argument) } >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn put<const LEN: usize>(bytes: &mut [u8], at: usize, value: [u8; LEN]) {
    if let Some(place) = bytes.get_mut(at..at + LEN) {
        place.copy_from_slice(&value);
    }
}

fn refused(what: &'static str) -> impl FnOnce(io::Error) -> SourceError {
    move |source| match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => SourceError::NeedsRoot,
        _ => SourceError::Io { what, source },
    }
}

impl Kernel for RealKernel<'_> {
    fn stat(&self) -> io::Result<Stat> {
        stat_fd(self.file)
    }

    fn block_len_bytes(&self) -> Result<u64> {
        let statfs = rustix::fs::fstatfs(self.file)
            .map_err(|errno| SourceError::io("query the type of the file system")(errno.into()))?;
        // The width of the fields differs between machines.
        #[allow(clippy::useless_conversion, clippy::unnecessary_cast)]
        let (magic, len) = (statfs.f_type as i64 & 0xffff_ffff, statfs.f_bsize as u64);
        match magic == EXT4_MAGIC {
            true => Ok(len),
            false => Err(SourceError::NotHere("only dm-verity devices with ext4 are supported")),
        }
    }

    fn status(&self) -> Result<Vec<u8>> {
        let dev = self
            .stat()
            .map_err(SourceError::io("identify the file's device"))?
            .identity()
            .dev;
        let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
        if !Path::new(&format!("/sys/dev/block/{major}:{minor}/dm")).exists() {
            return Err(SourceError::NotHere("the file's device is not a dm-verity device"));
        }
        let control = File::options().read(true).write(true).open("/dev/mapper/control");
        let control = control.map_err(refused("open /dev/mapper/control"))?;
        let mut answer = vec![0_u64; STATUS_LEN / 8];
        let bytes = answer.as_mut_ptr().cast::<u8>();
        let mut header = [0; STATUS_HEADER_LEN];
        put(&mut header, 0, 4_u32.to_ne_bytes());
        put(&mut header, 12, (STATUS_LEN as u32).to_ne_bytes());
        put(&mut header, 16, (STATUS_HEADER_LEN as u32).to_ne_bytes());
        put(&mut header, 28, DM_STATUS_TABLE_FLAG.to_ne_bytes());
        put(&mut header, 40, dev.to_ne_bytes());
        // SAFETY: both have as many bytes, and do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(header.as_ptr(), bytes, STATUS_HEADER_LEN) };
        // SAFETY: the call reads the header and writes as many bytes as its length says; `answer`
        // has them.
        unsafe { ioctl(control.as_fd(), DM_TABLE_STATUS, bytes) }.map_err(refused("query the device's table"))?;
        Ok(answer.iter().flat_map(|word| word.to_ne_bytes()).collect())
    }

    fn extents(&self, from: u64) -> Result<(Vec<u8>, usize)> {
        let mut answer = vec![0_u64; (FIEMAP_LEN + EXTENTS * EXTENT_LEN) / 8];
        let counts = [0, EXTENTS as u32].map(u32::to_ne_bytes);
        if let [start, len, _, count, ..] = &mut answer[..] {
            *start = from;
            *len = u64::MAX - from;
            *count = u64::from_ne_bytes(pair(counts[1], counts[0]));
        }
        let bytes = answer.as_mut_ptr().cast::<u8>();
        // SAFETY: the call reads the header and writes it and at most as many extents as it says;
        // `answer` has room for them.
        unsafe { ioctl(self.file, FS_IOC_FIEMAP, bytes) }.map_err(|source| match source.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::ENOTTY) => SourceError::NotHere("the file system does not list extents"),
            _ => SourceError::io("list the file's extents")(source),
        })?;
        let bytes: Vec<u8> = answer.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let count = bytes.get(20..).and_then(|count| count.first_chunk());
        let count = count.map_or(0, |count| u32::from_ne_bytes(*count)) as usize;
        Ok((bytes.get(FIEMAP_LEN..).unwrap_or_default().to_vec(), count))
    }

    fn open_hashes(&mut self, device: &str) -> Result<()> {
        const WHAT: &str = "open the device with the hashes";
        let about = std::fs::read_to_string(format!("/sys/dev/block/{device}/uevent")).map_err(refused(WHAT))?;
        let name = about.lines().find_map(|line| line.strip_prefix("DEVNAME="));
        let name = name.ok_or(SourceError::Missing("the device with the hashes has no name in /dev"))?;
        let file = File::open(Path::new("/dev").join(name)).map_err(refused(WHAT))?;
        let found = rustix::fs::fstat(&file)
            .map_err(|errno| SourceError::io(WHAT)(errno.into()))?
            .st_rdev;
        if format!("{}:{}", rustix::fs::major(found), rustix::fs::minor(found)) != device {
            return Err(SourceError::Missing(
                "the device that has the name of the device with the hashes is a different one",
            ));
        }
        self.hashes = Some(file);
        Ok(())
    }

    fn read_hashes(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let hashes = self
            .hashes
            .as_ref()
            .ok_or(SourceError::Missing("the device with the hashes is not open"))?;
        match read_file_at(hashes.as_fd(), offset, buffer)? == buffer.len() {
            true => Ok(()),
            false => Err(SourceError::Malformed(
                "the device with the hashes is shorter than its tree",
            )),
        }
    }
}

/// Concatenates two words.
fn pair(first: [u8; 4], second: [u8; 4]) -> [u8; 8] {
    let mut both = [0; 8];
    both[..4].copy_from_slice(&first);
    both[4..].copy_from_slice(&second);
    both
}
