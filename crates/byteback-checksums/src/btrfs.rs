//! The checksums that btrfs keeps of every sector of data, read through its tree search (SkySync
//! sections 3.1 and 3.4, which read them with btrfs-progs).
//!
//! Words: a *sector* is the unit that one checksum covers (4 KiB mostly); an *extent* is a stretch
//! of a file with one place on the disk; an *address* is btrfs's logical one. A *transaction*
//! collects changes of the trees until they are committed. The file system's *generation* is the
//! number of the current transaction, and an extent's is the number of the one that created it.
//!
//! ## When a checksum counts
//!
//! Btrfs never overwrites checksummed data in place: a changed sector gets a new extent, at a new
//! address or of a new generation. So it must be shown that the file still consists of the same
//! extents, and that the checksums are of those extents.
//!
//! 1. *Still*: the time of the last change is older than the resolution of the kernel's clock, so
//!    that a later change has another one. (A file that is written all the time never gets there:
//!    [`SourceError::Busy`].)
//! 2. *Flushed*: data that is only in memory has no checksums yet, and the trees show the previous
//!    state. [`Kernel::flush`] waits for running writes, writes dirty pages and waits until the
//!    trees show them. Identity, length and times are as in 1, or we begin anew.
//! 3. *Listed and scanned*, window by window: the list of extents, then their checksums by address.
//!    A freed address is reused only in a later transaction, so no scanned checksum belongs to
//!    another extent if the generation did not change between the list and the end of the scan. If
//!    it did, the window is repeated, smaller each time.
//! 4. *Flushed again, listed again* ([`Extraction::finish`]): the digest over all items of the list
//!    (place in the file, address, generation, inline content) is that of 3, and identity, length
//!    and times are those of 1. Otherwise: changed meanwhile.
//!
//! Step 4 alone sees every change of content: a write, also one through `mmap` or `O_DIRECT`, makes
//! a new extent; a hole that is punched, a truncation, a clone from elsewhere change the list.
//! Operations that move an extent without changing content (balance, defragmentation,
//! deduplication) change the list too, and cost another attempt. The times are the second witness:
//! they see a return to extents that were there before (a clone back from a snapshot).
//!
//! A last sector that is not full is read: a truncation leaves the bytes behind the new end on the
//! disk, and in its checksum, until the sector is written again.
//!
//! One change stays invisible: device memory that is written to through a pinned `mmap` page of the
//! file (RDMA) while the kernel believes the page to be clean. The kernel's own writeback does not
//! see it either, nor does any backup program.
//!
//! ## What it does not do
//!
//! Checksums of compressed extents are of the compressed bytes: they are not returned.
//! `BTRFS_IOC_GET_CSUMS` (Linux 7.2), which needs no root, is not used: as far as is known it
//! returns undefined bytes for sectors without a checksum, and no kernel to test on was at hand.
//! With the format's experimental second extent tree there are several checksum trees; sectors of
//! others than the first are unknown.

pub(crate) mod items;
mod kernel;
mod scan;
mod seal;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use byteback_extents::ByteRange;
use byteback_host::clock::Clock;
use byteback_host::tree::Stat;

use self::items::{Body, Extent, FsInfo, Items, Malformed};
use self::kernel::{Kernel, Query, RealKernel};
use self::scan::{Found, Wanted};
pub use self::seal::SealItems;
use crate::source::{
    Description, Extraction, FileChecksums, Layout, Result, Run, Source, SourceError, Stamp, Tail, Unknown,
    read_file_at, regular_file,
};

/// The file system type that `statfs` reports for btrfs.
const BTRFS_MAGIC: i64 = 0x9123_683e;

const EXTENT_DATA: u32 = 108;

/// Two changes of a file within this time may leave it with the same times: kernels stamp with the
/// tick of their clock, 10 ms at worst.
const TIME_GRAIN: Duration = Duration::from_millis(20);

