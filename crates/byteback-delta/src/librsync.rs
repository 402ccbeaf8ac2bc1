//! A delta in librsync's format, which the stock `rdiff patch` applies.
//!
//! The format (librsync's `command.h` and `patch.c` are its only description) is a magic number and
//! then commands, all numbers big-endian. A delta is a recipe for the new content from its first
//! byte to its last, so ranges that our own stream leaves out are spelt out: kept ranges become
//! copies, and ranges past the base's end become zeros.
//!
//! | first byte | arguments | meaning |
//! |---|---|---|
//! | 0 | - | the end |
//! | 1 to 64 | - | literal bytes, as many as the number says |
//! | 65 to 68 | length, in 1, 2, 4 or 8 bytes | literal bytes of this length |
//! | 69 to 84 | position and length, each in 1, 2, 4 or 8 bytes | copy from the base |
//!
//! Copies and literals are cut at [`COMMAND_LEN_MAX`]: librsync keeps the rest of a copy in an
//! `int`, so versions in use misread longer ones. Hence no length needs 8 bytes; positions do.
//!
//! **Holes.** There is no command for zeros, and none that copies from the new content. Zeros
//! therefore cost their length in bytes, unless the caller knows a range of the base that reads as
//! zeros ([`LibrsyncWriter::zeros_in_base`]): then each length of that range costs one copy
//! command.
//!
//! Programs of ours only write deltas. For tests and fuzzing there are `read`, which applies them,
//! `signature`, which reads and writes signatures, and `IntoLibrsync`, by which a finder writes a
//! delta.
//!
//! Extents come in ascending order and are written at once; memory is one buffer. The format has no
//! checksum and does not name its base: applied to another base, it makes another file. If a call
//! fails, the delta is useless: `rdiff` refuses one without its end command.

use std::io::{self, Read, Write};

use byteback_extents::{ByteRange, ExtentValue};

use crate::map::DeltaMap;
use crate::sequence::{ExtentSink, Sequence, WriteError};

#[cfg(any(test, feature = "fuzzing"))]
mod read;
#[cfg(any(test, feature = "fuzzing"))]
mod signature;
#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "fuzzing"))]
pub use read::{LibrsyncError, apply_librsync, read_librsync_delta};
#[cfg(any(test, feature = "fuzzing"))]
pub use signature::{LIBRSYNC_STRONG_LEN_MIN, LibrsyncSignatureWriter, librsync_params, read_librsync_signature};

/// The first bytes of every delta of librsync.
pub const LIBRSYNC_MAGIC: [u8; 4] = 0x7273_0236_u32.to_be_bytes();

/// The most bytes that one command produces.
pub const COMMAND_LEN_MAX: u64 = 1 << 30;

/// Shorter runs of zeros in the base are not worth copying.
const ZEROS_LEN_MIN: u64 = 4096;
/// The number of bytes of a literal held in memory.
const BUFFER_LEN: usize = 1 << 16;

const OP_END: u8 = 0;
/// The longest literal whose length is the command itself.
const IMMEDIATE_LEN_MAX: u64 = 64;
/// The first of four commands: literals with a length argument.
const OP_LITERAL: u8 = 0x41;
/// The first of sixteen commands: copies, by the width of the position and then of the length.
const OP_COPY: u8 = 0x45;

/// The totals of a delta of librsync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LibrsyncStats {
    /// Literal bytes that the delta carries, including zeros.
    pub literal_bytes: u64,
    /// Literal bytes that are zeros for holes.
    pub zero_bytes: u64,
    /// Bytes copied from the base.
    pub copied_bytes: u64,
    /// The length of the delta.
    pub wire_bytes: u64,
}

/// Writes a delta for `rdiff patch`; see the module's header.
pub struct LibrsyncWriter<W> {
    out: W,
    /// Checks the order of extents. All that it accepted is written, or is in `copy` or
    /// `zero_bytes`.
    sequence: Sequence,
    zeros: Option<ByteRange>,
    /// A pending copy, which may become longer: position in the base, and length.
    copy: Option<(u64, u64)>,
    /// The number of pending zeros, which may become more; never together with `copy`.
    zero_bytes: u64,
    buffer: Vec<u8>,
    stats: LibrsyncStats,
}

impl<W: Write> LibrsyncWriter<W> {
    /// Begins a delta between contents of these lengths. Give `out` a buffer: commands are written
    /// one by one.
    ///
    /// # Errors
    /// If a length is larger than any file's, or `out` refuses the bytes.
    pub fn new(mut out: W, base_len_bytes: u64, new_len_bytes: u64) -> Result<Self, WriteError> {
        let sequence = Sequence::new(base_len_bytes, new_len_bytes)?;
        out.write_all(&LIBRSYNC_MAGIC).map_err(WriteError::Write)?;
        Ok(Self {
            out,
            sequence,
            zeros: None,
            copy: None,
            zero_bytes: 0,
            buffer: vec![0; BUFFER_LEN],
            stats: LibrsyncStats {
                wire_bytes: LIBRSYNC_MAGIC.len() as u64,
                ..LibrsyncStats::default()
            },
        })
    }

