//! Reads through the disk, slowly and for ever: known blocks are compared, unknown ones are
//! learned.
//!
//! [`Passage`] decides what comes next: which piece of which file, and when, so that no more than a
//! given number of bytes a second is read. It does no I/O and knows no clock. The thread around it
//! finds the files by their numbers in the log, in ascending order, and reads without the page
//! cache where the file system allows that (`O_DIRECT`), so that it sees the disk and takes no room
//! from programs. A block that changes while it is read is compared once more while nothing changes
//! it; that is in [`byteback_mount::integrity`].
//!
//! The position of a passage becomes durable with the checksums, so that a restart goes on there.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use byteback_checksums::written::{BLOCK_LEN, Backing, Stamp};
use byteback_extents::ByteRange;
use byteback_host::tree::Inode;
use byteback_model::{NodeId, NodeKind};
use byteback_mount::integrity::Integrity;
use rustix::fs::OFlags;

use crate::tree::TrackedTree;

/// Files that are asked for at a time.
const FILES_AHEAD: usize = 4096;

/// Bytes that are read at a time.
const PIECE_LEN_BYTES: u64 = 1 << 20;

/// Options of the scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubOptions {
    /// Most bytes to read a second.
    pub bytes_per_s: u64,
    /// How long the scrub rests after it has seen everything.
    pub rest: Duration,
}

impl Default for ScrubOptions {
    fn default() -> Self {
        Self {
            bytes_per_s: 8 << 20,
            rest: Duration::from_secs(24 * 60 * 60),
        }
    }
}

/// The next step of a passage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing, for this long.
    Wait(Duration),
    /// Finds the first file from this number on, and reports it to [`Passage::at_file`].
    FindFrom(u64),
    /// Reads this range of the file, and reports to [`Passage::read`].
    Read {
        /// The file.
        file: u64,
        /// The bytes to read.
        range: ByteRange,
    },
}

/// The order and pace of the scrub, see the module.
#[derive(Clone, Debug)]
pub struct Passage {
    options: ScrubOptions,
    /// The current file, and the offset in it.
    at: (u64, u64),
    /// The length of the file, when it was found.
    len_bytes: Option<u64>,
    /// Nothing is read before this time.
    not_before_ns: u64,
    passes: u64,
}

impl Passage {
    /// Goes on at the position where the last passage was.
    #[must_use]
    pub fn new(options: ScrubOptions, position: Option<(u64, u64)>) -> Self {
        Self {
            options,
            at: position.unwrap_or((0, 0)),
            len_bytes: None,
            not_before_ns: 0,
            passes: 0,
        }
    }

    /// The current file, and the offset in it.
    #[must_use]
    pub fn position(&self) -> (u64, u64) {
        self.at
    }

    /// How often everything was seen.
    #[must_use]
    pub fn passes(&self) -> u64 {
        self.passes
    }

    /// The next step, at this time of any clock that does not go back.
    #[must_use]
    pub fn next(&self, now_ns: u64) -> Step {
        if now_ns < self.not_before_ns {
            return Step::Wait(Duration::from_nanos(self.not_before_ns - now_ns));
        }
        let (file, offset) = self.at;
        let Some(len_bytes) = self.len_bytes else {
            return Step::FindFrom(file);
        };
        let end = len_bytes.min(offset.saturating_add(PIECE_LEN_BYTES));
        match ByteRange::new(offset, end) {
            Some(range) => Step::Read { file, range },
            None => Step::FindFrom(file.saturating_add(1)),
        }
    }

    /// Takes the file that was found, its number and length; `None`: there is none any more, and
    /// all were seen.
    pub fn at_file(&mut self, found: Option<(u64, u64)>, now_ns: u64) {
        match found {
            Some((file, len_bytes)) => {
                if file != self.at.0 {
                    self.at = (file, 0);
                }
                self.len_bytes = Some(len_bytes);
                self.leave_if_seen();
            }
            None => {
                self.at = (0, 0);
                self.len_bytes = None;
                self.passes += 1;
                let rest_ns = u64::try_from(self.options.rest.as_nanos()).unwrap_or(u64::MAX);
                self.not_before_ns = now_ns.saturating_add(rest_ns);
            }
        }
    }

