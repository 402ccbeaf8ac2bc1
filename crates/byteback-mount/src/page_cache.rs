//! Reads the bytes that the page cache holds, and nothing else.
//!
//! `RWF_NOWAIT` alone does not do: it does not wait for the disk, but where a page is missing it
//! starts reading it (seen on ext4 with kernel 6.18). So `cachestat` is asked first, which only
//! counts. It counts pages that are still being read, too: that is what `RWF_NOWAIT` is then for.
//! File systems that refuse that flag (tmpfs) are read plainly, since all is in memory.
//!
//! Before Linux 6.5 there is no `cachestat`: then `RWF_NOWAIT` has to do, and a miss costs the read
//! of a page. overlayfs keeps its pages under another inode, so that nothing ever seems to be in
//! memory: there only single pages of the kernel's are trimmed, which were mostly read a moment ago
//! because part of them was to be changed.
//!
//! Of a file that the kernel does not know (a library's) nothing is in its memory.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd};

use byteback_extents::ByteRange;
use byteback_host::tree::{Inode, stat_fd};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::live::{OVERLAYFS_TYPE, open_for_reading};
use crate::picture::read_exact_at;

/// The number of `cachestat` on every architecture but Alpha, where another call fails on these
/// arguments.
const SYS_CACHESTAT: libc::c_long = 451;

/// How often the kernel is asked to count before a count that is short is believed.
const COUNTS_MAX: u32 = 3;

/// The ranges of one change are read with the gaps between them if they lie this close together.
const AT_ONCE_LEN_BYTES_MAX: u64 = 64 << 10;

/// The range that holds these, if reading all of it at once costs less than each by itself.
#[must_use]
pub fn read_at_once(ranges: &[ByteRange]) -> Option<ByteRange> {
    let hull = ranges.iter().copied().reduce(ByteRange::hull)?;
    (hull.len_bytes() <= AT_ONCE_LEN_BYTES_MAX).then_some(hull)
}

/// A file that is read where that costs no reading from a disk.
pub struct CachedBytes<'a> {
    file: &'a Inode,
    /// The same file, where the descriptor itself cannot be read.
    reopened: Option<Inode>,
}

impl<'a> CachedBytes<'a> {
    /// The bytes of the file behind a descriptor, which need not be readable.
    #[must_use]
    pub fn of(file: &'a Inode) -> Self {
        Self { file, reopened: None }
    }

    /// The file, opened for reading.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn readable(&mut self) -> io::Result<&Inode> {
        match &mut self.reopened {
            Some(file) => Ok(file),
            none => Ok(none.insert(open_for_reading(self.file)?)),
        }
    }

    /// Bytes of the file; `None` unless all of them are in memory. A file that the kernel does not
    /// know is one of a volume, which reads what is overwritten anyway: it is read.
    pub fn read(&mut self, offset: u64, len_bytes: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(len_bytes).ok()?];
        let Some(descriptor) = self.file.descriptor() else {
            return read_exact_at(self.file, offset, &mut bytes).ok().map(|()| bytes);
        };
        let is_readable = |flags: OFlags| !flags.intersects(OFlags::WRONLY | OFlags::PATH);
        let file = match self.reopened.is_none() && fcntl_getfl(descriptor).is_ok_and(is_readable) {
            true => self.file,
            false => self.readable().ok()?,
        };
        (read_cached(file, offset, &mut bytes, false) == bytes.len()).then_some(bytes)
    }
}

/// The cached bytes at `offset`, to the front of `buffer`: how many there are without a gap. Less
/// at the end of the file. `is_single_page`: it is a page that the kernel hands on. The descriptor
/// must be readable, or nothing is found.
pub(crate) fn read_cached(file: &Inode, offset: u64, buffer: &mut [u8], is_single_page: bool) -> usize {
    let Some(file) = file.descriptor() else {
        return 0;
    };
    let flags = if may_be_cached(file, offset, buffer.len()) {
        ReadWriteFlags::NOWAIT
    } else if is_single_page && hides_its_cache(file) {
        ReadWriteFlags::empty()
    } else {
        return 0;
    };
    let mut filled: usize = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let at = offset.saturating_add(filled as u64);
        let read = match preadv2(file, &mut [IoSliceMut::new(rest)], at, flags) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => rustix::io::pread(file, rest, at),
            read => read,
        };
        match read {
            Ok(0) => break,
            Ok(count) => filled = filled.saturating_add(count),
            Err(Errno::INTR) => {}
            Err(_) => break,
        }
    }
    filled
}

/// Whether every page of the range is in memory; true if that cannot be asked.
///
/// If the kernel has to let another thread run while it counts, and had begun in the middle of a
/// large folio, then it goes on too far behind it and counts too little (the walk's pause adds the
/// folio's whole length; seen with kernel 6.18). So a count that is short, but not zero, is not
/// trusted at once.
fn may_be_cached(file: BorrowedFd<'_>, offset: u64, len_bytes: usize) -> bool {
    let page = rustix::param::page_size() as u64;
    let end = offset.saturating_add(len_bytes as u64);
    let pages = |end: u64| end.div_ceil(page).saturating_sub(offset / page);
    for _ in 0..COUNTS_MAX {
        let Some(cached) = cached_pages(file, offset, len_bytes as u64) else {
            return true;
        };
        // Beyond the end there are no pages.
        if cached >= pages(end) || cached > 0 && stat_fd(file).is_ok_and(|now| cached >= pages(end.min(now.size))) {
            return true;
        }
        if cached == 0 {
            return false;
        }
    }
    false
}

/// How many pages of the range the kernel counts as being in memory; nothing if it does not know
/// this call, or a sandbox refuses it.
fn cached_pages(file: BorrowedFd<'_>, offset: u64, len_bytes: u64) -> Option<u64> {
    #[repr(C)]
    struct Range {
        offset: u64,
        len_bytes: u64,
    }
    #[repr(C)]
    #[derive(Default)]
    struct Stat {
        cached: u64,
        dirty: u64,
        writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }
    let range = Range { offset, len_bytes };
    let mut stat = Stat::default();
    // SAFETY: both structures are what the call expects, and live while it lasts.
    let done = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_raw_fd(),
            std::ptr::from_ref(&range),
            std::ptr::from_mut(&mut stat),
            0,
        )
    };
    (done == 0).then_some(stat.cached)
}

/// Whether the pages of this file are not counted under its own name.
fn hides_its_cache(file: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|space| space.f_type == OVERLAYFS_TYPE)
}
