//! Base + delta stream = new content, in a streaming way.
//!
//! [`apply_to_new`] builds the new content beside the base: it reads uncovered ranges from the
//! base, piece by piece, and leaves holes where the delta says zero and where the base itself has
//! holes. [`apply_in_place`] turns the base into the new content and touches only the bytes that
//! differ; that is possible only without copies, which the stream's header declares before anything
//! is written.
//!
//! Neither is atomic: if one fails midway, the target holds a mixture. After a failed
//! [`apply_to_new`] the caller discards the target; the base is untouched. After a failed
//! [`apply_in_place`] the same stream can be applied again from its beginning, with the right
//! result: every byte written comes from the stream alone, and the length grows first and shrinks
//! last.
//!
//! Memory: one block and one buffer. Nothing is synced; a caller that needs durability syncs the
//! target.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use byteback_extents::ByteRange;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use crate::frame::{FrameDecoder, FrameError};
use crate::read::{Block, DeltaReader, ReadError};
use crate::source::Source;
use crate::wire::FrameSlice;

#[cfg(test)]
mod tests;

/// The most bytes that are copied at once.
const COPY_BUFFER_LEN: u64 = 256 * 1024;

/// The content that a delta starts from.
pub trait Base {
    /// The length of the content, in bytes.
    ///
    /// # Errors
    /// If it cannot be determined.
    fn len_bytes(&self) -> io::Result<u64>;

    /// Fills `buffer` with the bytes from `offset` on.
    ///
    /// # Errors
    /// If these bytes cannot be read, or the content ends before `buffer` is full.
    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// The first part of `range` that may hold non-zero bytes; `None` if all of it is zeros.
    /// Returning all of `range` is always correct.
    ///
    /// # Errors
    /// If it cannot be determined.
    fn next_data(&self, range: ByteRange) -> io::Result<Option<ByteRange>> {
        Ok(Some(range))
    }
}

/// The content that a delta is applied to.
pub trait Target {
    /// The length of the content, in bytes.
    ///
    /// # Errors
    /// If it cannot be determined.
    fn len_bytes(&self) -> io::Result<u64>;

