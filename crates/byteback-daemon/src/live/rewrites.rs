//! Files that are changed in place: their previous bytes are kept, so that of what was written only
//! the difference is sent. A database moves rows in its pages, a mailbox closes the gap of a mail
//! that was removed, a program writes a file over (DeltaCFS section III-A, at its end).
//!
//! Bytes are put aside before a program overwrites them: as long as they are few
//! ([`KEPT_FROM_MEMORY_MAX`]) those that are in memory, which costs no reading from a disk; and all
//! once an eighth of the file is overwritten. So some may be missing, which costs literals and
//! never correctness: a delta copies only from what was kept. When a group is handed out, each
//! content is compared with what was kept of the previous one. The queue knows nothing of it, since
//! both make the same content.
//!
//! **Invariants.** The bytes in `kept` of a record were in the file when its content began, and are
//! in the spool under the record's key. So after the bytes were read, it is checked whether any
//! change of the file was reported since they were chosen. Only if not, they count, from the moment
//! in which the change itself is reported. Anything that lands in a file spoils its record: the
//! server then has something other than what was kept. Only what a content covers is taken from the
//! file as new, because only that is put aside if it is overwritten before it is sent.
//!
//! A delta with many literals is not used: the content is left as it is, so that the sender may
//! look for it in all that the server has.
//!
//! Nothing here outlives the process: after a stop a content is sent as it is.

use std::io;

use byteback_control::{LiveContent, LiveGroup, LiveSource};
use byteback_delta::find::{FindStats, InMemoryFinder, IntoDelta, Packed, Unpacked, find_local};
use byteback_delta::{Base, DeltaWriter, WriterOptions};
use byteback_extents::{ByteRange, ExtentSet};
use byteback_host::tree::Inode;
use byteback_model::NodeId;
use byteback_mount::page_cache::{CachedBytes, read_at_once};
use byteback_queue::Position;
use parking_lot::MutexGuard;

use super::read::Read;
use super::spool::open_for_reading;
use super::{Live, SAVING_LOCKS, State};

/// All bytes are kept once one part in this many of the file is overwritten.
const KEPT_FROM: u64 = 8;

/// Most bytes that are kept of a content before that.
const KEPT_FROM_MEMORY_MAX: u64 = 8 << 20;

/// At least one part in this many of the new bytes must have been kept of the old ones, or a
/// comparison would be in vain.
const KEPT_MIN: u64 = 4;

/// Contents of more ranges are not compared.
const RANGES_MAX: usize = 1 << 14;

/// Most old and new bytes of a content together that are compared in memory, which finds short
/// matches, too.
const IN_MEMORY_LEN_MAX: u64 = 16 << 20;

/// A delta with more literals is only of use if it has few of them for its length.
const LITERAL_LEN_MAX: u64 = 256 << 10;

/// The share of literals that is few.
const LITERAL_SHARE_MAX: u64 = 8;

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
        let at_once = read_at_once(ranges);
        let ranges = at_once.as_ref().map_or(ranges, std::slice::from_ref);
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

/// The previous bytes that were kept.
struct Old<'a> {
    live: &'a Live,
    key: Position,
    packed: &'a Packed,
}

impl Base for Old<'_> {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.packed.len_bytes())
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
    packed: &'a Packed,
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
        Ok(self.packed.len_bytes())
    }

    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.packed.fill(offset, buffer, |at, buffer| self.read(at, buffer))
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
        let mut cached = CachedBytes::of(fd);
        let mut put = Vec::new();
        for range in ranges {
            let Some(bytes) = cached.read(range.start(), range.len_bytes()) else {
                continue;
            };
            if let Some(integrity) = &self.integrity {
                integrity.check_before_change(node, cached.readable()?, range)?;
            }
            self.rewritten.put_bytes(key, range.start(), &bytes)?;
            put.push(range);
        }
        Ok(put)
    }

    /// Makes deltas of the contents of a group that changed their files in place, where these are
    /// of use. Returns their stamps.
    pub(super) fn compare_rewritten(&self, contents: &mut [LiveContent]) -> Vec<u64> {
        let mut stamps = Vec::new();
        for content in contents.iter_mut().filter(|content| !content.is_gone) {
            let rewrite = self.state.lock().rewrites.get(&content.at).cloned();
            let Some(rewrite) = rewrite.filter(|rewrite| !rewrite.is_spoiled) else {
                continue;
            };
            // The server has something older of a file that could not be sent, and nothing may be
            // sent of one that is held back: reading its ranges tells.
            if self.is_unsaved(content.node) || self.is_held_back(content.node) {
                continue;
            }
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

    /// Whether nothing of a file may be sent, or that cannot be told.
    fn is_held_back(&self, node: NodeId) -> bool {
        let Some(integrity) = &self.integrity else {
            return false;
        };
        let is_sound = match self.open_file(node) {
            Ok(Some(file)) => integrity.check_interrupted(node, &file).is_ok(),
            Ok(None) => true,
            Err(_) => false,
        };
        !is_sound || integrity.held_back(node).is_some()
    }

    fn delta_of_rewritten(&self, content: &LiveContent, rewrite: &Rewrite) -> io::Result<Option<(u64, u64)>> {
        let LiveSource::Ranges(ranges) = &content.source else {
            return Ok(None);
        };
        let ranges = ranges
            .iter()
            .filter_map(|(start, len)| ByteRange::from_offset_len(*start, *len));
        let new_packed = ranges.collect::<Packed>();
        let old_packed = rewrite.kept.iter().collect::<Packed>();
        let (old_bytes, new_bytes) = (old_packed.len_bytes(), new_packed.len_bytes());
        let is_kept = old_bytes > 0 && old_bytes.saturating_mul(KEPT_MIN) >= new_bytes;
        if !is_kept || new_packed.range_count().max(old_packed.range_count()) > RANGES_MAX {
            return Ok(None);
        }
        let old = Old {
            live: self,
            key: rewrite.key,
            packed: &old_packed,
        };
        let new = New {
            live: self,
            content,
            file: self.open_file(NodeId(content.node.0))?,
            packed: &new_packed,
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
                sink: IntoDelta(&mut writer),
                old: &old_packed,
                new: &new_packed,
            };
            let found = match old_bytes.saturating_add(new_bytes) <= IN_MEMORY_LEN_MAX {
                true => {
                    let (old, new) = (all_of(&old)?, all_of(&new)?);
                    InMemoryFinder::new(&old).find(&new, sink).map_err(io::Error::other)?.1
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
    let few_bytes = LITERAL_LEN_MAX.max(new_bytes / LITERAL_SHARE_MAX);
    found.copied_bytes > 0 && found.literal_bytes <= few_bytes
}

/// The stamps of the deltas that a handed-out group brings along.
pub(super) fn stamps_of(group: &LiveGroup) -> impl Iterator<Item = u64> + '_ {
    group.contents.iter().filter_map(|content| match content.source {
        LiveSource::Delta { base, stamp, .. } if base == content.node => Some(stamp),
        _ => None,
    })
}
