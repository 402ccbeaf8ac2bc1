//! Local comparison: both versions are local, so bytes are compared and no strong checksums are
//! needed (DeltaCFS, section III-A).
//!
//! Words: a *shift* is the offset of a byte in the base, less its offset in the new content; bytes
//! in place have the shift 0. A *piece* is the range read and compared at once.
//!
//! Ways to find a piece, the cheapest first:
//! 1. At the shift of the last match, then in place. If at most a sixteenth differs
//!    ([`SCATTERED`]), the search ends there: the differing bytes are literals, to the byte. So
//!    equal contents, appended ones and scattered overwrites cost one comparison.
//! 2. Otherwise rsync's search: a window moves over the piece, and its weak checksum is looked up
//!    among those of the base's blocks. A block found by it is compared, and the match is extended
//!    both ways byte by byte, so that an insertion costs its own length. Where a match ends, it may
//!    resume a little later: this is tried before a window is summed.
//! 3. Bytes that were not found are compared in place once more, in cells of [`CELL_LEN`].
//!
//! The base's blocks are summed before the first search. Before that, the ends of both contents are
//! compared: an insertion or a deletion leaves nothing to search after it, though the very end may
//! differ again, as in a container format with its index at the end ([`TAIL_LEN_MAX`]). If the
//! searched range is small beside the base ([`WHOLE_BASE`]), only the part of the base between the
//! equal ends is summed.
//!
//! *Holes* of the new content stay holes. Long ones are not examined; short ones are treated as
//! ordinary zeros, unless they end up in a literal. Holes of the base are not summed.
//!
//! *Memory*: a few pieces, and a table of at most [`TABLE_BLOCKS_MAX`] blocks, whose block length
//! grows with the base.
//!
//! *Crafted contents* whose windows have a block's checksum but not its bytes would cost a
//! comparison each. Failed comparisons draw on an account, as in `rolling`: every byte passed adds
//! one to it. While it is empty, windows are passed unchecked.
//!
//! *Contents that change meanwhile*: each byte of the new content is passed on as it was read, or
//! as a copy after it was found equal. If either content is written to, the extents may describe a
//! mixture that never existed; a caller that cannot exclude this compares a digest.

mod table;

use std::io;

use byteback_extents::ByteRange;

use super::extents::Extents;
use super::{ExtentSink, FindStats, HOLE_LEN_MIN};
use crate::apply::Base;
use crate::weak::{Rolling, RollingSum};
use table::BaseTable;

/// The least number of bytes read and compared at once.
const PIECE_LEN: usize = 256 * 1024;

/// The number of bytes compared as one unit.
const CELL_LEN: usize = 64;

/// A piece is taken as it lies if at most one cell in this many differs.
const SCATTERED: usize = 16;

/// The fewest equal bytes worth an extent of their own at another shift.
const RUN_LEN_MIN: usize = 32;

/// All of the base is summed if this many times the searched length reaches the base's length.
const WHOLE_BASE: u64 = 24;

/// The longest tail: a range at the very end that differs here and there, after a longer common
/// range.
const TAIL_LEN_MAX: u64 = PIECE_LEN as u64;

/// The shortest tail that is tried.
const TAIL_LEN_MIN: u64 = 4096;

/// The most blocks of the base kept in the table.
const TABLE_BLOCKS_MAX: u64 = 1 << 20;

/// The shortest and the longest block.
const BLOCK_LEN_MIN: u64 = 64;
const BLOCK_LEN_MAX: u64 = 16 * 1024 * 1024;

/// Blocks grow with the square root of the base up to this length; beyond, only as the table's size
/// requires.
const BLOCK_LEN_ENOUGH: u64 = 4096;

/// The most extents of a long base that are examined to find out how much of it is data.
const COUNTED_EXTENTS_MAX: usize = 4096;

/// The number of bytes of a candidate read before the rest.
const FIRST_LOOK_LEN: usize = 256;

/// The number of bytes compared at once while a match is extended, at first and at most.
const STEP_FIRST_LEN: usize = 512;
const STEP_LEN: usize = 16 * 1024;

/// The distance after a match in which its continuation is searched, at first and at most.
const RESUME_FIRST_LEN: usize = 512;
const RESUME_LEN: usize = 4096;

/// The shortest continuation.
const RESUME_RUN_LEN_MIN: usize = 128;

/// A continuation must be this many times as long as the differing bytes before it.
const RESUMED: usize = 4;

