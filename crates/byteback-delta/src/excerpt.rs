//! An excerpt: some ranges of a base, one after the other as one content, of which the end that has
//! the new content asks for a signature in short blocks.
//!
//! A finder whose blocks are long leaves a whole block to send for each byte that changed. Its
//! result tells where in the base such a gap must have come from: what it has not found. So the
//! excerpt of that, in blocks of a hundred bytes, is a small part of the base, and a second search
//! in it ([`crate::find::find_in_excerpt`]) leaves little more than the changed bytes. That is the
//! idea of multi-round synchronisation; the rounds are the client's.
//!
//! - [`Excerpt`]: the ranges, and the way back from the excerpt to the base.
//! - [`ExcerptAnswer`]: the base's length and the signature of the excerpt.
//! - [`ExcerptBytes`]: the base's length and the bytes of the excerpt, for a comparison in memory
//!   ([`crate::find::InMemoryFinder`]) that leaves the changed bytes alone. They come as a delta
//!   over nothing, which leaves out all that is not in the excerpt.
//!
//! All come from an untrusted peer: bad input gives a typed error, and memory follows the bytes
//! that arrive. The answer proves nothing; whoever uses copies proves the result
//! ([`crate::ContentDigest`]). docs/formats/excerpt.md describes every byte.

use std::io::{self, ErrorKind, Read, Write};

use byteback_extents::{ByteRange, ExtentSet};

use crate::frame::{FrameDecoder, FrameError};
use crate::read::{Block, DeltaReader, ReadError};
use crate::signature::{Signature, SignatureError};
use crate::source::Source;
use crate::varint;
use crate::wire::FILE_LEN_MAX;

/// The first bytes of every excerpt.
pub const MAGIC: [u8; 8] = *b"\x89BBEXC\r\n";

/// The first bytes of every answer.
pub const ANSWER_MAGIC: [u8; 8] = *b"\x89BBEXA\r\n";

/// The version of both formats that this crate writes and reads.
pub const VERSION: u16 = 1;

/// The most ranges of an excerpt.
pub const RANGES_MAX: u32 = 1 << 16;

/// The longest encoded excerpt, in bytes.
pub const ENCODED_LEN_MAX: u64 = (HEAD_LEN + RANGES_MAX as usize * 2 * varint::LEN_MAX + CRC_LEN) as u64;

/// Magic, version, two zeros, number of ranges.
const HEAD_LEN: usize = 8 + 2 + 2 + 4;

/// Magic, version, two zeros, length of the base, CRC.
const ANSWER_LEN: usize = 8 + 2 + 2 + 8 + CRC_LEN;

const CRC_LEN: usize = 4;

/// Ranges of a base, ascending and apart from each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excerpt {
    ranges: Vec<ByteRange>,
    /// For each range, the offset in the excerpt at which it begins.
    starts: Vec<u64>,
    len_bytes: u64,
}

