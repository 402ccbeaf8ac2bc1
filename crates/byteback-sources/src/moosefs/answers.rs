//! Parsers for the output of `mfsfileinfo -c` about a file, and for the beginning of a chunk
//! server's file: bytes in, values out, nothing trusted.
//!
//! ```text
//! /proc/49/fd/3:
//! <tab>chunk 0: 0000000000000001_00000002 / (id:1 ver:2)
//! <tab><tab>copy 1: 10.99.0.1:9422 (status:VALID ; blocks: 46 ; checksum digest: 87C3..DC10)
//! <tab>chunk 1: empty
//! ```
//!
//! A complaint is a single line without the colon, such as `/proc/49/fd/3: not MFS object`; it is
//! printed among the answers, not on standard error.
//!
//! The digest is the MD5 of the CRCs of those blocks, as they are in the chunk's file. The chunk
//! server computes it from its memory, so it shows whether the file is up to date.

use md5::{Digest, Md5};

use crate::programs::complaint;

/// Bytes of a chunk's content.
pub(crate) const CHUNK_LEN: u64 = 64 << 20;
/// Bytes of a block.
pub(crate) const BLOCK_LEN: u64 = 64 << 10;
/// Blocks of a chunk.
pub(crate) const CHUNK_BLOCKS: u64 = CHUNK_LEN / BLOCK_LEN;
/// Bytes of a chunk's file before its content, at most.
pub(crate) const HEADER_LEN: usize = 8192;
/// The offset of the CRCs, in the present format and in the older one.
const TABLES: [usize; 2] = [4096, 1024];

/// A chunk as reported by the master and the chunk servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) id: u64,
    pub(crate) version: u32,
    /// The content of all valid copies; `None` if no copy is valid.
    pub(crate) held: Option<Held>,
}

/// The part of a chunk that a chunk server holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// The number of blocks; those behind are zeros.
    pub(crate) blocks: u64,
    /// The digest of their CRCs.
    pub(crate) digest: [u8; 16],
}

/// The chunks of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chunks {
    /// The chunks by number; `None` for one that was never written to.
    pub(crate) chunks: Vec<Option<Chunk>>,
    /// Whether all valid copies hold the same.
    pub(crate) is_agreed: bool,
}

/// A parser that is fed line by line.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    has_started: bool,
    is_empty: bool,
    chunks: Vec<Option<Chunk>>,
    has_differences: bool,
}

type Parsed<T> = Result<T, &'static str>;

/// The reason why the output is not a list of chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// The file is not on MooseFS.
    NotMooseFs,
    /// Another complaint that was printed in place of a list.
    Complaint(String),
    /// The malformed part, in words.
    Shape(&'static str),
}

impl From<&'static str> for Wrong {
    fn from(what: &'static str) -> Self {
        Self::Shape(what)
    }
}

/// Limit of the part of a complaint that is reported.
const COMPLAINT_LEN_MAX: usize = 500;

impl Parser {
    /// The next line, without its end.
    ///
    /// # Errors
    /// [`Wrong`] if the line does not belong to a list.
    pub(crate) fn line(&mut self, line: &[u8]) -> Result<(), Wrong> {
        if self.has_started {
            return Ok(self.listed(line)?);
        }
        self.has_started = true;
        if line.ends_with(b":") {
            return Ok(());
        }
        if line.ends_with(b": not MFS object") {
            return Err(Wrong::NotMooseFs);
        }
        let said = line.get(..COMPLAINT_LEN_MAX).unwrap_or(line);
        Err(Wrong::Complaint(complaint(said)))
    }

