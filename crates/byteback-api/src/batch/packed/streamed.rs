//! Packing of long pieces, whose records outweigh their contents: many small files, names,
//! attributes.
//!
//! As in [`super`], one Zstandard frame with the same dictionary unpacks to the records of a plain
//! piece; but it is read as it arrives, through a window of [`WINDOW_LOG`] bits, and may unpack to
//! [`STREAMED_LEN_MAX`].
//!
//! Contents in deltas are compressed already, or do not compress. A piece that has little else is
//! left alone; samples show that.

use super::super::{BatchError, MAGIC};
use super::DICTIONARY;
use std::io::{self, BufReader, Read};
use zstd::stream::raw::{CParameter, DParameter};
use zstd::stream::read::Decoder;

/// The version byte of a piece that is unpacked while it arrives.
pub const VERSION_STREAMED: u8 = 3;

/// Maximum of bytes of records in such a piece.
pub const STREAMED_LEN_MAX: u64 = 64 * 1024 * 1024;

/// The base-2 logarithm of the longest distance in bytes between equal bytes, which both ends keep
/// in memory.
const WINDOW_LOG: u32 = 20;

/// Compression level: names and numbers gain little from higher ones.
const LEVEL: i32 = 1;

/// Length of a sample, and the number of samples.
const SAMPLE_LEN: usize = 16 * 1024;
const SAMPLES: usize = 3;

/// The piece with these records in fewer bytes; `None` if they are too many for that, or do not
/// become a tenth shorter.
pub(super) fn streamed(records: &[u8]) -> Option<Vec<u8>> {
    let len = u64::try_from(records.len()).ok()?;
    if len > STREAMED_LEN_MAX {
        return None;
    }
    let mut compressor = zstd::bulk::Compressor::with_dictionary(LEVEL, DICTIONARY).ok()?;
    compressor.set_parameter(CParameter::WindowLog(WINDOW_LOG)).ok()?;
    let step = records.len().saturating_sub(SAMPLE_LEN) / (SAMPLES - 1);
    let mut pays = |bytes: &[u8]| {
        let frame = compressor.compress(bytes).ok()?;
        (frame.len() < bytes.len() - bytes.len() / 10).then_some(frame)
    };
    let sample = |index: usize| {
        records
            .get(index * step..)
            .map(|rest| rest.get(..SAMPLE_LEN).unwrap_or(rest))
    };
    if !(0..SAMPLES).filter_map(sample).any(|sample| pays(sample).is_some()) {
        return None;
    }
    let frame = pays(records)?;
    let mut packed = Vec::with_capacity(MAGIC.len() + 1 + frame.len());
    packed.extend_from_slice(&MAGIC);
    packed.push(VERSION_STREAMED);
    packed.extend_from_slice(&frame);
    Some(packed)
}

/// The records of such a piece whose header was read from `R`.
pub(in crate::batch) struct Unpacking<R> {
    decoder: Decoder<'static, BufReader<Watched<R>>>,
    /// Bytes that it may still yield.
    left: u64,
}

/// A stream, and whether it failed.
struct Watched<R> {
    input: R,
    has_failed: bool,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer);
        self.has_failed |= read
            .as_ref()
            .is_err_and(|error| error.kind() != io::ErrorKind::Interrupted);
        read
    }
}

impl<R: Read> Unpacking<R> {
    pub(in crate::batch) fn new(input: R) -> Result<Self, BatchError> {
        let input = Watched {
            input,
            has_failed: false,
        };
        let mut decoder = Decoder::with_dictionary(BufReader::new(input), DICTIONARY)?;
        decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG))?;
        Ok(Self {
            decoder,
            left: STREAMED_LEN_MAX,
        })
    }
}

impl<R: Read> Read for Unpacking<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let refused = |what: String| io::Error::new(io::ErrorKind::InvalidData, BatchError::Packed(what));
        let got = self.decoder.read(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::Interrupted => error,
            _ if self.decoder.get_ref().get_ref().has_failed => error,
            _ => refused(error.to_string()),
        })?;
        let left = self.left.checked_sub(u64::try_from(got).unwrap_or(u64::MAX));
        self.left = left.ok_or_else(|| refused("it exceeds the length limit".to_owned()))?;
        Ok(got)
    }
}

impl<R> std::fmt::Debug for Unpacking<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unpacking")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
