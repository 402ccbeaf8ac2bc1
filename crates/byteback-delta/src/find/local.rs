//! Local comparison: both versions are here, so bytes are compared and nothing is summed strongly
//! (DeltaCFS, section III-A).
//!
//! Words: a *shift* is where a byte of the new content is found in the base, less where it is; what
//! stays in place has the shift 0. A *piece* is what is read and compared at once.
//!
//! How a piece is found, the cheapest first:
//! 1. At the shift of what was found last, then in place. If at most a sixteenth differs
//!    ([`SCATTERED`]), that is it: the differing bytes are literals, to the byte. So equal
//!    contents, appended ones and scattered overwrites cost one comparison.
//! 2. Otherwise rsync's search: a window is moved over the piece, and its weak checksum looked up
//!    among those of the base's blocks. A block that is found by it is compared, and the match is
//!    extended both ways byte by byte, so that an insertion costs itself. Where a match ends, it
//!    may go on a little later: that is looked at before a window is summed.
//! 3. What was not found is compared in place once more, in cells of [`CELL_LEN`].
//!
//! The base's blocks are summed when something is searched for the first time. Before that, the
//! ends of both contents are compared: an insertion or a cut somewhere leaves nothing to search
//! behind it, though the very end may differ again, as that of a container does, which lists what
//! lies where ([`TAIL_LEN_MAX`]). Only the part of the base between what is equal at both ends is
//! summed, if what is searched is small beside the base ([`WHOLE_BASE`]).
//!
//! *Holes* of the new content stay holes. Long ones are not looked at; short ones are zeros like
//! others, unless they end up in a literal. Holes of the base are not summed.
//!
//! *Memory*: a few pieces, and a table of at most [`TABLE_BLOCKS_MAX`] blocks, whose length grows
//! with the base's.
//!
//! *Crafted contents* whose windows look like blocks but are none would cost a comparison each.
//! Comparisons in vain have an account, as in `rolling`: every byte that is passed pays in one.
//! When it is empty, windows are passed without a look.
//!
//! *Contents that change meanwhile*: each byte of the new content is read once before it is told,
//! or told as a copy after it was found equal. If either content is written to, the extents may
//! describe a mixture that never was; who cannot exclude that compares a digest.

mod table;

use std::io;

use byteback_extents::ByteRange;

use super::extents::Extents;
use super::{ExtentSink, FindStats, HOLE_LEN_MIN};
use crate::apply::Base;
use crate::weak::{Rolling, RollingSum};
use table::BaseTable;

/// What is read and compared at once, at least.
const PIECE_LEN: usize = 256 * 1024;

/// Bytes that are compared as one.
const CELL_LEN: usize = 64;

/// A piece is taken as it lies if at most one cell in so many differs.
const SCATTERED: usize = 16;

/// Equal bytes at a shift that must begin an extent of their own are not worth it if they are
/// fewer.
const RUN_LEN_MIN: usize = 32;

/// All of the base is summed if so many times what is searched for is as long as the base.
const WHOLE_BASE: u64 = 24;

/// So long may the tail be: what differs here and there behind a common end, which is longer.
const TAIL_LEN_MAX: u64 = PIECE_LEN as u64;

/// The shortest tail that is looked at.
const TAIL_LEN_MIN: u64 = 4096;

/// Blocks of the base that are kept in the table, at most.
const TABLE_BLOCKS_MAX: u64 = 1 << 20;

/// The shortest and the longest block that is summed.
const BLOCK_LEN_MIN: u64 = 64;
const BLOCK_LEN_MAX: u64 = 16 * 1024 * 1024;

/// Blocks grow with the square root of the base up to here; beyond, only as the table's size asks
/// for.
const BLOCK_LEN_ENOUGH: u64 = 4096;

/// From so many extents of a long base is found out how much of it is data.
const COUNTED_EXTENTS_MAX: usize = 4096;

/// What is read of a candidate before the rest is.
const FIRST_LOOK_LEN: usize = 256;

/// How much is compared at once where a match is extended, at first and at most.
const STEP_FIRST_LEN: usize = 512;
const STEP_LEN: usize = 16 * 1024;

/// How far behind a match is looked for its continuation, at first and at most.
const RESUME_FIRST_LEN: usize = 512;
const RESUME_LEN: usize = 4096;

/// So many bytes must go on at least.
const RESUME_RUN_LEN_MIN: usize = 128;

/// So many times as long as the bytes that differ must be what goes on behind them.
const RESUMED: usize = 4;

/// Windows that may be compared in vain before the account has to be filled.
const VAIN_WINDOWS: u64 = 16;

