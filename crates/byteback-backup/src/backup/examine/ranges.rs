//! The search for what the log reports. A program that inserts or removes something in a file in
//! place writes all that follows anew: the log knows exactly which ranges were written, and most of
//! their bytes are in the server's version, a little before or behind.
//!
//! Long ranges are searched by rsync's window in the part of the server's version around them; only
//! that part is summed there. All other ranges are sent as they are, and nothing else is read: at
//! the cut a tree holds only still what was reported. So the cost follows the change here, too.
//!
//! *Appended* bytes are not searched, as the server has nothing there. The server is asked for the
//! length of its version, because the log does not know it.
//!
//! *Proof.* The digest of the reported ranges, one after the other; if there are too many for a
//! proof, of the searched ones: all other bytes are sent, or were not reported.

use super::super::part_stream::PartStream;
use super::super::trim::BlockSums;
use super::found::{FoundFile, Proof};
use super::reading::{Hold, note_hole, read_ranges};
use super::{Call, Examined, Finding, Place, Stop, blocks_max, disorder};
use crate::decisions::Fallback;
use byteback_api::Digest;
use byteback_api::batch::PROVEN_RANGES_MAX;
use byteback_control::Piece;
use byteback_delta::ContentDigest;
use byteback_delta::find::{BlockIndex, ExtentSink, FindStats, RollingFinder};
use byteback_delta::signature::SignatureRequest;
use byteback_extents::{ByteRange, ExtentSet};

/// Shorter ranges are sent as they are: an answer of the server takes longer than their bytes.
const SEARCHED_LEN_MIN: u64 = 64 * 1024;

/// Most ranges of a file that are searched: each may need a signature of its own.
const SEARCHED_MAX: usize = 64;

/// Bounds of the bytes before and behind a range that are searched, too.
const SLACK_LEN_MIN: u64 = 64 * 1024;
const SLACK_LEN_MAX: u64 = 1 << 20;

/// A part of the server's version, and the ranges that are searched in it.
struct Search {
    part: ByteRange,
    ranges: Vec<ByteRange>,
}

/// The bytes of a file of this length that may be searched, if the server has something there.
pub(in crate::backup) fn searchable_bytes(ranges: &ExtentSet, len_bytes: u64) -> u64 {
    let long = reported(ranges, len_bytes).filter(|range| range.len_bytes() >= SEARCHED_LEN_MIN);
    long.map(ByteRange::len_bytes).sum()
}

/// The reported ranges of a file of this length.
pub(super) fn reported(ranges: &ExtentSet, len_bytes: u64) -> impl Iterator<Item = ByteRange> {
    let whole = ByteRange::new(0, len_bytes);
    ranges.iter().filter_map(move |range| range.intersect(whole?))
}

/// The part of a version of `base_len` bytes in which a range of a content of `len` bytes is
/// searched: as long as the range itself on both sides, and as far behind as the lengths differ,
/// within bounds.
fn part_for(range: ByteRange, len: u64, base_len: u64) -> Option<ByteRange> {
    let slack = range.len_bytes().clamp(SLACK_LEN_MIN, SLACK_LEN_MAX);
    let moved = len.abs_diff(base_len).min(range.len_bytes().max(SLACK_LEN_MAX));
    let end = range.end().saturating_add(slack).saturating_add(moved).min(base_len);
    let beside = ByteRange::new(range.start(), base_len.min(range.end()))?;
    (beside.len_bytes() >= SEARCHED_LEN_MIN)
        .then(|| ByteRange::new(range.start().saturating_sub(slack), end))
        .flatten()
}

/// The searches for these ranges, which ascend; parts that meet become one.
fn searches(ranges: impl Iterator<Item = ByteRange>, len: u64, base_len: u64) -> Vec<Search> {
    let with_part = |range| Some((range, part_for(range, len, base_len)?));
    let mut found: Vec<(ByteRange, ByteRange)> = ranges.filter_map(with_part).collect();
    if found.len() > SEARCHED_MAX {
        found.sort_unstable_by_key(|(range, _)| std::cmp::Reverse(range.len_bytes()));
        found.truncate(SEARCHED_MAX);
        found.sort_unstable();
    }
    let mut searches: Vec<Search> = Vec::new();
    for (range, part) in found {
        match searches.last_mut() {
            Some(last) if last.part.end() >= part.start() => {
                last.part = last.part.hull(part);
                last.ranges.push(range);
            }
            _ => searches.push(Search {
                part,
                ranges: vec![range],
            }),
        }
    }
    searches
}

