//! The layout of a delta stream, version 1; docs/formats/delta.md describes every byte.
//!
//! A stream is a header, any number of blocks, and a trailer. All numbers are little-endian or
//! varints. Three checks guard it: the header and each block's head (everything that must be
//! believed before memory is reserved for a frame) carry a CRC-32C; so does each frame; and the
//! trailer carries an XXH3 digest of all bytes but the frames'. Frames enter the digest through
//! their CRC, so no byte is read twice. The digest is not a CRC because a CRC over data that
//! contains its own CRC says nothing about that data.
//!
//! A stream may be followed by other bytes; nothing is read beyond its trailer.

use byteback_extents::{ByteRange, ExtentValue};
use xxhash_rust::xxh3::Xxh3;

use crate::source::Source;
use crate::varint;

/// The first bytes of every stream. The first is not ASCII, and the last two reveal a text
/// conversion of line endings.
pub const MAGIC: [u8; 8] = *b"\x89BBDLT\r\n";

/// The version of the format that this crate writes and reads.
pub const VERSION: u16 = 1;

/// The largest length of a base or a new content: the largest file offset.
pub const FILE_LEN_MAX: u64 = i64::MAX.cast_unsigned();

/// The longest extent in a stream; longer ones are written as several.
pub const EXTENT_LEN_MAX: u64 = 1 << 60;

/// The most extents in a block.
pub const BLOCK_EXTENTS_MAX: u16 = 4096;

/// Magic, version, flags, base length, new length, CRC.
pub(crate) const HEADER_LEN: usize = 8 + 2 + 2 + 8 + 8 + 4;

/// Tag, codec, number of extents, length of the extents, raw and stored length of the frame.
pub(crate) const BLOCK_HEAD_LEN: usize = 1 + 1 + 2 + 4 + 4 + 4;

/// Tag, extents, literal bytes, stored literal bytes, blocks, digest.
pub(crate) const TRAILER_LEN: usize = 1 + 4 * 8 + 8;

/// A checksum on its own.
pub(crate) const CRC_LEN: usize = 4;

/// The most bytes that the extents of a block take: three varints each.
pub(crate) const BLOCK_EXTENTS_LEN_MAX: usize = BLOCK_EXTENTS_MAX as usize * 3 * varint::LEN_MAX;

pub(crate) const TAG_BLOCK: u8 = 1;
pub(crate) const TAG_TRAILER: u8 = 2;

/// Header flag: copies may occur.
pub(crate) const FLAG_COPIES: u16 = 1;

const KIND_LITERAL: u64 = 0;
const KIND_COPY: u64 = 1;
const KIND_ZERO: u64 = 2;

/// The header of a stream, before its first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaHeader {
    /// The length of the content that the delta starts from.
    pub base_len_bytes: u64,
    /// The length of the content that the delta leads to.
    pub new_len_bytes: u64,
    /// Whether copies may occur. Without them, the delta can be applied in place.
    pub has_copies: bool,
}

impl DeltaHeader {
    pub(crate) fn to_bytes(self) -> [u8; HEADER_LEN] {
        let flags = if self.has_copies { FLAG_COPIES } else { 0 };
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10..12].copy_from_slice(&flags.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.base_len_bytes.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.new_len_bytes.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..28]);
        bytes[28..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

/// The totals of a whole stream, as its trailer records them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeltaStats {
    /// The number of extents.
    pub extents: u64,
    /// The number of literal bytes.
    pub literal_bytes: u64,
    /// The number of bytes that the literals take as stored, compressed or not.
    pub literal_stored_bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
    /// The length of the stream.
    pub wire_bytes: u64,
}

/// The place of a literal's first byte among the raw bytes of its block's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameSlice {
    /// The number of raw bytes before the literal's first byte.
    pub skip_bytes: u32,
}

impl ExtentValue for FrameSlice {
    fn advance(&self, by_bytes: u64) -> Self {
        // A frame is short; advancing past its end saturates to a place that no frame has.
        let by_bytes = u32::try_from(by_bytes).unwrap_or(u32::MAX);
        Self {
            skip_bytes: self.skip_bytes.saturating_add(by_bytes),
        }
    }

    fn continues(&self, len_bytes: u64, next: &Self) -> bool {
        u64::from(self.skip_bytes).checked_add(len_bytes) == Some(u64::from(next.skip_bytes))
    }
}

