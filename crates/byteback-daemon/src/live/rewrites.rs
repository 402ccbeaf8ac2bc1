//! Files that are changed in place: their previous bytes are kept, so that of what was written only
//! the difference is sent. A database moves rows in its pages, a mailbox closes the gap of a mail
//! that was removed, a program writes a file over (DeltaCFS section III-A, at its end).
//!
//! Bytes are put aside before a program overwrites them: as long as they are few
//! ([`KEPT_FROM_MEMORY_MAX`]) those that are in memory, which costs no reading from a disk; and all
//! once an eighth of the file is overwritten. So some may be missing, which costs literals and no
//! correctness: a delta copies only from what was kept. When a group is handed out, each content is
//! compared with what was kept of the previous one. The queue knows nothing of it, since both make
//! the same content.
//!
//! **Invariants.** The bytes in `kept` of a record were in the file when its content began, and are
//! in the spool under the record's key. So after the bytes were read, it is checked whether any
//! change of the file was reported since they were chosen. Only if not, they count, from the moment
//! in which the change itself is reported. Anything that lands in a file spoils its record: the
//! server then has something other than what was kept. Only what a content covers is taken from the
//! file as new, because only that is put aside if it is overwritten before it is sent.
//!
//! A delta of much is used where most of it was found here. Otherwise the content is left as it is,
//! so that the sender may look for it in all that the server has.
//!
//! Nothing here outlives the process: after a stop a content is sent as it is.

use std::io;

use byteback_control::{LiveContent, LiveGroup, LiveSource};
use byteback_delta::find::{ExtentSink, FindStats, find_in_memory, find_local};
use byteback_delta::{Base, DeltaWriter, WriteError, WriterOptions};
use byteback_extents::{ByteRange, ExtentSet};
use byteback_host::tree::Inode;
use byteback_model::NodeId;
use byteback_mount::page_cache::read_cached;
use byteback_queue::Position;
use parking_lot::MutexGuard;

use super::read::Read;
use super::spool::{open_for_reading, read_up_to};
use super::{Live, SAVING_LOCKS, State};

/// All bytes are kept once one part in this many of the file is overwritten.
const KEPT_FROM: u64 = 8;

/// Most bytes that are kept of a content before that.
const KEPT_FROM_MEMORY_MAX: u64 = 8 << 20;

/// The ranges of one change are kept with the gaps between them if they lie this close together:
/// one reading costs less than many.
const KEPT_TOGETHER_LEN_MAX: u64 = 64 << 10;

/// At least one part in this many of the new bytes must have been kept of the old ones, or a
/// comparison would be in vain.
const KEPT_MIN: u64 = 4;

/// Contents of more ranges are not compared.
const RANGES_MAX: usize = 1 << 14;

/// Most old and new bytes of a content together that are compared in memory, which finds short
/// matches, too.
const IN_MEMORY_LEN_MAX: u64 = 16 << 20;

/// Of contents with more new bytes, most must be found in what was kept.
const FOUND_IN_PART_LEN_MAX: u64 = 64 << 10;

/// Longer deltas are not worth the trouble: they do not fit a part of a batch.
const DELTA_LEN_BYTES_MAX: u64 = 8 << 20;

/// Number of records at which those without further use are swept out.
pub(super) const REWRITES_MAX: usize = 64;

/// The bytes that a content overwrote.
#[derive(Clone, Debug)]
pub(super) struct Rewrite {
    /// The key of the bytes in the spool.
    key: Position,
    /// The length of the file before.
    len_bytes: u64,
    /// The ranges that were kept.
    kept: ExtentSet,
    /// Whether the bytes are not what the server has, or not all of them are.
    is_spoiled: bool,
}

/// Bytes that were put aside, but do not count before the change that overwrites them is reported.
pub(super) struct SavedBytes<'a> {
    key: Position,
    ranges: Vec<ByteRange>,
    /// Keeps other threads from putting bytes of the file aside before these count.
    _saving: Option<MutexGuard<'a, ()>>,
}

