//! Whole blocks of a new content that are looked up among those of the server's version, wherever
//! they lie there.
//!
//! A file system inside a disk image, or a database, writes blocks of a few KiB at multiples of
//! their length. When a program there saves a file anew, copies or moves it, the blocks that are
//! written are mostly in the image already, but anywhere.
//!
//! Blocks of 4 KiB are summed, one after the other like one content, and the server looks them up
//! by the leaves that it keeps of its version ([`byteback_delta::find::LeafLookup`]). It reads
//! nothing that it has summed before. `lookup` asks so for what the log reports, `found` for what
//! a search in parts of the server's version left.

use super::ranges::reported;
use super::{Call, Place, Stop, disorder};
use crate::error::BackupError;
use byteback_delta::leaves::{LEAF_LEN_BYTES, LeafKind};
use byteback_delta::matches::MatchList;
use byteback_delta::signature::{SignatureParams, SignatureWriter};
use byteback_delta::strong::StrongKind;
use byteback_delta::weak::WeakKind;
use byteback_extents::{ByteRange, ExtentSet};
use byteback_host::random::{Randomness, RealRandomness};
use byteback_model::FileId;

/// Length of a block in bytes.
pub(super) const BLOCK_LEN: u64 = LEAF_LEN_BYTES as u64;

/// The bytes of whole blocks in the reported ranges of a file of this length.
pub(in crate::backup) fn block_bytes(ranges: &ExtentSet, len_bytes: u64) -> u64 {
    blocks_in(reported(ranges, len_bytes)).map(ByteRange::len_bytes).sum()
}

/// The whole blocks in these ranges.
pub(super) fn blocks_in(ranges: impl Iterator<Item = ByteRange>) -> impl Iterator<Item = ByteRange> {
    ranges.filter_map(|range| {
        let start = range.start().checked_next_multiple_of(BLOCK_LEN)?;
        ByteRange::new(start, range.end() - range.end() % BLOCK_LEN)
    })
}

/// A part of a range.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) range: ByteRange,
    /// Where the server has its bytes; `None`: unknown.
    pub(super) base_offset: Option<u64>,
}

/// Blocks of a content that is `content_len` bytes long, as they are summed for the server.
pub(super) struct Question {
    writer: SignatureWriter<Vec<u8>>,
    len_bytes: u64,
}

impl Question {
    /// A question about `len_bytes` of blocks.
    pub(super) fn new(content_len: u64, len_bytes: u64) -> Result<Self, Stop> {
        let seed = RealRandomness
            .next_u64()
            .map_err(|error| BackupError::local("draw", "a checksum seed", error))?;
        let params = SignatureParams {
            weak: WeakKind::Crc32c,
            strong: StrongKind::Tree(LeafKind::Blake3),
            // The number of comparisons follows from the longer content, which the server has.
            ..SignatureParams::with_block_len(content_len.max(len_bytes), LEAF_LEN_BYTES, seed)
        };
        let writer = SignatureWriter::new(Vec::new(), params, len_bytes).map_err(odd)?;
        Ok(Self { writer, len_bytes })
    }

    /// Adds the next bytes of the blocks.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        self.writer.push(bytes).map_err(odd)
    }

    /// Adds zeros.
    pub(super) fn push_zeros(&mut self, len_bytes: u64) -> Result<(), Stop> {
        self.writer.push_zeros(len_bytes).map_err(odd)
    }

    /// Lets the server look the blocks up in a file of its.
    pub(super) fn ask(self, place: Place<'_>, at_server: FileId) -> Result<MatchList, Stop> {
        let (job, at) = (place.job, place.base_seq);
        let signature = self.writer.finish().map_err(odd)?;
        let list = job
            .server
            .matches(job.folder, at_server, at, &signature, self.len_bytes, LEAF_LEN_BYTES);
        place.answered(Call::Lookup, list)
    }
}

fn odd(error: std::io::Error) -> Stop {
    disorder(&error.to_string())
}

/// The ranges in parts: those that the server has, with their places there, and the rest. All
/// ascend; `sought` are the ranges that the list's content consists of, one after the other.
pub(super) fn parts(ranges: impl Iterator<Item = ByteRange>, sought: &[ByteRange], list: &MatchList) -> Vec<Part> {
    let mut matched: Vec<Part> = Vec::new();
    let mut runs = list.runs().iter().copied().peekable();
    let mut before = 0;
    for range in sought {
        let end = before + range.len_bytes();
        while let Some(run) = runs.peek() {
            let (from, to) = (run.range.start().max(before), run.range.end().min(end));
            if let Some(part) = ByteRange::new(
                range.start() + from.saturating_sub(before),
                range.start() + to.saturating_sub(before),
            ) {
                let base_offset = Some(run.base_offset + (from - run.range.start()));
                matched.push(Part {
                    range: part,
                    base_offset,
                });
            }
            if run.range.end() > end {
                break;
            }
            runs.next();
        }
        before = end;
    }
    let mut parts = Vec::with_capacity(matched.len() * 2);
    let mut matched = matched.into_iter().peekable();
    for range in ranges {
        let mut at = range.start();
        while let Some(part) = matched.next_if(|part| part.range.end() <= range.end()) {
            parts.extend(ByteRange::new(at, part.range.start()).map(|range| Part {
                range,
                base_offset: None,
            }));
            at = part.range.end();
            parts.push(part);
        }
        parts.extend(ByteRange::new(at, range.end()).map(|range| Part {
            range,
            base_offset: None,
        }));
    }
    parts
}

/// Leaves out found parts until they are at most `ranges_max` ranges, the shortest first; returns
/// these.
pub(super) fn keep_longest(parts: &mut [Part], ranges_max: usize) -> ExtentSet {
    let found = parts.iter().filter(|part| part.base_offset.is_some());
    let mut kept: ExtentSet = found.map(|part| part.range).collect();
    if kept.len() > ranges_max {
        let mut ranges: Vec<ByteRange> = kept.iter().collect();
        ranges.sort_unstable_by_key(|range| std::cmp::Reverse(range.len_bytes()));
        kept = ranges.into_iter().take(ranges_max).collect();
        for part in parts {
            part.base_offset = part.base_offset.filter(|_| kept.intersects(part.range));
        }
    }
    kept
}

#[cfg(test)]
mod tests;
