//! The search on the server (WebR2sync+; SolFS, sections 2.2 and 5): the client only sums its new
//! content's blocks; the server, which has the base, moves the window.
//!
//! 1. The client makes the signature of its *new* content ([`crate::signature::SignatureWriter`])
//!    and sends it.
//! 2. The server rolls over its *base* with [`ReverseFinder`] and answers with a [`MatchList`]: the
//!    places of the new content's blocks in the base.
//! 3. The client reads the missing ranges and passes on the whole content with [`MatchedContent`],
//!    as copies and literals.
//!
//! The search is `rolling`'s with the two contents exchanged, and has the same locality: after a
//! match, the next block is tried first, by strong checksum alone, then the one at the same offset;
//! only where both fail does the window move byte by byte. The same account bounds the work on
//! crafted lists or bases: about two bytes hashed per byte of the base.
//!
//! *Equal blocks* of the new content are found together, wherever in the base one of them is. Of
//! several places, the one at the same offset is kept, as it costs no extent; failing that, the
//! first.
//!
//! *Memory* of the server: the signature, its table, eight bytes per block, 24 per run of the
//! answer, and the memory of `rolling`.
//!
//! *Proof.* The client cannot check the server's list, and its content may change between the
//! signature and the literals. So the delta is sent with the digest of the whole content, which is
//! made in step 1 ([`crate::ContentDigest`]).

use byteback_extents::ByteRange;

use super::extents::Extents;
use super::index::BlockIndex;
use super::rolling::RollingFinder;
use super::{ExtentSink, FindStats, HOLE_LEN_MIN};
use crate::matches::MatchList;
use crate::signature::Signature;

/// The place of a block that was not found.
const NOWHERE: u64 = u64::MAX;

/// Finds the blocks of a new content in the base by the new content's signature; see the module's
/// header.
pub struct ReverseFinder<'i> {
    index: &'i BlockIndex,
    finder: RollingFinder<'i, Places>,
}

/// The offsets in the base of the new content's blocks.
pub(super) struct Places {
    block_len: u64,
    new_len: u64,
    of_block: Vec<u64>,
}

impl<'i> ReverseFinder<'i> {
    /// Begins at the first byte of the base. `index` is the index of the new content's signature.
    #[must_use]
    pub fn new(index: &'i BlockIndex) -> Self {
        Self {
            index,
            finder: RollingFinder::new(index, Places::new(index.signature())),
        }
    }

    /// Adds the next bytes of the base.
    pub fn push(&mut self, bytes: &[u8]) {
        // Recording places cannot fail.
        let Ok(()) = self.finder.push(bytes);
    }

    /// Adds a hole of `len_bytes` of the base.
    pub fn push_hole(&mut self, len_bytes: u64) {
        let Ok(()) = self.finder.push_hole(len_bytes);
    }

    /// Ends the base. Returns the matches and the statistics, which count bytes of the base.
    #[must_use]
    pub fn finish(self) -> (MatchList, FindStats) {
        let base_len = self.finder.position();
        let Ok((places, stats)) = self.finder.finish();
        (places.into_list(self.index, base_len), stats)
    }
}

impl Places {
    /// For the content of this signature.
    pub(super) fn new(signature: &Signature) -> Self {
        Self {
            block_len: u64::from(signature.params().block_len_bytes),
            new_len: signature.content_len_bytes(),
            of_block: vec![NOWHERE; signature.blocks()],
        }
    }

    /// The matches in the order of the new content.
    pub(super) fn into_list(mut self, index: &BlockIndex, base_len: u64) -> MatchList {
        let mut list = MatchList::new(index.signature().params().block_len_bytes, self.new_len, base_len);
        self.share(index);
        list.reserve(self.runs());
        for (block, &place) in self.of_block.iter().enumerate() {
            if let Some(range) = self.range_of(block as u64).filter(|_| place != NOWHERE) {
                list.push(range, place);
            }
        }
        list
    }