/// A state of the queue that differs if a change of a file was reported meanwhile.
#[derive(PartialEq, Eq)]
struct ReportState {
    open: Option<(Position, u64)>,
    last: Option<Position>,
}

/// The bytes that are kept of those that a change is about to overwrite.
#[derive(Clone, Copy)]
struct Wanted {
    /// The length of the file before the content that the change belongs to.
    len_bytes: u64,
    /// Only those that need not be read from a disk.
    from_memory: bool,
}

impl State {
    /// The bytes to keep of those in `ranges`; `None` if it is not worth it.
    fn rewriting(
        &self,
        node: NodeId,
        fd: &Inode,
        ranges: &[ByteRange],
        len_bytes_min: u64,
        len_bytes_max: u64,
    ) -> Option<Wanted> {
        if self.queue.is_folded() {
            return None;
        }
        let changed_bytes = ranges
            .iter()
            .fold(0, |sum: u64, range| sum.saturating_add(range.len_bytes()));
        let (len_bytes, before_bytes, kept_bytes) = match self.queue.open_ranges(node) {
            Some((position, reported)) => {
                let rewrite = self.rewrites.get(&position).filter(|rewrite| !rewrite.is_spoiled)?;
                let kept_bytes = rewrite.kept.total_len_bytes();
                (rewrite.len_bytes, reported.total_len_bytes(), kept_bytes)
            }
            None => (fd.stat().ok()?.size, 0, 0),
        };
        let is_within = ranges.iter().any(|range| range.start() < len_bytes);
        if len_bytes < len_bytes_min || !is_within {
            return None;
        }
        let rewritten_bytes = before_bytes.saturating_add(changed_bytes);
        if len_bytes <= len_bytes_max && rewritten_bytes.saturating_mul(KEPT_FROM) >= len_bytes {
            return Some(Wanted {
                len_bytes,
                from_memory: false,
            });
        }
        let has_room = kept_bytes.saturating_add(changed_bytes) <= KEPT_FROM_MEMORY_MAX;
        has_room.then_some(Wanted {
            len_bytes,
            from_memory: true,
        })
    }

    /// The bytes that a change is about to overwrite and that are still as they were when the
    /// content began, and the content's key if it has one.
    fn untouched(&self, node: NodeId, ranges: &[ByteRange], len_bytes: u64) -> (Vec<ByteRange>, Option<Position>) {
        let Some(all) = ByteRange::new(0, len_bytes) else {
            return (Vec::new(), None);
        };
        let together = ranges.iter().copied().reduce(ByteRange::hull);
        let together = together.filter(|hull| hull.len_bytes() <= KEPT_TOGETHER_LEN_MAX);
        let ranges = together.as_ref().map_or(ranges, std::slice::from_ref);
        let within = ranges.iter().filter_map(|range| range.intersect(all));
        match self.queue.open_ranges(node) {
            None => (within.collect(), None),
            Some((position, reported)) => {
                let gaps = within.flat_map(|range| reported.gaps_within(range));
                (gaps.collect(), self.rewrites.get(&position).map(|rewrite| rewrite.key))
            }
        }
    }

    /// Notes a change that was reported. `open` and `len_bytes`: the content that was open before,
    /// and the file's length then.
    pub(super) fn noted_rewriting(
        &mut self,
        node: NodeId,
        (open, len_bytes): (Option<Position>, u64),
        aside: Option<SavedBytes<'_>>,
        is_landing: bool,
    ) {
        let Some(position) = self.queue.open_ranges(node).map(|(position, _)| position) else {
            self.trash.rewritten.extend(aside.map(|aside| aside.key));
            return;
        };
        if open != Some(position) && len_bytes > 0 {
            let key = aside.as_ref().map(|aside| aside.key);
            let key = key.unwrap_or_else(|| self.next_rewrite());
            let rewrite = Rewrite {
                key,
                len_bytes,
                kept: ExtentSet::new(),
                is_spoiled: is_landing,
            };
            self.rewrites.insert(position, rewrite);
        }
        let Some(aside) = aside else { return };
        match self.rewrites.get_mut(&position) {
            Some(rewrite) if rewrite.key == aside.key => {
                aside.ranges.into_iter().for_each(|range| rewrite.kept.insert(range));
            }
            _ => self.trash.rewritten.push(aside.key),
        }
    }

