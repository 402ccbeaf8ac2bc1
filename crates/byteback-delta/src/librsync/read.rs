//! Reading a delta of librsync, as the stock `rdiff delta` writes it, as extents; and applying one.
//!
//! The format has no lengths, no checksums and no name of the base: the caller passes the base's
//! length and the longest new content that it accepts, since a few bytes of copies can ask for any
//! length. Damage may go unnoticed; the caller that applies such a delta must know the result's
//! digest by other means. Memory: one buffer. Nothing is read beyond the end command.

use std::io::{self, ErrorKind, Read};

use byteback_extents::ByteRange;

use super::{BUFFER_LEN, IMMEDIATE_LEN_MAX, LIBRSYNC_MAGIC, OP_COPY, OP_END, OP_LITERAL};
use crate::apply::{ApplyError, ApplyStats, Base, Copier, Target};
use crate::find::ExtentSink;

/// A delta of librsync cannot be read. Positions are in bytes from the stream's first.
#[derive(Debug, thiserror::Error)]
pub enum LibrsyncError<E> {
    /// The stream failed.
    #[error("cannot read the librsync delta at byte {position}")]
    Read {
        /// The position of the failed read.
        position: u64,
        /// The error of the stream.
        source: io::Error,
    },
    /// The stream ends before its end command.
    #[error("the librsync delta is truncated at or after byte {position}")]
    CutOff {
        /// The position of the incomplete part.
        position: u64,
    },
    /// The first bytes are another format's.
    #[error("not a librsync delta")]
    NotADelta,
    /// An unknown command.
    #[error("the librsync delta has the unknown command {command} at byte {position}: it is damaged")]
    Command {
        /// The position of the command.
        position: u64,
        /// The first byte of the command.
        command: u8,
    },
    /// A copy of nothing, or from outside the base.
    #[error(
        "the librsync delta copies {len_bytes} bytes from {base_offset} of a base of {base_len_bytes}, at byte \
         {position}: it belongs to another base, or is damaged"
    )]
    Copy {
        /// The position of the command.
        position: u64,
        /// The offset in the base.
        base_offset: u64,
        /// The number of bytes to copy.
        len_bytes: u64,
        /// The length of the base.
        base_len_bytes: u64,
    },
    /// The new content would be longer than the caller accepts.
    #[error("the librsync delta makes more bytes than the limit of {new_len_max}")]
    TooLong {
        /// The limit.
        new_len_max: u64,
    },
    /// The sink failed.
    #[error("cannot store the extents of the librsync delta")]
    Sink(#[source] E),
}

/// Reads a delta of librsync and passes its extents to `sink`, ascending and without gaps: literals
/// in pieces, and copies. Returns the sink and the length of the new content.
///
/// # Errors
/// If the stream fails, is not a delta, is cut off or detectably damaged, does not fit a base of
/// `base_len_bytes`, or makes more than `new_len_max` bytes; or the error of the sink.
pub fn read_librsync_delta<S: ExtentSink>(
    stream: impl Read,
    base_len_bytes: u64,
    new_len_max: u64,
    mut sink: S,
) -> Result<(S, u64), LibrsyncError<S::Error>> {
    let mut commands = Commands { stream, position: 0 };
    let mut magic = [0; 4];
    match commands.fill(&mut magic) {
        Ok(()) if magic == LIBRSYNC_MAGIC => {}
        Ok(()) | Err(LibrsyncError::CutOff { .. }) => return Err(LibrsyncError::NotADelta),
        Err(error) => return Err(error),
    }
    let mut buffer = vec![0; BUFFER_LEN];
    let mut end = 0;
    let extent = |end: u64, len_bytes: u64| {
        let range = ByteRange::from_offset_len(end, len_bytes).filter(|range| range.end() <= new_len_max);
        range.ok_or(LibrsyncError::TooLong { new_len_max })
    };
    loop {
        let position = commands.position;
        let command = commands.number(1)? as u8;
        match command {
            OP_END => return Ok((sink, end)),
            1..OP_COPY => {
                let mut left = match u64::from(command) {
                    len_bytes @ ..=IMMEDIATE_LEN_MAX => len_bytes,
                    _ => commands.number(1 << (command - OP_LITERAL))?,
                };
                if left > 0 {
                    extent(end, left)?;
                }
                while left > 0 {
                    // At most a buffer.
                    let piece = &mut buffer[..left.min(BUFFER_LEN as u64) as usize];
                    commands.fill(piece)?;
                    sink.literal(end, piece).map_err(LibrsyncError::Sink)?;
                    end += piece.len() as u64;
                    left -= piece.len() as u64;
                }
            }
            OP_COPY..OP_RESERVED => {
                let widths = command - OP_COPY;
                let base_offset = commands.number(1 << (widths / 4))?;
                let len_bytes = commands.number(1 << (widths % 4))?;
                let base_end = base_offset.checked_add(len_bytes);
                if len_bytes == 0 || base_end.is_none_or(|end| end > base_len_bytes) {
                    return Err(LibrsyncError::Copy {
                        position,
                        base_offset,
                        len_bytes,
                        base_len_bytes,
                    });
                }
                let range = extent(end, len_bytes)?;
                sink.copy(range, base_offset).map_err(LibrsyncError::Sink)?;
                end = range.end();
            }
            _ => return Err(LibrsyncError::Command { position, command }),
        }
    }
}

