//! Repair of the problems found by a check.
//!
//! **Rules.** No content is made up: a damaged page or node stays an error until its file is
//! removed or overwritten. A file that no name leads to gets one, in `lost+found`. Counters,
//! bitmaps and references are rebuilt from what was found.
//!
//! **Order.** (1) A damaged copy of the superblock is written from the other one. (2) A volume that
//! was not closed is recovered as usual, unless that could write over something: if blocks in use
//! are said to be free, or a table is damaged, what was synced after the last checkpoint is given
//! up. (3) Tables, bitmaps and counters are written as a new checkpoint, to the places that the one
//! that counts does not use: whenever this is interrupted, it can be begun again. (4) Then names,
//! links and references are put right by the volume's own means, and (5) all is checked once more.
//!
//! Out of scope: finding files without any checkpoint.

use std::collections::BTreeSet;
use std::sync::Arc;

use byteback_host::block::BlockDevice;

use crate::check::{CheckOptions, Findings, Report, Trouble, WrongEntry, check, find};
use crate::error::{Result, VolumeError};
use crate::format::{
    Address, CLUSTER_SLOT, DIRECT_SLOTS, DirectoryBlock, INDIRECT_NODES, INLINE_DENTRIES, Kind, LOGS, LogHead,
    NODES_PER_BLOCK, Nid, NodeBlock, NodeEntry, PackHeader, SegmentEntry, Slots, Summary, bitmap_blocks,
    cluster_checksum, open_summary_blocks, orphan_blocks, page_checksum, zeros,
};
use crate::log::media::Media;
use crate::log::segments::LogKind;
use crate::state::State;
use crate::tree::attributes::{Attributes, DIRECTORY, TYPE};
use crate::tree::names::NewFile;
use crate::tree::place::levels_below;
use crate::volume::{OpenOptions, Volume};

/// Directories in which what had no name is found.
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Most rounds of writing the tables: cutting something off in one round may leave work for the
/// next.
const ROUNDS_MAX: usize = 4;

/// How to repair.
#[derive(Clone, Debug, Default)]
pub struct RepairOptions {
    /// How to check, before and after.
    pub check: CheckOptions,
    /// How the volume is opened meanwhile.
    pub open: OpenOptions,
}

/// Result of a repair.
#[derive(Clone, Debug)]
pub struct Repaired {
    /// Problems before the repair.
    pub before: Report,
    /// Problems that remain.
    pub after: Report,
    /// Whether changes synced after the last checkpoint were given up, as the volume was too
    /// damaged to recover them.
    pub gave_up_synced: bool,
    /// Files that got a name in `lost+found`.
    pub named: u64,
    /// Pages of which the checksums were lost and made anew: nobody knows whether they are as they
    /// were written.
    pub unproven_pages: u64,
}

/// Repairs a volume as far as possible; see the module.
///
/// # Errors
/// As [`check`]; an error of the device; [`VolumeError::Full`] if there is no room to write.
pub fn repair(device: &Arc<dyn BlockDevice>, options: &RepairOptions) -> Result<Repaired> {
    let before = check(&**device, options.check)?;
    let mut repaired = Repaired {
        after: before.clone(),
        before,
        gave_up_synced: false,
        named: 0,
        unproven_pages: 0,
    };
    if repaired.before.is_sound() && repaired.before.is_closed {
        return Ok(repaired);
    }
    let quick = CheckOptions { reads_contents: false };
    write_superblocks(device, &find(&**device, quick)?)?;
    if !repaired.before.is_closed {
        let findings = find(&**device, quick)?;
        repaired.gave_up_synced =
            findings.troubles.iter().any(endangers_recovery) || recover(device, &options.open).is_err();
    }
    for round in 0..ROUNDS_MAX {
        let findings = find(&**device, quick)?;
        if findings.report.is_sound() && (round > 0 || findings.report.is_closed) {
            break;
        }
        repaired.unproven_pages += write_state(device, &findings)?;
        repaired.named += put_right(device, &options.open, quick)?;
    }
    repaired.after = check(&**device, options.check)?;
    Ok(repaired)
}

