//! Checkpoints: everything that changed becomes durable, as one state.
//!
//! **Order.** (1) Pages, then deltas in the main area, then nodes, to the logs; summaries of
//! segments that were filled. (2) The tables: few changes go to the journal of the pack, many to
//! the other copies of the tables' blocks. (3) The pack without its footer, to the place of the
//! older one. (4) A flush. (5) The footer, and a flush: now it counts. (6) Blocks that nothing
//! refers to any more may be reused, and are discarded.
//!
//! A crash before (5) is done leaves the previous checkpoint, all of which is untouched: nothing
//! that it refers to was overwritten. A failure in between leaves memory and device in
//! disagreement, so nothing more is written then.

use std::collections::BTreeMap;

use super::SinceCheckpoint;
use crate::error::{Result, VolumeError};
use crate::format::{
    Address, Block, Journal, Kind, LogHead, ORPHANS_PER_BLOCK, PackHeader, SegmentEntry, bitmap_blocks, bits_of,
    open_summaries_of, open_summary_blocks, orphan_blocks, orphans_of, zeros,
};
use crate::log::Space;
use crate::log::geometry::{JOURNAL_BLOCKS, ORPHAN_BLOCKS};
use crate::log::media::Media;
use crate::state::State;
use crate::statistics::Written;

/// Most files without a name.
pub(crate) const ORPHANS_MAX: usize = ORPHANS_PER_BLOCK * ORPHAN_BLOCKS as usize;

/// A checkpoint as it was read.
#[derive(Debug)]
pub(crate) struct Pack {
    pub(crate) header: PackHeader,
    /// Its place: 0 or 1.
    pub(crate) number: u32,
    pub(crate) bits: Vec<bool>,
    pub(crate) journal: Journal,
    pub(crate) orphans: Vec<crate::format::Nid>,
    pub(crate) summaries: Vec<crate::format::Summary>,
}

impl Pack {
    fn first(media: &Media, number: u32) -> u32 {
        media.areas.packs_first + number * media.areas.pack_blocks
    }

    /// The last checkpoint. A checkpoint that was complete and is damaged is noticed by its footer:
    /// a writer that went on from the one before it would silently lose everything done since. A
    /// reader may use the one before.
    ///
    /// # Errors
    /// [`VolumeError::Damaged`] if there is none, or with `writes` if the newest one is damaged.
    pub(crate) fn read_last(media: &Media, writes: bool) -> Result<Self> {
        let both = [Self::read(media, 0), Self::read(media, 1)];
        let mut damaged = None;
        let mut last: Option<Self> = None;
        for pack in both {
            match pack {
                Ok(pack)
                    if last
                        .as_ref()
                        .is_none_or(|last| last.header.version < pack.header.version) =>
                {
                    last = Some(pack);
                }
                Ok(_) => {}
                Err(error) => damaged = Some(error),
            }
        }
        let none = || VolumeError::Damaged {
            address: Address(media.areas.packs_first),
            what: Kind::PackHeader.name(),
        };
        let last = last.ok_or_else(|| damaged.unwrap_or_else(none))?;
        let footers = [Self::last_footer(media, 0), Self::last_footer(media, 1)];
        let is_missed = |footer: &PackHeader| {
            // A volume is closed by two checkpoints of the same state.
            let is_same = footer.version == last.header.version + 1 && footer.is_clean && last.header.is_clean;
            footer.version > last.header.version && !is_same
        };
        match writes && footers.iter().flatten().any(is_missed) {
            true => Err(none()),
            false => Ok(last),
        }
    }

    /// The newest footer in the place of a pack, whether the rest is there or not.
    fn last_footer(media: &Media, number: u32) -> Option<PackHeader> {
        let first = Self::first(media, number);
        let blocks = first..first + media.areas.pack_blocks;
        let footers = blocks.filter_map(|at| media.read_sealed(Address(at), Kind::PackFooter).ok());
        footers
            .map(|footer| PackHeader::read(&footer))
            .filter(|footer| footer.is_possible(media.areas.pack_blocks))
            .max_by_key(|footer| footer.version)
    }

