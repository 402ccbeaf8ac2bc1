//! The path of extents from a finder to its sink: in order, with adjacent copies merged, and
//! counted.

use byteback_extents::ByteRange;

use super::{ExtentSink, FindStats};

/// The extents of the new content that were passed on so far.
pub(super) struct Extents<S> {
    sink: S,
    /// The offset of the next extent.
    end: u64,
    /// A pending copy, which may be continued; it ends at `end`.
    copy: Option<(ByteRange, u64)>,
    /// Counted here: copied, literal and zero bytes. The finder counts the bytes that it examines.
    pub(super) stats: FindStats,
}

impl<S: ExtentSink> Extents<S> {
    pub(super) fn new(sink: S) -> Self {
        Self {
            sink,
            end: 0,
            copy: None,
            stats: FindStats::default(),
        }
    }

    /// The offset of the next extent.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// The next `len_bytes` equal the base from `base_offset` on.
    pub(super) fn copy(&mut self, len_bytes: u64, base_offset: u64) -> Result<(), S::Error> {
        let Some(range) = ByteRange::from_offset_len(self.end, len_bytes) else {
            return Ok(());
        };
        self.copy = match self.copy {
            Some((before, from)) if from + before.len_bytes() == base_offset => Some((before.hull(range), from)),
            _ => {
                self.flush()?;
                Some((range, base_offset))
            }
        };
        self.end = range.end();
        self.stats.copied_bytes += len_bytes;
        Ok(())
    }

    /// The next bytes are these.
    pub(super) fn literal(&mut self, bytes: &[u8]) -> Result<(), S::Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.flush()?;
        self.sink.literal(self.end, bytes)?;
        self.end += bytes.len() as u64;
        self.stats.literal_bytes += bytes.len() as u64;
        Ok(())
    }

    /// The next bytes are these, except for zeros that are holes; `holes` ascend, lie within the
    /// bytes, and count from the content's start.
    pub(super) fn literal_with_holes(&mut self, bytes: &[u8], holes: &[ByteRange]) -> Result<(), S::Error> {
        let start = self.end;
        let mut done = 0;
        for hole in holes {
            // Both within `bytes`, which are in memory.
            let hole_start = (hole.start().saturating_sub(start) as usize).clamp(done, bytes.len());
            let hole_end = (hole.end().saturating_sub(start) as usize).clamp(hole_start, bytes.len());
            self.literal(&bytes[done..hole_start])?;
            self.zero((hole_end - hole_start) as u64)?;
            done = hole_end;
        }
        self.literal(&bytes[done..])
    }

    /// The next `len_bytes` are a hole.
    pub(super) fn zero(&mut self, len_bytes: u64) -> Result<(), S::Error> {
        let Some(range) = ByteRange::from_offset_len(self.end, len_bytes) else {
            return Ok(());
        };
        self.flush()?;
        self.sink.zero(range)?;
        self.end = range.end();
        self.stats.zero_bytes += len_bytes;
        Ok(())
    }

    /// Ends the content.
    pub(super) fn finish(mut self) -> Result<(S, FindStats), S::Error> {
        self.flush()?;
        Ok((self.sink, self.stats))
    }

    fn flush(&mut self) -> Result<(), S::Error> {
        match self.copy.take() {
            Some((range, base_offset)) => self.sink.copy(range, base_offset),
            None => Ok(()),
        }
    }
}
