//! The calls into the kernel, behind a trait so that the logic can be tested against a simulated
//! file system.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use byteback_host::tree::{Stat, stat_fd};

use super::items::{FS_INFO_FLAGS_AT, FS_INFO_LEN, FS_INFO_WANTED};

/// A selection of items of a tree: all whose keys lie between (`objectid`, `item_type`,
/// `offset_min`) and (..., `offset_max`), both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Query {
    /// The tree's number; 0 for the subvolume of the open file.
    pub(crate) tree: u64,
    pub(crate) objectid: u64,
    pub(crate) item_type: u32,
    pub(crate) offset_min: u64,
    pub(crate) offset_max: u64,
}

/// The kernel's interface for one open file.
pub(crate) trait Kernel {
    fn stat(&self) -> io::Result<Stat>;

    /// `BTRFS_IOC_FS_INFO`.
    fn fs_info(&self) -> io::Result<[u8; FS_INFO_LEN]>;

    /// Makes all data written to the file before this call, by whatever means, visible in the file
    /// system's trees.
    fn flush(&self) -> io::Result<()>;

    /// `BTRFS_IOC_TREE_SEARCH_V2`: returns the number of items, and the items. As many as fit, from
    /// the first one on; none if there are none.
    fn search(&mut self, query: &Query) -> io::Result<(u32, &[u8])>;
}

/// Bytes of `struct btrfs_ioctl_search_args_v2` before the items.
const SEARCH_HEADER_LEN: usize = 112;

/// The offset of the number of items in it.
const SEARCH_COUNT_AT: usize = 64;

/// Bytes for items. The largest item has nearly 64 KiB, so one always fits.
const SEARCH_ITEMS_LEN: usize = 1 << 20;

const BTRFS_IOC_FS_INFO: libc::Ioctl = 0x8400_941f;
const BTRFS_IOC_TREE_SEARCH_V2: libc::Ioctl = 0xc070_9411;
const FS_IOC_FIEMAP: libc::Ioctl = 0xc020_660b;

/// Bytes of `struct fiemap` without extents.
const FIEMAP_LEN: usize = 32;
const FIEMAP_FLAG_SYNC: u32 = 1;

/// The kernel that we run on.
#[derive(Debug)]
pub(crate) struct RealKernel<'file> {
    file: BorrowedFd<'file>,
    /// `struct btrfs_ioctl_search_args_v2`; words, for its alignment.
    answer: Vec<u64>,
    /// Whether [`FS_IOC_FIEMAP`] waits until the trees show written data.
    fiemap_waits: bool,
}

impl<'file> RealKernel<'file> {
    pub(crate) fn new(file: BorrowedFd<'file>) -> Self {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        Self {
            file,
            answer: Vec::new(),
            fiemap_waits: is_at_least(&release, 6, 1),
        }
    }

    /// Calls ioctl `number`, again while a signal interrupts.
    ///
    /// # Safety
    /// `argument` points to the memory that the call reads and writes.
    unsafe fn ioctl(&self, number: libc::Ioctl, argument: *mut u8) -> io::Result<()> {
        loop {
            // SAFETY: as the caller promises.
            if unsafe { libc::ioctl(self.file.as_raw_fd(), number, argument) } >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// Whether a release such as "6.1.0-13-amd64" is this version or a later one. An unreadable release
/// is old.
fn is_at_least(release: &str, major: u32, minor: u32) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(has_major)), Some(Ok(has_minor))) => (has_major, has_minor) >= (major, minor),
        _ => false,
    }
}