    /// Writes `bytes` from `offset` on; never past the length.
    ///
    /// # Errors
    /// If not all can be written.
    fn write_range(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes all bytes of `range` zero, without storing them if possible; the length stays.
    ///
    /// # Errors
    /// If that is not possible.
    fn punch_hole(&mut self, range: ByteRange) -> io::Result<()>;

    /// Cuts the target off at `len_bytes`, or lets it grow by a hole.
    ///
    /// # Errors
    /// If that is not possible.
    fn set_len_bytes(&mut self, len_bytes: u64) -> io::Result<()>;
}

/// A delta cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The stream cannot be read.
    #[error("cannot apply the delta")]
    Delta(#[from] ReadError),
    /// A frame of the stream cannot be decoded.
    #[error("cannot apply the delta's frame at byte {position}")]
    Frame {
        /// The position of the frame in the stream.
        position: u64,
        /// The frame's defect.
        source: FrameError,
    },
    /// The decompressor could not be set up.
    #[error("cannot set up the decompressor")]
    Decompressor(#[source] io::Error),
    /// The base is not the one that the delta starts from.
    #[error("the delta needs a base of {expected} bytes, but this one has {found}: it belongs to another version")]
    BaseLen {
        /// The base length in the stream.
        expected: u64,
        /// The length found.
        found: u64,
    },
    /// The target of [`apply_to_new`] already holds something.
    #[error("the target already has {found} bytes; use an empty one")]
    TargetNotEmpty {
        /// The length found.
        found: u64,
    },
    /// The stream may hold copies.
    #[error("the delta copies bytes from other offsets and cannot be applied in place; apply it to a new file")]
    HasCopies,
    /// The base cannot be read.
    #[error("cannot read the base at {range}")]
    ReadBase {
        /// The range in the base.
        range: ByteRange,
        /// The error of the base.
        source: io::Error,
    },
    /// The target cannot be written.
    #[error("cannot write the target at {range}")]
    WriteTarget {
        /// The range in the target.
        range: ByteRange,
        /// The error of the target.
        source: io::Error,
    },
    /// A length cannot be determined.
    #[error("cannot determine the length of the base or the target")]
    Len(#[source] io::Error),
    /// The target's length cannot be changed.
    #[error("cannot set the length of the target to {len_bytes} bytes")]
    SetLen {
        /// The length wanted.
        len_bytes: u64,
        /// The error of the target.
        source: io::Error,
    },
}

/// Totals of an application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApplyStats {
    /// Bytes written from literals.
    pub literal_bytes: u64,
    /// Bytes read from the base and written.
    pub copied_bytes: u64,
}

/// Builds the new content in an empty target from the base and a stream whose header alone was read
/// so far.
///
/// # Errors
/// If the base has another length than the stream expects, the target is not empty, the stream is
/// incomplete, or reading or writing fails. The target then holds nothing of use.
pub fn apply_to_new<R: Read>(
    base: &(impl Base + ?Sized),
    delta: &mut DeltaReader<R>,
    target: &mut impl Target,
) -> Result<ApplyStats, ApplyError> {
    let header = *delta.header();
    let found = base.len_bytes().map_err(ApplyError::Len)?;
    if found != header.base_len_bytes {
        return Err(ApplyError::BaseLen {
            expected: header.base_len_bytes,
            found,
        });
    }
    let found = target.len_bytes().map_err(ApplyError::Len)?;
    if found != 0 {
        return Err(ApplyError::TargetNotEmpty { found });
    }
    set_len(target, header.new_len_bytes)?;
    let mut copier = Copier::new(base);
    let mut position = 0;
    let literal_bytes = for_each_block(delta, |block, raw| {
        for extent in &block.extents {
            let range = extent.range;
            if let Some(kept) = ByteRange::new(position, range.start().min(header.base_len_bytes)) {
                copier.copy(kept, position, target)?;
            }
            match extent.source {
                Source::Literal(slice) => write_literal(target, range, raw, slice)?,
                Source::Copy { base_offset } => {
                    if let Some(copied) = ByteRange::from_offset_len(base_offset, range.len_bytes()) {
                        copier.copy(copied, range.start(), target)?;
                    }
                }
                // The target began empty: unwritten ranges are holes.
                Source::Zero => {}
            }
            position = range.end();
        }
        Ok(())
    })?;
    if let Some(kept) = ByteRange::new(position, header.new_len_bytes.min(header.base_len_bytes)) {
        copier.copy(kept, position, target)?;
    }
    Ok(ApplyStats {
        literal_bytes,
        copied_bytes: copier.copied_bytes,
    })
}

/// Turns the base, which is the target itself, into the new content by a stream whose header alone
/// was read so far. Only differing bytes are written. After a failure, the same stream can be
/// applied again; hence a target that already has the new length is accepted, and the caller must
/// know by other means that it is the right base.
///
/// # Errors
/// If the stream may hold copies or the target has another length than the stream expects; nothing
/// is changed then. If the stream is incomplete or writing fails, the target holds a mixture of
/// both contents.
pub fn apply_in_place<R: Read>(delta: &mut DeltaReader<R>, target: &mut impl Target) -> Result<ApplyStats, ApplyError> {
    let header = *delta.header();
    if header.has_copies {
        return Err(ApplyError::HasCopies);
    }
    let found = target.len_bytes().map_err(ApplyError::Len)?;
    if found != header.base_len_bytes && found != header.new_len_bytes {
        return Err(ApplyError::BaseLen {
            expected: header.base_len_bytes,
            found,
        });
    }
    if found < header.new_len_bytes {
        set_len(target, header.new_len_bytes)?;
    }
    let literal_bytes = for_each_block(delta, |block, raw| {
        for extent in &block.extents {
            match extent.source {
                Source::Literal(slice) => write_literal(target, extent.range, raw, slice)?,
                Source::Zero => target
                    .punch_hole(extent.range)
                    .map_err(|source| ApplyError::WriteTarget {
                        range: extent.range,
                        source,
                    })?,
                // The reader refuses copies in a stream that declares none.
                Source::Copy { .. } => return Err(ApplyError::HasCopies),
            }
        }
        Ok(())
    })?;
    // Shrinking comes last: nothing is cut off before the whole stream was verified.
    if found > header.new_len_bytes {
        set_len(target, header.new_len_bytes)?;
    }
    Ok(ApplyStats {
        literal_bytes,
        copied_bytes: 0,
    })
}

/// Calls `apply` with each block and its literal bytes, until the verified end of the stream;
/// returns the number of literal bytes.
fn for_each_block<R: Read>(
    delta: &mut DeltaReader<R>,
    mut apply: impl FnMut(&Block, &[u8]) -> Result<(), ApplyError>,
) -> Result<u64, ApplyError> {
    let mut decoder = FrameDecoder::new().map_err(ApplyError::Decompressor)?;
    let mut block = Block::default();
    let mut raw = Vec::new();
    let mut literal_bytes = 0;
    while delta.read_block(&mut block)? {
        block
            .frame
            .decode(&mut decoder, &mut raw)
            .map_err(|source| ApplyError::Frame {
                position: block.frame.stream_offset,
                source,
            })?;
        apply(&block, &raw)?;
        literal_bytes += u64::from(block.frame.raw_len);
    }
    Ok(literal_bytes)
}

fn set_len(target: &mut impl Target, len_bytes: u64) -> Result<(), ApplyError> {
    target
        .set_len_bytes(len_bytes)
        .map_err(|source| ApplyError::SetLen { len_bytes, source })
}

/// Writes the bytes of a literal; the reader has checked that the literals of a block are just as
/// long as its frame.
fn write_literal(target: &mut impl Target, range: ByteRange, raw: &[u8], slice: FrameSlice) -> Result<(), ApplyError> {
    // A literal is no longer than a frame.
    let bytes = &raw[slice.skip_bytes as usize..][..range.len_bytes() as usize];
    target
        .write_range(range.start(), bytes)
        .map_err(|source| ApplyError::WriteTarget { range, source })
}

/// Copies from the base to the target, through one buffer and around holes.
pub(crate) struct Copier<'a, B: ?Sized> {
    base: &'a B,
    buffer: Vec<u8>,
    copied_bytes: u64,
}

impl<'a, B: Base + ?Sized> Copier<'a, B> {
    pub(crate) fn new(base: &'a B) -> Self {
        Self {
            base,
            buffer: Vec::new(),
            copied_bytes: 0,
        }
    }

