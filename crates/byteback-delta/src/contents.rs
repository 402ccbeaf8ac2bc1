//! The contents of many small files as one stream, for a client that restores them: a request for
//! each would take longer than its bytes.
//!
//! The stream is a head and *frames*. A frame holds whole *records*, one for each content in the
//! order of the request, and all frames are compressed in one context, so that files are compressed
//! with what came before them. Unlike a [`crate::bundle`], which is made and read as a whole, the
//! stream is sent while it is made, and read while it arrives. docs/formats/contents.md describes
//! every byte.
//!
//! - [`ContentsWriter`], [`ContentsReader`]: the two ends.
//!
//! Invariants: a record has a checksum over its file's identity and its bytes, so that no content
//! is taken for that of another file. A stream that ends early is an error of the reader.
//!
//! Bad input gives a typed error. Memory: one frame, raw and stored, and the context of zstd.

use std::io::{self, ErrorKind, Read, Write};

use zstd::stream::raw::{CParameter, DParameter, Decoder, Encoder, InBuffer, Operation, OutBuffer};

use crate::bundle::ShortContent;
use crate::varint;

/// The first bytes of every stream of contents.
pub const MAGIC: [u8; 8] = *b"\x89BBCNT\r\n";

/// The version of the format that this crate writes and reads.
pub const VERSION: u16 = 1;

/// The most contents in a stream.
pub const CONTENTS_MAX: u32 = 8192;

/// The longest content, in bytes.
pub const CONTENT_LEN_MAX: u64 = 256 * 1024;

/// The most runs of data in a content, between its holes.
pub const RUNS_MAX: usize = 64;

/// Magic, version, number of contents, CRC.
const HEAD_LEN: usize = 8 + 2 + 4 + 4;

/// A frame takes no more records once it has this many raw bytes.
const FRAME_FULL_LEN: usize = 256 * 1024;

const CRC_LEN: usize = 4;

/// Form, length, number of runs, the runs, the bytes, CRC.
const RECORD_LEN_MAX: usize =
    1 + 2 * varint::LEN_MAX + 2 * varint::LEN_MAX * RUNS_MAX + CONTENT_LEN_MAX as usize + CRC_LEN;

/// The most raw bytes of a frame.
const FRAME_RAW_LEN_MAX: usize = FRAME_FULL_LEN + RECORD_LEN_MAX;

/// The most stored bytes of a frame: what zstd may add to bytes that it cannot compress.
const FRAME_STORED_LEN_MAX: usize = FRAME_RAW_LEN_MAX + FRAME_RAW_LEN_MAX / 256 + 256;

/// Raw and stored length of a frame.
const FRAME_HEAD_LEN: usize = 4 + 4;

/// zstd's level: as for frames of deltas.
const ZSTD_LEVEL: i32 = 3;

/// Logarithm of the bytes that the context remembers.
const WINDOW_LOG: u32 = 20;

/// The forms of a record.
const FORM_OMITTED: u8 = 0;
const FORM_WHOLE: u8 = 1;
const FORM_WITH_HOLES: u8 = 2;

