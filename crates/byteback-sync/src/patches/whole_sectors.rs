//! Writes each sector once, however many pieces of a delta lie in it, so that a crash leaves it as
//! it was or as it is to be.
//!
//! Pieces come in ascending order. Those that share a sector become one write, with the bytes
//! between them as they are.

use std::io;

use byteback_delta::{Base, Target};
use byteback_extents::ByteRange;

use super::sectors::SECTOR_LEN;

/// From this length on, complete sectors are written.
const WRITE_LEN: usize = 256 * 1024;

/// Buffer that writes whole sectors: see the module.
pub(super) struct WholeSectors<'a, T> {
    target: &'a mut T,
    /// Offset of the bytes that are not written yet.
    start: u64,
    bytes: Vec<u8>,
}

impl<'a, T: Target + Base> WholeSectors<'a, T> {
    pub(super) fn new(target: &'a mut T) -> Self {
        Self {
            target,
            start: 0,
            bytes: Vec::new(),
        }
    }

    /// Writes what is left.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if !self.bytes.is_empty() {
            self.target.write_range(self.start, &self.bytes)?;
            self.bytes.clear();
        }
        Ok(())
    }

    fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes.len() as u64)
    }

    /// Makes the next write at `offset` continue the buffered bytes, or become the first of them.
    fn advance_to(&mut self, offset: u64) -> io::Result<()> {
        let end = self.end();
        let shares_sector =
            !self.bytes.is_empty() && offset >= end && offset / SECTOR_LEN == end.saturating_sub(1) / SECTOR_LEN;
        if !shares_sector {
            self.flush()?;
            self.start = offset;
            return Ok(());
        }
        // Less than a sector.
        let held = self.bytes.len();
        let gap = usize::try_from(offset.saturating_sub(end)).unwrap_or_default();
        self.bytes.resize(held.saturating_add(gap), 0);
        if let Some(gap) = self.bytes.get_mut(held..).filter(|gap| !gap.is_empty()) {
            self.target.read_range(end, gap)?;
        }
        Ok(())
    }

    /// Writes all but the last sector, if that is worth it.
    fn write_whole(&mut self) -> io::Result<()> {
        if self.bytes.len() < WRITE_LEN {
            return Ok(());
        }
        let open = usize::try_from(self.end() % SECTOR_LEN).unwrap_or_default();
        let whole = self.bytes.len().saturating_sub(open);
        self.target
            .write_range(self.start, self.bytes.get(..whole).unwrap_or_default())?;
        self.bytes.drain(..whole);
        self.start = self.start.saturating_add(whole as u64);
        Ok(())
    }
}

impl<T: Target + Base> Target for WholeSectors<'_, T> {
    fn len_bytes(&self) -> io::Result<u64> {
        Base::len_bytes(self.target)
    }

    fn write_range(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.advance_to(offset)?;
        self.bytes.extend_from_slice(bytes);
        self.write_whole()
    }

    fn punch_hole(&mut self, range: ByteRange) -> io::Result<()> {
        let start = range.start().checked_next_multiple_of(SECTOR_LEN).unwrap_or(u64::MAX);
        let whole = ByteRange::new(start, range.end() / SECTOR_LEN * SECTOR_LEN);
        let Some(whole) = whole else {
            // Within one sector, or the parts of two.
            let mut at = range.start();
            while at < range.end() {
                let end = (at / SECTOR_LEN + 1).saturating_mul(SECTOR_LEN).min(range.end());
                self.zeros(at, end)?;
                at = end;
            }
            return Ok(());
        };
        self.zeros(range.start(), whole.start())?;
        self.flush()?;
        self.target.punch_hole(whole)?;
        self.zeros(whole.end(), range.end())
    }

    fn set_len_bytes(&mut self, len_bytes: u64) -> io::Result<()> {
        self.flush()?;
        self.target.set_len_bytes(len_bytes)
    }
}

impl<T: Target + Base> WholeSectors<'_, T> {
    /// Zeros of less than a sector.
    fn zeros(&mut self, from: u64, to: u64) -> io::Result<()> {
        let zeros = [0; SECTOR_LEN as usize];
        let len = usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX);
        match zeros.get(..len) {
            Some([]) => Ok(()),
            Some(zeros) => self.write_range(from, zeros),
            None => Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}