    /// Names a range of the base that is known to be zero, which makes holes cheap; the longest
    /// such range is best.
    pub fn zeros_in_base(&mut self, zeros: ByteRange) {
        let (zeros, _) = zeros.split_at(self.sequence.base_len_bytes());
        self.zeros = zeros.filter(|zeros| zeros.len_bytes() >= ZEROS_LEN_MIN);
    }

    /// Gives `range` the next `range.len_bytes()` bytes that `bytes` yields; reads no more. The gap
    /// before it is kept from the base.
    ///
    /// # Errors
    /// If `range` is out of order or outside, `bytes` yields too few, or they cannot be written.
    pub fn literal(&mut self, range: ByteRange, mut bytes: impl Read) -> Result<(), WriteError> {
        self.guarded(|writer| writer.add_literal(range, &mut |_, buffer| bytes.read_exact(buffer)))
    }

    /// Takes the bytes of `range` from the base at `base_offset`. The gap before it is kept from
    /// the base.
    ///
    /// # Errors
    /// If `range` is out of order or outside, the copy lies outside the base, or it cannot be
    /// written.
    pub fn copy(&mut self, range: ByteRange, base_offset: u64) -> Result<(), WriteError> {
        self.guarded(|writer| writer.add_copy(range, base_offset))
    }

    /// Makes `range` zeros. The gap before it is kept from the base.
    ///
    /// # Errors
    /// If `range` is out of order or outside, or pending commands cannot be written.
    pub fn zero(&mut self, range: ByteRange) -> Result<(), WriteError> {
        self.guarded(|writer| writer.add_zeros(range))
    }

    /// Writes all extents of `map`; `read_literal` fills a buffer with the bytes of a literal.
    ///
    /// # Errors
    /// As the calls for single extents; the lengths of `map` are not compared with this delta's.
    pub fn map<L: ExtentValue>(
        &mut self,
        map: &DeltaMap<L>,
        read_literal: impl FnMut(&L, &mut [u8]) -> io::Result<()>,
    ) -> Result<(), WriteError> {
        self.add_map(map, read_literal)
    }

    /// Keeps the base up to the end of the new content, writes the end command, and flushes `out`.
    ///
    /// # Errors
    /// If an earlier call failed or `out` refuses the bytes.
    pub fn finish(mut self) -> Result<(W, LibrsyncStats), WriteError> {
        self.guarded(|writer| {
            let rest = writer.sequence.finish();
            writer.keep(rest)?;
            writer.write_pending()?;
            writer.write(&[OP_END])?;
            writer.out.flush().map_err(WriteError::Write)
        })?;
        Ok((self.out, self.stats))
    }

    /// Takes bytes from their own place in the base; past its end they are zeros.
    fn keep(&mut self, kept: Option<ByteRange>) -> Result<(), WriteError> {
        let Some(kept) = kept else { return Ok(()) };
        let (in_base, past_base) = kept.split_at(self.sequence.base_len_bytes());
        if let Some(in_base) = in_base {
            self.put_copy(in_base.start(), in_base.len_bytes())?;
        }
        past_base.map_or(Ok(()), |past_base| self.put_zeros(past_base.len_bytes()))
    }

    fn put_zeros(&mut self, len_bytes: u64) -> Result<(), WriteError> {
        if self.copy.is_some() {
            self.write_pending()?;
        }
        self.zero_bytes += len_bytes;
        Ok(())
    }

    fn put_copy(&mut self, base_offset: u64, len_bytes: u64) -> Result<(), WriteError> {
        if let Some((start, len)) = &mut self.copy
            && *start + *len == base_offset
        {
            *len += len_bytes;
            return Ok(());
        }
        self.write_pending()?;
        self.copy = Some((base_offset, len_bytes));
        Ok(())
    }

    fn write_pending(&mut self) -> Result<(), WriteError> {
        if let Some((start, len)) = self.copy.take() {
            return self.write_copy(start, len);
        }
        let mut left = std::mem::take(&mut self.zero_bytes);
        match self.zeros.filter(|_| left >= ZEROS_LEN_MIN) {
            Some(zeros) => {
                while left > 0 {
                    let take = left.min(zeros.len_bytes());
                    self.write_copy(zeros.start(), take)?;
                    left -= take;
                }
                Ok(())
            }
            None => {
                self.stats.zero_bytes += left;
                self.write_literals(left, &mut |buffer| {
                    buffer.fill(0);
                    Ok(())
                })
            }
        }
    }