/// The first command that librsync reserves.
const OP_RESERVED: u8 = OP_COPY + 16;

/// The stream, and the position in it.
struct Commands<R> {
    stream: R,
    position: u64,
}

impl<R: Read> Commands<R> {
    fn fill<E>(&mut self, bytes: &mut [u8]) -> Result<(), LibrsyncError<E>> {
        let position = self.position;
        self.stream.read_exact(bytes).map_err(|source| match source.kind() {
            ErrorKind::UnexpectedEof => LibrsyncError::CutOff { position },
            _ => LibrsyncError::Read { position, source },
        })?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    /// Reads a number of `width` bytes, at most eight.
    fn number<E>(&mut self, width: usize) -> Result<u64, LibrsyncError<E>> {
        let mut bytes = [0; 8];
        self.fill(&mut bytes[8 - width..])?;
        Ok(u64::from_be_bytes(bytes))
    }
}

/// Builds the new content in an empty target from the base and a delta of librsync. Holes of the
/// base stay holes.
///
/// # Errors
/// As [`read_librsync_delta`]; and, as [`LibrsyncError::Sink`], if the target is not empty, or
/// reading or writing fails. The target then holds nothing of use.
pub fn apply_librsync(
    base: &(impl Base + ?Sized),
    stream: impl Read,
    target: &mut impl Target,
    new_len_max: u64,
) -> Result<ApplyStats, LibrsyncError<ApplyError>> {
    let applied = |error| LibrsyncError::Sink(error);
    let len = |source| applied(ApplyError::Len(source));
    let base_len_bytes = base.len_bytes().map_err(len)?;
    let found = target.len_bytes().map_err(len)?;
    if found != 0 {
        return Err(applied(ApplyError::TargetNotEmpty { found }));
    }
    let building = Building {
        copier: Copier::new(base),
        target,
        target_len: 0,
        new_len_max,
        literal_bytes: 0,
    };
    let (building, new_len) = read_librsync_delta(stream, base_len_bytes, new_len_max, building)?;
    if building.target_len != new_len {
        set_len(building.target, new_len).map_err(applied)?;
    }
    Ok(ApplyStats {
        literal_bytes: building.literal_bytes,
        copied_bytes: building.copier.copied_bytes(),
    })
}

/// The new content as far as it is built.
struct Building<'a, B: ?Sized, T> {
    copier: Copier<'a, B>,
    target: &'a mut T,
    /// The target's current length: it grows in large steps, and is cut to the final length at the
    /// end.
    target_len: u64,
    new_len_max: u64,
    literal_bytes: u64,
}

/// The least length to which the target first grows.
const GROW_LEN_MIN: u64 = 1 << 20;

impl<B: Base + ?Sized, T: Target> Building<'_, B, T> {
    fn reach(&mut self, end: u64) -> Result<(), ApplyError> {
        if end <= self.target_len {
            return Ok(());
        }
        let doubled = (2 * self.target_len.min(u64::MAX / 2)).max(GROW_LEN_MIN);
        self.target_len = doubled.min(self.new_len_max).max(end);
        set_len(self.target, self.target_len)
    }
}

fn set_len(target: &mut impl Target, len_bytes: u64) -> Result<(), ApplyError> {
    let set = target.set_len_bytes(len_bytes);
    set.map_err(|source| ApplyError::SetLen { len_bytes, source })
}

impl<B: Base + ?Sized, T: Target> ExtentSink for Building<'_, B, T> {
    type Error = ApplyError;

    fn literal(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ApplyError> {
        let Some(range) = ByteRange::from_offset_len(offset, bytes.len() as u64) else {
            return Ok(());
        };
        self.reach(range.end())?;
        self.literal_bytes += range.len_bytes();
        let written = self.target.write_range(offset, bytes);
        written.map_err(|source| ApplyError::WriteTarget { range, source })
    }

    fn copy(&mut self, range: ByteRange, base_offset: u64) -> Result<(), ApplyError> {
        self.reach(range.end())?;
        match ByteRange::from_offset_len(base_offset, range.len_bytes()) {
            Some(from) => self.copier.copy(from, range.start(), self.target),
            None => Ok(()),
        }
    }

    /// Never called, as the format has no zeros; unwritten ranges are holes.
    fn zero(&mut self, range: ByteRange) -> Result<(), ApplyError> {
        self.reach(range.end())
    }
}

#[cfg(test)]
mod tests;
