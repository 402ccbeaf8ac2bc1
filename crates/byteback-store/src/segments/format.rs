//! The bytes of a segment file.
//!
//! ```text
//! segment = magic "BYBSEGM" | version u8 = 1 | number u64
//!         | crc32c of the 16 bytes before, u32 | frame*
//! frame   = mark "FRAM" | codec u8 | 0 0 0 | raw_len u32 | stored_len u32
//!         | crc32c of the stored bytes u32 | crc32c of the 20 bytes before, u32 | stored bytes
//! ```
//! All little-endian. The two checksums of a frame let a program without a catalog walk a segment:
//! a header that agrees with its own checksum can be skipped even when the bytes after it are
//! damaged.

use super::FrameRef;
use crate::numbers::SegmentNumber;

/// Length of a segment's header.
pub const SEGMENT_HEADER_LEN: u64 = 20;

/// Length of a frame's header.
pub const FRAME_HEADER_LEN: u64 = 24;

pub(super) const MAGIC: [u8; 7] = *b"BYBSEGM";
pub(super) const VERSION: u8 = 1;
const MARK: [u8; 4] = *b"FRAM";

pub(crate) fn segment_header(number: SegmentNumber) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.push(VERSION);
    bytes.extend_from_slice(&number.0.to_le_bytes());
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

/// Compares a segment's header with the number in the file's name; the error says what is wrong.
///
/// A header that fails its own checksum is ignored: the frames behind it have checksums of their
/// own, and must not be lost with it.
pub(crate) fn check_segment_header(header: &[u8; 20], number: SegmentNumber) -> Result<(), &'static str> {
    let [fields @ .., _, _, _, _] = header;
    let [.., a, b, c, d] = header;
    if !fields.starts_with(&MAGIC) || crc32c::crc32c(fields) != u32::from_le_bytes([*a, *b, *c, *d]) {
        return Ok(());
    }
    if fields.get(7) != Some(&VERSION) {
        return Err("the file was written by another version of this program; use the newer one");
    }
    if fields.get(8..) != Some(&number.0.to_le_bytes()[..]) {
        return Err("the file belongs to another segment");
    }
    Ok(())
}

/// Appends a frame's record to `out`.
pub(crate) fn put_frame(codec: u8, raw_len: u32, stored_len: u32, stored: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&MARK);
    out.extend_from_slice(&[codec, 0, 0, 0]);
    out.extend_from_slice(&raw_len.to_le_bytes());
    out.extend_from_slice(&stored_len.to_le_bytes());
    out.extend_from_slice(&crc32c::crc32c(stored).to_le_bytes());
    let crc = crc32c::crc32c(out.get(start..).unwrap_or_default());
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(stored);
}

/// Compares a frame's record with a reference to it; the error says what is wrong.
pub(crate) fn check_frame(record: &[u8], frame: &FrameRef) -> Result<(), &'static str> {
    let (header, stored) = record.split_first_chunk::<24>().ok_or("the frame is cut off")?;
    let (checked, crc) = header.split_last_chunk::<4>().ok_or("the frame is cut off")?;
    if crc32c::crc32c(checked) != u32::from_le_bytes(*crc) {
        return Err("the checksum of the frame's header is wrong");
    }
    let mut expected = Vec::with_capacity(24);
    expected.extend_from_slice(&MARK);
    expected.extend_from_slice(&[frame.codec, 0, 0, 0]);
    expected.extend_from_slice(&frame.raw_len.to_le_bytes());
    expected.extend_from_slice(&frame.stored_len.to_le_bytes());
    let Some((fields, stored_crc)) = checked.split_last_chunk::<4>() else {
        return Err("the frame is cut off");
    };
    if fields != expected {
        return Err("the frame is not the one that the catalog expects");
    }
    if crc32c::crc32c(stored) != u32::from_le_bytes(*stored_crc) {
        return Err("the checksum of the frame's bytes is wrong");
    }
    Ok(())
}