/// Whether a volume with this cannot be recovered without risk to what is whole.
fn endangers_recovery(trouble: &Trouble) -> bool {
    matches!(
        trouble,
        Trouble::Checkpoint { .. }
            | Trouble::SegmentTable(_)
            | Trouble::NodeTable(_)
            | Trouble::NodeEntry(_)
            | Trouble::Shared { .. }
            | Trouble::Unmarked(_)
            | Trouble::Log(_)
    )
}

fn recover(device: &Arc<dyn BlockDevice>, open: &OpenOptions) -> Result<()> {
    Volume::open(Arc::clone(device), open)?.close()
}

fn media_of(device: &Arc<dyn BlockDevice>, findings: &Findings<'_>) -> Media {
    Media {
        device: Arc::clone(device),
        id: findings.image.superblock.id,
        areas: findings.image.superblock.areas,
        written: Arc::default(),
    }
}

fn write_superblocks(device: &Arc<dyn BlockDevice>, findings: &Findings<'_>) -> Result<()> {
    let image = &findings.image;
    for address in &image.lost_superblocks {
        device.write_blocks(u64::from(address.0), &image.superblock.block(*address)[..])?;
    }
    match image.lost_superblocks.is_empty() {
        true => Ok(()),
        false => Ok(device.flush()?),
    }
}

/// Writes what was found as a new checkpoint; answers how many pages got new checksums.
fn write_state(device: &Arc<dyn BlockDevice>, findings: &Findings<'_>) -> Result<u64> {
    let media = media_of(device, findings);
    let (image, files) = (&findings.image, &findings.files);
    let areas = media.areas;
    let logs = logs_to_go_on(findings)?;
    let unproven_pages = write_summaries(&media, findings)?;
    let mut open_summaries = Vec::new();
    for log in &logs {
        let written = usize::try_from(log.next).unwrap_or(0);
        let mut summaries = match log.next {
            0 => Vec::new(),
            _ => media
                .read_summaries(log.segment)
                .map_or_else(|_| Vec::new(), |all| all.to_vec()),
        };
        summaries.resize(written, Summary::default());
        open_summaries.extend(summaries);
    }
    let mut bits = image.bits.clone();
    bits.resize((areas.segment_table_blocks + areas.node_table_blocks) as usize, false);
    write_segment_table(&media, findings, &mut bits)?;
    let dropped = write_node_table(&media, findings, &mut bits)?;
    let is_orphan = |ino: &Nid| {
        let is_unnamed = files.known.get(ino).is_some_and(|known| known.links == 0);
        is_unnamed && !findings.names.count.contains_key(ino)
    };
    let orphans: Vec<Nid> = image.orphans.iter().copied().filter(is_orphan).collect();
    let (bitmaps, orphans) = (bitmap_blocks(&bits), orphan_blocks(&orphans));
    let open_summaries = open_summary_blocks(&open_summaries);
    let header = PackHeader {
        version: image.newest + 1,
        used_blocks: files.used_blocks(),
        nodes: files.nodes.saturating_sub(dropped),
        inodes: u32::try_from(files.known.len()).unwrap_or(u32::MAX),
        bitmap_blocks: bitmaps.len() as u32,
        journal_blocks: 0,
        orphan_blocks: orphans.len() as u32,
        summary_blocks: open_summaries.len() as u32,
        is_clean: true,
        logs,
        ..image.pack.clone()
    };
    let mut at = areas.packs_first + (1 - image.pack_number) * areas.pack_blocks;
    let mut head = zeros();
    header.write(&mut head);
    let mut footer = head.clone();
    media.write_sealed(Address(at), Kind::PackHeader, &mut head)?;
    let sections = [
        (Kind::PackBitmaps, bitmaps),
        (Kind::PackOrphans, orphans),
        (Kind::PackSummaries, open_summaries),
    ];
    for (kind, blocks) in sections {
        for mut block in blocks {
            at += 1;
            media.write_sealed(Address(at), kind, &mut block)?;
        }
    }
    device.flush()?;
    media.write_sealed(Address(at + 1), Kind::PackFooter, &mut footer)?;
    device.flush()?;
    Ok(unproven_pages)
}