/// The number of times that a file is given time to come to rest before it is reported as busy.
const STILL_ATTEMPTS: u32 = 5;

/// Limits of a window: extents, and bytes of data (which one extent more may exceed).
const WINDOW_EXTENTS: usize = 1 << 16;
const WINDOW_DATA_BYTES: u64 = 512 << 20;

/// The number of attempts at a window after a transaction ended meanwhile, each with an eighth of
/// the previous one's extents.
const WINDOW_ATTEMPTS: u32 = 6;

fn malformed(Malformed(what): Malformed) -> SourceError {
    SourceError::Malformed(what)
}

fn search_failed(source: io::Error) -> SourceError {
    match source.raw_os_error() {
        Some(libc::EPERM) => SourceError::NeedsRoot,
        Some(libc::ENOTTY | libc::EOPNOTSUPP) => SourceError::NotHere("the kernel has no tree search"),
        _ => SourceError::Io {
            what: "search the file system's trees",
            source,
        },
    }
}

/// The facts about the file system that an extraction needs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Filesystem {
    layout: Layout,
    sector_len: u32,
    node_len: u32,
}

impl Filesystem {
    fn sum_len(&self) -> usize {
        self.layout.kind.len_bytes()
    }

    /// At least the number of bytes of data that the longest checksum item covers.
    fn item_reach(&self) -> u64 {
        u64::from(self.node_len) / self.sum_len() as u64 * u64::from(self.sector_len)
    }
}

/// The work of an extraction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effort {
    /// Searches of the file's extents.
    pub list_searches: u64,
    /// Searches of checksums.
    pub sum_searches: u64,
    /// Windows that were repeated because a transaction ended meanwhile.
    pub windows_again: u64,
}

/// Begins an extraction from `file`, which is open for reading on btrfs. Waits a fraction of a
/// second at most for it to come to rest, and as long as it takes until its written data is on the
/// disk.
///
/// # Errors
/// [`SourceError::NotHere`] for anything that is not a regular file on btrfs;
/// [`SourceError::NeedsRoot`] without `CAP_SYS_ADMIN`; [`SourceError::Busy`] if it does not come to
/// rest.
pub fn begin<'file>(file: &'file impl AsFd, clock: &dyn Clock) -> Result<BtrfsExtraction<'file>> {
    let file = file.as_fd();
    refuse_others(file)?;
    Ok(BtrfsExtraction(Passage::begin(RealKernel::new(file), clock)?))
}

/// The description of the btrfs source.
pub const DESCRIPTION: Description = Description {
    name: "btrfs",
    coverage: "every written sector, except in compressed files, files without checksums (chattr +C) and \
               short files that are stored in the metadata, and except a last sector that is not full",
    cost: "a search of the file's extents and one of the checksum tree, 1 MiB of answers for each 256 Ki sectors; \
           dirty data is flushed first",
    permissions: "root (CAP_SYS_ADMIN)",
};

/// The number of attempts for a file that changes meanwhile.
const SOURCE_ATTEMPTS: u32 = 5;

/// An open file on btrfs, as a source.
pub struct BtrfsSource<'a> {
    file: BorrowedFd<'a>,
    clock: &'a dyn Clock,
}

impl<'a> BtrfsSource<'a> {
    /// The source for `file`, which is open for reading.
    ///
    /// # Errors
    /// As [`layout`].
    pub fn new(file: &'a impl AsFd, clock: &'a dyn Clock) -> Result<Self> {
        layout(file)?;
        Ok(Self {
            file: file.as_fd(),
            clock,
        })
    }
}

impl Source for BtrfsSource<'_> {
    fn description(&self) -> Description {
        DESCRIPTION
    }

    fn collect(&self) -> Result<FileChecksums> {
        FileChecksums::collect(SOURCE_ATTEMPTS, || begin(&self.file, self.clock))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        read_file_at(self.file, offset, buffer)
    }

    fn is_unchanged(&self, stamp: &Stamp) -> Result<bool> {
        is_unchanged(&self.file, stamp, self.clock)
    }
}