/// A stream of contents cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ContentsError {
    /// The stream failed or ended early.
    #[error("cannot read the stream of contents")]
    Io(#[source] io::Error),
    /// The first bytes are another format's.
    #[error("this is not a stream of contents")]
    NotContents,
    /// A version that this program cannot read.
    #[error("version {0} of the stream of contents is not supported, only version {VERSION}; update the older side")]
    Version(u16),
    /// Bytes changed on the way.
    #[error("a checksum in the stream of contents is wrong; request it again")]
    Checksum,
    /// A content does not belong to the file in whose place it came.
    #[error("the stream of contents has another file's content in this place, or changed bytes; request it again")]
    OtherFile,
    /// zstd refuses the stored bytes.
    #[error("cannot decompress the stream of contents")]
    Zstd(#[source] io::Error),
    /// The stream breaks a rule of the format.
    #[error("the stream of contents is invalid: {0}")]
    Impossible(&'static str),
}

fn of_io(error: io::Error) -> ContentsError {
    ContentsError::Io(error)
}

fn refused(reason: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, reason)
}

/// Writes a stream of contents.
pub struct ContentsWriter<W> {
    out: W,
    encoder: Encoder<'static>,
    /// Contents that are still to come.
    left: u32,
    /// Records of the frame that is being filled.
    raw: Vec<u8>,
    /// Scratch: a frame as it is sent.
    frame: Vec<u8>,
}

impl<W: Write> ContentsWriter<W> {
    /// Begins a stream of `count` contents by writing its head. `out` gets one write per frame; it
    /// needs no buffer of its own.
    ///
    /// # Errors
    /// `InvalidInput` for more than [`CONTENTS_MAX`] contents; otherwise the error of `out` or of
    /// zstd.
    pub fn new(mut out: W, count: u32) -> io::Result<Self> {
        if count > CONTENTS_MAX {
            return Err(refused("too many contents for a stream"));
        }
        let mut encoder = Encoder::new(ZSTD_LEVEL)?;
        encoder.set_parameter(CParameter::WindowLog(WINDOW_LOG))?;
        let mut head = MAGIC.to_vec();
        head.extend_from_slice(&VERSION.to_le_bytes());
        head.extend_from_slice(&count.to_le_bytes());
        let crc = crc32c::crc32c(&head);
        head.extend_from_slice(&crc.to_le_bytes());
        out.write_all(&head)?;
        Ok(Self {
            out,
            encoder,
            left: count,
            raw: Vec::new(),
            frame: Vec::new(),
        })
    }

    /// Adds the content of the file `id`; a `None` is left out, but keeps its place. A content that
    /// is longer than [`CONTENT_LEN_MAX`] or has more than [`RUNS_MAX`] runs is left out, too.
    ///
    /// # Errors
    /// `InvalidInput` for more contents than were announced; otherwise the error of the output.
    pub fn push(&mut self, id: [u8; 16], content: Option<&ShortContent>) -> io::Result<()> {
        let Some(left) = self.left.checked_sub(1) else {
            return Err(refused("more contents than announced"));
        };
        self.left = left;
        let start = self.raw.len();
        put_record(&mut self.raw, content);
        let crc = record_crc(id, self.raw.get(start..).unwrap_or_default());
        self.raw.extend_from_slice(&crc.to_le_bytes());
        match self.raw.len() >= FRAME_FULL_LEN || left == 0 {
            true => self.write_frame(),
            false => Ok(()),
        }
    }

    /// Ends the stream; returns the output.
    ///
    /// # Errors
    /// `InvalidInput` for fewer contents than were announced; otherwise the error of the output.
    pub fn finish(mut self) -> io::Result<W> {
        if self.left > 0 {
            return Err(refused("fewer contents than announced"));
        }
        self.out.flush()?;
        Ok(self.out)
    }

    fn write_frame(&mut self) -> io::Result<()> {
        self.frame.resize(FRAME_HEAD_LEN + FRAME_STORED_LEN_MAX, 0);
        let stored = self.frame.get_mut(FRAME_HEAD_LEN..).unwrap_or_default();
        let mut input = InBuffer::around(&self.raw);
        let mut output = OutBuffer::around(stored);
        while input.pos() < self.raw.len() {
            self.encoder.run(&mut input, &mut output)?;
        }
        // All that was put in comes out, so that the reader need not wait for the next frame.
        let rest = self.encoder.flush(&mut output)?;
        let stored_len = output.pos();
        if rest > 0 {
            return Err(io::Error::other("a frame of contents grew in its compression"));
        }
        let raw_len = u32::try_from(self.raw.len()).unwrap_or(u32::MAX);
        let head = [raw_len, u32::try_from(stored_len).unwrap_or(u32::MAX)];
        for (place, number) in self.frame.chunks_exact_mut(4).zip(head) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        self.frame.truncate(FRAME_HEAD_LEN + stored_len);
        let crc = crc32c::crc32c(&self.frame);
        self.frame.extend_from_slice(&crc.to_le_bytes());
        self.raw.clear();
        self.out.write_all(&self.frame)
    }
}

/// The checksum of a record, without its own bytes.
fn record_crc(id: [u8; 16], record: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&id), record)
}

