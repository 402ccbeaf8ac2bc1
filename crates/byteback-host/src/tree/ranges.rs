//! Byte ranges of open files: where data is, holes, space, and copies.
//!
//! A file system may report written zeros as data and, without support for holes, the whole file; a
//! reported hole reads as zeros. `lseek` moves the position of the open file, which no code here
//! uses: all reads and writes pass their offsets. Give each thread that looks for data a descriptor
//! of its own only if it also uses positions.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{SeekFrom, copy_file_range, seek};
use rustix::io::{Errno, pread, pwrite};

use super::library_inode::LibraryInode;
use super::uninterrupted;

pub use rustix::fs::FallocateFlags;

/// How much is copied at once where the kernel cannot copy by itself.
const COPY_LEN_BYTES: usize = 256 * 1024;

/// Where the first data at or after `offset` begins, `None` if only a hole or the end follows.
///
/// # Errors
/// The system's error.
pub fn seek_data(fd: impl AsFd, offset: u64) -> io::Result<Option<u64>> {
    seek_to(fd, SeekFrom::Data(offset))
}

/// Where the first hole at or after `offset` begins; the end of the file counts as one. `None` if
/// `offset` is at or after the end.
///
/// # Errors
/// The system's error.
pub fn seek_hole(fd: impl AsFd, offset: u64) -> io::Result<Option<u64>> {
    seek_to(fd, SeekFrom::Hole(offset))
}

fn seek_to(fd: impl AsFd, to: SeekFrom) -> io::Result<Option<u64>> {
    match uninterrupted(|| seek(fd.as_fd(), to)) {
        Ok(at) => Ok(Some(at)),
        Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The ranges between `start` and `end` that hold data, in ascending order, neither empty nor
/// touching each other. Gaps are holes, or lie after the end of the file. Stops after the first
/// error.
pub fn data_ranges(fd: &impl AsFd, start: u64, end: u64) -> DataRanges<'_> {
    DataRanges {
        file: Seekable::System(fd.as_fd()),
        at: start,
        end,
        data_end: start,
    }
}

/// The iterator that [`data_ranges`] returns.
#[derive(Debug)]
pub struct DataRanges<'fd> {
    file: Seekable<'fd>,
    at: u64,
    end: u64,
    data_end: u64,
}

/// A file to search for data.
#[derive(Clone, Copy, Debug)]
enum Seekable<'file> {
    System(BorrowedFd<'file>),
    Library(&'file dyn LibraryInode),
}

impl Seekable<'_> {
    fn data(self, offset: u64) -> io::Result<Option<u64>> {
        match self {
            Self::System(fd) => seek_data(fd, offset),
            Self::Library(inode) => inode.seek(offset, true),
        }
    }

    fn hole(self, offset: u64) -> io::Result<Option<u64>> {
        match self {
            Self::System(fd) => seek_hole(fd, offset),
            Self::Library(inode) => inode.seek(offset, false),
        }
    }
}

impl<'file> DataRanges<'file> {
    pub(super) fn of_library(file: &'file dyn LibraryInode, start: u64, end: u64) -> Self {
        Self {
            file: Seekable::Library(file),
            at: start,
            end,
            data_end: start,
        }
    }
}

impl DataRanges<'_> {
    /// End of the data that the last range belongs to, possibly beyond the requested end: a caller
    /// with many small ranges of one file need not search the same hole again.
    #[must_use]
    pub fn data_end(&self) -> u64 {
        self.data_end
    }

    fn find_next(&mut self) -> io::Result<Option<Range<u64>>> {
        let Some(data) = self.file.data(self.at)? else {
            return Ok(None);
        };
        if data >= self.end {
            return Ok(None);
        }
        // No hole at all means that the file was cut in between: nothing is left there.
        let Some(hole) = self.file.hole(data)? else {
            return Ok(None);
        };
        if hole <= data {
            // The data vanished in between (a hole was punched); look on from just behind its
            // start.
            return Ok(Some(data..data));
        }
        self.data_end = hole;
        Ok(Some(data..hole.min(self.end)))
    }
}