/// The number of windows that may be compared in vain before the account must be refilled.
const VAIN_WINDOWS: u64 = 16;

/// Comparing two contents failed.
#[derive(Debug, thiserror::Error)]
pub enum LocalError<E> {
    /// The base cannot be read.
    #[error("cannot read the base at {range}")]
    ReadBase {
        /// The range in the base.
        range: ByteRange,
        /// The error of the base; `UnexpectedEof` if it became shorter.
        source: io::Error,
    },
    /// The new content cannot be read.
    #[error("cannot read the new content at {range}")]
    ReadNew {
        /// The range in the new content.
        range: ByteRange,
        /// The error of the content; `UnexpectedEof` if it became shorter.
        source: io::Error,
    },
    /// A length cannot be determined.
    #[error("cannot determine the length of the base or the new content")]
    Len(#[source] io::Error),
    /// The sink failed.
    #[error("cannot store the extents found")]
    Sink(E),
}

/// Finds `new` in `base` by comparing bytes; see the module's header. Returns the sink and the
/// statistics.
///
/// # Errors
/// If a content cannot be read, or those of the sink.
pub fn find_local<S: ExtentSink>(
    base: &(impl Base + ?Sized),
    new: &(impl Base + ?Sized),
    sink: S,
) -> Result<(S, FindStats), LocalError<S::Error>> {
    let mut comparison = Comparison::new(base, new, Extents::new(sink)).map_err(LocalError::Len)?;
    while comparison.next_piece()? {}
    comparison.extents.finish().map_err(LocalError::Sink)
}

/// The state of a comparison.
struct Comparison<'c, B: ?Sized, N: ?Sized, S> {
    base: &'c B,
    new: &'c N,
    base_len: u64,
    new_len: u64,
    /// The end of the search: after it comes a common end that was found already.
    new_end: u64,
    /// The length of the tail: this part of the common end may differ here and there.
    tail_len: u64,
    block_len: usize,
    piece_len: usize,
    extents: Extents<S>,
    /// The new content from `buffer_start` on. Bytes from `done` to `at` were searched in vain, but
    /// may belong to a match after them; all before `done` was passed on.
    buffer: Vec<u8>,
    buffer_start: u64,
    done: usize,
    at: usize,
    /// From the buffer's end up to here, the new content is known to be data.
    data_end: u64,
    /// Short holes in the buffer.
    holes: Vec<ByteRange>,
    /// The shift of the last match.
    shift: i64,
    /// The bytes of the base under comparison.
    piece: Vec<u8>,
    /// A second buffer, for comparisons before `at` and at the ends.
    scratch: Vec<u8>,
    table: Option<BaseTable>,
    /// The number of bytes that may be compared in vain.
    account: u64,
}

type Compared<T, S> = Result<T, LocalError<<S as ExtentSink>::Error>>;

impl<'c, B: Base + ?Sized, N: Base + ?Sized, S: ExtentSink> Comparison<'c, B, N, S> {
    fn new(base: &'c B, new: &'c N, extents: Extents<S>) -> io::Result<Self> {
        let (base_len, new_len) = (base.len_bytes()?, new.len_bytes()?);
        // At most 16 MiB.
        let block_len = block_len(data_len_at_most(base, base_len)?) as usize;
        Ok(Self {
            base,
            new,
            base_len,
            new_len,
            new_end: new_len,
            tail_len: 0,
            block_len,
            piece_len: PIECE_LEN.max(4 * block_len),
            extents,
            buffer: Vec::new(),
            buffer_start: 0,
            done: 0,
            at: 0,
            data_end: 0,
            holes: Vec::new(),
            shift: 0,
            piece: Vec::new(),
            scratch: Vec::new(),
            table: None,
            account: VAIN_WINDOWS * block_len as u64,
        })
    }

    /// Compares a piece; returns false at the end.
    fn next_piece(&mut self) -> Compared<bool, S> {
        let hole = self.fill()?;
        if self.at == self.buffer.len() {
            self.give_up(self.at)?;
            if let Some(hole) = hole {
                self.tell_hole(hole)?;
                return Ok(true);
            }
            // A common end that was found before the search.
            let rest = self.new_len - self.new_end;
            let from = self.base_len.saturating_sub(rest);
            self.extents
                .copy(rest - self.tail_len, from)
                .map_err(LocalError::Sink)?;
            self.emit_tail()?;
            return Ok(false);
        }
        if self.follow(self.shift)? || (self.shift != 0 && self.follow(0)?) {
            return Ok(true);
        }
        self.search()?;
        Ok(true)
    }

