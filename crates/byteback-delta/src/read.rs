//! Reading a delta stream that may come from anyone.
//!
//! The reader believes nothing before it is checked: lengths are compared with the format's limits
//! before memory is reserved, a block's head is believed once its CRC agrees, extents once they are
//! found to ascend, to lie inside the contents and to need just the literal bytes that their frame
//! holds. The stream counts as ended only when the trailer's totals and digest agree; a stream that
//! is cut off, even between two blocks, gives an error. Memory: one block. Nothing is read beyond
//! the trailer.
//!
//! *Not* checked without decompressing: whether a frame decompresses to its announced length.
//! [`verify`] checks that, and so does every [`Frame::decode`].

use std::io::{self, Read};

use crate::frame::{Codec, Frame, FrameDecoder, FrameError, check_lengths};
use crate::wire::{
    BLOCK_EXTENTS_LEN_MAX, BLOCK_EXTENTS_MAX, BLOCK_HEAD_LEN, CRC_LEN, DeltaHeader, DeltaStats, Extent, ExtentContext,
    FILE_LEN_MAX, FLAG_COPIES, HEADER_LEN, MAGIC, StreamDigest, TAG_BLOCK, TAG_TRAILER, TRAILER_LEN, VERSION,
    trailer_totals,
};

#[cfg(test)]
mod tests;

/// A delta cannot be read. Positions are in bytes from the stream's first.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The source of the stream failed.
    #[error("cannot read the delta at byte {position}")]
    Read {
        /// The position of the failed read.
        position: u64,
        /// The error of the source.
        source: io::Error,
    },
    /// The stream ends too early.
    #[error("the delta is truncated at or after byte {position}, inside its {part}; send it again")]
    CutOff {
        /// The position of the part.
        position: u64,
        /// The part that is incomplete.
        part: &'static str,
    },
    /// The first bytes are not a delta's.
    #[error("not a Byteback delta: it begins with other bytes")]
    NotADelta,
    /// A newer format, or damage.
    #[error("the delta has format version {found}, but this program supports only {VERSION}; update the older side")]
    Version {
        /// The version found.
        found: u16,
    },
    /// The bytes changed since they were written.
    #[error("the delta is damaged: the checksum of its {part} at byte {position} does not match; send it again")]
    Checksum {
        /// The position of the part.
        position: u64,
        /// The damaged part.
        part: &'static str,
    },
    /// The bytes are intact, but they break a rule of the format.
    #[error("the delta is invalid at byte {position}: {reason}")]
    Malformed {
        /// The position of the part that breaks the rule.
        position: u64,
        /// The rule.
        reason: &'static str,
    },
    /// A frame's lengths or contents are impossible.
    #[error("cannot use the delta's frame at byte {position}")]
    Frame {
        /// The position of the block or frame.
        position: u64,
        /// The frame's defect.
        source: FrameError,
    },
    /// An earlier call failed.
    #[error("reading of this delta ended with an earlier error")]
    Failed,
}

/// A run of extents and the literal bytes that they need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Extents, ascending; they continue those of the previous block.
    pub extents: Vec<Extent>,
    /// The literal bytes of the extents; of length 0 if there are none.
    pub frame: Frame,
}

impl Default for Block {
    fn default() -> Self {
        let frame = Frame {
            stream_offset: 0,
            codec: Codec::Raw,
            raw_len: 0,
            stored: Vec::new(),
            stored_crc32c: 0,
        };
        Self {
            extents: Vec::new(),
            frame,
        }
    }
}

enum State {
    Blocks,
    Ended,
    Failed,
}

/// Reads a delta stream block by block; see the module's header.
///
/// The reader makes small reads and never reads ahead: give it a buffered source.
pub struct DeltaReader<R> {
    source: R,
    header: DeltaHeader,
    context: ExtentContext,
    /// Totals so far; `wire_bytes` is the position in the stream.
    stats: DeltaStats,
    digest: StreamDigest,
    scratch: Vec<u8>,
    state: State,
}

