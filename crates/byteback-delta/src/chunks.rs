//! Content-defined chunks: a content is cut where its own bytes decide, so that an insertion moves
//! only the borders beside it.
//!
//! The rules are those of FastCDC (Xia et al.; SkySync, section 4.1): no border before a minimum
//! length, whose bytes are skipped without a look; a strict rule for borders up to the average
//! length and a lax one after it, which narrows the distribution of lengths (normalised chunking);
//! a border at the maximum length in any case. The hash under these rules is our own, made for
//! vector units (`scan`): 11 ms for 100 MB in the processor's cache and 20 ms in memory. The
//! `fastcdc` crate takes 33 ms, and its streaming mode also copies each chunk. On noise, text and
//! programs no more bytes differ after an insertion than with `fastcdc`. Besides, borders are part
//! of the agreement between two ends: they must not change with a library.
//!
//! Words:
//! - *weak checksum* of a chunk: its CRC (`crate::crc`). A CRC runs at 40 GB/s, far faster than the
//!   search for borders, so a fingerprint derived from the rolling hash (dsync's FastFP) would save
//!   nothing, and it would miss the skipped bytes. Moreover, a CRC follows from the CRCs that
//!   storage keeps (SkySync-C). So one kind of list serves dsync and SkySync-C, whichever end has
//!   checksums.
//! - *list*: the chunks of a content and the gaps between them: long holes, and ranges excluded
//!   from the search.
//! - *answer*: the chunks of the list that were found in a base, with strong checksums as proof
//!   ([`MatchAnswer`]).
//!
//! | module | task |
//! |---|---|
//! | `scan` | the rolling hash; finds the next place that may be a border |
//! | `cut` | borders of a content that comes in pieces, the same whatever the pieces |
//! | `list` | the list in memory, from content that is pushed or read |
//! | `summed` | the list of a content whose storage knows CRCs of blocks |
//! | `wire` | the list as bytes: docs/formats/chunks.md |
//! | `answer` | the answer, in memory and as bytes |
//!
//! The exchange is dsync's (SkySync, section 2.2.2): the client lists the chunks of the new content
//! ([`ChunkLister`]); the server lists those of the base, finds equal weak checksums and computes
//! strong ones for these only ([`crate::find::match_chunks`], [`crate::find::prove_matches`]); the
//! client compares them with its own ([`crate::find::ChunkFinder`]).

use byteback_extents::{ByteRange, ExtentSet};

mod answer;
mod cut;
mod list;
mod scan;
mod summed;
mod wire;

pub(crate) use answer::range_of;
pub use answer::{MatchAnswer, MatchParams, SEGMENT_LEN, Segment};
pub use cut::Chunker;
pub use list::{CHUNKS_MAX, Chunk, ChunkList, ChunkLister, ListStats, list_chunks};
pub use summed::list_chunks_with_crcs;
pub use wire::{ChunkStreamError, VERSION};

/// The smallest minimum length: two windows of the hash.
pub const MIN_LEN_MIN: u32 = 64;

/// The smallest average length.
pub const AVG_LEN_MIN: u32 = 256;

/// The largest average length.
pub const AVG_LEN_MAX: u32 = 4 * 1024 * 1024;

/// The largest maximum length.
pub const MAX_LEN_MAX: u32 = 16 * 1024 * 1024;

/// The average length up to contents of 8 GiB, that of SkySync's evaluation (section 4.1).
const AVG_LEN_DEFAULT: u32 = 8 * 1024;

/// The target for the largest number of chunks; beyond it, chunks grow instead. Either end keeps 20
/// bytes per chunk.
const CHUNKS_AIM_MAX: u64 = 1 << 20;

/// Chunk lengths. Both ends must cut with the same ones; the client chooses them (SkySync, section
/// 3.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkParams {
    min_len: u32,
    avg_len: u32,
    max_len: u32,
}

impl ChunkParams {
    /// Parameters with these lengths, in bytes; `None` unless [`MIN_LEN_MIN`] <= `min_len` <=
    /// `avg_len` <= `max_len` <= [`MAX_LEN_MAX`] and `avg_len` is a power of two from
    /// [`AVG_LEN_MIN`] to [`AVG_LEN_MAX`].
    #[must_use]
    pub const fn new(min_len: u32, avg_len: u32, max_len: u32) -> Option<Self> {
        let ascend = MIN_LEN_MIN <= min_len && min_len <= avg_len && avg_len <= max_len && max_len <= MAX_LEN_MAX;
        let possible = avg_len.is_power_of_two() && AVG_LEN_MIN <= avg_len && avg_len <= AVG_LEN_MAX;
        if ascend && possible {
            Some(Self {
                min_len,
                avg_len,
                max_len,
            })
        } else {
            None
        }
    }

    /// Half the average, the average, and one and a half times the average, as in SkySync's
    /// evaluation: 4, 8 and 12 KiB, and more where a content of `len_bytes` would have more than a
    /// million chunks.
    #[must_use]
    pub fn for_content(len_bytes: u64) -> Self {
        let mut avg_len = AVG_LEN_DEFAULT;
        while avg_len < AVG_LEN_MAX && len_bytes / u64::from(avg_len) > CHUNKS_AIM_MAX {
            avg_len *= 2;
        }
        Self {
            min_len: avg_len / 2,
            avg_len,
            max_len: avg_len / 2 * 3,
        }
    }

    /// The minimum length of a chunk: no border lies before it.
    #[must_use]
    pub const fn min_len(self) -> u32 {
        self.min_len
    }

    /// The length at which borders become frequent; about the average length of chunks in content
    /// without patterns.
    #[must_use]
    pub const fn avg_len(self) -> u32 {
        self.avg_len
    }

    /// The maximum length of a chunk: a border is forced there.
    #[must_use]
    pub const fn max_len(self) -> u32 {
        self.max_len
    }

    /// The shortest hole that is a gap: it ends a chunk and belongs to none. Shorter holes are
    /// treated as ordinary zeros.
    #[must_use]
    pub const fn hole_len_min(self) -> u64 {
        let two_chunks = 2 * self.max_len as u64;
        if two_chunks > HOLE_LEN_MIN {
            two_chunks
        } else {
            HOLE_LEN_MIN
        }
    }
}

/// Holes shorter than this are always cut into chunks as zeros.
const HOLE_LEN_MIN: u64 = 64 * 1024;

/// The number of chunks of maximum length that are examined before each range of interest.
const SLACK_CHUNKS: u64 = 8;

/// The ranges to examine so that the chunks of `ranges` are, almost always, those that the whole
/// content has there: the given ranges and their surroundings, so that the borders of both ends
/// have met before a range begins.
///
/// For contents that are known to be mostly equal by other means, such as the checksums of aligned
/// blocks.
#[must_use]
pub fn with_slack(ranges: &ExtentSet, params: ChunkParams, content_len_bytes: u64) -> ExtentSet {
    let slack = SLACK_CHUNKS * u64::from(params.max_len());
    let mut wider = ExtentSet::new();
    for range in ranges.iter() {
        let start = range.start().saturating_sub(slack);
        // After a range, room for the chunk that reaches across its end suffices.
        let end = range
            .end()
            .saturating_add(u64::from(params.max_len()))
            .min(content_len_bytes);
        if let Some(range) = ByteRange::new(start, end) {
            wider.insert(range);
        }
    }
    wider
}

#[cfg(test)]
mod tests;
