//! The layout of a signature stream, version 1; docs/formats/signature.md describes every byte.
//!
//! A header of 40 bytes, then the blocks in groups of [`GROUP_BLOCKS`] (the last one may have
//! fewer), each group followed by its checksum: a CRC-32C over the header's own CRC, the number of
//! the group's first block and the group's bytes. So swapped groups are detected, even those of
//! another signature. The length of the stream follows from the header.

use std::io::{ErrorKind, Read};

use super::{SignatureError, SignatureParams, check_lengths};
use crate::strong::StrongKind;
use crate::weak::WeakKind;

/// The first bytes of every signature.
pub const MAGIC: [u8; 8] = *b"\x89BBSIG\r\n";

/// The version of the format that this crate writes and reads.
pub const VERSION: u16 = 1;

/// Magic, version, kinds, strong length, three zeros, block length, content length, seed, CRC.
pub(super) const HEADER_LEN: usize = 8 + 2 + 1 + 1 + 1 + 3 + 4 + 8 + 8 + 4;

/// The number of blocks in a group.
pub(super) const GROUP_BLOCKS: u64 = 1024;

/// The header, and its CRC.
pub(super) fn header(params: &SignatureParams, content_len_bytes: u64) -> ([u8; HEADER_LEN], u32) {
    let mut bytes = [0; HEADER_LEN];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    bytes[10] = params.weak.code();
    bytes[11] = params.strong.code();
    bytes[12] = params.strong_len_bytes;
    bytes[16..20].copy_from_slice(&params.block_len_bytes.to_le_bytes());
    bytes[20..28].copy_from_slice(&content_len_bytes.to_le_bytes());
    bytes[28..36].copy_from_slice(&params.seed.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..36]);
    bytes[36..].copy_from_slice(&crc.to_le_bytes());
    (bytes, crc)
}

/// The CRC of a group.
pub(super) fn group_crc(header_crc: u32, first_block: u64, bytes: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&header_crc.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &first_block.to_le_bytes()), bytes)
}

/// Reads a header: the parameters, the length of the content, the header's CRC.
pub(super) fn read_header(stream: &mut impl Read) -> Result<(SignatureParams, u64, u32), SignatureError> {
    let mut bytes = [0; HEADER_LEN];
    fill(stream, &mut bytes, 0)?;
    if bytes[..8] != MAGIC {
        return Err(SignatureError::NotASignature);
    }
    let version = u16::from_le_bytes(array(&bytes, 8));
    if version != VERSION {
        return Err(SignatureError::Version(version));
    }
    let crc = u32::from_le_bytes(array(&bytes, 36));
    if crc != crc32c::crc32c(&bytes[..36]) {
        return Err(SignatureError::Checksum { block: 0 });
    }
    let kind = |which, code| SignatureError::Kind { which, code };
    let params = SignatureParams {
        block_len_bytes: u32::from_le_bytes(array(&bytes, 16)),
        weak: WeakKind::from_code(bytes[10]).ok_or_else(|| kind("weak", bytes[10]))?,
        strong: StrongKind::from_code(bytes[11]).ok_or_else(|| kind("strong", bytes[11]))?,
        strong_len_bytes: bytes[12],
        seed: u64::from_le_bytes(array(&bytes, 28)),
    };
    if bytes[13..16] != [0; 3] {
        return Err(SignatureError::Impossible("reserved bytes of its header are used"));
    }
    let content_len_bytes = u64::from_le_bytes(array(&bytes, 20));
    check_lengths(&params, content_len_bytes)?;
    Ok((params, content_len_bytes, crc))
}

/// Reads a group of `count` blocks, at most [`GROUP_BLOCKS`], into `group`.
pub(super) fn read_group(
    stream: &mut impl Read,
    params: &SignatureParams,
    header_crc: u32,
    first_block: u64,
    count: u64,
    group: &mut Vec<u8>,
) -> Result<(), SignatureError> {
    // At most 1024 times 36.
    group.resize(count as usize * (4 + usize::from(params.strong_len_bytes)), 0);
    fill(stream, group, first_block)?;
    let mut crc = [0; 4];
    fill(stream, &mut crc, first_block)?;
    if u32::from_le_bytes(crc) != group_crc(header_crc, first_block, group) {
        return Err(SignatureError::Checksum { block: first_block });
    }
    Ok(())
}

fn fill(stream: &mut impl Read, bytes: &mut [u8], blocks: u64) -> Result<(), SignatureError> {
    stream.read_exact(bytes).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => SignatureError::Truncated { blocks },
        _ => SignatureError::Io(error),
    })
}

fn array<const N: usize>(bytes: &[u8; HEADER_LEN], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}
