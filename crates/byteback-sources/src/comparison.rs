//! Comparison of two contents by checksums that storage keeps of them, without a byte of either
//! (SkySync, sections 3.1 and 3.3).
//!
//! Both lists are walked side by side, piece by piece: a block, a chunk, or a part of a stretch
//! that is zeros or unknown, which may be cut anywhere. Where pieces of both begin and end
//! together, their checksums are compared; CRCs of several pieces are combined to that of all of
//! them (section 3.3.1).
//!
//! The result is true of the states that the lists describe, and only as true as the checksums are:
//! [`Likeness`] says what follows from each. Nothing is read here and nothing is sent; a caller
//! that leaves something out of a transfer because of a CRC has to prove it otherwise.

use std::cmp::Ordering;
use std::collections::HashSet;

use byteback_checksums::source::{FileChecksums, Kind, Layout, Run, Summer, Tail};
use byteback_delta::crc::CrcKind;
use byteback_extents::{ByteRange, ExtentSet};

/// The relation of a range of the new content to the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Likeness {
    /// The base has the same bytes at the same place: cryptographic checksums are equal, or both
    /// are zeros.
    Equal,
    /// The base probably has the same bytes: the checksums are equal, but anyone could forge that.
    Likely,
    /// The base has the same bytes, at another place.
    Moved,
    /// The base does not have the same bytes at that place; behind its end it has none.
    Differs,
    /// Nothing follows from the checksums; a caller that needs to know has to read.
    Unknown,
}

/// The result of comparing two lists of checksums; see the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Ranges of the new content, ascending and without gaps; equal neighbours are merged.
    pub ranges: Vec<(ByteRange, Likeness)>,
}

impl Comparison {
    /// The comparison of a content proven to differ in nothing but `differing`.
    #[must_use]
    pub fn all_but(differing: &ExtentSet, len_bytes: u64) -> Self {
        let mut comparison = Self::default();
        let mut at = 0;
        for range in differing.iter() {
            comparison.note(at, range.start().min(len_bytes), Likeness::Equal);
            comparison.note(range.start(), range.end().min(len_bytes), Likeness::Differs);
            at = range.end();
        }
        comparison.note(at, len_bytes, Likeness::Equal);
        comparison
    }

    /// The number of bytes of this likeness.
    #[must_use]
    pub fn bytes(&self, likeness: Likeness) -> u64 {
        let alike = self.ranges.iter().filter(|(_, own)| *own == likeness);
        alike.map(|(range, _)| range.len_bytes()).sum()
    }

    /// Appends the range that follows the last one.
    fn note(&mut self, start: u64, end: u64, likeness: Likeness) {
        let Some(range) = ByteRange::new(start, end) else {
            return;
        };
        match self.ranges.last_mut() {
            Some((last, own)) if *own == likeness => *last = last.hull(range),
            _ => self.ranges.push((range, likeness)),
        }
    }
}

/// Two lists of checksums that say nothing about each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Incomparable {
    /// The checksums are made by different functions.
    #[error("one has {}, the other {}", .base.name(), .new.name())]
    Kinds {
        /// Of the base.
        base: Kind,
        /// Of the new content.
        new: Kind,
    },
    /// The lists have different salts (the bytes summed before each block).
    #[error("their checksums have different salts")]
    Salts,
}

/// Compares the checksums of `base` and of `new`, for each byte of the new content.
///
/// # Errors
/// If the checksums are of different kinds.
pub fn compare_checksums(base: &FileChecksums, new: &FileChecksums) -> Result<Comparison, Incomparable> {
    let (base_layout, new_layout) = (base.layout(), new.layout());
    if base_layout.kind != new_layout.kind {
        return Err(Incomparable::Kinds {
            base: base_layout.kind,
            new: new_layout.kind,
        });
    }
    if base_layout.salt != new_layout.salt {
        return Err(Incomparable::Salts);
    }
    let mut walk = Walk {
        zeros: Zeros::new(new_layout),
        base_chunks: named_chunks(base),
        base: Side::new(base),
        new: Side::new(new),
        new_chunks: Vec::new(),
        reported: Comparison::default(),
    };
    walk.run();
    Ok(walk.reported)
}

/// The base's chunks, by length and name; none where equal names prove nothing.
fn named_chunks(base: &FileChecksums) -> HashSet<(u64, &[u8])> {
    let kind = base.layout().kind;
    let mut chunks = HashSet::new();
    if !kind.is_strong() {
        return chunks;
    }
    for run in base.runs() {
        let Run::Chunks { range, ends, sums } = run else {
            continue;
        };
        let mut start = range.start();
        for (end, sum) in ends.iter().zip(sums.chunks_exact(kind.len_bytes())) {
            chunks.insert((end - start, sum));
            start = *end;
        }
    }
    chunks
}

/// A checksum of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sum<'a> {
    /// Of exactly the range's bytes.
    Crc(u64),
    /// Of the range's bytes, and zeros behind them up to this length.
    Bytes { sum: &'a [u8], summed_len: u64 },
}

