//! Several short contents in one stream, for a client that wants many small files: a request for
//! each would take longer than their bytes.
//!
//! The lengths come first, then all contents, one after the other, as one delta over an empty base
//! ([`crate::DeltaWriter`]), so that they are compressed together and holes stay holes.
//! docs/formats/bundle.md describes every byte of the stream.
//!
//! - [`ShortContent`]: a content as its data and the zeros between.
//! - [`write()`], [`read()`].
//!
//! Bad input gives a typed error. Memory follows the bytes that arrive, up to the caller's limit.

use std::io::{self, ErrorKind, Read, Write};

use byteback_extents::ByteRange;

use crate::apply::Target;
use crate::frame::{FrameDecoder, FrameError};
use crate::read::{Block, DeltaReader, ReadError};
use crate::sequence::WriteError;
use crate::source::Source;
use crate::write::{DeltaWriter, WriterOptions};

/// The first bytes of every bundle.
pub const MAGIC: [u8; 8] = *b"\x89BBBUN\r\n";

/// The version of the format that this crate writes and reads.
pub const VERSION: u16 = 1;

/// The most contents in a bundle.
pub const CONTENTS_MAX: usize = 1000;

/// The longest content, in bytes.
pub const CONTENT_LEN_MAX: u64 = 64 * 1024;

/// Magic, version, number of contents, CRC.
const HEADER_LEN: usize = 8 + 2 + 2 + 4;

/// Stands for the length of a content that the bundle leaves out.
const OMITTED_LEN: u32 = u32::MAX;

/// A short content: its data, and zeros everywhere else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShortContent {
    len_bytes: u64,
    /// Runs of data, ascending, each with its first offset. They do not overlap and lie within
    /// `len_bytes`.
    data: Vec<(u64, Vec<u8>)>,
}