impl<R: Read> DeltaReader<R> {
    /// Reads and checks the header.
    ///
    /// # Errors
    /// If the source fails or does not begin with a header that this version understands.
    pub fn new(mut source: R) -> Result<Self, ReadError> {
        let mut bytes = [0; HEADER_LEN];
        let mut position = 0;
        // The magic first: this distinguishes a stream that is no delta from one that was cut off.
        read_part(&mut source, &mut bytes[..8], &mut position, 0, "header")?;
        if bytes[..8] != MAGIC {
            return Err(ReadError::NotADelta);
        }
        read_part(&mut source, &mut bytes[8..], &mut position, 0, "header")?;
        let version = u16::from_le_bytes(array(&bytes[8..10]));
        if version != VERSION {
            return Err(ReadError::Version { found: version });
        }
        if crc32c::crc32c(&bytes[..28]) != u32::from_le_bytes(array(&bytes[28..])) {
            return Err(ReadError::Checksum {
                position: 0,
                part: "header",
            });
        }
        let flags = u16::from_le_bytes(array(&bytes[10..12]));
        if flags & !FLAG_COPIES != 0 {
            return Err(ReadError::Malformed {
                position: 0,
                reason: "the header has unknown flags",
            });
        }
        let header = DeltaHeader {
            base_len_bytes: u64::from_le_bytes(array(&bytes[12..20])),
            new_len_bytes: u64::from_le_bytes(array(&bytes[20..28])),
            has_copies: flags & FLAG_COPIES != 0,
        };
        if header.base_len_bytes > FILE_LEN_MAX || header.new_len_bytes > FILE_LEN_MAX {
            return Err(ReadError::Malformed {
                position: 0,
                reason: "a content is too long for a file",
            });
        }
        let mut digest = StreamDigest::new();
        digest.update(&bytes);
        Ok(Self {
            source,
            header,
            context: ExtentContext::default(),
            stats: DeltaStats {
                wire_bytes: position,
                ..DeltaStats::default()
            },
            digest,
            scratch: Vec::new(),
            state: State::Blocks,
        })
    }

    /// The stream's header.
    #[must_use]
    pub fn header(&self) -> &DeltaHeader {
        &self.header
    }

    /// The number of bytes read so far.
    #[must_use]
    pub fn position_bytes(&self) -> u64 {
        self.stats.wire_bytes
    }

    /// The stream's totals; `None` until its end was reached and verified.
    #[must_use]
    pub fn stats(&self) -> Option<&DeltaStats> {
        matches!(self.state, State::Ended).then_some(&self.stats)
    }

    /// The source, positioned after the last byte read.
    pub fn into_inner(self) -> R {
        self.source
    }

    /// Reads the next block into `block`, whose memory is used again; `false` at the end of a
    /// stream that is whole.
    ///
    /// # Errors
    /// If the source fails or the stream is cut off, damaged or malformed; every later call then
    /// fails too, and `block` holds nothing of use.
    pub fn read_block(&mut self, block: &mut Block) -> Result<bool, ReadError> {
        match self.state {
            State::Blocks => {}
            State::Ended => return Ok(false),
            State::Failed => return Err(ReadError::Failed),
        }
        let result = self.read_block_or_trailer(block);
        match &result {
            Ok(true) => {}
            Ok(false) => self.state = State::Ended,
            Err(_) => self.state = State::Failed,
        }
        result
    }