    fn write_copy(&mut self, mut start: u64, mut left: u64) -> Result<(), WriteError> {
        while left > 0 {
            let len = left.min(COMMAND_LEN_MAX);
            let ((start_width, start_bytes), (len_width, len_bytes)) = (argument(start), argument(len));
            self.write(&[OP_COPY + start_width * 4 + len_width])?;
            self.write(tail(&start_bytes, start_width))?;
            self.write(tail(&len_bytes, len_width))?;
            self.stats.copied_bytes += len;
            start += len;
            left -= len;
        }
        Ok(())
    }

    /// Writes `len_bytes` literal bytes that `fill` provides, a buffer at a time.
    fn write_literals(
        &mut self,
        len_bytes: u64,
        fill: &mut dyn FnMut(&mut [u8]) -> Result<(), WriteError>,
    ) -> Result<(), WriteError> {
        let mut left = len_bytes;
        while left > 0 {
            let mut in_command = left.min(COMMAND_LEN_MAX);
            left -= in_command;
            self.stats.literal_bytes += in_command;
            if in_command <= IMMEDIATE_LEN_MAX {
                self.write(&[in_command as u8])?;
            } else {
                let (width, bytes) = argument(in_command);
                self.write(&[OP_LITERAL + width])?;
                self.write(tail(&bytes, width))?;
            }
            while in_command > 0 {
                let take = in_command.min(BUFFER_LEN as u64);
                let buffer = &mut self.buffer[..take as usize];
                fill(buffer)?;
                self.out.write_all(buffer).map_err(WriteError::Write)?;
                self.stats.wire_bytes += take;
                in_command -= take;
            }
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        self.stats.wire_bytes += bytes.len() as u64;
        self.out.write_all(bytes).map_err(WriteError::Write)
    }
}

/// A number as an argument: the code of its width (0 to 3 for 1, 2, 4 and 8 bytes), and its bytes.
fn argument(number: u64) -> (u8, [u8; 8]) {
    let width = match number {
        0..=0xff => 0,
        0x100..=0xffff => 1,
        0x1_0000..=0xffff_ffff => 2,
        _ => 3,
    };
    (width, number.to_be_bytes())
}

/// The last bytes of a number, by the code of its width.
fn tail(bytes: &[u8; 8], width: u8) -> &[u8] {
    &bytes[8 - (1 << width)..]
}

/// Writes the extents of a finder as a delta of librsync. Even bytes that stay in place are spelt
/// out: the base's length may be unknown.
#[cfg(any(test, feature = "fuzzing"))]
pub struct IntoLibrsync<'a, W>(pub &'a mut LibrsyncWriter<W>);

#[cfg(any(test, feature = "fuzzing"))]
impl<W: Write> crate::find::ExtentSink for IntoLibrsync<'_, W> {
    type Error = WriteError;

    fn literal(&mut self, offset: u64, bytes: &[u8]) -> Result<(), WriteError> {
        match ByteRange::from_offset_len(offset, bytes.len() as u64) {
            Some(range) => self.0.literal(range, bytes),
            None => Ok(()),
        }
    }

    fn copy(&mut self, range: ByteRange, base_offset: u64) -> Result<(), WriteError> {
        self.0.copy(range, base_offset)
    }

    fn zero(&mut self, range: ByteRange) -> Result<(), WriteError> {
        self.0.zero(range)
    }
}

impl<W: Write> ExtentSink for LibrsyncWriter<W> {
    fn sequence(&mut self) -> &mut Sequence {
        &mut self.sequence
    }

    fn add_literal(
        &mut self,
        range: ByteRange,
        fill: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> Result<(), WriteError> {
        let between = self.sequence.begin(range)?;
        self.keep(between)?;
        self.write_pending()?;
        let mut done_bytes = 0;
        self.write_literals(range.len_bytes(), &mut |buffer| {
            let filled = fill(done_bytes, buffer);
            done_bytes += buffer.len() as u64;
            filled.map_err(|source| WriteError::ReadLiteral { range, source })
        })
    }

    fn add_copy(&mut self, range: ByteRange, base_offset: u64) -> Result<(), WriteError> {
        self.sequence.check_copy(range, base_offset)?;
        let between = self.sequence.begin(range)?;
        self.keep(between)?;
        self.put_copy(base_offset, range.len_bytes())
    }

    fn add_zeros(&mut self, range: ByteRange) -> Result<(), WriteError> {
        let between = self.sequence.begin(range)?;
        self.keep(between)?;
        self.put_zeros(range.len_bytes())
    }
}
