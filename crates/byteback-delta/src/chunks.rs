//! Content-defined chunks: a content cut where its own bytes say so, so that an insertion moves no
//! border but those beside it.
//!
//! The rules are those of FastCDC (Xia et al.; SkySync, section 4.1): no border before a shortest
//! length, whose bytes are skipped without a look; a seldom rule for borders up to the average
//! length and a frequent one behind it, which draws the lengths together (normalised chunking); a
//! border at the longest length in any case. What is ours is the hash under them, made for vector
//! units (`scan`): 11 ms for 100 MB in the processor's cache, 20 ms in memory, where the `fastcdc`
//! crate takes 33, whose streaming mode also copies each chunk. On noise, text and programs as few
//! bytes differ after an insertion, or fewer. And borders are part of what two ends agree on: they
//! may not change with a library.
//!
//! Words:
//! - *weak checksum* of a chunk: its CRC (`crate::crc`). Why a CRC: it sums at 40 GB/s, far beyond
//!   what the borders take, so that a fingerprint that falls out of the rolling hash (dsync's
//!   FastFP) would save nothing, and would miss what lies in skipped bytes; and it follows from
//!   CRCs that storage keeps (SkySync-C). So one kind of list serves dsync and SkySync-C, whichever
//!   of the ends has checksums.
//! - *list*: the chunks of a content, with what lies between them: long holes, and ranges that
//!   nobody wants to look at.
//! - *answer*: which chunks of the list were found in a base, with strong checksums to prove it
//!   ([`MatchAnswer`]).
//!
//! | room | what it does |
//! |---|---|
//! | `scan` | the rolling hash; finds the next place that may be a border |
//! | `cut` | borders of a content that comes in pieces, the same whatever the pieces |
//! | `list` | the list in memory, from content that is pushed or read |
//! | `summed` | the list of a content whose storage knows CRCs of blocks |
//! | `wire` | the list as bytes: docs/format-chunks.md |
//! | `answer` | the answer, in memory and as bytes |
//!
//! The exchange is dsync's (SkySync, section 2.2.2): the client lists the chunks of the new content
//! ([`ChunkLister`]); the server lists those of the base, finds equal weak checksums and makes
//! strong ones of these only ([`crate::find::match_chunks`], [`crate::find::prove_matches`]); the
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
pub use list::{Chunk, ChunkList, ChunkLister, ListStats, list_chunks};
pub use summed::list_chunks_with_crcs;
pub use wire::{CHUNKS_MAX, ChunkStreamError, VERSION};

/// The smallest shortest length: two windows of the hash.
pub const MIN_LEN_MIN: u32 = 64;

/// The smallest average length.
pub const AVG_LEN_MIN: u32 = 256;

/// The largest average length.
pub const AVG_LEN_MAX: u32 = 4 * 1024 * 1024;

/// The largest longest length.
pub const MAX_LEN_MAX: u32 = 16 * 1024 * 1024;

/// The average length up to contents of 8 GiB, that of SkySync's evaluation (section 4.1).
const AVG_LEN_DEFAULT: u32 = 8 * 1024;

/// So many chunks are aimed at at most; chunks grow instead. Either end keeps 20 bytes for each.
const CHUNKS_AIM_MAX: u64 = 1 << 20;

/// Lengths of chunks; both ends must cut by the same ones. Which: the client says (SkySync, section
/// 3.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkParams {
    min_len: u32,
    avg_len: u32,
    max_len: u32,
}

impl ChunkParams {
    /// These lengths, in bytes; `None` unless [`MIN_LEN_MIN`] <= `min_len` <= `avg_len` <=
    /// `max_len` <= [`MAX_LEN_MAX`] and `avg_len` is a power of two from [`AVG_LEN_MIN`] to
    /// [`AVG_LEN_MAX`].
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
    /// evaluation: 4, 8 and 12 KiB, and more where a content of so many bytes had more than a
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

    /// No border before so many bytes.
    #[must_use]
    pub const fn min_len(self) -> u32 {
        self.min_len
    }

    /// Where borders become frequent. Chunks of content without pattern are about so long on
    /// average.
    #[must_use]
    pub const fn avg_len(self) -> u32 {
        self.avg_len
    }

    /// A border after so many bytes.
    #[must_use]
    pub const fn max_len(self) -> u32 {
        self.max_len
    }

    /// Holes of so many bytes and more are no chunks, and end one; shorter ones are zeros like
    /// others.
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

/// Holes shorter than this are looked at.
const HOLE_LEN_MIN: u64 = 64 * 1024;

/// So many chunks of the longest length are looked at around ranges that are of interest.
const SLACK_CHUNKS: u64 = 8;

/// What to look at so that the chunks of `ranges` are, almost always, those that the whole content
/// has there: the ranges with what is around them, so that borders of both ends meet before a range
/// begins.
///
/// For contents of which most is known otherwise to be equal, such as by the checksums of aligned
/// blocks.
#[must_use]
pub fn with_slack(ranges: &ExtentSet, params: ChunkParams, content_len_bytes: u64) -> ExtentSet {
    let slack = SLACK_CHUNKS * u64::from(params.max_len());
    let mut wider = ExtentSet::new();
    for range in ranges.iter() {
        let start = range.start().saturating_sub(slack);
        // Behind a range, the chunk that reaches into it suffices.
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