    fn read_block_or_trailer(&mut self, block: &mut Block) -> Result<bool, ReadError> {
        let position = self.stats.wire_bytes;
        let mut head = [0; BLOCK_HEAD_LEN];
        self.read(&mut head[..1], position, "next block or trailer")?;
        match head[0] {
            TAG_BLOCK => {}
            TAG_TRAILER => {
                self.read_trailer(position)?;
                return Ok(false);
            }
            _ => {
                return Err(ReadError::Malformed {
                    position,
                    reason: "neither a block nor the trailer begins here",
                });
            }
        }
        self.read(&mut head[1..], position, "block")?;
        let extent_count = u16::from_le_bytes(array(&head[2..4]));
        let extents_len = u32::from_le_bytes(array(&head[4..8])) as usize;
        let raw_len = u32::from_le_bytes(array(&head[8..12]));
        let stored_len = u32::from_le_bytes(array(&head[12..16])) as usize;
        let malformed = |reason| ReadError::Malformed { position, reason };
        // This length is needed to find the CRC, so it is the only one believed unchecked; hence
        // the limit.
        if extents_len > BLOCK_EXTENTS_LEN_MAX {
            return Err(malformed(
                "the extents of a block take more bytes than the format allows",
            ));
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch.extend_from_slice(&head);
        scratch.resize(BLOCK_HEAD_LEN + extents_len + CRC_LEN, 0);
        self.read(&mut scratch[BLOCK_HEAD_LEN..], position, "block")?;
        let (checked, crc) = scratch.split_at(BLOCK_HEAD_LEN + extents_len);
        if crc32c::crc32c(checked) != u32::from_le_bytes(array(crc)) {
            return Err(ReadError::Checksum {
                position,
                part: "block",
            });
        }
        self.digest.update(&scratch);

        let codec = Codec::from_code(head[1]).ok_or(malformed("a frame has an unknown codec"))?;
        check_lengths(codec, raw_len, stored_len).map_err(|source| ReadError::Frame { position, source })?;
        if extent_count == 0 || extent_count > BLOCK_EXTENTS_MAX {
            return Err(malformed("a block has no extents or more than the format allows"));
        }
        block.extents.clear();
        let mut bytes = &checked[BLOCK_HEAD_LEN..];
        let mut literal_bytes = 0_u32;
        for _ in 0..extent_count {
            let extent = self
                .context
                .decode(&self.header, &mut bytes, &mut literal_bytes)
                .map_err(malformed)?;
            block.extents.push(extent);
        }
        if !bytes.is_empty() {
            return Err(malformed("a block has more extents than announced"));
        }
        if literal_bytes != raw_len {
            return Err(malformed("the literals and the frame of a block differ in length"));
        }
        self.scratch = scratch;
        self.read_frame(&mut block.frame, codec, raw_len, stored_len)?;

        self.stats.blocks += 1;
        self.stats.extents += u64::from(extent_count);
        self.stats.literal_bytes += u64::from(raw_len);
        self.stats.literal_stored_bytes += stored_len as u64;
        Ok(true)
    }

    fn read_frame(
        &mut self,
        frame: &mut Frame,
        codec: Codec,
        raw_len: u32,
        stored_len: usize,
    ) -> Result<(), ReadError> {
        let position = self.stats.wire_bytes;
        frame.stream_offset = position;
        frame.codec = codec;
        frame.raw_len = raw_len;
        frame.stored.resize(stored_len, 0);
        self.read(&mut frame.stored, position, "frame")?;
        let mut crc = [0; CRC_LEN];
        self.read(&mut crc, position, "frame")?;
        frame.stored_crc32c = u32::from_le_bytes(crc);
        if crc32c::crc32c(&frame.stored) != frame.stored_crc32c {
            return Err(ReadError::Checksum {
                position,
                part: "frame",
            });
        }
        self.digest.update(&crc);
        Ok(())
    }

    fn read_trailer(&mut self, position: u64) -> Result<(), ReadError> {
        let mut bytes = [0; TRAILER_LEN - 1];
        self.read(&mut bytes, position, "trailer")?;
        let (totals, digest) = bytes.split_at(TRAILER_LEN - 1 - 8);
        let expected = trailer_totals(&self.stats);
        if totals != &expected[1..] {
            return Err(ReadError::Malformed {
                position,
                reason: "the trailer's totals do not match the blocks",
            });
        }
        self.digest.update(&expected);
        if u64::from_le_bytes(array(digest)) != self.digest.value() {
            return Err(ReadError::Checksum {
                position,
                part: "whole",
            });
        }
        Ok(())
    }

    fn read(&mut self, buffer: &mut [u8], part_position: u64, part: &'static str) -> Result<(), ReadError> {
        read_part(
            &mut self.source,
            buffer,
            &mut self.stats.wire_bytes,
            part_position,
            part,
        )
    }
}

/// The blocks of a stream; ends after the first error. [`DeltaReader::read_block`] does the same
/// without allocating per block.
impl<R: Read> Iterator for DeltaReader<R> {
    type Item = Result<Block, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if matches!(self.state, State::Failed) {
            return None;
        }
        let mut block = Block::default();
        match self.read_block(&mut block) {
            Ok(true) => Some(Ok(block)),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }
}

/// Reads a whole stream and checks all that can be checked without decompressing: a server needs
/// this before it keeps a stream from an untrusted sender.
///
/// # Errors
/// As [`DeltaReader::read_block`].
pub fn validate(source: impl Read) -> Result<(DeltaHeader, DeltaStats), ReadError> {
    read_all(source, |_| Ok(()))
}

/// As [`validate`], and decompresses every frame.
///
/// # Errors
/// As [`DeltaReader::read_block`]; also if a frame does not decompress to its announced length.
pub fn verify(source: impl Read) -> Result<(DeltaHeader, DeltaStats), ReadError> {
    let mut decoder = FrameDecoder::new().map_err(|source| ReadError::Read { position: 0, source })?;
    let mut raw = Vec::new();
    read_all(source, |block| {
        let position = block.frame.stream_offset;
        block
            .frame
            .decode(&mut decoder, &mut raw)
            .map_err(|source| ReadError::Frame { position, source })
    })
}

fn read_all(
    source: impl Read,
    mut check: impl FnMut(&Block) -> Result<(), ReadError>,
) -> Result<(DeltaHeader, DeltaStats), ReadError> {
    let mut reader = DeltaReader::new(source)?;
    let mut block = Block::default();
    while reader.read_block(&mut block)? {
        check(&block)?;
    }
    Ok((reader.header, reader.stats))
}

/// Fills `buffer` and moves `position` on.
fn read_part(
    source: &mut impl Read,
    buffer: &mut [u8],
    position: &mut u64,
    part_position: u64,
    part: &'static str,
) -> Result<(), ReadError> {
    source.read_exact(buffer).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => ReadError::CutOff {
            position: part_position,
            part,
        },
        _ => ReadError::Read {
            position: *position,
            source: error,
        },
    })?;
    *position += buffer.len() as u64;
    Ok(())
}

/// The bytes as an array; `bytes` must have length `N`.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}
