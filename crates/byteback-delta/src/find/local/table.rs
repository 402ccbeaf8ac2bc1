//! The table of the base's blocks by their weak checksums.

use byteback_extents::ByteRange;

use super::{LocalError, PIECE_LEN, TABLE_BLOCKS_MAX, read_base};
use crate::apply::Base;
use crate::find::index::WeakTable;
use crate::weak::{Rolling, RollingSum};

/// The blocks of a part of the base. Blocks that equal the previous one, or begin in a hole, are
/// left out.
pub(super) struct BaseTable {
    table: WeakTable,
    /// The offset of block 0.
    start: u64,
    block_len: usize,
}

impl BaseTable {
    /// Sums the blocks of a part of the base; without a part the table is empty.
    pub(super) fn of<E>(
        base: &(impl Base + ?Sized),
        part: Option<ByteRange>,
        block_len: usize,
    ) -> Result<Self, LocalError<E>> {
        let blocks = part.map_or(0, |part| part.len_bytes() / block_len as u64);
        let mut made = Self {
            // At most 2^20.
            table: WeakTable::with_capacity(blocks.min(TABLE_BLOCKS_MAX) as usize),
            start: part.map_or(0, |part| part.start()),
            block_len,
        };
        let Some(part) = part else { return Ok(made) };
        // Whole blocks are read at once.
        let piece_len = (PIECE_LEN / block_len).max(1) * block_len;
        let mut piece = Vec::new();
        let mut last: Option<(u32, Vec<u8>)> = None;
        let (mut kept, mut at) = (0, part.start());
        while let Some(left) = ByteRange::new(at, part.end()) {
            let error = |source| LocalError::ReadBase { range: left, source };
            let Some(data) = base.next_data(left).map_err(error)? else {
                break;
            };
            let skipped = data.start().saturating_sub(part.start()) / block_len as u64;
            at = at.max(part.start() + skipped * block_len as u64);
            let data_end = data.end().max(at + 1);
            while at < data_end && part.end() - at >= block_len as u64 && kept < TABLE_BLOCKS_MAX {
                let blocks = (part.end() - at).min(piece_len as u64) / block_len as u64;
                // At most a piece or a block.
                piece.resize(blocks as usize * block_len, 0);
                read_base(base, at, &mut piece)?;
                for block in piece.chunks_exact(block_len) {
                    let weak = RollingSum::of(block).value();
                    let number = (at - part.start()) / block_len as u64;
                    at += block_len as u64;
                    if last.as_ref().is_some_and(|(sum, last)| *sum == weak && last == block) {
                        continue;
                    }
                    // A part has at most 2^63 bytes; numbers that do not fit are left out by the
                    // table.
                    made.table
                        .insert(weak, usize::try_from(number).unwrap_or(usize::MAX), |_| false);
                    kept += 1;
                    let (sum, bytes) = last.get_or_insert_default();
                    *sum = weak;
                    bytes.clear();
                    bytes.extend_from_slice(block);
                }
            }
            if part.end() - at < block_len as u64 || kept >= TABLE_BLOCKS_MAX {
                break;
            }
        }
        Ok(made)
    }

    /// Whether there is a block with this weak checksum.
    #[inline]
    pub(super) fn contains(&self, weak: u32) -> bool {
        self.table.may_contain(weak) && self.table.contains(weak)
    }

    /// The offsets of the blocks with this weak checksum.
    pub(super) fn candidates(&self, weak: u32) -> impl Iterator<Item = u64> + '_ {
        let block_len = self.block_len as u64;
        self.table
            .candidates(weak)
            .map(move |block| self.start + block as u64 * block_len)
    }

    /// Moves a window over `content` until it may be a block, by at most `most` bytes, and only
    /// over whole windows. `sum` is the checksum of the first window. Returns the distance moved.
    pub(super) fn pass(&self, sum: &mut RollingSum, content: &[u8], block_len: usize, most: usize) -> usize {
        let table = &self.table;
        let mut rolling = *sum;
        let coming = &content[block_len..];
        let steps = coming.len().min(most);
        for (at, (&leaving, &coming)) in content.iter().zip(&coming[..steps]).enumerate() {
            let value = rolling.value();
            if table.may_contain(value) && table.contains(value) {
                *sum = rolling;
                return at;
            }
            rolling.roll(leaving, coming);
        }
        *sum = rolling;
        steps
    }
}
