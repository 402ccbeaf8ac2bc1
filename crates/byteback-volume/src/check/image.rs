//! Everything outside the main area: superblocks, checkpoint packs, tables, summaries.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use byteback_host::block::BlockDevice;

use super::{Problems, Trouble};
use crate::error::{Result, VolumeError};
use crate::format::{
    Address, Areas, Block, FEATURE_COMPRESSION, Footer, Found, Journal, KNOWN_FEATURES, Kind, LogHead, NODES_PER_BLOCK,
    Nid, NodeEntry, PackHeader, SUMMARIES_PER_BLOCK, SegmentEntry, Summary, Superblock, VERSION, bits_of,
    open_summaries_of, orphans_of, zeros,
};

/// Most segments whose summaries are kept in memory.
const SUMMARIES_KEPT: usize = 4096;

/// See the module.
pub(crate) struct Image<'a> {
    pub(crate) device: &'a dyn BlockDevice,
    pub(crate) superblock: Superblock,
    pub(crate) pack: PackHeader,
    /// Number of the pack that was read: 0 or 1.
    pub(crate) pack_number: u32,
    /// The version of the newest checkpoint that was ever complete.
    pub(crate) newest: u64,
    /// Valid copies of the tables' blocks: of the segment table, then of the node table.
    pub(crate) bits: Vec<bool>,
    /// Entries of the segment table; `None` where it is damaged.
    pub(crate) segments: Vec<Option<SegmentEntry>>,
    /// Nodes that exist.
    pub(crate) nodes: BTreeMap<Nid, NodeEntry>,
    /// Blocks of the node table that are damaged.
    pub(crate) lost_node_blocks: BTreeSet<u32>,
    /// Copies of the superblock to be rewritten.
    pub(crate) lost_superblocks: Vec<Address>,
    pub(crate) orphans: BTreeSet<Nid>,
    /// Summaries of the segments that were open, from the pack.
    pub(crate) open: BTreeMap<u32, Rc<[Summary]>>,
    kept: BTreeMap<u32, Option<Rc<[Summary]>>>,
}

/// A pack in the state that was found.
enum Pack {
    Whole(Box<WholePack>),
    /// A pack that was complete once and is damaged now: its version, and whether the volume was
    /// closed by it.
    Rotten(u64, bool),
    /// A pack that was never complete, or is gone.
    None,
}

struct WholePack {
    number: u32,
    /// The version of the newest pack that was ever complete.
    newest: u64,
    header: PackHeader,
    bits: Vec<bool>,
    journal: Journal,
    orphans: BTreeSet<Nid>,
    summaries: Vec<Summary>,
}

fn superblock(device: &dyn BlockDevice, address: Address) -> Found {
    let mut block = zeros();
    match device.read_blocks(u64::from(address.0), &mut block[..]) {
        Ok(()) => Superblock::find(&block, address),
        Err(_) => Found::Damaged,
    }
}

impl<'a> Image<'a> {
    /// Reads everything outside the main area.
    ///
    /// # Errors
    /// See [`super::check`].
    pub(crate) fn read(device: &'a dyn BlockDevice, problems: &mut Problems) -> Result<Self> {
        let (superblock, lost_superblocks) = Self::read_superblocks(device, problems)?;
        let reader = Reader {
            device,
            superblock: &superblock,
        };
        let pack = reader.last_pack(problems)?;
        let areas = superblock.areas;
        let mut image = Self {
            device,
            pack_number: pack.number,
            newest: pack.newest,
            segments: vec![None; usize::try_from(areas.main_segments).unwrap_or(0)],
            nodes: BTreeMap::new(),
            lost_node_blocks: BTreeSet::new(),
            lost_superblocks,
            orphans: pack.orphans,
            open: open_segments(&pack.header.logs, &pack.summaries, areas.segment_blocks),
            kept: BTreeMap::new(),
            pack: pack.header,
            bits: pack.bits,
            superblock,
        };
        image.read_segment_table(&pack.journal, problems);
        image.read_node_table(&pack.journal, problems);
        Ok(image)
    }

