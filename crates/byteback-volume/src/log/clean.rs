//! Cleaning: blocks still in use are moved out of a segment, so that it is free with the next
//! checkpoint.
//!
//! When room is short, the segment with the fewest such blocks is taken; in idle time, the one with
//! the best ratio of benefit to cost, as it was not modified for long (cost-benefit, as in the
//! first log-structured file systems). Moving wears the device, so in idle time nothing is done
//! while there is room to write to: only when most of the unused room is scattered over segments in
//! use ([`FREE_PERCENT_MIN`]), and only with segments from which enough is to be gained. Pages are
//! moved as they are, with their checksums, even if these no longer match; nodes are only marked as
//! changed, as the next checkpoint writes them, and so are delta indexes and compact pages.

use crate::error::Result;
use crate::format::{
    Address, Areas, CLUSTER_SLOT, COMPACT_SLOT, Footer, INDEX_SLOT, Kind, Nid, Summary, page_checksum,
};
use crate::log::Space;
use crate::log::segments::LogKind;
use crate::state::State;
use crate::statistics::Written;
use crate::tree::attributes::{DIRECTORY, TYPE};
use crate::tree::map::Slot;

/// In idle time segments are freed until they hold this share of all unused blocks, as in F2FS.
const FREE_PERCENT_MIN: u64 = 40;

/// In idle time no segment with a larger share in use is cleaned: some of its blocks may soon
/// become free at no cost.
const USED_PERCENT_MAX: u64 = 75;

/// How to choose a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The fewest blocks to move.
    InNeed,
    /// The best of age and blocks.
    InIdleTime,
}

impl Space {
    /// Whether most unused blocks lie in segments in use. Segments that the next checkpoint frees
    /// count as free.
    fn is_scattered(&self, areas: &Areas) -> bool {
        let free = u64::from(self.segments.free_segments()) + u64::from(self.segments.freed_by_checkpoint());
        free * u64::from(areas.segment_blocks) * 100 < self.segments.unused_blocks() * FREE_PERCENT_MIN
    }
}

impl State {
    /// Cleans one segment; false if no segment is worth it.
    pub(crate) fn clean_some(&mut self) -> Result<bool> {
        match self.choose(Choice::InNeed) {
            Some(segment) => self.clean(segment).map(|()| true),
            None => Ok(false),
        }
    }

    /// Work for idle time; see [`crate::Volume::tidy`].
    pub(crate) fn tidy(&mut self) -> Result<bool> {
        if self.restore_some()? {
            return Ok(true);
        }
        match self.choose(Choice::InIdleTime) {
            Some(segment) => {
                let cleaned = self.clean(segment);
                self.durability.stop_after(cleaned).map(|()| true)
            }
            None => Ok(false),
        }
    }

    /// Chooses the segment to clean.
    pub(crate) fn choose(&self, how: Choice) -> Option<u32> {
        let segment_blocks = self.media.areas.segment_blocks;
        let now_s = self.now_s();
        let useful = self.space.segments.candidates();
        let useful =
            useful.filter(|(number, _, valid)| *valid < segment_blocks && !self.space.uncleanable.contains(number));
        match how {
            Choice::InNeed => useful.min_by_key(|(_, _, valid)| *valid).map(|(number, ..)| number),
            Choice::InIdleTime if !self.space.is_scattered(&self.media.areas) => None,
            Choice::InIdleTime => {
                let useful = useful
                    .filter(|(_, _, valid)| u64::from(*valid) * 100 <= u64::from(segment_blocks) * USED_PERCENT_MAX);
                // age * (1 - u) / (1 + u), where u is the share in use.
                let worth = |modified_s: u64, valid: u32| {
                    let age = u128::from(now_s.saturating_sub(modified_s)) + 1;
                    age * u128::from(segment_blocks - valid) * 1024 / u128::from(segment_blocks + valid)
                };
                let best = useful.max_by_key(|(_, entry, valid)| worth(entry.modified_s, *valid));
                best.map(|(number, ..)| number)
            }
        }
    }

    /// Moves the blocks in use out of a segment.
    pub(crate) fn clean(&mut self, segment: u32) -> Result<()> {
        let summaries = match self.space.segments.summaries_of(segment) {
            Some(summaries) => Ok(summaries),
            None => self.media.read_summaries(segment),
        };
        // Blocks of a segment without readable summaries stay where they are.
        let Ok(summaries) = summaries else {
            self.space.uncleanable.insert(segment);
            return Ok(());
        };
        let first = self.media.areas.segment_first(segment);
        for (address, summary) in (first.0..).map(Address).zip(summaries.iter()) {
            if !self.space.segments.is_valid(address) {
                continue;
            }
            match self.move_block(address, summary) {
                Ok(true) => {}
                Ok(false) => drop(self.space.uncleanable.insert(segment)),
                Err(error) if error.is_loss() => drop(self.space.uncleanable.insert(segment)),
                Err(error) => return Err(error),
            }
        }
        self.space.write_filled(&self.media)
    }

    /// Moves a block in use; false if it cannot be moved.
    fn move_block(&mut self, address: Address, summary: &Summary) -> Result<bool> {
        let entry = self.space.table.get(&self.media, summary.nid)?;
        if entry.version != summary.version || summary.nid == Nid::NONE {
            return Ok(false);
        }
        if entry.address == address {
            return Ok(self.node_mut(summary.nid, "node in a segment being cleaned").is_ok());
        }
        if matches!(summary.slot, INDEX_SLOT | COMPACT_SLOT) && entry.ino == summary.nid {
            return Ok(self.move_delta_block(summary.nid, address).unwrap_or(false));
        }
        if summary.slot == CLUSTER_SLOT && entry.ino == summary.nid && self.small.is_compressed {
            return self.move_cluster(address, summary);
        }
        let Ok(node) = self.node(summary.nid, "node of a page in a segment being cleaned") else {
            return Ok(false);
        };
        let place = Footer::read(node).place;
        let slot = match place {
            0 => self.slot_in_inode(summary.nid, u32::from(summary.slot)),
            _ => Ok(Slot {
                node: summary.nid,
                slot: u32::from(summary.slot),
                is_inode: false,
                reported: summary.nid,
            }),
        };
        let Ok(slot) = slot else {
            return Ok(false);
        };
        let is_of_pages = place != Footer::XATTRS && !crate::tree::place::is_indirect(place);
        if !is_of_pages || self.address_in(slot)? != address {
            return Ok(false);
        }
        let Ok(mut block) = self.media.read(address) else {
            return Ok(false);
        };
        let is_directory = self.inode(entry.ino)?.mode() & TYPE == DIRECTORY;
        let (to, _) = self
            .space
            .segments
            .allocate(LogKind::ColdData, *summary, self.now_s())?;
        if is_directory && self.media.id.is_sealed(&block, Kind::Directory, address) {
            self.media.id.seal(&mut block, Kind::Directory, to);
            self.space.segments.correct_checksums(to, &[page_checksum(&block[..])]);
        }
        self.media.write(to, &block[..], Written::Moved)?;
        self.set_address(slot, to)?;
        self.page_moved(entry.ino, address, to, page_checksum(&block[..]));
        self.space.write_filled(&self.media)?;
        Ok(true)
    }
}
