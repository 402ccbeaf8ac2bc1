//! Fixed-size hashing (HashSync; SolFS, section 2.2): the new content is cut at multiples of the
//! block length, and each block is searched for among the blocks of the base. Nothing is rolled, so
//! every byte is summed once, and an insertion hides all that follows it, unless its length is a
//! multiple of the block length.
//!
//! *Candidates*, by strong checksum: the block of the same number; the one after the last block
//! found; then, by weak checksum, any equal block. Blocks that stay in place cost no extent.
//!
//! *Holes* of the new content stay holes. Long ones are not examined, except for their borders up
//! to the next multiple of a block; short ones are treated as ordinary zeros, unless they end up in
//! a literal.
//!
//! *Crafted signatures* cost nothing more: one strong checksum per block of the new content,
//! compared with at most a few of the base.
//!
//! Memory: one block.

use byteback_extents::ByteRange;

use super::extents::Extents;
use super::index::BlockIndex;
use super::{ExtentSink, FindStats, HOLE_LEN_MIN};
use crate::strong::STRONG_LEN_MAX;

/// Finds a base's blocks at multiples of their length in a new content; see the module's header.
pub struct FixedFinder<'i, S> {
    blocks: Blocks<'i>,
    extents: Extents<S>,
    /// The bytes of an incomplete block.
    block: Vec<u8>,
    /// The holes in that block, counted from the content's start.
    holes: Vec<ByteRange>,
    /// The offset of that block.
    block_start: u64,
    /// The block that would continue the last match.
    next_block: Option<usize>,
}

/// The blocks of the base.
struct Blocks<'i> {
    index: &'i BlockIndex,
    block_len: usize,
    /// The length of the base's last block if it is shorter than the others; 0 otherwise.
    tail_len: usize,
}

impl<'i, S: ExtentSink> FixedFinder<'i, S> {
    /// Begins at the first byte of a new content.
    pub fn new(index: &'i BlockIndex, sink: S) -> Self {
        let signature = index.signature();
        let block_len = signature.params().block_len_bytes;
        Self {
            blocks: Blocks {
                index,
                block_len: block_len as usize,
                // Shorter than a block, which fits.
                tail_len: (signature.content_len_bytes() % u64::from(block_len)) as usize,
            },
            extents: Extents::new(sink),
            block: Vec::new(),
            holes: Vec::new(),
            block_start: 0,
            next_block: None,
        }
    }