    /// Skips the file with this number, which is the next and not to be read.
    pub fn pass_over(&mut self, file: u64) {
        self.at = (file.saturating_add(1), 0);
        self.len_bytes = None;
    }

    /// Goes on to the next file when the end of this one is reached, so that a restart does not
    /// find this one once more.
    fn leave_if_seen(&mut self) {
        if self.len_bytes.is_some_and(|len_bytes| self.at.1 >= len_bytes) {
            self.pass_over(self.at.0);
        }
    }

    /// Takes the number of bytes that were read: fewer than were to be read where the file ended,
    /// or could not be read.
    pub fn read(&mut self, bytes: u64, now_ns: u64) {
        let (_, offset) = self.at;
        match bytes {
            0 => self.len_bytes = Some(0),
            bytes => self.at.1 = offset.saturating_add(bytes).next_multiple_of(BLOCK_LEN),
        }
        self.leave_if_seen();
        let cost_ns = u128::from(bytes) * 1_000_000_000 / u128::from(self.options.bytes_per_s.max(1));
        let cost_ns = u64::try_from(cost_ns).unwrap_or(u64::MAX);
        self.not_before_ns = self.not_before_ns.max(now_ns).saturating_add(cost_ns);
    }
}

/// The progress of a scrub since the start, for people, and whether it may go on.
#[derive(Debug, Default)]
pub struct ScrubState {
    /// The scrub is not to go on now.
    pub paused: AtomicBool,
    /// Bytes that were read.
    pub read_bytes: AtomicU64,
    /// Blocks whose checksums were learned.
    pub learned_blocks: AtomicU64,
    /// How often everything was seen.
    pub passes: AtomicU64,
}

/// How often a paused scrub looks whether it still is paused.
const PAUSE: Duration = Duration::from_millis(200);