/// A piece, by where it ends.
#[derive(Clone, Copy, Debug)]
enum Piece<'a> {
    /// A block; its checksum, if there is a usable one.
    Whole(u64, Option<Sum<'a>>),
    Chunk(u64, &'a [u8], Option<Sum<'a>>),
    Zeros(u64),
    Unknown(u64),
}

impl Piece<'_> {
    fn end(self) -> u64 {
        match self {
            Self::Whole(end, _) | Self::Chunk(end, ..) | Self::Zeros(end) | Self::Unknown(end) => end,
        }
    }

    fn may_be_cut(self) -> bool {
        matches!(self, Self::Zeros(_) | Self::Unknown(_))
    }

    fn cut(self, end: u64) -> Self {
        match self {
            Self::Zeros(own) => Self::Zeros(own.min(end)),
            Self::Unknown(own) => Self::Unknown(own.min(end)),
            whole => whole,
        }
    }
}

/// The base or the new content, walked piece by piece.
struct Side<'a> {
    layout: &'a Layout,
    crc: Option<CrcKind>,
    runs: Vec<Run<'a>>,
    /// The run that holds the next piece.
    run: usize,
    /// Where the next piece begins.
    at: u64,
    /// The pieces taken since both sides last began together.
    taken: Option<Taken<'a>>,
}

/// Pieces that were taken together.
#[derive(Clone, Copy, Debug)]
struct Taken<'a> {
    are_zeros: bool,
    sum: Option<Sum<'a>>,
}

fn crc_kind(kind: Kind) -> Option<CrcKind> {
    match kind {
        Kind::Crc32c => Some(CrcKind::Crc32c),
        Kind::Crc32 => Some(CrcKind::Crc32),
        Kind::Crc64Nvme => Some(CrcKind::Crc64Nvme),
        _ => None,
    }
}

impl<'a> Side<'a> {
    fn new(reported: &'a FileChecksums) -> Self {
        let layout = reported.layout();
        Self {
            layout,
            // A salted CRC cannot be combined: the salt's contribution cannot be taken off again.
            crc: crc_kind(layout.kind).filter(|_| layout.salt.is_empty()),
            runs: reported.runs().collect(),
            run: 0,
            at: 0,
            taken: None,
        }
    }

    fn next(&self) -> Option<Piece<'a>> {
        let sum_len = self.layout.kind.len_bytes();
        match *self.runs.get(self.run)? {
            Run::Zeros { range } => Some(Piece::Zeros(range.end())),
            Run::Unknown { range, .. } => Some(Piece::Unknown(range.end())),
            Run::Sums { range, sums } => {
                let block_len = u64::from(self.layout.block_len.max(1));
                let index = usize::try_from((self.at - range.start()) / block_len).ok()?;
                let end = self.at.saturating_add(block_len).min(range.end());
                let sum = sums.chunks_exact(sum_len).nth(index);
                let summed_len = match self.layout.tail {
                    Tail::AsIs => end - self.at,
                    Tail::ZeroPadded => block_len,
                };
                Some(Piece::Whole(
                    end,
                    sum.map(|sum| self.sum(sum, end - self.at, summed_len)),
                ))
            }
            Run::Chunks { range, ends, sums } => {
                let index = ends.partition_point(|end| *end <= self.at);
                let end = *ends.get(index).filter(|end| **end <= range.end())?;
                let sum = sums.chunks_exact(sum_len).nth(index)?;
                let len = end - self.at;
                Some(Piece::Chunk(end, sum, Some(self.sum(sum, len, len))))
            }
        }
    }

    fn sum(&self, sum: &'a [u8], len: u64, summed_len: u64) -> Sum<'a> {
        match self.crc {
            Some(kind) => {
                let crc = sum.iter().rev().fold(0, |crc, byte| crc << 8 | u64::from(*byte));
                Sum::Crc(kind.without_zeros(crc, summed_len - len))
            }
            None => Sum::Bytes { sum, summed_len },
        }
    }

    fn take(&mut self, piece: Piece<'a>) {
        let len = piece.end() - self.at;
        let sum = match piece {
            Piece::Whole(_, sum) | Piece::Chunk(_, _, sum) => sum,
            Piece::Zeros(_) => self.crc.map(|kind| Sum::Crc(kind.of_zeros(len))),
            Piece::Unknown(_) => None,
        };
        let are_zeros = matches!(piece, Piece::Zeros(_));
        self.taken = Some(match self.taken {
            None => Taken { are_zeros, sum },
            Some(before) => Taken {
                are_zeros: before.are_zeros && are_zeros,
                sum: match (self.crc, before.sum, sum) {
                    (Some(kind), Some(Sum::Crc(first)), Some(Sum::Crc(second))) => {
                        Some(Sum::Crc(kind.combine(first, second, len)))
                    }
                    _ => None,
                },
            },
        });
        self.at = piece.end();
        if self.runs.get(self.run).is_some_and(|run| run.range().end() <= self.at) {
            self.run += 1;
        }
    }
}

/// The checksums of zeros.
struct Zeros<'a> {
    layout: &'a Layout,
    /// Length and checksum of the zeros asked for last.
    last: Option<(u64, Vec<u8>)>,
}

