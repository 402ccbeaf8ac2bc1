//! Content-defined chunks as dsync looks for them (SkySync, section 2.2.2), and SkySync-C, which
//! differs in where weak checksums come from ([`crate::chunks`]) and in nothing else.
//!
//! 1. The client lists the chunks of the new content with weak checksums.
//! 2. The end that has the base lists its chunks, and pairs those of equal length and weak checksum
//!    ([`match_chunks`]); it makes strong checksums of what it paired, and of nothing else
//!    ([`prove_matches`]).
//! 3. The client makes strong checksums of its own bytes there and compares ([`ChunkFinder`]):
//!    equal is a copy, all else is literal.
//!
//! *Which chunk of the base*, if several are equal: the one behind the last one found, so that one
//! copy goes on; the one at the same offset, which costs no extent; the first.
//!
//! *Crafted lists* cost as much as others: of chunks with one key the table keeps one, and a lookup
//! sees a bounded number of slots. Segments of the same bytes of the base are hashed once, and all
//! together not more than [`READS_PER_BASE`] times as many bytes as the base has. What is left out
//! is only not found.

mod matching;

use byteback_extents::ByteRange;

use super::extents::Extents;
use super::{ExtentSink, FindStats};
use crate::chunks::{ChunkList, MatchAnswer, Segment, range_of};
use crate::strong::StrongHasher;

pub use matching::{ChunkRun, READS_PER_BASE, match_chunks, prove_matches};

/// The client's last step: the new content once more, beside its list and the answer.
///
/// Content is pushed in pieces, whose borders need not be those of before. Memory: one segment. The
/// list is believed as little as the answer: should the content be another one meanwhile, it is
/// still told as it is now. Unproven segments are the exception: they are believed, and who takes
/// them proves the whole.
pub struct ChunkFinder<'a, S> {
    list: &'a ChunkList,
    answer: &'a MatchAnswer,
    hasher: StrongHasher,
    extents: Extents<S>,
    /// The segment that the next byte is in or before, with its bytes in the new content.
    next: Option<(ByteRange, Segment)>,
    /// Number of the segment behind that one.
    upcoming: usize,
    /// Bytes of the next segment that came, as all before were told.
    buffer: Vec<u8>,
    /// Holes in them, counted from the content's start.
    holes: Vec<ByteRange>,
    examined_bytes: u64,
    strong_bytes: u64,
}

impl<'a, S: ExtentSink> ChunkFinder<'a, S> {
    /// Begins at the first byte of the new content, whose list was answered.
    pub fn new(list: &'a ChunkList, answer: &'a MatchAnswer, sink: S) -> Self {
        let mut finder = Self {
            list,
            answer,
            hasher: answer.params().hasher(),
            extents: Extents::new(sink),
            next: None,
            upcoming: 0,
            buffer: Vec::new(),
            holes: Vec::new(),
            examined_bytes: 0,
            strong_bytes: 0,
        };
        finder.advance();
        finder
    }