fn put_record(raw: &mut Vec<u8>, content: Option<&ShortContent>) {
    let fits = |content: &&ShortContent| content.len_bytes() <= CONTENT_LEN_MAX && content.data().count() <= RUNS_MAX;
    let Some(content) = content.filter(fits) else {
        raw.push(FORM_OMITTED);
        return;
    };
    let len = content.len_bytes();
    let data_len: u64 = content.data().map(|(_, bytes)| bytes.len() as u64).sum();
    // Data as long as the content has no gaps.
    let is_whole = data_len == len;
    raw.push(if is_whole { FORM_WHOLE } else { FORM_WITH_HOLES });
    varint::put(raw, len);
    if !is_whole {
        varint::put(raw, content.data().count() as u64);
        let mut at = 0;
        for (offset, bytes) in content.data() {
            varint::put(raw, offset - at);
            varint::put(raw, bytes.len() as u64);
            at = offset + bytes.len() as u64;
        }
    }
    for (_, bytes) in content.data() {
        raw.extend_from_slice(bytes);
    }
}

/// Reads a stream of contents.
pub struct ContentsReader<R> {
    input: R,
    decoder: Decoder<'static>,
    /// Contents that are still to come.
    left: u32,
    /// The current frame, and the place of the next record in it.
    raw: Vec<u8>,
    at: usize,
    stored: Vec<u8>,
}

impl<R: Read> ContentsReader<R> {
    /// Begins to read a stream of exactly `count` contents.
    ///
    /// # Errors
    /// If the stream is of another kind, version or number.
    pub fn new(mut input: R, count: u32) -> Result<Self, ContentsError> {
        let mut head = [0; HEAD_LEN];
        input.read_exact(&mut head).map_err(of_io)?;
        let (fields, crc) = head.split_at(HEAD_LEN - CRC_LEN);
        let (magic, numbers) = fields.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(ContentsError::NotContents);
        }
        let [v0, v1, c0, c1, c2, c3] = *numbers else {
            return Err(ContentsError::NotContents);
        };
        let version = u16::from_le_bytes([v0, v1]);
        if version != VERSION {
            return Err(ContentsError::Version(version));
        }
        if crc != crc32c::crc32c(fields).to_le_bytes() {
            return Err(ContentsError::Checksum);
        }
        if u32::from_le_bytes([c0, c1, c2, c3]) != count {
            return Err(ContentsError::Impossible(
                "it has another number of contents than requested",
            ));
        }
        let mut decoder = Decoder::new().map_err(of_io)?;
        decoder
            .set_parameter(DParameter::WindowLogMax(WINDOW_LOG))
            .map_err(of_io)?;
        Ok(Self {
            input,
            decoder,
            left: count,
            raw: Vec::new(),
            at: 0,
            stored: Vec::new(),
        })
    }

    /// The next content, which is that of the file `id`; `None` if the sender left it out.
    ///
    /// # Errors
    /// If the stream is damaged or incomplete, or the content is another file's. Nothing more can
    /// be read then.
    pub fn next_of(&mut self, id: [u8; 16]) -> Result<Option<ShortContent>, ContentsError> {
        let Some(left) = self.left.checked_sub(1) else {
            return Err(ContentsError::Impossible("all of its contents were read"));
        };
        if self.at >= self.raw.len() {
            self.read_frame()?;
        }
        let mut rest = self.raw.get(self.at..).unwrap_or_default();
        let before = rest;
        let content = take_record(&mut rest)?;
        let record = before.get(..before.len() - rest.len()).unwrap_or_default();
        let crc = take(&mut rest, CRC_LEN)?;
        if crc != record_crc(id, record).to_le_bytes() {
            return Err(ContentsError::OtherFile);
        }
        self.at = self.raw.len() - rest.len();
        self.left = left;
        if left == 0 && !rest.is_empty() {
            return Err(ContentsError::Impossible("it has bytes behind its contents"));
        }
        Ok(content)
    }

    /// The input, from behind the last frame that was read.
    pub fn into_inner(self) -> R {
        self.input
    }

    fn read_frame(&mut self) -> Result<(), ContentsError> {
        let mut head = [0; FRAME_HEAD_LEN];
        self.input.read_exact(&mut head).map_err(of_io)?;
        let [a, b, c, d, e, f, g, h] = head;
        let raw_len = u32::from_le_bytes([a, b, c, d]) as usize;
        let stored_len = u32::from_le_bytes([e, f, g, h]) as usize;
        if raw_len == 0 || raw_len > FRAME_RAW_LEN_MAX || stored_len > FRAME_STORED_LEN_MAX {
            return Err(ContentsError::Impossible("a frame has an impossible length"));
        }
        self.stored.clear();
        self.stored.resize(stored_len + CRC_LEN, 0);
        self.input.read_exact(&mut self.stored).map_err(of_io)?;
        let crc = self.stored.split_off(stored_len);
        if crc != crc32c::crc32c_append(crc32c::crc32c(&head), &self.stored).to_le_bytes() {
            return Err(ContentsError::Checksum);
        }
        self.at = 0;
        self.raw.clear();
        // A byte more shows a frame that is longer than it claims.
        self.raw.resize(raw_len + 1, 0);
        let mut input = InBuffer::around(&self.stored);
        let mut output = OutBuffer::around(self.raw.as_mut_slice());
        loop {
            let before = (input.pos(), output.pos());
            self.decoder.run(&mut input, &mut output).map_err(ContentsError::Zstd)?;
            let is_full = output.pos() > raw_len;
            if is_full || input.pos() == stored_len || (input.pos(), output.pos()) == before {
                break;
            }
        }
        let found = (input.pos(), output.pos());
        self.raw.truncate(raw_len);
        match found == (stored_len, raw_len) {
            true => Ok(()),
            false => Err(ContentsError::Impossible("a frame does not have the announced length")),
        }
    }
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], ContentsError> {
    let (taken, later) = rest
        .split_at_checked(len)
        .ok_or(ContentsError::Impossible("a record reaches past its frame"))?;
    *rest = later;
    Ok(taken)
}

