//! State of an open volume. The other modules are its operations: each has a part of `impl State`.
//!
//! There is one lock for all of it, which [`crate::Volume`] holds around each call.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use byteback_host::clock::Clock;

use crate::crash::name_changes::NameChanges;
use crate::crash::written_pages::WrittenPages;
use crate::error::{Result, VolumeError};
use crate::format::{Address, Nid, Summary, Time};
use crate::inside::Companion;
use crate::log::media::Media;
use crate::log::node_table::NodeTable;
use crate::log::segments::{LogKind, Segments};
use crate::small::attempts::Attempts;
use crate::small::clusters::Clusters;
use crate::small::deltas::{Costs, DeltaCounts, DeltaMode};
use crate::small::hotness::Hotness;
use crate::small::main_deltas::MainDeltas;
use crate::tree::nodes::Nodes;
use crate::tree::pages::Pages;

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

/// Changes of names since the last checkpoint. A file can be recovered without a new checkpoint
/// only if nothing happened to it but its creation.
#[derive(Debug, Default)]
pub(crate) struct SinceCheckpoint {
    /// Files that were made.
    pub(crate) made: BTreeSet<Nid>,
    /// Created files that were synced: a crash leaves them with their names.
    pub(crate) synced: BTreeSet<Nid>,
    /// Names that changed by that.
    pub(crate) names: NameChanges,
    /// Directories of which something else changed than names.
    pub(crate) attributes_of: BTreeSet<Nid>,
    /// Files that got or lost a name otherwise.
    pub(crate) renamed: BTreeSet<Nid>,
    /// Pages of files that were written.
    pub(crate) pages: BTreeMap<Nid, WrittenPages>,
    /// A name that stood for one file may stand for another, and the first one have another name.
    pub(crate) names_moved: bool,
    /// Whether anything may have changed.
    pub(crate) is_changed: bool,
}

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

/// See the module.
pub(crate) struct State {
    pub(crate) media: Media,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) hash_seed: u64,
    pub(crate) segments: Segments,
    pub(crate) table: NodeTable,
    pub(crate) nodes: Nodes,
    pub(crate) pages: Pages,
    pub(crate) counts: Counts,
    /// The version of the last checkpoint.
    pub(crate) version: u64,
    /// Valid copies of the blocks of the segment table: true for the second.
    pub(crate) second_segments: Vec<bool>,
    /// Number of the pack with the last checkpoint: 0 or 1.
    pub(crate) pack: u32,
    /// Segments of which something cannot be moved.
    pub(crate) uncleanable: BTreeSet<u32>,
    pub(crate) since: SinceCheckpoint,
    /// Files without a name.
    pub(crate) orphans: BTreeSet<Nid>,
    /// Open files, with how often each is held.
    pub(crate) held: BTreeMap<Nid, u64>,
    /// The head of the list of files with deltas in the main area.
    pub(crate) delta_list: Nid,
    pub(crate) is_writable: bool,
    /// Whether pages may be compressed.
    pub(crate) is_compressed: bool,
    pub(crate) clusters: Clusters,
    /// Where pages that are overwritten are kept as deltas.
    pub(crate) delta_mode: DeltaMode,
    pub(crate) moved_slots_min: u32,
    /// Fewest deltas in a compact page.
    pub(crate) packed_min: usize,
    /// Bytes used of a block of an index.
    pub(crate) delta_index_len_bytes_max: usize,
    pub(crate) main: MainDeltas,
    pub(crate) hotness: Hotness,
    pub(crate) attempts: Attempts,
    pub(crate) costs: Costs,
    pub(crate) delta_counts: DeltaCounts,
    /// Keeps internal files in step with those of programs.
    pub(crate) companion: Option<Arc<dyn Companion>>,
    /// Files with changed pages that could not be written, and why, until the error is reported.
    pub(crate) lost_writes: BTreeMap<Nid, VolumeError>,
    /// Why nothing is written any more.
    pub(crate) stopped: Option<String>,
}

impl State {
    /// Number of blocks that files may use.
    pub(crate) fn capacity_blocks(&self) -> u32 {
        let areas = &self.media.areas;
        (areas.main_segments - areas.reserved_segments).saturating_mul(areas.segment_blocks)
    }

