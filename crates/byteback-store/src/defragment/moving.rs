//! Writes the live pieces of frames into new frames, and knows where each byte went.

use super::count::{FrameCount, Live};
use super::{SHORT_LEN_MAX, cost};
use crate::catalog::FragmentationRow;
use crate::codec::len_u64;
use crate::error::StoreError;
use crate::layer::Literal;
use crate::segments::{FrameRef, SegmentWriter, Segments};
use byteback_delta::{Codec, FrameEncoder};
use byteback_extents::{ByteRange, ExtentValue};

/// Bytes of a frame that were moved to another one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved {
    pub(super) frame: FrameRef,
    /// Decoded bytes of the frame before them.
    pub(super) skip: u32,
    len_bytes: u32,
    to: Literal,
}

/// The new place of the byte at `from`, or `None` if it was not moved, and the number of bytes, of
/// at most `len_bytes`, of which the same is true. `moved` is sorted, and no two of it overlap.
pub(super) fn place_of(moved: &[Moved], from: Literal, len_bytes: u64) -> (Option<Literal>, u64) {
    let next = moved.partition_point(|moved| (moved.frame, moved.skip) <= (from.frame, from.skip));
    let before = next.checked_sub(1).and_then(|index| moved.get(index));
    if let Some(found) = before.filter(|before| before.frame == from.frame) {
        let into = from.skip - found.skip;
        if into < found.len_bytes {
            let len_here = u64::from(found.len_bytes - into).min(len_bytes);
            return (Some(found.to.advance(u64::from(into))), len_here);
        }
    }
    let next = moved.get(next).filter(|next| next.frame == from.frame);
    let len_here = next.map_or(len_bytes, |next| u64::from(next.skip - from.skip));
    (None, len_here.min(len_bytes))
}

/// Frames in the making.
pub(super) struct Moving {
    pub(super) writer: Box<dyn SegmentWriter>,
    encoder: FrameEncoder,
    stored: Vec<u8>,
    pub(super) moved: Vec<Moved>,
    pub(super) written_bytes: u64,
    /// The needed and the wasted bytes of the frames whose pieces were moved.
    needed_before_bytes: u64,
    waste_before_bytes: u64,
    /// Whether the catalog refers, or may refer, to the frames.
    pub(super) is_kept: bool,
}

impl Drop for Moving {
    fn drop(&mut self) {
        if !self.is_kept {
            self.writer.discard();
        }
    }
}

impl Moving {
    pub(super) fn new(segments: &dyn Segments) -> Result<Self, StoreError> {
        Ok(Self {
            writer: segments.writer(),
            encoder: FrameEncoder::new().map_err(|e| StoreError::io("set up the compressor", e))?,
            stored: Vec::new(),
            moved: Vec::new(),
            written_bytes: 0,
            needed_before_bytes: 0,
            waste_before_bytes: 0,
            is_kept: false,
        })
    }

    /// Writes the pieces of one frame again, by their places in it.
    pub(super) fn frame(
        &mut self,
        frame: &FrameRef,
        live: Live,
        raw: &[u8],
        pieces: &[(Literal, ByteRange)],
    ) -> Result<(), StoreError> {
        let mut together = Together::default();
        let mut moved_to = 0;
        for (literal, range) in pieces {
            // Bytes that the file has in several places are moved once.
            let again = u64::from(moved_to.max(literal.skip) - literal.skip);
            let Some(range) = ByteRange::new(range.start().saturating_add(again), range.end()) else {
                continue;
            };
            let literal = literal.advance(again);
            for part in cut(range) {
                let Literal { skip, .. } = literal.advance(part.start() - range.start());
                let len_bytes = u32::try_from(part.len_bytes()).unwrap_or(u32::MAX);
                moved_to = skip.saturating_add(len_bytes);
                if !together.takes(part) {
                    self.flush(frame, &mut together)?;
                }
                let start = usize::try_from(skip).unwrap_or(usize::MAX);
                let end = usize::try_from(moved_to).unwrap_or(usize::MAX);
                let bytes = raw
                    .get(start..end)
                    .ok_or_else(|| StoreError::CatalogDamaged("an extent reaches past its frame".to_owned()))?;
                together.put(part, skip, len_bytes, bytes);
            }
        }
        self.flush(frame, &mut together)?;
        let needed_bytes = live.needed(frame);
        self.needed_before_bytes = self.needed_before_bytes.saturating_add(needed_bytes);
        let waste_bytes = cost(frame).saturating_sub(needed_bytes);
        self.waste_before_bytes = self.waste_before_bytes.saturating_add(waste_bytes);
        Ok(())
    }

    fn flush(&mut self, from: &FrameRef, together: &mut Together) -> Result<(), StoreError> {
        if together.bytes.is_empty() {
            return Ok(());
        }
        let codec = self.encoder.encode(&together.bytes, &mut self.stored);
        let stored: &[u8] = if codec == Codec::Raw {
            &together.bytes
        } else {
            &self.stored
        };
        let raw_len = u32::try_from(together.bytes.len()).unwrap_or(u32::MAX);
        let frame = self.writer.append(codec, raw_len, stored)?;
        self.written_bytes = self.written_bytes.saturating_add(cost(&frame));
        let mut at = 0_u32;
        for (skip, len_bytes) in together.parts.drain(..) {
            let to = Literal { frame, skip: at };
            self.moved.push(Moved {
                frame: *from,
                skip,
                len_bytes,
                to,
            });
            at = at.saturating_add(len_bytes);
        }
        together.bytes.clear();
        together.place = None;
        Ok(())
    }

    /// The count after the moves, as it is noted; `count` is the one before.
    pub(super) fn row_after(&self, count: &FrameCount) -> FragmentationRow {
        let before = count.row();
        let kept = before.needed_bytes.saturating_sub(self.needed_before_bytes);
        FragmentationRow {
            needed_bytes: kept.saturating_add(self.written_bytes),
            waste_bytes: before.waste_bytes.saturating_sub(self.waste_before_bytes),
            ..before
        }
    }
}

/// Parts of one place of the file that get a frame together.
#[derive(Default)]
struct Together {
    place: Option<u64>,
    bytes: Vec<u8>,
    /// Place in the old frame, and length, one after the other.
    parts: Vec<(u32, u32)>,
}

impl Together {
    fn takes(&self, part: ByteRange) -> bool {
        self.place == Some(part.start() / SHORT_LEN_MAX)
            && len_u64(&self.bytes).saturating_add(part.len_bytes()) <= SHORT_LEN_MAX
    }

    fn put(&mut self, part: ByteRange, skip: u32, len_bytes: u32, bytes: &[u8]) {
        self.place.get_or_insert(part.start() / SHORT_LEN_MAX);
        self.parts.push((skip, len_bytes));
        self.bytes.extend_from_slice(bytes);
    }
}

/// The places of a file in which a piece lies, each with the piece's bytes in it. A short piece is
/// not cut: it was written at once, and will be again.
fn cut(range: ByteRange) -> impl Iterator<Item = ByteRange> {
    let is_short = range.len_bytes() <= SHORT_LEN_MAX;
    let mut at = range.start();
    std::iter::from_fn(move || {
        let place_end = (at / SHORT_LEN_MAX).saturating_add(1).saturating_mul(SHORT_LEN_MAX);
        let end = if is_short {
            range.end()
        } else {
            place_end.min(range.end())
        };
        let part = ByteRange::new(at, end)?;
        at = end;
        Some(part)
    })
}