    fn read(media: &Media, number: u32) -> Result<Self> {
        let first = Self::first(media, number);
        let header = PackHeader::read(&*media.read_sealed(Address(first), Kind::PackHeader)?);
        let damaged = |at: u32| VolumeError::Damaged {
            address: Address(at),
            what: Kind::PackHeader.name(),
        };
        let len_blocks = header.len_blocks();
        if len_blocks > media.areas.pack_blocks {
            return Err(damaged(first));
        }
        let mut at = first + 1;
        let mut section = |count: u32, kind: Kind| {
            let blocks = (at..at + count).map(|address| media.read_sealed(Address(address), kind));
            at += count;
            blocks.collect::<Result<Vec<_>>>()
        };
        let bitmaps = section(header.bitmap_blocks, Kind::PackBitmaps)?;
        let mut journal = Journal::default();
        for block in section(header.journal_blocks, Kind::PackJournal)? {
            journal.read(&block, media.areas.segment_blocks);
        }
        let orphans = section(header.orphan_blocks, Kind::PackOrphans)?;
        let summaries = section(header.summary_blocks, Kind::PackSummaries)?;
        let footer = PackHeader::read(&*media.read_sealed(Address(first + len_blocks - 1), Kind::PackFooter)?);
        if footer != header {
            return Err(damaged(first + len_blocks - 1));
        }
        Ok(Self {
            header,
            number,
            bits: bits_of(&bitmaps),
            journal,
            orphans: orphans.iter().flat_map(|block| orphans_of(block)).collect(),
            summaries: summaries.iter().flat_map(|block| open_summaries_of(block)).collect(),
        })
    }
}

/// Address of a copy of a block of the segment table.
pub(crate) fn segment_table_address(media: &Media, block: u32, is_second: bool) -> Address {
    let areas = &media.areas;
    let copy = if is_second { areas.segment_table_blocks } else { 0 };
    Address(areas.segment_table_first + copy + block)
}

impl Space {
    /// Writes the other copies of the blocks of the segment table with these entries.
    fn write_segment_table(&mut self, media: &Media, dirty: &[(u32, SegmentEntry)]) -> Result<()> {
        let segment_blocks = media.areas.segment_blocks;
        let per_block = SegmentEntry::per_block(segment_blocks);
        let mut blocks: BTreeMap<u32, Box<Block>> = BTreeMap::new();
        for (number, _) in dirty {
            blocks.entry(number / per_block).or_insert_with(zeros);
        }
        for (number, block) in &mut blocks {
            for segment in number * per_block..(number + 1) * per_block {
                if let Some(entry) = self.segments.entry(segment) {
                    entry.write(block, segment, segment_blocks);
                }
            }
            let at = usize::try_from(*number).unwrap_or(usize::MAX);
            let Some(is_second) = self.second_segments.get_mut(at) else {
                continue;
            };
            *is_second = !*is_second;
            let address = segment_table_address(media, *number, *is_second);
            media.write_sealed(address, Kind::SegmentTable, block)?;
        }
        self.segments.written();
        Ok(())
    }
}

impl State {
    /// Writes a checkpoint, see the module. `is_clean`: nothing follows.
    pub(crate) fn checkpoint(&mut self, is_clean: bool) -> Result<()> {
        self.durability.check_writable()?;
        self.complete_all();
        let written = self.write_checkpoint(is_clean);
        self.durability.stop_after(written)
    }

    /// Whether a checkpoint now would equal the last one.
    pub(crate) fn equals_checkpoint(&self) -> bool {
        let is_unwritten = self.tree.pages.dirty_count() > 0
            || !self.tree.nodes.dirty().is_empty()
            || self.small.main.unwritten_blocks() > 0
            || self.durability.companion_blocks() > 0;
        !self.durability.since.is_changed && !is_unwritten
    }

    fn write_checkpoint(&mut self, is_clean: bool) -> Result<()> {
        self.write_back()?;
        self.link_delta_files()?;
        while let Some(nid) = self.tree.nodes.dirty().first().copied() {
            self.write_node(nid, None)?;
        }
        // Also if nothing was written, as after a crash from which only synced files were
        // recovered.
        self.space.write_filled(&self.media)?;
        let journal = self.write_tables()?;
        self.space.segments.restart_empty_logs();
        self.write_pack(&journal, is_clean)?;
        self.durability.since = SinceCheckpoint::default();
        self.space.table.checkpointed();
        let freed = self.space.segments.checkpointed();
        self.discard(&freed);
        Ok(())
    }

