//! Trimming by the client's own block checksums: blocks that may have changed but that the server
//! has already are not sent.
//!
//! Optional ([`super::BackupOptions::block_checksums`]): it costs 17 bytes on disk per block of 4
//! KiB. In return, a range that was rewritten with the same bytes costs nothing, and a file that
//! was open in a crash is narrowed to its differences without asking the server. While content is
//! read, each of its blocks is summed; where the sum is the one that is kept from last time, the
//! block is not handed on. For that, the ranges that are read are widened to whole blocks; the
//! ranges that are sent never are.
//!
//! *Held still.* Bytes beside the reported ones are summed as well. They must be those of the cut:
//! a byte that was written since would make a sum that the server does not have, and the next
//! backup would take that write for known. Hence trees hold whole blocks still
//! ([`HELD_BLOCK_BYTES`]).
//!
//! Holes are not summed: a hole costs no bytes, and counting it block by block would.
//!
//! *Trust.* `byteback-checksums` says when its sums count: only if the server's contents are those
//! of the very batch that brought them. A store that fails is left alone for the rest of the
//! backup; the batch then has no sums, and the next backup knows none.

use super::content::{DeltaSink, Failure, len_u64};
use super::limits::SearchLimits;
use super::{BackupOptions, Basis};
use crate::monitor::{Event, Monitor};
use byteback_checksums::{BLOCK_LEN, ChecksumError, ChecksumStore, Session};
use byteback_control::{ErrorKind, HELD_BLOCK_BYTES, Piece, ServiceError};
use byteback_delta::ContentDigest;
use byteback_extents::{ByteRange, ExtentSet};
use byteback_host::random::RealRandomness;
use byteback_model::NodeId;

const _: () = assert!(HELD_BLOCK_BYTES.get().is_multiple_of(BLOCK_LEN));

/// The checksums of a backup's files; empty when none are kept, or after the store failed.
pub(super) struct BlockSums<'m> {
    session: Option<Session>,
    monitor: &'m dyn Monitor,
    summed_len_min_bytes: u64,
    /// Bytes that were summed, and how many of those that may have changed the server has.
    pub(super) hashed_bytes: u64,
    pub(super) known_bytes: u64,
}

/// The store of this consumer, if it is wanted; a store that cannot be opened causes a warning.
pub(super) fn open_store(options: &BackupOptions, monitor: &dyn Monitor) -> Option<ChecksumStore> {
    let dir = options.block_checksums.as_deref()?;
    let mut digest = ContentDigest::new(len_u64(options.consumer.len()));
    digest.push(options.consumer.as_bytes());
    let digest = digest.finish().unwrap_or_default();
    let name: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    match ChecksumStore::open(dir, &format!("{name}.redb"), &RealRandomness) {
        Ok(store) => Some(store),
        Err(error) => {
            warn(monitor, &error);
            None
        }
    }
}

fn warn(monitor: &dyn Monitor, error: &ChecksumError) {
    let mut message = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        message.push_str(&format!(": {error}"));
        cause = error.source();
    }
    monitor.event(Event::Warning(&message));
}

impl<'m> BlockSums<'m> {
    /// Without a store.
    pub(super) fn none(limits: &SearchLimits, monitor: &'m dyn Monitor) -> Self {
        Self {
            session: None,
            monitor,
            summed_len_min_bytes: limits.summed_len_min_bytes,
            hashed_bytes: 0,
            known_bytes: 0,
        }
    }

    /// For a backup on this basis.
    pub(super) fn begin(
        store: Option<&ChecksumStore>,
        basis: &Basis,
        limits: &SearchLimits,
        monitor: &'m dyn Monitor,
    ) -> Self {
        let mut sums = Self::none(limits, monitor);
        if let Some(store) = store {
            match store.begin(basis.batch()) {
                Ok(session) => sums.session = Some(session),
                Err(error) => warn(monitor, &error),
            }
        }
        sums
    }

