//! Matching without reading: where both ends have checksums of equal-sized aligned blocks,
//! unchanged blocks follow from these alone.
//!
//! The weight of equal checksums depends on their kind. Cryptographic ones prove blocks equal
//! ([`Verdict::Equal`]). A CRC or an xxHash makes equality likely ([`Verdict::Candidate`]): other
//! bytes may have the same one, by chance once in 2^32 and by intention always. So no block may be
//! skipped because of it until a strong checksum of the bytes themselves, or of a better source,
//! agrees. Different checksums prove that the bytes differ; blocks that differ, or whose checksum
//! is unknown on one side, are [`Verdict::Read`].
//!
//! The necessary length of a cryptographic checksum depends on its key. Without a key, an attacker
//! can make two contents that agree in a few bytes of checksum; so it takes [`PROOF_LEN_MIN`]. With
//! a key that was drawn for one signature only chance remains, and the signature's length was
//! chosen for that: one content in 2^24 gets a false match. Such a delta is sent with a proof of
//! the whole, which then fails, and the content is sent without copies. So keyed kinds count at
//! every length that a signature has.
//!
//! Blocks may be of different lengths if the checksums are CRCs and one length divides the other:
//! those of the shorter blocks are combined (SkySync, section 3.3.1). Other checksums are only
//! comparable at equal lengths.
//!
//! A shorter last block is compared only if both contents end with it. If one side padded it with
//! zeros and the other did not, CRCs are translated, and other checksums differ.
//!
//! None of this shows whether a checksum belongs to the current content. Code that takes checksums
//! from storage must prove that they are fresh.

use byteback_extents::ByteRange;

use crate::crc::{BlockCrcs, CrcKind, LastBlock};
use crate::leaves::LeafKind;
use crate::room::make_room;
use crate::signature::{STRONG_LEN_MIN, Signature};
use crate::strong::{PROOF_LEN_MIN, STRONG_LEN_MAX, StrongKind};

/// The kind of checksum of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SumKind {
    /// A CRC, little-endian.
    Crc(CrcKind),
    /// XXH64 without a seed (btrfs).
    Xxh64,
    /// SHA-256.
    Sha256,
    /// BLAKE2b of 256 bits, without a key.
    Blake2b256,
    /// BLAKE3, keyed as signatures with this seed are.
    Blake3 {
        /// The signature's seed.
        seed: u64,
    },
    /// BLAKE3 over leaves, keyed as signatures with this seed are.
    Tree {
        /// The kind of the leaves.
        leaf: LeafKind,
        /// The signature's seed.
        seed: u64,
    },
}

impl SumKind {
    /// Whether equal checksums of `len_bytes` prove that blocks are equal; keyed ones do so only
    /// together with a proof of the whole, see the module's header.
    #[must_use]
    pub const fn is_proof(self, len_bytes: usize) -> bool {
        match self {
            Self::Crc(_) | Self::Xxh64 => false,
            Self::Sha256 | Self::Blake2b256 => len_bytes >= PROOF_LEN_MIN,
            Self::Blake3 { .. } | Self::Tree { .. } => len_bytes >= STRONG_LEN_MIN as usize,
        }
    }
}

/// How a content is cut into blocks and summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumLayout {
    /// The kind of checksum of blocks.
    pub kind: SumKind,
    /// The length to which checksums are cut, in bytes, at most [`STRONG_LEN_MAX`].
    pub sum_len_bytes: u8,
    /// The length of a block; 0 counts as 1.
    pub block_len_bytes: u32,
    /// The length of the content.
    pub content_len_bytes: u64,
    /// How the last block was summed.
    pub last: LastBlock,
}

/// A checksum; bytes beyond its length are zeros.
pub type BlockSum = [u8; STRONG_LEN_MAX];

/// The known checksums of the blocks of one content.
pub trait BlockSums {
    /// How the content is cut into blocks and summed.
    fn layout(&self) -> SumLayout;

    /// The checksum of a block; `None` if it is unknown. Blocks are mostly queried in ascending
    /// order.
    fn sum(&mut self, block: u64) -> Option<BlockSum>;
}