    /// Equal blocks share places through the block that the index keeps.
    fn share(&mut self, index: &BlockIndex) {
        for block in 0..index.whole_blocks() {
            let place = self.of_block[block];
            if place != NOWHERE
                && let Some(kept) = kept_equal(index, block)
                && self.of_block[kept] == NOWHERE
            {
                self.of_block[kept] = place;
            }
        }
        for block in 0..index.whole_blocks() {
            if self.of_block[block] == NOWHERE
                && let Some(kept) = kept_equal(index, block)
            {
                self.of_block[block] = self.of_block[kept];
            }
        }
    }

    /// The number of runs of consecutive blocks at consecutive places.
    fn runs(&self) -> usize {
        let (mut runs, mut expected) = (0, NOWHERE);
        for &place in &self.of_block {
            runs += usize::from(place != NOWHERE && place != expected);
            expected = place.saturating_add(self.block_len);
        }
        runs
    }

    /// The range of a block.
    fn range_of(&self, block: u64) -> Option<ByteRange> {
        let start = block.checked_mul(self.block_len)?;
        ByteRange::new(start, start.saturating_add(self.block_len).min(self.new_len))
    }
}

/// The block that the index keeps for all blocks equal to this one, which has full length.
fn kept_equal(index: &BlockIndex, block: usize) -> Option<usize> {
    let signature = index.signature();
    let (&weak, strong) = (signature.weak().get(block)?, signature.strong(block)?);
    index
        .candidates(weak)
        .find(|&other| signature.strong(other) == Some(strong))
}
impl ExtentSink for Places {
    type Error = std::convert::Infallible;

    fn literal(&mut self, _: u64, _: &[u8]) -> Result<(), Self::Error> {
        Ok(())
    }

    /// `range` belongs to the base and `offset` to the new content: the roles are exchanged.
    fn copy(&mut self, range: ByteRange, offset: u64) -> Result<(), Self::Error> {
        let first = offset / self.block_len;
        for block in 0..range.len_bytes().div_ceil(self.block_len) {
            let base_offset = range.start() + block * self.block_len;
            let number = first + block;
            let len = self.range_of(number).map_or(0, ByteRange::len_bytes);
            let place = usize::try_from(number).ok().and_then(|at| self.of_block.get_mut(at));
            // The last block counts only if all of it was found.
            if let Some(place) = place
                && base_offset + len <= range.end()
                && (*place == NOWHERE || base_offset == number * self.block_len)
            {
                *place = base_offset;
            }
        }
        Ok(())
    }

    fn zero(&mut self, _: ByteRange) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// The content's bytes do not come as the list of matches requires.
#[derive(Debug, thiserror::Error)]
pub enum MatchedError<E> {
    /// Bytes that no match covers and that were not pushed.
    #[error("the bytes {range} are in no match and were not supplied: the file became shorter; start over")]
    Missing {
        /// The range of the new content.
        range: ByteRange,
    },
    /// Bytes came twice, or lie outside the content.
    #[error("bytes were supplied at {offset}, but expected at {expected} or later: the file changed; start over")]
    OutOfOrder {
        /// The offset at which they came.
        offset: u64,
        /// The offset of the next bytes expected.
        expected: u64,
    },
    /// The sink failed.
    #[error("cannot store the extents found")]
    Sink(E),
}

/// Passes on the new content, from a list of matches and the bytes that no match covers
/// ([`MatchList::missing`]).
///
/// Bytes come in ascending order. More than the missing ones may come, even the whole content:
/// bytes that a match covers are ignored. Long holes that are pushed stay holes even where a match
/// covers them.
pub struct MatchedContent<'l, S> {
    list: &'l MatchList,
    /// The first run that ends after `position`.
    next_run: usize,
    /// The offset up to which everything was passed on.
    position: u64,
    extents: Extents<S>,
}

impl<'l, S: ExtentSink> MatchedContent<'l, S> {
    /// Begins at the first byte of the new content.
    pub fn new(list: &'l MatchList, sink: S) -> Self {
        Self {
            list,
            next_run: 0,
            position: 0,
            extents: Extents::new(sink),
        }
    }