    fn next_rewrite(&mut self) -> Position {
        self.last_rewrite += 1;
        Position(self.last_rewrite)
    }

    fn told_of(&self, node: NodeId) -> ReportState {
        let open = self.queue.open_ranges(node);
        ReportState {
            open: open.map(|(position, reported)| (position, reported.total_len_bytes())),
            last: self.queue.contents_of(node).last().copied(),
        }
    }

    /// Marks the previous bytes of a file as different from what the server has.
    pub(super) fn spoil_rewriting(&mut self, node: NodeId) {
        for position in self.queue.contents_of(node) {
            if let Some(rewrite) = self.rewrites.get_mut(&position) {
                rewrite.is_spoiled = true;
            }
        }
    }

    /// Forgets what is only of use for these contents.
    pub(super) fn forget_rewritings(&mut self, which: impl Fn(&Self, Position) -> bool) {
        let gone = self.rewrites.keys().copied().filter(|position| which(self, *position));
        for position in gone.collect::<Vec<_>>() {
            let rewrite = self.rewrites.remove(&position);
            self.trash.rewritten.extend(rewrite.map(|rewrite| rewrite.key));
        }
    }

    /// Forgets what was kept for a group that was handed out and is answered, or never will be.
    pub(super) fn forget_rewritten(&mut self, group: &LiveGroup) {
        self.trash.deltas.extend(stamps_of(group));
        for content in &group.contents {
            let rewrite = self.rewrites.remove(&content.at);
            self.trash.rewritten.extend(rewrite.map(|rewrite| rewrite.key));
        }
    }

    /// Forgets, once in a while, the records of contents that were never sent.
    pub(super) fn sweep_rewritings(&mut self) {
        if self.queue.is_empty() {
            self.forget_rewritings(|_, _| true);
        } else if self.rewrites.len() >= self.rewrites_max {
            self.forget_rewritings(|state, position| state.queue.saved_of(position).is_none());
            self.rewrites_max = REWRITES_MAX.max(2 * self.rewrites.len());
        }
    }
}

/// Ranges laid end to end.
#[derive(Clone, Copy)]
struct Packed<'a> {
    /// The start of each range in the packed content, and the range.
    ranges: &'a [(u64, ByteRange)],
    len_bytes: u64,
}

fn packed(ranges: impl Iterator<Item = ByteRange>) -> (Vec<(u64, ByteRange)>, u64) {
    let mut at = 0;
    let placed = ranges.map(|range| {
        let start = at;
        at += range.len_bytes();
        (start, range)
    });
    let placed = placed.collect();
    (placed, at)
}

impl Packed<'_> {
    /// The real ranges of `len_bytes` from `at` on, in order.
    fn real(&self, at: u64, len_bytes: u64) -> impl Iterator<Item = ByteRange> + '_ {
        let end = at.saturating_add(len_bytes);
        let first = self
            .ranges
            .partition_point(|(start, range)| start + range.len_bytes() <= at);
        let touched = self.ranges.get(first..).unwrap_or_default().iter();
        touched
            .take_while(move |(start, _)| *start < end)
            .filter_map(move |(start, range)| {
                let from = at.max(*start) - start;
                let to = end.min(start + range.len_bytes()) - start;
                ByteRange::new(range.start() + from, range.start() + to)
            })
    }

    /// Fills a buffer from `at` on, by `read`, which fills a buffer from a real offset on.
    fn fill(
        &self,
        at: u64,
        buffer: &mut [u8],
        mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut rest = buffer;
        for range in self.real(at, rest.len() as u64) {
            let len = usize::try_from(range.len_bytes()).map_err(io::Error::other)?;
            let (now, later) = rest.split_at_mut_checked(len).ok_or(io::ErrorKind::UnexpectedEof)?;
            read(range.start(), now)?;
            rest = later;
        }
        match rest.is_empty() {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// The previous bytes that were kept.
struct Old<'a> {
    live: &'a Live,
    key: Position,
    packed: Packed<'a>,
}

impl Base for Old<'_> {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.packed.len_bytes)
    }

    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let read = |at, buffer: &mut [u8]| self.live.rewritten.read(self.key, at, buffer);
        self.packed.fill(offset, buffer, read)
    }
}