impl<B: BlockSums + ?Sized> BlockSums for &mut B {
    fn layout(&self) -> SumLayout {
        (**self).layout()
    }

    fn sum(&mut self, block: u64) -> Option<BlockSum> {
        (**self).sum(block)
    }
}

/// CRCs as checksums of blocks.
#[derive(Clone, Debug)]
pub struct CrcSums<B>(pub B);

impl<B: BlockCrcs> BlockSums for CrcSums<B> {
    fn layout(&self) -> SumLayout {
        let layout = self.0.layout();
        SumLayout {
            kind: SumKind::Crc(layout.kind),
            // 4 or 8 bytes.
            sum_len_bytes: layout.kind.len_bytes() as u8,
            block_len_bytes: layout.block_len_bytes,
            content_len_bytes: layout.content_len_bytes,
            last: layout.last,
        }
    }

    fn sum(&mut self, block: u64) -> Option<BlockSum> {
        self.0.crc(block).map(of_crc)
    }
}

/// Checksums in memory, one after the other, with one bit for each.
#[derive(Clone, Debug)]
pub struct SumList {
    layout: SumLayout,
    sums: Vec<u8>,
    /// A bit per block: whether its checksum is known.
    known: Vec<u64>,
    len: usize,
}

impl SumList {
    /// An empty list; blocks that were not pushed are unknown.
    #[must_use]
    pub fn new(layout: SumLayout) -> Self {
        Self {
            layout: SumLayout {
                // At most 32.
                sum_len_bytes: layout.sum_len_bytes.min(STRONG_LEN_MAX as u8),
                ..layout
            },
            sums: Vec::new(),
            known: Vec::new(),
            len: 0,
        }
    }

    /// Adds the next block; a checksum that is shorter than the layout says counts as unknown.
    pub fn push(&mut self, sum: Option<&[u8]>) {
        let sum_len = usize::from(self.layout.sum_len_bytes);
        if self.len.is_multiple_of(64) {
            self.known.push(0);
        }
        let blocks = self
            .layout
            .content_len_bytes
            .div_ceil(u64::from(self.layout.block_len_bytes.max(1)));
        make_room(&mut self.sums, sum_len, blocks.saturating_mul(sum_len as u64));
        match sum.and_then(|sum| sum.get(..sum_len)) {
            Some(sum) => {
                self.sums.extend_from_slice(sum);
                if let Some(word) = self.known.last_mut() {
                    *word |= 1 << (self.len % 64);
                }
            }
            None => self.sums.resize(self.sums.len() + sum_len, 0),
        }
        self.len += 1;
    }
}

impl BlockSums for SumList {
    fn layout(&self) -> SumLayout {
        self.layout
    }

    fn sum(&mut self, block: u64) -> Option<BlockSum> {
        let block = usize::try_from(block).ok()?;
        if self.known.get(block / 64)? & (1 << (block % 64)) == 0 {
            return None;
        }
        let sum_len = usize::from(self.layout.sum_len_bytes);
        of_bytes(self.sums.get(block * sum_len..)?.get(..sum_len)?)
    }
}

/// The weak checksums of a signature whose kind is a CRC.
#[derive(Clone, Copy, Debug)]
pub struct WeakOf<'s>(&'s Signature, CrcKind, LastBlock);

impl<'s> WeakOf<'s> {
    /// The weak checksums of this signature; `None` if they are not CRCs.
    #[must_use]
    pub fn new(signature: &'s Signature) -> Option<Self> {
        let (kind, last) = signature.params().weak.crc()?;
        Some(Self(signature, kind, last))
    }
}

impl BlockSums for WeakOf<'_> {
    fn layout(&self) -> SumLayout {
        SumLayout {
            kind: SumKind::Crc(self.1),
            sum_len_bytes: 4,
            block_len_bytes: self.0.params().block_len_bytes,
            content_len_bytes: self.0.content_len_bytes(),
            last: self.2,
        }
    }

    fn sum(&mut self, block: u64) -> Option<BlockSum> {
        let weak = self.0.weak().get(usize::try_from(block).ok()?)?;
        Some(of_crc(u64::from(*weak)))
    }
}

