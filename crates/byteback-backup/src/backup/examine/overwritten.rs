//! The comparison of what the log reports with what programs overwrote: the tree keeps the old
//! bytes for a while ([`byteback_control::TreeService::before_image`]), so nothing is asked of the
//! server, and matches are found down to 32 bytes. Rows that a database moves within its pages are
//! copies then, and all but the mail that was removed from a mailbox.
//!
//! Blocks of which little is found probably lie elsewhere in the server's version, as a file system
//! in a disk image writes them. If there are many, they are looked up there first, as a whole:
//! short matches would take them apart. The rest is looked for as after any other finder
//! ([`super::found`]). If that is most of it, the file is searched in another way.
//!
//! *Memory*: the reported ranges and what is kept of them, each at most [`COMPARED_LEN_MAX`], and
//! the literals once more.
//!
//! *Proof.* The digest of the reported ranges. It also shows that the server's version is what the
//! tree took it for. Ranges are joined where the bytes between them are known: those have not
//! changed.

use super::super::Job;
use super::super::content::len_u64;
use super::super::part_stream::PartStream;
use super::super::plan::LOOKED_UP_LEN_MIN;
use super::super::trim::BlockSums;
use super::blocks::{BLOCK_LEN, blocks_in};
use super::found::{FoundFile, Proof};
use super::ranges::reported;
use super::reading::{Hold, note_hole, read_ranges};
use super::{Examined, Finding, Place, Stop, disorder};
use crate::decisions::Fallback;
use byteback_api::Digest;
use byteback_api::batch::PROVEN_RANGES_MAX;
use byteback_control::{CutId, ErrorKind, Piece, ServiceError};
use byteback_delta::find::{ExtentSink, FindStats, FoundExtents, InMemoryFinder, Packed, Unpacked};
use byteback_delta::{ContentDigest, Source};
use byteback_extents::{ByteRange, ExtentSet};
use byteback_model::NodeId;

/// Most bytes of a file that are compared, and most old ones that they are compared with.
pub(in crate::backup) const COMPARED_LEN_MAX: u64 = 16 << 20;

/// The bytes of some ranges of a file.
#[derive(Debug)]
struct Known {
    /// Ascending, and apart from each other.
    ranges: Vec<ByteRange>,
    packed: Packed,
    bytes: Vec<u8>,
}

impl Known {
    fn new(ranges: Vec<ByteRange>, bytes: Vec<u8>) -> Self {
        Self {
            packed: ranges.iter().copied().collect(),
            ranges,
            bytes,
        }
    }

    /// The bytes of this range, if all of them are known.
    fn bytes_of(&self, range: ByteRange) -> Option<&[u8]> {
        let number = self.ranges.partition_point(|known| known.end() <= range.start());
        let known = self.ranges.get(number)?;
        (known.start() <= range.start() && range.end() <= known.end()).then_some(())?;
        let start = self.packed.start_of(number)? + (range.start() - known.start());
        let start = usize::try_from(start).ok()?;
        let len = usize::try_from(range.len_bytes()).ok()?;
        self.bytes.get(start..start.checked_add(len)?)
    }
}

/// The part of a file that was overwritten since the mark, as it was then: the tree keeps it, or
/// the server's version has it.
#[derive(Debug)]
pub(in crate::backup) struct Overwritten {
    /// The length of the file.
    len_bytes: u64,
    old: Known,
}

