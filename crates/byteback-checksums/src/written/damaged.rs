//! Damaged blocks stay damaged until they are replaced, repaired, or accepted as they are.

use byteback_extents::ByteRange;

use super::backing::{Backing, aligned_block, read_full};
use super::blocks::{BLOCK_LEN, FileSums, blocks_within, sum_of};
use super::{WrittenSums, blocks_of};

impl WrittenSums {
    /// A range of a file was overwritten with unknown bytes. Damaged blocks stay damaged, with the
    /// sums that prove it, unless they were replaced as a whole: the rest of such a block is still
    /// not what was written.
    pub(super) fn overwritten(&self, file: u64, sums: &mut FileSums, range: ByteRange, is_done: bool) {
        if is_done {
            self.unflag(file, Some(blocks_within(range)));
        }
        self.unknown_but_damaged(file, sums, blocks_of(range));
    }

    /// Makes blocks unknown, from the first to before the second number, except damaged ones.
    pub(super) fn unknown_but_damaged(&self, file: u64, sums: &mut FileSums, (first, end): (u64, u64)) {
        let damaged = self.flagged_of(file).map(|flagged| flagged.blocks).unwrap_or_default();
        let touched = ByteRange::new(first, end);
        for forgotten in touched.iter().flat_map(|touched| damaged.gaps_within(*touched)) {
            sums.unknown(forgotten.start(), forgotten.end());
        }
    }

    /// Accepts the present content of the blocks in a range. Blocks that cannot be read are
    /// unknown.
    pub(super) fn accept(&self, file: u64, sums: &mut FileSums, backing: &impl Backing, range: ByteRange) {
        let (first, end) = blocks_of(range);
        let mut room = Vec::new();
        for block in first..end {
            let bytes = aligned_block(&mut room);
            let count = read_full(backing, block.saturating_mul(BLOCK_LEN), bytes).ok();
            let sum = count.map(|count| sum_of(bytes.get(..count).unwrap_or_default()));
            sums.set(block, sum);
        }
        self.unflag(file, Some((first, end)));
    }

    /// The sum that a block of a file should have (see [`block_sum`]), if it is known.
    pub fn sum_of(&self, file: u64, backing: &impl Backing, block: u64) -> Option<u32> {
        let cell = self.cell(file);
        let mut known = cell.lock();
        self.load(file, &mut known, || backing.stamp());
        known.sums.get(block, &|chunk| self.row(file, chunk))
    }
}
