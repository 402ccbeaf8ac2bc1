//! A row of kept sums: those of one MiB of one file, and where its bytes lay when they were summed.
//!
//! ```text
//! row  = version u8 = 1 | page bytes | sum* | crc32c u32
//! sum  = crc32c of the block u32 LE | leaf (32 bytes)
//! ```
//! `page` is a page of extents as a layer has it (`layer`), relative to the chunk, without gaps and
//! without copies. It ends where the chunk ends, which gives the number of sums. The last crc is
//! that of the node's number (8 bytes, LE), the number of the leaves' kind (1), the chunk's number
//! (8, LE), and everything before it.

use super::CHUNK_LEN;
use crate::codec::{Reader, Writer};
use crate::error::StoreError;
use crate::layer::{LayerExtent, Literal, Page, PageBuilder};
use crate::numbers::{ChunkNumber, NodeNumber};
use byteback_delta::Source;
use byteback_delta::leaves::{GROUP_LEAVES, LEAF_LEN_BYTES, Leaf, LeafKind, leaf_count, leaf_len_bytes};
use byteback_extents::{ByteRange, ExtentValue};

/// A chunk whose bytes lie in more places is not kept.
pub(crate) const SOURCES_MAX: usize = 1024;

const VERSION: u8 = 1;

/// Bytes of a leaf, and of its CRC before it.
const SUM_LEN: usize = 4 + 32;

/// The kept sums of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafSum {
    pub(crate) crc: u32,
    pub(crate) leaf: Leaf,
}

/// The key of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkKey {
    pub(crate) node: NodeNumber,
    pub(crate) kind: LeafKind,
    pub(crate) chunk: ChunkNumber,
}

/// The places of a chunk's bytes: ascending from 0 without gaps, as few extents as possible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sources(Vec<LayerExtent>);

/// For each leaf of a chunk, whether it is in the set.
pub(crate) type LeafSet = [bool; GROUP_LEAVES as usize];

impl Sources {
    /// Adds the next range; extents that continue each other become one.
    pub(crate) fn push(&mut self, range: ByteRange, source: Source<Literal>) {
        if let Some(last) = self.0.last_mut()
            && last.range.end() == range.start()
            && last.source.continues(last.range.len_bytes(), &source)
        {
            last.range = last.range.hull(range);
            return;
        }
        self.0.push(LayerExtent { range, source });
    }

    pub(crate) fn extents(&self) -> &[LayerExtent] {
        &self.0
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.0.last().map_or(0, |last| last.range.end())
    }

    /// Whether the chunk is nothing but zeros.
    pub(crate) fn is_zeros(&self) -> bool {
        self.0.iter().all(|extent| extent.source == Source::Zero)
    }

    /// The parts of `range`, in order.
    pub(crate) fn within(&self, range: ByteRange) -> impl Iterator<Item = LayerExtent> {
        let from = self.0.partition_point(|extent| extent.range.end() <= range.start());
        let overlapping = self.0.get(from..).unwrap_or_default().iter();
        overlapping.map_while(move |extent| {
            let part = extent.range.intersect(range)?;
            Some(LayerExtent {
                range: part,
                source: extent.source.advance(part.start() - extent.range.start()),
            })
        })
    }
}

/// A decoded row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptChunk {
    pub(crate) sources: Sources,
    pub(crate) sums: Vec<LeafSum>,
}

impl KeptChunk {
    pub(crate) fn encode(sources: &Sources, sums: &[LeafSum], key: ChunkKey) -> Vec<u8> {
        let mut builder = PageBuilder::default();
        for LayerExtent { range, source } in sources.extents() {
            builder.push(*range, *source);
        }
        builder.finish();
        let mut out = Writer::default();
        out.u8(VERSION);
        out.bytes(builder.pages.first().map_or(&[], |(_, page)| page));
        for sum in sums {
            out.bytes.extend_from_slice(&sum.crc.to_le_bytes());
            out.bytes.extend_from_slice(&sum.leaf);
        }
        let crc = crc_of(key, &out.bytes);
        out.bytes.extend_from_slice(&crc.to_le_bytes());
        out.bytes
    }

    pub(crate) fn decode(blob: &[u8], key: ChunkKey) -> Result<Self, StoreError> {
        let what = "a row of kept checksums";
        let Some((body, crc)) = blob.split_last_chunk::<4>() else {
            return Err(Reader::new(blob, what).damaged());
        };
        let mut r = Reader::new(body, what);
        if crc_of(key, body) != u32::from_le_bytes(*crc) || r.u8()? != VERSION {
            return Err(r.damaged());
        }
        let page = Page::decode(r.bytes()?)?;
        let mut end = 0;
        for extent in &page.extents {
            if extent.range.start() != end || matches!(extent.source, Source::Copy { .. }) {
                return Err(r.damaged());
            }
            end = extent.range.end();
        }
        if end == 0 || end > CHUNK_LEN {
            return Err(r.damaged());
        }
        let mut sums = Vec::new();
        for _ in 0..leaf_count(end) {
            let bytes: &[u8; SUM_LEN] = r.array()?;
            let (crc, leaf) = bytes.split_at(4);
            sums.push(LeafSum {
                crc: crc.try_into().map(u32::from_le_bytes).map_err(|_| r.damaged())?,
                leaf: leaf.try_into().map_err(|_| r.damaged())?,
            });
        }
        if !r.is_empty() {
            return Err(r.damaged());
        }
        Ok(Self {
            sources: Sources(page.extents),
            sums,
        })
    }

    /// The leaves of a chunk, whose bytes lie in `now`, that this row has: every byte lies where it
    /// lay, and the leaf has the same length.
    pub(crate) fn unchanged(&self, now: &Sources) -> LeafSet {
        let (before_len, now_len) = (self.sources.len_bytes(), now.len_bytes());
        let mut equal = [false; GROUP_LEAVES as usize];
        for (leaf, equal) in (0..).zip(&mut equal) {
            let len = leaf_len_bytes(now_len, leaf);
            *equal = len > 0 && len == leaf_len_bytes(before_len, leaf);
        }
        let (mut before, mut after) = (self.sources.0.iter().peekable(), now.0.iter().peekable());
        let mut at = 0;
        while let (Some(old), Some(new)) = (before.peek(), after.peek()) {
            let end = old.range.end().min(new.range.end());
            let source = |extent: &LayerExtent| extent.source.advance(at - extent.range.start());
            if source(old) != source(new) {
                let leaf = |byte: u64| (byte / u64::from(LEAF_LEN_BYTES)) as usize;
                let differing = equal.get_mut(leaf(at)..=leaf(end - 1)).unwrap_or_default();
                differing.fill(false);
            }
            before.next_if(|old| old.range.end() == end);
            after.next_if(|new| new.range.end() == end);
            at = end;
        }
        equal
    }
}

/// The checksum of a row.
pub(crate) fn crc_of(key: ChunkKey, body: &[u8]) -> u32 {
    let mut whose = Vec::with_capacity(17);
    whose.extend_from_slice(&key.node.0.to_le_bytes());
    whose.push(key.kind.code());
    whose.extend_from_slice(&key.chunk.0.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&whose), body)
}
