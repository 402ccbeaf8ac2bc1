//! A small piece, packed: what of it is the same in every batch is not sent.
//!
//! Continuous sync sends batches of a few changed bytes, beside which the names of JSON's fields,
//! identities and headers of deltas weigh more than the change. A packed piece says
//! [`VERSION_PACKED`] and then holds one Zstandard frame, which gives the records of a piece of
//! [`VERSION`](super::VERSION). The frame is made with a dictionary that both ends know
//! ([`DICTIONARY`]); it belongs to the format and never changes. Checksums are within, so nothing
//! is believed because it could be unpacked.
//!
//! Memory: a packed piece gives at most [`UNPACKED_LEN_MAX`] bytes, whatever it says.
//!
//! Out of scope: keep anything from one batch to the next. Each can be read by itself,
//! however often it is sent.

use super::{BatchError, MAGIC, VERSION};
use std::io::Read;

/// The version that a packed piece says. Readers from before it refuse it; the sender then sends
/// the piece as it was.
pub const VERSION_PACKED: u8 = 2;

/// Most records' bytes in a packed piece, and most bytes of its frame.
pub const UNPACKED_LEN_MAX: usize = 32 * 1024;

/// Longer pieces are not packed: the part of them that could be saved is small, and the time is
/// not.
const PACKED_UP_TO: usize = 16 * 1024;

/// Finds what there is to find in so little; harder tries find no more.
const LEVEL: i32 = 3;

const HEADER_LEN: usize = MAGIC.len() + 1;

/// What pieces hold again and again, the most usual last, as it costs the least there.
pub(super) const DICTIONARY: &[u8] = include_bytes!("dictionary.bin");

/// The piece in less bytes; `None` if it is too long for that, or would not become shorter.
#[must_use]
pub fn packed(piece: &[u8]) -> Option<Vec<u8>> {
    let (header, records) = piece.split_at_checked(HEADER_LEN)?;
    let (magic, version) = header.split_at_checked(MAGIC.len())?;
    if *magic != MAGIC || *version != [VERSION] || piece.len() > PACKED_UP_TO {
        return None;
    }
    let mut compressor = zstd::bulk::Compressor::with_dictionary(LEVEL, DICTIONARY).ok()?;
    let frame = compressor.compress(records).ok()?;
    if frame.len() >= records.len() {
        return None;
    }
    let mut packed = Vec::with_capacity(HEADER_LEN + frame.len());
    packed.extend_from_slice(&MAGIC);
    packed.push(VERSION_PACKED);
    packed.extend_from_slice(&frame);
    Some(packed)
}

/// The records of a packed piece whose header was read from `input`.
pub(super) fn unpacked(input: impl Read) -> Result<Vec<u8>, BatchError> {
    let mut frame = Vec::new();
    let limit = u64::try_from(UNPACKED_LEN_MAX).unwrap_or(u64::MAX);
    input.take(limit.saturating_add(1)).read_to_end(&mut frame)?;
    if frame.len() > UNPACKED_LEN_MAX {
        return Err(BatchError::Packed("it is longer than a packed piece may be".to_owned()));
    }
    if frame.is_empty() {
        return Err(BatchError::Packed("there is nothing behind its header".to_owned()));
    }
    let damaged = |error: std::io::Error| BatchError::Packed(error.to_string());
    let mut decompressor = zstd::bulk::Decompressor::with_dictionary(DICTIONARY).map_err(damaged)?;
    decompressor.decompress(&frame, UNPACKED_LEN_MAX).map_err(damaged)
}

#[cfg(test)]
mod tests;