    /// Whether checksums of a file of this length are kept.
    pub(super) fn keeps(&self, len_bytes: u64) -> bool {
        self.session.is_some() && len_bytes >= self.summed_len_min_bytes
    }

    /// Whether enough of a file is known that it need not be looked for by another method.
    pub(super) fn knows_most(&mut self, node: NodeId, len_bytes: u64) -> bool {
        let known = self.with(|session| session.known_blocks(node.0));
        self.keeps(len_bytes) && known.is_some_and(|known| known > 0 && known >= len_bytes / BLOCK_LEN / 2)
    }

    /// Drops the known sums of a file after this batch, unless blocks are gathered from now on.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.with(|session| match session.known_blocks(node.0)? {
            0 => Ok(()),
            _ => session.forget_file(node.0),
        });
    }

    /// Notes that the file is not sent after all.
    pub(super) fn give_up(&mut self, node: NodeId) {
        self.with(|session| session.give_up_file(node.0));
    }

    /// Notes that the file is in the batch.
    pub(super) fn end(&mut self, node: NodeId, len_bytes: u64, has_last: bool) {
        self.with(|session| session.end_file(node.0, len_bytes, has_last));
    }

    /// Prepares the store, before the server is asked to apply the batch.
    pub(super) fn prepare(&mut self, counter: u64) {
        if let Some(session) = self.session.take()
            && let Err(error) = session.prepare(counter)
        {
            warn(self.monitor, &error);
        }
    }

    /// Whether the server has this block; keeps its sum.
    fn exchange(&mut self, node: NodeId, block: u64, bytes: &[u8]) -> bool {
        self.hashed_bytes += len_u64(bytes.len());
        let is_known = self.with(|session| {
            let sum = session.sum(bytes);
            session.exchange(node.0, block, sum)
        });
        is_known == Some(true)
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Session) -> Result<T, ChecksumError>) -> Option<T> {
        match act(self.session.as_mut()?) {
            Ok(value) => Some(value),
            Err(error) => {
                warn(self.monitor, &error);
                self.session = None;
                None
            }
        }
    }
}

/// The ranges widened to whole blocks of a file of this length.
pub(super) fn widened(ranges: &[ByteRange], len_bytes: u64) -> Vec<ByteRange> {
    let mut set = ExtentSet::new();
    for range in ranges {
        let start = range.start() - range.start() % BLOCK_LEN;
        let end = range.end().next_multiple_of(BLOCK_LEN).min(len_bytes);
        if let Some(range) = ByteRange::new(start, end) {
            set.insert(range);
        }
    }
    set.iter().collect()
}

/// Cuts the pieces of one file into blocks or holes, and hands each on with its place.
pub(super) struct Blocks {
    len_bytes: u64,
    /// The bytes of the incomplete block, and which of its ranges are holes.
    bytes: Vec<u8>,
    parts: Vec<(ByteRange, bool)>,
}

/// An output of [`Blocks`].
pub(super) enum Cut<'b> {
    /// A whole block, or the file's last one.
    Block {
        /// Its place.
        range: ByteRange,
        bytes: &'b [u8],
        /// Its parts; the second field says whether the part is a hole.
        parts: &'b [(ByteRange, bool)],
    },
    /// Whole blocks that are a hole.
    Hole(ByteRange),
}