    /// Adds bytes of the new content that begin at `offset`.
    ///
    /// # Errors
    /// If bytes before them are missing, they come out of order, or those of the sink.
    pub fn push(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MatchedError<S::Error>> {
        let Some(end) = self.begin(offset, bytes.len() as u64)? else {
            return Ok(());
        };
        self.extents.stats.examined_bytes += bytes.len() as u64;
        while self.position < end {
            if let Some((stop, base_offset)) = self.matched(end) {
                self.copy(stop, base_offset)?;
            } else {
                let stop = self.next_match(end);
                // Both within `bytes`.
                let (from, to) = ((self.position - offset) as usize, (stop - offset) as usize);
                self.extents.literal(&bytes[from..to]).map_err(MatchedError::Sink)?;
                self.position = stop;
            }
        }
        Ok(())
    }

    /// Adds a hole of the new content.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn push_hole(&mut self, hole: ByteRange) -> Result<(), MatchedError<S::Error>> {
        let Some(end) = self.begin(hole.start(), hole.len_bytes())? else {
            return Ok(());
        };
        let is_long = hole.len_bytes() >= HOLE_LEN_MIN;
        while self.position < end {
            let matched = self.matched(end).filter(|_| !is_long);
            if let Some((stop, base_offset)) = matched {
                self.copy(stop, base_offset)?;
            } else {
                let stop = if is_long { end } else { self.next_match(end) };
                self.extents.zero(stop - self.position).map_err(MatchedError::Sink)?;
                self.position = stop;
            }
        }
        Ok(())
    }

    /// Ends the new content; returns the sink and the statistics.
    ///
    /// # Errors
    /// If bytes are missing, or those of the sink.
    pub fn finish(mut self) -> Result<(S, FindStats), MatchedError<S::Error>> {
        self.reach(self.list.new_len_bytes())?;
        self.extents.finish().map_err(MatchedError::Sink)
    }

    /// Passes on everything before `offset`. Returns the end of the coming bytes, if there are any.
    fn begin(&mut self, offset: u64, len: u64) -> Result<Option<u64>, MatchedError<S::Error>> {
        let end = offset.checked_add(len).filter(|&end| end <= self.list.new_len_bytes());
        match end {
            Some(end) if offset >= self.position => {
                self.reach(offset)?;
                Ok((len > 0).then_some(end))
            }
            _ => Err(MatchedError::OutOfOrder {
                offset,
                expected: self.position,
            }),
        }
    }

    /// Passes on matches up to `offset`.
    fn reach(&mut self, offset: u64) -> Result<(), MatchedError<S::Error>> {
        while let Some(left) = ByteRange::new(self.position, offset) {
            let Some((stop, base_offset)) = self.matched(offset) else {
                let (range, _) = left.split_at(self.next_match(offset));
                return Err(MatchedError::Missing {
                    range: range.unwrap_or(left),
                });
            };
            self.copy(stop, base_offset)?;
        }
        Ok(())
    }

    /// If a match covers `position`: its end or `end`, whichever is first, and the place in the
    /// base.
    fn matched(&mut self, end: u64) -> Option<(u64, u64)> {
        while self.list.runs().get(self.next_run)?.range.end() <= self.position {
            self.next_run += 1;
        }
        let run = self.list.runs().get(self.next_run)?;
        let inside = self.position.checked_sub(run.range.start())?;
        Some((run.range.end().min(end), run.base_offset + inside))
    }

    /// The start of the next match, or `end` if that comes first; `position` lies in no match.
    fn next_match(&self, end: u64) -> u64 {
        let run = self.list.runs().get(self.next_run);
        run.map_or(end, |run| run.range.start().min(end))
    }

    fn copy(&mut self, stop: u64, base_offset: u64) -> Result<(), MatchedError<S::Error>> {
        let reported = self.extents.copy(stop - self.position, base_offset);
        self.position = stop;
        reported.map_err(MatchedError::Sink)
    }
}

#[cfg(test)]
mod tests;