/// Comparing two contents failed.
#[derive(Debug, thiserror::Error)]
pub enum LocalError<E> {
    /// The base cannot be read.
    #[error("the base cannot be read at {range}")]
    ReadBase {
        /// Where.
        range: ByteRange,
        /// What it said; `UnexpectedEof` if it became shorter.
        source: io::Error,
    },
    /// The new content cannot be read.
    #[error("the new content cannot be read at {range}")]
    ReadNew {
        /// Where.
        range: ByteRange,
        /// What it said; `UnexpectedEof` if it became shorter.
        source: io::Error,
    },
    /// A length cannot be found out.
    #[error("the length of the base or the new content cannot be found out")]
    Len(#[source] io::Error),
    /// The sink ended it.
    #[error("what was found could not be taken")]
    Sink(E),
}

/// Finds `new` in `base` by comparing bytes; see the module's header. Answers the sink and what it
/// took.
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

/// How far two contents are compared.
struct Comparison<'c, B: ?Sized, N: ?Sized, S> {
    base: &'c B,
    new: &'c N,
    base_len: u64,
    new_len: u64,
    /// Where the search ends: behind it is a common end that was found already.
    new_end: u64,
    /// So much of the common end, at its very end, is not equal byte for byte, but may differ here
    /// and there.
    tail_len: u64,
    block_len: usize,
    piece_len: usize,
    extents: Extents<S>,
    /// The new content from `buffer_start` on. Bytes from `done` to `at` were searched in vain, but
    /// may belong to a match behind them; what was before is told.
    buffer: Vec<u8>,
    buffer_start: u64,
    done: usize,
    at: usize,
    /// Up to here, the new content is known to be data.
    data_end: u64,
    /// Short holes in the buffer.
    holes: Vec<ByteRange>,
    /// The shift of what was found last.
    shift: i64,
    /// What of the base is compared with.
    piece: Vec<u8>,
    /// The same for what is behind `at`.
    scratch: Vec<u8>,
    table: Option<BaseTable>,
    /// Bytes that may be compared in vain.
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

