//! The list of a content's chunks, and its construction from the bytes themselves.
//!
//! A range that the list leaves out between two chunks is a *gap*: a long hole, which costs no
//! work, or a range excluded from the search because it is known by other means to be equal or
//! different. A chunk ends at a gap, and the next one begins after it. A few chunks later the
//! borders agree again with those of the content without the gap: hence some *slack* is examined
//! around such ranges ([`with_slack`](super::with_slack)).
//!
//! A short hole gives the same list as the zeros that it stands for. A long hole that the other end
//! has as zeros costs a chunk at either side.

use std::io;

use byteback_extents::{ByteRange, ExtentSet};

use super::ChunkParams;
use super::cut::Chunker;
use crate::apply::Base;
use crate::crc::CrcKind;
use crate::room::make_room;

/// The most chunks in a list.
pub const CHUNKS_MAX: u64 = 1 << 24;

/// The number of bytes read at once.
pub(super) const READ_LEN: usize = 256 * 1024;

/// Zeros that stand for a short hole, a piece at a time.
static ZEROS: [u8; 16 * 1024] = [0; 16 * 1024];

/// A chunk of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The range of the chunk in the content.
    pub range: ByteRange,
    /// The weak checksum of the chunk, of the list's kind.
    pub weak: u64,
}

/// The chunks of a content, ascending, without those in gaps. Memory: 20 bytes per chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkList {
    params: ChunkParams,
    kind: CrcKind,
    content_len_bytes: u64,
    starts: Vec<u64>,
    lens: Vec<u32>,
    weak: Vec<u64>,
}

impl ChunkList {
    pub(super) fn new(params: ChunkParams, kind: CrcKind) -> Self {
        Self {
            params,
            kind,
            content_len_bytes: 0,
            starts: Vec::new(),
            lens: Vec::new(),
            weak: Vec::new(),
        }
    }

    /// The chunk lengths with which the content was cut.
    #[must_use]
    pub fn params(&self) -> ChunkParams {
        self.params
    }

    /// The kind of the weak checksums.
    #[must_use]
    pub fn kind(&self) -> CrcKind {
        self.kind
    }

    /// The length of the content.
    #[must_use]
    pub fn content_len_bytes(&self) -> u64 {
        self.content_len_bytes
    }

    /// The number of chunks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there is no chunk.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// A chunk by its number; `None` if there is no such chunk.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Chunk> {
        let range = ByteRange::from_offset_len(*self.starts.get(index)?, u64::from(*self.lens.get(index)?))?;
        let weak = *self.weak.get(index)?;
        Some(Chunk { range, weak })
    }

    /// The chunks in their order.
    pub fn iter(&self) -> impl Iterator<Item = Chunk> + '_ {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// Makes room for `more` chunks in a list that is announced to have `chunks`.
    pub(super) fn make_room(&mut self, more: usize, chunks: u64) {
        make_room(&mut self.starts, more, chunks);
        make_room(&mut self.lens, more, chunks);
        make_room(&mut self.weak, more, chunks);
    }

    /// Adds a chunk after all others; it has at most the maximum length.
    pub(super) fn push(&mut self, range: ByteRange, weak: u64) {
        self.starts.push(range.start());
        // At most `MAX_LEN_MAX`.
        self.lens.push(range.len_bytes() as u32);
        self.weak.push(weak);
    }

    /// Sets the content's length; the bytes after the last chunk belong to no chunk.
    pub(super) fn set_content_len(&mut self, len_bytes: u64) {
        self.content_len_bytes = len_bytes;
    }
}

/// The cost of a list, in bytes of the content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListStats {
    /// Bytes searched for borders, or skipped because no border can lie there; all of them were
    /// read.
    pub examined_bytes: u64,
    /// Bytes summed for weak checksums; fewer than those examined where checksums of blocks are
    /// known.
    pub summed_bytes: u64,
    /// Bytes in gaps, not examined.
    pub gap_bytes: u64,
}

/// Lists the chunks of a content that is pushed piece by piece; the list is the same whatever the
/// pieces. Memory: the list.
#[derive(Debug)]
pub struct ChunkLister {
    list: ChunkList,
    chunker: Chunker,
    /// The offset of the current chunk.
    start: u64,
    /// The checksum of the current chunk's bytes so far.
    weak: u64,
    /// The length of a pending hole, which may go on: it ends where the next bytes begin.
    hole_len: u64,
    stats: ListStats,
}

impl ChunkLister {
    /// Begins at the first byte of a content.
    #[must_use]
    pub fn new(params: ChunkParams, kind: CrcKind) -> Self {
        Self {
            list: ChunkList::new(params, kind),
            chunker: Chunker::new(params),
            start: 0,
            weak: kind.of(&[]),
            hole_len: 0,
            stats: ListStats::default(),
        }
    }

