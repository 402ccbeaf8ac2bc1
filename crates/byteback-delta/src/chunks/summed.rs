//! The list of a content whose storage keeps CRCs of its blocks (SkySync, sections 3.2.1 and
//! 3.3.1).
//!
//! Borders still need the bytes; the checksums do not: the CRC of a chunk follows from those of the
//! blocks inside it, and only the bytes between a chunk border and the nearest block border are
//! summed, a quarter of a block on average. These bytes are in the buffer that was searched for
//! borders; where a block lies across two buffers, they are read once more.
//!
//! The bytes read and the CRCs must belong to the same content, which cannot be checked here: if
//! they do not, chunks get wrong checksums and are not found, or found and not proven.

use std::io;

use byteback_extents::{ByteRange, ExtentSet};

use super::ChunkParams;
use super::cut::Chunker;
use super::list::{ChunkList, ListStats, Piece, check_number, read_pieces};
use crate::apply::Base;
use crate::crc::{BlockCrcs, RangeCrcs};

/// As [`list_chunks`](super::list_chunks), with weak checksums computed from those of the content's
/// blocks; the list is the same.
///
/// # Errors
/// If the content cannot be read, is shorter than the content that the checksums belong to, or has
/// too many chunks.
pub fn list_chunks_with_crcs<B: BlockCrcs>(
    content: &(impl Base + ?Sized),
    look_at: Option<&ExtentSet>,
    params: ChunkParams,
    crcs: &mut RangeCrcs<B>,
) -> io::Result<(ChunkList, ListStats)> {
    let read_before = crcs.read_bytes();
    let mut walk = Walk {
        list: ChunkList::new(params, crcs.blocks().layout().kind),
        chunker: Chunker::new(params),
        start: 0,
        end: 0,
        hole_len: 0,
        stats: ListStats::default(),
    };
    read_pieces(content, look_at, |piece| {
        match piece {
            Piece::Bytes(bytes) => {
                walk.end_hole(content, crcs)?;
                walk.add(bytes, content, crcs)?;
            }
            Piece::Hole(len_bytes) => walk.hole_len += len_bytes,
            Piece::Skipped(len_bytes) => {
                walk.end_hole(content, crcs)?;
                walk.gap(len_bytes, content, crcs)?;
            }
        }
        check_number(walk.list.len())
    })?;
    walk.end_hole(content, crcs)?;
    walk.end_chunk(walk.end, content, crcs)?;
    walk.list.set_content_len(walk.end);
    walk.stats.summed_bytes = crcs.read_bytes() - read_before;
    Ok((walk.list, walk.stats))
}

struct Walk {
    list: ChunkList,
    chunker: Chunker,
    /// The offset of the current chunk.
    start: u64,
    /// The offset of the next bytes, not counting a pending hole.
    end: u64,
    hole_len: u64,
    stats: ListStats,
}

impl Walk {
    fn add<B: BlockCrcs>(
        &mut self,
        bytes: &[u8],
        content: &(impl Base + ?Sized),
        crcs: &mut RangeCrcs<B>,
    ) -> io::Result<()> {
        let buffer = Buffer {
            start: self.end,
            bytes,
            content,
        };
        self.stats.examined_bytes += bytes.len() as u64;
        let mut rest = bytes;
        while let Some(len) = self.chunker.next_cut(rest) {
            self.end += len as u64;
            rest = &rest[len..];
            self.end_chunk(self.end, &buffer, crcs)?;
        }
        self.end += rest.len() as u64;
        Ok(())
    }

    /// Ends the current chunk at `end`.
    fn end_chunk<B: BlockCrcs>(
        &mut self,
        end: u64,
        content: &(impl Base + ?Sized),
        crcs: &mut RangeCrcs<B>,
    ) -> io::Result<()> {
        if let Some(range) = ByteRange::new(self.start, end) {
            let weak = crcs.crc_of(range, content)?;
            self.list.push(range, weak);
        }
        self.start = end;
        self.chunker.restart();
        Ok(())
    }

    fn end_hole<B: BlockCrcs>(&mut self, content: &(impl Base + ?Sized), crcs: &mut RangeCrcs<B>) -> io::Result<()> {
        let mut left = std::mem::take(&mut self.hole_len);
        if left >= self.list.params().hole_len_min() {
            return self.gap(left, content, crcs);
        }
        let zeros = [0; 4096];
        while left > 0 {
            let now = left.min(zeros.len() as u64);
            self.add(&zeros[..now as usize], content, crcs)?;
            left -= now;
        }
        Ok(())
    }

    fn gap<B: BlockCrcs>(
        &mut self,
        len_bytes: u64,
        content: &(impl Base + ?Sized),
        crcs: &mut RangeCrcs<B>,
    ) -> io::Result<()> {
        self.end_chunk(self.end, content, crcs)?;
        self.end += len_bytes;
        self.start = self.end;
        self.stats.gap_bytes += len_bytes;
        Ok(())
    }
}

/// A content with some of its bytes in memory.
struct Buffer<'a, C: ?Sized> {
    start: u64,
    bytes: &'a [u8],
    content: &'a C,
}

impl<C: Base + ?Sized> Base for Buffer<'_, C> {
    fn len_bytes(&self) -> io::Result<u64> {
        self.content.len_bytes()
    }

    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let inside = offset
            .checked_sub(self.start)
            .and_then(|skip| usize::try_from(skip).ok())
            .and_then(|skip| self.bytes.get(skip..skip.checked_add(buffer.len())?));
        match inside {
            Some(bytes) => {
                buffer.copy_from_slice(bytes);
                Ok(())
            }
            None => self.content.read_range(offset, buffer),
        }
    }
}

#[cfg(test)]
mod tests;
