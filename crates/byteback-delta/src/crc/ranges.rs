//! The CRC of any range of a content whose equal-sized aligned blocks have known CRCs (SkySync,
//! section 3.2.1, equations 1 and 2).
//!
//! Blocks inside a range are not read. A range that begins or ends inside a block needs the CRC of
//! the block's bytes up to that border (here: the border's *prefix*). It is computed from the
//! nearest place whose prefix is known: the block's beginning, its end (the block's own CRC, from
//! which the bytes after the border are removed), or the previous border, if that lies in the same
//! block: where ranges are consecutive, each border is computed once. So at most half a block is
//! read per border.
//!
//! CRCs of blocks may be unknown (no checksum was kept, or only of another content): the bytes of
//! such blocks are read, each once.
//!
//! The bytes read and the known CRCs must belong to the same content. A mismatch cannot be detected
//! here; the resulting CRC is then meaningless. Hence matches found by it are proven by a strong
//! checksum.

use std::io;

use byteback_extents::ByteRange;

use super::{Combiner, CrcKind};
use crate::apply::Base;
use crate::room::make_room;

/// The number of bytes read at once.
const READ_LEN: u64 = 64 * 1024;

/// How the last block of a content was summed if it is shorter than the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LastBlock {
    /// Without padding (HDFS, S3).
    AsItIs,
    /// Padded with zeros to the length of a block (btrfs, Ceph, MooseFS).
    ZeroPadded,
}

/// How a content is cut into blocks and summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    /// The polynomial.
    pub kind: CrcKind,
    /// The length of a block; 0 counts as 1.
    pub block_len_bytes: u32,
    /// The length of the content.
    pub content_len_bytes: u64,
    /// How the last block was summed.
    pub last: LastBlock,
}

impl BlockLayout {
    /// The number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.content_len_bytes.div_ceil(self.block_len())
    }

    /// The bytes of a block; `None` if there is no such block.
    #[must_use]
    pub fn block(&self, index: u64) -> Option<ByteRange> {
        let start = index.checked_mul(self.block_len())?;
        ByteRange::new(
            start,
            start.saturating_add(self.block_len()).min(self.content_len_bytes),
        )
    }

    fn block_len(&self) -> u64 {
        u64::from(self.block_len_bytes.max(1))
    }
}

/// The known CRCs of the blocks of one content.
pub trait BlockCrcs {
    /// How the content is cut into blocks and summed.
    fn layout(&self) -> BlockLayout;

    /// The CRC of a block, summed as the layout says; `None` if it is unknown.
    fn crc(&mut self, block: u64) -> Option<u64>;
}

/// The CRCs of a content's blocks in memory: 4 or 8 bytes and one bit per block.
#[derive(Clone, Debug)]
pub struct CrcList {
    layout: BlockLayout,
    crcs: Crcs,
    /// A bit per block: whether its CRC is known.
    known: Vec<u64>,
    len: usize,
}

#[derive(Clone, Debug)]
enum Crcs {
    Narrow(Vec<u32>),
    Wide(Vec<u64>),
}

impl CrcList {
    /// An empty list; blocks that were not pushed are unknown.
    #[must_use]
    pub fn new(layout: BlockLayout) -> Self {
        let crcs = match layout.kind.len_bytes() {
            4 => Crcs::Narrow(Vec::new()),
            _ => Crcs::Wide(Vec::new()),
        };
        Self {
            layout,
            crcs,
            known: Vec::new(),
            len: 0,
        }
    }

    /// The list of a content in memory, with every CRC known.
    #[must_use]
    pub fn of(content: &[u8], kind: CrcKind, block_len_bytes: u32, last: LastBlock) -> Self {
        let layout = BlockLayout {
            kind,
            block_len_bytes,
            content_len_bytes: content.len() as u64,
            last,
        };
        let mut list = Self::new(layout);
        for block in content.chunks(block_len_bytes.max(1) as usize) {
            let mut crc = kind.of(block);
            if last == LastBlock::ZeroPadded {
                let zeros = u64::from(block_len_bytes.max(1)) - block.len() as u64;
                crc = kind.combine(crc, kind.of_zeros(zeros), zeros);
            }
            list.push(Some(crc));
        }
        list
    }

