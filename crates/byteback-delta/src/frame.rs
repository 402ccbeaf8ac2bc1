//! A frame: the literal bytes of one block, together, compressed where that pays.
//!
//! Literals are small and many (a database page, a mail), so they are compressed together, up to
//! [`FRAME_RAW_LEN_MAX`] at once: large enough for zstd to find what repeats, small enough that a
//! few bytes can be read cheaply out of a stored frame.
//!
//! A frame is compressed only if that saves at least a twentieth of it. Samples are tried first, so
//! that incompressible data (media, encrypted literals) costs little CPU.

mod contexts;
#[cfg(test)]
mod tests;

use std::io;

use contexts::Kept;
use zstd::bulk::{Compressor, Decompressor};

/// The most literal bytes in a frame, before compression.
pub const FRAME_RAW_LEN_MAX: u32 = 256 * 1024;

/// The effort spent on compressing frames. Readers need not know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Effort {
    /// For links and disks that take bytes faster than they are compressed.
    Fast,
    /// zstd's own default: on database pages and text it reaches most of what higher levels do, at
    /// several times their speed.
    #[default]
    Standard,
    /// For links so slow that a few bytes less are worth several times the work.
    Thorough,
}

impl Effort {
    /// All efforts, cheapest first.
    pub const ALL: [Self; 3] = [Self::Fast, Self::Standard, Self::Thorough];

    /// zstd's level.
    const fn zstd_level(self) -> i32 {
        match self {
            Self::Fast => 1,
            Self::Standard => 3,
            Self::Thorough => 9,
        }
    }
}

/// zstd's fastest ordinary level; the samples only show whether there is anything to gain.
const ZSTD_SAMPLE_LEVEL: i32 = 1;

/// Shorter frames are not worth sampling: compressing them costs no more.
const SAMPLED_FRAME_LEN: usize = 32 * 1024;

/// The length of a sample, and the number of samples. Three, as a single one may hit a header or an
/// empty area.
const SAMPLE_LEN: usize = 4 * 1024;
const SAMPLES: usize = 3;

/// Frames shorter than this are stored raw: zstd's own header would eat the savings.
const COMPRESSED_FRAME_LEN_MIN: usize = 32;

/// How a frame's bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// Raw bytes; the stored and the raw length are equal.
    Raw,
    /// A single zstd frame (RFC 8878), shorter than the raw bytes.
    Zstd,
}

impl Codec {
    /// The number that stands for the codec in a stream, and may stand for it in a store's index.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Raw => 0,
            Self::Zstd => 1,
        }
    }

    /// The codec that a number stands for.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Raw),
            1 => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// A stored frame cannot be turned into its literal bytes.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The announced length is impossible, or does not agree with the stored bytes.
    #[error(
        "the frame claims {raw_len} raw bytes in {stored_len} stored ones, impossible with {codec:?}: it is damaged"
    )]
    Length {
        /// The codec of the frame.
        codec: Codec,
        /// The announced raw length.
        raw_len: u32,
        /// The number of stored bytes.
        stored_len: usize,
    },
    /// The stored bytes decompress to another length than announced.
    #[error("the frame decompresses to {found} bytes instead of {raw_len}: it is damaged")]
    RawLength {
        /// The announced raw length.
        raw_len: u32,
        /// The length found.
        found: usize,
    },
    /// zstd refuses the stored bytes.
    #[error("the frame is not valid zstd: it is damaged")]
    Zstd(#[source] io::Error),
}

/// The literal bytes of one block as they are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The position of the first stored byte in the stream, in bytes from the stream's first.
    pub stream_offset: u64,
    /// How the bytes are stored.
    pub codec: Codec,
    /// The number of literal bytes, before compression.
    pub raw_len: u32,
    /// The stored bytes.
    pub stored: Vec<u8>,
    /// CRC-32C of the stored bytes, as recorded in the stream; already checked.
    pub stored_crc32c: u32,
}

impl Frame {
    /// Puts the literal bytes into `raw`, replacing what it holds.
    ///
    /// # Errors
    /// If the stored bytes are not what codec and length say.
    pub fn decode(&self, decoder: &mut FrameDecoder, raw: &mut Vec<u8>) -> Result<(), FrameError> {
        decoder.decode(self.codec, &self.stored, self.raw_len, raw)
    }
}

/// Turns stored frames into literal bytes; keeps its memory from frame to frame.
pub struct FrameDecoder {
    zstd: Kept<Decompressor<'static>>,
}

