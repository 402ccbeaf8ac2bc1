//! The list of chunks as bytes, version 1, and the framing that it shares with the answer;
//! docs/formats/chunks.md describes every byte.
//!
//! A header, then the chunks in groups of [`GROUP`] (the last one may have fewer). A group begins
//! with its length in bytes and carries a CRC-32C over the header's own CRC, the number of its
//! first entry, and its bytes, so that swapped groups are detected, even those of another list.
//!
//! A list comes from an untrusted sender: memory follows the bytes that arrive, the reader limits
//! the number of chunks, and all lengths are compared with the limits in the header.

use std::io::{self, ErrorKind, Read, Write};

use byteback_extents::ByteRange;

use super::{CHUNKS_MAX, ChunkList, ChunkParams};
use crate::crc::CrcKind;
use crate::varint;
use crate::wire::FILE_LEN_MAX;

/// The first bytes of every list.
const MAGIC: [u8; 8] = *b"\x89BBCHL\r\n";

/// The version of the list and of the answer that this crate writes and reads.
pub const VERSION: u16 = 1;

/// Magic, version, kind, a zero, three lengths, content length, chunks, CRC.
const HEADER_LEN: usize = 8 + 2 + 1 + 1 + 3 * 4 + 8 + 8 + 4;

/// The number of entries in a group.
pub(super) const GROUP: u64 = 1024;

/// A list or an answer cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ChunkStreamError {
    /// The stream failed.
    #[error("cannot read the {what}")]
    Io {
        /// `chunk list` or `chunk answer`.
        what: &'static str,
        /// The error of the stream.
        source: io::Error,
    },
    /// The stream ends too early.
    #[error("the {what} is truncated after {entries} entries")]
    Truncated {
        /// `chunk list` or `chunk answer`.
        what: &'static str,
        /// The number of entries in complete groups.
        entries: u64,
    },
    /// The first bytes are another format's.
    #[error("not a {what}")]
    Foreign {
        /// `chunk list` or `chunk answer`.
        what: &'static str,
    },
    /// A version that this program cannot read.
    #[error("{what} version {version} is not supported, only version {VERSION}; update the older side")]
    Version {
        /// `chunk list` or `chunk answer`.
        what: &'static str,
        /// The version found.
        version: u16,
    },
    /// A kind of checksum that this program does not know.
    #[error("the checksums of the {what} are of the unknown kind {code}; update the older side")]
    Kind {
        /// `chunk list` or `chunk answer`.
        what: &'static str,
        /// The number of the kind.
        code: u8,
    },
    /// A rule of the format is broken.
    #[error("the {what} is invalid: {problem}")]
    Impossible {
        /// `chunk list` or `chunk answer`.
        what: &'static str,
        /// The broken rule.
        problem: &'static str,
    },
    /// The list has more chunks than the reader accepts.
    #[error("the list has {chunks} chunks, more than the limit of {chunks_max}; cut the content into longer ones")]
    TooManyChunks {
        /// The announced number.
        chunks: u64,
        /// The limit.
        chunks_max: u64,
    },
    /// Bytes changed on the way.
    #[error("the {what} is damaged at entry {entry}")]
    Checksum {
        /// `chunk list` or `chunk answer`.
        what: &'static str,
        /// The first entry of the damaged group; also 0 for a damaged header.
        entry: u64,
    },
}

const WHAT: &str = "chunk list";

fn impossible(problem: &'static str) -> ChunkStreamError {
    ChunkStreamError::Impossible { what: WHAT, problem }
}

const fn kind_code(kind: CrcKind) -> u8 {
    match kind {
        CrcKind::Crc32c => 1,
        CrcKind::Crc32 => 2,
        CrcKind::Crc64Nvme => 3,
    }
}

