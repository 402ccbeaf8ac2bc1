//! rsync's way: a window as long as a block moves over the new content byte by byte; where its weak
//! checksum is that of a block of the base, the strong one decides (Tridgell; SolFS, sections 2.2
//! and 4.3). So an insertion costs about its own length, wherever it is.
//!
//! Content is pushed in pieces; memory is two windows and one piece, whatever the length.
//!
//! *First candidates.* After a match, the next block of the base is the likeliest, then the block
//! at the same offset: both are compared by strong checksum alone, so that unchanged content costs
//! one strong checksum and no rolling. The same offset is preferred when equal blocks exist,
//! because blocks in place cost no extent.
//!
//! *Holes* of the new content stay holes. Long ones are not examined, except for their borders up
//! to the next multiple of a block, so that blocks across a border are found; short ones are
//! treated as ordinary zeros, unless they end up in a literal.
//!
//! *The last block* of the base may be shorter. It is searched for after its predecessor and at the
//! new content's end. If the base's length is unknown (librsync's signatures omit it), it is
//! searched for only at the end, where every shorter window is examined.
//!
//! *Crafted contents.* A content can be made in which every window has the weak checksum of some
//! block but the strong one of none. Each would cost a strong checksum of a whole window. Hence
//! strong checksums in vain draw on an account: every byte passed adds one to it, and while it is
//! empty, windows are passed unchecked. Such content costs at most about two bytes hashed per byte,
//! and fewer matches are found.

use std::collections::VecDeque;

use byteback_extents::ByteRange;

use super::index::BlockIndex;
use super::{ExtentSink, FindStats, HOLE_LEN_MIN};
use crate::weak::{RabinKarp, Rolling, RollingSum, Rollsum, WeakKind};

/// The number of bytes gathered beyond a window before the window moves over them.
const SCAN_LEN: usize = 256 * 1024;

/// The number of windows that may be hashed in vain before the account must be refilled.
const VAIN_WINDOWS: u64 = 16;

/// Finds a base's blocks in a new content; see the module's header.
pub struct RollingFinder<'i, S> {
    index: &'i BlockIndex,
    sink: S,
    block_len: usize,
    /// The length of the base's last block if it is shorter than the others; 0 otherwise.
    tail_len: usize,
    /// Content from `buffer_start` on. Bytes before `done` were passed on, those from there to
    /// `window` are pending literals, and at `window` the window begins.
    buffer: Vec<u8>,
    buffer_start: u64,
    done: usize,
    window: usize,
    /// The checksum of the window, while it moves byte by byte.
    sum: Option<WindowSum>,
    /// The block that would continue the last match.
    next_block: Option<usize>,
    /// A pending copy, which may be continued.
    pending_copy: Option<(ByteRange, u64)>,
    /// The holes in the buffer.
    holes: VecDeque<ByteRange>,
    /// The number of bytes that may be hashed in vain.
    account: u64,
    stats: FindStats,
}

/// The checksum of a window, of the signature's kind.
#[derive(Clone, Copy)]
enum WindowSum {
    Rsync(RollingSum),
    Rollsum(Rollsum),
    RabinKarp(RabinKarp),
}

impl WindowSum {
    fn of(kind: WeakKind, window: &[u8]) -> Self {
        match kind {
            WeakKind::Rsync => Self::Rsync(RollingSum::of(window)),
            // `find_sky` handles these. Here, blocks are found where they are expected, and never
            // by this sum.
            WeakKind::Crc32c | WeakKind::Crc32cPadded | WeakKind::Crc32 | WeakKind::Crc32Padded => {
                Self::Rsync(RollingSum::of(window))
            }
            WeakKind::LibrsyncRollsum => Self::Rollsum(Rollsum::of(window)),
            WeakKind::LibrsyncRabinKarp => Self::RabinKarp(RabinKarp::of(window)),
        }
    }

    fn roll(&mut self, leaving: u8, coming: u8) {
        match self {
            Self::Rsync(sum) => sum.roll(leaving, coming),
            Self::Rollsum(sum) => sum.roll(leaving, coming),
            Self::RabinKarp(sum) => sum.roll(leaving, coming),
        }
    }

    fn shorten(&mut self, leaving: u8) {
        match self {
            Self::Rsync(sum) => sum.shorten(leaving),
            Self::Rollsum(sum) => sum.shorten(leaving),
            Self::RabinKarp(sum) => sum.shorten(leaving),
        }
    }

