//! The lookup of what the log reports among the blocks of the server's version, wherever they lie
//! there.
//!
//! A file system inside a disk image, or a database, writes blocks of a few KiB at multiples of
//! their length. When a program there saves a file anew, copies or moves it, the blocks that are
//! written are mostly in the image already, but anywhere: the log reports them as changed, and a
//! search around them ([`super::ranges`]) finds nothing.
//!
//! So the blocks of 4 KiB that the reported ranges cover as a whole are summed, one after the other
//! like one content, and the server looks them up by the leaves that it keeps of its version
//! ([`byteback_delta::find::LeafLookup`]). It reads nothing that it has summed before; nothing but
//! the reported ranges is read here. Blocks that are found become copies, also where they lie in
//! the same place; all else of the ranges is sent.
//!
//! *Proof.* The digest of the reported ranges; if there are too many for a proof, of the blocks that
//! were found: all other bytes are sent, or were not reported.

use super::super::part_stream::PartStream;
use super::super::trim::BlockSums;
use super::found::{FoundFile, Proof};
use super::ranges::reported;
use super::reading::{Hold, note_hole, read_ranges};
use super::{Call, Examined, Finding, Place, Stop, disorder};
use crate::decisions::Fallback;
use crate::error::BackupError;
use byteback_api::Digest;
use byteback_api::batch::PROVEN_RANGES_MAX;
use byteback_control::Piece;
use byteback_delta::ContentDigest;
use byteback_delta::find::{ExtentSink, FindStats};
use byteback_delta::leaves::{LEAF_LEN_BYTES, LeafKind};
use byteback_delta::matches::MatchList;
use byteback_delta::signature::{SignatureParams, SignatureWriter};
use byteback_delta::strong::StrongKind;
use byteback_delta::weak::WeakKind;
use byteback_extents::{ByteRange, ExtentSet};
use byteback_host::random::{Randomness, RealRandomness};

const BLOCK_LEN: u64 = LEAF_LEN_BYTES as u64;

/// Most blocks of a file that are looked up: those of a GiB.
const BLOCKS_MAX: u64 = 1 << 18;

/// The bytes of whole blocks in the reported ranges of a file of this length.
pub(in crate::backup) fn block_bytes(ranges: &ExtentSet, len_bytes: u64) -> u64 {
    blocks(ranges, len_bytes).map(ByteRange::len_bytes).sum()
}

/// The whole blocks in the reported ranges.
fn blocks(ranges: &ExtentSet, len_bytes: u64) -> impl Iterator<Item = ByteRange> {
    reported(ranges, len_bytes).filter_map(|range| {
        let start = range.start().checked_next_multiple_of(BLOCK_LEN)?;
        ByteRange::new(start, range.end() - range.end() % BLOCK_LEN)
    })
}

/// A part of a reported range.
#[derive(Clone, Copy)]
struct Part {
    range: ByteRange,
    /// Where the server has its bytes; `None`: unknown.
    base_offset: Option<u64>,
}

