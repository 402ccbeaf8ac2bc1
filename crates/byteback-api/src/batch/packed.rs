//! Packing of pieces: the parts that are the same in every batch are not sent. Long pieces are
//! packed by [`streamed`].
//!
//! Continuous sync sends batches of a few changed bytes, in which JSON field names, identities and
//! delta headers outweigh the change. A packed piece has the version byte [`VERSION_PACKED`] and
//! behind it one Zstandard frame that unpacks to the records of a plain piece.
//! The frame uses a dictionary that both ends know ([`DICTIONARY`]); it belongs to the format and
//! never changes. The records keep their checksums, so unpacking successfully proves nothing by
//! itself.
//!
//! Memory: a packed piece unpacks to at most [`UNPACKED_LEN_MAX`] bytes, whatever it claims.
//!
//! Out of scope: state between batches. Each piece can be read by itself, however often it is sent.

mod streamed;

use super::{BatchError, MAGIC, VERSION};
use std::io::Read;

pub(super) use streamed::Unpacking;
pub use streamed::{STREAMED_LEN_MAX, VERSION_STREAMED};

/// The version byte of a packed piece. Its records are those of a plain one.
pub const VERSION_PACKED: u8 = 2;

/// Maximum of bytes of records in a packed piece, and of bytes of its frame.
pub const UNPACKED_LEN_MAX: usize = 32 * 1024;

/// Longer pieces are packed as a stream.
const PACKED_UP_TO: usize = 16 * 1024;

/// Compression level. Higher levels gain nothing on input this small.
const LEVEL: i32 = 3;

const HEADER_LEN: usize = MAGIC.len() + 1;

/// Strings that occur often in pieces, the most frequent last, where references are cheapest.
pub(crate) const DICTIONARY: &[u8] = include_bytes!("dictionary.bin");

/// The piece in fewer bytes; `None` if it is too long for that, or would hardly become shorter.
#[must_use]
pub fn packed(piece: &[u8]) -> Option<Vec<u8>> {
    let (header, records) = piece.split_at_checked(HEADER_LEN)?;
    let (magic, version) = header.split_at_checked(MAGIC.len())?;
    if *magic != MAGIC || *version != [VERSION] {
        return None;
    }
    if piece.len() > PACKED_UP_TO {
        return streamed::streamed(records);
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
        return Err(BatchError::Packed("it exceeds the length limit".to_owned()));
    }
    if frame.is_empty() {
        return Err(BatchError::Packed("nothing follows its header".to_owned()));
    }
    let damaged = |error: std::io::Error| BatchError::Packed(error.to_string());
    let mut decompressor = zstd::bulk::Decompressor::with_dictionary(DICTIONARY).map_err(damaged)?;
    decompressor.decompress(&frame, UNPACKED_LEN_MAX).map_err(damaged)
}

#[cfg(test)]
mod tests;