/// Where the logs go on: where they were, if nothing is in use there; else each in a segment of
/// which nothing is, and if there is none, nowhere before it is given one: what it has is full
/// then. That of files' nodes must have one.
fn logs_to_go_on(findings: &Findings<'_>) -> Result<[LogHead; LOGS]> {
    let (image, areas) = (&findings.image, findings.image.superblock.areas);
    let is_owned = |segment: u32, index: u32| findings.files.owned.is_set(segment * areas.segment_blocks + index);
    let is_unused = |segment: u32, from: u32| {
        segment < areas.main_segments && !(from..areas.segment_blocks).any(|index| is_owned(segment, index))
    };
    let mut taken = BTreeSet::new();
    let of_nodes = LogKind::WarmNode as usize;
    let goes_on: Vec<Option<LogHead>> = (image.pack.logs.iter().enumerate())
        .map(|(index, log)| {
            let upcoming = Some(log.upcoming).filter(|upcoming| *upcoming != LogHead::UNDECIDED);
            let is_sound = log.next <= areas.segment_blocks
                && (index != of_nodes || log.next < areas.segment_blocks || upcoming.is_some())
                && is_unused(log.segment, log.next)
                && upcoming.is_none_or(|upcoming| upcoming != log.segment && is_unused(upcoming, 0))
                && !taken.contains(&log.segment)
                && upcoming.is_none_or(|upcoming| !taken.contains(&upcoming));
            if is_sound {
                taken.extend([log.segment].into_iter().chain(upcoming));
            }
            is_sound.then_some(*log)
        })
        .collect();
    let mut logs = [LogHead::default(); LOGS];
    // Those that need one first.
    let mut order: Vec<usize> = (0..LOGS).collect();
    order.sort_by_key(|index| *index != of_nodes);
    for index in order {
        let found = goes_on.get(index).copied().flatten().or_else(|| {
            let is_left = |segment: &u32| !taken.contains(segment);
            let unused = (0..areas.main_segments)
                .filter(is_left)
                .find(|segment| is_unused(*segment, 0));
            let full = || {
                let in_use = (0..areas.main_segments).find(is_left);
                in_use.filter(|_| index != of_nodes)
            };
            let (segment, next) = match unused {
                Some(unused) => (unused, 0),
                None => (full()?, areas.segment_blocks),
            };
            taken.insert(segment);
            Some(LogHead {
                segment,
                next,
                upcoming: LogHead::UNDECIDED,
            })
        });
        if let Some(log) = logs.get_mut(index) {
            *log = found.ok_or(VolumeError::Full)?;
        }
    }
    Ok(logs)
}

/// Writes the summaries of the segments that were open, which only the pack has, and of those that
/// are damaged or wrong.
fn write_summaries(media: &Media, findings: &Findings<'_>) -> Result<u64> {
    let mut unproven_pages = 0;
    let segment_of = |address: Address| media.areas.segment_of(address);
    let mut segments: BTreeSet<u32> = findings.image.open.keys().copied().collect();
    segments.extend(
        findings
            .files
            .unproven
            .iter()
            .filter_map(|(address, _)| Some(segment_of(*address)?.0)),
    );
    for segment in segments
        .into_iter()
        .filter(|segment| *segment < media.areas.main_segments)
    {
        let there = match findings.image.open.get(&segment) {
            Some(open) => Some(open.to_vec()),
            None => media.read_summaries(segment).ok().map(|summaries| summaries.to_vec()),
        };
        let mut summaries = there.unwrap_or_default();
        summaries.resize(media.areas.segment_blocks as usize, Summary::default());
        let of_segment = findings.files.unproven.iter().filter_map(|(address, right)| {
            let (number, index) = segment_of(*address)?;
            (number == segment).then_some((*address, index, right))
        });
        for (address, index, right) in of_segment {
            let Some(place) = summaries.get_mut(index as usize) else {
                continue;
            };
            let is_node = findings
                .image
                .nodes
                .get(&right.nid)
                .is_some_and(|entry| entry.address == address);
            let checksum = match media.read(address) {
                Ok(block) if !is_node => {
                    if right.slot == CLUSTER_SLOT {
                        // It is sealed, so it is as it was written.
                        cluster_checksum(&block)
                    } else {
                        unproven_pages += 1;
                        page_checksum(&block[..])
                    }
                }
                _ => 0,
            };
            *place = Summary { checksum, ..*right };
        }
        media.write_summaries(media.areas.summary_of(segment), &summaries)?;
    }
    Ok(unproven_pages)
}