    /// Adds the next bytes of the new content.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<(), S::Error> {
        self.examined_bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            let (inside, room) = self.room();
            let (now, later) = bytes.split_at(bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX)));
            bytes = later;
            match inside {
                false => self.extents.literal(now)?,
                true if self.is_unproven() => self.copy_unproven(now.len() as u64, room)?,
                true if self.buffer.is_empty() && now.len() as u64 == room => self.end_segment(now)?,
                true => {
                    self.buffer.extend_from_slice(now);
                    self.end_buffered(now.len() as u64 == room)?;
                }
            }
        }
        Ok(())
    }

    /// Adds a hole of so many bytes.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn push_hole(&mut self, mut len_bytes: u64) -> Result<(), S::Error> {
        while len_bytes > 0 {
            let (inside, room) = self.room();
            let now = len_bytes.min(room);
            len_bytes -= now;
            if !inside || self.is_unproven() {
                self.extents.zero(now)?;
                if inside && now == room {
                    self.advance();
                }
                continue;
            }
            // The list had bytes here, as it has in every segment; a segment is short.
            self.holes.extend(ByteRange::from_offset_len(self.position(), now));
            self.buffer.resize(self.buffer.len() + now as usize, 0);
            self.end_buffered(now == room)?;
        }
        Ok(())
    }

    /// Takes what the answer has here that needs no proof, and so no bytes: the number of bytes
    /// that are passed, none if bytes are needed.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn pass_unproven(&mut self) -> Result<u64, S::Error> {
        match self.room() {
            (true, room) if self.is_unproven() => {
                self.copy_unproven(room, room)?;
                Ok(room)
            }
            _ => Ok(0),
        }
    }

    /// Passes so many bytes of the new content, which are known otherwise to equal the base from
    /// `base_offset` on.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn push_known(&mut self, len_bytes: u64, base_offset: u64) -> Result<(), S::Error> {
        self.give_up_segment()?;
        self.extents.copy(len_bytes, base_offset)?;
        while self.next.is_some_and(|(range, _)| range.start() < self.extents.end()) {
            self.advance();
        }
        Ok(())
    }

    /// Ends the new content; answers the sink and what it took.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn finish(mut self) -> Result<(S, FindStats), S::Error> {
        self.give_up_segment()?;
        let (sink, mut stats) = self.extents.finish()?;
        stats.examined_bytes = self.examined_bytes;
        stats.strong_bytes = self.strong_bytes;
        Ok((sink, stats))
    }

    /// The offset of the next byte that comes.
    pub fn position(&self) -> u64 {
        self.extents.end() + self.buffer.len() as u64
    }

    /// Whether the next byte is in a segment, and how many bytes there are up to its end, or up to
    /// where the next one begins.
    fn room(&self) -> (bool, u64) {
        let position = self.position();
        match self.next {
            None => (false, u64::MAX - position),
            Some((range, _)) if position < range.start() => (false, range.start() - position),
            Some((range, _)) => (true, range.end() - position),
        }
    }

    fn is_unproven(&self) -> bool {
        self.next.is_some_and(|(_, segment)| !segment.is_proven())
    }

    /// The next bytes, of `room` that the segment still has, are taken as the base's.
    fn copy_unproven(&mut self, len_bytes: u64, room: u64) -> Result<(), S::Error> {
        if let Some((range, segment)) = self.next {
            let base_offset = segment.base_offset + (range.len_bytes() - room);
            self.extents.copy(len_bytes, base_offset)?;
        }
        if len_bytes == room {
            self.advance();
        }
        Ok(())
    }

    /// The buffer holds all of the segment, or not yet.
    fn end_buffered(&mut self, is_whole: bool) -> Result<(), S::Error> {
        if is_whole {
            let bytes = std::mem::take(&mut self.buffer);
            self.end_segment(&bytes)?;
            self.buffer = bytes;
            self.buffer.clear();
            self.holes.clear();
        }
        Ok(())
    }

    /// These are the bytes of the segment: a copy if they are the base's.
    fn end_segment(&mut self, bytes: &[u8]) -> Result<(), S::Error> {
        let Some((_, segment)) = self.next else {
            return self.extents.literal(bytes);
        };
        self.strong_bytes += bytes.len() as u64;
        if self.answer.is_strong_of(&segment, &self.hasher.of(bytes)) {
            self.extents.copy(bytes.len() as u64, segment.base_offset)?;
        } else {
            self.extents.literal_with_holes(bytes, &self.holes)?;
        }
        self.advance();
        Ok(())
    }

    /// What came of a segment is all that comes.
    fn give_up_segment(&mut self) -> Result<(), S::Error> {
        let bytes = std::mem::take(&mut self.buffer);
        self.extents.literal_with_holes(&bytes, &self.holes)?;
        self.holes.clear();
        Ok(())
    }

    /// On to the next segment.
    fn advance(&mut self) {
        let segment = self.answer.segments().get(self.upcoming).copied();
        self.upcoming += 1;
        self.next = segment.and_then(|segment| {
            let range = range_of(self.list, segment.first_chunk, segment.chunks)?;
            Some((range, segment))
        });
    }
}

#[cfg(test)]
mod tests;