/// The bytes that a content covers, as of its turn.
struct New<'a> {
    live: &'a Live,
    content: &'a LiveContent,
    file: Option<Inode>,
    packed: Packed<'a>,
}

impl New<'_> {
    fn read(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut piece = Vec::new();
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let start = at + done as u64;
            let window = (start, start + rest.len() as u64);
            let file = (self.content.node, self.file.as_ref());
            done += match self.live.read_piece(self.content.at, file, window, &mut piece)? {
                Some(Read::Hole(range)) => {
                    let len = usize::try_from(range.len_bytes()).map_err(io::Error::other)?;
                    rest.get_mut(..len).unwrap_or_default().fill(0);
                    len
                }
                Some(Read::Data(len)) => {
                    let (to, from) = (rest.get_mut(..len), piece.get(..len));
                    to.zip(from)
                        .ok_or(io::ErrorKind::UnexpectedEof)
                        .map(|(to, from)| to.copy_from_slice(from))?;
                    len
                }
                None => return Err(io::Error::other("its group was given up")),
            };
        }
        Ok(())
    }
}

impl Base for New<'_> {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.packed.len_bytes)
    }

    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.packed.fill(offset, buffer, |at, buffer| self.read(at, buffer))
    }
}

/// Writes what was found in the packed contents as a delta of the real ones.
struct Unpacked<'a, W> {
    writer: &'a mut DeltaWriter<W>,
    old: &'a Packed<'a>,
    new: &'a Packed<'a>,
}

impl<W: io::Write> ExtentSink for Unpacked<'_, W> {
    type Error = WriteError;

    fn literal(&mut self, offset: u64, bytes: &[u8]) -> Result<(), WriteError> {
        let mut rest = bytes;
        for range in self.new.real(offset, bytes.len() as u64) {
            let len = usize::try_from(range.len_bytes()).unwrap_or(usize::MAX).min(rest.len());
            let (now, later) = rest.split_at(len);
            self.writer.literal_bytes(range.start(), now)?;
            rest = later;
        }
        Ok(())
    }

    fn copy(&mut self, range: ByteRange, base_offset: u64) -> Result<(), WriteError> {
        let mut from = base_offset;
        for to in self.new.real(range.start(), range.len_bytes()) {
            let mut at = to.start();
            for source in self.old.real(from, to.len_bytes()) {
                // Bytes that stay at their offset are not mentioned.
                let target = ByteRange::from_offset_len(at, source.len_bytes());
                if let Some(target) = target.filter(|target| target.start() != source.start()) {
                    self.writer.copy(target, source.start())?;
                }
                at += source.len_bytes();
            }
            from += to.len_bytes();
        }
        Ok(())
    }

    fn zero(&mut self, range: ByteRange) -> Result<(), WriteError> {
        for to in self.new.real(range.start(), range.len_bytes()) {
            self.writer.zero(to)?;
        }
        Ok(())
    }
}