impl<'a> Zeros<'a> {
    fn new(layout: &'a Layout) -> Self {
        Self { layout, last: None }
    }

    fn have(&mut self, sum: &[u8], summed_len: u64) -> bool {
        let last = self.last.take().filter(|(len, _)| *len == summed_len);
        let last = last.unwrap_or_else(|| (summed_len, self.of(summed_len)));
        self.last.insert(last).1 == sum
    }

    fn of(&self, len: u64) -> Vec<u8> {
        const ZEROS: [u8; 4096] = [0; 4096];
        let as_is = Layout {
            tail: Tail::AsIs,
            ..self.layout.clone()
        };
        let mut summer = Summer::new(&as_is);
        let mut left = len;
        while left > 0 {
            let now = left.min(ZEROS.len() as u64);
            // At most 4096.
            summer.push(&ZEROS[..now as usize]);
            left -= now;
        }
        let mut sum = Vec::new();
        summer.end_block(&mut sum);
        sum
    }
}

struct Walk<'a> {
    base: Side<'a>,
    new: Side<'a>,
    zeros: Zeros<'a>,
    base_chunks: HashSet<(u64, &'a [u8])>,
    /// The new content's chunks taken since both sides last began together: start, end, name.
    new_chunks: Vec<(u64, u64, &'a [u8])>,
    reported: Comparison,
}

impl<'a> Walk<'a> {
    fn run(&mut self) {
        let mut start = 0;
        while self.step() {
            self.tell(start, self.new.at);
            start = self.new.at;
            (self.new.taken, self.base.taken) = (None, None);
            self.new_chunks.clear();
        }
    }

    /// Takes pieces of both sides until they end together, or one of them has no more. Returns
    /// false if the new content is at its end.
    fn step(&mut self) -> bool {
        match (self.new.next(), self.base.next()) {
            (None, _) => return false,
            // The base ended here, or before.
            (Some(new), None) => {
                self.take_new(new);
                return true;
            }
            (Some(new), Some(base)) => {
                let end = match (new.may_be_cut(), base.may_be_cut()) {
                    (true, true) => new.end().min(base.end()),
                    (true, false) => base.end(),
                    _ => new.end(),
                };
                self.take_new(new.cut(end));
                self.base.take(base.cut(end));
            }
        }
        // The side that is behind follows.
        loop {
            let (new_at, base_at) = (self.new.at, self.base.at);
            match new_at.cmp(&base_at) {
                Ordering::Equal => return true,
                Ordering::Less => match self.new.next() {
                    Some(new) => self.take_new(new.cut(base_at)),
                    None => return true,
                },
                Ordering::Greater => match self.base.next() {
                    Some(base) => self.base.take(base.cut(new_at)),
                    None => return true,
                },
            }
        }
    }

    fn take_new(&mut self, piece: Piece<'a>) {
        if let Piece::Chunk(end, name, _) = piece
            && !self.base_chunks.is_empty()
        {
            self.new_chunks.push((self.new.at, end, name));
        }
        self.new.take(piece);
    }

    fn tell(&mut self, start: u64, end: u64) {
        let likeness = self.likeness();
        if likeness == Likeness::Equal || self.new_chunks.is_empty() {
            self.reported.note(start, end, likeness);
            return;
        }
        // Chunks that did not stay at their place may have moved, each by itself.
        let mut at = start;
        for (chunk_start, chunk_end, name) in self.new_chunks.drain(..) {
            self.reported.note(at, chunk_start, likeness);
            let has_moved = self.base_chunks.contains(&(chunk_end - chunk_start, name));
            let own = if has_moved { Likeness::Moved } else { likeness };
            self.reported.note(chunk_start, chunk_end, own);
            at = chunk_end;
        }
        self.reported.note(at, end, likeness);
    }

    fn likeness(&mut self) -> Likeness {
        // The base ended before: nothing of it was taken.
        let (Some(new), Some(base)) = (self.new.taken, self.base.taken) else {
            return Likeness::Differs;
        };
        // One side ended inside the other's piece.
        if self.base.at != self.new.at {
            return Likeness::Unknown;
        }
        if new.are_zeros && base.are_zeros {
            return Likeness::Equal;
        }
        let are_equal = match (new.sum, base.sum) {
            (Some(Sum::Crc(new)), Some(Sum::Crc(base))) => Some(new == base),
            (
                Some(Sum::Bytes { sum, summed_len }),
                Some(Sum::Bytes {
                    sum: base,
                    summed_len: base_len,
                }),
            ) => (summed_len == base_len).then_some(sum == base),
            (Some(Sum::Bytes { sum, summed_len }), None) if base.are_zeros => Some(self.zeros.have(sum, summed_len)),
            (None, Some(Sum::Bytes { sum, summed_len })) if new.are_zeros => Some(self.zeros.have(sum, summed_len)),
            _ => None,
        };
        match are_equal {
            Some(true) if self.new.layout.kind.is_strong() => Likeness::Equal,
            Some(true) => Likeness::Likely,
            Some(false) => Likeness::Differs,
            None => Likeness::Unknown,
        }
    }
}

#[cfg(test)]
mod tests;