/// `note`: a remark about the search.
pub(super) fn find(
    place: Place<'_>,
    file: &Examined<'_>,
    ranges: &ExtentSet,
    note: &mut Option<Fallback>,
    stream: &mut PartStream<'_, '_>,
    sums: &mut BlockSums<'_>,
) -> Finding {
    let (job, len) = (place.job, file.attributes.size);
    let sought: Vec<ByteRange> = blocks(ranges, len).collect();
    let sought_len = sought.iter().copied().map(ByteRange::len_bytes).sum();
    if sought_len == 0 || sought_len > BLOCKS_MAX * BLOCK_LEN {
        return Err(Stop::Fallback(Fallback::TooScattered));
    }
    let list = look_up(place, file, &sought, sought_len)?;
    let mut parts = parts(reported(ranges, len), &sought, &list);
    let is_all_proven = reported(ranges, len).count() <= PROVEN_RANGES_MAX;
    let proven = match is_all_proven {
        true => reported(ranges, len).collect(),
        false => keep_longest(&mut parts, PROVEN_RANGES_MAX),
    };
    if proven.is_empty() {
        return Err(Stop::Fallback(Fallback::FoundNothing));
    }
    // A hole splits a part in three.
    if parts.len().saturating_mul(2) > job.options.limits.extents_max {
        return Err(Stop::Fallback(Fallback::TooScattered));
    }
    // Only blocks that are read as a whole can be summed.
    sums.forget(file.node);

    let reported_len = reported(ranges, len).map(ByteRange::len_bytes).sum();
    let room = job
        .options
        .limits
        .extents_max
        .saturating_sub(parts.len().saturating_mul(2));
    let hold = Hold::for_last_look(reported_len, BLOCK_LEN, room);
    let mut found = FoundFile::new(place, file, list.base_len_bytes(), stream);
    if !is_all_proven {
        found = found.without_second_look();
    }
    let mut digest = ContentDigest::new(proven.total_len_bytes());
    let mut holes = Vec::new();
    let mut stats = FindStats::default();
    let mut rest = parts.iter().copied().peekable();
    read_ranges(place, file.node, hold, reported(ranges, len), &mut |piece| {
        let (mut at, end) = match piece {
            Piece::Hole(range) => (range.start(), range.end()),
            Piece::Data { offset, bytes } => (offset, offset.saturating_add(bytes.len() as u64)),
        };
        while at < end {
            while rest.next_if(|part| part.range.end() <= at).is_some() {}
            let part = *rest
                .peek()
                .ok_or_else(|| disorder("more of it came than was requested"))?;
            let now = ByteRange::new(at, end.min(part.range.end())).ok_or_else(|| disorder("a part is empty"))?;
            let bytes = match piece {
                Piece::Hole(_) => None,
                Piece::Data { offset, bytes } => Some(within(bytes, offset, now)?),
            };
            if is_all_proven || part.base_offset.is_some() {
                match bytes {
                    Some(bytes) => digest.push(bytes),
                    None => digest.push_zeros(now.len_bytes()),
                }
            }
            match (part.base_offset, bytes) {
                (Some(base_offset), bytes) => {
                    if bytes.is_none() {
                        note_hole(&mut holes, now, place);
                    }
                    stats.copied_bytes += now.len_bytes();
                    found.copy(now, base_offset + (at - part.range.start()))?;
                }
                (None, Some(bytes)) => {
                    stats.literal_bytes += now.len_bytes();
                    found.literal(at, bytes)?;
                }
                (None, None) => {
                    stats.zero_bytes += now.len_bytes();
                    found.zero(now)?;
                }
            }
            at = now.end();
        }
        Ok(())
    })?;
    stats.examined_bytes = sought_len;
    let digest = digest.finish().ok_or_else(|| disorder("some of it is missing"))?;
    let proof = Proof::ranges(Digest(digest), proven.iter().collect());
    let sent = found.finish(proof, stats.copied_bytes > 0, &holes)?;
    if stats.copied_bytes + sent.found_again_bytes == 0 {
        *note = Some(Fallback::FoundNothing);
    }
    Ok((sent, stats))
}

/// Leaves out found parts until they are at most `ranges_max` ranges, the shortest first; returns
/// these.
fn keep_longest(parts: &mut [Part], ranges_max: usize) -> ExtentSet {
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

/// The bytes of a range, out of those from `offset` on.
fn within(bytes: &[u8], offset: u64, range: ByteRange) -> Result<&[u8], Stop> {
    let place = |at: u64| usize::try_from(at.saturating_sub(offset)).unwrap_or(usize::MAX);
    let found = bytes.get(place(range.start())..place(range.end()));
    found.ok_or_else(|| disorder("a piece is shorter than it claims"))
}

/// Lets the server look these blocks up, as one content.
fn look_up(place: Place<'_>, file: &Examined<'_>, sought: &[ByteRange], sought_len: u64) -> Result<MatchList, Stop> {
    let job = place.job;
    let seed = RealRandomness
        .next_u64()
        .map_err(|error| BackupError::local("draw", "a checksum seed", error))?;
    let params = SignatureParams {
        weak: WeakKind::Crc32c,
        strong: StrongKind::Tree(LeafKind::Blake3),
        // The number of comparisons follows from the longer content, which the server has.
        ..SignatureParams::with_block_len(file.attributes.size.max(sought_len), LEAF_LEN_BYTES, seed)
    };
    let odd = |error: std::io::Error| disorder(&error.to_string());
    let mut writer = SignatureWriter::new(Vec::new(), params, sought_len).map_err(odd)?;
    read_ranges(place, file.node, Hold::Still, sought.iter().copied(), &mut |piece| {
        let written = match piece {
            Piece::Hole(range) => writer.push_zeros(range.len_bytes()),
            Piece::Data { bytes, .. } => writer.push(bytes),
        };
        written.map_err(odd)
    })?;
    let signature = writer.finish().map_err(odd)?;
    let (folder, at) = (job.folder, place.base_seq);
    let list = job
        .server
        .matches(folder, file.at_server, at, &signature, sought_len, LEAF_LEN_BYTES);
    place.answered(Call::Lookup, list)
}

/// The reported ranges in parts: those that the server has, with their places there, and the rest.
/// All ascend; `sought` are the ranges that the list's content consists of, one after the other.
fn parts(reported: impl Iterator<Item = ByteRange>, sought: &[ByteRange], list: &MatchList) -> Vec<Part> {
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
    for range in reported {
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

#[cfg(test)]
mod tests;
