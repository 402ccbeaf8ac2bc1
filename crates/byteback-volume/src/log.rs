//! The device as six logs of blocks: what is in use, where nodes are, and how room is made.
//!
//! | room | what it is for |
//! |---|---|
//! | `geometry` | division of a device |
//! | [`media`] | the device, by sealed blocks |
//! | [`segments`] | blocks in use, and the six logs |
//! | `node_table` | addresses of nodes |
//! | `clean` | making room |

pub(crate) mod clean;
pub(crate) mod geometry;
pub(crate) mod media;
pub(crate) mod node_table;
pub(crate) mod segments;

use std::collections::BTreeSet;

use crate::error::{Result, VolumeError};
use crate::format::{Address, Areas, Summary};
use media::Media;
use node_table::NodeTable;
use segments::Segments;

/// Counts of blocks and nodes in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Blocks, with those that are set aside.
    pub(crate) used_blocks: u32,
    /// Nodes among them.
    pub(crate) nodes: u32,
    /// Inodes among these.
    pub(crate) inodes: u32,
}

/// Room of the device: what is in use, where nodes are, and where the logs go on.
pub(crate) struct Space {
    /// Blocks in use, and the six logs.
    pub(crate) segments: Segments,
    /// Addresses of nodes.
    pub(crate) table: NodeTable,
    /// Counts of blocks and nodes in use.
    pub(crate) counts: Counts,
    /// Valid copies of the blocks of the segment table: true for the second.
    pub(crate) second_segments: Vec<bool>,
    /// Segments of which something cannot be moved.
    uncleanable: BTreeSet<u32>,
}

impl Space {
    /// Room as a checkpoint left it.
    pub(crate) fn new(segments: Segments, table: NodeTable, counts: Counts, second_segments: Vec<bool>) -> Self {
        Self {
            segments,
            table,
            counts,
            second_segments,
            uncleanable: BTreeSet::new(),
        }
    }

    /// Number of blocks that files may use.
    pub(crate) fn capacity_blocks(areas: &Areas) -> u32 {
        (areas.main_segments - areas.reserved_segments).saturating_mul(areas.segment_blocks)
    }

    /// Number of blocks that files may still use.
    pub(crate) fn free_blocks(&self, areas: &Areas) -> u32 {
        Self::capacity_blocks(areas).saturating_sub(self.counts.used_blocks)
    }

    /// Reserves blocks.
    ///
    /// # Errors
    /// [`VolumeError::Full`].
    pub(crate) fn take_room(&mut self, areas: &Areas, blocks: u32) -> Result<()> {
        let used = self.counts.used_blocks.saturating_add(blocks);
        if used > Self::capacity_blocks(areas) {
            return Err(VolumeError::Full);
        }
        self.counts.used_blocks = used;
        Ok(())
    }

    /// Gives back reserved blocks.
    pub(crate) fn give_room(&mut self, blocks: u32) {
        self.counts.used_blocks = self.counts.used_blocks.saturating_sub(blocks);
    }

    /// Writes the summaries of segments that were filled.
    pub(crate) fn write_filled(&mut self, media: &Media) -> Result<()> {
        for filled in self.segments.take_filled() {
            let first = media.areas.summary_of(filled.segment);
            media.write_summaries(first, &filled.summaries)?;
        }
        Ok(())
    }

    /// The checksum that a file's block was written with.
    pub(crate) fn checksum_of(&mut self, media: &Media, address: Address) -> Result<u32> {
        Ok(self.summary_at(media, address)?.checksum)
    }

    /// The summary that a file's block was written with.
    pub(crate) fn summary_at(&mut self, media: &Media, address: Address) -> Result<Summary> {
        if let Some(summary) = self.segments.summary_of(address) {
            return Ok(summary);
        }
        let place = media.areas.segment_of(address);
        let (segment, index) = place.ok_or(VolumeError::Damaged { address, what: "page" })?;
        let summaries = media.read_summaries(segment)?;
        let summary = usize::try_from(index).ok().and_then(|index| summaries.get(index));
        let summary = summary.copied().unwrap_or_default();
        self.segments.keep_summaries(segment, summaries);
        Ok(summary)
    }
}