impl ChunkList {
    /// Writes the list as bytes.
    ///
    /// # Errors
    /// `InvalidInput` if there are more than [`CHUNKS_MAX`] chunks; otherwise the error of `out`.
    pub fn write_to(&self, mut out: impl Write) -> io::Result<()> {
        super::list::check_number(self.len())?;
        let mut header = Vec::with_capacity(HEADER_LEN);
        header.extend_from_slice(&MAGIC);
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&[kind_code(self.kind()), 0]);
        let params = self.params();
        for len in [params.min_len(), params.avg_len(), params.max_len()] {
            header.extend_from_slice(&len.to_le_bytes());
        }
        header.extend_from_slice(&self.content_len_bytes().to_le_bytes());
        header.extend_from_slice(&(self.len() as u64).to_le_bytes());
        let mut groups = GroupWriter::begin(&mut out, header)?;
        let mut end = 0;
        for chunk in self.iter() {
            let group = groups.entry()?;
            if end < chunk.range.start() {
                group.push(0);
                varint::put(group, chunk.range.start() - end);
            }
            end = chunk.range.end();
            varint::put(group, chunk.range.len_bytes());
            group.extend_from_slice(&chunk.weak.to_le_bytes()[..self.kind().len_bytes()]);
        }
        groups.finish()?;
        out.flush()
    }

    /// Reads a whole list, and nothing beyond it.
    ///
    /// # Errors
    /// If the stream fails, is not a list, is damaged or cut short, or has more than `chunks_max`
    /// chunks.
    pub fn read(mut stream: impl Read, chunks_max: u64) -> Result<Self, ChunkStreamError> {
        let (header, header_crc) = read_header::<HEADER_LEN>(&mut stream, WHAT, MAGIC)?;
        let kind = match header[10] {
            1 => CrcKind::Crc32c,
            2 => CrcKind::Crc32,
            3 => CrcKind::Crc64Nvme,
            code => return Err(ChunkStreamError::Kind { what: WHAT, code }),
        };
        if header[11] != 0 {
            return Err(impossible("a reserved byte of its header is used"));
        }
        let [min, avg, max] = [12, 16, 20].map(|at| u32::from_le_bytes(array(&header, at)));
        let params = ChunkParams::new(min, avg, max).ok_or(impossible("its chunk lengths are impossible"))?;
        let content_len_bytes = u64::from_le_bytes(array(&header, 24));
        if content_len_bytes > FILE_LEN_MAX {
            return Err(impossible("its content is too long for a file"));
        }
        let chunks = u64::from_le_bytes(array(&header, 32));
        let chunks_max = chunks_max.min(CHUNKS_MAX);
        if chunks > chunks_max {
            return Err(ChunkStreamError::TooManyChunks { chunks, chunks_max });
        }
        let weak_len = kind.len_bytes();
        let mut list = Self::new(params, kind);
        list.set_content_len(content_len_bytes);
        let mut end = 0;
        let mut groups = GroupReader::new(stream, WHAT, header_crc, chunks);
        while let Some((count, mut bytes)) = groups.next(LIST_ENTRY_LEN_MAX)? {
            // At most a group.
            list.make_room(count as usize, chunks);
            for _ in 0..count {
                let mut len_bytes = varint::take(&mut bytes).ok_or(impossible("a length is malformed"))?;
                if len_bytes == 0 {
                    let gap = varint::take(&mut bytes).ok_or(impossible("the length of a gap is malformed"))?;
                    if gap == 0 {
                        return Err(impossible("a gap is empty"));
                    }
                    end = u64::checked_add(end, gap).ok_or(impossible("a gap extends past the content's end"))?;
                    len_bytes = varint::take(&mut bytes).ok_or(impossible("a length is malformed"))?;
                }
                let range = ByteRange::from_offset_len(end, len_bytes)
                    .filter(|range| range.end() <= content_len_bytes && len_bytes <= u64::from(max))
                    .ok_or(impossible(
                        "a chunk is empty, too long, or extends past the content's end",
                    ))?;
                end = range.end();
                let (weak, rest) = bytes
                    .split_at_checked(weak_len)
                    .ok_or(impossible("a group ends inside a checksum"))?;
                bytes = rest;
                let mut value = [0; 8];
                value[..weak_len].copy_from_slice(weak);
                list.push(range, u64::from_le_bytes(value));
            }
            if !bytes.is_empty() {
                return Err(impossible("a group has bytes after its chunks"));
            }
        }
        Ok(list)
    }
}

/// The longest entry: a zero, a gap, a length, a checksum.
const LIST_ENTRY_LEN_MAX: usize = 1 + 2 * varint::LEN_MAX + 8;

/// Writes groups of entries.
pub(super) struct GroupWriter<W> {
    out: W,
    header_crc: u32,
    first: u64,
    entries: u64,
    bytes: Vec<u8>,
}

