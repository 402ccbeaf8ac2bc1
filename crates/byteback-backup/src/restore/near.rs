//! zsync's method for a file: blocks that this machine has already are not fetched.
//!
//! 1. The server's signature of the content is fetched.
//! 2. The file is made under its partial name ([`partial_name`]), in which an interrupted run may
//!    have left something: blocks that are in their places already stay.
//! 3. The file that is to be replaced is rolled over ([`ReverseFinder`], with the roles exchanged:
//!    the server's content is the new one), and blocks that it has are copied.
//! 4. The missing blocks are fetched, in ranges.
//! 5. Unless all was fetched, the whole is compared with a second signature, of long blocks and
//!    whole checksums under another key. If it differs (the old file changed meanwhile, or chance),
//!    the whole is fetched.
//!
//! Local bytes are never trusted, whatever the file is called. A partial file is locked while it is
//! being made: of two pulls into one directory, the second makes its own. After a failure it stays
//! for the next run.
//!
//! Memory: the signature, at most some 50 MB for any file, and a block.

use super::Restore;
use super::file::{FileError, FileJob, fetch_range};
use super::pull::{Rules, partial_name};
use crate::error::BackupError;
use crate::monitor::{Event, check_cancelled};
use crate::same_content::{BLOCK_LEN, Beside, proving};
use byteback_delta::find::{BlockIndex, ReverseFinder};
use byteback_delta::signature::{BLOCKS_MAX, Signature, SignatureRequest};
use byteback_extents::ByteRange;
use byteback_host::tree::{self};
use byteback_model::NodeKind;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

/// Missing ranges that are nearer to each other are fetched as one: a request costs about as much.
const JOINED_GAP_MIN: u64 = 32 * 1024;

/// Most ranges in which a file is fetched.
const RANGES_MAX: usize = 256;

/// Bytes read at once.
const BUFFER_LEN: usize = 256 * 1024;

/// A signature has at most one block per this number of bytes.
const BYTES_PER_BLOCK_MIN: u64 = 64;

/// Opens the partial file of a name for this run alone; `None` if another run has it.
pub(super) fn open_partial(dir: &OwnedFd, job: &FileJob) -> io::Result<Option<(OsString, File)>> {
    let name = partial_name(&job.place.name);
    let flags = OFlags::RDWR | OFlags::CREATE;
    let mode = Mode::RUSR | Mode::WUSR;
    let open = || -> io::Result<File> { Ok(File::from(tree::open_at(dir, &name, flags, mode)?)) };
    let is_ours = |file: &File| -> io::Result<bool> {
        let stat = tree::stat_fd(file)?;
        Ok(stat.kind == NodeKind::File && stat.nlink == 1)
    };
    // The name is taken by something else, or the left file has attributes that keep us out.
    let file = match open() {
        Ok(file) if is_ours(&file)? => file,
        _ => {
            match rustix::fs::unlinkat(dir, name.as_os_str(), AtFlags::empty()) {
                Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
            open()?
        }
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    }
    // Between opening and locking, another run may have given it its own name.
    let named = tree::stat_at(dir, &name)
        .is_ok_and(|named| tree::stat_fd(&file).is_ok_and(|opened| opened.identity() == named.identity()));
    Ok(named.then_some((name, file)))
}

/// Makes `file` the content of `job`, using the bytes that `file` and `old` have already; returns
/// the number of bytes written.
pub(super) fn fetch_near(
    restore: &Restore<'_>,
    rules: &Rules<'_>,
    job: &FileJob,
    file: &File,
    old: Option<&File>,
) -> Result<u64, FileError> {
    let len_before = file.metadata()?.len();
    if len_before > 0 || old.is_some() {
        let blocks_max = (job.node.attributes.size / BYTES_PER_BLOCK_MIN).min(BLOCKS_MAX);
        let request = SignatureRequest::default();
        // After any error, fetching the whole is right, or shows that the server is gone.
        if let Ok(signature) = restore
            .server
            .signature(restore.folder, job.node.id, restore.at, &request, blocks_max)
        {
            let written = assemble(restore, rules, job, file, old, signature)?;
            if let Some(written) = written {
                return Ok(written);
            }
        }
    }
    file.set_len(0)?;
    fetch_range(restore, job, file, ByteRange::new(0, job.node.attributes.size))
}

/// Does steps 2 to 5 of the header; `None` if the result is not the content.
fn assemble(
    restore: &Restore<'_>,
    rules: &Rules<'_>,
    job: &FileJob,
    file: &File,
    old: Option<&File>,
    signature: Signature,
) -> Result<Option<u64>, FileError> {
    let size = job.node.attributes.size;
    if signature.content_len_bytes() != size {
        return Err(FileError::All(BackupError::hostile(format!(
            "the signature of file {} does not cover the {size} bytes that were announced",
            job.node.id
        ))));
    }
    file.set_len(size)?;
    let index = BlockIndex::new(signature);
    let mut blocks = Blocks::new(&index, size);
    let resumed = blocks.find_in_place(restore, file)?;
    let mut written = 0;
    if let Some(old) = old.filter(|_| !blocks.is_complete()) {
        written += blocks.copy_from(restore, old, file)?;
    }
    {
        let mut counts = rules.counts();
        counts.resumed_bytes += resumed;
        counts.found_bytes += written;
    }
    let missing = blocks.missing();
    let fetched: u64 = missing.iter().map(|range| range.len_bytes()).sum();
    for range in missing {
        // The server does not send zeros.
        make_zero(file, range)?;
        written += fetch_range(restore, job, file, Some(range))?;
    }
    if fetched < size && !is_whole(restore, job, file)? {
        let message = format!(
            "'{}' could not be rebuilt from the files here; fetching all of it",
            byteback_model::ByteString::from(job.place.path())
        );
        restore.monitor.event(Event::Warning(&message));
        return Ok(None);
    }
    Ok(Some(written))
}

/// The blocks of the new content that the file has.
struct Blocks<'i> {
    index: &'i BlockIndex,
    block_len: u64,
    size: u64,
    have: Vec<bool>,
}