/// An excerpt, or the answer to one, cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ExcerptError {
    /// The stream failed.
    #[error("cannot read the answer to an excerpt")]
    Io(#[source] io::Error),
    /// The bytes end too early.
    #[error("the excerpt is truncated; request it again")]
    Truncated,
    /// The first bytes are another format's.
    #[error("not an excerpt")]
    NotExcerpt,
    /// A version that this program cannot read.
    #[error("version {0} of excerpts is not supported, only version {VERSION}; update the older side")]
    Version(u16),
    /// Bytes changed on the way.
    #[error("the excerpt is damaged; send it again")]
    Checksum,
    /// There are more ranges than an excerpt can have.
    #[error("the excerpt has {0} ranges, more than {RANGES_MAX}")]
    TooMany(u32),
    /// The bytes are intact, but they break a rule of the format.
    #[error("the excerpt is invalid: {0}")]
    Impossible(&'static str),
    /// The signature cannot be read.
    #[error("cannot use the signature of an excerpt")]
    Signature(#[source] SignatureError),
    /// The delta that has its bytes cannot be read.
    #[error("cannot read the bytes of an excerpt")]
    Bytes(#[from] ReadError),
    /// A frame of that delta cannot be decompressed.
    #[error("cannot decompress the bytes of an excerpt")]
    Frame(#[from] FrameError),
}

impl Excerpt {
    /// The excerpt of these ranges.
    #[must_use]
    pub fn new(ranges: &ExtentSet) -> Self {
        Self::of_ascending(ranges.iter())
    }

    fn of_ascending(ranges: impl Iterator<Item = ByteRange>) -> Self {
        let mut excerpt = Self::default();
        for range in ranges {
            excerpt.ranges.push(range);
            excerpt.starts.push(excerpt.len_bytes);
            // Ranges that do not overlap have at most 2^63 bytes together.
            excerpt.len_bytes += range.len_bytes();
        }
        excerpt
    }

    /// The part of the excerpt that a base of `base_len_bytes` has.
    #[must_use]
    pub fn within(&self, base_len_bytes: u64) -> Self {
        let base = ByteRange::new(0, base_len_bytes);
        Self::of_ascending(self.ranges.iter().filter_map(|range| range.intersect(base?)))
    }

    /// The ranges of the base.
    #[must_use]
    pub fn ranges(&self) -> &[ByteRange] {
        &self.ranges
    }

    /// The length of all ranges together.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The ranges of the base that `range` of the excerpt consists of, in order; bytes beyond its
    /// end are left out.
    pub fn in_base(&self, range: ByteRange) -> impl Iterator<Item = ByteRange> + '_ {
        let first = self
            .starts
            .partition_point(|start| *start <= range.start())
            .saturating_sub(1);
        let places = self.starts.iter().zip(&self.ranges).skip(first);
        places
            .take_while(move |(start, _)| **start < range.end())
            .filter_map(move |(start, part)| {
                let from = range.start().saturating_sub(*start);
                let to = (range.end() - start).min(part.len_bytes());
                ByteRange::new(part.start() + from, part.start() + to)
            })
    }

    /// The offset in the excerpt at which a range of the base begins; `None` unless one range of
    /// the excerpt holds all of it.
    fn offset_of(&self, range: ByteRange) -> Option<u64> {
        let number = self.ranges.partition_point(|part| part.end() <= range.start());
        let (part, start) = self.ranges.get(number).zip(self.starts.get(number))?;
        let is_within = part.start() <= range.start() && range.end() <= part.end();
        is_within.then(|| start + (range.start() - part.start()))
    }

    /// The list of the excerpt's ranges.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0, 0]);
        let count = u32::try_from(self.ranges.len()).unwrap_or(u32::MAX);
        bytes.extend_from_slice(&count.to_le_bytes());
        let mut end = 0;
        for range in &self.ranges {
            varint::put(&mut bytes, range.start() - end);
            varint::put(&mut bytes, range.len_bytes());
            end = range.end();
        }
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes an excerpt.
    ///
    /// # Errors
    /// If the bytes are no excerpt of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, ExcerptError> {
        let (zeros, fields) = open(bytes, MAGIC)?;
        if zeros != [0; 2] {
            return Err(ExcerptError::Impossible("reserved bytes are used"));
        }
        let (count, mut rest) = fields.split_first_chunk().ok_or(ExcerptError::Truncated)?;
        let count = u32::from_le_bytes(*count);
        if count > RANGES_MAX {
            return Err(ExcerptError::TooMany(count));
        }
        let mut ranges = Vec::new();
        let mut end = 0_u64;
        for index in 0..count {
            let mut number = || varint::take(&mut rest);
            let (gap, len) = number()
                .zip(number())
                .ok_or(ExcerptError::Impossible("a number is cut off or too long"))?;
            if gap == 0 && index > 0 {
                return Err(ExcerptError::Impossible("a range continues the one before"));
            }
            let range = end
                .checked_add(gap)
                .and_then(|start| ByteRange::from_offset_len(start, len))
                .filter(|range| range.end() <= FILE_LEN_MAX)
                .ok_or(ExcerptError::Impossible("a range is empty or lies beyond any file"))?;
            ranges.push(range);
            end = range.end();
        }
        match rest.is_empty() {
            true => Ok(Self::of_ascending(ranges.into_iter())),
            false => Err(ExcerptError::Impossible("bytes are left over")),
        }
    }
}

/// The reserved bytes and the fields of an encoded head, whose magic, version and checksum (at the
/// end) are right.
fn open(bytes: &[u8], magic: [u8; 8]) -> Result<([u8; 2], &[u8]), ExcerptError> {
    let rest = bytes.strip_prefix(&magic).ok_or(ExcerptError::NotExcerpt)?;
    let (version, _) = rest.split_first_chunk().ok_or(ExcerptError::Truncated)?;
    let version = u16::from_le_bytes(*version);
    if version != VERSION {
        return Err(ExcerptError::Version(version));
    }
    let (checked, crc) = bytes.split_last_chunk::<CRC_LEN>().ok_or(ExcerptError::Truncated)?;
    let fields = checked.get(magic.len() + 2..).ok_or(ExcerptError::Truncated)?;
    let (zeros, fields) = fields.split_first_chunk().ok_or(ExcerptError::Truncated)?;
    match *crc == crc32c::crc32c(checked).to_le_bytes() {
        true => Ok((*zeros, fields)),
        false => Err(ExcerptError::Checksum),
    }
}

/// The answer to an excerpt.
#[derive(Clone, Debug)]
pub struct ExcerptAnswer {
    /// The length of the base.
    pub base_len_bytes: u64,
    /// The part of the excerpt that the base has.
    pub excerpt: Excerpt,
    /// Its signature.
    pub signature: Signature,
}

impl ExcerptAnswer {
    /// Writes the head of an answer; the signature of the excerpt's part in the base must follow.
    ///
    /// # Errors
    /// The error of `out`.
    pub fn write_head(base_len_bytes: u64, mut out: impl Write) -> io::Result<()> {
        let mut head = [0; ANSWER_LEN];
        head[..8].copy_from_slice(&ANSWER_MAGIC);
        head[8..10].copy_from_slice(&VERSION.to_le_bytes());
        head[12..20].copy_from_slice(&base_len_bytes.to_le_bytes());
        let crc = crc32c::crc32c(&head[..20]);
        head[20..].copy_from_slice(&crc.to_le_bytes());
        out.write_all(&head)
    }

    /// Reads the answer to an excerpt, with at most `blocks_max` blocks.
    ///
    /// # Errors
    /// If the stream fails, is not an answer, is damaged, cut short, or not about this excerpt.
    pub fn read(mut stream: impl Read, excerpt: &Excerpt, blocks_max: u64) -> Result<Self, ExcerptError> {
        let mut head = [0; ANSWER_LEN];
        stream.read_exact(&mut head).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => ExcerptError::Truncated,
            _ => ExcerptError::Io(error),
        })?;
        let (zeros, fields) = open(&head, ANSWER_MAGIC)?;
        let base_len_bytes = fields.first_chunk().map_or(u64::MAX, |len| u64::from_le_bytes(*len));
        if zeros != [0; 2] || base_len_bytes > FILE_LEN_MAX {
            return Err(ExcerptError::Impossible(
                "its base is too long, or reserved bytes are used",
            ));
        }
        let excerpt = excerpt.within(base_len_bytes);
        let signature = Signature::read(stream, blocks_max).map_err(ExcerptError::Signature)?;
        match signature.content_len_bytes() == excerpt.len_bytes() {
            true => Ok(Self {
                base_len_bytes,
                excerpt,
                signature,
            }),
            false => Err(ExcerptError::Impossible("the signature is of another content")),
        }
    }
}

