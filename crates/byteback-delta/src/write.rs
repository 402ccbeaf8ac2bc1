//! Writing a delta stream.
//!
//! Extents come in ascending order and are gathered into a block; the block is written when its
//! frame or its list of extents is full. Long literals are split across blocks, short ones share
//! one. Memory: one block, raw and compressed.
//!
//! If a call fails, the stream is incomplete and useless: every later call fails too, and a reader
//! detects that the stream is cut off.

use std::io::{self, Read, Write};

use byteback_extents::{ByteRange, ExtentValue};

use crate::frame::{Codec, Effort, FRAME_RAW_LEN_MAX, FrameEncoder};
use crate::map::DeltaMap;
use crate::sequence::{ExtentSink, Sequence, WriteError};
use crate::source::Source;
use crate::wire::{
    BLOCK_EXTENTS_MAX, BLOCK_HEAD_LEN, CRC_LEN, DeltaHeader, DeltaStats, EXTENT_LEN_MAX, Extent, ExtentContext,
    FrameSlice, HEADER_LEN, StreamDigest, TAG_BLOCK, TRAILER_LEN, trailer_totals,
};

#[cfg(test)]
mod tests;

/// Options for writing a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterOptions {
    /// Whether [`DeltaWriter::copy`] may be called. The header records this, as only a stream
    /// without copies can be applied in place.
    pub copies: bool,
    /// Whether frames are compressed where that pays. Off for bytes known not to compress, such as
    /// encrypted ones.
    pub compress: bool,
}

impl WriterOptions {
    /// Sets up the frame encoder, if frames are to be compressed.
    fn encoder(self, effort: Effort) -> Result<Option<FrameEncoder>, WriteError> {
        match self.compress {
            true => FrameEncoder::with_effort(effort)
                .map(Some)
                .map_err(WriteError::Compressor),
            false => Ok(None),
        }
    }
}

impl Default for WriterOptions {
    /// No copies; compressed.
    fn default() -> Self {
        Self {
            copies: false,
            compress: true,
        }
    }
}

/// Writes a delta as a stream; see the module's header.
///
/// ```
/// use byteback_delta::{DeltaReader, DeltaWriter, WriterOptions, apply_to_new};
/// use byteback_extents::ByteRange;
///
/// let base = b"the old content";
/// let options = WriterOptions {
///     copies: true,
///     ..WriterOptions::default()
/// };
/// // The word "the " stays where it is; "content" moves.
/// let mut writer = DeltaWriter::new(Vec::new(), base.len() as u64, 17, options)?;
/// writer.literal_bytes(4, b"newer ")?;
/// writer.copy(ByteRange::new(10, 17).unwrap(), 8)?;
/// let (stream, stats) = writer.finish()?;
/// assert_eq!(stats.literal_bytes, 6);
///
/// let mut new = Vec::new();
/// apply_to_new(&base[..], &mut DeltaReader::new(&stream[..])?, &mut new)?;
/// assert_eq!(new, b"the newer content");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DeltaWriter<W> {
    out: W,
    header: DeltaHeader,
    /// Checks the order of extents. All that it accepted is written, or is in `extents`.
    sequence: Sequence,
    /// `None` if frames are not compressed.
    encoder: Option<FrameEncoder>,
    context: ExtentContext,
    extents: Vec<Extent>,
    raw: Vec<u8>,
    /// Scratch: the head and the stored frame of the block being written.
    head: Vec<u8>,
    stored: Vec<u8>,
    digest: StreamDigest,
    stats: DeltaStats,
}

impl<W: Write> DeltaWriter<W> {
    /// Begins a stream by writing its header. `out` gets a few writes per block; it needs no buffer
    /// of its own.
    ///
    /// # Errors
    /// If a length is larger than any file's, the compressor cannot be set up, or `out` refuses the
    /// header.
    pub fn new(out: W, base_len_bytes: u64, new_len_bytes: u64, options: WriterOptions) -> Result<Self, WriteError> {
        Self::with_effort(out, base_len_bytes, new_len_bytes, options, Effort::default())
    }