fn take_number(rest: &mut &[u8]) -> Result<u64, ContentsError> {
    varint::take(rest).ok_or(ContentsError::Impossible("a number in a record is malformed"))
}

/// Takes a record off the front of a frame, without its checksum.
fn take_record(rest: &mut &[u8]) -> Result<Option<ShortContent>, ContentsError> {
    let form = take(rest, 1)?.first().copied().unwrap_or_default();
    if form == FORM_OMITTED {
        return Ok(None);
    }
    if form != FORM_WHOLE && form != FORM_WITH_HOLES {
        return Err(ContentsError::Impossible("a record has an unknown form"));
    }
    let len = take_number(rest)?;
    if len > CONTENT_LEN_MAX {
        return Err(ContentsError::Impossible("a content is too long"));
    }
    let mut content = ShortContent::zeros(len);
    if form == FORM_WHOLE {
        content.push(0, take(rest, len as usize)?);
        return Ok(Some(content));
    }
    let count = take_number(rest)?;
    if count > RUNS_MAX as u64 {
        return Err(ContentsError::Impossible("a content has too many runs of data"));
    }
    let mut runs = Vec::new();
    let mut at = 0_u64;
    for _ in 0..count {
        let (gap, run_len) = (take_number(rest)?, take_number(rest)?);
        let start = at.checked_add(gap);
        let end = start.and_then(|start| start.checked_add(run_len));
        let (Some(start), Some(end)) = (start, end.filter(|end| *end <= len && run_len > 0)) else {
            return Err(ContentsError::Impossible("a run of data lies outside its content"));
        };
        runs.push((start, run_len as usize));
        at = end;
    }
    for (start, run_len) in runs {
        content.push(start, take(rest, run_len)?);
    }
    Ok(Some(content))
}

#[cfg(test)]
mod tests;