    /// Adds the next block.
    pub fn push(&mut self, crc: Option<u64>) {
        let (word, bit) = (self.len / 64, self.len % 64);
        if bit == 0 {
            self.known.push(0);
        }
        if let (Some(_), Some(word)) = (crc, self.known.get_mut(word)) {
            *word |= 1 << bit;
        }
        let crc = crc.unwrap_or(0);
        let blocks = self.layout.blocks();
        match &mut self.crcs {
            Crcs::Narrow(crcs) => {
                make_room(crcs, 1, blocks);
                // A CRC of 32 bits.
                crcs.push(crc as u32);
            }
            Crcs::Wide(crcs) => {
                make_room(crcs, 1, blocks);
                crcs.push(crc);
            }
        }
        self.len += 1;
    }
}

impl BlockCrcs for CrcList {
    fn layout(&self) -> BlockLayout {
        self.layout
    }

    fn crc(&mut self, block: u64) -> Option<u64> {
        let block = usize::try_from(block).ok()?;
        if self.known.get(block / 64)? & (1 << (block % 64)) == 0 {
            return None;
        }
        match &self.crcs {
            Crcs::Narrow(crcs) => crcs.get(block).map(|&crc| u64::from(crc)),
            Crcs::Wide(crcs) => crcs.get(block).copied(),
        }
    }
}

impl<B: BlockCrcs + ?Sized> BlockCrcs for &mut B {
    fn layout(&self) -> BlockLayout {
        (**self).layout()
    }

    fn crc(&mut self, block: u64) -> Option<u64> {
        (**self).crc(block)
    }
}

/// Computes the CRCs of ranges; see the module's header. Memory: one buffer, and that of `B`.
pub struct RangeCrcs<B> {
    blocks: B,
    layout: BlockLayout,
    of_block: Combiner,
    /// The last border and its prefix. Never at a block's beginning.
    border: Option<(u64, u64)>,
    buffer: Vec<u8>,
    read_bytes: u64,
    reads: u64,
}

impl<B: BlockCrcs> RangeCrcs<B> {
    /// A calculator for the content whose block CRCs are given.
    pub fn new(blocks: B) -> Self {
        let layout = blocks.layout();
        Self {
            blocks,
            layout,
            of_block: Combiner::new(layout.kind, layout.block_len()),
            border: None,
            buffer: Vec::new(),
            read_bytes: 0,
            reads: 0,
        }
    }