    /// Reserves blocks.
    ///
    /// # Errors
    /// [`VolumeError::Full`].
    pub(crate) fn take_room(&mut self, blocks: u32) -> Result<()> {
        let used = self.counts.used_blocks.saturating_add(blocks);
        if used > self.capacity_blocks() {
            return Err(VolumeError::Full);
        }
        self.counts.used_blocks = used;
        Ok(())
    }

    /// Gives back reserved blocks.
    pub(crate) fn give_room(&mut self, blocks: u32) {
        self.counts.used_blocks = self.counts.used_blocks.saturating_sub(blocks);
    }

    pub(crate) fn now(&self) -> Time {
        Time::of_ns(self.clock.now_ns())
    }

    pub(crate) fn now_s(&self) -> u64 {
        u64::try_from(self.now().seconds).unwrap_or(0)
    }

    /// Writes the summaries of segments that were filled.
    pub(crate) fn write_filled(&mut self) -> Result<()> {
        for filled in self.segments.take_filled() {
            let first = self.media.areas.summary_of(filled.segment);
            self.media.write_summaries(first, &filled.summaries)?;
        }
        Ok(())
    }

    /// The checksum that a file's block was written with.
    pub(crate) fn checksum_of(&mut self, address: Address) -> Result<u32> {
        Ok(self.summary_at(address)?.checksum)
    }

    /// The summary that a file's block was written with.
    pub(crate) fn summary_at(&mut self, address: Address) -> Result<Summary> {
        if let Some(summary) = self.segments.summary_of(address) {
            return Ok(summary);
        }
        let place = self.media.areas.segment_of(address);
        let (segment, index) = place.ok_or(VolumeError::Damaged { address, what: "page" })?;
        let summaries = self.media.read_summaries(segment)?;
        let summary = usize::try_from(index).ok().and_then(|index| summaries.get(index));
        let summary = summary.copied().unwrap_or_default();
        self.segments.keep_summaries(segment, summaries);
        Ok(summary)
    }

    /// Refuses any change if the volume is stopped or read-only.
    pub(crate) fn check_writable(&self) -> Result<()> {
        match &self.stopped {
            Some(reason) => Err(VolumeError::Stopped(reason.clone())),
            None if self.is_writable => Ok(()),
            None => Err(VolumeError::ReadOnly),
        }
    }

    /// A failed write leaves memory and device in disagreement: nothing more is written. A lack of
    /// room is no such failure.
    pub(crate) fn stop_after<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result
            && self.stopped.is_none()
        {
            self.stopped = Some(error.to_string());
        }
        result
    }

    /// Number of blocks that a checkpoint would have to write.
    fn unwritten_blocks(&self) -> u32 {
        let nodes = u32::try_from(self.nodes.dirty().len()).unwrap_or(u32::MAX);
        nodes
            .saturating_add(self.pages.dirty_count())
            .saturating_add(self.main.unwritten_blocks())
            .saturating_add(self.companion_blocks())
    }

    /// Most blocks that may wait to be written.
    fn unwritten_blocks_max(&self) -> u32 {
        let areas = &self.media.areas;
        let of_reserve = (areas.reserved_segments.saturating_sub(8)).max(1) * areas.segment_blocks;
        of_reserve.min(self.pages.dirty_max())
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
        self.check_writable()?;
        let segment_blocks = self.media.areas.segment_blocks;
        let logs = LogKind::ALL.len() as u32;
        let mut tries = 0;
        loop {
            let unwritten = self.unwritten_blocks();
            let needed = unwritten.div_ceil(segment_blocks) + logs + 2;
            let free = self.segments.free_segments();
            if unwritten <= self.unwritten_blocks_max() && free >= needed {
                return Ok(());
            }
            if (self.pages.dirty_count() > 0 || self.main.unwritten_blocks() > 0) && free >= needed {
                self.write_back()?;
                if self.unwritten_blocks() <= self.unwritten_blocks_max() {
                    continue;
                }
            }
            if unwritten > 0 || self.segments.freed_by_checkpoint() > 0 {
                self.checkpoint(false)?;
            }
            tries += 1;
            if self.segments.free_segments() < logs + 4 && (tries > 1000 || !self.clean_some()?) {
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
        match self.segments.segments_needed(unwritten) < self.segments.free_segments() {
            true => Ok(()),
            false => Err(VolumeError::Full),
        }
    }

    /// Pages to write before the room is checked again.
    pub(crate) fn write_step_pages(&self) -> u32 {
        (self.media.areas.segment_blocks / WRITE_STEPS_OF_SEGMENT).max(1)
    }
}