impl Overwritten {
    /// Asks the tree; `None` if it does not know.
    pub(in crate::backup) fn of(job: &Job<'_>, cut: CutId, node: NodeId) -> Option<Self> {
        let mut ranges: Vec<ByteRange> = Vec::new();
        let mut bytes = Vec::new();
        let mut take = |piece: Piece<'_>| {
            let Piece::Data { offset, bytes: some } = piece else {
                return Ok(());
            };
            if len_u64(bytes.len() + some.len()) > COMPARED_LEN_MAX {
                return Err(ServiceError::new(ErrorKind::Node, "too many old bytes"));
            }
            let range = ByteRange::from_offset_len(offset, len_u64(some.len()));
            let range = range.ok_or_else(|| ServiceError::new(ErrorKind::Protocol, "old bytes lie nowhere"))?;
            match ranges.last_mut() {
                Some(last) if last.end() == range.start() => *last = last.hull(range),
                Some(last) if last.end() > range.start() => {
                    return Err(ServiceError::new(ErrorKind::Protocol, "old bytes arrived out of order"));
                }
                _ => ranges.push(range),
            }
            bytes.extend_from_slice(some);
            Ok(())
        };
        // A tree that cannot tell costs bytes.
        let len_bytes = job.tree.before_image(cut, node, &mut take).ok()??;
        let is_within = ranges.last().is_some_and(|last| last.end() <= len_bytes);
        is_within.then(|| Self::new(len_bytes, ranges, bytes))
    }

    /// The bytes of these ranges of a content of `len_bytes`, one after the other; the ranges
    /// ascend, apart from each other.
    pub(super) fn new(len_bytes: u64, ranges: Vec<ByteRange>, bytes: Vec<u8>) -> Self {
        Self {
            len_bytes,
            old: Known::new(ranges, bytes),
        }
    }

    /// Whether a version of this length can be the one that was overwritten: copies from behind its
    /// end would make a delta that nobody takes.
    pub(super) fn is_of(&self, version_len_bytes: u64) -> bool {
        self.len_bytes == version_len_bytes
    }

    /// The finder of parts of the file in it.
    pub(super) fn comparison(&self) -> Comparison<'_> {
        Comparison {
            old: &self.old,
            finder: InMemoryFinder::new(&self.old.bytes),
        }
    }

    /// How many bytes are known.
    pub(in crate::backup) fn known_bytes(&self) -> u64 {
        self.old.packed.len_bytes()
    }
}

/// Finds parts of a file in what was overwritten of it.
pub(super) struct Comparison<'a> {
    old: &'a Known,
    finder: InMemoryFinder<'a>,
}

impl Comparison<'_> {
    /// Finds `bytes`, which lie in these ranges of the file.
    pub(super) fn find(&self, new: &Packed, bytes: &[u8]) -> (FoundExtents, FindStats) {
        let sink = Unpacked {
            sink: FoundExtents::default(),
            old: &self.old.packed,
            new,
        };
        match self.finder.find(bytes, sink) {
            Ok((sink, stats)) => (sink.sink, stats),
            Err(never) => match never {},
        }
    }
}

pub(super) fn find(
    place: Place<'_>,
    file: &Examined<'_>,
    ranges: &ExtentSet,
    overwritten: &Overwritten,
    stream: &mut PartStream<'_, '_>,
    sums: &mut BlockSums<'_>,
) -> Finding {
    let (new, holes) = read_reported(place, file, ranges)?;
    let (proven, digest) = proof(&new, &overwritten.old)?;
    if proven.len() > PROVEN_RANGES_MAX {
        return Err(Stop::Fallback(Fallback::TooScattered));
    }
    let comparison = overwritten.comparison();
    let (extents, mut stats) = comparison.find(&new.packed, &new.bytes);
    let elsewhere = hardly_found(&new, &extents);
    // The file is planned anew then.
    if stats.copied_bytes == 0 || elsewhere.total_len_bytes().saturating_mul(2) > new.packed.len_bytes() {
        return Err(Stop::Fallback(Fallback::FoundNothing));
    }
    // Only blocks that are read as a whole can be summed.
    sums.forget(file.node);
    let found = FoundFile::new(place, file, overwritten.len_bytes, stream);
    let is_known = overwritten.known_bytes().saturating_mul(4) >= new.packed.len_bytes().saturating_mul(3);
    let mut found = match elsewhere.is_empty() {
        false => found.with_blocks_elsewhere(),
        true => found.with_blocks_anywhere().without_comparison(is_known),
    };
    for (range, source) in &extents.extents {
        for (part, is_elsewhere) in parts(*range, &elsewhere) {
            let behind = part.start() - range.start();
            match source {
                Source::Copy { base_offset } if !is_elsewhere => found.copy(part, base_offset + behind)?,
                Source::Copy { .. } => {
                    stats.copied_bytes -= part.len_bytes();
                    stats.literal_bytes += part.len_bytes();
                    found.literal(part.start(), new.bytes_of(part).unwrap_or_default())?;
                }
                Source::Literal(_) => found.literal(part.start(), new.bytes_of(part).unwrap_or_default())?,
                Source::Zero => found.zero(part)?,
            }
        }
    }
    let sent = found.finish(Proof::ranges(digest, proven), stats.copied_bytes > 0, &holes)?;
    Ok((sent, stats))
}