impl Iterator for DataRanges<'_> {
    type Item = io::Result<Range<u64>>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.at < self.end {
            match self.find_next() {
                Ok(Some(range)) if range.is_empty() => self.at = range.start.saturating_add(1),
                Ok(Some(range)) => {
                    self.at = range.end;
                    return Some(Ok(range));
                }
                Ok(None) => self.at = self.end,
                Err(error) => {
                    self.at = self.end;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

/// Changes the space of `len_bytes` bytes from `offset` as `mode` says (`fallocate(2)`).
///
/// # Errors
/// `Unsupported` (`EOPNOTSUPP`) where the file system cannot; `StorageFull`; otherwise what the
/// system answered.
pub fn fallocate(fd: impl AsFd, mode: FallocateFlags, offset: u64, len_bytes: u64) -> io::Result<()> {
    uninterrupted(|| rustix::fs::fallocate(fd.as_fd(), mode, offset, len_bytes))
}

/// Turns `len_bytes` bytes from `offset` into zeros that take no space, as far as whole blocks
/// allow; the length of the file stays.
///
/// # Errors
/// As [`fallocate`]. An empty range is refused with `InvalidInput`.
pub fn punch_hole(fd: impl AsFd, offset: u64, len_bytes: u64) -> io::Result<()> {
    fallocate(
        fd,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        offset,
        len_bytes,
    )
}

/// Copies `len_bytes` bytes between two open files, inside the kernel or the file system where it
/// can (shared blocks, server-side copies), by reading and writing otherwise. Returns how many:
/// fewer only if `from` ends before. Holes may become written zeros; copy [`data_ranges`] to keep
/// them. The ranges must not overlap in one file.
///
/// # Errors
/// The system's error; any part may have been copied.
pub fn copy_range(from: impl AsFd, from_offset: u64, to: impl AsFd, to_offset: u64, len_bytes: u64) -> io::Result<u64> {
    let (from, to) = (from.as_fd(), to.as_fd());
    let mut copied = 0;
    while copied < len_bytes {
        let (mut read_at, mut write_at) = (from_offset.saturating_add(copied), to_offset.saturating_add(copied));
        let n = usize::try_from(len_bytes - copied).unwrap_or(usize::MAX);
        match copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), n) {
            // Zero also comes from file systems that claim a length they do not serve this way: ask
            // by reading.
            Ok(0) => break,
            Ok(done) => copied += done as u64,
            Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL | Errno::PERM) => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    if copied < len_bytes {
        let rest = len_bytes - copied;
        copied += copy_by_hand(
            from,
            from_offset.saturating_add(copied),
            to,
            to_offset.saturating_add(copied),
            rest,
        )?;
    }
    Ok(copied)
}

fn copy_by_hand(from: BorrowedFd<'_>, from_at: u64, to: BorrowedFd<'_>, to_at: u64, len_bytes: u64) -> io::Result<u64> {
    let mut buffer = vec![0; usize::try_from(len_bytes).unwrap_or(usize::MAX).min(COPY_LEN_BYTES)];
    let mut copied: u64 = 0;
    while copied < len_bytes {
        let n = usize::try_from(len_bytes - copied)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let window = buffer.get_mut(..n).unwrap_or_default();
        let read = uninterrupted(|| pread(from, &mut *window, from_at.saturating_add(copied)))?;
        let mut piece = window.get(..read).unwrap_or_default();
        if piece.is_empty() {
            break;
        }
        while !piece.is_empty() {
            let written = uninterrupted(|| pwrite(to, piece, to_at.saturating_add(copied)))?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            piece = piece.get(written..).unwrap_or_default();
            copied += written as u64;
        }
    }
    Ok(copied)
}
