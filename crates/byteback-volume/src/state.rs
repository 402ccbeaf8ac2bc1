//! State of an open volume, in a part for each folder of operations: [`Space`], [`Tree`],
//! [`Small`], [`Durability`]. An operation that needs one part is a method of that part; one that
//! needs several is a method of [`State`], in the room that it belongs to.
//!
//! There is one lock for all of it, which [`crate::Volume`] holds around each call.

use std::sync::Arc;

use byteback_host::clock::Clock;

use crate::crash::Durability;
use crate::error::{Result, VolumeError};
use crate::format::Time;
use crate::log::Space;
use crate::log::media::Media;
use crate::log::segments::LogKind;
use crate::small::Small;
use crate::tree::Tree;

/// Extent of a change that is about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// As much as a call does at once.
    Any,
    /// A change of a few nodes, or one that makes room: to remove something, or to make it durable.
    Little,
}

impl Change {
    /// Most blocks that a call changes, beside pages that it writes.
    const BLOCKS: u32 = 16;
}

/// Fraction of a segment, as a divisor, that is written before the room is checked again.
const WRITE_STEPS_OF_SEGMENT: u32 = 4;

/// State of an open volume: a part for each folder of operations, and what all of them use.
pub(crate) struct State {
    /// The device, by sealed blocks.
    pub(crate) media: Media,
    /// Source of the time.
    pub(crate) clock: Arc<dyn Clock>,
    /// Room of the device: its segments and tables.
    pub(crate) space: Space,
    /// Nodes and pages in memory, and files that are open or have no name.
    pub(crate) tree: Tree,
    /// Pages that are stored in less than a block.
    pub(crate) small: Small,
    /// The last checkpoint, and what differs from it.
    pub(crate) durability: Durability,
}

impl State {
    pub(crate) fn now(&self) -> Time {
        Time::of_ns(self.clock.now_ns())
    }

    pub(crate) fn now_s(&self) -> u64 {
        u64::try_from(self.now().seconds).unwrap_or(0)
    }

    /// Number of blocks that a checkpoint would have to write.
    fn unwritten_blocks(&self) -> u32 {
        let nodes = u32::try_from(self.tree.nodes.dirty().len()).unwrap_or(u32::MAX);
        nodes
            .saturating_add(self.tree.pages.dirty_count())
            .saturating_add(self.small.main.unwritten_blocks())
            .saturating_add(self.durability.companion_blocks())
    }

    /// Most blocks that may wait to be written.
    fn unwritten_blocks_max(&self) -> u32 {
        let areas = &self.media.areas;
        let of_reserve = (areas.reserved_segments.saturating_sub(8)).max(1) * areas.segment_blocks;
        of_reserve.min(self.tree.pages.dirty_max())
    }

    /// Makes sure, before anything changes, that what waits can be written, and what a call adds to
    /// it.
    ///
    /// # Errors
    /// [`VolumeError::Full`]: there is no room in the logs, and none can be made.
    pub(crate) fn balance(&mut self) -> Result<()> {
        self.balance_for(Change::Any)
    }

    /// The same, for a caller that knows the extent of its change.
    pub(crate) fn balance_for(&mut self, change: Change) -> Result<()> {
        self.durability.check_writable()?;
        let segment_blocks = self.media.areas.segment_blocks;
        let logs = LogKind::ALL.len() as u32;
        let mut tries = 0;
        loop {
            let unwritten = self.unwritten_blocks();
            let needed = unwritten.div_ceil(segment_blocks) + logs + 2;
            let free = self.space.segments.free_segments();
            if unwritten <= self.unwritten_blocks_max() && free >= needed {
                return Ok(());
            }
            if (self.tree.pages.dirty_count() > 0 || self.small.main.unwritten_blocks() > 0) && free >= needed {
                self.write_back()?;
                if self.unwritten_blocks() <= self.unwritten_blocks_max() {
                    continue;
                }
            }
            if unwritten > 0 || self.space.segments.freed_by_checkpoint() > 0 {
                self.checkpoint(false)?;
            }
            tries += 1;
            if self.space.segments.free_segments() < logs + 4 && (tries > 1000 || !self.clean_some()?) {
                return self.check_room_for(change);
            }
        }
    }

    /// Nothing is gained by cleaning, as on a volume that is full: whether what waits, and what is
    /// to come, is written for sure. One segment stays free, for who recovers the volume.
    fn check_room_for(&self, change: Change) -> Result<()> {
        let more = match change {
            Change::Any => self.write_step_pages().saturating_add(Change::BLOCKS),
            Change::Little => Change::BLOCKS,
        };
        let unwritten = self.unwritten_blocks().saturating_add(more);
        match self.space.segments.segments_needed(unwritten) < self.space.segments.free_segments() {
            true => Ok(()),
            false => Err(VolumeError::Full),
        }
    }

    /// Pages to write before the room is checked again.
    pub(crate) fn write_step_pages(&self) -> u32 {
        (self.media.areas.segment_blocks / WRITE_STEPS_OF_SEGMENT).max(1)
    }
}
