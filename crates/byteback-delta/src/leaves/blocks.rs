//! The checksums of a signature's blocks, from leaves and CRCs of 4 KiB that arrive in ascending
//! order.
//!
//! Memory is one block in progress, however long a block is. A checksum that is unknown for one
//! leaf is unknown for its block.

use super::{LEAF_LEN_BYTES, Leaf, LeafKind, leaf_count, leaf_len_bytes};
use crate::crc::{BlockLayout, Combiner, CrcKind, CrcList, LastBlock};
use crate::find::{CrcSums, Known, SumKind, SumLayout, SumList};
use crate::signature::SignatureParams;
use crate::strong::{StrongHasher, StrongKind, TreeHasher};
use crate::weak::WeakKind;

/// The known checksums of a block of a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafBlock {
    /// The CRC-32C of the block.
    pub weak: Option<u32>,
    /// The strong checksum of the block, at full length.
    pub strong: Option<[u8; 32]>,
}

/// Combines leaves into the blocks of a signature; see the module's header.
pub struct LeafBlocks {
    kind: LeafKind,
    content_len_bytes: u64,
    leaves_per_block: u64,
    /// The number of the next leaf.
    next: u64,
    /// The CRC-32C of the current block so far, if known.
    crc: Option<u32>,
    tree: TreeHasher,
    /// Whether all leaves of the current block are known so far.
    has_leaves: bool,
    of_leaf: Combiner,
    zeros: Zeros,
}

/// The checksums of zeros.
struct Zeros {
    leaf: Leaf,
    crc: u32,
    /// The checksums of a whole block, once one was needed.
    block: Option<LeafBlock>,
}

impl LeafBlocks {
    /// A builder for the blocks of a signature with these parameters, of a content of
    /// `content_len_bytes`; `None` if its strong checksums are not of a tree kind, or its block
    /// length is not a multiple of [`LEAF_LEN_BYTES`].
    #[must_use]
    pub fn new(params: &SignatureParams, content_len_bytes: u64) -> Option<Self> {
        let StrongKind::Tree(kind) = params.strong else {
            return None;
        };
        let (block_len, leaf_len) = (u64::from(params.block_len_bytes), u64::from(LEAF_LEN_BYTES));
        if block_len == 0 || !block_len.is_multiple_of(leaf_len) {
            return None;
        }
        Some(Self {
            tree: StrongHasher::new(params.strong, params.seed).tree(),
            has_leaves: true,
            kind,
            content_len_bytes,
            leaves_per_block: block_len / leaf_len,
            next: 0,
            crc: Some(0),
            of_leaf: Combiner::new(CrcKind::Crc32c, leaf_len),
            zeros: Zeros {
                leaf: kind.leaf_of_zeros(LEAF_LEN_BYTES),
                crc: crc_of_zeros(LEAF_LEN_BYTES),
                block: None,
            },
        })
    }

    /// The kind of the leaves.
    #[must_use]
    pub fn kind(&self) -> LeafKind {
        self.kind
    }

    /// The number of leaves so far.
    #[must_use]
    pub fn leaves(&self) -> u64 {
        self.next
    }

    /// Adds the next leaf and the CRC-32C of the same bytes (no padding), as far as they are known.
    /// Returns the block that it completes, if any. Leaves beyond the content's end are ignored.
    pub fn push(&mut self, crc: Option<u32>, leaf: Option<&Leaf>) -> Option<LeafBlock> {
        let len_bytes = leaf_len_bytes(self.content_len_bytes, self.next);
        if len_bytes == 0 {
            return None;
        }
        self.crc = self.crc.zip(crc).map(|(before, crc)| {
            let (before, crc) = (u64::from(before), u64::from(crc));
            // A CRC of 32 bits.
            match len_bytes {
                LEAF_LEN_BYTES => self.of_leaf.combine(before, crc) as u32,
                _ => CrcKind::Crc32c.combine(before, crc, u64::from(len_bytes)) as u32,
            }
        });
        match leaf {
            Some(leaf) => self.tree.push(leaf),
            None => self.has_leaves = false,
        }
        self.next += 1;
        let is_whole =
            self.next.is_multiple_of(self.leaves_per_block) || self.next == leaf_count(self.content_len_bytes);
        is_whole.then(|| self.end_block())
    }