/// The checksums that the file system of `file` keeps, if this process may read them. Nothing is
/// written or waited for.
///
/// # Errors
/// [`SourceError::NotHere`] for anything that is not on btrfs; [`SourceError::NeedsRoot`] without
/// `CAP_SYS_ADMIN`.
pub fn layout(file: &impl AsFd) -> Result<Layout> {
    let file = file.as_fd();
    refuse_others(file)?;
    let mut kernel = RealKernel::new(file);
    let (filesystem, _) = ask(&kernel)?;
    may_search(&mut kernel)?;
    Ok(filesystem.layout)
}

/// Whether the file is still, to the byte, what an extraction with this stamp described. False if
/// that cannot be proven.
///
/// # Errors
/// As [`begin`].
pub fn is_unchanged(file: &impl AsFd, stamp: &Stamp, clock: &dyn Clock) -> Result<bool> {
    let extraction = begin(file, clock)?;
    if !extraction.0.is_of(stamp) {
        return Ok(false);
    }
    stamp.is_that_of(extraction.finish())
}

/// Refuses other file systems. The kernel itself reports the type, while the server of a FUSE file
/// system could answer an ioctl.
fn refuse_others(file: BorrowedFd<'_>) -> Result<()> {
    let statfs = rustix::fs::fstatfs(file)
        .map_err(|errno| SourceError::io("query the type of the file system")(errno.into()))?;
    // The width of the field differs between machines.
    #[allow(clippy::useless_conversion, clippy::unnecessary_cast)]
    let magic = statfs.f_type as i64 & 0xffff_ffff;
    match magic == BTRFS_MAGIC {
        true => Ok(()),
        false => Err(SourceError::NotHere("the file is not on btrfs")),
    }
}

/// A single pass over a file's checksums; see [`begin`].
#[derive(Debug)]
pub struct BtrfsExtraction<'file>(Passage<RealKernel<'file>>);

impl BtrfsExtraction<'_> {
    /// The work so far.
    #[must_use]
    pub fn effort(&self) -> Effort {
        self.0.effort
    }
}

impl Extraction for BtrfsExtraction<'_> {
    fn layout(&self) -> &Layout {
        self.0.layout()
    }

    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    fn next_run(&mut self) -> Result<Option<Run<'_>>> {
        self.0.next_run()
    }

    fn finish(self) -> Result<Stamp> {
        self.0.finish()
    }
}

/// The knowledge about a stretch: a [`Run`] with the place of the checksums instead of themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// The number of its first checksum.
    Sums(usize),
    Zeros,
    Unknown(Unknown),
}

/// The list of a file's extents, gone through once.
#[derive(Debug)]
struct List {
    /// The offset from which the next search goes on; `None`: everything was listed.
    from: Option<u64>,
    /// The end of the covered part of the file.
    end: u64,
    digest: blake3::Hasher,
}

impl List {
    fn new() -> Self {
        Self {
            from: Some(0),
            end: 0,
            digest: blake3::Hasher::new(),
        }
    }
}

#[derive(Debug)]
struct Passage<K> {
    kernel: K,
    filesystem: Filesystem,
    /// The file at rest.
    stat: Stat,
    list: List,
    /// The limit of extents in a window.
    extents_max: usize,
    /// The end of the windows so far.
    window_end: u64,
    /// The runs of the current window, ascending.
    runs: Vec<(ByteRange, Known)>,
    next: usize,
    found: Found,
    effort: Effort,
}

impl<K: Kernel> Passage<K> {
    fn begin(mut kernel: K, clock: &dyn Clock) -> Result<Self> {
        let (filesystem, _) = ask(&kernel)?;
        // Refuse a caller without permission before flushing anything to the disk on its behalf.
        may_search(&mut kernel)?;
        let stat = rest(&kernel, clock)?;
        Ok(Self {
            kernel,
            filesystem,
            stat,
            list: List::new(),
            extents_max: WINDOW_EXTENTS,
            window_end: 0,
            runs: Vec::new(),
            next: 0,
            found: Found::default(),
            effort: Effort::default(),
        })
    }

