//! The answer to a search on the server: the blocks of the new content that are somewhere in the
//! base.
//!
//! The client has sent the signature of its new content ([`crate::signature`]);
//! [`crate::find::ReverseFinder`] searched the base for its blocks. A list of matches travels back;
//! the client has to send the ranges that it does not name ([`crate::find::MatchedContent`]).
//! docs/formats/matches.md describes every byte of the stream.
//!
//! - [`MatchRun`]: consecutive blocks of the new content that are consecutive bytes of the base.
//! - [`MatchList`]: the runs of a content, ascending; [`MatchList::write`], [`MatchList::read`].
//!
//! The stream is a header of 40 bytes, then runs in groups of [`GROUP_RUNS`] (the last one may have
//! fewer), each with its length and a CRC-32C over the header's CRC, the number of the group and
//! the group's bytes. The list comes from an untrusted peer: the reader names the content whose
//! matches it expects, bad input gives a typed error, and memory follows the bytes that arrive. The
//! list cannot prove that the base really holds these bytes; a client that uses it sends the digest
//! of the whole content ([`crate::ContentDigest`]).

use std::io::{self, ErrorKind, Read, Write};

use byteback_extents::ByteRange;

use crate::room::make_room;
use crate::signature::BLOCK_LEN_MAX;
use crate::varint;
use crate::wire::FILE_LEN_MAX;

/// The first bytes of every list of matches.
pub const MAGIC: [u8; 8] = *b"\x89BBMAT\r\n";

/// The version of the format that this crate writes and reads.
pub const VERSION: u16 = 1;

/// The number of runs in a group.
pub const GROUP_RUNS: u64 = 1024;

/// Magic, version, two zeros, block length, lengths of the new content and the base, number of
/// runs, CRC.
const HEADER_LEN: usize = 8 + 2 + 2 + 4 + 8 + 8 + 4 + 4;

/// The longest group: three numbers per run.
const GROUP_LEN_MAX: usize = GROUP_RUNS as usize * 3 * varint::LEN_MAX;

/// A range of the new content that is also in the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatchRun {
    /// The range in the new content: from one block border to another, or to the content's end.
    pub range: ByteRange,
    /// The offset of these bytes in the base.
    pub base_offset: u64,
}

/// The matches of a new content in a base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchList {
    block_len_bytes: u32,
    new_len_bytes: u64,
    base_len_bytes: u64,
    runs: Vec<MatchRun>,
}

/// A list of matches cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum MatchesError {
    /// The stream failed.
    #[error("cannot read the list of matches")]
    Io(#[source] io::Error),
    /// The stream ends too early.
    #[error("the list of matches is truncated after {runs} runs; request it again")]
    Truncated {
        /// The number of runs in complete groups.
        runs: u64,
    },
    /// The first bytes are another format's.
    #[error("not a list of matches")]
    NotMatches,
    /// A version that this program cannot read.
    #[error("version {0} of the list of matches is not supported, only version {VERSION}; update the older side")]
    Version(u16),
    /// The list is about another content than the expected one.
    #[error(
        "the list of matches is for {found_len_bytes} bytes in blocks of {found_block_len_bytes}, not for {len_bytes} \
         in blocks of {block_len_bytes}; send the signature again"
    )]
    OtherContent {
        /// The length of the expected content.
        len_bytes: u64,
        /// The length of the expected content's blocks.
        block_len_bytes: u32,
        /// The content length in the list.
        found_len_bytes: u64,
        /// The block length in the list.
        found_block_len_bytes: u32,
    },
    /// Bytes changed on the way.
    #[error("the list of matches is damaged at run {run}; request it again")]
    Checksum {
        /// The first run of the damaged group; also 0 for a damaged header.
        run: u64,
    },
    /// The bytes are intact, but they break a rule of the format.
    #[error("the list of matches is invalid at run {run}: {reason}")]
    Impossible {
        /// The run; also 0 for the header.
        run: u64,
        /// The rule.
        reason: &'static str,
    },
}

impl MatchList {
    /// An empty list.
    pub(crate) fn new(block_len_bytes: u32, new_len_bytes: u64, base_len_bytes: u64) -> Self {
        Self {
            block_len_bytes: block_len_bytes.clamp(1, BLOCK_LEN_MAX),
            new_len_bytes,
            base_len_bytes,
            runs: Vec::new(),
        }
    }

    /// Makes room for `runs` more runs.
    pub(crate) fn reserve(&mut self, runs: usize) {
        self.runs.reserve_exact(runs);
    }

    /// Adds a match after all others, merged into the last run if it continues that.
    pub(crate) fn push(&mut self, range: ByteRange, base_offset: u64) {
        match self.runs.last_mut() {
            Some(last)
                if last.range.end() == range.start() && last.base_offset + last.range.len_bytes() == base_offset =>
            {
                last.range = last.range.hull(range);
            }
            _ => self.runs.push(MatchRun { range, base_offset }),
        }
    }

