//! Finders: what finds a delta where no log tells it.
//!
//! A finder is given something that describes the base (here a [`crate::signature::Signature`]) and
//! the new content, and tells where each byte of the new content comes from. It pushes extents,
//! ascending and without gaps, into an [`ExtentSink`]; a [`DeltaWriter`](crate::DeltaWriter) behind
//! [`IntoDelta`] is one.
//!
//! | room | how it finds |
//! |---|---|
//! | `rolling` | rsync's way: blocks of the base at any offset of the new content |
//! | `fixed` | fixed-size hashing: blocks of the base at multiples of their length |
//! | `reverse` | the search on the server: blocks of the new content at any offset of the base |
//! | `local` | both versions are here: bytes are compared |
//! | `index` | the table of a signature's blocks that both look up |
//! | `aligned` | what checksums that both ends have say about equal blocks, without reading |
//! | `sky` | SkySync-F: from checksums that storage has, reading only what they do not prove |
//! | `gathered` | the same, of what group sums do not prove equal |
//! | `named` | chunks that storage cut and named at both ends: the lists alone say what is equal |
//! | `chunked` | dsync's way: content-defined chunks, looked for by the end that has the base |
//! | `extents` | the way of extents from a finder to its sink |
//!
//! *Memory* follows the number of blocks, not the content's length. In bytes for each block, where
//! there are most (counted by `tests/memory.rs`; what comes in a stream may take half as much again
//! while it is read):
//!
//! | what | bytes |
//! |---|---|
//! | [`Signature`](crate::signature::Signature) | 4, and the length of its strong checksums, 32 at most; 11 suffice for a TiB |
//! | the table of a [`BlockIndex`] | 18 to 36, as the number of its slots is a power of two |
//! | [`ReverseFinder`] | 8 |
//! | [`MatchList`](crate::matches::MatchList) | 24 for each run, of which there are no more than blocks |
//! | the table of [`find_sky`] | 11 to 23 |
//! | [`CrcList`](crate::crc::CrcList), [`SumList`] | the checksum, and a bit |
//! | [`NamedChunks`] | 8 and the name for each chunk, of a base's 8 to 16 more |
//! | [`ChunkList`](crate::chunks::ChunkList) | 20 for each chunk |
//!
//! So a search on the server takes 104 bytes at most for each of the blocks that it accepts. What
//! was found is in nobody's memory, except in [`FoundExtents`]: 40 bytes for each extent, and as
//! much again while it grows.

mod aligned;
mod chunked;
#[cfg(test)]
pub(crate) mod edits;
mod extents;
mod fixed;
mod gathered;
mod index;
mod local;
mod named;
mod reverse;
mod rolling;
mod sky;

use std::io::Write;

use byteback_extents::ByteRange;

use crate::sequence::WriteError;
use crate::source::Source;
use crate::write::DeltaWriter;

pub use aligned::{
    Aligned, BlockSum, BlockSums, CrcSums, Incomparable, StrongOf, SumKind, SumLayout, SumList, Verdict, WeakOf,
};
pub use chunked::{ChunkFinder, ChunkRun, READS_PER_BASE, match_chunks, prove_matches};
pub use fixed::FixedFinder;
pub use gathered::find_gathered;
pub use index::BlockIndex;
pub use local::{LocalError, find_local};
pub use named::{NameKind, NamedChunks, NamedError, find_named};
pub use reverse::{MatchedContent, MatchedError, ReverseFinder};
pub use rolling::RollingFinder;
pub use sky::{Known, SkyError, find_sky};

/// Holes shorter than this, or than two blocks, are looked at like other zeros.
const HOLE_LEN_MIN: u64 = 64 * 1024;

/// Takes what a finder finds: extents of the new content, ascending, without gaps, together the
/// whole content.
pub trait ExtentSink {
    /// Why it cannot go on.
    type Error;

    /// The content has `bytes` from `offset` on.
    ///
    /// # Errors
    /// Ends the finding.
    fn literal(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Self::Error>;

    /// `range` of the content equals the base from `base_offset` on, which may be the same offset.
    ///
    /// # Errors
    /// Ends the finding.
    fn copy(&mut self, range: ByteRange, base_offset: u64) -> Result<(), Self::Error>;

    /// `range` of the content is a hole.
    ///
    /// # Errors
    /// Ends the finding.
    fn zero(&mut self, range: ByteRange) -> Result<(), Self::Error>;
}

/// What finding took and brought, in bytes of the new content unless it says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FindStats {
    /// Bytes that were looked at: all but those in holes.
    pub examined_bytes: u64,
    /// Bytes that went into strong checksums; overlapping windows count each.
    pub strong_bytes: u64,
    /// Bytes found in the base.
    pub copied_bytes: u64,
    /// Bytes that were not.
    pub literal_bytes: u64,
    /// Bytes in holes.
    pub zero_bytes: u64,
    /// Bytes that were read, by a finder that reads by itself.
    pub read_bytes: u64,
    /// Bytes that it need not read; holes that were not looked at are among them.
    pub unread_bytes: u64,
}

/// Writes what is found as a delta. What stays at its offset is not mentioned, as in every delta.
pub struct IntoDelta<'a, W>(pub &'a mut DeltaWriter<W>);

impl<W: Write> ExtentSink for IntoDelta<'_, W> {
    type Error = WriteError;

    fn literal(&mut self, offset: u64, bytes: &[u8]) -> Result<(), WriteError> {
        self.0.literal_bytes(offset, bytes)
    }

    fn copy(&mut self, range: ByteRange, base_offset: u64) -> Result<(), WriteError> {
        if range.start() == base_offset {
            return Ok(());
        }
        self.0.copy(range, base_offset)
    }

    fn zero(&mut self, range: ByteRange) -> Result<(), WriteError> {
        self.0.zero(range)
    }
}

/// What was found, kept in memory; literals are owned. For tests and for who wants to look at it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundExtents {
    /// Extents with their sources.
    pub extents: Vec<(ByteRange, Source<Vec<u8>>)>,
}

impl ExtentSink for FoundExtents {
    type Error = std::convert::Infallible;

    fn literal(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Self::Error> {
        if let Some(range) = ByteRange::from_offset_len(offset, bytes.len() as u64) {
            self.extents.push((range, Source::Literal(bytes.to_vec())));
        }
        Ok(())
    }

    fn copy(&mut self, range: ByteRange, base_offset: u64) -> Result<(), Self::Error> {
        self.extents.push((range, Source::Copy { base_offset }));
        Ok(())
    }

    fn zero(&mut self, range: ByteRange) -> Result<(), Self::Error> {
        self.extents.push((range, Source::Zero));
        Ok(())
    }
}