/// The strong checksums of a signature.
#[derive(Clone, Copy, Debug)]
pub struct StrongOf<'s>(&'s Signature, SumKind);

impl<'s> StrongOf<'s> {
    /// The strong checksums of this signature; `None` if their kind proves nothing.
    #[must_use]
    pub fn new(signature: &'s Signature) -> Option<Self> {
        let params = signature.params();
        let kind = match params.strong {
            StrongKind::Blake3 => SumKind::Blake3 { seed: params.seed },
            StrongKind::Sha256 | StrongKind::Sha256Padded => SumKind::Sha256,
            StrongKind::Blake2b256 | StrongKind::Blake2b256Padded => SumKind::Blake2b256,
            StrongKind::Tree(leaf) => SumKind::Tree {
                leaf,
                seed: params.seed,
            },
            StrongKind::Md4 => return None,
        };
        Some(Self(signature, kind))
    }
}

impl BlockSums for StrongOf<'_> {
    fn layout(&self) -> SumLayout {
        let params = self.0.params();
        SumLayout {
            kind: self.1,
            sum_len_bytes: params.strong_len_bytes,
            block_len_bytes: params.block_len_bytes,
            content_len_bytes: self.0.content_len_bytes(),
            last: params.strong.last_block(),
        }
    }

    fn sum(&mut self, block: u64) -> Option<BlockSum> {
        self.0.strong(usize::try_from(block).ok()?).and_then(of_bytes)
    }
}

/// The verdict of checksums on a range of the new content and the same range of the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The ranges are equal and need not be read.
    Equal,
    /// The ranges are probably equal, which a strong checksum of the bytes must prove.
    Candidate,
    /// The ranges differ, or nothing is known: the bytes must be read and searched for elsewhere.
    Read,
}

/// Two lists of checksums cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Incomparable {
    /// The checksums are of different kinds.
    #[error("the checksums of the base are of kind {base:?}, those of the new content of kind {new:?}")]
    Kinds {
        /// The kind of the base's checksums.
        base: SumKind,
        /// The kind of the new content's checksums.
        new: SumKind,
    },
    /// The blocks do not line up.
    #[error("the base has blocks of {base} bytes, the new content of {new}: their checksums cannot cover equal ranges")]
    BlockLengths {
        /// The block length of the base.
        base: u32,
        /// The block length of the new content.
        new: u32,
    },
}

/// Compares the checksums of two contents; see the module's header. As an iterator, it yields
/// ranges of the new content, ascending and without gaps, with neighbours of the same verdict
/// merged. Memory: nothing beside the two lists.
pub struct Aligned<B, N> {
    base: B,
    new: N,
    base_layout: SumLayout,
    new_layout: SumLayout,
    /// The larger block length.
    step_len: u64,
    /// The number of bytes of each checksum that are compared.
    sum_len: usize,
    /// The verdict on equal checksums.
    equal: Verdict,
    /// The offset of the next range.
    position: u64,
}

impl<B: BlockSums, N: BlockSums> Aligned<B, N> {
    /// Compares two lists of checksums.
    ///
    /// # Errors
    /// If they are of different kinds, or their blocks do not line up.
    pub fn new(base: B, new: N) -> Result<Self, Incomparable> {
        let (base_layout, new_layout) = (base.layout(), new.layout());
        if base_layout.kind != new_layout.kind {
            return Err(Incomparable::Kinds {
                base: base_layout.kind,
                new: new_layout.kind,
            });
        }
        let (base_len, new_len) = (block_len(&base_layout), block_len(&new_layout));
        let step_len = base_len.max(new_len);
        let is_crc = matches!(base_layout.kind, SumKind::Crc(_));
        let divide = step_len.is_multiple_of(base_len) && step_len.is_multiple_of(new_len);
        if !(base_len == new_len || is_crc && divide) {
            return Err(Incomparable::BlockLengths {
                base: base_layout.block_len_bytes,
                new: new_layout.block_len_bytes,
            });
        }
        let sum_len = usize::from(base_layout.sum_len_bytes.min(new_layout.sum_len_bytes)).min(STRONG_LEN_MAX);
        Ok(Self {
            base,
            new,
            base_layout,
            new_layout,
            step_len,
            sum_len,
            equal: match base_layout.kind.is_proof(sum_len) {
                true => Verdict::Equal,
                false => Verdict::Candidate,
            },
            position: 0,
        })
    }