impl Live {
    /// Puts aside what a change is about to overwrite, if that is worth it. The bytes count when
    /// the change is reported, by [`State::noted_rewriting`], which must be the next thing that
    /// happens to the returned state.
    pub(super) fn keep_rewritten<'a>(
        &'a self,
        node: NodeId,
        fd: &Inode,
        ranges: &[ByteRange],
        state: MutexGuard<'a, State>,
    ) -> (MutexGuard<'a, State>, Option<SavedBytes<'a>>) {
        let bounds = (self.options.rewritten_bytes_min, self.options.rewritten_bytes_max);
        if state.rewriting(node, fd, ranges, bounds.0, bounds.1).is_none() {
            return (state, None);
        }
        drop(state);
        let lock = usize::try_from(node.0).unwrap_or(0) % SAVING_LOCKS;
        let saving = self.saving.get(lock).map(|lock| lock.lock());
        let mut state = self.state.lock();
        // Asked anew: another thread may have changed the file while this one waited.
        let Some(wanted) = state.rewriting(node, fd, ranges, bounds.0, bounds.1) else {
            return (state, None);
        };
        // While something lands in the file, it is unknown what the server has.
        if self.watches.is_landing(node) {
            return (state, None);
        }
        let (ranges, key) = state.untouched(node, ranges, wanted.len_bytes);
        if ranges.is_empty() {
            return (state, None);
        }
        let key = key.unwrap_or_else(|| state.next_rewrite());
        let reported = state.told_of(node);
        drop(state);
        let put = match wanted.from_memory {
            true => self.put_from_memory(node, key, fd, ranges),
            false => self.put_all(node, key, fd, ranges),
        };
        let state = self.state.lock();
        // A thread that reported a change meanwhile may have made it before the bytes were read:
        // then they are not the old ones.
        let is_old = state.told_of(node) == reported;
        let aside = SavedBytes {
            key,
            ranges: put.ok().filter(|_| is_old).unwrap_or_default(),
            _saving: saving,
        };
        (state, Some(aside))
    }

    fn put_all(&self, node: NodeId, key: Position, fd: &Inode, ranges: Vec<ByteRange>) -> io::Result<Vec<ByteRange>> {
        for range in &ranges {
            if let Some(integrity) = &self.integrity {
                let file = open_for_reading(fd)?;
                integrity.check_before_change(node, &file, *range)?;
            }
            self.rewritten.put(key, *range, fd)?;
        }
        Ok(ranges)
    }

    /// Puts those of the ranges aside that are in memory, and returns them.
    fn put_from_memory(
        &self,
        node: NodeId,
        key: Position,
        fd: &Inode,
        ranges: Vec<ByteRange>,
    ) -> io::Result<Vec<ByteRange>> {
        let mut reopened = None;
        let mut bytes = Vec::new();
        let mut put = Vec::new();
        for range in ranges {
            bytes.resize(usize::try_from(range.len_bytes()).map_err(io::Error::other)?, 0);
            let mut known = read_from_memory(reopened.as_ref().unwrap_or(fd), range.start(), &mut bytes)?;
            if known < bytes.len() && reopened.is_none() {
                // The descriptor may be one that cannot be read.
                let file = reopened.insert(open_for_reading(fd)?);
                known = read_from_memory(file, range.start(), &mut bytes)?;
            }
            if known < bytes.len() {
                continue;
            }
            if let Some(integrity) = &self.integrity {
                let file = match &reopened {
                    Some(file) => file,
                    None => reopened.insert(open_for_reading(fd)?),
                };
                integrity.check_before_change(node, file, range)?;
            }
            self.rewritten.put_bytes(key, range.start(), &bytes)?;
            put.push(range);
        }
        Ok(put)
    }

    /// Makes deltas of the contents of a group that changed their files in place, where these are of
    /// use. Returns their stamps.
    pub(super) fn compare_rewritten(&self, contents: &mut [LiveContent]) -> Vec<u64> {
        let mut stamps = Vec::new();
        for content in contents.iter_mut().filter(|content| !content.is_gone) {
            let rewrite = self.state.lock().rewrites.get(&content.at).cloned();
            let Some(rewrite) = rewrite.filter(|rewrite| !rewrite.is_spoiled) else {
                continue;
            };
            // A content that cannot be compared is sent as it is.
            if let Ok(Some((stamp, len_bytes))) = self.delta_of_rewritten(content, &rewrite) {
                stamps.push(stamp);
                content.source = LiveSource::Delta {
                    base: content.node,
                    base_version: content.base,
                    stamp,
                    len_bytes,
                };
            }
        }
        stamps
    }

    fn delta_of_rewritten(&self, content: &LiveContent, rewrite: &Rewrite) -> io::Result<Option<(u64, u64)>> {
        let LiveSource::Ranges(ranges) = &content.source else {
            return Ok(None);
        };
        let ranges = ranges
            .iter()
            .filter_map(|(start, len)| ByteRange::from_offset_len(*start, *len));
        let (new_ranges, new_bytes) = packed(ranges);
        let (old_ranges, old_bytes) = packed(rewrite.kept.iter());
        let is_kept = old_bytes > 0 && old_bytes.saturating_mul(KEPT_MIN) >= new_bytes;
        if !is_kept || new_ranges.len().max(old_ranges.len()) > RANGES_MAX {
            return Ok(None);
        }
        let [old_packed, new_packed] = [(&old_ranges, old_bytes), (&new_ranges, new_bytes)]
            .map(|(ranges, len_bytes)| Packed { ranges, len_bytes });
        let old = Old {
            live: self,
            key: rewrite.key,
            packed: old_packed,
        };
        let new = New {
            live: self,
            content,
            file: self.open_file(NodeId(content.node.0))?,
            packed: new_packed,
        };
        let options = WriterOptions {
            copies: true,
            compress: true,
        };
        let len_bytes_max = new_bytes.min(DELTA_LEN_BYTES_MAX);
        let encoded = self.deltas.write(len_bytes_max, |out| {
            let mut writer =
                DeltaWriter::new(out, rewrite.len_bytes, content.len_bytes, options).map_err(io::Error::other)?;
            let sink = Unpacked {
                writer: &mut writer,
                old: &old_packed,
                new: &new_packed,
            };
            let found = match old_bytes.saturating_add(new_bytes) <= IN_MEMORY_LEN_MAX {
                true => {
                    let (old, new) = (all_of(&old)?, all_of(&new)?);
                    find_in_memory(&old, &new, sink).map_err(io::Error::other)?.1
                }
                false => find_local(&old, &new, sink).map_err(io::Error::other)?.1,
            };
            if !is_of_use(&found, new_bytes) {
                return Err(io::Error::other("too little of it was kept"));
            }
            let (_, stats) = writer.finish().map_err(io::Error::other)?;
            Ok(stats.wire_bytes)
        })?;
        Ok(encoded)
    }
}