pub(super) fn find(
    place: Place<'_>,
    file: &Examined<'_>,
    ranges: &ExtentSet,
    stream: &mut PartStream<'_, '_>,
    sums: &mut BlockSums<'_>,
) -> Finding {
    let (job, len) = (place.job, file.attributes.size);
    let there = job.server.node(job.folder, file.at_server, place.base_seq);
    let base_len = place.answered(Call::Signature, there)?.attributes.size;
    let searches = searches(reported(ranges, len), len, base_len);
    if searches.is_empty() {
        return Err(Stop::Fallback(Fallback::Appended));
    }
    let mut indexes = Vec::new();
    for search in &searches {
        indexes.push(index(place, file, search.part)?);
    }
    // Only blocks that are read as a whole can be summed.
    sums.forget(file.node);

    let searched_ranges = searches.iter().flat_map(|search| &search.ranges).copied();
    let is_all_proven = reported(ranges, len).count() <= PROVEN_RANGES_MAX;
    let proven: Vec<ByteRange> = match is_all_proven {
        true => reported(ranges, len).collect(),
        false => searched_ranges.collect(),
    };
    let proven_len = proven.iter().copied().map(ByteRange::len_bytes).sum();
    let reported_len = reported(ranges, len).map(ByteRange::len_bytes).sum();
    let block_len_min = indexes
        .iter()
        .map(|index| index.signature().params().block_len_bytes)
        .min();
    let room = job
        .options
        .limits
        .extents_max
        .saturating_sub(ranges.len().saturating_mul(2));
    let hold = Hold::for_last_look(reported_len, block_len_min.unwrap_or(1).into(), room);
    let found = FoundFile::new(place, file, base_len, stream);
    let mut reading = Reading {
        place,
        file,
        hold,
        found: match is_all_proven {
            true => found,
            false => found.without_second_look(),
        },
        is_all_proven,
        digest: ContentDigest::new(proven_len),
        holes: Vec::new(),
        stats: FindStats::default(),
    };
    let mut rest = reported(ranges, len).peekable();
    for (search, index) in searches.iter().zip(&indexes) {
        for range in &search.ranges {
            let before = std::iter::from_fn(|| rest.next_if(|next| next.start() < range.start()));
            reading.send(before)?;
            rest.next();
            reading.search(*range, search.part, index)?;
        }
    }
    reading.send(rest)?;

    let Reading {
        found,
        digest,
        holes,
        stats,
        ..
    } = reading;
    let digest = digest.finish().ok_or_else(|| disorder("some of it is missing"))?;
    let sent = found.finish(Proof::ranges(Digest(digest), proven), stats.copied_bytes > 0, &holes)?;
    Ok((sent, stats))
}

/// The blocks of a part of the server's version.
fn index(place: Place<'_>, file: &Examined<'_>, part: ByteRange) -> Result<BlockIndex, Stop> {
    let job = place.job;
    let request = SignatureRequest {
        part: Some(part),
        ..SignatureRequest::default()
    };
    let blocks_max = blocks_max(part.len_bytes());
    let signature = job
        .server
        .signature(job.folder, file.at_server, place.base_seq, &request, blocks_max);
    let signature = place.answered(Call::Signature, signature)?;
    match signature.content_len_bytes() == part.len_bytes() {
        true => Ok(BlockIndex::new(signature)),
        false => Err(Stop::Fallback(Fallback::NoSignature)),
    }
}

/// A file whose ranges are being read.
struct Reading<'a, 'scope, 'env> {
    place: Place<'a>,
    file: &'a Examined<'a>,
    hold: Hold,
    found: FoundFile<'a, 'scope, 'env>,
    /// Whether the digest is of all ranges, or of the searched ones.
    is_all_proven: bool,
    digest: ContentDigest,
    holes: Vec<ByteRange>,
    stats: FindStats,
}

impl Reading<'_, '_, '_> {
    /// Sends ranges as they are.
    fn send(&mut self, ranges: impl Iterator<Item = ByteRange>) -> Result<(), Stop> {
        let (found, digest) = (&mut self.found, &mut self.digest);
        let is_proven = self.is_all_proven;
        read_ranges(
            self.place,
            self.file.node,
            self.hold,
            ranges,
            &mut |piece| match piece {
                Piece::Hole(range) => {
                    if is_proven {
                        digest.push_zeros(range.len_bytes());
                    }
                    found.zero(range)
                }
                Piece::Data { offset, bytes } => {
                    if is_proven {
                        digest.push(bytes);
                    }
                    found.literal(offset, bytes)
                }
            },
        )
    }

    /// Sends what is not found of a range in a part of the server's version.
    fn search(&mut self, range: ByteRange, part: ByteRange, index: &BlockIndex) -> Result<(), Stop> {
        let beside = Beside {
            found: &mut self.found,
            range,
            part,
        };
        let mut finder = RollingFinder::new(index, beside);
        let (digest, holes, place) = (&mut self.digest, &mut self.holes, self.place);
        let ranges = std::iter::once(range);
        read_ranges(
            self.place,
            self.file.node,
            self.hold,
            ranges,
            &mut |piece| match piece {
                Piece::Hole(hole) => {
                    digest.push_zeros(hole.len_bytes());
                    note_hole(holes, hole, place);
                    finder.push_hole(hole.len_bytes())
                }
                Piece::Data { bytes, .. } => {
                    digest.push(bytes);
                    finder.push(bytes)
                }
            },
        )?;
        let (_, found) = finder.finish()?;
        self.stats.examined_bytes += found.examined_bytes;
        self.stats.strong_bytes += found.strong_bytes;
        self.stats.copied_bytes += found.copied_bytes;
        self.stats.literal_bytes += found.literal_bytes;
        self.stats.zero_bytes += found.zero_bytes;
        Ok(())
    }
}

/// Gives the extents of a range and of a part of the base their places in the file and its base.
struct Beside<'f, 'a, 'scope, 'env> {
    found: &'f mut FoundFile<'a, 'scope, 'env>,
    range: ByteRange,
    part: ByteRange,
}

impl Beside<'_, '_, '_, '_> {
    fn place(&self, range: ByteRange) -> Result<ByteRange, Stop> {
        let offset = self.range.start().checked_add(range.start());
        let placed = offset.and_then(|offset| ByteRange::from_offset_len(offset, range.len_bytes()));
        placed.ok_or_else(|| disorder("an extent lies behind the largest file size"))
    }
}

impl ExtentSink for Beside<'_, '_, '_, '_> {
    type Error = Stop;

    fn literal(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Stop> {
        self.found.literal(self.range.start().saturating_add(offset), bytes)
    }

    fn copy(&mut self, range: ByteRange, base_offset: u64) -> Result<(), Stop> {
        let range = self.place(range)?;
        self.found.copy(range, self.part.start().saturating_add(base_offset))
    }

    fn zero(&mut self, range: ByteRange) -> Result<(), Stop> {
        let range = self.place(range)?;
        self.found.zero(range)
    }
}

#[cfg(test)]
mod tests;
