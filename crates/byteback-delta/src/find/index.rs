//! The table in which finders look up the blocks that have a window's weak checksum.
//!
//! Almost every lookup answers "none". So a bitmap comes first, with sixteen bits or more per
//! block, two of which are set in one word: small enough for the processor's cache, one load per
//! byte of content, and about one false positive in a hundred. After it comes a flat table with
//! linear probing, eight bytes per slot.
//!
//! Both are indexed by the checksum times an odd constant: rsync's sums of text differ little in
//! their upper bits.
//!
//! A signature may be crafted. Equal blocks are kept once; of different blocks with one weak
//! checksum at most [`CHAIN_MAX`] are kept, and no insertion or lookup examines more than
//! [`PROBES_MAX`] slots. Blocks left out are merely not found.

use crate::signature::Signature;

/// The most different blocks kept for one weak checksum.
const CHAIN_MAX: usize = 8;

/// The most slots that a lookup examines.
const PROBES_MAX: usize = 64;

/// A slot without a block.
const EMPTY: u32 = u32::MAX;

/// 2^64 divided by the golden ratio, odd.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Clone, Copy, Debug)]
struct Slot {
    weak: u32,
    block: u32,
}

/// Numbers of blocks by their weak checksums; see the module's header.
#[derive(Debug)]
pub(super) struct WeakTable {
    /// The bitmap; its number of words is a power of two.
    filter: Vec<u64>,
    filter_shift: u32,
    /// The table; its number of slots is a power of two.
    slots: Vec<Slot>,
    slot_shift: u32,
}

impl WeakTable {
    /// An empty table for `blocks` blocks; more are allowed, but found less often.
    pub(super) fn with_capacity(blocks: usize) -> Self {
        let slot_bits = (blocks.max(4) * 2).next_power_of_two().trailing_zeros();
        let filter_bits = (blocks.max(64) * 16).next_power_of_two().trailing_zeros();
        Self {
            filter: vec![0; 1 << (filter_bits - 6)],
            // The index of a word of 64 bits.
            filter_shift: u64::BITS - (filter_bits - 6),
            slots: vec![Slot { weak: 0, block: EMPTY }; 1 << slot_bits],
            slot_shift: u64::BITS - slot_bits,
        }
    }

    /// Whether there may be a block with this weak checksum; false is certain.
    #[inline(always)]
    pub(super) fn may_contain(&self, weak: u32) -> bool {
        let (word, bits) = self.filter_bits(weak);
        // The shift leaves as many words as the filter has; the mask shows that to the compiler,
        // which then checks no bounds.
        self.filter[word & (self.filter.len() - 1)] & bits == bits
    }

    /// Whether there is a block with this weak checksum.
    #[inline(never)]
    pub(super) fn contains(&self, weak: u32) -> bool {
        self.candidates(weak).next().is_some()
    }

    /// The kept blocks with this weak checksum, in the order of insertion.
    pub(super) fn candidates(&self, weak: u32) -> impl Iterator<Item = usize> + '_ {
        self.probe(weak)
            .map(|at| self.slots[at])
            .take_while(|slot| slot.block != EMPTY)
            .filter(move |slot| slot.weak == weak)
            .map(|slot| slot.block as usize)
    }

    /// Adds a block, unless `is_equal` says that it equals a kept one with the same weak checksum.
    pub(super) fn insert(&mut self, weak: u32, block: usize, is_equal: impl Fn(usize) -> bool) {
        let mut of_this_weak = 0;
        for at in self.probe(weak) {
            let slot = self.slots[at];
            if slot.block == EMPTY {
                // Fewer than 2^32 - 1 blocks fit into memory beside their checksums.
                let Ok(block) = u32::try_from(block) else { return };
                self.slots[at] = Slot { weak, block };
                let (word, bits) = self.filter_bits(weak);
                self.filter[word] |= bits;
                return;
            }
            if slot.weak == weak {
                of_this_weak += 1;
                if of_this_weak == CHAIN_MAX || is_equal(slot.block as usize) {
                    return;
                }
            }
        }
    }

    /// The word of the filter for a weak checksum, and two bits of that word (or one, by chance).
    #[inline(always)]
    fn filter_bits(&self, weak: u32) -> (usize, u64) {
        let mixed = u64::from(weak).wrapping_mul(MIX);
        let word = mixed >> self.filter_shift;
        // Bits below those that select the word, which are at most 31.
        let bits = (1 << (mixed >> 20 & 63)) | (1 << (mixed >> 26 & 63));
        (word as usize, bits)
    }

    fn probe(&self, weak: u32) -> impl Iterator<Item = usize> + use<> {
        let mask = self.slots.len() - 1;
        let start = (u64::from(weak).wrapping_mul(MIX) >> self.slot_shift) as usize;
        (0..PROBES_MAX).map(move |step| (start + step) & mask)
    }
}

/// The blocks of a signature by their weak checksums.
#[derive(Debug)]
pub struct BlockIndex {
    signature: Signature,
    table: WeakTable,
}

impl BlockIndex {
    /// Indexes the whole blocks of a signature; a shorter last block is not among them.
    #[must_use]
    pub fn new(signature: Signature) -> Self {
        let mut table = WeakTable::with_capacity(signature.blocks());
        for (block, &weak) in signature.weak().iter().enumerate().take(whole_blocks(&signature)) {
            table.insert(weak, block, |other| signature.strong(other) == signature.strong(block));
        }
        Self { signature, table }
    }

    /// The indexed signature.
    #[must_use]
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// The number of blocks of full length.
    pub(super) fn whole_blocks(&self) -> usize {
        whole_blocks(&self.signature)
    }

    /// Whether there may be a block with this weak checksum; false is certain.
    #[inline(always)]
    pub(super) fn may_contain(&self, weak: u32) -> bool {
        self.table.may_contain(weak)
    }

    /// Whether there is a block with this weak checksum.
    pub(super) fn contains(&self, weak: u32) -> bool {
        self.table.contains(weak)
    }

    /// The kept blocks with this weak checksum, in the order of the base.
    pub(super) fn candidates(&self, weak: u32) -> impl Iterator<Item = usize> + '_ {
        self.table.candidates(weak)
    }
}

fn whole_blocks(signature: &Signature) -> usize {
    let whole = signature.content_len_bytes() / u64::from(signature.params().block_len_bytes);
    // Never more blocks than the signature has in memory.
    usize::try_from(whole).map_or(signature.blocks(), |whole| whole.min(signature.blocks()))
}
