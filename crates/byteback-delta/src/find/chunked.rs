//! Content-defined chunks as dsync finds them (SkySync, section 2.2.2), and SkySync-C, which
//! differs only in the source of its weak checksums ([`crate::chunks`]).
//!
//! 1. The client lists the chunks of the new content with weak checksums.
//! 2. The end that has the base lists its chunks, and pairs those of equal length and weak checksum
//!    ([`match_chunks`]); it makes strong checksums of the paired chunks only ([`prove_matches`]).
//! 3. The client makes strong checksums of its own bytes there and compares ([`ChunkFinder`]):
//!    equal chunks become copies, all others literals.
//!
//! *Choice among equal chunks* of the base: the one after the last one found, which continues a
//! copy; then the one at the same offset, which costs no extent; then the first.
//!
//! *Crafted lists* cost no more than others: of chunks with one key the table keeps one, and a
//! lookup examines a bounded number of slots. Segments of the same bytes of the base are hashed
//! once, and all together at most [`READS_PER_BASE`] times the bytes of the base. Chunks left out
//! are merely not found.

mod matching;

use byteback_extents::ByteRange;

use super::extents::Extents;
use super::{ExtentSink, FindStats};
use crate::chunks::{ChunkList, MatchAnswer, Segment, range_of};
use crate::strong::StrongHasher;

pub use matching::{ChunkRun, READS_PER_BASE, match_chunks, prove_matches};

/// The client's last step: the new content once more, beside its list and the answer.
///
/// Content is pushed in pieces, whose borders need not be those of before. Memory: one segment.
/// Neither the list nor the answer is believed: if the content has changed meanwhile, it is still
/// passed on as it is now. Unproven segments are the exception: they are believed, and a client
/// that takes them proves the whole.
pub struct ChunkFinder<'a, S> {
    list: &'a ChunkList,
    answer: &'a MatchAnswer,
    hasher: StrongHasher,
    extents: Extents<S>,
    /// The segment that the next byte is in or before, with its bytes in the new content.
    next: Option<(ByteRange, Segment)>,
    /// The number of the segment after that one.
    upcoming: usize,
    /// The bytes of the next segment so far; all before it were passed on.
    buffer: Vec<u8>,
    /// The holes in these bytes, counted from the content's start.
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
    /// The error of the sink.
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

    /// Adds a hole of `len_bytes`.
    ///
    /// # Errors
    /// The error of the sink.
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
            // The list had bytes here, as in every segment; a segment is short.
            self.holes.extend(ByteRange::from_offset_len(self.position(), now));
            self.buffer.resize(self.buffer.len() + now as usize, 0);
            self.end_buffered(now == room)?;
        }
        Ok(())
    }

    /// Takes the unproven segment at this position, which needs no bytes. Returns the number of
    /// bytes passed; 0 if bytes are needed here.
    ///
    /// # Errors
    /// The error of the sink.
    pub fn pass_unproven(&mut self) -> Result<u64, S::Error> {
        match self.room() {
            (true, room) if self.is_unproven() => {
                self.copy_unproven(room, room)?;
                Ok(room)
            }
            _ => Ok(0),
        }
    }

    /// Passes `len_bytes` of the new content, which are known by other means to equal the base from
    /// `base_offset` on.
    ///
    /// # Errors
    /// The error of the sink.
    pub fn push_known(&mut self, len_bytes: u64, base_offset: u64) -> Result<(), S::Error> {
        self.give_up_segment()?;
        self.extents.copy(len_bytes, base_offset)?;
        while self.next.is_some_and(|(range, _)| range.start() < self.extents.end()) {
            self.advance();
        }
        Ok(())
    }

    /// Ends the new content; returns the sink and the statistics.
    ///
    /// # Errors
    /// The error of the sink.
    pub fn finish(mut self) -> Result<(S, FindStats), S::Error> {
        self.give_up_segment()?;
        let (sink, mut stats) = self.extents.finish()?;
        stats.examined_bytes = self.examined_bytes;
        stats.strong_bytes = self.strong_bytes;
        Ok((sink, stats))
    }

    /// The offset of the next byte.
    pub fn position(&self) -> u64 {
        self.extents.end() + self.buffer.len() as u64
    }

    /// Whether the next byte is in a segment, and the number of bytes up to that segment's end or
    /// the next one's start.
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

    /// Takes the next bytes from the base unproven; the segment still has `room` bytes.
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

    /// Ends the segment if the buffer holds all of it.
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

    /// Passes on the segment's bytes: as a copy if they equal the base's.
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

    /// Passes on an incomplete segment as literals.
    fn give_up_segment(&mut self) -> Result<(), S::Error> {
        let bytes = std::mem::take(&mut self.buffer);
        self.extents.literal_with_holes(&bytes, &self.holes)?;
        self.holes.clear();
        Ok(())
    }

    /// Moves on to the next segment.
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