    /// Adds `leaves` leaves of zeros, or those up to the content's end if there are fewer; `each`
    /// gets the blocks that they complete. A block of zeros alone costs a constant.
    ///
    /// # Errors
    /// The error of `each`.
    pub fn push_zeros<E>(&mut self, leaves: u64, mut each: impl FnMut(LeafBlock) -> Result<(), E>) -> Result<(), E> {
        let end = self.next.saturating_add(leaves).min(leaf_count(self.content_len_bytes));
        let whole_leaves = self.content_len_bytes / u64::from(LEAF_LEN_BYTES);
        while self.next < end {
            if self.next.is_multiple_of(self.leaves_per_block)
                && self.next + self.leaves_per_block <= end.min(whole_leaves)
                && let Some(block) = self.zeros.block
            {
                self.next += self.leaves_per_block;
                each(block)?;
                continue;
            }
            let is_only_zeros = self.next.is_multiple_of(self.leaves_per_block);
            let block_end = (self.next - self.next % self.leaves_per_block).saturating_add(self.leaves_per_block);
            let mut made = None;
            while self.next < end.min(block_end) {
                let (leaf, crc) = match leaf_len_bytes(self.content_len_bytes, self.next) {
                    LEAF_LEN_BYTES => (self.zeros.leaf, self.zeros.crc),
                    len_bytes => (self.kind.leaf_of_zeros(len_bytes), crc_of_zeros(len_bytes)),
                };
                made = self.push(Some(crc), Some(&leaf));
            }
            if let Some(block) = made {
                if is_only_zeros && self.next == block_end && self.next <= whole_leaves {
                    self.zeros.block = Some(block);
                }
                each(block)?;
            }
        }
        Ok(())
    }

    fn end_block(&mut self) -> LeafBlock {
        let strong = match std::mem::replace(&mut self.has_leaves, true) {
            true => Some(self.tree.sum()),
            false => {
                self.tree.restart();
                None
            }
        };
        LeafBlock {
            weak: self.crc.replace(0),
            strong,
        }
    }
}

/// The checksums that storage keeps of a new content, in a form that can be compared with a
/// signature of a tree kind with CRC-32C. Memory: one weak and one strong checksum per block of the
/// signature.
pub struct TreeSums {
    blocks: LeafBlocks,
    crcs: CrcList,
    strong: SumList,
}

impl TreeSums {
    /// A collector for a signature with these parameters and a new content of `content_len_bytes`;
    /// `None` if such checksums do not follow from leaves and CRC-32C.
    #[must_use]
    pub fn new(params: &SignatureParams, content_len_bytes: u64) -> Option<Self> {
        let blocks = LeafBlocks::new(params, content_len_bytes)?;
        if params.weak != WeakKind::Crc32c {
            return None;
        }
        Some(Self {
            crcs: CrcList::new(BlockLayout {
                kind: CrcKind::Crc32c,
                block_len_bytes: params.block_len_bytes,
                content_len_bytes,
                last: LastBlock::AsItIs,
            }),
            strong: SumList::new(SumLayout {
                kind: SumKind::Tree {
                    leaf: blocks.kind,
                    seed: params.seed,
                },
                sum_len_bytes: params.strong_len_bytes,
                block_len_bytes: params.block_len_bytes,
                content_len_bytes,
                last: LastBlock::AsItIs,
            }),
            blocks,
        })
    }

    /// The number of leaves so far.
    #[must_use]
    pub fn leaves(&self) -> u64 {
        self.blocks.leaves()
    }

    /// Adds the next leaf and the CRC-32C of the same bytes (no padding), as far as they are known.
    pub fn push(&mut self, crc: Option<u32>, leaf: Option<&Leaf>) {
        if let Some(block) = self.blocks.push(crc, leaf) {
            add(&mut self.crcs, &mut self.strong, block);
        }
    }

    /// Adds `leaves` leaves of zeros.
    pub fn push_zeros(&mut self, leaves: u64) {
        let (crcs, strong) = (&mut self.crcs, &mut self.strong);
        let added: Result<(), std::convert::Infallible> = self.blocks.push_zeros(leaves, |block| {
            add(crcs, strong, block);
            Ok(())
        });
        match added {
            Ok(()) => {}
            Err(never) => match never {},
        }
    }

    /// The collected checksums; those of blocks that were not added are unknown.
    #[must_use]
    pub fn finish(self) -> Known<CrcSums<CrcList>, SumList> {
        Known {
            crcs: Some(CrcSums(self.crcs)),
            strong: Some(self.strong),
        }
    }
}

fn add(crcs: &mut CrcList, strong: &mut SumList, block: LeafBlock) {
    crcs.push(block.weak.map(u64::from));
    strong.push(block.strong.as_ref().map(|sum| &sum[..]));
}

fn crc_of_zeros(len_bytes: u32) -> u32 {
    // A CRC of 32 bits.
    CrcKind::Crc32c.of_zeros(u64::from(len_bytes)) as u32
}