impl Blocks {
    pub(super) fn of_file(len_bytes: u64) -> Self {
        Self {
            len_bytes,
            bytes: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// Takes the next piece.
    pub(super) fn piece(
        &mut self,
        piece: Piece<'_>,
        each: &mut dyn FnMut(Cut<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (mut offset, mut left, data) = match piece {
            Piece::Data { offset, bytes } => (offset, len_u64(bytes.len()), Some(bytes)),
            Piece::Hole(range) => (range.start(), range.len_bytes(), None),
        };
        let mut taken = 0_usize;
        while left > 0 {
            let block_start = offset - offset % BLOCK_LEN;
            let block_end = (block_start + BLOCK_LEN).min(self.len_bytes);
            if data.is_none() && offset == block_start {
                // All whole blocks of a hole at once.
                let end = match offset + left {
                    end if end >= self.len_bytes => end,
                    end => end - end % BLOCK_LEN,
                };
                if let Some(hole) = ByteRange::new(offset, end) {
                    each(Cut::Hole(hole))?;
                    offset = end;
                    left -= hole.len_bytes();
                    continue;
                }
            }
            // Pieces lie in the file, so a block ends behind its begin.
            let len = left.min(block_end.saturating_sub(offset)).max(1);
            // At most a block.
            let len_now = len as usize;
            let Some(range) = ByteRange::from_offset_len(offset, len) else {
                return Ok(());
            };
            let slice = data.map(|data| &data[taken..taken + len_now]);
            if self.bytes.is_empty()
                && let (Some(slice), true) = (slice, offset == block_start && range.end() == block_end)
            {
                each(Cut::Block {
                    range,
                    bytes: slice,
                    parts: &[(range, false)],
                })?;
            } else {
                match slice {
                    Some(slice) => self.bytes.extend_from_slice(slice),
                    None => self.bytes.resize(self.bytes.len() + len_now, 0),
                }
                self.parts.push((range, data.is_none()));
                if range.end() == block_end {
                    let range = self.parts.first().map_or(range, |(first, _)| first.hull(range));
                    each(Cut::Block {
                        range,
                        bytes: &self.bytes,
                        parts: &self.parts,
                    })?;
                    self.bytes.clear();
                    self.parts.clear();
                }
            }
            offset += len;
            left -= len;
            taken += len_now;
        }
        Ok(())
    }
}

/// Hands on the bytes of one file that may have changed and that the server does not have.
pub(super) struct Trimmer<'a, 'm> {
    sums: &'a mut BlockSums<'m>,
    node: NodeId,
    blocks: Blocks,
    /// Ranges that may have changed, ascending; those before `reported` are done.
    ranges: Vec<ByteRange>,
    reported: usize,
    /// Ranges being read: the above, widened; those before `reading` are done.
    widened: Vec<ByteRange>,
    reading: usize,
    position: u64,
    has_last: bool,
}

impl<'a, 'm> Trimmer<'a, 'm> {
    pub(super) fn new(sums: &'a mut BlockSums<'m>, node: NodeId, ranges: &[ByteRange], len_bytes: u64) -> Self {
        let widened = widened(ranges, len_bytes);
        Self {
            sums,
            node,
            blocks: Blocks::of_file(len_bytes),
            ranges: ranges.to_vec(),
            reported: 0,
            position: widened.first().map_or(0, |range| range.start()),
            widened,
            reading: 0,
            has_last: false,
        }
    }

    /// The ranges to read.
    pub(super) fn widened(&self) -> &[ByteRange] {
        &self.widened
    }

    /// Whether the file's last, shorter block was among what was read.
    pub(super) fn has_last(&self) -> bool {
        self.has_last
    }

    pub(super) fn piece(&mut self, piece: Piece<'_>, sink: &mut DeltaSink<'_, '_, '_>) -> Result<(), Failure> {
        let (offset, len) = match piece {
            Piece::Data { offset, bytes } => (offset, len_u64(bytes.len())),
            Piece::Hole(range) => (range.start(), range.len_bytes()),
        };
        self.advance(offset, len)?;
        if let Piece::Data { bytes, .. } = piece {
            sink.report_read(len_u64(bytes.len()))?;
        }
        let Self {
            sums,
            node,
            blocks,
            ranges,
            reported,
            has_last,
            ..
        } = self;
        blocks.piece(piece, &mut |cut| match cut {
            Cut::Hole(hole) => {
                let blocks = (hole.start() / BLOCK_LEN, hole.end().div_ceil(BLOCK_LEN));
                sums.with(|session| session.forget_blocks(node.0, blocks.0, blocks.1));
                for_each_common(ranges, reported, hole, |part| sink.piece(Piece::Hole(part)))
            }
            Cut::Block { range, bytes, parts } => {
                let block = range.start() / BLOCK_LEN;
                *has_last |= range.len_bytes() < BLOCK_LEN;
                if sums.exchange(*node, block, bytes) {
                    return for_each_common(ranges, reported, range, |part| {
                        sums.known_bytes += part.len_bytes();
                        sink.skip(part)
                    });
                }
                for_each_common(ranges, reported, range, |changed| {
                    for (part, is_hole) in parts {
                        let Some(part) = part.intersect(changed) else { continue };
                        if *is_hole {
                            sink.piece(Piece::Hole(part))?;
                            continue;
                        }
                        // Both within the block.
                        let start = (part.start() - range.start()) as usize;
                        sink.data(part.start(), &bytes[start..start + part.len_bytes() as usize])?;
                    }
                    Ok(())
                })
            }
        })
    }

    /// Checks that the piece is the next one in order.
    fn advance(&mut self, offset: u64, len: u64) -> Result<(), Failure> {
        let mut range = self.widened.get(self.reading).copied();
        if range.is_some_and(|range| range.end() == self.position) {
            self.reading += 1;
            range = self.widened.get(self.reading).copied();
            self.position = range.map_or(self.position, |range| range.start());
        }
        let end = offset.checked_add(len);
        match (range, end) {
            (Some(range), Some(end)) if offset == self.position && end <= range.end() && len > 0 => {
                self.position = end;
                Ok(())
            }
            _ => Err(Failure::File(ServiceError::new(
                ErrorKind::Node,
                format!(
                    "its bytes arrived out of order: {len} at {offset}, expected at {}",
                    self.position
                ),
            ))),
        }
    }

    /// The position up to which the file was read. Ranges end where blocks do, so no block is left
    /// half.
    pub(super) fn position(&self) -> u64 {
        self.position
    }
}

/// Calls `each` with the intersection of `range` and the ranges, from index `at` on, which moves
/// behind those that end in `range`.
fn for_each_common(
    ranges: &[ByteRange],
    at: &mut usize,
    range: ByteRange,
    mut each: impl FnMut(ByteRange) -> Result<(), Failure>,
) -> Result<(), Failure> {
    while let Some(next) = ranges.get(*at) {
        if let Some(part) = next.intersect(range) {
            each(part)?;
        }
        if next.end() > range.end() {
            return Ok(());
        }
        *at += 1;
    }
    Ok(())
}

/// Gathers the checksums of a file that is read as a whole and sent by other means.
pub(super) struct Gathering {
    node: NodeId,
    len_bytes: u64,
    blocks: Blocks,
    has_last: bool,
}

impl Gathering {
    pub(super) fn of_file(sums: &mut BlockSums<'_>, node: NodeId, len_bytes: u64) -> Self {
        sums.forget(node);
        Self {
            node,
            len_bytes,
            blocks: Blocks::of_file(len_bytes),
            has_last: false,
        }
    }

    pub(super) fn piece(&mut self, piece: Piece<'_>, sums: &mut BlockSums<'_>) -> Result<(), Failure> {
        if !sums.keeps(self.len_bytes) {
            return Ok(());
        }
        let (node, has_last) = (self.node, &mut self.has_last);
        self.blocks.piece(piece, &mut |cut| {
            if let Cut::Block { range, bytes, .. } = cut {
                *has_last |= range.len_bytes() < BLOCK_LEN;
                sums.exchange(node, range.start() / BLOCK_LEN, bytes);
            }
            Ok(())
        })
    }

    /// Notes that the file is in the batch.
    pub(super) fn end(self, sums: &mut BlockSums<'_>) {
        if sums.keeps(self.len_bytes) {
            sums.end(self.node, self.len_bytes, self.has_last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_widened_to_blocks_and_cut_at_the_end() {
        let range = |start, end| ByteRange::new(start, end).unwrap();
        assert_eq!(
            widened(&[range(1, 2), range(5000, 5001), range(20_000, 20_010)], 20_010),
            [range(0, 8192), range(16_384, 20_010)]
        );
    }
}