    /// A line behind the first one.
    fn listed(&mut self, line: &[u8]) -> Parsed<()> {
        const SHAPE: &str = "a malformed list of the file's chunks";
        let line = std::str::from_utf8(line).map_err(|_| SHAPE)?;
        if let Some(copy) = line.strip_prefix("\t\tcopy ") {
            let chunk = self.chunks.last_mut().and_then(Option::as_mut).ok_or(SHAPE)?;
            let Some(held) = held(copy).ok_or(SHAPE)? else {
                return Ok(());
            };
            self.has_differences |= chunk.held.is_some_and(|other| other != held);
            chunk.held = Some(held);
        } else if let Some(text) = line.strip_prefix("\tchunk ") {
            let (number, text) = text.split_once(": ").ok_or(SHAPE)?;
            if self.is_empty || number.parse::<usize>().ok() != Some(self.chunks.len()) {
                return Err("chunks of a file that are not in order");
            }
            let chunk = match text {
                "empty" => None,
                text => Some(named(text).ok_or(SHAPE)?),
            };
            self.chunks.push(chunk);
        } else if line.starts_with("\tno chunks") && self.chunks.is_empty() {
            self.is_empty = true;
        } else if !line.starts_with("\t\tno valid copies") {
            return Err(SHAPE);
        }
        Ok(())
    }

    /// The end of the lines.
    ///
    /// # Errors
    /// The defect, in words.
    pub(crate) fn end(self) -> Parsed<Chunks> {
        match self.is_empty != self.chunks.is_empty() {
            true => Err("a file without its chunks"),
            false => Ok(Chunks {
                chunks: self.chunks,
                is_agreed: !self.has_differences,
            }),
        }
    }
}

/// `0000000000000001_00000002 / (id:1 ver:2)`.
fn named(text: &str) -> Option<Chunk> {
    let (name, _) = text.split_once(" / (id:")?;
    let (id, version) = name.split_once('_')?;
    let is_hex = |text: &str, len| text.len() == len && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_hex(id, 16) && is_hex(version, 8)).then_some(())?;
    Some(Chunk {
        id: u64::from_str_radix(id, 16).ok()?,
        version: u32::from_str_radix(version, 16).ok()?,
        held: None,
    })
}

/// Parses `1: HOST:PORT (status:VALID ; blocks: 46 ; checksum digest: ...)`; returns `Some(None)`
/// for a copy that does not count.
fn held(text: &str) -> Option<Option<Held>> {
    let (_, text) = text.split_once(" (status:")?;
    let mut parts = text.strip_suffix(')')?.split(" ; ");
    if parts.next()? != "VALID" {
        return Some(None);
    }
    let blocks = parts.next()?.strip_prefix("blocks: ")?.parse().ok()?;
    let digits = parts.next()?.strip_prefix("checksum digest: ")?;
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let mut digest = [0; 16];
    let is_whole = blocks <= CHUNK_BLOCKS && rest.is_empty() && pairs.len() == digest.len() && parts.next().is_none();
    is_whole.then_some(())?;
    for (byte, [high, low]) in digest.iter_mut().zip(pairs) {
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(Some(Held { blocks, digest }))
}

/// The CRCs of the blocks that a chunk server holds of a chunk, big-endian, from the beginning of
/// its file.
///
/// # Errors
/// The defect, in words: nothing in the file is of this chunk.
pub(crate) fn table<'b>(header: &'b [u8], chunk: &Chunk, held: &Held) -> Parsed<Option<&'b [u8]>> {
    let own = header.strip_prefix(b"MFSC 1.").and_then(|rest| rest.get(1..));
    let (id, rest) = own
        .and_then(<[u8]>::split_first_chunk::<8>)
        .ok_or("not the file of a chunk")?;
    let version = rest.first_chunk::<4>();
    if u64::from_be_bytes(*id) != chunk.id || version.map(|version| u32::from_be_bytes(*version)) != Some(chunk.version)
    {
        return Err("the file of another chunk");
    }
    let len = held.blocks as usize * 4;
    let tables = TABLES.into_iter().filter_map(|start| header.get(start..start + len));
    // None of them: the latest CRCs are on their way into the file.
    Ok(tables
        .into_iter()
        .find(|table| Md5::digest(table).as_slice() == held.digest))
}