    /// As [`Self::new`], with the given compression effort.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_effort(
        mut out: W,
        base_len_bytes: u64,
        new_len_bytes: u64,
        options: WriterOptions,
        effort: Effort,
    ) -> Result<Self, WriteError> {
        let sequence = Sequence::new(base_len_bytes, new_len_bytes)?;
        let encoder = options.encoder(effort)?;
        let header = DeltaHeader {
            base_len_bytes,
            new_len_bytes,
            has_copies: options.copies,
        };
        let bytes = header.to_bytes();
        out.write_all(&bytes).map_err(WriteError::Write)?;
        let mut digest = StreamDigest::new();
        digest.update(&bytes);
        Ok(Self {
            out,
            header,
            sequence,
            encoder,
            context: ExtentContext::default(),
            extents: Vec::new(),
            raw: Vec::new(),
            head: Vec::new(),
            stored: Vec::new(),
            digest,
            stats: DeltaStats {
                wire_bytes: HEADER_LEN as u64,
                ..DeltaStats::default()
            },
        })
    }

    /// Gives `range` the next `range.len_bytes()` bytes that `bytes` yields; reads no more.
    ///
    /// # Errors
    /// If `range` is out of order or outside, `bytes` yields too few, or the block cannot be
    /// written.
    pub fn literal(&mut self, range: ByteRange, mut bytes: impl Read) -> Result<(), WriteError> {
        self.guarded(|writer| writer.add_literal(range, &mut |_, buffer| bytes.read_exact(buffer)))
    }

    /// Adds `bytes` as a literal at `offset`; an empty slice adds no extent.
    ///
    /// # Errors
    /// As [`Self::literal`].
    pub fn literal_bytes(&mut self, offset: u64, bytes: &[u8]) -> Result<(), WriteError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let range = ByteRange::from_offset_len(offset, bytes.len() as u64)
            .ok_or(WriteError::FileTooLong { len_bytes: u64::MAX })?;
        self.literal(range, bytes)
    }

    /// Takes the bytes of `range` from the base at `base_offset`.
    ///
    /// # Errors
    /// If the stream was begun without copies, `range` is out of order or outside, or the copy lies
    /// outside the base.
    pub fn copy(&mut self, range: ByteRange, base_offset: u64) -> Result<(), WriteError> {
        self.guarded(|writer| writer.add_copy(range, base_offset))
    }

    /// Makes `range` a hole.
    ///
    /// # Errors
    /// If `range` is out of order or outside, or the block cannot be written.
    pub fn zero(&mut self, range: ByteRange) -> Result<(), WriteError> {
        self.guarded(|writer| writer.add_zeros(range))
    }

    /// Writes all extents of `map`; `read_literal` fills a buffer with the bytes of a literal.
    /// Copies need [`WriterOptions::copies`].
    ///
    /// # Errors
    /// As the calls for single extents; the lengths of `map` are not compared with the header's.
    pub fn map<L: ExtentValue>(
        &mut self,
        map: &DeltaMap<L>,
        read_literal: impl FnMut(&L, &mut [u8]) -> io::Result<()>,
    ) -> Result<(), WriteError> {
        self.add_map(map, read_literal)
    }

    /// Writes the pending block and the trailer, and flushes `out`. A writer that is dropped
    /// without this leaves an incomplete stream.
    ///
    /// # Errors
    /// If an earlier call failed or `out` refuses the bytes.
    pub fn finish(mut self) -> Result<(W, DeltaStats), WriteError> {
        self.guarded(|writer| {
            writer.write_block()?;
            let mut trailer = trailer_totals(&writer.stats).to_vec();
            writer.digest.update(&trailer);
            trailer.extend_from_slice(&writer.digest.value().to_le_bytes());
            writer.out.write_all(&trailer).map_err(WriteError::Write)?;
            writer.stats.wire_bytes += TRAILER_LEN as u64;
            writer.out.flush().map_err(WriteError::Write)
        })?;
        Ok((self.out, self.stats))
    }

    /// Adds an extent that carries no bytes, in parts if it is very long.
    fn push_without_bytes(&mut self, range: ByteRange, source: Source<FrameSlice>) -> Result<(), WriteError> {
        let mut start = range.start();
        while start < range.end() {
            let end = range.end().min(start.saturating_add(EXTENT_LEN_MAX));
            self.push(start, end, source.advance(start - range.start()))?;
            start = end;
        }
        Ok(())
    }

    /// Adds an extent to the block, merged into the previous one if it continues that; the literal
    /// bytes are already there.
    fn push(&mut self, start: u64, end: u64, source: Source<FrameSlice>) -> Result<(), WriteError> {
        let Some(range) = ByteRange::new(start, end) else {
            return Ok(());
        };
        if let Some(last) = self.extents.last_mut()
            && last.range.end() == start
            && last.source.continues(last.range.len_bytes(), &source)
            && last.range.len_bytes() + range.len_bytes() <= EXTENT_LEN_MAX
        {
            last.range = last.range.hull(range);
            return Ok(());
        }
        self.extents.push(Extent { range, source });
        if self.extents.len() == usize::from(BLOCK_EXTENTS_MAX) {
            self.write_block()?;
        }
        Ok(())
    }

    /// Writes the gathered extents and literal bytes as a block, if there are any.
    fn write_block(&mut self) -> Result<(), WriteError> {
        if self.extents.is_empty() {
            return Ok(());
        }
        let codec = match &mut self.encoder {
            Some(encoder) => encoder.encode(&self.raw, &mut self.stored),
            None => Codec::Raw,
        };
        let frame = if codec == Codec::Raw { &self.raw } else { &self.stored };

        self.head.clear();
        self.head.resize(BLOCK_HEAD_LEN, 0);
        for extent in &self.extents {
            self.context.encode(extent, &mut self.head);
        }
        // These lengths are bounded by the format's limits, far below 32 bits; the number of
        // extents by 16.
        let extents_len = (self.head.len() - BLOCK_HEAD_LEN) as u32;
        self.head[0] = TAG_BLOCK;
        self.head[1] = codec.code();
        self.head[2..4].copy_from_slice(&(self.extents.len() as u16).to_le_bytes());
        self.head[4..8].copy_from_slice(&extents_len.to_le_bytes());
        self.head[8..12].copy_from_slice(&(self.raw.len() as u32).to_le_bytes());
        self.head[12..16].copy_from_slice(&(frame.len() as u32).to_le_bytes());
        let crc = crc32c::crc32c(&self.head);
        self.head.extend_from_slice(&crc.to_le_bytes());
        let frame_crc = crc32c::crc32c(frame).to_le_bytes();

        self.digest.update(&self.head);
        self.digest.update(&frame_crc);
        self.out.write_all(&self.head).map_err(WriteError::Write)?;
        self.out.write_all(frame).map_err(WriteError::Write)?;
        self.out.write_all(&frame_crc).map_err(WriteError::Write)?;

        self.stats.blocks += 1;
        self.stats.extents += self.extents.len() as u64;
        self.stats.literal_bytes += self.raw.len() as u64;
        self.stats.literal_stored_bytes += frame.len() as u64;
        self.stats.wire_bytes += (self.head.len() + frame.len() + CRC_LEN) as u64;
        self.extents.clear();
        self.raw.clear();
        Ok(())
    }
}

