//! The second search, in an excerpt of the base ([`crate::excerpt`]), for what a finder with long
//! blocks left of a new content.
//!
//! [`excerpt_for`] decides which ranges of the base are worth a finer signature: those that no copy
//! is from; if these are long or very many, those of them between the places of each gap's
//! neighbours. [`find_in_excerpt`] moves a window over one gap's bytes, as in [`super::rolling`],
//! and finds them anywhere in the excerpt.

use byteback_extents::{ByteRange, ExtentSet};

use super::{BlockIndex, ExtentSink, FindStats, RollingFinder};
use crate::excerpt::{Excerpt, RANGES_MAX};

/// All that is unused of a base is searched if it has at most this many times the bytes that are
/// looked for.
const EXCERPT_SHARE_MAX: u64 = 3;

/// A range of the new content that a finder did not find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The range.
    pub range: ByteRange,
    /// The offset in the base at which the bytes before it end.
    pub base_before: u64,
    /// The offset in the base at which the bytes behind it begin.
    pub base_behind: u64,
}

impl Gap {
    /// The ranges of a base of `base_len_bytes` in which the gap's bytes are to be looked for: what
    /// lies between its neighbours; if that is much more than the gap, or they moved apart, as much
    /// as the gap beside each of them.
    fn candidates(&self, base_len_bytes: u64) -> impl Iterator<Item = ByteRange> {
        let len = self.range.len_bytes();
        let (before, behind) = (
            self.base_before.min(base_len_bytes),
            self.base_behind.min(base_len_bytes),
        );
        let is_between = before <= behind && behind - before <= len.saturating_mul(EXCERPT_SHARE_MAX);
        let between = ByteRange::new(before, behind).filter(|_| is_between);
        let beside = [
            ByteRange::new(before, before.saturating_add(len).min(base_len_bytes)),
            ByteRange::new(behind.saturating_sub(len), behind),
        ];
        let beside = beside.into_iter().flatten().filter(move |_| !is_between);
        between.into_iter().chain(beside)
    }
}

/// The excerpt of a base of `base_len_bytes` in which the bytes of these gaps are to be looked for.
/// `unused` are the ranges of the base in which they may lie, as a rule those that no copy is from:
/// of bytes that come twice, a compressor finds the second ones.
///
/// The excerpt's ranges consist of whole blocks of `block_len_bytes`, so that no block has bytes of
/// two of them.
#[must_use]
pub fn excerpt_for(gaps: &[Gap], unused: &ExtentSet, base_len_bytes: u64, block_len_bytes: u32) -> Excerpt {
    let block_len = u64::from(block_len_bytes.max(1));
    let sought_len: u64 = gaps.iter().map(|gap| gap.range.len_bytes()).sum();
    let around;
    let is_short = unused.total_len_bytes() <= sought_len.saturating_mul(EXCERPT_SHARE_MAX);
    let candidates = match is_short && unused.len() <= RANGES_MAX as usize {
        true => unused,
        false => {
            let candidates = gaps.iter().flat_map(|gap| gap.candidates(base_len_bytes));
            around = candidates.collect::<ExtentSet>().intersection(unused);
            &around
        }
    };
    let mut ranges = ExtentSet::new();
    let mut end = 0;
    for candidate in candidates {
        let start = candidate.start().max(end);
        // A block would reach into bytes that a copy has already.
        if candidate.end() < start.saturating_add(block_len) {
            continue;
        }
        let len = (candidate.end() - start).next_multiple_of(block_len);
        // A shorter last block is possible at the base's end alone, hence the excerpt's.
        end = start.saturating_add(len).min(base_len_bytes);
        if let Some(range) = ByteRange::new(start, end) {
            ranges.insert(range);
        }
    }
    Excerpt::new(&ranges)
}

/// Looks for `bytes`, which the new content has from `offset` on, in an excerpt of the base.
/// `index` is that of the excerpt's signature. The extents in `sink` are of the whole contents.
///
/// # Errors
/// The error of the sink.
pub fn find_in_excerpt<S: ExtentSink>(
    index: &BlockIndex,
    excerpt: &Excerpt,
    (offset, bytes): (u64, &[u8]),
    sink: S,
) -> Result<(S, FindStats), S::Error> {
    let sink = FromExcerpt {
        excerpt,
        offset,
        bytes,
        sink,
    };
    let mut finder = RollingFinder::new(index, sink);
    finder.push(bytes)?;
    let (placed, stats) = finder.finish()?;
    Ok((placed.sink, stats))
}

/// Gives extents of a gap and of the excerpt their places in the contents.
struct FromExcerpt<'e, S> {
    excerpt: &'e Excerpt,
    offset: u64,
    bytes: &'e [u8],
    sink: S,
}

impl<'e, S: ExtentSink> FromExcerpt<'e, S> {
    /// The gap's bytes in this range, if they are one byte again and again. A copy of each block
    /// of them takes more room than they do, compressed.
    fn run(&self, range: ByteRange) -> Option<&'e [u8]> {
        let at = |offset: u64| usize::try_from(offset).ok();
        let bytes = self.bytes.get(at(range.start())?..at(range.end())?)?;
        let first = bytes.first()?;
        bytes.iter().all(|byte| byte == first).then_some(bytes)
    }
}

impl<S: ExtentSink> ExtentSink for FromExcerpt<'_, S> {
    type Error = S::Error;

    fn literal(&mut self, offset: u64, bytes: &[u8]) -> Result<(), S::Error> {
        self.sink.literal(self.offset + offset, bytes)
    }

    fn copy(&mut self, range: ByteRange, base_offset: u64) -> Result<(), S::Error> {
        if let Some(run) = self.run(range) {
            return self.sink.literal(self.offset + range.start(), run);
        }
        let mut at = self.offset + range.start();
        let sought = ByteRange::from_offset_len(base_offset, range.len_bytes());
        for part in sought.into_iter().flat_map(|sought| self.excerpt.in_base(sought)) {
            if let Some(range) = ByteRange::from_offset_len(at, part.len_bytes()) {
                self.sink.copy(range, part.start())?;
                at = range.end();
            }
        }
        Ok(())
    }

    fn zero(&mut self, range: ByteRange) -> Result<(), S::Error> {
        match ByteRange::from_offset_len(self.offset + range.start(), range.len_bytes()) {
            Some(range) => self.sink.zero(range),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