    /// Reads on until the buffer holds a piece and a window after `at`, or the next long hole or
    /// the end comes. Returns that hole.
    fn fill(&mut self) -> Compared<Option<ByteRange>, S> {
        if self.done >= self.piece_len {
            self.buffer.drain(..self.done);
            self.buffer_start += self.done as u64;
            self.at -= self.done;
            self.done = 0;
            let start = self.buffer_start;
            self.holes.retain(|hole| hole.end() > start);
        }
        while self.buffer.len() - self.at < self.piece_len + self.block_len {
            let end = self.offset(self.buffer.len());
            let Some(left) = ByteRange::new(end, self.new_end) else {
                return Ok(None);
            };
            if self.data_end <= end {
                let error = |source| LocalError::ReadNew { range: left, source };
                let data = self.new.next_data(left).map_err(error)?;
                let data = data.and_then(|data| data.intersect(left));
                let data_start = data.map_or(self.new_end, |data| data.start());
                if let Some(hole) = ByteRange::new(end, data_start) {
                    if hole.len_bytes() >= HOLE_LEN_MIN {
                        return Ok(Some(hole));
                    }
                    self.holes.push(hole);
                }
                self.data_end = data.map_or(self.new_end, |data| data.end());
            }
            let room = (self.at + self.piece_len + self.block_len - self.buffer.len()) as u64;
            let to = self.data_end.min(self.new_end).min(end + room);
            let Some(range) = ByteRange::new(end, to) else {
                return Ok(None);
            };
            let filled = self.buffer.len();
            // At most a piece and a block.
            self.buffer.resize(filled + range.len_bytes() as usize, 0);
            self.new
                .read_range(end, &mut self.buffer[filled..])
                .map_err(|source| LocalError::ReadNew { range, source })?;
            self.extents.stats.examined_bytes += range.len_bytes();
        }
        Ok(None)
    }

    /// Compares the tail, which ends the content.
    fn emit_tail(&mut self) -> Compared<(), S> {
        let len = self.tail_len;
        let Some(range) = ByteRange::from_offset_len(self.new_len - len, len) else {
            return Ok(());
        };
        self.holes.clear();
        self.buffer_start = range.start();
        // At most a piece.
        self.buffer.resize(len as usize, 0);
        self.new
            .read_range(range.start(), &mut self.buffer)
            .map_err(|source| LocalError::ReadNew { range, source })?;
        (self.done, self.at) = (self.buffer.len(), self.buffer.len());
        let from = self.base_len - len;
        self.read_base(from, len as usize)?;
        let piece = std::mem::take(&mut self.piece);
        self.tell_compared(0, &piece, from)?;
        self.piece = piece;
        Ok(())
    }

    /// Passes on a long hole that begins at the buffer's end; the buffer was passed on.
    fn tell_hole(&mut self, hole: ByteRange) -> Compared<(), S> {
        let mut in_base_too = hole.end() <= self.base_len;
        if in_base_too {
            let data = self.base.next_data(hole);
            in_base_too = data
                .map_err(|source| LocalError::ReadBase { range: hole, source })?
                .is_none();
        }
        // A hole that is in place costs no extent.
        let reported = match in_base_too {
            true => self.extents.copy(hole.len_bytes(), hole.start()),
            false => self.extents.zero(hole.len_bytes()),
        };
        self.buffer.clear();
        self.holes.clear();
        self.buffer_start = hole.end();
        (self.done, self.at) = (0, 0);
        reported.map_err(LocalError::Sink)
    }

    /// The offset of a byte of the buffer in the new content.
    fn offset(&self, at: usize) -> u64 {
        self.buffer_start + at as u64
    }

    /// The offset in the base of a byte of the buffer at this shift, and the number of bytes of the
    /// base from there on.
    fn in_base(&self, at: usize, shift: i64) -> Option<(u64, u64)> {
        let from = self.offset(at).checked_add_signed(shift)?;
        let left = self.base_len.checked_sub(from)?;
        (left > 0).then_some((from, left))
    }

