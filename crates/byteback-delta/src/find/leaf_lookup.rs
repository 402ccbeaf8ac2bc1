//! The search on the server for blocks that may lie anywhere in a base, but only at multiples of
//! their length: pages of a database, blocks of a disk image.
//!
//! As in [`super::reverse`], the client sends the signature of its new blocks. But no window moves:
//! the blocks are one leaf long ([`crate::leaves`]), and each leaf of the base is looked up by its
//! CRC-32C, then by the strong checksum that follows from the leaf. So a base whose leaves are kept
//! is searched without reading it, at some nanoseconds for each block.
//!
//! *Zeros* of the base are passed over: a block of zeros costs nothing to send.
//!
//! *Memory* and *proof* are those of `reverse`.

use byteback_extents::ByteRange;

use super::ExtentSink;
use super::index::BlockIndex;
use super::reverse::Places;
use crate::leaves::{LEAF_LEN_BYTES, Leaf, LeafKind};
use crate::matches::MatchList;
use crate::signature::SignatureParams;
use crate::strong::{StrongHasher, StrongKind, TreeHasher};
use crate::weak::WeakKind;

/// Looks blocks of a new content up among the leaves of a base; see the module's header.
pub struct LeafLookup<'i> {
    index: &'i BlockIndex,
    places: Places,
    tree: TreeHasher,
    base_len_bytes: u64,
    /// The offset of the next leaf.
    position: u64,
}

impl<'i> LeafLookup<'i> {
    /// The kind of leaves by which blocks of a signature with these parameters can be looked up;
    /// `None` if they cannot.
    #[must_use]
    pub fn kind_of(params: &SignatureParams) -> Option<LeafKind> {
        match (params.weak, params.strong) {
            (WeakKind::Crc32c, StrongKind::Tree(kind)) if params.block_len_bytes == LEAF_LEN_BYTES => Some(kind),
            _ => None,
        }
    }

    /// Begins at the first leaf of a base of `base_len_bytes`. `index` is that of the new blocks'
    /// signature; nothing is found unless it has a [kind](Self::kind_of).
    #[must_use]
    pub fn new(index: &'i BlockIndex, base_len_bytes: u64) -> Self {
        let params = index.signature().params();
        Self {
            index,
            places: Places::new(index.signature()),
            tree: StrongHasher::new(params.strong, params.seed).tree(),
            base_len_bytes,
            position: 0,
        }
    }

    /// Adds the next leaf of the base, with the CRC-32C of the same bytes. Leaves beyond the base's
    /// end, and a last one that is shorter than a block, are ignored.
    pub fn push(&mut self, crc: u32, leaf: &Leaf) {
        let at = self.position;
        let len = u64::from(LEAF_LEN_BYTES);
        self.position = at.saturating_add(len);
        if self.position > self.base_len_bytes || !self.index.may_contain(crc) {
            return;
        }
        self.tree.restart();
        self.tree.push(leaf);
        let strong = self.tree.sum();
        let signature = self.index.signature();
        let is_equal = |block: &usize| {
            signature
                .strong(*block)
                .is_some_and(|sought| strong.starts_with(sought))
        };
        let found = self.index.candidates(crc).find(is_equal);
        if let Some((block, range)) = found.zip(ByteRange::from_offset_len(at, len)) {
            // Recording places cannot fail.
            let Ok(()) = self.places.copy(range, block as u64 * len);
        }
    }

    /// Adds zeros of the base: whole leaves, or up to its end.
    pub fn push_zeros(&mut self, len_bytes: u64) {
        self.position = self.position.saturating_add(len_bytes);
    }

    /// Ends the base. Returns the matches.
    #[must_use]
    pub fn finish(self) -> MatchList {
        self.places.into_list(self.index, self.base_len_bytes)
    }
}

#[cfg(test)]
mod tests;
