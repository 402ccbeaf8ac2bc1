//! casync's formats: the index of a blob or archive, and chunks as stored. All numbers are
//! little-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 48 | header: its length, its type, flags, and the shortest, the average and the longest chunk |
//! | 16 | header of the table: all ones for its length, and its type |
//! | 40 each | the end of a chunk, and its fingerprint: SHA-512/256 or SHA-256, as a flag says |
//! | 40 | the tail: 16 zeros, the offset of the table (48), the table's length with headers and tail, and its mark |
//!
//! An index that was cut short has no tail.

use super::{CHUNK_LEN_MAX, Table};
use byteback_checksums::source::Kind;

/// The file name ending of a compressed chunk.
pub(super) const COMPRESSED: &str = ".cacnk";

const HEADER_LEN: usize = 48;
const ITEM_LEN: usize = 40;

const INDEX: u64 = 0x9682_4d9c_7b12_9ff9;
const TABLE: u64 = 0xe75b_9e11_2f17_417d;
const TAIL: u64 = 0x4b4f_050e_5549_ecd1;

/// The flag of indexes whose fingerprints are SHA-512/256.
const SHA512_256: u64 = 0x2000_0000_0000_0000;

fn numbers<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let (numbers, rest) = bytes.as_chunks::<8>();
    match (<[[u8; 8]; N]>::try_from(numbers), rest) {
        (Ok(numbers), []) => Some(numbers.map(u64::from_le_bytes)),
        _ => None,
    }
}

/// Reads an index.
pub(crate) fn parse(bytes: &[u8]) -> Result<Table, &'static str> {
    const CUT: &str = "a truncated casync index";
    let (header, table) = bytes.split_at_checked(HEADER_LEN).ok_or(CUT)?;
    let [header_len, mark, flags, len_min, len_average, len_max] = numbers(header).ok_or(CUT)?;
    if (header_len, mark) != (HEADER_LEN as u64, INDEX) {
        return Err("not a casync index");
    }
    let is_sorted = 0 < len_min && len_min <= len_average && len_average <= len_max;
    if !is_sorted || len_max > CHUNK_LEN_MAX {
        return Err("chunk lengths that casync does not use");
    }
    let (head, items) = table.split_at_checked(16).ok_or(CUT)?;
    if numbers(head) != Some([u64::MAX, TABLE]) {
        return Err("a casync index without a table");
    }
    let (items, tail) = items
        .len()
        .checked_sub(ITEM_LEN)
        .and_then(|at| items.split_at_checked(at))
        .ok_or(CUT)?;
    let (items, rest) = items.as_chunks::<ITEM_LEN>();
    if !rest.is_empty() || numbers(tail) != Some([0, 0, HEADER_LEN as u64, table.len() as u64, TAIL]) {
        return Err(CUT);
    }
    let mut table = Table::new(match flags & SHA512_256 {
        0 => Kind::Sha256,
        _ => Kind::Sha512Of256,
    });
    for item in items {
        let (end, sum) = item.split_first_chunk().ok_or(CUT)?;
        let end = u64::from_le_bytes(*end);
        if end.saturating_sub(table.len_bytes()) > len_max {
            return Err("a chunk that is longer than the index allows");
        }
        table.push(end, sum)?;
    }
    Ok(table)
}

/// Decompresses a chunk, whose content must have `len` bytes.
pub(super) fn decompressed(bytes: &[u8], len: u64) -> Result<Vec<u8>, &'static str> {
    if bytes.starts_with(b"\xfd7zXZ\0") || bytes.starts_with(&[0x1f, 0x8b]) {
        return Err("is compressed with xz or gzip, which this program does not support (casync uses zstd by default)");
    }
    // At most CHUNK_LEN_MAX. Longer content, or anything but zstd, is an error.
    zstd::bulk::decompress(bytes, len as usize).map_err(|_| "cannot be decompressed")
}

/// Encodes an index as casync writes it.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn written(table: &Table, len_max: u64) -> Vec<u8> {
    let flags = match table.kind {
        Kind::Sha512Of256 => 0xb000_0000_0000_0000,
        _ => 0x9000_0000_0000_0000_u64,
    };
    let put = |bytes: &mut Vec<u8>, numbers: &[u64]| {
        numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    };
    let mut bytes = Vec::new();
    put(
        &mut bytes,
        &[48, INDEX, flags, 1, len_max.div_ceil(2), len_max, u64::MAX, TABLE],
    );
    for (number, end) in table.ends.iter().enumerate() {
        put(&mut bytes, &[*end]);
        bytes.extend_from_slice(table.sum(number));
    }
    let len = bytes.len() as u64 - 8;
    put(&mut bytes, &[0, 0, 48, len, TAIL]);
    bytes
}