    /// The length of the blocks that runs consist of.
    #[must_use]
    pub fn block_len_bytes(&self) -> u32 {
        self.block_len_bytes
    }

    /// The length of the new content.
    #[must_use]
    pub fn new_len_bytes(&self) -> u64 {
        self.new_len_bytes
    }

    /// The length of the base.
    #[must_use]
    pub fn base_len_bytes(&self) -> u64 {
        self.base_len_bytes
    }

    /// The matches, ascending in the new content.
    #[must_use]
    pub fn runs(&self) -> &[MatchRun] {
        &self.runs
    }

    /// The ranges of the new content that no match covers, ascending: the client has to send these.
    pub fn missing(&self) -> impl Iterator<Item = ByteRange> + '_ {
        let starts = std::iter::once(0).chain(self.runs.iter().map(|run| run.range.end()));
        let ends = self.runs.iter().map(|run| run.range.start());
        let ends = ends.chain(std::iter::once(self.new_len_bytes));
        starts.zip(ends).filter_map(|(start, end)| ByteRange::new(start, end))
    }

    /// Writes the list as a stream and flushes.
    ///
    /// # Errors
    /// `InvalidData` for more than 2^32 - 1 runs; otherwise the error of `out`.
    pub fn write(&self, mut out: impl Write) -> io::Result<()> {
        let runs = u32::try_from(self.runs.len()).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        let mut header = [0; HEADER_LEN];
        header[..8].copy_from_slice(&MAGIC);
        header[8..10].copy_from_slice(&VERSION.to_le_bytes());
        header[12..16].copy_from_slice(&self.block_len_bytes.to_le_bytes());
        header[16..24].copy_from_slice(&self.new_len_bytes.to_le_bytes());
        header[24..32].copy_from_slice(&self.base_len_bytes.to_le_bytes());
        header[32..36].copy_from_slice(&runs.to_le_bytes());
        let header_crc = crc32c::crc32c(&header[..36]);
        header[36..].copy_from_slice(&header_crc.to_le_bytes());
        out.write_all(&header)?;
        let block_len = u64::from(self.block_len_bytes);
        let mut before = Position::default();
        let mut group = Vec::new();
        for (number, runs) in self.runs.chunks(GROUP_RUNS as usize).enumerate() {
            group.clear();
            for run in runs {
                let first_block = run.range.start() / block_len;
                let end_block = run.range.end().div_ceil(block_len);
                varint::put(&mut group, first_block - before.block);
                varint::put(&mut group, end_block - first_block - 1);
                let moved = run.base_offset.wrapping_sub(before.expected_at(first_block, block_len));
                varint::put(&mut group, varint::zigzag(moved.cast_signed()));
                before = Position {
                    block: end_block,
                    base_offset: run.base_offset + (end_block - first_block) * block_len,
                };
            }
            // At most GROUP_LEN_MAX.
            out.write_all(&(group.len() as u32).to_le_bytes())?;
            out.write_all(&group)?;
            out.write_all(&group_crc(header_crc, number as u64, &group).to_le_bytes())?;
        }
        out.flush()
    }

    /// Reads a whole list, and nothing beyond it: the matches of a content of `new_len_bytes`, in
    /// blocks as long as its signature's.
    ///
    /// # Errors
    /// If the stream fails, is not a list, is damaged, cut short or impossible, or is about another
    /// content.
    pub fn read(mut stream: impl Read, new_len_bytes: u64, block_len_bytes: u32) -> Result<Self, MatchesError> {
        let mut header = [0; HEADER_LEN];
        fill(&mut stream, &mut header, 0)?;
        if header[..8] != MAGIC {
            return Err(MatchesError::NotMatches);
        }
        let version = u16::from_le_bytes(array(&header, 8));
        if version != VERSION {
            return Err(MatchesError::Version(version));
        }
        let header_crc = u32::from_le_bytes(array(&header, 36));
        if header_crc != crc32c::crc32c(&header[..36]) {
            return Err(MatchesError::Checksum { run: 0 });
        }
        let impossible = |reason| MatchesError::Impossible { run: 0, reason };
        if header[10..12] != [0; 2] {
            return Err(impossible("reserved bytes of its header are used"));
        }
        let found_block_len_bytes = u32::from_le_bytes(array(&header, 12));
        let found_len_bytes = u64::from_le_bytes(array(&header, 16));
        if (found_len_bytes, found_block_len_bytes) != (new_len_bytes, block_len_bytes) {
            return Err(MatchesError::OtherContent {
                len_bytes: new_len_bytes,
                block_len_bytes,
                found_len_bytes,
                found_block_len_bytes,
            });
        }
        let base_len_bytes = u64::from_le_bytes(array(&header, 24));
        if new_len_bytes > FILE_LEN_MAX || base_len_bytes > FILE_LEN_MAX {
            return Err(impossible("its contents are too long for a file"));
        }
        if block_len_bytes == 0 || block_len_bytes > BLOCK_LEN_MAX {
            return Err(impossible("its block length is impossible"));
        }
        let runs = u64::from(u32::from_le_bytes(array(&header, 32)));
        let mut list = Self::new(block_len_bytes, new_len_bytes, base_len_bytes);
        let mut before = Position::default();
        let mut group = Vec::new();
        let mut done = 0;
        while done < runs {
            let count = (runs - done).min(GROUP_RUNS);
            read_group(&mut stream, header_crc, done, &mut group)?;
            let mut bytes = &group[..];
            // At most a group.
            make_room(&mut list.runs, count as usize, runs);
            for run in done..done + count {
                let run = list.take_run(&mut bytes, &mut before, run)?;
                list.runs.push(run);
            }
            if !bytes.is_empty() {
                return Err(MatchesError::Impossible {
                    run: done,
                    reason: "bytes are left over in its group",
                });
            }
            done += count;
        }
        Ok(list)
    }

    /// Takes a run off the front of a group.
    fn take_run(&self, bytes: &mut &[u8], before: &mut Position, run: u64) -> Result<MatchRun, MatchesError> {
        let impossible = |reason| MatchesError::Impossible { run, reason };
        let mut number = || varint::take(bytes).ok_or_else(|| impossible("a number is cut off or too long"));
        let (gap, more_blocks, moved) = (number()?, number()?, number()?);
        let block_len = u64::from(self.block_len_bytes);
        let blocks = self.new_len_bytes.div_ceil(block_len);
        let first_block = before.block.checked_add(gap);
        let end_block = first_block
            .and_then(|first| first.checked_add(more_blocks)?.checked_add(1))
            .filter(|&end| end <= blocks);
        let (Some(first_block), Some(end_block)) = (first_block, end_block) else {
            return Err(impossible("it is outside the new content"));
        };
        // Both are at most 2^63 plus a block.
        let range = ByteRange::new(
            first_block * block_len,
            end_block.saturating_mul(block_len).min(self.new_len_bytes),
        );
        let range = range.ok_or_else(|| impossible("it is outside the new content"))?;
        let expected = before.expected_at(first_block, block_len);
        let base_offset = expected.wrapping_add(varint::unzigzag(moved).cast_unsigned());
        if base_offset
            .checked_add(range.len_bytes())
            .is_none_or(|end| end > self.base_len_bytes)
        {
            return Err(impossible("it is outside the base"));
        }
        if gap == 0 && run > 0 && moved == 0 {
            return Err(impossible("it continues the previous run and should be part of it"));
        }
        *before = Position {
            block: end_block,
            base_offset: base_offset.wrapping_add((end_block - first_block).wrapping_mul(block_len)),
        };
        Ok(MatchRun { range, base_offset })
    }
}

