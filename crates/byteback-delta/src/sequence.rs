//! The rules that every writer of deltas keeps: extents ascend within the new content, copies lie
//! within the base, and after an error nothing more is written. The error type is common to all
//! writers.

use std::io;

use byteback_extents::{ByteRange, ExtentValue};

use crate::map::DeltaMap;
use crate::source::Source;
use crate::wire::FILE_LEN_MAX;

/// A delta cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The destination refused the bytes.
    #[error("cannot write the delta to its destination")]
    Write(#[source] io::Error),
    /// The bytes of a literal could not be read.
    #[error("cannot read the literal bytes {range}")]
    ReadLiteral {
        /// The range of the new content.
        range: ByteRange,
        /// The error of the source; `UnexpectedEof` if it had too few bytes.
        source: io::Error,
    },
    /// zstd could not be set up.
    #[error("cannot set up the compressor")]
    Compressor(#[source] io::Error),
    /// A length is larger than any file's.
    #[error("a content of {len_bytes} bytes is too long for a file (at most {FILE_LEN_MAX})")]
    FileTooLong {
        /// The length asked for.
        len_bytes: u64,
    },
    /// The extents do not ascend, or overlap.
    #[error("the extent {range} begins before {previous_end}, the end of the previous extent")]
    OutOfOrder {
        /// The extent.
        range: ByteRange,
        /// The end of the previous extent.
        previous_end: u64,
    },
    /// An extent lies outside the new content.
    #[error("the extent {range} extends past the new content's {new_len_bytes} bytes")]
    PastNewLen {
        /// The extent.
        range: ByteRange,
        /// The announced new length.
        new_len_bytes: u64,
    },
    /// A copy lies outside the base.
    #[error("the extent {range} copies from {base_offset}, past the base's {base_len_bytes} bytes")]
    PastBaseLen {
        /// The extent.
        range: ByteRange,
        /// The offset in the base.
        base_offset: u64,
        /// The announced base length.
        base_len_bytes: u64,
    },
    /// A copy was added, although the header declares none.
    #[error("the extent {range} is a copy, but the stream was begun without copies (`WriterOptions::copies`)")]
    CopiesNotDeclared {
        /// The extent.
        range: ByteRange,
    },
    /// An earlier call failed.
    #[error("an earlier error left the delta incomplete; write it again from the start")]
    Incomplete,
}

/// The position in the new content up to which extents were added.
#[derive(Debug)]
pub(crate) struct Sequence {
    base_len_bytes: u64,
    new_len_bytes: u64,
    /// The end of the last extent.
    end: u64,
    has_failed: bool,
}

impl Sequence {
    pub(crate) fn new(base_len_bytes: u64, new_len_bytes: u64) -> Result<Self, WriteError> {
        for len_bytes in [base_len_bytes, new_len_bytes] {
            if len_bytes > FILE_LEN_MAX {
                return Err(WriteError::FileTooLong { len_bytes });
            }
        }
        Ok(Self {
            base_len_bytes,
            new_len_bytes,
            end: 0,
            has_failed: false,
        })
    }

    /// Accepts an extent's range; returns the gap between it and the previous extent.
    pub(crate) fn begin(&mut self, range: ByteRange) -> Result<Option<ByteRange>, WriteError> {
        if range.start() < self.end {
            return Err(WriteError::OutOfOrder {
                range,
                previous_end: self.end,
            });
        }
        let new_len_bytes = self.new_len_bytes;
        if range.end() > new_len_bytes {
            return Err(WriteError::PastNewLen { range, new_len_bytes });
        }
        let between = ByteRange::new(self.end, range.start());
        self.end = range.end();
        Ok(between)
    }

    /// Ends the sequence; returns the rest of the new content.
    pub(crate) fn finish(&mut self) -> Option<ByteRange> {
        let rest = ByteRange::new(self.end, self.new_len_bytes);
        self.end = self.new_len_bytes;
        rest
    }

    pub(crate) fn check_copy(&self, range: ByteRange, base_offset: u64) -> Result<(), WriteError> {
        let base_len_bytes = self.base_len_bytes;
        let end = base_offset.checked_add(range.len_bytes());
        if end.is_none_or(|end| end > base_len_bytes) {
            return Err(WriteError::PastBaseLen {
                range,
                base_offset,
                base_len_bytes,
            });
        }
        Ok(())
    }

    pub(crate) fn base_len_bytes(&self) -> u64 {
        self.base_len_bytes
    }
}

/// A writer of deltas in one of the formats.
pub(crate) trait ExtentSink {
    fn sequence(&mut self) -> &mut Sequence;

    /// Adds a literal whose bytes `fill` provides: it gets the number of bytes already provided,
    /// and a buffer.
    fn add_literal(
        &mut self,
        range: ByteRange,
        fill: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> Result<(), WriteError>;

    fn add_copy(&mut self, range: ByteRange, base_offset: u64) -> Result<(), WriteError>;

    fn add_zeros(&mut self, range: ByteRange) -> Result<(), WriteError>;

    /// Runs one call; if it fails, so will all later ones.
    fn guarded<T>(&mut self, call: impl FnOnce(&mut Self) -> Result<T, WriteError>) -> Result<T, WriteError> {
        if self.sequence().has_failed {
            return Err(WriteError::Incomplete);
        }
        let result = call(self);
        self.sequence().has_failed = result.is_err();
        result
    }

    /// Adds all extents of `map`; `read_literal` fills a buffer with the bytes of a literal.
    fn add_map<L: ExtentValue>(
        &mut self,
        map: &DeltaMap<L>,
        mut read_literal: impl FnMut(&L, &mut [u8]) -> io::Result<()>,
    ) -> Result<(), WriteError> {
        for (range, source) in map.iter() {
            self.guarded(|sink| match source {
                Source::Literal(literal) => sink.add_literal(range, &mut |skip_bytes, buffer| {
                    read_literal(&literal.advance(skip_bytes), buffer)
                }),
                Source::Copy { base_offset } => sink.add_copy(range, *base_offset),
                Source::Zero => sink.add_zeros(range),
            })?;
        }
        Ok(())
    }
}
