//! The paper's persisted form of an mlog tree (SolFS section 3.2.1, Figure 5), as a yardstick for
//! ours.
//!
//! An array of entries. Each is a 4-byte word, little-endian, and perhaps another. Highest bit of
//! the word set: a *compact* mlog, with its offset in bits 0 to 15 and its length in bits 16 to 30.
//! Not set: a *normal* mlog, whose length the word is, and whose offset is the next word. Offsets
//! and lengths count bytes, or pages of 4 KiB where the tree was made coarser.
//!
//! Offsets from 2^32 on and lengths from 2^31 on have no form and are an error. In units of pages
//! the form reaches 16 TiB.
//!
//! Nothing of ours is kept in this form. [`density`] says what both cost for the same ranges;
//! docs/formats/oplog.md has a table of it.

use byteback_extents::{ByteRange, ExtentSet};
use thiserror::Error;

use crate::layer::{PAGE_BYTES, Unit, encode_ranges};

const COMPACT: u32 = 1 << 31;
const COMPACT_OFFSET_END: u64 = 1 << 16;
const COMPACT_LEN_END: u64 = 1 << 15;
const NORMAL_OFFSET_END: u64 = 1 << 32;
const NORMAL_LEN_END: u64 = 1 << 31;

/// Why ranges have no form, or bytes are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MlogError {
    /// A range lies too far, or is too long.
    #[error("the range {0} does not fit into an mlog of two 32-bit numbers")]
    NotRepresentable(ByteRange),
    /// An entry is empty, or cut off, or touches or precedes the one before it.
    #[error("not an array of mlogs")]
    Malformed,
}

/// The array of mlogs for `ranges`, which are aligned outwards where the unit is pages.
///
/// # Errors
/// [`MlogError::NotRepresentable`].
pub fn encode(ranges: &ExtentSet, unit: Unit) -> Result<Vec<u8>, MlogError> {
    let aligned;
    let (ranges, unit_bytes) = match unit {
        Unit::Byte => (ranges, 1),
        Unit::Page => {
            aligned = ranges.aligned_out(PAGE_BYTES);
            (&aligned, PAGE_BYTES.get())
        }
    };
    let mut out = Vec::with_capacity(ranges.len() * 8);
    for range in ranges.iter() {
        let (offset, len) = (range.start() / unit_bytes, range.len_bytes().div_ceil(unit_bytes));
        if offset >= NORMAL_OFFSET_END || len >= NORMAL_LEN_END {
            return Err(MlogError::NotRepresentable(range));
        }
        // Both fit, as was just checked.
        let (offset_word, len_word) = (offset as u32, len as u32);
        if offset < COMPACT_OFFSET_END && len < COMPACT_LEN_END {
            out.extend_from_slice(&(COMPACT | len_word << 16 | offset_word).to_le_bytes());
        } else {
            out.extend_from_slice(&len_word.to_le_bytes());
            out.extend_from_slice(&offset_word.to_le_bytes());
        }
    }
    Ok(out)
}

/// The ranges, in bytes, that an array of mlogs says.
///
/// # Errors
/// [`MlogError::Malformed`].
pub fn decode(bytes: &[u8], unit: Unit) -> Result<ExtentSet, MlogError> {
    let unit_bytes = match unit {
        Unit::Byte => 1,
        Unit::Page => PAGE_BYTES.get(),
    };
    let mut ranges = ExtentSet::new();
    let mut left = bytes;
    let mut word = || {
        let (word, rest) = left.split_first_chunk::<4>()?;
        left = rest;
        Some(u32::from_le_bytes(*word))
    };
    let mut end = None;
    while let Some(first) = word() {
        let (offset, len) = if first & COMPACT != 0 {
            (u64::from(first & 0xffff), u64::from(first >> 16 & 0x7fff))
        } else {
            (u64::from(word().ok_or(MlogError::Malformed)?), u64::from(first))
        };
        // No product exceeds 2^44.
        let range = ByteRange::from_offset_len(offset * unit_bytes, len * unit_bytes).ok_or(MlogError::Malformed)?;
        if end.is_some_and(|end| range.start() <= end) {
            return Err(MlogError::Malformed);
        }
        end = Some(range.end());
        ranges.insert(range);
    }
    if left.is_empty() {
        Ok(ranges)
    } else {
        Err(MlogError::Malformed)
    }
}

/// The cost of the ranges of one file in both forms, in bytes, without the framing (in the paper an
/// inode of its own, here a version, a reason and a checksum, 6 bytes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Density {
    /// The number of ranges.
    pub mlogs: u64,
    /// The paper's form; `None` where it has none for these ranges.
    pub paper_bytes: Option<u64>,
    /// Ours: the ranges of a layer.
    pub layer_bytes: u64,
}

/// The cost of `ranges` in both forms.
#[must_use]
pub fn density(ranges: &ExtentSet) -> Density {
    let mut layer = Vec::new();
    encode_ranges(ranges, &mut layer);
    Density {
        mlogs: ranges.len() as u64,
        paper_bytes: encode(ranges, Unit::Byte).ok().map(|bytes| bytes.len() as u64),
        layer_bytes: layer.len() as u64,
    }
}

#[cfg(test)]
mod tests;