impl<'i> Blocks<'i> {
    fn new(index: &'i BlockIndex, size: u64) -> Self {
        let signature = index.signature();
        Self {
            index,
            block_len: u64::from(signature.params().block_len_bytes).max(1),
            size,
            have: vec![false; signature.blocks()],
        }
    }

    fn is_complete(&self) -> bool {
        self.have.iter().all(|have| *have)
    }

    fn range(&self, block: usize) -> Option<ByteRange> {
        let start = u64::try_from(block).ok()?.checked_mul(self.block_len)?;
        ByteRange::new(start, start.saturating_add(self.block_len).min(self.size))
    }

    fn is_block(&self, block: usize, bytes: &[u8]) -> bool {
        let signature = self.index.signature();
        let strong = signature.strong(block).filter(|strong| !strong.is_empty());
        strong.is_some_and(|strong| signature.hasher().of(bytes).get(..strong.len()) == Some(strong))
    }

    /// Looks which blocks are in their places; returns their bytes of data.
    fn find_in_place(&mut self, restore: &Restore<'_>, file: &File) -> Result<u64, FileError> {
        let mut found = 0;
        let mut buffer = Vec::new();
        let signature = self.index.signature();
        let mut zeros: Option<[u8; 32]> = None;
        // Everything from here on is a hole up to there.
        let mut next_data = Some(0);
        for block in 0..self.have.len() {
            let Some(range) = self.range(block) else { break };
            if block % 64 == 0 {
                check_cancelled(restore.monitor).map_err(FileError::All)?;
            }
            if next_data.is_some_and(|data| data < range.start()) {
                next_data = tree::seek_data(file, range.start())?;
            }
            buffer.clear();
            buffer.resize(usize::try_from(range.len_bytes()).unwrap_or_default(), 0);
            let is_hole = next_data.is_none_or(|data| data >= range.end());
            let is_there = if is_hole && range.len_bytes() == self.block_len {
                let sum = zeros.get_or_insert_with(|| signature.hasher().of(&buffer));
                let strong = signature.strong(block).filter(|strong| !strong.is_empty());
                strong.is_some_and(|strong| sum.get(..strong.len()) == Some(strong))
            } else {
                if !is_hole {
                    file.read_exact_at(&mut buffer, range.start())?;
                }
                self.is_block(block, &buffer)
            };
            if is_there {
                if let Some(have) = self.have.get_mut(block) {
                    *have = true;
                }
                if !is_hole {
                    found += range.len_bytes();
                }
            }
        }
        Ok(found)
    }