    /// The length of the ranges that are compared; the last one may be shorter.
    #[must_use]
    pub fn step_len_bytes(&self) -> u64 {
        self.step_len
    }

    /// Whether equal checksums are a proof.
    #[must_use]
    pub fn is_proof(&self) -> bool {
        self.equal == Verdict::Equal
    }

    /// The verdict on the step with this number.
    pub fn verdict(&mut self, step: u64) -> Verdict {
        let Some(range) = range_of(step, self.step_len, self.new_layout.content_len_bytes) else {
            return Verdict::Read;
        };
        // Where one content ends inside the other's block, their checksums cover ranges of
        // different lengths.
        if range_of(step, self.step_len, self.base_layout.content_len_bytes) != Some(range) || self.sum_len == 0 {
            return Verdict::Read;
        }
        let Some(new) = self.new_sum(step) else {
            return Verdict::Read;
        };
        let base = sum_of_range(&mut self.base, &self.base_layout, range);
        match base.is_some_and(|base| base[..self.sum_len] == new[..self.sum_len]) {
            true => self.equal,
            false => Verdict::Read,
        }
    }

    /// The new content's checksum of the step with this number; a CRC covers its bytes without
    /// padding.
    pub fn new_sum(&mut self, step: u64) -> Option<BlockSum> {
        let range = range_of(step, self.step_len, self.new_layout.content_len_bytes)?;
        sum_of_range(&mut self.new, &self.new_layout, range)
    }
}

impl<B: BlockSums, N: BlockSums> Iterator for Aligned<B, N> {
    type Item = (ByteRange, Verdict);

    fn next(&mut self) -> Option<Self::Item> {
        let len = self.new_layout.content_len_bytes;
        let step = self.position / self.step_len;
        let mut range = range_of(step, self.step_len, len)?;
        let verdict = self.verdict(step);
        while let Some(more) = range_of(range.end().div_ceil(self.step_len), self.step_len, len) {
            if self.verdict(more.start() / self.step_len) != verdict {
                break;
            }
            range = range.hull(more);
        }
        self.position = range.end().next_multiple_of(self.step_len);
        Some((range, verdict))
    }
}

/// The checksum of a range that begins and ends with blocks, or with the content.
fn sum_of_range(sums: &mut impl BlockSums, layout: &SumLayout, range: ByteRange) -> Option<BlockSum> {
    let block_len = block_len(layout);
    let first = range.start() / block_len;
    let SumKind::Crc(kind) = layout.kind else {
        return sums.sum(first);
    };
    let mut whole = 0;
    for block in first..range.end().div_ceil(block_len) {
        let mut crc = crc_of(&sums.sum(block)?);
        let len = (range.end() - block * block_len).min(block_len);
        if len < block_len && layout.last == LastBlock::ZeroPadded {
            crc = kind.without_zeros(crc, block_len - len);
        }
        whole = if block == first {
            crc
        } else {
            kind.combine(whole, crc, len)
        };
    }
    Some(of_crc(whole))
}

fn range_of(step: u64, step_len: u64, content_len: u64) -> Option<ByteRange> {
    let start = step.checked_mul(step_len)?;
    ByteRange::new(start, start.saturating_add(step_len).min(content_len))
}

fn block_len(layout: &SumLayout) -> u64 {
    u64::from(layout.block_len_bytes.max(1))
}

pub(super) fn crc_of(sum: &BlockSum) -> u64 {
    sum.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn of_crc(crc: u64) -> BlockSum {
    let mut sum = [0; STRONG_LEN_MAX];
    sum[..8].copy_from_slice(&crc.to_le_bytes());
    sum
}

fn of_bytes(bytes: &[u8]) -> Option<BlockSum> {
    let mut sum = [0; STRONG_LEN_MAX];
    sum.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(sum)
}

#[cfg(test)]
mod tests;