    /// Compares the piece at `at` with the base at this shift. Takes all of it if it is equal up to
    /// scattered differences; otherwise takes only the first equal bytes and returns false.
    fn follow(&mut self, shift: i64) -> Compared<bool, S> {
        let Some((from, left)) = self.in_base(self.at, shift) else {
            return Ok(false);
        };
        let len = (self.buffer.len() - self.at).min(self.piece_len);
        let len = usize::try_from(left).map_or(len, |left| len.min(left));
        self.read_base(from, len)?;
        let new = &self.buffer[self.at..self.at + len];
        let equal = common_prefix(new, &self.piece);
        let differing = differing_cells(&new[equal..], &self.piece[equal..]) * CELL_LEN;
        let run_len_min = if shift == self.shift { 0 } else { RUN_LEN_MIN };
        let is_scattered = differing * SCATTERED <= len && differing + run_len_min <= len;
        if !is_scattered && equal <= run_len_min {
            return Ok(false);
        }
        self.shift = shift;
        self.begin_match(from)?;
        if is_scattered {
            let piece = std::mem::take(&mut self.piece);
            self.tell_compared(self.at, &piece, from)?;
            self.piece = piece;
            self.at += len;
        } else {
            self.extents.copy(equal as u64, from).map_err(LocalError::Sink)?;
            self.at += equal;
        }
        self.done = self.at;
        Ok(is_scattered)
    }

    /// Passes on bytes of the buffer from `at` on, compared with `piece`, which is the base from
    /// `from` on.
    fn tell_compared(&mut self, at: usize, piece: &[u8], from: u64) -> Compared<(), S> {
        let mut reported = 0;
        while let Some((start, end)) = next_difference(&self.buffer[at..at + piece.len()], piece, reported) {
            self.extents
                .copy((start - reported) as u64, from + reported as u64)
                .map_err(LocalError::Sink)?;
            self.emit_literal(at + start, at + end)?;
            reported = end;
        }
        self.extents
            .copy((piece.len() - reported) as u64, from + reported as u64)
            .map_err(LocalError::Sink)
    }

    fn emit_literal(&mut self, start: usize, end: usize) -> Compared<(), S> {
        let (from, to) = (self.offset(start), self.offset(end));
        let first = self.holes.partition_point(|hole| hole.end() <= from);
        let last = self.holes.partition_point(|hole| hole.start() < to).max(first);
        self.extents
            .literal_with_holes(&self.buffer[start..end], &self.holes[first..last])
            .map_err(LocalError::Sink)
    }

    /// The bytes at `at` equal the base at `from`: extends the match backwards, and passes on the
    /// bytes before it.
    fn begin_match(&mut self, from: u64) -> Compared<(), S> {
        let (mut back, mut step_len) = (0, STEP_FIRST_LEN);
        let mut scratch = std::mem::take(&mut self.scratch);
        while back < self.at - self.done {
            let base_left = usize::try_from(from - back as u64).unwrap_or(usize::MAX);
            let step = (self.at - self.done - back).min(step_len).min(base_left);
            step_len = (2 * step_len).min(STEP_LEN);
            if step == 0 {
                break;
            }
            scratch.resize(step, 0);
            read_base(self.base, from - (back + step) as u64, &mut scratch)?;
            let equal = common_suffix(&self.buffer[self.at - back - step..self.at - back], &scratch);
            back += equal;
            if equal < step {
                break;
            }
        }
        let at = self.at - back;
        self.scratch = scratch;
        self.give_up(at)?;
        self.extents
            .copy(back as u64, from - back as u64)
            .map_err(LocalError::Sink)?;
        self.done = self.at;
        Ok(())
    }

    /// Passes on bytes up to `end` that were searched in vain: as copies where they are equal in
    /// place, otherwise as literals.
    fn give_up(&mut self, end: usize) -> Compared<(), S> {
        while self.done < end {
            let len = (end - self.done).min(self.piece_len);
            let in_place = self.in_base(self.done, 0);
            let common = in_place.map_or(0, |(_, left)| usize::try_from(left).map_or(len, |left| len.min(left)));
            if common == 0 {
                self.emit_literal(self.done, end)?;
                self.done = end;
                break;
            }
            let from = self.offset(self.done);
            let mut in_base = std::mem::take(&mut self.scratch);
            in_base.resize(common, 0);
            read_base(self.base, from, &mut in_base)?;
            self.tell_compared(self.done, &in_base, from)?;
            self.scratch = in_base;
            self.done += common;
        }
        Ok(())
    }