    fn read_superblocks(device: &dyn BlockDevice, problems: &mut Problems) -> Result<(Superblock, Vec<Address>)> {
        let len_blocks = device.len_blocks();
        let end = |len: u64| Address(u32::try_from(len.saturating_sub(1)).unwrap_or(u32::MAX));
        let first = superblock(device, Address(0));
        let last_of = match &first {
            Found::Superblock(found) => Address(found.areas.len_blocks - 1),
            _ => end(len_blocks),
        };
        let last = superblock(device, last_of);
        let newer = [&first, &last].into_iter().find_map(|found| match found {
            Found::Newer(found) => Some(*found),
            _ => None,
        });
        let (found, lost) = match (first, last) {
            (Found::Superblock(first), Found::Superblock(last)) if first == last => (first, Vec::new()),
            (Found::Superblock(first), _) => (first, vec![last_of]),
            (_, Found::Superblock(last)) => (last, vec![Address(0)]),
            _ if newer.is_some() => {
                let known = VERSION;
                let found = newer.unwrap_or(known);
                return Err(VolumeError::NewerVersion { found, known });
            }
            (Found::Damaged, _) | (_, Found::Damaged) => {
                let what = Kind::Superblock.name();
                return Err(VolumeError::Damaged {
                    address: Address(0),
                    what,
                });
            }
            _ => return Err(VolumeError::NotAVolume),
        };
        let volume_blocks = u64::from(found.areas.len_blocks);
        if volume_blocks > len_blocks {
            return Err(VolumeError::CutOff {
                volume_blocks,
                device_blocks: len_blocks,
            });
        }
        let unknown = found.features & !KNOWN_FEATURES;
        if unknown != 0 {
            return Err(VolumeError::UnknownFeatures(unknown));
        }
        for address in &lost {
            problems.add(Trouble::Superblock(*address));
        }
        Ok((found, lost))
    }

    /// Whether pages may be compressed.
    pub(crate) fn is_compressed(&self) -> bool {
        self.superblock.features & FEATURE_COMPRESSION != 0
    }

    pub(crate) fn areas(&self) -> &Areas {
        &self.superblock.areas
    }

    /// Reads a block if it is sealed as this kind.
    pub(crate) fn sealed(&self, address: Address, kind: Kind) -> Option<Box<Block>> {
        let block = self.block(address)?;
        self.superblock.id.is_sealed(&block, kind, address).then_some(block)
    }

    /// Reads a block; `None` if the device fails.
    pub(crate) fn block(&self, address: Address) -> Option<Box<Block>> {
        let mut block = zeros();
        self.device.read_blocks(u64::from(address.0), &mut block[..]).ok()?;
        Some(block)
    }

    fn bit(&self, at: u32) -> bool {
        usize::try_from(at)
            .ok()
            .and_then(|at| self.bits.get(at))
            .copied()
            .unwrap_or(false)
    }

    /// Address of the valid copy of a block of the segment table.
    pub(crate) fn segment_table_block(&self, number: u32) -> Address {
        let areas = self.areas();
        let copy = if self.bit(number) {
            areas.segment_table_blocks
        } else {
            0
        };
        Address(areas.segment_table_first + copy + number)
    }

    /// Address of the valid copy of a block of the node table.
    pub(crate) fn node_table_block(&self, number: u32) -> Address {
        let areas = self.areas();
        let copy = match self.bit(areas.segment_table_blocks + number) {
            true => areas.node_table_blocks,
            false => 0,
        };
        Address(areas.node_table_first + copy + number)
    }

    fn read_segment_table(&mut self, journal: &Journal, problems: &mut Problems) {
        let areas = *self.areas();
        let per_block = SegmentEntry::per_block(areas.segment_blocks);
        for number in 0..areas.main_segments.div_ceil(per_block) {
            let address = self.segment_table_block(number);
            let Some(block) = self.sealed(address, Kind::SegmentTable) else {
                problems.add(Trouble::SegmentTable(address));
                continue;
            };
            for segment in number * per_block..areas.main_segments.min((number + 1) * per_block) {
                if let Some(place) = self.segments.get_mut(segment as usize) {
                    *place = Some(SegmentEntry::read(&block, segment, areas.segment_blocks));
                }
            }
        }
        for (segment, entry) in &journal.segments {
            if let Some(place) = self.segments.get_mut(*segment as usize) {
                *place = Some(entry.clone());
            }
        }
    }

