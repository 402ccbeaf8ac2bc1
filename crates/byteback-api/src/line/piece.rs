//! Pieces of batches on a line: without the checksum of each record, which would be the longest
//! part of a small change.
//!
//! One checksum over what is left follows instead. (Over the whole piece it would prove nothing:
//! the CRC of bytes and their CRC is a constant.) The other end computes those of the records and
//! puts them back, so that a batch is the same on a line and in a request.

use super::LineError;
use crate::batch::{MAGIC, VERSION};

const CRC_LEN: usize = 4;

/// The header of a piece.
const HEADER_LEN: usize = MAGIC.len() + 1;

/// Longest length of a record as a varint.
const VARINT_LEN_MAX: usize = 10;

/// The record at the front of `bytes`, without its checksum, and its length; `None` if it is not
/// whole.
fn record(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    // The tag is one byte.
    let mut payload_len = 0_u64;
    let mut head_len = 1;
    for shift in (0..).step_by(7).take(VARINT_LEN_MAX) {
        let byte = *bytes.get(head_len)?;
        head_len += 1;
        payload_len |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            let len = head_len.checked_add(usize::try_from(payload_len).ok()?)?;
            return bytes.split_at_checked(len);
        }
    }
    None
}

/// The piece without the checksums of its records, and with one of its own behind it; `None` if
/// this is no plain piece with the right checksums.
#[must_use]
pub fn unsummed(piece: &[u8]) -> Option<Vec<u8>> {
    let (header, mut rest) = piece.split_at_checked(HEADER_LEN)?;
    if header.split_at(MAGIC.len()) != (&MAGIC, &[VERSION]) {
        return None;
    }
    let mut out = Vec::with_capacity(piece.len());
    out.extend_from_slice(header);
    while !rest.is_empty() {
        let (record, behind) = record(rest)?;
        let (crc, behind) = behind.split_first_chunk::<CRC_LEN>()?;
        if crc32c::crc32c(record).to_le_bytes() != *crc {
            return None;
        }
        out.extend_from_slice(record);
        rest = behind;
    }
    let crc = crc32c::crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    Some(out)
}

/// The piece that [`unsummed`] was made of.
///
/// # Errors
/// [`LineError::Broken`] if there is none, or its checksum is another.
pub fn summed(unsummed: &[u8]) -> Result<Vec<u8>, LineError> {
    let broken = || LineError::Broken("a piece of a batch is damaged".to_owned());
    let (records, crc) = unsummed.split_last_chunk::<CRC_LEN>().ok_or_else(broken)?;
    if crc32c::crc32c(records).to_le_bytes() != *crc {
        return Err(broken());
    }
    let (header, mut rest) = records.split_at_checked(HEADER_LEN).ok_or_else(broken)?;
    let mut piece = Vec::with_capacity(unsummed.len() + 64);
    piece.extend_from_slice(header);
    while !rest.is_empty() {
        let (record, behind) = record(rest).ok_or_else(broken)?;
        piece.extend_from_slice(record);
        piece.extend_from_slice(&crc32c::crc32c(record).to_le_bytes());
        rest = behind;
    }
    Ok(piece)
}

#[cfg(test)]
mod tests;