    /// Whether the stamp matches the file as `stat` shows it.
    fn is_of(&self, stamp: &Stamp) -> bool {
        Stamp {
            witness: stamp.witness,
            ..Stamp::of(&self.stat)
        } == *stamp
    }

    /// Lists the next extents and finds their checksums, within one transaction.
    fn next_window(&mut self) -> Result<()> {
        let mut extents_max = self.extents_max;
        for _ in 0..WINDOW_ATTEMPTS {
            let (_, before) = ask(&self.kernel)?;
            let mut list = List {
                digest: self.list.digest.clone(),
                ..self.list
            };
            let (mut extents, mut data_bytes) = (Vec::new(), 0);
            let mut note = |extent: Extent| {
                data_bytes += match extent.body {
                    Body::Data { .. } => extent.len_bytes,
                    _ => 0,
                };
                extents.push(extent);
                extents.len() < extents_max && data_bytes < WINDOW_DATA_BYTES
            };
            list_extents(
                &mut self.kernel,
                &self.filesystem,
                &self.stat,
                &mut list,
                &mut self.effort,
                &mut note,
            )?;
            self.find_sums(&extents)?;
            let (_, after) = ask(&self.kernel)?;
            if before == after {
                // A list that is exhausted leaves a hole up to the end.
                let end = match list.from {
                    Some(_) => list.end.min(self.stat.size),
                    None => self.stat.size,
                };
                self.describe(&extents, end)?;
                self.window_end = end;
                self.list = list;
                return Ok(());
            }
            self.effort.windows_again += 1;
            extents_max = (extents_max / 8).max(1);
        }
        Err(SourceError::Busy)
    }

    /// Finds the checksums of the extents that have some, in the order of `extents`.
    fn find_sums(&mut self, extents: &[Extent]) -> Result<()> {
        let sector_len = u64::from(self.filesystem.sector_len);
        let (mut wanted, mut count) = (Vec::new(), 0);
        for extent in extents {
            if let Body::Data { address } = extent.body {
                let sectors = sectors_in_file(extent, self.stat.size, sector_len);
                if sectors > 0 {
                    wanted.push(Wanted {
                        address,
                        end: address + sectors * sector_len,
                        first: count,
                    });
                    count += usize::try_from(sectors).unwrap_or(0);
                }
            }
        }
        self.found.reset(count, self.filesystem.sum_len());
        self.effort.sum_searches += scan::scan(&mut self.kernel, &self.filesystem, &mut wanted, &mut self.found)?;
        Ok(())
    }

    /// Makes the runs of a window that ends at `end`.
    fn describe(&mut self, extents: &[Extent], end: u64) -> Result<()> {
        let sector_len = u64::from(self.filesystem.sector_len);
        self.runs.clear();
        self.next = 0;
        let mut runs = Runs {
            runs: &mut self.runs,
            at: self.window_end,
            end,
            sector_len,
        };
        let mut first = 0_usize;
        for extent in extents {
            runs.up_to(extent.start, Known::Zeros);
            match extent.body {
                Body::Zeros => runs.up_to(extent.end(), Known::Zeros),
                Body::Unknown(why) => runs.up_to(extent.end(), Known::Unknown(why)),
                Body::Data { .. } => {
                    let sectors = sectors_in_file(extent, self.stat.size, sector_len);
                    let sectors = usize::try_from(sectors).unwrap_or(usize::MAX);
                    let is_present = self.found.is_present.get(first..first.saturating_add(sectors));
                    let is_present = is_present.ok_or(SourceError::Malformed("more sectors than were requested"))?;
                    let mut at = extent.start;
                    for same in is_present.chunk_by(|one, other| one == other) {
                        at += same.len() as u64 * sector_len;
                        let known = match same.first() {
                            Some(true) => Known::Sums(first),
                            _ => Known::Unknown(Unknown::NotSummed),
                        };
                        runs.up_to(at, known);
                        first += same.len();
                    }
                    runs.up_to(extent.end(), Known::Unknown(Unknown::Tail));
                }
            }
        }
        runs.up_to(end, Known::Zeros);
        Ok(())
    }