    /// Adds the next bytes of the content.
    pub fn push(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.end_hole();
            self.add(bytes);
        }
    }

    /// Adds a hole of `len_bytes`.
    pub fn push_hole(&mut self, len_bytes: u64) {
        self.hole_len = self.hole_len.saturating_add(len_bytes);
    }

    /// Skips `len_bytes` that are excluded from the search.
    pub fn skip(&mut self, len_bytes: u64) {
        if len_bytes > 0 {
            self.end_hole();
            self.gap(len_bytes);
        }
    }

    /// The number of bytes of the content so far.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.start
            .saturating_add(self.chunker.len_bytes() as u64)
            .saturating_add(self.hole_len)
    }

    /// The number of chunks that ended so far.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.list.len()
    }

    /// Ends the content.
    #[must_use]
    pub fn finish(mut self) -> (ChunkList, ListStats) {
        self.end_hole();
        self.end_chunk(self.chunker.len_bytes() as u64);
        self.list.set_content_len(self.start);
        (self.list, self.stats)
    }

    fn add(&mut self, mut bytes: &[u8]) {
        self.stats.examined_bytes += bytes.len() as u64;
        self.stats.summed_bytes += bytes.len() as u64;
        let kind = self.list.kind;
        loop {
            let begun = self.chunker.len_bytes();
            let cut = self.chunker.next_cut(bytes);
            let (now, later) = bytes.split_at(cut.unwrap_or(bytes.len()));
            self.weak = match begun {
                0 => kind.of(now),
                _ => kind.append(self.weak, now),
            };
            if cut.is_none() {
                return;
            }
            self.end_chunk((begun + now.len()) as u64);
            bytes = later;
        }
    }

    /// Ends the current chunk, which has `len_bytes`.
    fn end_chunk(&mut self, len_bytes: u64) {
        if let Some(range) = ByteRange::from_offset_len(self.start, len_bytes) {
            self.list.push(range, self.weak);
            self.start = range.end();
        }
        self.chunker.restart();
        self.weak = self.list.kind.of(&[]);
    }

    fn end_hole(&mut self) {
        let mut left = std::mem::take(&mut self.hole_len);
        if left >= self.list.params.hole_len_min() {
            return self.gap(left);
        }
        while left > 0 {
            let now = left.min(ZEROS.len() as u64);
            self.add(&ZEROS[..now as usize]);
            left -= now;
        }
    }

    fn gap(&mut self, len_bytes: u64) {
        self.end_chunk(self.chunker.len_bytes() as u64);
        self.start = self.start.saturating_add(len_bytes);
        self.stats.gap_bytes += len_bytes;
    }
}

/// A piece of a content that is being read.
pub(super) enum Piece<'a> {
    /// Bytes that were read.
    Bytes(&'a [u8]),
    /// A hole of this length, in bytes.
    Hole(u64),
    /// The length of an unexamined range, in bytes.
    Skipped(u64),
}

/// Reads the ranges `look_at` of a content, or everything if `None`, and passes the whole content
/// to `take`, in order.
pub(super) fn read_pieces(
    content: &(impl Base + ?Sized),
    look_at: Option<&ExtentSet>,
    mut take: impl FnMut(Piece<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let len_bytes = content.len_bytes()?;
    let Some(all) = ByteRange::new(0, len_bytes) else {
        return Ok(());
    };
    let mut buffer = vec![0; READ_LEN.min(usize::try_from(len_bytes).unwrap_or(READ_LEN))];
    let mut at = 0;
    let ranges: Vec<ByteRange> = match look_at {
        Some(set) => set.iter_within(all).collect(),
        None => vec![all],
    };
    for range in ranges {
        if at < range.start() {
            take(Piece::Skipped(range.start() - at))?;
        }
        at = range.start();
        while let Some(rest) = ByteRange::new(at, range.end()) {
            let data = content.next_data(rest)?.and_then(|data| data.intersect(rest));
            let data_start = data.map_or(rest.end(), ByteRange::start);
            if at < data_start {
                take(Piece::Hole(data_start - at))?;
            }
            at = data_start;
            while let Some(rest) = data.and_then(|data| ByteRange::new(at, data.end())) {
                let buffer = &mut buffer[..rest.len_bytes().min(READ_LEN as u64) as usize];
                content.read_range(at, buffer)?;
                take(Piece::Bytes(buffer))?;
                at += buffer.len() as u64;
            }
        }
    }
    match len_bytes - at {
        0 => Ok(()),
        rest => take(Piece::Skipped(rest)),
    }
}

/// Lists the chunks of a content with random access: those of the ranges `look_at`, or of
/// everything. Memory: a buffer, and the list.
///
/// # Errors
/// If the content cannot be read, or has more than [`CHUNKS_MAX`] chunks.
pub fn list_chunks(
    content: &(impl Base + ?Sized),
    look_at: Option<&ExtentSet>,
    params: ChunkParams,
    kind: CrcKind,
) -> io::Result<(ChunkList, ListStats)> {
    let mut lister = ChunkLister::new(params, kind);
    read_pieces(content, look_at, |piece| {
        match piece {
            Piece::Bytes(bytes) => lister.push(bytes),
            Piece::Hole(len_bytes) => lister.push_hole(len_bytes),
            Piece::Skipped(len_bytes) => lister.skip(len_bytes),
        }
        check_number(lister.list.len())
    })?;
    Ok(lister.finish())
}

/// Checks that the number of chunks is within the format's limit.
pub(super) fn check_number(chunks: usize) -> io::Result<()> {
    if chunks as u64 <= CHUNKS_MAX {
        return Ok(());
    }
    let message = format!("the content has more than {CHUNKS_MAX} chunks; cut it into longer ones");
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

#[cfg(test)]
mod tests;