fn write_segment_table(media: &Media, findings: &Findings<'_>, bits: &mut [bool]) -> Result<()> {
    let (image, areas) = (&findings.image, &media.areas);
    let per_block = SegmentEntry::per_block(areas.segment_blocks);
    for number in 0..areas.segment_table_blocks {
        let mut block = zeros();
        for segment in number * per_block..areas.main_segments.min((number + 1) * per_block) {
            let known = image.segments.get(segment as usize).cloned().flatten();
            let mut entry = known.unwrap_or_default();
            entry.valid = vec![0; (areas.segment_blocks / 8) as usize];
            for index in 0..areas.segment_blocks {
                if findings.files.owned.is_set(segment * areas.segment_blocks + index) {
                    entry.set_valid(index, true);
                }
            }
            entry.write(&mut block, segment, areas.segment_blocks);
        }
        let address = other_copy(
            image.segment_table_block(number),
            areas.segment_table_first,
            areas.segment_table_blocks,
        );
        media.write_sealed(address, Kind::SegmentTable, &mut block)?;
        flip(bits, number);
    }
    Ok(())
}

/// Writes the node table without what nobody can use. Answers how many nodes those are that were
/// counted.
fn write_node_table(media: &Media, findings: &Findings<'_>, bits: &mut [bool]) -> Result<u32> {
    let (image, areas) = (&findings.image, &media.areas);
    let dropped = |trouble: &Trouble| match trouble {
        // Of an inode that is damaged nothing is left that could be read.
        Trouble::Node { nid, ino, .. } if nid == ino => Some(*nid),
        Trouble::StrayNode { nid, .. } => Some(*nid),
        _ => None,
    };
    let dropped: BTreeSet<Nid> = findings.troubles.iter().filter_map(dropped).collect();
    for number in 0..areas.node_table_blocks {
        let there = image.node_table_block(number);
        let mut block = image.sealed(there, Kind::NodeTable).unwrap_or_else(zeros);
        for nid in (number * NODES_PER_BLOCK..(number + 1) * NODES_PER_BLOCK).map(Nid) {
            let before = NodeEntry::read(&block, nid);
            let now = image.nodes.get(&nid).filter(|_| !dropped.contains(&nid));
            let entry = match now {
                Some(entry) => *entry,
                None => NodeEntry {
                    version: before.version,
                    ..NodeEntry::default()
                },
            };
            entry.write(&mut block, nid);
        }
        let address = other_copy(there, areas.node_table_first, areas.node_table_blocks);
        media.write_sealed(address, Kind::NodeTable, &mut block)?;
        flip(bits, areas.segment_table_blocks + number);
    }
    let counted = dropped
        .iter()
        .filter(|nid| image.nodes.get(*nid).is_some_and(|entry| entry.ino == **nid));
    Ok(u32::try_from(counted.count()).unwrap_or(0))
}

/// The place of the other copy of a block of a table.
fn other_copy(address: Address, first: u32, blocks: u32) -> Address {
    match address.0 < first + blocks {
        true => Address(address.0 + blocks),
        false => Address(address.0 - blocks),
    }
}

fn flip(bits: &mut [bool], at: u32) {
    if let Some(bit) = bits.get_mut(at as usize) {
        *bit = !*bit;
    }
}

