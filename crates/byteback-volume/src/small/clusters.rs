//! Clusters: pages of a file that are written at the same time go compressed into one block, as
//! many as have room, on a volume that was created for it (DeltaFS: pages without a base are
//! "orthogonal", they may be compressed conventionally). This saves writes, not room: each page
//! keeps the room that it would need by itself, so that overwriting it never finds the volume full.
//!
//! **One block.** A cluster is one block, and its pages' slots lead to it as to a page. So one of
//! its pages is overwritten, becomes a hole, is moved or gets a delta like any other page; the
//! others stay. The block belongs to the file as long as a slot leads to it: the cluster lists the
//! candidates, and their slots are looked up. There is no count that could be wrong. No node or
//! table is written beyond those for plain pages, so a cluster, of two pages at least, always takes
//! fewer blocks.
//!
//! **The mark of a cluster** is the block's summary; after a crash that lost the summary, its seal.
//!
//! Out of scope: pages of directories; giving room back.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{Result, VolumeError};
use crate::format::{
    Address, Block, CLUSTER_PAGES_MAX, CLUSTER_SLOT, Cluster, Kind, MAX_FILE_BLOCKS, Nid, Summary, cluster_checksum,
    page_checksum, zeros,
};
use crate::log::segments::LogKind;
use crate::small::Small;
use crate::state::State;
use crate::statistics::Written;
use crate::tree::file::log_of;
use byteback_host::block::BLOCK_LEN_BYTES;

/// Most clusters whose page lists are kept in memory.
const KNOWN_MAX: usize = 4096;

/// Failures in a row to fit two pages into a block before some pages are skipped.
const MISSES_MIN: u32 = 8;

/// Most pages skipped.
const SKIPPED_MAX: u32 = 32;

/// Most nodes of a file's addresses searched for one block: those of 4 GiB.
const LOOKED_AT_NODES_MAX: u32 = 1024;

const WHAT: &str = "compressed pages";

/// Page lists of clusters, read as needed.
#[derive(Debug, Default)]
pub(crate) struct Clusters {
    known: BTreeMap<Address, Arc<[u32]>>,
}

impl Clusters {
    fn keep(&mut self, address: Address, pages: &[u32]) -> Arc<[u32]> {
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        let pages: Arc<[u32]> = pages.into();
        self.known.insert(address, Arc::clone(&pages));
        pages
    }

    /// Forgets a block that is no cluster any more.
    pub(crate) fn forget(&mut self, address: Address) {
        self.known.remove(&address);
    }
}

/// Content of one block to write.
#[derive(Debug)]
pub(crate) enum Unit {
    /// A page as it is.
    Page(u64),
    /// Several pages, compressed.
    Cluster(Vec<u64>, Box<Block>),
}

impl Unit {
    /// The pages in it.
    pub(crate) fn pages(&self) -> &[u64] {
        match self {
            Self::Page(page) => std::slice::from_ref(page),
            Self::Cluster(pages, _) => pages,
        }
    }
}

/// How many pages of a run fit into a block, and how often not even two did.
#[derive(Debug)]
struct Attempts {
    likely: usize,
    misses: u32,
    to_skip: u32,
}

impl Attempts {
    fn missed(&mut self) {
        self.misses = self.misses.saturating_add(1);
        let too_many = self.misses.saturating_sub(MISSES_MIN);
        if too_many > 0 {
            self.to_skip = 1u32.checked_shl(too_many - 1).unwrap_or(SKIPPED_MAX).min(SKIPPED_MAX);
        }
    }
}

impl Small {
    /// A cluster was written.
    pub(crate) fn cluster_written(&mut self, address: Address, pages: &[u64]) {
        let numbers: Vec<u32> = pages.iter().filter_map(|page| u32::try_from(*page).ok()).collect();
        self.clusters.keep(address, &numbers);
        self.delta_counts.clusters += 1;
        self.delta_counts.compressed_pages += pages.len() as u64;
    }
}