    /// Searches for the piece at `at` among the base's blocks.
    fn search(&mut self) -> Compared<(), S> {
        if self.table.is_none() {
            self.begin_search()?;
            if self.at == self.buffer.len() {
                return Ok(());
            }
        }
        // Taken out, as the search borrows `self` mutably; the search does not change the table.
        let Some(table) = self.table.take() else { return Ok(()) };
        let searched = self.search_in(&table);
        self.table = Some(table);
        searched
    }

    fn search_in(&mut self, table: &BaseTable) -> Compared<(), S> {
        let end = (self.at + self.piece_len).min(self.buffer.len());
        while self.at < end {
            if self.done == self.at && self.resume()? {
                continue;
            }
            if self.buffer.len() - self.at < self.block_len {
                // No window fits any more before a hole or the end.
                self.at = self.buffer.len();
                return self.give_up(self.at);
            }
            let mut sum = RollingSum::of(&self.buffer[self.at..self.at + self.block_len]);
            // A window that is a block begins a match, and then another window.
            while !self.look_up(table, sum.value())? {
                let coming = self.at + self.block_len;
                if self.at + 1 >= end || coming == self.buffer.len() {
                    self.at += 1;
                    break;
                }
                sum.roll(self.buffer[self.at], self.buffer[coming]);
                self.at += 1;
                let passed = table.pass(&mut sum, &self.buffer[self.at..], self.block_len, end - self.at);
                self.at += passed;
                let paid = self.account.saturating_add(passed as u64 + 1);
                self.account = paid.min(VAIN_WINDOWS * self.block_len as u64);
            }
        }
        // The last bytes, up to a window's length, may belong to a match that begins in the next
        // piece.
        let kept = self.at.saturating_sub(self.block_len).max(self.done);
        self.give_up(kept)
    }

    /// After a match: if it resumes after some differing bytes, passes these on and resumes it. The
    /// continuation must be [`RESUMED`] times as long, so that bytes that are equal by chance do
    /// not hide a shift.
    fn resume(&mut self) -> Compared<bool, S> {
        let Some((from, left)) = self.in_base(self.at, self.shift) else {
            return Ok(false);
        };
        let most = (self.buffer.len() - self.at).min(RESUME_LEN.min(8 * self.block_len));
        let most = usize::try_from(left).map_or(most, |left| most.min(left));
        // A short look first, so that the bytes read stay in proportion to the bytes found.
        let mut len = most.min(RESUME_FIRST_LEN);
        let (end, equal) = loop {
            self.read_base(from, len)?;
            let new = &self.buffer[self.at..self.at + len];
            let Some((0, end)) = next_difference(new, &self.piece, 0) else {
                return Ok(false);
            };
            let equal = common_prefix(&new[end..], &self.piece[end..]);
            if equal >= RESUME_RUN_LEN_MIN.max(RESUMED * end) {
                break (end, equal);
            }
            if end + equal < len || len == most {
                return Ok(false);
            }
            len = most;
        };
        self.emit_literal(self.at, self.at + end)?;
        self.at += end;
        self.done = self.at;
        self.extend(from + end as u64, equal)?;
        Ok(true)
    }