    fn read_node_table(&mut self, journal: &Journal, problems: &mut Problems) {
        let areas = *self.areas();
        for number in 0..areas.node_table_blocks {
            let address = self.node_table_block(number);
            let Some(block) = self.sealed(address, Kind::NodeTable) else {
                problems.add(Trouble::NodeTable(address));
                self.lost_node_blocks.insert(number);
                continue;
            };
            for nid in (number * NODES_PER_BLOCK..(number + 1) * NODES_PER_BLOCK).map(Nid) {
                let entry = NodeEntry::read(&block, nid);
                if entry.address != Address::NONE {
                    self.nodes.insert(nid, entry);
                }
            }
        }
        for (nid, entry) in &journal.nodes {
            match entry.address {
                Address::NONE => self.nodes.remove(nid),
                _ => self.nodes.insert(*nid, *entry),
            };
        }
        self.find_lost_nodes();
        let end = areas.node_table_blocks.saturating_mul(NODES_PER_BLOCK);
        let is_node = |nid: Nid| nid != Nid::NONE && nid.0 < end;
        self.nodes.retain(|nid, entry| {
            let is_possible = is_node(*nid) && is_node(entry.ino) && areas.segment_of(entry.address).is_some();
            if !is_possible {
                problems.add(Trouble::NodeEntry(*nid));
            }
            is_possible
        });
    }

    /// Recovers the entries of damaged blocks of the node table: the one block of a node that is in
    /// use names the node and its file.
    fn find_lost_nodes(&mut self) {
        if self.lost_node_blocks.is_empty() {
            return;
        }
        let areas = *self.areas();
        for segment in 0..areas.main_segments {
            let Some(entry) = self.segments.get(segment as usize).cloned().flatten() else {
                continue;
            };
            for index in (0..areas.segment_blocks).filter(|index| entry.is_valid(*index)) {
                let address = Address(areas.segment_first(segment).0 + index);
                let Some(summary) = self.summary_of(address) else {
                    continue;
                };
                if !self.lost_node_blocks.contains(&(summary.nid.0 / NODES_PER_BLOCK)) {
                    continue;
                }
                let Some(block) = self.sealed(address, Kind::Node) else {
                    continue;
                };
                let footer = Footer::read(&block);
                if footer.nid == summary.nid {
                    let entry = NodeEntry {
                        address,
                        ino: footer.ino,
                        version: summary.version,
                    };
                    // The journal is newer than the table.
                    self.nodes.entry(footer.nid).or_insert(entry);
                }
            }
        }
    }

    /// The summaries of a segment; `None` if they are damaged.
    pub(crate) fn summaries_of(&mut self, segment: u32) -> Option<Rc<[Summary]>> {
        if let Some(open) = self.open.get(&segment) {
            return Some(Rc::clone(open));
        }
        if !self.kept.contains_key(&segment) {
            if self.kept.len() >= SUMMARIES_KEPT {
                self.kept.clear();
            }
            let read = self.read_summaries(segment);
            self.kept.insert(segment, read);
        }
        self.kept.get(&segment).cloned().flatten()
    }

    fn read_summaries(&self, segment: u32) -> Option<Rc<[Summary]>> {
        let areas = self.areas();
        let first = areas.summary_of(segment);
        let mut summaries = Vec::new();
        for (number, start) in (0..areas.summary_blocks()).zip((0..).step_by(SUMMARIES_PER_BLOCK as usize)) {
            let block = self.sealed(Address(first.0 + number), Kind::Summary)?;
            let end = areas.segment_blocks.min(start + SUMMARIES_PER_BLOCK);
            summaries.extend((start..end).map(|index| Summary::read(&block, index)));
        }
        Some(summaries.into())
    }

    /// The summary of a block of the main area; `None` if it is damaged.
    pub(crate) fn summary_of(&mut self, address: Address) -> Option<Summary> {
        let (segment, index) = self.areas().segment_of(address)?;
        self.summaries_of(segment)?.get(index as usize).copied()
    }
}

/// The summaries in a pack, by segment.
fn open_segments(logs: &[LogHead], summaries: &[Summary], segment_blocks: u32) -> BTreeMap<u32, Rc<[Summary]>> {
    let mut rest = summaries;
    let mut open = BTreeMap::new();
    for log in logs {
        let written = usize::try_from(log.next.min(segment_blocks))
            .unwrap_or(0)
            .min(rest.len());
        let (own, later) = rest.split_at(written);
        let mut all = own.to_vec();
        all.resize(usize::try_from(segment_blocks).unwrap_or(0), Summary::default());
        open.insert(log.segment, all.into());
        rest = later;
    }
    open
}