    /// Compares a piece; false at the end.
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
            self.tell_tail()?;
            return Ok(false);
        }
        if self.follow(self.shift)? || (self.shift != 0 && self.follow(0)?) {
            return Ok(true);
        }
        self.search()?;
        Ok(true)
    }

    /// Reads on until the buffer holds a piece and a window behind `at`, or the next long hole or
    /// the end comes. Answers that hole.
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

    /// Compares the tail, behind which nothing is.
    fn tell_tail(&mut self) -> Compared<(), S> {
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

    /// A long hole that begins where the buffer ends, of which all is told.
    fn tell_hole(&mut self, hole: ByteRange) -> Compared<(), S> {
        let mut in_base_too = hole.end() <= self.base_len;
        if in_base_too {
            let data = self.base.next_data(hole);
            in_base_too = data
                .map_err(|source| LocalError::ReadBase { range: hole, source })?
                .is_none();
        }
        // A hole that is in place costs no extent.
        let told = match in_base_too {
            true => self.extents.copy(hole.len_bytes(), hole.start()),
            false => self.extents.zero(hole.len_bytes()),
        };
        self.buffer.clear();
        self.holes.clear();
        self.buffer_start = hole.end();
        (self.done, self.at) = (0, 0);
        told.map_err(LocalError::Sink)
    }

    /// The offset of a byte of the buffer in the new content.
    fn offset(&self, at: usize) -> u64 {
        self.buffer_start + at as u64
    }

    /// The place in the base of a byte of the buffer, if it was shifted by so much, and how many
    /// bytes there are.
    fn in_base(&self, at: usize, shift: i64) -> Option<(u64, u64)> {
        let from = self.offset(at).checked_add_signed(shift)?;
        let left = self.base_len.checked_sub(from)?;
        (left > 0).then_some((from, left))
    }

    /// Compares the piece at `at` with the base at this shift. Goes on if it is equal, up to
    /// scattered differences; otherwise only over the first bytes that are equal, and answers
    /// false.
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

    /// Tells bytes of the buffer from `at` on that were compared with `piece`, which is the base
    /// from `from` on.
    fn tell_compared(&mut self, at: usize, piece: &[u8], from: u64) -> Compared<(), S> {
        let mut told = 0;
        while let Some((start, end)) = next_difference(&self.buffer[at..at + piece.len()], piece, told) {
            self.extents
                .copy((start - told) as u64, from + told as u64)
                .map_err(LocalError::Sink)?;
            self.tell_literal(at + start, at + end)?;
            told = end;
        }
        self.extents
            .copy((piece.len() - told) as u64, from + told as u64)
            .map_err(LocalError::Sink)
    }

    fn tell_literal(&mut self, start: usize, end: usize) -> Compared<(), S> {
        let (from, to) = (self.offset(start), self.offset(end));
        let first = self.holes.partition_point(|hole| hole.end() <= from);
        let last = self.holes.partition_point(|hole| hole.start() < to).max(first);
        self.extents
            .literal_with_holes(&self.buffer[start..end], &self.holes[first..last])
            .map_err(LocalError::Sink)
    }

    /// The bytes at `at` equal the base at `from`: finds out how many before them do too, and tells
    /// what is before those.
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

    /// Tells bytes up to `end` that were searched in vain: those that are equal in place as copies,
    /// the others as literals.
    fn give_up(&mut self, end: usize) -> Compared<(), S> {
        while self.done < end {
            let len = (end - self.done).min(self.piece_len);
            let in_place = self.in_base(self.done, 0);
            let common = in_place.map_or(0, |(_, left)| usize::try_from(left).map_or(len, |left| len.min(left)));
            if common == 0 {
                self.tell_literal(self.done, end)?;
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
        // The table is not touched while it is looked up.
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
        // What is not further back than a window may belong to a match that begins in the next
        // piece.
        let kept = self.at.saturating_sub(self.block_len).max(self.done);
        self.give_up(kept)
    }

    /// Behind a match: if it goes on after some bytes that differ, tells these and goes on with it.
    /// What goes on must be [`RESUMED`] times as long, so that bytes that are equal by chance do
    /// not hide a shift.
    fn resume(&mut self) -> Compared<bool, S> {
        let Some((from, left)) = self.in_base(self.at, self.shift) else {
            return Ok(false);
        };
        let most = (self.buffer.len() - self.at).min(RESUME_LEN.min(8 * self.block_len));
        let most = usize::try_from(left).map_or(most, |left| most.min(left));
        // A short look first, so that what is read stays in proportion to what is found.
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
        self.tell_literal(self.at, self.at + end)?;
        self.at += end;
        self.done = self.at;
        self.extend(from + end as u64, equal)?;
        Ok(true)
    }

    /// Looks for the window at `at` in the base. If it is there, tells the match and goes behind
    /// it.
    fn look_up(&mut self, table: &BaseTable, weak: u32) -> Compared<bool, S> {
        if !table.contains(weak) {
            return Ok(false);
        }
        let here = self.offset(self.at);
        let last = self.base_len.checked_sub(self.block_len as u64);
        let in_base = |from: Option<u64>| from.filter(|&from| last.is_some_and(|last| from <= last));
        // What continues a match, or stays in place, before others that are equal.
        let expected = [in_base(here.checked_add_signed(self.shift)), in_base(Some(here))];
        for from in expected.into_iter().flatten().chain(table.candidates(weak)) {
            if self.account < self.block_len as u64 {
                return Ok(false);
            }
            if self.window_equals(from)? {
                self.begin_match(from)?;
                self.extend(from, self.block_len)?;
                // Offsets of files.
                self.shift = from as i64 - here as i64;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the window at `at` equals the base at `from`; if not, the account pays for what was
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

    /// `len` bytes at `at` equal the base at `from`: tells them and all that follow and are equal
    /// too.
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
        // What was read of the common end need not be searched; `at` is not beyond it.
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

    /// How many bytes at the ends of both contents are equal, not more than lie behind `here`, and
    /// up to the last hole; of the tail, most.
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

    /// How many of the last `most` bytes are equal, before the last `from`, which are counted, too.
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

/// How many bytes of the base are no holes, or more: that is found out only for long ones, and only
/// from some extents.
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

/// Long blocks for much data: as the square root, and as many as the table takes.
fn block_len(data_len: u64) -> u64 {
    let by_root = (data_len.isqrt() / 4).clamp(BLOCK_LEN_MIN, BLOCK_LEN_ENOUGH);
    let by_table = data_len.div_ceil(TABLE_BLOCKS_MAX);
    by_root.max(by_table).next_power_of_two().min(BLOCK_LEN_MAX)
}

/// How many bytes are equal from the start on.
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

/// How many bytes are equal before the end of two equally long slices.
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

/// In how many cells two equally long slices differ.
fn differing_cells(a: &[u8], b: &[u8]) -> usize {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<CELL_LEN>(), b.as_chunks::<CELL_LEN>());
    let differing = a.iter().zip(b).filter(|(a, b)| a != b).count();
    differing + usize::from(a_rest != b_rest)
}

/// The next range from `from` on in which two equally long slices differ. It begins and ends with a
/// differing byte; a whole cell that is equal is in none.
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
