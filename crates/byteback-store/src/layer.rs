//! A layer: how one version of a file's contents follows from the previous one, as pages of
//! extents.
//!
//! A layer is a delta whose literals lie in segments. Bytes that no extent covers are kept from the
//! base at the same offset, and are zero where the base has none, as in `byteback_delta::DeltaMap`.
//! Extents are kept in *pages* of at most [`PAGE_EXTENTS_MAX`], found by the offset of their first
//! extent, so that reading a few bytes of a large layer reads one page.
//!
//! ```text
//! page   = version u8 = 1 | frames varint | frame* | extents varint | extent* | crc32c u32
//! frame  = segment varint | offset varint | stored_len varint | raw_len varint | codec u8
//! extent = gap to the end before varint | (length << 2 | kind) varint
//!        | kind 0 (literal): frame index varint, bytes to skip in it varint
//!        | kind 1 (copy): base offset minus start, zigzag varint    | kind 2 (zero): nothing
//! ```

use crate::codec::{Reader, Writer};
use crate::error::StoreError;
use crate::numbers::SegmentNumber;
use crate::segments::FrameRef;
use byteback_delta::Source;
use byteback_extents::{ByteRange, ExtentValue};
use std::collections::HashMap;

/// Most extents in a page.
pub(crate) const PAGE_EXTENTS_MAX: usize = 4096;

/// A place in a frame's decoded bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Literal {
    pub(crate) frame: FrameRef,
    pub(crate) skip: u32,
}

impl ExtentValue for Literal {
    fn advance(&self, by_bytes: u64) -> Self {
        // A place past the end of its frame is refused when it is read.
        let by = u32::try_from(by_bytes).unwrap_or(u32::MAX);
        Self {
            skip: self.skip.saturating_add(by),
            ..*self
        }
    }

    fn continues(&self, len_bytes: u64, next: &Self) -> bool {
        self.frame == next.frame && u64::from(self.skip).checked_add(len_bytes) == Some(u64::from(next.skip))
    }
}

/// A range of the new contents and the source of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayerExtent {
    pub(crate) range: ByteRange,
    pub(crate) source: Source<Literal>,
}

/// The extents of one page, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) extents: Vec<LayerExtent>,
}

impl Page {
    pub(crate) fn decode(blob: &[u8]) -> Result<Self, StoreError> {
        let mut r = Reader::with_crc(blob, "a page of extents")?;
        if r.u8()? != 1 {
            return Err(r.damaged());
        }
        let mut frames = Vec::new();
        for _ in 0..r.varint()? {
            frames.push(FrameRef {
                segment: SegmentNumber(r.varint()?),
                offset: r.varint()?,
                stored_len: r.u32()?,
                raw_len: r.u32()?,
                codec: r.u8()?,
            });
        }
        let mut extents = Vec::new();
        let mut end = 0u64;
        for _ in 0..r.varint()? {
            let gap = r.varint()?;
            let head = r.varint()?;
            let range = end
                .checked_add(gap)
                .and_then(|start| ByteRange::from_offset_len(start, head >> 2))
                .ok_or_else(|| r.damaged())?;
            end = range.end();
            let source = match head & 3 {
                0 => {
                    let index = usize::try_from(r.varint()?).map_err(|_| r.damaged())?;
                    let skip = r.u32()?;
                    let frame = *frames.get(index).ok_or_else(|| r.damaged())?;
                    if u64::from(skip).saturating_add(range.len_bytes()) > u64::from(frame.raw_len) {
                        return Err(r.damaged());
                    }
                    Source::Literal(Literal { frame, skip })
                }
                1 => {
                    let shift = r.signed()?;
                    let base_offset = range.start().checked_add_signed(shift).ok_or_else(|| r.damaged())?;
                    Source::Copy { base_offset }
                }
                2 => Source::Zero,
                _ => return Err(r.damaged()),
            };
            extents.push(LayerExtent { range, source });
        }
        if !r.is_empty() {
            return Err(r.damaged());
        }
        Ok(Self { extents })
    }
}

/// Gathers ascending extents into encoded pages.
#[derive(Debug, Default)]
pub(crate) struct PageBuilder {
    extents: Vec<LayerExtent>,
    /// (offset of the first extent, encoded page).
    pub(crate) pages: Vec<(u64, Vec<u8>)>,
    pub(crate) extents_total: u64,
    pub(crate) copies: bool,
    /// Every byte before this offset has an extent.
    pub(crate) covered_to: u64,
}

impl PageBuilder {
    /// Adds an extent that begins at or after the end of the previous one.
    pub(crate) fn push(&mut self, range: ByteRange, source: Source<Literal>) {
        self.copies |= matches!(source, Source::Copy { .. });
        if range.start() == self.covered_to {
            self.covered_to = range.end();
        }
        if let Some(last) = self.extents.last_mut()
            && last.range.end() == range.start()
            && last.source.continues(last.range.len_bytes(), &source)
        {
            last.range = last.range.hull(range);
            return;
        }
        if self.extents.len() >= PAGE_EXTENTS_MAX {
            self.flush();
        }
        self.extents.push(LayerExtent { range, source });
        self.extents_total = self.extents_total.saturating_add(1);
    }

    pub(crate) fn finish(&mut self) {
        self.flush();
    }

    fn flush(&mut self) {
        let Some(first) = self.extents.first() else { return };
        let start = first.range.start();
        let mut index_of = HashMap::new();
        let mut frames = Vec::new();
        for extent in &self.extents {
            if let Source::Literal(literal) = extent.source {
                index_of.entry(literal.frame).or_insert_with(|| {
                    frames.push(literal.frame);
                    frames.len() - 1
                });
            }
        }
        let mut out = Writer::default();
        out.u8(1);
        out.varint(usize_u64(frames.len()));
        for frame in &frames {
            out.varint(frame.segment.0);
            out.varint(frame.offset);
            out.varint(u64::from(frame.stored_len));
            out.varint(u64::from(frame.raw_len));
            out.u8(frame.codec);
        }
        out.varint(usize_u64(self.extents.len()));
        let mut end = 0;
        for LayerExtent { range, source } in self.extents.drain(..) {
            out.varint(range.start().saturating_sub(end));
            end = range.end();
            let len = range.len_bytes() << 2;
            match source {
                Source::Literal(literal) => {
                    out.varint(len);
                    out.varint(usize_u64(index_of.get(&literal.frame).copied().unwrap_or(usize::MAX)));
                    out.varint(u64::from(literal.skip));
                }
                Source::Copy { base_offset } => {
                    out.varint(len | 1);
                    // Both are below 2^63 (`FILE_LEN_MAX`), hence so is their difference.
                    out.signed(base_offset.wrapping_sub(range.start()).cast_signed());
                }
                Source::Zero => out.varint(len | 2),
            }
        }
        self.pages.push((start, out.finish_with_crc()));
    }
}

fn usize_u64(value: usize) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