impl FrameDecoder {
    /// A decoder.
    ///
    /// # Errors
    /// If zstd cannot allocate its state.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            zstd: Kept::of_level(0)?,
        })
    }

    /// Puts the literal bytes of a stored frame into `raw`, replacing what it holds. Allocates no
    /// more than `raw_len`, and nothing if that exceeds [`FRAME_RAW_LEN_MAX`].
    ///
    /// # Errors
    /// If the stored bytes are not what `codec` and `raw_len` say; `raw` then holds nothing of use.
    pub fn decode(&mut self, codec: Codec, stored: &[u8], raw_len: u32, raw: &mut Vec<u8>) -> Result<(), FrameError> {
        raw.clear();
        check_lengths(codec, raw_len, stored.len())?;
        if codec == Codec::Raw {
            raw.extend_from_slice(stored);
            return Ok(());
        }
        raw.resize(raw_len as usize, 0);
        let found = self
            .zstd
            .with(|zstd| zstd.decompress_to_buffer(stored, raw.as_mut_slice()))
            .map_err(FrameError::Zstd)?;
        if found != raw.len() {
            return Err(FrameError::RawLength { raw_len, found });
        }
        Ok(())
    }
}

/// Checks the lengths that a codec allows: raw frames store exactly `raw_len` bytes, compressed
/// ones fewer.
pub(crate) fn check_lengths(codec: Codec, raw_len: u32, stored_len: usize) -> Result<(), FrameError> {
    let possible = raw_len <= FRAME_RAW_LEN_MAX
        && match codec {
            Codec::Raw => stored_len == raw_len as usize,
            Codec::Zstd => 0 < stored_len && stored_len < raw_len as usize,
        };
    if possible {
        Ok(())
    } else {
        Err(FrameError::Length {
            codec,
            raw_len,
            stored_len,
        })
    }
}

/// Turns literal bytes into stored frames; keeps its memory from frame to frame.
pub struct FrameEncoder {
    zstd: Kept<Compressor<'static>>,
    /// Made for the first frame that is long enough.
    sampler: Option<Kept<Compressor<'static>>>,
}

impl FrameEncoder {
    /// An encoder.
    ///
    /// # Errors
    /// If zstd cannot allocate its state.
    pub fn new() -> io::Result<Self> {
        Self::with_effort(Effort::default())
    }

    /// An encoder with the given effort.
    ///
    /// # Errors
    /// If zstd cannot allocate its state.
    pub fn with_effort(effort: Effort) -> io::Result<Self> {
        Ok(Self {
            zstd: Kept::of_level(effort.zstd_level())?,
            sampler: None,
        })
    }

    /// Compresses `raw` into `stored`, replacing its contents, if that pays. If the result is
    /// [`Codec::Raw`], the caller stores `raw` itself, and `stored` holds nothing of use.
    pub fn encode(&mut self, raw: &[u8], stored: &mut Vec<u8>) -> Codec {
        if raw.len() < COMPRESSED_FRAME_LEN_MIN || !self.might_compress(raw, stored) {
            return Codec::Raw;
        }
        // zstd stops as soon as its output would exceed the buffer; the frame is then stored raw,
        // which is never an error.
        stored.resize(paying_len(raw.len()), 0);
        let compressed = self
            .zstd
            .with(|zstd| zstd.compress_to_buffer(raw, stored.as_mut_slice()));
        match compressed {
            Ok(len) => {
                stored.truncate(len);
                Codec::Zstd
            }
            Err(_) => Codec::Raw,
        }
    }

    fn might_compress(&mut self, raw: &[u8], scratch: &mut Vec<u8>) -> bool {
        if raw.len() < SAMPLED_FRAME_LEN {
            return true;
        }
        if self.sampler.is_none() {
            self.sampler = Kept::of_level(ZSTD_SAMPLE_LEVEL).ok();
        }
        // Without a sampler the frame itself shows it.
        let Some(sampler) = &mut self.sampler else { return true };
        scratch.resize(paying_len(SAMPLE_LEN), 0);
        let step = (raw.len() - SAMPLE_LEN) / (SAMPLES - 1);
        (0..SAMPLES).any(|index| {
            let sample = &raw[index * step..][..SAMPLE_LEN];
            let compressed = sampler.with(|zstd| zstd.compress_to_buffer(sample, scratch.as_mut_slice()));
            compressed.is_ok()
        })
    }
}

/// The largest compressed length worth storing: it saves a twentieth.
const fn paying_len(raw_len: usize) -> usize {
    raw_len - raw_len.div_ceil(20)
}