impl State {
    /// Divides these pages of a file, which are in memory and ascending, into blocks to write, in
    /// the order of their first pages.
    pub(crate) fn units_of(&self, ino: Nid, pages: &[u64]) -> Vec<Unit> {
        let mut units = Vec::with_capacity(pages.len());
        let mut rest = pages;
        let mut attempts = Attempts {
            likely: 3,
            misses: 0,
            to_skip: 0,
        };
        while let Some((first, behind)) = rest.split_first() {
            let cluster = match attempts.to_skip {
                0 => self.first_cluster(ino, rest, &mut attempts),
                _ => {
                    attempts.to_skip -= 1;
                    None
                }
            };
            match cluster {
                Some((count, block)) => {
                    let (taken, behind) = rest.split_at(count);
                    units.push(Unit::Cluster(taken.to_vec(), block));
                    rest = behind;
                }
                None => {
                    units.push(Unit::Page(*first));
                    rest = behind;
                }
            }
        }
        units
    }

    /// Compresses as many of the first of these pages as fit into a block, if these are at least
    /// two: their number, and the block.
    fn first_cluster(&self, ino: Nid, pages: &[u64], attempts: &mut Attempts) -> Option<(usize, Box<Block>)> {
        // Of many pages, no more are tried than the last ones make likely.
        let most = match pages.len() <= CLUSTER_PAGES_MAX {
            true => pages.len(),
            false => CLUSTER_PAGES_MAX.min(attempts.likely + 2),
        };
        if most < 2 {
            return None;
        }
        let mut numbers = Vec::with_capacity(most);
        let mut bytes = Vec::with_capacity(most * BLOCK_LEN_BYTES);
        for page in pages.iter().take(most) {
            let (Ok(number), Some(block)) = (u32::try_from(*page), self.tree.pages.get((ino, *page))) else {
                break;
            };
            numbers.push(number);
            bytes.extend_from_slice(&block[..]);
        }
        let most = numbers.len();
        let of = |count: usize| {
            let (numbers, bytes) = numbers.get(..count).zip(bytes.get(..count * BLOCK_LEN_BYTES))?;
            Cluster::block(ino, numbers, bytes)
        };
        let mut count = attempts.likely.clamp(2, most.max(2));
        let mut found = of(count);
        if found.is_some() {
            while count < most
                && let Some(more) = of(count + 1)
            {
                count += 1;
                found = Some(more);
            }
        } else {
            while found.is_none() && count > 2 {
                count -= 1;
                found = of(count);
            }
        }
        match found {
            Some(block) => {
                attempts.likely = count;
                attempts.misses = 0;
                Some((count, block))
            }
            None => {
                attempts.likely = 2;
                attempts.missed();
                None
            }
        }
    }

    /// Writes these pages of a file, as many to a cluster as fit if the file is compressed.
    /// `writes_index` and the result: whether the index of its deltas is to be written, too.
    pub(crate) fn write_units(
        &mut self,
        ino: Nid,
        dirty: Vec<u64>,
        is_directory: bool,
        writes_index: bool,
    ) -> Result<bool> {
        let (log, what) = log_of(is_directory);
        let mut writes_index = writes_index;
        let mut run: (Address, Vec<u8>) = (Address::NONE, Vec::new());
        let units: Vec<Unit> = match self.inode(ino)?.flags().is_compressed {
            true => self.compress_pages(ino, &dirty)?,
            false => dirty.into_iter().map(Unit::Page).collect(),
        };
        for mut unit in units {
            let (mut block, mut summary) = match &unit {
                Unit::Cluster(_, block) => (block.clone(), self.cluster_summary(ino, block)?),
                Unit::Page(page) => {
                    let slot = self.make_slot(ino, *page)?;
                    let version = self.space.table.get(&self.media, slot.reported)?.version;
                    let Some(block) = self.tree.pages.get((ino, *page)) else {
                        continue;
                    };
                    let summary = Summary {
                        nid: slot.reported,
                        version,
                        slot: u16::try_from(slot.slot).unwrap_or(u16::MAX),
                        checksum: page_checksum(&block[..]),
                    };
                    (Box::new(*block), summary)
                }
            };
            let (address, _) = self.space.segments.allocate(log, summary, self.now_s())?;
            match &mut unit {
                Unit::Cluster(..) => {
                    self.media.id.seal(&mut block, Kind::Cluster, address);
                    summary.checksum = cluster_checksum(&block);
                    self.space.segments.correct_checksums(address, &[summary.checksum]);
                    self.small.cluster_written(address, unit.pages());
                }
                Unit::Page(page) if is_directory => {
                    self.media.id.seal(&mut block, Kind::Directory, address);
                    let checksum = page_checksum(&block[..]);
                    self.space.segments.correct_checksums(address, &[checksum]);
                    if let Some(kept) = self.tree.pages.get_mut((ino, *page)) {
                        *kept = *block;
                    }
                }
                Unit::Page(_) => {}
            }
            let run_blocks = u32::try_from(run.1.len() / BLOCK_LEN_BYTES).unwrap_or(0);
            if run_blocks > 0 && run.0.0 + run_blocks != address.0 {
                self.media.write(run.0, &run.1, what)?;
                run.1.clear();
            }
            if run.1.is_empty() {
                run.0 = address;
            }
            run.1.extend_from_slice(&block[..]);
            for page in unit.pages() {
                let slot = self.make_slot(ino, *page)?;
                let old = self.address_in(slot)?;
                self.page_left(ino, *page, old);
                self.set_address(slot, address)?;
                writes_index = self.end_delta(ino, *page, writes_index)?;
                self.tree.pages.mark_clean((ino, *page));
            }
            self.page_moved(ino, Address::NONE, address, summary.checksum);
        }
        if !run.1.is_empty() {
            self.media.write(run.0, &run.1, what)?;
        }
        Ok(writes_index)
    }