/// A bundle cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The stream failed.
    #[error("cannot read the bundle of contents")]
    Io(#[source] io::Error),
    /// The first bytes are another format's.
    #[error("this is not a bundle of contents")]
    NotBundle,
    /// A version that this program cannot read.
    #[error("version {0} of the bundle of contents is not supported, only version {VERSION}; update the older side")]
    Version(u16),
    /// Bytes changed on the way.
    #[error("the head of the bundle of contents is damaged; request it again")]
    Checksum,
    /// The bundle breaks a rule of the format.
    #[error("the bundle of contents is invalid: {0}")]
    Impossible(&'static str),
    /// The delta that holds the contents cannot be read.
    #[error("cannot read the contents of the bundle")]
    Contents(#[from] ReadError),
    /// A frame of that delta cannot be decompressed.
    #[error("cannot decompress the contents of the bundle")]
    Frame(#[from] FrameError),
}

fn of_io(error: io::Error) -> BundleError {
    BundleError::Io(error)
}

impl ShortContent {
    /// A content of `len_bytes` zeros.
    #[must_use]
    pub fn zeros(len_bytes: u64) -> Self {
        Self {
            len_bytes,
            data: Vec::new(),
        }
    }

    /// The length of the content, in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Adds bytes after all that were added before. Bytes beyond the length are dropped.
    pub fn push(&mut self, offset: u64, bytes: &[u8]) {
        let room = usize::try_from(self.len_bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
        let bytes = bytes.get(..room).unwrap_or(bytes);
        match self.data.last_mut() {
            _ if bytes.is_empty() => {}
            Some((start, last)) if start.saturating_add(last.len() as u64) == offset => last.extend_from_slice(bytes),
            _ => self.data.push((offset, bytes.to_vec())),
        }
    }

    /// The ranges that hold data, with their bytes, ascending.
    pub fn data(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.data.iter().map(|(offset, bytes)| (*offset, bytes.as_slice()))
    }

    /// All bytes of the content, zeros included.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.len_bytes).unwrap_or(0)];
        for (offset, data) in self.data() {
            let from = usize::try_from(offset).unwrap_or(usize::MAX);
            if let Some(place) = bytes.get_mut(from..from.saturating_add(data.len())) {
                place.copy_from_slice(data);
            }
        }
        bytes
    }

    /// Makes a target hold this content, whatever it held before. The target grows first and is cut
    /// off last; after a failure the call can be repeated.
    ///
    /// # Errors
    /// If the target fails.
    pub fn write_into(&self, target: &mut impl Target) -> io::Result<()> {
        let found = target.len_bytes()?;
        if found < self.len_bytes {
            target.set_len_bytes(self.len_bytes)?;
        }
        let mut at = 0;
        for (offset, bytes) in self.data() {
            // Beyond its old end the target is a hole already.
            if let Some(hole) = ByteRange::new(at, offset.min(found)) {
                target.punch_hole(hole)?;
            }
            target.write_range(offset, bytes)?;
            at = offset.saturating_add(bytes.len() as u64);
        }
        if let Some(hole) = ByteRange::new(at, self.len_bytes.min(found)) {
            target.punch_hole(hole)?;
        }
        match found > self.len_bytes {
            true => target.set_len_bytes(self.len_bytes),
            false => Ok(()),
        }
    }
}

fn refused(reason: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, reason)
}

/// Writes contents as a bundle; a `None` is left out, but keeps its place.
///
/// # Errors
/// `InvalidInput` for more than [`CONTENTS_MAX`] contents, or one that is longer than
/// [`CONTENT_LEN_MAX`]; otherwise the error of `out`.
pub fn write(contents: &[Option<ShortContent>], mut out: impl Write) -> io::Result<()> {
    if contents.len() > CONTENTS_MAX {
        return Err(refused("too many contents for a bundle"));
    }
    let mut head = MAGIC.to_vec();
    head.extend_from_slice(&VERSION.to_le_bytes());
    // At most CONTENTS_MAX.
    head.extend_from_slice(&(contents.len() as u16).to_le_bytes());
    for content in contents {
        let len = match content {
            None => OMITTED_LEN,
            Some(content) if content.len_bytes > CONTENT_LEN_MAX => {
                return Err(refused("a content is too long for a bundle"));
            }
            Some(content) => content.len_bytes as u32,
        };
        head.extend_from_slice(&len.to_le_bytes());
    }
    let crc = crc32c::crc32c(&head);
    head.extend_from_slice(&crc.to_le_bytes());
    out.write_all(&head)?;
    let reported = || contents.iter().flatten();
    let total = reported().map(|content| content.len_bytes).sum();
    let failed = |error: WriteError| match error {
        WriteError::Write(source) => source,
        other => io::Error::other(other),
    };
    let mut writer = DeltaWriter::new(out, 0, total, WriterOptions::default()).map_err(failed)?;
    let mut start = 0;
    for content in reported() {
        let mut at = start;
        for (offset, bytes) in content.data() {
            if let Some(hole) = ByteRange::new(at, start + offset) {
                writer.zero(hole).map_err(failed)?;
            }
            writer.literal_bytes(start + offset, bytes).map_err(failed)?;
            at = start + offset + bytes.len() as u64;
        }
        let end = start + content.len_bytes;
        if let Some(hole) = ByteRange::new(at, end) {
            writer.zero(hole).map_err(failed)?;
        }
        start = end;
    }
    writer.finish().map(|_| ()).map_err(failed)
}

/// Reads a bundle of at most `contents_max` contents.
///
/// # Errors
/// If the stream is not a bundle, or incomplete.
pub fn read(mut input: impl Read, contents_max: usize) -> Result<Vec<Option<ShortContent>>, BundleError> {
    let mut head = vec![0; HEADER_LEN - 4];
    input.read_exact(&mut head).map_err(of_io)?;
    if head.get(..8) != Some(&MAGIC[..]) {
        return Err(BundleError::NotBundle);
    }
    let number = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let (version, count) = (number(8), usize::from(number(10)));
    if version != VERSION {
        return Err(BundleError::Version(version));
    }
    if count > CONTENTS_MAX.min(contents_max) {
        return Err(BundleError::Impossible("it has more contents than requested"));
    }
    let mut rest = vec![0; 4 * count + 4];
    input.read_exact(&mut rest).map_err(of_io)?;
    let numbers: Vec<u32> = rest
        .chunks_exact(4)
        .map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        .collect();
    head.extend_from_slice(&rest[..4 * count]);
    let (crc, lens) = numbers.split_last().unwrap_or((&0, &[]));
    if crc32c::crc32c(&head) != *crc {
        return Err(BundleError::Checksum);
    }
    let is_too_long = |len: &u32| *len != OMITTED_LEN && u64::from(*len) > CONTENT_LEN_MAX;
    if lens.iter().any(is_too_long) {
        return Err(BundleError::Impossible("a content is too long"));
    }
    let reported = |len: &u32| (*len != OMITTED_LEN).then(|| ShortContent::zeros(u64::from(*len)));
    let mut contents: Vec<Option<ShortContent>> = lens.iter().map(reported).collect();
    fill(input, &mut contents)?;
    Ok(contents)
}

/// Fills the contents, which are zeros so far, with their data.
fn fill(input: impl Read, contents: &mut [Option<ShortContent>]) -> Result<(), BundleError> {
    let total: u64 = contents.iter().flatten().map(|content| content.len_bytes).sum();
    let mut delta = DeltaReader::new(input)?;
    let header = *delta.header();
    if header.base_len_bytes != 0 || header.has_copies || header.new_len_bytes != total {
        return Err(BundleError::Impossible("its contents do not have the announced length"));
    }
    let mut reported = contents.iter_mut().flatten();
    let (mut content, mut start) = (reported.next(), 0);
    let mut decoder = FrameDecoder::new().map_err(of_io)?;
    let (mut block, mut raw) = (Block::default(), Vec::new());
    while delta.read_block(&mut block)? {
        block.frame.decode(&mut decoder, &mut raw)?;
        for extent in &block.extents {
            let slice = match extent.source {
                Source::Literal(slice) => slice,
                Source::Zero => continue,
                // The reader refuses copies in a stream that declares none.
                Source::Copy { .. } => return Err(BundleError::Impossible("its contents are copies")),
            };
            let mut at = extent.range.start();
            // The reader has checked that the literals of a block are just as long as its frame.
            let mut bytes = &raw[slice.skip_bytes as usize..][..extent.range.len_bytes() as usize];
            while !bytes.is_empty() {
                let Some(now) = &mut content else {
                    return Err(BundleError::Impossible("it has bytes beyond its contents"));
                };
                let end = start + now.len_bytes;
                let here = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX);
                let (of_now, later) = bytes.split_at(here.min(bytes.len()));
                now.push(at.saturating_sub(start), of_now);
                at += of_now.len() as u64;
                bytes = later;
                if at >= end {
                    (content, start) = (reported.next(), end);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