fn all_of(content: &impl Base) -> io::Result<Vec<u8>> {
    let len = usize::try_from(content.len_bytes()?).map_err(io::Error::other)?;
    let mut bytes = vec![0; len];
    content.read_range(0, &mut bytes)?;
    Ok(bytes)
}

/// Whether enough of `new_bytes` was found among the bytes that were kept.
fn is_of_use(found: &FindStats, new_bytes: u64) -> bool {
    match new_bytes > FOUND_IN_PART_LEN_MAX {
        true => found.copied_bytes.saturating_mul(2) >= new_bytes,
        false => found.copied_bytes > 0,
    }
}

/// Fills the front of the buffer with what need not be read from a disk. A file that the kernel
/// does not know is one of a volume, which reads what is overwritten anyway.
fn read_from_memory(file: &Inode, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
    match file.descriptor() {
        Some(_) => Ok(read_cached(file, at, buffer, false)),
        None => read_up_to(file, at, buffer),
    }
}

/// The stamps of the deltas that a handed-out group brings along.
pub(super) fn stamps_of(group: &LiveGroup) -> impl Iterator<Item = u64> + '_ {
    group.contents.iter().filter_map(|content| match content.source {
        LiveSource::Delta { base, stamp, .. } if base == content.node => Some(stamp),
        _ => None,
    })
}