/// Reads packs.
struct Reader<'a> {
    device: &'a dyn BlockDevice,
    superblock: &'a Superblock,
}

impl Reader<'_> {
    fn sealed(&self, address: u32, kind: Kind) -> Option<Box<Block>> {
        let mut block = zeros();
        self.device.read_blocks(u64::from(address), &mut block[..]).ok()?;
        self.superblock
            .id
            .is_sealed(&block, kind, Address(address))
            .then_some(block)
    }

    fn last_pack(&self, problems: &mut Problems) -> Result<WholePack> {
        let mut last: Option<Box<WholePack>> = None;
        let mut rotten = None;
        for number in [0, 1] {
            match self.pack(number) {
                Pack::Whole(pack)
                    if last
                        .as_ref()
                        .is_none_or(|last| last.header.version < pack.header.version) =>
                {
                    last = Some(pack);
                }
                Pack::Rotten(version, is_clean) => rotten = rotten.max(Some((version, is_clean))),
                _ => {}
            }
        }
        let Some(last) = last else {
            let what = "both copies of the checkpoint";
            return Err(VolumeError::Damaged {
                address: Address(self.superblock.areas.packs_first),
                what,
            });
        };
        let mut last = *last;
        if let Some((version, is_clean)) = rotten
            && version > last.header.version
        {
            // A volume is closed by two checkpoints of the same state.
            let is_lost = !(is_clean && last.header.is_clean && version == last.header.version + 1);
            problems.add(Trouble::Checkpoint { version, is_lost });
            last.newest = version;
        }
        Ok(last)
    }

    fn pack(&self, number: u32) -> Pack {
        match self.whole_pack(number) {
            Pack::Whole(pack) => Pack::Whole(pack),
            other => {
                // The footer is written when everything before it is durable.
                let areas = &self.superblock.areas;
                let first = areas.packs_first + number * areas.pack_blocks;
                let footers = (first..first + areas.pack_blocks).filter_map(|at| self.sealed(at, Kind::PackFooter));
                let versions = footers
                    .map(|footer| PackHeader::read(&footer))
                    .filter(|footer| footer.is_possible(areas.pack_blocks))
                    .map(|footer| (footer.version, footer.is_clean));
                versions
                    .max()
                    .map_or(other, |(version, is_clean)| Pack::Rotten(version, is_clean))
            }
        }
    }

    fn whole_pack(&self, number: u32) -> Pack {
        let areas = &self.superblock.areas;
        let first = areas.packs_first + number * areas.pack_blocks;
        let Some(header) = self.sealed(first, Kind::PackHeader) else {
            return Pack::None;
        };
        let header = PackHeader::read(&header);
        let len_blocks = header.len_blocks();
        if len_blocks > areas.pack_blocks {
            return Pack::None;
        }
        let Some(footer) = self.sealed(first + len_blocks - 1, Kind::PackFooter) else {
            return Pack::None;
        };
        if PackHeader::read(&footer) != header {
            return Pack::None;
        }
        match self.body(number, first + 1, &header) {
            Some(whole) => Pack::Whole(Box::new(whole)),
            None => Pack::None,
        }
    }

    fn body(&self, number: u32, first: u32, header: &PackHeader) -> Option<WholePack> {
        let mut at = first;
        let mut section = |count: u32, kind: Kind| {
            let blocks: Option<Vec<_>> = (at..at + count).map(|address| self.sealed(address, kind)).collect();
            at += count;
            blocks
        };
        let bitmaps = section(header.bitmap_blocks, Kind::PackBitmaps)?;
        let journal_blocks = section(header.journal_blocks, Kind::PackJournal)?;
        let orphans = section(header.orphan_blocks, Kind::PackOrphans)?;
        let summaries = section(header.summary_blocks, Kind::PackSummaries)?;
        let mut journal = Journal::default();
        for block in &journal_blocks {
            journal.read(block, self.superblock.areas.segment_blocks);
        }
        Some(WholePack {
            number,
            newest: header.version,
            header: header.clone(),
            bits: bits_of(&bitmaps),
            journal,
            orphans: orphans.iter().flat_map(|block| orphans_of(block)).collect(),
            summaries: summaries.iter().flat_map(|block| open_summaries_of(block)).collect(),
        })
    }
}
