//! Division of a device into areas.

use crate::error::{Result, VolumeError};
use crate::format::{Areas, NODES_PER_BLOCK, OPEN_SUMMARY_BLOCKS_MAX, SEALED_LEN_BYTES, SegmentEntry};
use byteback_host::block::BLOCK_LEN_BYTES;

/// Least segments of the main area: six that are written, and room to clean.
const SEGMENTS_MIN: u32 = 32;

/// From this length on, 128 MiB, segments have 2 MiB; on smaller volumes they are shorter, so that
/// there are enough of them.
const LONG_SEGMENTS_FROM_BLOCKS: u64 = 64 << 9;

/// End of the addresses: the last one means something else.
const BLOCKS_MAX: u64 = u32::MAX as u64 - 1;

/// Blocks of the journal in a checkpoint pack.
pub(crate) const JOURNAL_BLOCKS: u32 = 2;

/// Blocks of orphans.
pub(crate) const ORPHAN_BLOCKS: u32 = 16;

/// Share of segments kept free for cleaning, as a divisor; a fixed number is the minimum.
const RESERVED_OF: u32 = 25;
const RESERVED_MIN: u32 = 10;

fn bitmap_blocks(bits: u32) -> u32 {
    let bits_per_block = u32::try_from(SEALED_LEN_BYTES * 8).unwrap_or(u32::MAX);
    bits.div_ceil(bits_per_block)
}

/// Divides a device of this length.
///
/// # Errors
/// [`VolumeError::TooSmall`], [`VolumeError::TooLarge`].
pub(crate) fn divide(device_blocks: u64) -> Result<Areas> {
    let in_bytes = |blocks: u64| blocks.saturating_mul(BLOCK_LEN_BYTES as u64);
    let len_blocks = match u32::try_from(device_blocks) {
        Ok(len_blocks) if device_blocks <= BLOCKS_MAX => len_blocks,
        _ => {
            return Err(VolumeError::TooLarge {
                max_bytes: in_bytes(BLOCKS_MAX),
                device_bytes: in_bytes(device_blocks),
            });
        }
    };
    let segment_blocks = if device_blocks < LONG_SEGMENTS_FROM_BLOCKS {
        64
    } else {
        512
    };
    // Each segment takes some of the other areas, whose lengths are rounded up: so search from
    // above.
    let most = len_blocks / segment_blocks;
    let fits = |segments: u32| {
        let areas = areas_of(len_blocks, segment_blocks, segments);
        areas.filter(Areas::is_sound)
    };
    let (mut fitting, mut too_many) = (0, most.saturating_add(1));
    while too_many - fitting > 1 {
        let middle = fitting + (too_many - fitting) / 2;
        match fits(middle) {
            Some(_) => fitting = middle,
            None => too_many = middle,
        }
    }
    match fits(fitting).filter(|areas| areas.main_segments >= SEGMENTS_MIN) {
        Some(areas) => Ok(areas),
        None => Err(VolumeError::TooSmall {
            min_bytes: min_bytes(),
            device_bytes: in_bytes(device_blocks),
        }),
    }
}

/// The length of the smallest volume, in bytes.
fn min_bytes() -> u64 {
    let areas = areas_of(u32::MAX - 1, 64, SEGMENTS_MIN);
    let main_end = areas.map_or(0, |areas| areas.main_first + SEGMENTS_MIN * 64);
    (u64::from(main_end) + 1) * BLOCK_LEN_BYTES as u64
}

fn areas_of(len_blocks: u32, segment_blocks: u32, main_segments: u32) -> Option<Areas> {
    let main_blocks = main_segments.checked_mul(segment_blocks)?;
    let segment_table_blocks = main_segments.div_ceil(SegmentEntry::per_block(segment_blocks));
    // One number for every possible node, if all blocks were nodes. Number 0 is none.
    let node_table_blocks = main_blocks.checked_add(1)?.div_ceil(NODES_PER_BLOCK);
    let bitmaps = bitmap_blocks(segment_table_blocks.checked_add(node_table_blocks)?);
    let pack_blocks = 2 + bitmaps + JOURNAL_BLOCKS + ORPHAN_BLOCKS + OPEN_SUMMARY_BLOCKS_MAX;
    let mut areas = Areas {
        len_blocks,
        segment_blocks,
        packs_first: 1,
        pack_blocks,
        segment_table_first: 0,
        segment_table_blocks,
        node_table_first: 0,
        node_table_blocks,
        summaries_first: 0,
        main_first: 0,
        main_segments,
        reserved_segments: (main_segments / RESERVED_OF).max(RESERVED_MIN),
    };
    areas.segment_table_first = areas.packs_first.checked_add(pack_blocks.checked_mul(2)?)?;
    areas.node_table_first = areas
        .segment_table_first
        .checked_add(segment_table_blocks.checked_mul(2)?)?;
    areas.summaries_first = areas.node_table_first.checked_add(node_table_blocks.checked_mul(2)?)?;
    let summaries_end = areas
        .summaries_first
        .checked_add(areas.summary_blocks().checked_mul(main_segments)?)?;
    // Segments begin at multiples of their length, which suits flash cards.
    areas.main_first = summaries_end.checked_next_multiple_of(segment_blocks)?;
    Some(areas)
}

#[cfg(test)]
mod tests;