/// The bytes of an excerpt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExcerptBytes {
    /// The length of the base.
    pub base_len_bytes: u64,
    /// The part of the excerpt that the base has.
    pub excerpt: Excerpt,
    /// Its bytes, those of all ranges one after the other.
    pub bytes: Vec<u8>,
}

impl ExcerptBytes {
    /// Reads the bytes of an excerpt, which the caller keeps as short as it has memory for: a delta
    /// over nothing that has them at their offsets in the base. Bytes that it leaves out are zeros.
    ///
    /// # Errors
    /// If the stream fails, is not such a delta, is damaged, cut short, or has other bytes as well.
    pub fn read(stream: impl Read, excerpt: &Excerpt) -> Result<Self, ExcerptError> {
        let mut delta = DeltaReader::new(stream)?;
        let header = *delta.header();
        if header.base_len_bytes != 0 || header.has_copies {
            return Err(ExcerptError::Impossible("its bytes are copies"));
        }
        let base_len_bytes = header.new_len_bytes;
        let excerpt = excerpt.within(base_len_bytes);
        let len = usize::try_from(excerpt.len_bytes()).map_err(|_| ExcerptError::Impossible("it is too long"))?;
        let mut bytes = vec![0; len];
        let mut decoder = FrameDecoder::new().map_err(ExcerptError::Io)?;
        let (mut block, mut raw) = (Block::default(), Vec::new());
        while delta.read_block(&mut block)? {
            block.frame.decode(&mut decoder, &mut raw)?;
            for extent in &block.extents {
                let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
                let len = at(extent.range.len_bytes());
                let to = excerpt.offset_of(extent.range).map(at);
                let to = to.and_then(|to| bytes.get_mut(to..to.saturating_add(len)));
                let to = to.ok_or(ExcerptError::Impossible("it has other bytes"))?;
                if let Source::Literal(slice) = extent.source {
                    let from = at(u64::from(slice.skip_bytes));
                    let from = raw.get(from..from.saturating_add(len));
                    to.copy_from_slice(from.ok_or(ExcerptError::Impossible("a literal lies outside of its frame"))?);
                }
            }
        }
        Ok(Self {
            base_len_bytes,
            excerpt,
            bytes,
        })
    }
}

#[cfg(test)]
mod tests;