    /// Adds the next bytes of the new content.
    ///
    /// # Errors
    /// The error of the sink.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<(), S::Error> {
        let block_len = self.blocks.block_len;
        self.extents.stats.examined_bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            if self.block.is_empty() && bytes.len() >= block_len {
                let (block, rest) = bytes.split_at(block_len);
                self.end_block(block, &[])?;
                bytes = rest;
                continue;
            }
            let (now, later) = bytes.split_at((block_len - self.block.len()).min(bytes.len()));
            self.block.extend_from_slice(now);
            bytes = later;
            self.end_full_block()?;
        }
        Ok(())
    }

    /// Adds a hole of `len_bytes`.
    ///
    /// # Errors
    /// The error of the sink.
    pub fn push_hole(&mut self, len_bytes: u64) -> Result<(), S::Error> {
        let Some(hole) = ByteRange::from_offset_len(self.position(), len_bytes) else {
            return Ok(());
        };
        let block_len = self.blocks.block_len as u64;
        let first = hole.start().next_multiple_of(block_len);
        let last = hole.end() - hole.end() % block_len;
        match ByteRange::new(first, last) {
            Some(inner) if inner.len_bytes() >= HOLE_LEN_MIN.max(2 * block_len) => {
                self.push_zeros(inner.start() - hole.start())?;
                // `push_zeros` ended a block that had begun.
                self.extents.zero(inner.len_bytes())?;
                self.block_start = inner.end();
                self.next_block = None;
                self.push_zeros(hole.end() - inner.end())
            }
            _ => self.push_zeros(len_bytes),
        }
    }

    /// Ends the new content; returns the sink and the statistics.
    ///
    /// # Errors
    /// The error of the sink.
    pub fn finish(mut self) -> Result<(S, FindStats), S::Error> {
        if !self.block.is_empty() {
            self.end_gathered_block()?;
        }
        self.extents.finish()
    }

    /// The offset of the next byte.
    pub fn position(&self) -> u64 {
        self.block_start + self.block.len() as u64
    }

    /// Adds zeros that stand for a hole, in small steps.
    fn push_zeros(&mut self, mut len_bytes: u64) -> Result<(), S::Error> {
        while len_bytes > 0 {
            let filled = self.block.len();
            let room = (self.blocks.block_len - filled) as u64;
            let now = room.min(len_bytes);
            self.holes.extend(ByteRange::from_offset_len(self.position(), now));
            // At most a block.
            self.block.resize(filled + now as usize, 0);
            len_bytes -= now;
            self.end_full_block()?;
        }
        Ok(())
    }

    fn end_full_block(&mut self) -> Result<(), S::Error> {
        if self.block.len() < self.blocks.block_len {
            return Ok(());
        }
        self.end_gathered_block()
    }

    fn end_gathered_block(&mut self) -> Result<(), S::Error> {
        let (mut block, mut holes) = (std::mem::take(&mut self.block), std::mem::take(&mut self.holes));
        let ended = self.end_block(&block, &holes);
        block.clear();
        holes.clear();
        (self.block, self.holes) = (block, holes);
        ended
    }

    /// Passes a block on, as a copy or a literal.
    fn end_block(&mut self, block: &[u8], holes: &[ByteRange]) -> Result<(), S::Error> {
        let block_len = self.blocks.block_len as u64;
        // No signature has more blocks than fit into memory.
        let number = usize::try_from(self.block_start / block_len).unwrap_or(usize::MAX);
        self.block_start += block.len() as u64;
        self.extents.stats.strong_bytes += block.len() as u64;
        let found = self.blocks.find(number, self.next_block, block);
        self.next_block = found.map(|found| found + 1);
        match found {
            Some(found) => self.extents.copy(block.len() as u64, found as u64 * block_len),
            None => self.extents.literal_with_holes(block, holes),
        }
    }
}

impl Blocks<'_> {
    /// The block of the base that equals `block`, which has this number.
    fn find(&self, number: usize, next: Option<usize>, block: &[u8]) -> Option<usize> {
        let signature = self.index.signature();
        let strong = signature.hasher().of(block);
        let expected = [Some(number), next].into_iter().flatten();
        let mut expected = expected.filter(|&expected| self.may_be_as_long(expected, block.len()));
        if let Some(found) = expected.find(|&expected| self.is_strong_of(expected, &strong)) {
            return Some(found);
        }
        if block.len() < self.block_len {
            let tail = signature.blocks().checked_sub(1)?;
            let is_found = self.may_be_as_long(tail, block.len()) && self.is_strong_of(tail, &strong);
            return is_found.then_some(tail);
        }
        let weak = signature.params().weak.of(block);
        self.index
            .candidates(weak)
            .find(|&candidate| self.is_strong_of(candidate, &strong))
    }

    /// Whether a block of the base may have this length.
    fn may_be_as_long(&self, block: usize, len: usize) -> bool {
        let signature = self.index.signature();
        if block < self.index.whole_blocks() {
            let may_be_shorter = !signature.is_len_known() && block + 1 == signature.blocks();
            len == self.block_len || may_be_shorter
        } else {
            len == self.tail_len
        }
    }

    fn is_strong_of(&self, block: usize, strong: &[u8; STRONG_LEN_MAX]) -> bool {
        let known = self.index.signature().strong(block);
        known.is_some_and(|known| strong.get(..known.len()) == Some(known))
    }
}

#[cfg(test)]
mod tests;