/// Looks through a tree until it is told to stop.
pub(crate) fn run(
    tree: &TrackedTree,
    integrity: &Integrity,
    options: ScrubOptions,
    state: &Arc<ScrubState>,
    stopped: &Receiver<()>,
) {
    let clock = tree.clock();
    let mut passage = Passage::new(options, integrity.sums().position());
    let mut open: Option<(u64, Inode, bool)> = None;
    let mut buffer = Aligned::default();
    let mut files = Files::default();
    loop {
        let wait = match passage.next(clock.monotonic_ns()) {
            _ if state.paused.load(Ordering::Relaxed) => PAUSE,
            Step::Wait(wait) => wait,
            Step::FindFrom(file) => {
                let found = match files.next_from(tree, file) {
                    Some(file) => match open_file(tree, file) {
                        // Gone, or not to be read: a stop is noticed before the next file.
                        None => {
                            passage.pass_over(file);
                            if let Ok(()) | Err(TryRecvError::Disconnected) = stopped.try_recv() {
                                return;
                            }
                            continue;
                        }
                        found => found,
                    },
                    None => {
                        forget_the_gone(tree, integrity);
                        None
                    }
                };
                passage.at_file(
                    found.as_ref().map(|(file, _, len, _)| (*file, *len)),
                    clock.monotonic_ns(),
                );
                open = found.map(|(file, fd, _, is_direct)| (file, fd, is_direct));
                Duration::ZERO
            }
            Step::Read { file, range } => {
                let bytes = match &open {
                    Some((of, fd, is_direct)) if *of == file => {
                        read(integrity, file, fd, *is_direct, range, &mut buffer, state)
                    }
                    _ => 0,
                };
                passage.read(bytes, clock.monotonic_ns());
                Duration::ZERO
            }
        };
        state.passes.store(passage.passes(), Ordering::Relaxed);
        integrity.sums().set_position(passage.position());
        match stopped.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Drops the checksums of files that the log does not know any more: they were removed while the
/// tree was not mounted.
fn forget_the_gone(tree: &TrackedTree, integrity: &Integrity) {
    let (Ok(look), Ok(kept)) = (tree.log().look(), integrity.sums().kept_files()) else {
        return;
    };
    for file in kept {
        if look.last_node().is_ok_and(|last| file <= last.0) && look.kind(NodeId(file)).is_ok_and(|kind| kind.is_none())
        {
            integrity.sums().removed(file);
        }
    }
}

/// The files that are next, by their numbers in the log.
#[derive(Default)]
struct Files {
    ahead: VecDeque<u64>,
}

impl Files {
    /// The first file from a number on; `None` if there is none, or the log cannot be read.
    fn next_from(&mut self, tree: &TrackedTree, first: u64) -> Option<u64> {
        while let Some(file) = self.ahead.pop_front() {
            if file >= first {
                return Some(file);
            }
        }
        // Many at a time: the log writes to its disk before it can be looked at.
        let look = tree.log().look().ok()?;
        let files = look.files_from(NodeId(first), FILES_AHEAD).ok()?;
        self.ahead = files.into_iter().map(|file| file.0).collect();
        self.ahead.pop_front()
    }
}

/// A regular file that can be read and is not empty: its number, a descriptor, its length, and
/// whether it is read past the page cache.
fn open_file(tree: &TrackedTree, file: u64) -> Option<(u64, Inode, u64, bool)> {
    let (fd, stat) = tree.live().find(NodeId(file)).ok().flatten()?;
    if stat.kind != NodeKind::File || stat.size == 0 {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    // Past the cache, and without a trace, as far as that is allowed.
    let ways = [OFlags::DIRECT | OFlags::NOATIME, OFlags::DIRECT, OFlags::empty()];
    let open = |way: OFlags| Some((fd.reopen(flags | way).ok()?, way.contains(OFlags::DIRECT)));
    let (fd, is_direct) = ways.into_iter().find_map(open)?;
    Some((file, fd, stat.size, is_direct))
}

fn read(
    integrity: &Integrity,
    file: u64,
    fd: &Inode,
    is_direct: bool,
    range: ByteRange,
    buffer: &mut Aligned,
    state: &ScrubState,
) -> u64 {
    let len = usize::try_from(range.len_bytes().next_multiple_of(BLOCK_LEN)).unwrap_or(0);
    let backing = Direct { fd, is_direct };
    let bytes = buffer.get(len);
    let Ok((read, mismatch)) = integrity.sums().read(file, &backing, range.start(), bytes) else {
        return 0;
    };
    match mismatch {
        Some(mismatch) => drop(integrity.judge(NodeId(file), fd, &backing, &mismatch)),
        None if read.unknown_blocks > 0 => {
            let learned = integrity.sums().learn(file, &read, bytes);
            state.learned_blocks.fetch_add(learned, Ordering::Relaxed);
        }
        None => {}
    }
    state.read_bytes.fetch_add(read.len_bytes as u64, Ordering::Relaxed);
    read.len_bytes as u64
}

/// A buffer that begins at a multiple of a block.
#[derive(Default)]
struct Aligned(Vec<u8>);

impl Aligned {
    fn get(&mut self, len: usize) -> &mut [u8] {
        let block = BLOCK_LEN as usize;
        self.0.resize(self.0.len().max(len.saturating_add(block)), 0);
        let skipped = self.0.as_ptr().align_offset(block).min(block);
        let end = skipped.saturating_add(len);
        self.0.get_mut(skipped..end).unwrap_or_default()
    }
}

/// A file that is read past the page cache: whole blocks only, at aligned places; the rest comes
/// from the cache.
struct Direct<'a> {
    fd: &'a Inode,
    is_direct: bool,
}

impl Backing for Direct<'_> {
    fn stamp(&self) -> std::io::Result<Stamp> {
        self.fd.stamp()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize> {
        let block = BLOCK_LEN as usize;
        let is_aligned = offset.is_multiple_of(BLOCK_LEN)
            && buffer.len().is_multiple_of(block)
            && buffer.as_ptr().align_offset(block) == 0;
        if self.is_direct && !is_aligned {
            // The rest behind a read that ended early, at the end of the file.
            let plain = self.fd.reopen(OFlags::RDONLY | OFlags::NONBLOCK)?;
            return plain.read_at(offset, buffer);
        }
        match self.fd.read_at(offset, buffer) {
            Err(error) if self.is_direct && error.raw_os_error() == Some(libc::EINVAL) => {
                let plain = self.fd.reopen(OFlags::RDONLY | OFlags::NONBLOCK)?;
                plain.read_at(offset, buffer)
            }
            done => done,
        }
    }
}

#[cfg(test)]
mod tests;