    fn value(self) -> u32 {
        match self {
            Self::Rsync(sum) => sum.value(),
            Self::Rollsum(sum) => sum.value(),
            Self::RabinKarp(sum) => sum.value(),
        }
    }
}

impl<'i, S: ExtentSink> RollingFinder<'i, S> {
    /// Begins at the first byte of a new content.
    pub fn new(index: &'i BlockIndex, sink: S) -> Self {
        let params = index.signature().params();
        let block_len = params.block_len_bytes as usize;
        // Shorter than a block, which fits.
        let tail_len = (index.signature().content_len_bytes() % u64::from(params.block_len_bytes)) as usize;
        Self {
            index,
            sink,
            block_len,
            tail_len,
            buffer: Vec::new(),
            buffer_start: 0,
            done: 0,
            window: 0,
            sum: None,
            // Most contents begin as the base does.
            next_block: Some(0),
            pending_copy: None,
            holes: VecDeque::new(),
            account: VAIN_WINDOWS * u64::from(params.block_len_bytes),
            stats: FindStats::default(),
        }
    }

    /// Adds the next bytes of the new content.
    ///
    /// # Errors
    /// The error of the sink.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<(), S::Error> {
        while !bytes.is_empty() {
            let room = (self.block_len + SCAN_LEN).saturating_sub(self.buffer.len() - self.window);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.buffer.extend_from_slice(now);
            self.stats.examined_bytes += now.len() as u64;
            if now.len() == room {
                self.scan()?;
            }
            bytes = later;
        }
        Ok(())
    }

    /// Adds a hole of `len_bytes`.
    ///
    /// # Errors
    /// The error of the sink.
    pub fn push_hole(&mut self, len_bytes: u64) -> Result<(), S::Error> {
        let Some(hole) = ByteRange::from_offset_len(self.position(), len_bytes) else {
            return Ok(());
        };
        let block_len = self.block_len as u64;
        let first = hole.start().next_multiple_of(block_len);
        let last = hole.end() - hole.end() % block_len;
        match ByteRange::new(first, last) {
            Some(inner) if inner.len_bytes() >= HOLE_LEN_MIN.max(2 * block_len) => {
                self.push_zeros(inner.start() - hole.start())?;
                self.end_of_run()?;
                self.flush_copy()?;
                self.sink.zero(inner)?;
                self.stats.zero_bytes += inner.len_bytes();
                // Everything before was passed on.
                self.buffer.clear();
                self.holes.clear();
                self.buffer_start = inner.end();
                (self.done, self.window) = (0, 0);
                self.push_zeros(hole.end() - inner.end())
            }
            _ => self.push_zeros(len_bytes),
        }
    }

    /// Ends the new content; returns the sink and the statistics.
    ///
    /// # Errors
    /// The error of the sink.
    pub fn finish(mut self) -> Result<(S, FindStats), S::Error> {
        self.end_of_run()?;
        self.flush_copy()?;
        Ok((self.sink, self.stats))
    }

    /// The offset of the next byte.
    pub fn position(&self) -> u64 {
        self.buffer_start + self.buffer.len() as u64
    }

    /// Adds zeros that stand for a hole, in small steps.
    fn push_zeros(&mut self, len_bytes: u64) -> Result<(), S::Error> {
        let mut left = len_bytes;
        while left > 0 {
            // In steps, as scanning them may empty the buffer.
            let now = left.min(SCAN_LEN as u64);
            if let Some(range) = ByteRange::from_offset_len(self.position(), now) {
                self.holes.push_back(range);
            }
            let room = (self.block_len + SCAN_LEN).saturating_sub(self.buffer.len() - self.window);
            self.buffer.resize(self.buffer.len() + now as usize, 0);
            if now as usize >= room {
                self.scan()?;
            }
            left -= now;
        }
        Ok(())
    }

    /// Examines all windows that the buffer holds.
    fn scan(&mut self) -> Result<(), S::Error> {
        while self.buffer.len() - self.window >= self.block_len {
            let mut sum = match self.sum.take() {
                Some(sum) => sum,
                None => {
                    if let Some(block) = self.expected_block() {
                        self.found(block, self.block_len)?;
                        continue;
                    }
                    if self.next_block.take().is_some_and(|block| self.is_tail(block)) && self.matches_tail(self.window)
                    {
                        self.found_tail()?;
                        continue;
                    }
                    self.sum_of_window()
                }
            };
            let started = self.window;
            let hit = self.roll(&mut sum);
            self.account = self.account.saturating_add((self.window - started) as u64);
            self.account = self.account.min(VAIN_WINDOWS * self.block_len as u64);
            if !hit {
                // The window covers the last bytes; it was examined, and moves on when more come.
                self.sum = Some(sum);
                break;
            }
            match self.look_up(sum.value()) {
                Some(block) => self.found(block, self.block_len)?,
                None => {
                    // No match: on to the next window, if its last byte is in the buffer.
                    let end = self.window + self.block_len;
                    match self.buffer.get(end) {
                        Some(&coming) => {
                            sum.roll(self.buffer[self.window], coming);
                            self.window += 1;
                            self.account = self.account.saturating_add(1);
                            self.sum = Some(sum);
                        }
                        None => {
                            self.sum = Some(sum);
                            break;
                        }
                    }
                }
            }
        }
        if self.window - self.done >= SCAN_LEN {
            self.flush_literals()?;
        }
        if self.done >= SCAN_LEN {
            self.buffer.drain(..self.done);
            self.buffer_start += self.done as u64;
            self.window -= self.done;
            self.done = 0;
        }
        Ok(())
    }

    /// Moves the window on to one whose weak checksum some block has; false if there is none in the
    /// buffer.
    fn roll(&mut self, sum: &mut WindowSum) -> bool {
        // The kind is matched once per run of windows, not once per byte.
        match sum {
            WindowSum::Rsync(sum) => self.roll_as(sum),
            WindowSum::Rollsum(sum) => self.roll_as(sum),
            WindowSum::RabinKarp(sum) => self.roll_as(sum),
        }
    }

    fn roll_as<W: Rolling>(&mut self, sum: &mut W) -> bool {
        let index = self.index;
        let mut rolling = *sum;
        let content = &self.buffer[self.window..];
        let coming = &content[self.block_len..];
        for (at, (&leaving, &coming)) in content.iter().zip(coming).enumerate() {
            let value = rolling.value();
            if index.may_contain(value) && index.contains(value) {
                self.window += at;
                *sum = rolling;
                return true;
            }
            rolling.roll(leaving, coming);
        }
        self.window += coming.len();
        *sum = rolling;
        index.contains(rolling.value())
    }

    /// The checksum of the window.
    fn sum_of_window(&self) -> WindowSum {
        WindowSum::of(
            self.index.signature().params().weak,
            &self.buffer[self.window..][..self.block_len],
        )
    }

    /// The block that continues the last match, or lies at the window's own offset, if the window
    /// equals it.
    fn expected_block(&mut self) -> Option<usize> {
        let whole = self.index.whole_blocks();
        let next = self.next_block.filter(|&block| block < whole);
        let in_place = self.block_in_place();
        if next.is_none() && in_place.is_none() {
            return None;
        }
        let strong = self.strong(self.window, self.block_len);
        // Continuing a copy costs no extent, just as staying in place.
        [next, in_place]
            .into_iter()
            .flatten()
            .find(|&block| self.is_strong_of(block, &strong))
    }

    /// The whole block of the base at the window's offset.
    fn block_in_place(&self) -> Option<usize> {
        let offset = self.buffer_start + self.window as u64;
        let block_len = self.block_len as u64;
        let block = usize::try_from(offset / block_len).ok()?;
        (offset.is_multiple_of(block_len) && block < self.index.whole_blocks()).then_some(block)
    }

    /// The block that the window equals, if any.
    fn look_up(&mut self, weak: u32) -> Option<usize> {
        self.index.candidates(weak).next()?;
        if self.account < self.block_len as u64 {
            return None;
        }
        let strong = self.strong(self.window, self.block_len);
        let found = self
            .index
            .candidates(weak)
            .find(|&block| self.is_strong_of(block, &strong));
        match found {
            Some(_) => self
                .block_in_place()
                .filter(|&block| self.is_strong_of(block, &strong))
                .or(found),
            None => {
                self.account -= self.block_len as u64;
                None
            }
        }
    }

    fn is_tail(&self, block: usize) -> bool {
        self.tail_len > 0 && block == self.index.whole_blocks()
    }

    /// Whether the base's last, shorter block is found at `at` of the buffer.
    fn matches_tail(&mut self, at: usize) -> bool {
        if self.tail_len == 0 || self.buffer.len() < at + self.tail_len {
            return false;
        }
        let strong = self.strong(at, self.tail_len);
        self.is_strong_of(self.index.whole_blocks(), &strong)
    }

    fn found_tail(&mut self) -> Result<(), S::Error> {
        self.found(self.index.whole_blocks(), self.tail_len)
    }

    /// Searches for a shorter last block of unknown length: at the end of a run the window gets
    /// shorter and shorter, as in librsync.
    fn find_tail_of_any_length(&mut self) -> Result<(), S::Error> {
        let Some(last) = self.index.signature().blocks().checked_sub(1) else {
            return Ok(());
        };
        let Some(&weak) = self.index.signature().weak().get(last) else {
            return Ok(());
        };
        let end = self.buffer.len();
        // The last window as long as a block was examined already, and may still be in place.
        let start = self.window.max(end.saturating_sub(self.block_len - 1));
        if start == end {
            return Ok(());
        }
        let mut sum = WindowSum::of(self.index.signature().params().weak, &self.buffer[start..end]);
        for at in start..end {
            if sum.value() == weak && self.account >= (end - at) as u64 {
                let strong = self.strong(at, end - at);
                if self.is_strong_of(last, &strong) {
                    self.window = at;
                    return self.found(last, end - at);
                }
                self.account -= (end - at) as u64;
            }
            sum.shorten(self.buffer[at]);
        }
        Ok(())
    }

    fn strong(&mut self, at: usize, len: usize) -> [u8; crate::strong::STRONG_LEN_MAX] {
        self.stats.strong_bytes += len as u64;
        self.index.signature().hasher().of(&self.buffer[at..at + len])
    }

    fn is_strong_of(&self, block: usize, strong: &[u8]) -> bool {
        self.index
            .signature()
            .strong(block)
            .is_some_and(|known| strong.get(..known.len()) == Some(known))
    }

    /// The window equals a block of this length: pending bytes before it are literals, and the next
    /// window begins after it.
    fn found(&mut self, block: usize, len: usize) -> Result<(), S::Error> {
        self.flush_literals()?;
        let base_offset = block as u64 * self.block_len as u64;
        if let Some(range) = ByteRange::from_offset_len(self.buffer_start + self.window as u64, len as u64) {
            self.pending_copy = match self.pending_copy {
                Some((before, from)) if before.end() == range.start() && from + before.len_bytes() == base_offset => {
                    Some((before.hull(range), from))
                }
                _ => {
                    self.flush_copy()?;
                    Some((range, base_offset))
                }
            };
        }
        self.stats.copied_bytes += len as u64;
        self.window += len;
        self.done = self.window;
        self.next_block = Some(block + 1);
        self.sum = None;
        Ok(())
    }

    /// No window fits any more before the content's end or a hole: the remaining bytes are the
    /// base's last block or literals.
    fn end_of_run(&mut self) -> Result<(), S::Error> {
        self.scan()?;
        self.sum = None;
        if let Some(block) = self.next_block.take()
            && self.is_tail(block)
            && self.matches_tail(self.window)
        {
            self.found_tail()?;
        }
        let len = self.buffer.len();
        if self.tail_len > 0 && len >= self.window + self.tail_len && self.matches_tail(len - self.tail_len) {
            self.window = len - self.tail_len;
            self.found_tail()?;
        }
        self.next_block = None;
        if !self.index.signature().is_len_known() {
            self.find_tail_of_any_length()?;
        }
        self.window = self.buffer.len();
        self.flush_literals()
    }

    fn flush_copy(&mut self) -> Result<(), S::Error> {
        match self.pending_copy.take() {
            Some((range, base_offset)) => self.sink.copy(range, base_offset),
            None => Ok(()),
        }
    }

    /// Passes on the pending bytes before the window, as literals and holes.
    fn flush_literals(&mut self) -> Result<(), S::Error> {
        if self.done == self.window {
            return Ok(());
        }
        self.flush_copy()?;
        let end = self.buffer_start + self.window as u64;
        let mut at = self.buffer_start + self.done as u64;
        while at < end {
            while self.holes.front().is_some_and(|hole| hole.end() <= at) {
                self.holes.pop_front();
            }
            let hole = self.holes.front().copied().filter(|hole| hole.start() < end);
            let literal_end = hole.map_or(end, |hole| hole.start().max(at));
            if at < literal_end {
                let from = (at - self.buffer_start) as usize;
                let to = (literal_end - self.buffer_start) as usize;
                self.sink.literal(at, &self.buffer[from..to])?;
                self.stats.literal_bytes += literal_end - at;
                at = literal_end;
            }
            if let Some(zeros) = hole.and_then(|hole| ByteRange::new(at, hole.end().min(end))) {
                self.sink.zero(zeros)?;
                self.stats.zero_bytes += zeros.len_bytes();
                at = zeros.end();
            }
        }
        self.done = self.window;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