    /// The CRC of `range`. Ranges may come in any order; each costs least if it begins where the
    /// previous one ended.
    ///
    /// # Errors
    /// If `content` cannot be read, or the range is not inside it.
    pub fn crc_of(&mut self, range: ByteRange, content: &(impl Base + ?Sized)) -> io::Result<u64> {
        if range.end() > self.layout.content_len_bytes {
            let message = format!(
                "the range ends at {}, past the content's {} bytes",
                range.end(),
                self.layout.content_len_bytes
            );
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        let block_len = self.layout.block_len();
        let first = range.start() / block_len;
        let last = (range.end() - 1) / block_len;
        if first == last {
            return self.within_block(first, range.start(), range.end(), content);
        }
        let mut crc = self.within_block(first, range.start(), (first + 1) * block_len, content)?;
        for block in first + 1..last {
            let whole = self.whole(block, content)?;
            crc = self.of_block.combine(crc, whole);
        }
        let start = last * block_len;
        let end = self.within_block(last, start, range.end(), content)?;
        let kind = self.layout.kind;
        Ok(match range.end() - start {
            len if len == block_len => self.of_block.combine(crc, end),
            len => kind.combine(crc, end, len),
        })
    }

    /// The number of bytes read from the content.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// The number of reads from the content.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// The block CRCs of the content.
    pub fn blocks(&mut self) -> &mut B {
        &mut self.blocks
    }

    /// The CRC of a whole block, known or computed from its bytes.
    fn whole(&mut self, block: u64, content: &(impl Base + ?Sized)) -> io::Result<u64> {
        let (start, end) = self.bounds(block);
        match self.known(block) {
            Some(crc) => Ok(crc),
            None => self.read(start, end, content),
        }
    }

    /// The CRC of `start..end`, which lies in this block and is not empty.
    fn within_block(&mut self, block: u64, start: u64, end: u64, content: &(impl Base + ?Sized)) -> io::Result<u64> {
        let (block_start, block_end) = self.bounds(block);
        if (start, end) == (block_start, block_end) {
            return self.whole(block, content);
        }
        let Some(whole) = self.known(block) else {
            return self.read(start, end, content);
        };
        let cost = |at: u64, border: Option<u64>| {
            let from_border = border.map_or(u64::MAX, |border| border.abs_diff(at));
            from_border.min(at - block_start).min(block_end - at)
        };
        let border = self.border_in(block_start, block_end).map(|(at, _)| at);
        if end - start < cost(start, border) + cost(end, Some(start)) {
            return self.read(start, end, content);
        }
        let before = self.prefix(start, block_start, block_end, whole, content)?;
        let upto = self.prefix(end, block_start, block_end, whole, content)?;
        Ok(self.layout.kind.without_prefix(upto, before, end - start))
    }

    /// The CRC of the bytes from `block_start` to `at`, in a block whose CRC is `whole`.
    fn prefix(
        &mut self,
        at: u64,
        block_start: u64,
        block_end: u64,
        whole: u64,
        content: &(impl Base + ?Sized),
    ) -> io::Result<u64> {
        let kind = self.layout.kind;
        if at == block_start {
            return Ok(kind.of(&[]));
        }
        if at == block_end {
            return Ok(whole);
        }
        let known = [
            Some((block_start, kind.of(&[]))),
            self.border_in(block_start, block_end),
            Some((block_end, whole)),
        ];
        let nearest = known.into_iter().flatten().min_by_key(|(known, _)| known.abs_diff(at));
        let (near, prefix) = nearest.unwrap_or((block_end, whole));
        let prefix = if near == at {
            prefix
        } else if near < at {
            let between = self.read(near, at, content)?;
            kind.combine(prefix, between, at - near)
        } else {
            let between = self.read(at, near, content)?;
            kind.without_suffix(prefix, between, near - at)
        };
        self.border = Some((at, prefix));
        Ok(prefix)
    }

    /// The last border, if it lies inside these bounds.
    fn border_in(&self, block_start: u64, block_end: u64) -> Option<(u64, u64)> {
        self.border.filter(|&(at, _)| block_start < at && at < block_end)
    }

    fn bounds(&self, block: u64) -> (u64, u64) {
        let start = block * self.layout.block_len();
        let end = start.saturating_add(self.layout.block_len());
        (start, end.min(self.layout.content_len_bytes))
    }

    /// The known CRC of a block's own bytes, without padding.
    fn known(&mut self, block: u64) -> Option<u64> {
        let crc = self.blocks.crc(block)?;
        let (start, end) = self.bounds(block);
        let zeros = self.layout.block_len() - (end - start);
        match self.layout.last {
            LastBlock::ZeroPadded if zeros > 0 => Some(self.layout.kind.without_zeros(crc, zeros)),
            _ => Some(crc),
        }
    }

    /// The CRC of `start..end`, from its bytes.
    fn read(&mut self, start: u64, end: u64, content: &(impl Base + ?Sized)) -> io::Result<u64> {
        let kind = self.layout.kind;
        let mut crc = kind.of(&[]);
        let mut at = start;
        while at < end {
            let len = (end - at).min(READ_LEN);
            self.buffer.resize(len as usize, 0);
            content.read_range(at, &mut self.buffer)?;
            crc = match at == start {
                true => kind.of(&self.buffer),
                false => kind.append(crc, &self.buffer),
            };
            self.read_bytes += len;
            self.reads += 1;
            at += len;
        }
        Ok(crc)
    }
}

#[cfg(test)]
mod tests;