/// Reads the reported ranges, with their holes as zeros. They may be read again, and sent as they
/// are.
fn read_reported(place: Place<'_>, file: &Examined<'_>, ranges: &ExtentSet) -> Result<(Known, Vec<ByteRange>), Stop> {
    let ranges: Vec<ByteRange> = reported(ranges, file.attributes.size).collect();
    let mut bytes = Vec::new();
    let mut holes = Vec::new();
    read_ranges(place, file.node, Hold::Still, ranges.iter().copied(), &mut |piece| {
        match piece {
            Piece::Hole(range) => {
                note_hole(&mut holes, range, place);
                let end = bytes.len() + usize::try_from(range.len_bytes()).unwrap_or(0);
                bytes.resize(end, 0);
            }
            Piece::Data { bytes: some, .. } => bytes.extend_from_slice(some),
        }
        Ok(())
    })?;
    Ok((Known::new(ranges, bytes), holes))
}

/// The whole blocks of which less than half was found, if there are enough to look them up.
fn hardly_found(new: &Known, found: &FoundExtents) -> ExtentSet {
    let mut copies = found
        .extents
        .iter()
        .filter(|(_, source)| matches!(source, Source::Copy { .. }))
        .map(|(range, _)| *range)
        .peekable();
    let mut hardly = ExtentSet::new();
    for range in blocks_in(new.ranges.iter().copied()) {
        let mut start = range.start();
        while let Some(block) = ByteRange::new(start, range.end().min(start + BLOCK_LEN)) {
            while copies.next_if(|copy| copy.end() <= block.start()).is_some() {}
            let mut copied_bytes = 0;
            while let Some(part) = copies.peek().and_then(|copy| copy.intersect(block)) {
                copied_bytes += part.len_bytes();
                if part.end() == block.end() {
                    break;
                }
                copies.next();
            }
            if copied_bytes < BLOCK_LEN / 2 {
                hardly.insert(block);
            }
            start = block.end();
        }
    }
    match hardly.total_len_bytes() >= LOOKED_UP_LEN_MIN {
        true => hardly,
        false => ExtentSet::new(),
    }
}

/// A range in parts, ascending, with whether they are in the set.
fn parts(range: ByteRange, set: &ExtentSet) -> impl Iterator<Item = (ByteRange, bool)> {
    let mut parts: Vec<_> = set.iter_within(range).map(|part| (part, true)).collect();
    parts.extend(set.gaps_within(range).map(|part| (part, false)));
    parts.sort_unstable_by_key(|(part, _)| part.start());
    parts.into_iter()
}

/// The ranges to prove, and their digest.
fn proof(new: &Known, old: &Known) -> Result<(Vec<ByteRange>, Digest), Stop> {
    let mut proven: Vec<ByteRange> = Vec::new();
    let mut parts: Vec<&[u8]> = Vec::new();
    for range in &new.ranges {
        let gap = proven.last().and_then(|last| ByteRange::new(last.end(), range.start()));
        match (proven.last_mut(), gap.and_then(|gap| old.bytes_of(gap))) {
            (Some(last), Some(between)) => {
                *last = last.hull(*range);
                parts.push(between);
            }
            _ => proven.push(*range),
        }
        parts.push(new.bytes_of(*range).ok_or_else(|| disorder("some of it is missing"))?);
    }
    let mut digest = ContentDigest::new(proven.iter().copied().map(ByteRange::len_bytes).sum());
    parts.into_iter().for_each(|part| digest.push(part));
    let digest = digest.finish().ok_or_else(|| disorder("some of it is missing"))?;
    Ok((proven, Digest(digest)))
}

#[cfg(test)]
mod tests;