    /// The number of bytes copied, without those in holes.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    /// Copies `from` to `to_offset` of a target that holds zeros there.
    pub(crate) fn copy(&mut self, from: ByteRange, to_offset: u64, target: &mut impl Target) -> Result<(), ApplyError> {
        let mut rest = Some(from);
        while let Some(range) = rest {
            let read_error = |source| ApplyError::ReadBase { range, source };
            let Some(data) = self
                .base
                .next_data(range)
                .map_err(read_error)?
                .and_then(|data| data.intersect(range))
            else {
                return Ok(());
            };
            let (piece, _) = data.split_at(data.start().saturating_add(COPY_BUFFER_LEN));
            let piece = piece.unwrap_or(data);
            // At most COPY_BUFFER_LEN.
            self.buffer.resize(piece.len_bytes() as usize, 0);
            self.base
                .read_range(piece.start(), &mut self.buffer)
                .map_err(read_error)?;
            let to_start = to_offset + (piece.start() - from.start());
            target
                .write_range(to_start, &self.buffer)
                .map_err(|source| ApplyError::WriteTarget {
                    range: ByteRange::from_offset_len(to_start, piece.len_bytes()).unwrap_or(piece),
                    source,
                })?;
            self.copied_bytes += piece.len_bytes();
            rest = ByteRange::new(piece.end(), range.end());
        }
        Ok(())
    }
}

/// An empty base, for a delta that carries a whole content.
pub struct EmptyBase;

impl Base for EmptyBase {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(0)
    }

    fn read_range(&self, _offset: u64, _buffer: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

impl Base for [u8] {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let bytes = self.get(start..).and_then(|bytes| bytes.get(..buffer.len()));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Finding holes moves the file position, on which nothing else here depends.
impl Base for File {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        FileExt::read_exact_at(self, buffer, offset)
    }

    fn next_data(&self, range: ByteRange) -> io::Result<Option<ByteRange>> {
        let start = match seek(self, SeekFrom::Data(range.start())) {
            Ok(start) => start,
            // Only a hole from here to the end.
            Err(Errno::NXIO) => return Ok(None),
            // A file system that cannot report holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some(range)),
            Err(errno) => return Err(errno.into()),
        };
        if start >= range.end() {
            return Ok(None);
        }
        let end = seek(self, SeekFrom::Hole(start)).unwrap_or(range.end());
        Ok(ByteRange::new(start, end.min(range.end())))
    }
}

impl Target for Vec<u8> {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn write_range(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let room = self.get_mut(start..).and_then(|room| room.get_mut(..bytes.len()));
        room.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(bytes);
        Ok(())
    }

    fn punch_hole(&mut self, range: ByteRange) -> io::Result<()> {
        let end = usize::try_from(range.end()).map_err(|_| io::ErrorKind::InvalidInput)?;
        // The start is below the end.
        self.get_mut(range.start() as usize..end)
            .ok_or(io::ErrorKind::InvalidInput)?
            .fill(0);
        Ok(())
    }

    fn set_len_bytes(&mut self, len_bytes: u64) -> io::Result<()> {
        let len = usize::try_from(len_bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        if let Some(more) = len.checked_sub(self.len()) {
            self.try_reserve_exact(more)?;
        }
        self.resize(len, 0);
        Ok(())
    }
}

impl Target for File {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn write_range(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, offset)
    }

    fn punch_hole(&mut self, range: ByteRange) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        loop {
            match fallocate(&*self, flags, range.start(), range.len_bytes()) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => return write_zeros(self, range),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn set_len_bytes(&mut self, len_bytes: u64) -> io::Result<()> {
        File::set_len(self, len_bytes)
    }
}

/// Writes zeros, for file systems that cannot punch holes.
fn write_zeros(file: &File, range: ByteRange) -> io::Result<()> {
    let zeros = [0; 64 * 1024];
    let mut offset = range.start();
    while offset < range.end() {
        let len = (range.end() - offset).min(zeros.len() as u64);
        // No longer than `zeros`.
        FileExt::write_all_at(file, &zeros[..len as usize], offset)?;
        offset += len;
    }
    Ok(())
}