/// Puts names, links and references right; answers how many files got a name.
fn put_right(device: &Arc<dyn BlockDevice>, open: &OpenOptions, quick: CheckOptions) -> Result<u64> {
    let findings = find(&**device, quick)?;
    if findings.report.is_sound() {
        return Ok(0);
    }
    let volume = Volume::open(Arc::clone(device), open)?;
    let named = volume.with_state(|state| state.put_right(&findings))?;
    volume.close()?;
    Ok(named)
}

impl State {
    fn put_right(&mut self, findings: &Findings<'_>) -> Result<u64> {
        if !findings.files.known.contains_key(&Nid::ROOT) {
            self.make_root()?;
        }
        // Each step is like a call of a program: what it leaves to be written has room, or is
        // written first.
        for ino in &findings.files.lost_indexes {
            self.balance()?;
            self.lose_delta_index(*ino)?;
        }
        for wrong in &findings.names.wrong {
            self.balance()?;
            self.put_entry_right(wrong)?;
        }
        for (dir, page) in &findings.names.lost_pages {
            self.balance()?;
            self.free_pages(*dir, *page, *page + 1)?;
        }
        for (ino, page) in &findings.files.to_clear {
            self.balance()?;
            self.clear_address(*ino, *page)?;
        }
        for (ino, nid) in &findings.files.missing {
            self.balance()?;
            self.clear_reference(*ino, *nid)?;
        }
        for trouble in &findings.troubles {
            self.balance()?;
            match trouble {
                Trouble::Links { ino, found, .. } => self.change_inode(*ino, |inode| inode.set_links(*found))?,
                Trouble::Parent { dir, found, .. } => self.change_inode(*dir, |inode| inode.set_parent(*found))?,
                _ => {}
            }
        }
        let named = self.name_lost(findings)?;
        // Last, as the steps before may have changed it.
        for trouble in &findings.troubles {
            if let Trouble::Blocks { ino, found, said } = trouble {
                self.balance()?;
                self.change_inode(*ino, |inode| {
                    inode.set_blocks(inode.blocks().saturating_add(*found).saturating_sub(*said));
                })?;
            }
        }
        if findings.troubles.contains(&Trouble::DeltaList) {
            let files: Vec<Nid> = findings.files.known.keys().copied().collect();
            self.make_delta_list(&files)?;
        }
        self.checkpoint(false)?;
        Ok(named)
    }

    /// The index of a file's deltas is no block of its own any more: which pages had deltas stays
    /// unknown, so that none of them can be read until it is written over.
    fn lose_delta_index(&mut self, ino: Nid) -> Result<()> {
        self.small.main.forget_file(ino);
        self.change_inode(ino, |inode| inode.set_delta_meta(Address::RESERVED))
    }

    /// A root directory, where there is none any more.
    fn make_root(&mut self) -> Result<()> {
        let last = std::mem::replace(&mut self.space.table.last, Nid::NONE);
        let root = NewFile {
            mode: DIRECTORY | 0o755,
            ..NewFile::default()
        };
        let made = self.new_file(Some((Nid::ROOT, b"/")), &root);
        self.space.table.last = last;
        match made? {
            Nid::ROOT => Ok(()),
            _ => Err(VolumeError::Stopped(
                "there is no space for a root directory".to_owned(),
            )),
        }
    }

    fn put_entry_right(&mut self, wrong: &WrongEntry) -> Result<()> {
        let kind = match wrong.stays {
            Some(ino) => Some((ino, Attributes::kind(self.inode(ino)?.mode()))),
            None => None,
        };
        let change = |slots: Slots, bytes: &mut [u8]| match kind {
            Some((ino, kind)) => slots.replace(bytes, wrong.slot, ino, kind),
            None => slots.remove(bytes, wrong.slot, &wrong.name),
        };
        match wrong.page {
            None => self.change_inode(wrong.dir, |inode| change(Slots(INLINE_DENTRIES), inode.inline_mut())),
            Some(page) => {
                change(DirectoryBlock::SLOTS, self.page_mut(wrong.dir, page, false)?);
                Ok(())
            }
        }
    }