    /// Goes through the rest of the list without looking for checksums.
    fn list_rest(&mut self) -> Result<()> {
        list_extents(
            &mut self.kernel,
            &self.filesystem,
            &self.stat,
            &mut self.list,
            &mut self.effort,
            &mut |_| true,
        )
    }
}

impl<K: Kernel> Extraction for Passage<K> {
    fn layout(&self) -> &Layout {
        &self.filesystem.layout
    }

    fn len_bytes(&self) -> u64 {
        self.stat.size
    }

    fn next_run(&mut self) -> Result<Option<Run<'_>>> {
        while self.next >= self.runs.len() {
            if self.window_end >= self.stat.size {
                return Ok(None);
            }
            self.next_window()?;
        }
        let Some(&(range, known)) = self.runs.get(self.next) else {
            return Ok(None);
        };
        self.next += 1;
        Ok(Some(match known {
            Known::Zeros => Run::Zeros { range },
            Known::Unknown(why) => Run::Unknown { range, why },
            Known::Sums(first) => {
                let sum_len = self.filesystem.sum_len();
                let count = usize::try_from(self.filesystem.layout.block_count(range)).unwrap_or(usize::MAX);
                let sums = self.found.sums.get(first * sum_len..(first + count) * sum_len);
                Run::Sums {
                    range,
                    sums: sums.unwrap_or_default(),
                }
            }
        }))
    }

    fn finish(mut self) -> Result<Stamp> {
        self.list_rest()?;
        self.kernel.flush().map_err(SourceError::io("flush the file"))?;
        let mut list = List::new();
        list_extents(
            &mut self.kernel,
            &self.filesystem,
            &self.stat,
            &mut list,
            &mut self.effort,
            &mut |_| true,
        )?;
        let (before, after) = (self.list.digest.finalize(), list.digest.finalize());
        let stat = self.kernel.stat().map_err(SourceError::io("read the file's times"))?;
        if before != after || !is_same(&self.stat, &stat) {
            return Err(SourceError::ChangedMeanwhile);
        }
        Ok(Stamp {
            witness: *after.as_bytes(),
            ..Stamp::of(&stat)
        })
    }
}

/// Checks that searching is allowed, by searching for nothing.
fn may_search(kernel: &mut impl Kernel) -> Result<()> {
    let nothing = Query {
        tree: 0,
        objectid: u64::MAX,
        item_type: EXTENT_DATA,
        offset_min: u64::MAX,
        offset_max: u64::MAX,
    };
    kernel.search(&nothing).map_err(search_failed)?;
    Ok(())
}

/// Asks for the properties of the file system and its generation.
fn ask(kernel: &impl Kernel) -> Result<(Filesystem, u64)> {
    let bytes = kernel.fs_info().map_err(|source| match source.raw_os_error() {
        Some(libc::ENOTTY | libc::EOPNOTSUPP) => SourceError::NotHere("the file is not on btrfs"),
        _ => SourceError::io("query the file system")(source),
    })?;
    let info = FsInfo::parse(&bytes).map_err(malformed)?;
    let info = info.ok_or(SourceError::NotHere("the kernel does not report the kind of checksums"))?;
    let filesystem = Filesystem {
        layout: Layout {
            kind: info.kind,
            salt: Vec::new(),
            block_len: info.sector_len,
            tail: Tail::ZeroPadded,
        },
        sector_len: info.sector_len,
        node_len: info.node_len,
    };
    Ok((filesystem, info.generation))
}