impl<W: Write> GroupWriter<W> {
    /// Completes the header by its CRC and writes it.
    pub(super) fn begin(mut out: W, mut header: Vec<u8>) -> io::Result<Self> {
        let header_crc = crc32c::crc32c(&header);
        header.extend_from_slice(&header_crc.to_le_bytes());
        out.write_all(&header)?;
        Ok(Self {
            out,
            header_crc,
            first: 0,
            entries: 0,
            bytes: Vec::new(),
        })
    }

    /// The buffer to which the next entry must be appended.
    pub(super) fn entry(&mut self) -> io::Result<&mut Vec<u8>> {
        if self.entries == GROUP {
            self.end_group()?;
        }
        self.entries += 1;
        Ok(&mut self.bytes)
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        match self.entries {
            0 => Ok(()),
            _ => self.end_group(),
        }
    }

    fn end_group(&mut self) -> io::Result<()> {
        // Entries are shorter than 64 bytes.
        let len = (self.bytes.len() as u32).to_le_bytes();
        let crc = group_crc(self.header_crc, self.first, len, &self.bytes);
        self.out.write_all(&len)?;
        self.out.write_all(&self.bytes)?;
        self.out.write_all(&crc.to_le_bytes())?;
        self.first += self.entries;
        self.entries = 0;
        self.bytes.clear();
        Ok(())
    }
}

fn group_crc(header_crc: u32, first: u64, len: [u8; 4], bytes: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&header_crc.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &first.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &len), bytes)
}

/// Reads groups of entries.
pub(super) struct GroupReader<R> {
    stream: R,
    what: &'static str,
    header_crc: u32,
    first: u64,
    entries: u64,
    bytes: Vec<u8>,
}

impl<R: Read> GroupReader<R> {
    /// A reader of a stream with `entries` entries to come.
    pub(super) fn new(stream: R, what: &'static str, header_crc: u32, entries: u64) -> Self {
        Self {
            stream,
            what,
            header_crc,
            first: 0,
            entries,
            bytes: Vec::new(),
        }
    }

    /// The next group, whose entries have at most `entry_len_max` bytes each: their number, and
    /// their bytes. `None` after the last group.
    pub(super) fn next(&mut self, entry_len_max: usize) -> Result<Option<(u64, &[u8])>, ChunkStreamError> {
        let what = self.what;
        let count = GROUP.min(self.entries - self.first);
        if count == 0 {
            return Ok(None);
        }
        let mut len = [0; 4];
        fill(&mut self.stream, &mut len, what, self.first)?;
        let bytes_len = u32::from_le_bytes(len) as usize;
        // Checked before memory is reserved, so that at most some ten KiB are.
        if bytes_len > entry_len_max * GROUP as usize {
            let problem = "a group is too long for its entries";
            return Err(ChunkStreamError::Impossible { what, problem });
        }
        self.bytes.resize(bytes_len, 0);
        fill(&mut self.stream, &mut self.bytes, what, self.first)?;
        let mut crc = [0; 4];
        fill(&mut self.stream, &mut crc, what, self.first)?;
        if u32::from_le_bytes(crc) != group_crc(self.header_crc, self.first, len, &self.bytes) {
            let entry = self.first;
            return Err(ChunkStreamError::Checksum { what, entry });
        }
        self.first += count;
        Ok(Some((count, &self.bytes)))
    }
}

/// Reads and checks a header, whose last four bytes are its CRC; returns both.
pub(super) fn read_header<const N: usize>(
    stream: &mut impl Read,
    what: &'static str,
    magic: [u8; 8],
) -> Result<([u8; N], u32), ChunkStreamError> {
    let mut header = [0; N];
    fill(stream, &mut header, what, 0)?;
    if header[..8] != magic {
        return Err(ChunkStreamError::Foreign { what });
    }
    let version = u16::from_le_bytes(array(&header, 8));
    if version != VERSION {
        return Err(ChunkStreamError::Version { what, version });
    }
    let crc = u32::from_le_bytes(array(&header, N - 4));
    if crc != crc32c::crc32c(&header[..N - 4]) {
        return Err(ChunkStreamError::Checksum { what, entry: 0 });
    }
    Ok((header, crc))
}

fn fill(stream: &mut impl Read, bytes: &mut [u8], what: &'static str, entries: u64) -> Result<(), ChunkStreamError> {
    stream.read_exact(bytes).map_err(|source| match source.kind() {
        ErrorKind::UnexpectedEof => ChunkStreamError::Truncated { what, entries },
        _ => ChunkStreamError::Io { what, source },
    })
}

pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

#[cfg(test)]
mod tests;