    /// Makes a hole of a page whose address is no block of its file's.
    fn clear_address(&mut self, ino: Nid, page: u64) -> Result<()> {
        if let Some(slot) = self.find_slot(ino, page)? {
            self.set_address(slot, Address::NONE)?;
            self.change_inode(ino, |inode| {
                inode.set_blocks(inode.blocks().saturating_sub(1));
                inode.remove_deltas(|of| u64::from(of) == page);
            })?;
        }
        Ok(())
    }

    /// Makes a hole where a node is missing that nobody can find.
    fn clear_reference(&mut self, ino: Nid, missing: Nid) -> Result<()> {
        let inode = self.inode(ino)?;
        if inode.xattr_node() == missing {
            self.change_inode(ino, |inode| inode.set_xattr_node(Nid::NONE))?;
        }
        if inode.moved_slots() == Some(missing) {
            self.change_inode(ino, |inode| inode.set_moved_slots(None))?;
        }
        for index in 0..INDIRECT_NODES {
            let node = inode.node(index);
            if node == missing {
                self.change_inode(ino, |inode| inode.set_node(index, Nid::NONE))?;
            } else if node != Nid::NONE {
                self.clear_reference_below(node, levels_below(index), missing)?;
            }
        }
        self.change_inode(ino, |inode| inode.set_blocks(inode.blocks().saturating_sub(1)))
    }

    fn clear_reference_below(&mut self, node: Nid, levels: u32, missing: Nid) -> Result<()> {
        let Some(levels_below) = levels.checked_sub(1) else {
            return Ok(());
        };
        for slot in 0..DIRECT_SLOTS {
            // Damaged nodes stay as they are.
            let Ok(block) = self.node(node, "node of a file under repair") else {
                return Ok(());
            };
            match Nid(NodeBlock::slot(block, slot)) {
                Nid::NONE => {}
                below if below == missing => {
                    NodeBlock::set_slot(self.node_mut(node, "node of a file under repair")?, slot, 0);
                }
                below => self.clear_reference_below(below, levels_below, missing)?,
            }
        }
        Ok(())
    }

    /// Gives a name to each of those that nothing leads to.
    fn name_lost(&mut self, findings: &Findings<'_>) -> Result<u64> {
        let lost = &findings.names.lost;
        if lost.is_empty() {
            return Ok(0);
        }
        let dir = self.lost_and_found()?;
        let mut named = 0;
        for ino in lost {
            self.balance()?;
            let mode = self.inode(*ino)?.mode();
            let is_directory = mode & TYPE == DIRECTORY;
            let mut name = format!("#{ino}").into_bytes();
            while self.find_entry(dir, &name)?.is_some() {
                name.push(b'_');
            }
            self.add_entry(dir, &name, *ino, Attributes::kind(mode))?;
            // Names that it has in directories that are lost themselves are counted.
            let links = findings.names.links(*ino, &findings.files) + u32::from(!is_directory);
            self.change_inode(*ino, |inode| {
                inode.set_links(links);
                inode.set_parent(dir);
                inode.set_name(&name);
            })?;
            if is_directory {
                self.change_inode(dir, |inode| inode.set_links(inode.links() + 1))?;
            }
            self.tree.orphans.remove(ino);
            named += 1;
        }
        Ok(named)
    }

    fn lost_and_found(&mut self) -> Result<Nid> {
        let mut name = LOST_AND_FOUND.to_vec();
        loop {
            match self.find_entry(Nid::ROOT, &name)? {
                Some(found) if self.inode(found.ino)?.mode() & TYPE == DIRECTORY => return Ok(found.ino),
                Some(_) => name.push(b'_'),
                None => {
                    let new = NewFile {
                        mode: DIRECTORY | 0o700,
                        ..NewFile::default()
                    };
                    return self.make(Nid::ROOT, &name, &new);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