impl Kernel for RealKernel<'_> {
    fn stat(&self) -> io::Result<Stat> {
        stat_fd(self.file)
    }

    fn fs_info(&self) -> io::Result<[u8; FS_INFO_LEN]> {
        let mut words = [0_u64; FS_INFO_LEN / 8];
        words[FS_INFO_FLAGS_AT / 8] = FS_INFO_WANTED;
        // SAFETY: the call reads and writes 1024 bytes, as its number says, and `words` has as
        // many.
        unsafe { self.ioctl(BTRFS_IOC_FS_INFO, words.as_mut_ptr().cast()) }?;
        let mut bytes = [0; FS_INFO_LEN];
        for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *bytes = word.to_ne_bytes();
        }
        Ok(bytes)
    }

    /// Two steps. `fsync` waits for running writes (they hold the inode) and writes the dirty data.
    /// Since Linux 5.10 it returns as soon as the data is on the disk and in the log, when the
    /// trees may still show the old extents (rare: tests with random files saw it once in about two
    /// thousand extractions). So FIEMAP is called with its sync flag, which since 6.1 waits for the
    /// trees, too. On older kernels the whole file system is synced, which always does.
    fn flush(&self) -> io::Result<()> {
        rustix::fs::fsync(self.file)?;
        if !self.fiemap_waits {
            return Ok(rustix::fs::syncfs(self.file)?);
        }
        // One byte and room for no extent: only the flag counts, and that is for the whole file.
        let mut fiemap = [0_u64; FIEMAP_LEN / 8];
        fiemap[1] = 1;
        let mut flags = [0; 8];
        flags[..4].copy_from_slice(&FIEMAP_FLAG_SYNC.to_ne_bytes());
        fiemap[2] = u64::from_ne_bytes(flags);
        // SAFETY: the call reads and writes `struct fiemap`, which has the length of `fiemap`; the
        // field that says how many extents follow is 0.
        unsafe { self.ioctl(FS_IOC_FIEMAP, fiemap.as_mut_ptr().cast()) }
    }

    fn search(&mut self, query: &Query) -> io::Result<(u32, &[u8])> {
        self.answer.resize((SEARCH_HEADER_LEN + SEARCH_ITEMS_LEN) / 8, 0);
        let types = {
            let mut types = [0; 8];
            types[..4].copy_from_slice(&query.item_type.to_ne_bytes());
            types[4..].copy_from_slice(&query.item_type.to_ne_bytes());
            u64::from_ne_bytes(types)
        };
        let count_max = {
            let mut count = [0; 8];
            count[..4].copy_from_slice(&u32::MAX.to_ne_bytes());
            u64::from_ne_bytes(count)
        };
        let header: [u64; SEARCH_HEADER_LEN / 8] = [
            query.tree,
            query.objectid,
            query.objectid,
            query.offset_min,
            query.offset_max,
            0,
            u64::MAX,
            types,
            count_max,
            0,
            0,
            0,
            0,
            SEARCH_ITEMS_LEN as u64,
        ];
        self.answer[..header.len()].copy_from_slice(&header);
        let argument = self.answer.as_mut_ptr().cast::<u8>();
        // SAFETY: the call reads the header and writes it and at most as many bytes behind it as
        // its last field says; `answer` has both.
        unsafe { self.ioctl(BTRFS_IOC_TREE_SEARCH_V2, argument) }?;
        // SAFETY: these are the bytes of `answer`, all of them initialized, and borrowed as long as
        // they are.
        let bytes = unsafe { std::slice::from_raw_parts(argument.cast_const(), SEARCH_HEADER_LEN + SEARCH_ITEMS_LEN) };
        let (header, items) = bytes.split_at(SEARCH_HEADER_LEN);
        let count = header[SEARCH_COUNT_AT..]
            .first_chunk()
            .map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        Ok((count, items))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_that_cannot_be_read_is_old() {
        for (release, is_new) in [
            ("6.1.0-13-amd64", true),
            ("6.18.44-fc", true),
            ("7.0", true),
            ("6.0.19", false),
            ("5.15.0-71-generic", false),
            ("10.0.0", true),
            ("6", false),
            ("", false),
            ("linux", false),
            ("99999999999999999999.1", false),
        ] {
            assert_eq!(is_at_least(release, 6, 1), is_new, "{release}");
        }
    }
}