/// An extent of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The bytes of the new content that the extent describes.
    pub range: ByteRange,
    /// The origin of these bytes.
    pub source: Source<FrameSlice>,
}

/// The state that the encoding of an extent refers back to; carried on from block to block.
#[derive(Clone, Copy, Default)]
pub(crate) struct ExtentContext {
    /// The end of the previous extent.
    pub(crate) previous_end: u64,
    /// The difference between base offset and new offset of the last copy.
    copy_shift: i64,
}

impl ExtentContext {
    /// Appends an extent that begins at or after `previous_end`. Its length and offsets are within
    /// the format's limits.
    pub(crate) fn encode(&mut self, extent: &Extent, out: &mut Vec<u8>) {
        let range = extent.range;
        varint::put(out, range.start() - self.previous_end);
        self.previous_end = range.end();
        let length = (range.len_bytes() - 1) << 2;
        match extent.source {
            Source::Literal(_) => varint::put(out, length | KIND_LITERAL),
            Source::Zero => varint::put(out, length | KIND_ZERO),
            Source::Copy { base_offset } => {
                varint::put(out, length | KIND_COPY);
                let shift = base_offset.wrapping_sub(range.start()).cast_signed();
                varint::put(out, varint::zigzag(shift.wrapping_sub(self.copy_shift)));
                self.copy_shift = shift;
            }
        }
    }

    /// Takes an extent off the front of `bytes`; literals begin at `skip_bytes`, which moves on.
    /// The error names the broken rule.
    pub(crate) fn decode(
        &mut self,
        header: &DeltaHeader,
        bytes: &mut &[u8],
        skip_bytes: &mut u32,
    ) -> Result<Extent, &'static str> {
        let gap = varint::take(bytes).ok_or("the gap before an extent is malformed")?;
        let length_and_kind = varint::take(bytes).ok_or("the length of an extent is malformed")?;
        let len_bytes = (length_and_kind >> 2) + 1;
        if len_bytes > EXTENT_LEN_MAX {
            return Err("an extent is longer than the format allows");
        }
        let range = self
            .previous_end
            .checked_add(gap)
            .and_then(|start| ByteRange::from_offset_len(start, len_bytes))
            .filter(|range| range.end() <= header.new_len_bytes)
            .ok_or("an extent extends past the new content's end")?;
        let source = match length_and_kind & 3 {
            KIND_LITERAL => {
                let slice = FrameSlice {
                    skip_bytes: *skip_bytes,
                };
                *skip_bytes = u32::try_from(len_bytes)
                    .ok()
                    .and_then(|len| skip_bytes.checked_add(len))
                    .ok_or("the literals of a block are too long for a frame")?;
                Source::Literal(slice)
            }
            KIND_ZERO => Source::Zero,
            KIND_COPY => {
                if !header.has_copies {
                    return Err("a copy in a stream that declares none");
                }
                let change = varint::take(bytes).ok_or("the base offset of a copy is malformed")?;
                let shift = self.copy_shift.wrapping_add(varint::unzigzag(change));
                let base_offset = range
                    .start()
                    .checked_add_signed(shift)
                    .filter(|offset| {
                        offset
                            .checked_add(len_bytes)
                            .is_some_and(|end| end <= header.base_len_bytes)
                    })
                    .ok_or("a copy extends past the base's end")?;
                self.copy_shift = shift;
                Source::Copy { base_offset }
            }
            _ => return Err("an extent is of an unknown kind"),
        };
        self.previous_end = range.end();
        Ok(Extent { range, source })
    }
}

/// The digest of the stream without its frames' bytes.
pub(crate) struct StreamDigest(Xxh3);

impl StreamDigest {
    pub(crate) fn new() -> Self {
        Self(Xxh3::new())
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.digest()
    }
}

/// The trailer without its digest.
pub(crate) fn trailer_totals(stats: &DeltaStats) -> [u8; TRAILER_LEN - 8] {
    let mut bytes = [0; TRAILER_LEN - 8];
    bytes[0] = TAG_TRAILER;
    bytes[1..9].copy_from_slice(&stats.extents.to_le_bytes());
    bytes[9..17].copy_from_slice(&stats.literal_bytes.to_le_bytes());
    bytes[17..25].copy_from_slice(&stats.literal_stored_bytes.to_le_bytes());
    bytes[25..33].copy_from_slice(&stats.blocks.to_le_bytes());
    bytes
}
