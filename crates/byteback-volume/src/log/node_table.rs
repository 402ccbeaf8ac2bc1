//! The node address table in memory: its blocks, and over them the changes since they were written.
//!
//! A number that was given back is not given away again before the next checkpoint: until then a
//! node of the same number that was synced could be found after a crash.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Result, VolumeError};
use crate::format::{Address, Block, Kind, NODES_PER_BLOCK, Nid, NodeEntry};
use crate::log::media::Media;

/// Most blocks of the table kept in memory.
const BLOCKS_MAX: usize = 4096;

/// See the module.
#[derive(Debug)]
pub(crate) struct NodeTable {
    /// Whether the second of the two copies of each block is valid.
    second: Vec<bool>,
    blocks: BTreeMap<u32, Box<Block>>,
    changed: BTreeMap<Nid, NodeEntry>,
    given_back: BTreeSet<Nid>,
    /// The number that was given away last.
    pub(crate) last: Nid,
}

impl NodeTable {
    /// As a checkpoint has it.
    pub(crate) fn new(second: Vec<bool>, journal: BTreeMap<Nid, NodeEntry>, last: Nid) -> Self {
        Self {
            second,
            blocks: BTreeMap::new(),
            changed: journal,
            given_back: BTreeSet::new(),
            last,
        }
    }

    /// Where a copy of a block of the table is.
    pub(crate) fn address(media: &Media, block: u32, is_second: bool) -> Address {
        let areas = &media.areas;
        let copy = if is_second { areas.node_table_blocks } else { 0 };
        Address(areas.node_table_first + copy + block)
    }

    /// Numbers are below this one.
    pub(crate) fn end(media: &Media) -> u32 {
        media.areas.node_table_blocks.saturating_mul(NODES_PER_BLOCK)
    }

    fn block(&mut self, media: &Media, number: u32) -> Result<&Block> {
        if !self.blocks.contains_key(&number) {
            let is_second = usize::try_from(number).ok().and_then(|at| self.second.get(at));
            let is_second = is_second.copied().unwrap_or(false);
            let block = media.read_sealed(Self::address(media, number, is_second), Kind::NodeTable)?;
            if self.blocks.len() >= BLOCKS_MAX {
                self.blocks.clear();
            }
            self.blocks.insert(number, block);
        }
        let missing = VolumeError::Stopped("a block of the node table was lost in memory".to_owned());
        self.blocks.get(&number).map(|block| &**block).ok_or(missing)
    }

    /// Where a node is. A number that no node can have is free.
    pub(crate) fn get(&mut self, media: &Media, nid: Nid) -> Result<NodeEntry> {
        if let Some(entry) = self.changed.get(&nid) {
            return Ok(*entry);
        }
        if nid == Nid::NONE || nid.0 >= Self::end(media) {
            return Ok(NodeEntry::default());
        }
        Ok(NodeEntry::read(self.block(media, nid.0 / NODES_PER_BLOCK)?, nid))
    }

    /// Says where a node is now.
    pub(crate) fn set(&mut self, nid: Nid, entry: NodeEntry) {
        self.changed.insert(nid, entry);
    }

    /// Gives a number away, to a node of the file `ino`, or of a new one.
    ///
    /// # Errors
    /// [`VolumeError::Full`]; a block of the table that cannot be read.
    pub(crate) fn give(&mut self, media: &Media, ino: Option<Nid>) -> Result<Nid> {
        let end = Self::end(media);
        let mut nid = self.last;
        for _ in 0..end {
            nid = match nid.0 + 1 < end {
                true => Nid(nid.0 + 1),
                false => Nid::FIRST,
            };
            let entry = match self.get(media, nid) {
                // Which of the numbers in this block are free is lost; others are.
                Err(error) if error.is_loss() => {
                    nid = Nid(((nid.0 / NODES_PER_BLOCK + 1) * NODES_PER_BLOCK - 1).min(end - 1));
                    continue;
                }
                entry => entry?,
            };
            if entry.address == Address::NONE && !self.given_back.contains(&nid) {
                let entry = NodeEntry {
                    address: Address::RESERVED,
                    ino: ino.unwrap_or(nid),
                    version: entry.version,
                };
                self.changed.insert(nid, entry);
                self.last = nid;
                return Ok(nid);
            }
        }
        Err(VolumeError::Full)
    }

    /// Takes a number back.
    pub(crate) fn give_back(&mut self, nid: Nid, entry: NodeEntry) {
        self.given_back.insert(nid);
        let free = NodeEntry {
            address: Address::NONE,
            ino: Nid::NONE,
            version: entry.version.wrapping_add(1),
        };
        self.changed.insert(nid, free);
    }

    /// Entries that differ from the blocks.
    pub(crate) fn changed(&self) -> &BTreeMap<Nid, NodeEntry> {
        &self.changed
    }

    /// Writes the changes to the other copies of the blocks. Changes of a block that cannot be read
    /// any more stay in memory, as the rest of that block must not be made up.
    pub(crate) fn write(&mut self, media: &Media) -> Result<()> {
        let changed = std::mem::take(&mut self.changed);
        let written = self.write_blocks(media, &changed);
        match &written {
            Ok(lost) => {
                let is_kept = |nid: &Nid| lost.contains(&(nid.0 / NODES_PER_BLOCK));
                self.changed = changed.into_iter().filter(|(nid, _)| is_kept(nid)).collect();
            }
            Err(_) => self.changed = changed,
        }
        written.map(drop)
    }

    /// Answers which blocks cannot be read.
    fn write_blocks(&mut self, media: &Media, changed: &BTreeMap<Nid, NodeEntry>) -> Result<BTreeSet<u32>> {
        let mut lost = BTreeSet::new();
        let mut rest = changed.iter().peekable();
        while let Some((first, _)) = rest.peek() {
            let number = first.0 / NODES_PER_BLOCK;
            let of_block = |(nid, _): &(&Nid, &NodeEntry)| nid.0 / NODES_PER_BLOCK == number;
            let mut block = match self.block(media, number) {
                Err(error) if error.is_loss() => {
                    lost.insert(number);
                    while rest.next_if(of_block).is_some() {}
                    continue;
                }
                block => Box::new(*block?),
            };
            while let Some((nid, entry)) = rest.next_if(of_block) {
                entry.write(&mut block, *nid);
            }
            let at = usize::try_from(number).unwrap_or(usize::MAX);
            let Some(is_second) = self.second.get_mut(at) else {
                continue;
            };
            *is_second = !*is_second;
            let address = Self::address(media, number, *is_second);
            media.write_sealed(address, Kind::NodeTable, &mut block)?;
            self.blocks.insert(number, block);
        }
        Ok(lost)
    }

    /// Valid copies of the blocks: true for the second.
    pub(crate) fn copies(&self) -> &[bool] {
        &self.second
    }

    /// A checkpoint is durable.
    pub(crate) fn checkpointed(&mut self) {
        self.given_back.clear();
    }
}