/// The position after the last run: the next block of the new content, and the offset in the base
/// at which that run would continue.
#[derive(Clone, Copy, Default)]
struct Position {
    block: u64,
    base_offset: u64,
}

impl Position {
    /// The expected offset of a block in the base if nothing was inserted or removed since the last
    /// run.
    fn expected_at(self, block: u64, block_len: u64) -> u64 {
        self.base_offset
            .wrapping_add((block - self.block).wrapping_mul(block_len))
    }
}

fn group_crc(header_crc: u32, number: u64, group: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&header_crc.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &number.to_le_bytes()), group)
}

/// Reads the group that begins with this run.
fn read_group(
    stream: &mut impl Read,
    header_crc: u32,
    first_run: u64,
    group: &mut Vec<u8>,
) -> Result<(), MatchesError> {
    let mut len = [0; 4];
    fill(stream, &mut len, first_run)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > GROUP_LEN_MAX {
        return Err(MatchesError::Impossible {
            run: first_run,
            reason: "its group is too long",
        });
    }
    group.resize(len, 0);
    fill(stream, group, first_run)?;
    let mut crc = [0; 4];
    fill(stream, &mut crc, first_run)?;
    if u32::from_le_bytes(crc) != group_crc(header_crc, first_run / GROUP_RUNS, group) {
        return Err(MatchesError::Checksum { run: first_run });
    }
    Ok(())
}

fn fill(stream: &mut impl Read, bytes: &mut [u8], runs: u64) -> Result<(), MatchesError> {
    stream.read_exact(bytes).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => MatchesError::Truncated { runs },
        _ => MatchesError::Io(error),
    })
}

fn array<const N: usize>(bytes: &[u8; HEADER_LEN], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

#[cfg(test)]
mod tests;