impl<W: Write> ExtentSink for DeltaWriter<W> {
    fn sequence(&mut self) -> &mut Sequence {
        &mut self.sequence
    }

    fn add_literal(
        &mut self,
        range: ByteRange,
        fill: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> Result<(), WriteError> {
        self.sequence.begin(range)?;
        let mut start = range.start();
        while start < range.end() {
            if self.raw.len() == FRAME_RAW_LEN_MAX as usize {
                self.write_block()?;
            }
            let filled = self.raw.len();
            let room = FRAME_RAW_LEN_MAX as usize - filled;
            let take = usize::try_from(range.end() - start).unwrap_or(usize::MAX).min(room);
            self.raw.resize(filled + take, 0);
            fill(start - range.start(), &mut self.raw[filled..])
                .map_err(|source| WriteError::ReadLiteral { range, source })?;
            // A frame's length fits into 32 bits.
            let source = Source::Literal(FrameSlice {
                skip_bytes: filled as u32,
            });
            self.push(start, start + take as u64, source)?;
            start += take as u64;
        }
        Ok(())
    }

    fn add_copy(&mut self, range: ByteRange, base_offset: u64) -> Result<(), WriteError> {
        self.sequence.begin(range)?;
        if !self.header.has_copies {
            return Err(WriteError::CopiesNotDeclared { range });
        }
        self.sequence.check_copy(range, base_offset)?;
        self.push_without_bytes(range, Source::Copy { base_offset })
    }

    fn add_zeros(&mut self, range: ByteRange) -> Result<(), WriteError> {
        self.sequence.begin(range)?;
        self.push_without_bytes(range, Source::Zero)
    }
}
