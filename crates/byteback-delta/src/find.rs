//! Finders: they find a delta where no log records the changes.
//!
//! A finder gets a description of the base (such as a [`crate::signature::Signature`]) and the new
//! content, and reports the source of each byte of the new content. It pushes extents, ascending
//! and without gaps, into an [`ExtentSink`], such as a [`DeltaWriter`](crate::DeltaWriter) inside
//! [`IntoDelta`].
//!
//! | module | how it finds |
//! |---|---|
//! | `rolling` | rsync's way: blocks of the base at any offset of the new content |
//! | `fixed` | fixed-size hashing: blocks of the base at multiples of their length |
//! | `reverse` | the search on the server: blocks of the new content at any offset of the base |
//! | `local` | both versions are local: bytes are compared |
//! | `index` | the table of a signature's blocks, for the finders above |
//! | `aligned` | equal blocks by checksums that both ends have, without reading |
//! | `sky` | SkySync-F: from checksums that storage has, reading only ranges that they do not prove |
//! | `gathered` | as `sky`, for the rest that group sums do not prove equal |
//! | `named` | chunks that storage cut and named at both ends: equality follows from the lists alone |
//! | `chunked` | dsync's way: content-defined chunks, searched by the end that has the base |
//! | `finer` | a second search in short blocks, for what a finder with long ones left |
//! | `leaf_lookup` | blocks looked up among the base's leaves, by the end that has the base |
//! | `extents` | the path of extents from a finder to its sink |
//!
//! *Memory* follows the number of blocks, not the content's length. In bytes per block, for large
//! numbers of blocks (measured by `tests/memory.rs`; lists in a stream may take half as much again
//! while they are read):
//!
//! | structure | bytes |
//! |---|---|
//! | [`Signature`](crate::signature::Signature) | 4, and the length of its strong checksums, at most 32; 11 suffice for a TiB |
//! | the table of a [`BlockIndex`] | 18 to 36, as the number of its slots is a power of two |
//! | [`ReverseFinder`] | 8 |
//! | [`MatchList`](crate::matches::MatchList) | 24 per run; there are no more runs than blocks |
//! | the table of [`find_sky`] | 11 to 23 |
//! | [`CrcList`](crate::crc::CrcList), [`SumList`] | the checksum, and a bit |
//! | [`NamedChunks`] | 8 and the name per chunk; 8 to 16 more for the base's |
//! | [`ChunkList`](crate::chunks::ChunkList) | 20 per chunk |
//!
//! So a search on the server takes at most 104 bytes for each block that it accepts. Found extents
//! are passed on and not kept, except by [`FoundExtents`]: 40 bytes per extent, and as much again
//! while the list grows.

mod aligned;
mod chunked;
#[cfg(test)]
pub(crate) mod edits;
mod extents;
mod finer;
mod fixed;
mod gathered;
mod in_memory;
mod index;
mod leaf_lookup;
mod local;
mod named;
mod packed;
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
pub use finer::{Gap, excerpt_for, find_in_excerpt};
pub use fixed::FixedFinder;
pub use gathered::find_gathered;
pub use in_memory::InMemoryFinder;
pub use index::BlockIndex;
pub use leaf_lookup::LeafLookup;
pub use local::{LocalError, find_local};
pub use named::{NameKind, NamedChunks, NamedError, find_named};
pub use packed::{Packed, Unpacked};
pub use reverse::{MatchedContent, MatchedError, ReverseFinder};
pub use rolling::RollingFinder;
pub use sky::{Known, SkyError, find_sky};

/// Holes shorter than this, or than two blocks, are examined like other zeros.
const HOLE_LEN_MIN: u64 = 64 * 1024;

/// Takes the extents that a finder finds: ascending, without gaps, together the whole new content.
pub trait ExtentSink {
    /// The reason why the sink cannot go on.
    type Error;

    /// The content has `bytes` from `offset` on.
    ///
    /// # Errors
    /// Ends the search.
    fn literal(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Self::Error>;

    /// `range` of the content equals the base from `base_offset` on, which may be the same offset.
    ///
    /// # Errors
    /// Ends the search.
    fn copy(&mut self, range: ByteRange, base_offset: u64) -> Result<(), Self::Error>;

    /// `range` of the content is a hole.
    ///
    /// # Errors
    /// Ends the search.
    fn zero(&mut self, range: ByteRange) -> Result<(), Self::Error>;
}

/// The cost and yield of a search, in bytes of the new content unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FindStats {
    /// Bytes examined: all but those in holes.
    pub examined_bytes: u64,
    /// Bytes hashed for strong checksums; overlapping windows each count.
    pub strong_bytes: u64,
    /// Bytes found in the base.
    pub copied_bytes: u64,
    /// Bytes not found in the base.
    pub literal_bytes: u64,
    /// Bytes in holes.
    pub zero_bytes: u64,
    /// Bytes read, by a finder that reads by itself.
    pub read_bytes: u64,
    /// Bytes that such a finder need not read, including holes that it did not examine.
    pub unread_bytes: u64,
}

/// Writes the extents as a delta. Bytes that stay at their offset are left out, as in every delta.
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

/// The extents found, kept in memory with their literals; for tests and for inspection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundExtents {
    /// Extents with their sources.
    pub extents: Vec<(ByteRange, Source<Vec<u8>>)>,
}

impl ExtentSink for FoundExtents {
    type Error = std::convert::Infallible;

    fn literal(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Self::Error> {
        let Some(range) = ByteRange::from_offset_len(offset, bytes.len() as u64) else {
            return Ok(());
        };
        match self.extents.last_mut() {
            Some((last, Source::Literal(before))) if last.end() == range.start() => {
                *last = last.hull(range);
                before.extend_from_slice(bytes);
            }
            _ => self.extents.push((range, Source::Literal(bytes.to_vec()))),
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