    /// Writes the tables, or returns the changes for the journal instead.
    fn write_tables(&mut self) -> Result<Journal> {
        let segment_blocks = self.media.areas.segment_blocks;
        let segments = self
            .space
            .segments
            .dirty()
            .map(|(number, entry)| (number, entry.clone()));
        let nodes = self.space.table.changed().iter().map(|(nid, entry)| (*nid, *entry));
        let mut journal = Journal {
            nodes: nodes.collect(),
            segments: segments.collect(),
        };
        let fits = |journal: &Journal| journal.blocks(segment_blocks).len() <= JOURNAL_BLOCKS as usize;
        if !fits(&journal) {
            self.space.table.write(&self.media)?;
            let left = self.space.table.changed().iter().map(|(nid, entry)| (*nid, *entry));
            journal.nodes = left.collect();
        }
        if !fits(&journal) {
            self.space.write_segment_table(&self.media, &journal.segments)?;
            journal.segments.clear();
        }
        Ok(journal)
    }

    fn write_pack(&mut self, journal: &Journal, is_clean: bool) -> Result<()> {
        let number = 1 - self.durability.pack;
        let first = Pack::first(&self.media, number);
        let mut logs = [LogHead::default(); crate::format::LOGS];
        let mut summaries = Vec::new();
        for (place, (head, of_segment)) in logs.iter_mut().zip(self.space.segments.heads()) {
            *place = head;
            let written = usize::try_from(head.next).unwrap_or(usize::MAX);
            summaries.extend_from_slice(of_segment.get(..written).unwrap_or(of_segment));
        }
        let bits: Vec<bool> = self
            .space
            .second_segments
            .iter()
            .chain(self.space.table.copies())
            .copied()
            .collect();
        let orphans: Vec<_> = self.tree.orphans.iter().copied().collect();
        let sections = [
            (Kind::PackBitmaps, bitmap_blocks(&bits)),
            (Kind::PackJournal, journal.blocks(self.media.areas.segment_blocks)),
            (Kind::PackOrphans, orphan_blocks(&orphans)),
            (Kind::PackSummaries, open_summary_blocks(&summaries)),
        ];
        let count = |index: usize| sections.get(index).map_or(0, |(_, blocks)| blocks.len() as u32);
        let header = PackHeader {
            version: self.durability.version + 1,
            written_s: self.now().seconds,
            used_blocks: self.space.counts.used_blocks,
            nodes: self.space.counts.nodes,
            inodes: self.space.counts.inodes,
            last_nid: self.space.table.last,
            delta_list: self.small.delta_list,
            bitmap_blocks: count(0),
            journal_blocks: count(1),
            orphan_blocks: count(2),
            summary_blocks: count(3),
            is_clean,
            logs,
        };
        let len_blocks = header.len_blocks();
        if len_blocks > self.media.areas.pack_blocks {
            return Err(VolumeError::Stopped(
                "a checkpoint does not fit into its area".to_owned(),
            ));
        }
        let mut head = zeros();
        header.write(&mut head);
        let mut footer = head.clone();
        self.media.id.seal(&mut head, Kind::PackHeader, Address(first));
        let mut bytes = head.to_vec();
        let mut at = first + 1;
        for (kind, blocks) in sections {
            for mut block in blocks {
                self.media.id.seal(&mut block, kind, Address(at));
                bytes.extend_from_slice(&block[..]);
                at += 1;
            }
        }
        self.media.write(Address(first), &bytes, Written::Tables)?;
        self.media.device.flush()?;
        self.media.write_sealed(Address(at), Kind::PackFooter, &mut footer)?;
        self.media.device.flush()?;
        self.durability.version += 1;
        self.durability.pack = number;
        Ok(())
    }

    /// Discards freed segments. A failure is harmless: the bytes merely stay.
    fn discard(&self, segments: &[u32]) {
        let mut rest = segments;
        while let Some((first, _)) = rest.split_first() {
            let beside = (*first..)
                .zip(rest)
                .take_while(|(expected, number)| expected == *number);
            let count = beside.count();
            let blocks = (count as u64) * u64::from(self.media.areas.segment_blocks);
            let start = self.media.areas.segment_first(*first);
            let _ = self.media.device.discard(u64::from(start.0), blocks);
            rest = rest.get(count..).unwrap_or_default();
        }
    }
}