    /// Copies the blocks that `old` has and the file lacks; returns the number of bytes.
    fn copy_from(&mut self, restore: &Restore<'_>, old: &File, file: &File) -> Result<u64, FileError> {
        let mut finder = ReverseFinder::new(self.index);
        let mut buffer = vec![0; BUFFER_LEN];
        let len = old.metadata()?.len();
        let mut at = 0;
        for range in tree::data_ranges(old, 0, len) {
            let range = range?;
            finder.push_hole(range.start - at);
            at = range.start;
            while at < range.end {
                check_cancelled(restore.monitor).map_err(FileError::All)?;
                let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
                let some = buffer.get_mut(..left.min(BUFFER_LEN)).unwrap_or_default();
                let read = old.read_at(some, at)?;
                if read == 0 {
                    break;
                }
                finder.push(some.get(..read).unwrap_or_default());
                at += u64::try_from(read).unwrap_or(u64::MAX);
            }
            if at < range.end {
                // It became shorter meanwhile.
                break;
            }
        }
        let (list, _) = finder.finish();
        let mut copied = 0;
        let mut block_bytes = Vec::new();
        for run in list.runs() {
            let first = run.range.start() / self.block_len;
            let end = run.range.end().div_ceil(self.block_len);
            for block in first..end {
                let Ok(block) = usize::try_from(block) else { break };
                let Some(range) = self.range(block) else { break };
                // A run covers whole blocks.
                let Some(inside) = range.start().checked_sub(run.range.start()) else {
                    continue;
                };
                if range.end() > run.range.end() || self.have.get(block) != Some(&false) {
                    continue;
                }
                check_cancelled(restore.monitor).map_err(FileError::All)?;
                block_bytes.resize(usize::try_from(range.len_bytes()).unwrap_or_default(), 0);
                if old.read_exact_at(&mut block_bytes, run.base_offset + inside).is_err() {
                    continue;
                }
                if block_bytes.iter().all(|byte| *byte == 0) {
                    make_zero(file, range)?;
                } else {
                    file.write_all_at(&block_bytes, range.start())?;
                }
                copied += range.len_bytes();
                if let Some(have) = self.have.get_mut(block) {
                    *have = true;
                }
            }
        }
        Ok(copied)
    }

    /// The ranges to fetch, of limited number.
    fn missing(&self) -> Vec<ByteRange> {
        let mut gap = JOINED_GAP_MIN;
        loop {
            let mut ranges: Vec<ByteRange> = Vec::new();
            let missing = self.have.iter().enumerate().filter(|(_, have)| !**have);
            for range in missing.filter_map(|(block, _)| self.range(block)) {
                match ranges.last_mut() {
                    Some(last) if range.start() - last.end() <= gap => *last = last.hull(range),
                    _ => ranges.push(range),
                }
            }
            if ranges.len() <= RANGES_MAX {
                return ranges;
            }
            gap = gap.saturating_mul(2);
        }
    }
}

/// Makes a range read as zeros; as a hole, where the file system has them.
fn make_zero(file: &File, range: ByteRange) -> io::Result<()> {
    // Mostly nothing is there.
    if tree::data_ranges(file, range.start(), range.end()).next().is_none() {
        return Ok(());
    }
    match tree::punch_hole(file, range.start(), range.len_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            let zeros = vec![0; BUFFER_LEN];
            let mut at = range.start();
            while at < range.end() {
                let left = usize::try_from(range.end() - at).unwrap_or(usize::MAX);
                let some = zeros.get(..left.min(BUFFER_LEN)).unwrap_or_default();
                file.write_all_at(some, at)?;
                at += u64::try_from(some.len()).unwrap_or(u64::MAX);
            }
            Ok(())
        }
        done => done,
    }
}

/// Whether the file equals the server's content.
fn is_whole(restore: &Restore<'_>, job: &FileJob, file: &File) -> Result<bool, FileError> {
    let size = job.node.attributes.size;
    let blocks_max = size.div_ceil(u64::from(BLOCK_LEN));
    let signature = restore
        .server
        .signature(restore.folder, job.node.id, restore.at, &proving(), blocks_max)
        .map_err(|error| FileError::All(error.into()))?;
    let mut beside = Beside::new(&signature);
    let mut buffer = vec![0; BUFFER_LEN];
    let mut at = 0;
    for range in tree::data_ranges(file, 0, size) {
        let range = range?;
        beside.push_zeros(range.start - at);
        at = range.start;
        while at < range.end {
            check_cancelled(restore.monitor).map_err(FileError::All)?;
            let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
            let some = buffer.get_mut(..left.min(BUFFER_LEN)).unwrap_or_default();
            file.read_exact_at(some, at)?;
            beside.push(some);
            at += u64::try_from(some.len()).unwrap_or(u64::MAX);
        }
    }
    beside.push_zeros(size - at);
    Ok(signature.content_len_bytes() == size && beside.finish())
}

/// The file that is to be replaced, if it can be read.
pub(super) fn open_old(dir: &OwnedFd, job: &FileJob) -> Option<File> {
    let there = tree::open_path_at(dir, &job.place.name).ok()?;
    let stat = tree::stat_fd(&there).ok()?;
    let is_usable = stat.kind == NodeKind::File && stat.size > 0;
    let opened = is_usable.then(|| tree::reopen(&there, OFlags::RDONLY))?;
    opened.ok().map(File::from)
}