    /// Looks up the window at `at` in the base. If it is there, passes on the match and moves past
    /// it.
    fn look_up(&mut self, table: &BaseTable, weak: u32) -> Compared<bool, S> {
        if !table.contains(weak) {
            return Ok(false);
        }
        let here = self.offset(self.at);
        let last = self.base_len.checked_sub(self.block_len as u64);
        let in_base = |from: Option<u64>| from.filter(|&from| last.is_some_and(|last| from <= last));
        // Places that continue a match, or are in place, come before others that are equal.
        let expected = [in_base(here.checked_add_signed(self.shift)), in_base(Some(here))];
        for from in expected.into_iter().flatten().chain(table.candidates(weak)) {
            if self.account < self.block_len as u64 {
                return Ok(false);
            }
            if self.window_equals(from)? {
                self.begin_match(from)?;
                self.extend(from, self.block_len)?;
                // Both are file offsets, which fit.
                self.shift = from as i64 - here as i64;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the window at `at` equals the base at `from`; if not, the account pays for the bytes
    /// compared.
    fn window_equals(&mut self, from: u64) -> Compared<bool, S> {
        let first = self.block_len.min(FIRST_LOOK_LEN);
        self.read_base(from, first)?;
        if self.piece != self.buffer[self.at..self.at + first] {
            self.account = self.account.saturating_sub(first as u64);
            return Ok(false);
        }
        self.read_base(from + first as u64, self.block_len - first)?;
        let is_equal = self.piece == self.buffer[self.at + first..self.at + self.block_len];
        if !is_equal {
            self.account = self.account.saturating_sub(self.block_len as u64);
        }
        Ok(is_equal)
    }

    /// `len` bytes at `at` equal the base at `from`: passes on these and all equal bytes that
    /// follow.
    fn extend(&mut self, from: u64, mut len: usize) -> Compared<(), S> {
        let mut step_len = STEP_FIRST_LEN;
        loop {
            let next = from + len as u64;
            let base_left = usize::try_from(self.base_len.saturating_sub(next)).unwrap_or(usize::MAX);
            let step = (self.buffer.len() - self.at - len).min(step_len).min(base_left);
            step_len = (2 * step_len).min(STEP_LEN);
            if step == 0 {
                break;
            }
            self.read_base(next, step)?;
            let equal = common_prefix(&self.buffer[self.at + len..self.at + len + step], &self.piece);
            len += equal;
            if equal < step {
                break;
            }
        }
        self.extents.copy(len as u64, from).map_err(LocalError::Sink)?;
        self.at += len;
        self.done = self.at;
        Ok(())
    }

    /// Finds a common end, then sums the base's blocks.
    fn begin_search(&mut self) -> Compared<(), S> {
        let here = self.offset(self.at);
        let common_end = self.common_end(here)?;
        self.new_end = self.new_len - common_end;
        // The part of the common end in the buffer need not be searched; `at` is not beyond its
        // start.
        let kept = usize::try_from(self.new_end - self.buffer_start).unwrap_or(usize::MAX);
        let kept = kept.clamp(self.at, self.buffer.len());
        self.extents.stats.examined_bytes += common_end - (self.buffer.len() - kept) as u64;
        self.buffer.truncate(kept);
        let wanted = self.new_end - here;
        let whole = wanted.saturating_mul(WHOLE_BASE) >= self.base_len;
        let searched = match whole {
            true => ByteRange::new(0, self.base_len),
            false => ByteRange::new(here, self.base_len - common_end),
        };
        let searched = searched.filter(|_| wanted >= self.block_len as u64);
        self.table = Some(BaseTable::of(self.base, searched, self.block_len)?);
        Ok(())
    }

    /// The number of equal bytes at the ends of both contents, at most those after `here` and after
    /// the last hole; in the tail, a few may differ.
    fn common_end(&mut self, here: u64) -> Compared<u64, S> {
        let most = (self.new_len - here).min(self.base_len);
        let common = self.equal_end(0, most)?;
        let mut tail_len = TAIL_LEN_MAX.min(most);
        while tail_len > common && tail_len >= TAIL_LEN_MIN {
            if self.tail_is_alike(tail_len)? {
                let all = self.equal_end(tail_len, most)?;
                if all - tail_len < tail_len {
                    break;
                }
                self.tail_len = tail_len;
                return Ok(all);
            }
            tail_len /= 4;
        }
        Ok(common)
    }

    /// Whether few cells of the last `len` bytes differ.
    fn tail_is_alike(&mut self, len: u64) -> Compared<bool, S> {
        let Some(tail) = self.read_end(len, len)? else {
            return Ok(false);
        };
        let is_alike = differing_cells(&tail, &self.piece) * CELL_LEN * SCATTERED <= tail.len();
        self.scratch = tail;
        Ok(is_alike)
    }

    /// The number of equal bytes at the ends, up to `most`; the last `from` are counted unchecked.
    fn equal_end(&mut self, from: u64, most: u64) -> Compared<u64, S> {
        let mut common = from;
        // Small steps first: mostly nothing is equal.
        let mut step_len = 4096;
        while common < most {
            let step = (most - common).min(step_len);
            let Some(new) = self.read_end(common + step, step)? else {
                break;
            };
            let equal = common_suffix(&new, &self.piece) as u64;
            self.scratch = new;
            common += equal;
            if equal < step {
                break;
            }
            step_len = PIECE_LEN as u64;
        }
        Ok(common)
    }

    /// Reads `len` bytes that begin `before_end` bytes before the ends of both contents: the base's
    /// into `piece`. `None` if there is a hole among the new ones.
    fn read_end(&mut self, before_end: u64, len: u64) -> Compared<Option<Vec<u8>>, S> {
        let new_from = self.new_len - before_end;
        let Some(range) = ByteRange::from_offset_len(new_from, len) else {
            return Ok(None);
        };
        let error = |source| LocalError::ReadNew { range, source };
        if self.new.next_data(range).map_err(error)? != Some(range) {
            return Ok(None);
        }
        let mut new = std::mem::take(&mut self.scratch);
        // At most a piece.
        new.resize(len as usize, 0);
        self.new
            .read_range(new_from, &mut new)
            .map_err(|source| LocalError::ReadNew { range, source })?;
        self.read_base(self.base_len - before_end, len as usize)?;
        Ok(Some(new))
    }

    /// Reads the base into `piece`.
    fn read_base(&mut self, from: u64, len: usize) -> Compared<(), S> {
        self.piece.resize(len, 0);
        read_base(self.base, from, &mut self.piece)
    }
}

fn read_base<E>(base: &(impl Base + ?Sized), from: u64, buffer: &mut [u8]) -> Result<(), LocalError<E>> {
    let Some(range) = ByteRange::from_offset_len(from, buffer.len() as u64) else {
        return Ok(());
    };
    base.read_range(from, buffer)
        .map_err(|source| LocalError::ReadBase { range, source })
}

/// An upper bound for the bytes of the base outside holes: examined only for long bases, and only
/// in the first extents.
fn data_len_at_most(base: &(impl Base + ?Sized), base_len: u64) -> io::Result<u64> {
    if base_len <= TABLE_BLOCKS_MAX * BLOCK_LEN_ENOUGH {
        return Ok(base_len);
    }
    let (mut data_len, mut at) = (0, 0);
    for _ in 0..COUNTED_EXTENTS_MAX {
        let Some(left) = ByteRange::new(at, base_len) else {
            break;
        };
        let Some(data) = base.next_data(left)?.and_then(|data| data.intersect(left)) else {
            return Ok(data_len);
        };
        data_len += data.len_bytes();
        at = data.end();
    }
    Ok(data_len + (base_len - at))
}

/// The block length: grows with the square root of the data, and so that the table holds all
/// blocks.
fn block_len(data_len: u64) -> u64 {
    let by_root = (data_len.isqrt() / 4).clamp(BLOCK_LEN_MIN, BLOCK_LEN_ENOUGH);
    let by_table = data_len.div_ceil(TABLE_BLOCKS_MAX);
    by_root.max(by_table).next_power_of_two().min(BLOCK_LEN_MAX)
}

/// The number of equal bytes at the start.
fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let len = a.len().min(b.len());
    // Whole pages first, which the library compares fastest.
    let mut at = 0;
    for step in [4096, CELL_LEN] {
        while len - at >= step && a[at..at + step] == b[at..at + step] {
            at += step;
        }
    }
    at + a[at..len].iter().zip(&b[at..len]).take_while(|(a, b)| a == b).count()
}

/// The number of equal bytes at the end of two equally long slices.
fn common_suffix(a: &[u8], b: &[u8]) -> usize {
    let mut left = a.len().min(b.len());
    let len = left;
    for step in [4096, CELL_LEN] {
        while left >= step && a[left - step..left] == b[left - step..left] {
            left -= step;
        }
    }
    let rest = a[..left].iter().rev().zip(b[..left].iter().rev());
    len - left + rest.take_while(|(a, b)| a == b).count()
}

/// The number of cells in which two equally long slices differ.
fn differing_cells(a: &[u8], b: &[u8]) -> usize {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<CELL_LEN>(), b.as_chunks::<CELL_LEN>());
    let differing = a.iter().zip(b).filter(|(a, b)| a != b).count();
    differing + usize::from(a_rest != b_rest)
}

/// The next range from `from` on in which two equally long slices differ. It begins and ends with a
/// differing byte, and contains no equal cell.
fn next_difference(a: &[u8], b: &[u8], from: usize) -> Option<(usize, usize)> {
    let start = from + common_prefix(&a[from..], &b[from..]);
    if start == a.len() {
        return None;
    }
    // Cells are counted from the first difference.
    let mut end = start;
    while end < a.len() {
        let cell_end = (end + CELL_LEN).min(a.len());
        if a[end..cell_end] == b[end..cell_end] {
            break;
        }
        end = cell_end;
    }
    Some((start, end - common_suffix(&a[start..end], &b[start..end])))
}

#[cfg(test)]
mod tests;
