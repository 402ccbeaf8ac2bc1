//! The lookup of what the log reports among the blocks of the server's version, wherever they lie
//! there ([`super::blocks`]): where a file system in a disk image writes, a search around the
//! reported ranges ([`super::ranges`]) finds nothing.
//!
//! Nothing but the reported ranges is read here. Blocks that are found become copies, also where
//! they lie in the same place; all else of the ranges is sent.
//!
//! *Proof.* The digest of the reported ranges; if there are too many for a proof, of the blocks
//! that were found: all other bytes are sent, or were not reported.

use super::super::part_stream::PartStream;
use super::super::trim::BlockSums;
use super::blocks::{BLOCK_LEN, Question, blocks_in, keep_longest, parts};
use super::found::{FoundFile, Proof};
use super::ranges::reported;
use super::reading::{Hold, note_hole, read_ranges};
use super::{Examined, Finding, Place, Stop, disorder};
use crate::decisions::Fallback;
use byteback_api::Digest;
use byteback_api::batch::PROVEN_RANGES_MAX;
use byteback_control::Piece;
use byteback_delta::ContentDigest;
use byteback_delta::find::{ExtentSink, FindStats};
use byteback_extents::{ByteRange, ExtentSet};

/// Most blocks of a file that are looked up: those of a GiB.
const BLOCKS_MAX: u64 = 1 << 18;

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
    let sought: Vec<ByteRange> = blocks_in(reported(ranges, len)).collect();
    let sought_len = sought.iter().copied().map(ByteRange::len_bytes).sum();
    if sought_len == 0 || sought_len > BLOCKS_MAX * BLOCK_LEN {
        return Err(Stop::Fallback(Fallback::TooScattered));
    }
    let mut question = Question::new(len, sought_len)?;
    read_ranges(
        place,
        file.node,
        Hold::Still,
        sought.iter().copied(),
        &mut |piece| match piece {
            Piece::Hole(range) => question.push_zeros(range.len_bytes()),
            Piece::Data { bytes, .. } => question.push(bytes),
        },
    )?;
    let list = question.ask(place, file.at_server)?;
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
    let mut found = FoundFile::new(place, file, list.base_len_bytes(), stream).with_blocks_anywhere();
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

/// The bytes of a range, out of those from `offset` on.
fn within(bytes: &[u8], offset: u64, range: ByteRange) -> Result<&[u8], Stop> {
    let place = |at: u64| usize::try_from(at.saturating_sub(offset)).unwrap_or(usize::MAX);
    let found = bytes.get(place(range.start())..place(range.end()));
    found.ok_or_else(|| disorder("a piece is shorter than it claims"))
}