/// Waits until the file's times would show any further change, and its trees show all previous
/// ones.
fn rest(kernel: &impl Kernel, clock: &dyn Clock) -> Result<Stat> {
    let ask = || regular_file(kernel.stat());
    let grain_ns = i64::try_from(TIME_GRAIN.as_nanos()).unwrap_or(i64::MAX);
    for _ in 0..STILL_ATTEMPTS {
        let before = ask()?;
        if clock.now_ns().saturating_sub(before.ctime_ns) <= grain_ns {
            clock.sleep(TIME_GRAIN + Duration::from_millis(1));
            continue;
        }
        kernel.flush().map_err(SourceError::io("flush the file"))?;
        if is_same(&before, &ask()?) {
            return Ok(before);
        }
    }
    Err(SourceError::Busy)
}

/// Whether the content did not change between the two.
fn is_same(one: &Stat, other: &Stat) -> bool {
    Stamp::of(one) == Stamp::of(other)
}

/// The number of sectors of an extent of data that lie wholly in a file of this length.
fn sectors_in_file(extent: &Extent, len_bytes: u64, sector_len: u64) -> u64 {
    extent.end().min(len_bytes).saturating_sub(extent.start) / sector_len
}

/// Passes the extents that `list` has not reached yet to `note`, until `note` returns that it has
/// enough.
fn list_extents(
    kernel: &mut impl Kernel,
    filesystem: &Filesystem,
    stat: &Stat,
    list: &mut List,
    effort: &mut Effort,
    note: &mut dyn FnMut(Extent) -> bool,
) -> Result<()> {
    while let Some(from) = list.from {
        let query = Query {
            tree: 0,
            objectid: stat.ino,
            item_type: EXTENT_DATA,
            offset_min: from,
            offset_max: u64::MAX,
        };
        let (count, bytes) = kernel.search(&query).map_err(search_failed)?;
        effort.list_searches += 1;
        if count == 0 {
            list.from = None;
        }
        for item in Items::new(bytes, count) {
            let item = item.map_err(malformed)?;
            if item.objectid != stat.ino
                || item.item_type != EXTENT_DATA
                || list.from.is_none_or(|from| item.offset < from)
            {
                return Err(SourceError::Malformed("a file extent that was not requested"));
            }
            let extent = Extent::parse(item.offset, item.body, filesystem.sector_len).map_err(malformed)?;
            if extent.start < list.end {
                // No state of a file looks like this: one was written while another one was read.
                return Err(SourceError::ChangedMeanwhile);
            }
            list.end = extent.end();
            list.from = item.offset.checked_add(1);
            list.digest.update(&item.offset.to_le_bytes());
            list.digest.update(&(item.body.len() as u64).to_le_bytes());
            list.digest.update(item.body);
            if !note(extent) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The runs of a window while they are collected.
struct Runs<'a> {
    runs: &'a mut Vec<(ByteRange, Known)>,
    at: u64,
    end: u64,
    sector_len: u64,
}

impl Runs<'_> {
    /// `known` applies from the end of the last run up to `end`. Anything behind the window does
    /// not count.
    fn up_to(&mut self, end: u64, known: Known) {
        let Some(range) = ByteRange::new(self.at, end.min(self.end)) else {
            return;
        };
        self.at = range.end();
        // Neighbours of one kind are one run; checksums follow each other as their sectors do.
        if let Some((last, before)) = self.runs.last_mut() {
            let is_same = match (*before, known) {
                (Known::Sums(first), Known::Sums(next)) => {
                    first as u64 + last.len_bytes().div_ceil(self.sector_len) == next as u64
                }
                (before, known) => before == known,
            };
            if is_same {
                *last = last.hull(range);
                return;
            }
        }
        self.runs.push((range, known));
    }
}

#[cfg(test)]
mod tests;