    /// The summary for a cluster's block.
    pub(crate) fn cluster_summary(&mut self, ino: Nid, block: &Block) -> Result<Summary> {
        Ok(Summary {
            nid: ino,
            version: self.space.table.get(&self.media, ino)?.version,
            slot: CLUSTER_SLOT,
            checksum: cluster_checksum(block),
        })
    }

    /// Pages listed in a block, any of which may lead to it; `None` if it is no cluster.
    fn pages_of_cluster(&mut self, ino: Nid, address: Address) -> Result<Option<Arc<[u32]>>> {
        if let Some(known) = self.small.clusters.known.get(&address) {
            return Ok(Some(Arc::clone(known)));
        }
        match self.space.summary_at(&self.media, address) {
            Ok(summary) if summary.slot != CLUSTER_SLOT => return Ok(None),
            Ok(_) => {}
            // The kind is unknown, but a page is hardly ever sealed as a cluster.
            Err(_) => {}
        }
        let block = self.media.read_sealed(address, Kind::Cluster)?;
        let cluster = Cluster::read(&block).filter(|cluster| cluster.ino == ino);
        let cluster = cluster.ok_or(VolumeError::Damaged { address, what: WHAT })?;
        Ok(Some(self.small.clusters.keep(address, &cluster.pages)))
    }

    /// Whether another page of the file leads to the block of this one. If both the summary and the
    /// block are damaged, all of the file's addresses are searched.
    fn is_shared(&mut self, ino: Nid, page: u64, address: Address) -> bool {
        match self.pages_of_cluster(ino, address) {
            Ok(None) => false,
            // Pages mostly leave in ascending order.
            Ok(Some(pages)) => pages
                .iter()
                .rev()
                .map(|other| u64::from(*other))
                .any(|other| other != page && !self.address_of(ino, other).is_ok_and(|found| found != address)),
            Err(_) => self.leads_from_elsewhere(ino, page, address),
        }
    }

    /// Whether any other page of a file has this address; also true if not all can be searched, or
    /// if they are too many: a block without an owner is found by a repair, but one released too
    /// early is lost.
    fn leads_from_elsewhere(&mut self, ino: Nid, page: u64, address: Address) -> bool {
        let mut left = LOOKED_AT_NODES_MAX;
        let mut at = 0;
        while at < MAX_FILE_BLOCKS {
            let Ok((addresses, behind)) = self.addresses_in_one_node(ino, at) else {
                return true;
            };
            let is_other = |(of, found): (u64, &Address)| of != page && *found == address;
            if left == 0 || (at..).zip(&addresses).any(is_other) {
                return true;
            }
            left -= 1;
            at = behind;
        }
        false
    }

    /// A page of a file is no longer at its old address, or will not be shortly; its block is
    /// released if no other page leads there.
    pub(crate) fn page_left(&mut self, ino: Nid, page: u64, old: Address) {
        if old.is_block() && self.small.is_compressed && self.is_shared(ino, page, old) {
            return;
        }
        self.page_gone(ino, old);
    }

    /// Releases a block that pages left, if none leads to it any more.
    pub(crate) fn release_unless_shared(&mut self, ino: Nid, address: Address) {
        // No page has this number.
        self.page_left(ino, u64::MAX, address);
    }

    /// Whether a block without a summary is a cluster of a file.
    pub(crate) fn is_sealed_cluster(&self, ino: Nid, address: Address, block: &Block) -> bool {
        self.small.is_compressed
            && self.media.id.is_sealed(block, Kind::Cluster, address)
            && Cluster::read(block).is_some_and(|cluster| cluster.ino == ino)
    }

    /// Whether a block of the last checkpoint is a cluster.
    pub(crate) fn is_cluster(&mut self, ino: Nid, address: Address) -> bool {
        self.small.is_compressed && !matches!(self.pages_of_cluster(ino, address), Ok(None))
    }

    /// Reads a page from a cluster. The others are kept in memory, too, at no further cost.
    pub(crate) fn read_from_cluster(&mut self, ino: Nid, page: u64, address: Address) -> Result<Box<Block>> {
        let damaged = || VolumeError::Damaged { address, what: WHAT };
        let block = self.media.read_sealed(address, Kind::Cluster)?;
        if cluster_checksum(&block) != self.space.checksum_of(&self.media, address)? {
            return Err(damaged());
        }
        let cluster = Cluster::read(&block).filter(|cluster| cluster.ino == ino);
        let cluster = cluster.ok_or_else(damaged)?;
        let place = cluster.place_of(page).ok_or_else(damaged)?;
        let contents = cluster.contents(&block).ok_or_else(damaged)?;
        let mut wanted = zeros();
        for (index, (number, content)) in cluster.pages.iter().zip(contents.chunks(BLOCK_LEN_BYTES)).enumerate() {
            if index == place {
                wanted.copy_from_slice(content);
                continue;
            }
            let other = u64::from(*number);
            if self.tree.pages.get((ino, other)).is_some() || !self.address_of(ino, other).is_ok_and(|at| at == address)
            {
                continue;
            }
            let mut block = zeros();
            block.copy_from_slice(content);
            if self.restore(ino, other, &mut block).is_ok() {
                self.tree.pages.keep((ino, other), block);
            }
        }
        self.small.clusters.keep(address, &cluster.pages);
        Ok(wanted)
    }

    /// Moves a cluster to another place, as its segment is cleaned; false if that is impossible.
    pub(crate) fn move_cluster(&mut self, address: Address, summary: &Summary) -> Result<bool> {
        let ino = summary.nid;
        let Ok(Some(pages)) = self.pages_of_cluster(ino, address) else {
            return Ok(false);
        };
        let mut slots = Vec::new();
        for page in pages.iter() {
            let Ok(slot) = self.find_slot(ino, u64::from(*page)) else {
                return Ok(false);
            };
            if let Some(slot) = slot
                && self.address_in(slot)? == address
            {
                slots.push(slot);
            }
        }
        let Ok(mut block) = self.media.read_sealed(address, Kind::Cluster) else {
            return Ok(false);
        };
        // A block that is damaged beyond a broken seal stays so.
        if slots.is_empty() || cluster_checksum(&block) != summary.checksum {
            return Ok(false);
        }
        let (to, _) = self
            .space
            .segments
            .allocate(LogKind::ColdData, *summary, self.now_s())?;
        self.media.id.seal(&mut block, Kind::Cluster, to);
        let checksum = cluster_checksum(&block);
        self.space.segments.correct_checksums(to, &[checksum]);
        self.media.write(to, &block[..], Written::Moved)?;
        for slot in slots {
            self.set_address(slot, to)?;
        }
        self.page_moved(ino, address, to, checksum);
        self.small.clusters.keep(to, &pages);
        self.space.write_filled(&self.media)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
