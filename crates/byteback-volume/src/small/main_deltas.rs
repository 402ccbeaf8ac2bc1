//! Deltas in the main area (DCM, DeltaFS section 4.2): of files that are written much and read
//! little, several pages' deltas go into one *compact page*, and an *index* of each file says where
//! which page's delta is. The page on the device, its base, stays, as with deltas in the inode. How
//! an index is divided into blocks is in `file`, what is packed together in `packing`.
//!
//! **Waiting.** A delta that is to go there waits in memory with its page, which is not given up
//! meanwhile. When the file's pages are written, packing is chosen if it pays: a compact page gets
//! five deltas at least, and with the index, which is written anew, less is written than the pages
//! would be. As long as they have room there, deltas lie in the index itself, whose block is
//! written in any case: then two changed pages are one block. Deltas that are not packed are
//! written as pages. So a volume with deltas never writes more for a change than one without. (The
//! paper packs at once, and writes index and compact page with each change: a sync of each change
//! would cost three blocks in place of two.)
//!
//! **Precedence.** For a page, the waiting delta counts; else the inode's, also an empty one; else
//! the one in the index. So a page gets another delta or is written anew without a new index: an
//! empty delta in the inode, a *mark*, says that the index's delta of the page is over. Marks go
//! with the next index. If there is no room for one, the index is written.
//!
//! **Invariants.** Index and compact pages are never written over, and the inode leads to both:
//! base and delta belong together in every inode that ever reaches the device, as with deltas in
//! the inode. They belong to the pages whose sum a synced inode says. A page without a block has no
//! delta.
//!
//! Out of scope: pages of directories; choosing files, see `hotness`; see `delta_list` for
//! what happens in idle time.

mod file;
mod packing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::error::{Result, VolumeError};
use crate::format::{
    Address, Block, COMPACT_LEN_BYTES, COMPACT_SLOT, DeltaPlace, DeltaPlaces, INDEX_SLOT, Kind, MAX_FILE_BLOCKS, Nid,
    Summary, compact_page_ino, fill_compact_page, page_checksum, zeros,
};
use crate::log::segments::LogKind;
use crate::small::Small;
use crate::state::State;
use crate::statistics::Written;
use crate::tree::place::addresses_node_of;
use file::{Compact, Form, Layout, MainFile};
pub(crate) use packing::PACKED_MIN;
use packing::Packing;

/// Most unchanged indexes kept in memory.
const FILES_MAX: usize = 256;

/// Most compact pages kept in memory.
const COMPACT_PAGES_MAX: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct MainDeltas {
    files: BTreeMap<Nid, MainFile>,
    waiting: BTreeMap<Nid, BTreeMap<u32, Vec<u8>>>,
    waiting_count: u32,
    /// Of which nodes the addresses change if the pages of these deltas are written: how many of
    /// them.
    waiting_nodes: BTreeMap<(Nid, u64), u32>,
    /// Compact pages in memory, or more.
    kept_pages: usize,
    /// Files to add to the list or remove from it, as needed, with the next checkpoint.
    pub(crate) to_link: BTreeSet<Nid>,
}

/// The node with the address of a page.
fn node_of(ino: Nid, page: u32) -> (Nid, u64) {
    (ino, addresses_node_of(u64::from(page)))
}

impl MainDeltas {
    fn wait(&mut self, ino: Nid, page: u32, delta: Vec<u8>) {
        if self.waiting.entry(ino).or_default().insert(page, delta).is_none() {
            self.waiting_count += 1;
            *self.waiting_nodes.entry(node_of(ino, page)).or_default() += 1;
        }
    }

    fn waiting_of(&self, ino: Nid, page: u64) -> Option<&Vec<u8>> {
        self.waiting.get(&ino)?.get(&u32::try_from(page).ok()?)
    }

    /// Deltas of these pages do not wait any more.
    fn forget_waiting(&mut self, ino: Nid, first: u64, end: u64) -> Vec<u64> {
        let Some(of_file) = self.waiting.get_mut(&ino) else {
            return Vec::new();
        };
        let is_in = |page: &u32| (first..end).contains(&u64::from(*page));
        let gone: Vec<u32> = of_file.keys().copied().filter(is_in).collect();
        for page in &gone {
            of_file.remove(page);
            self.waiting_count -= 1;
            let node = node_of(ino, *page);
            if let Some(count) = self.waiting_nodes.get_mut(&node) {
                *count -= 1;
                if *count == 0 {
                    self.waiting_nodes.remove(&node);
                }
            }
        }
        if of_file.is_empty() {
            self.waiting.remove(&ino);
        }
        gone.into_iter().map(u64::from).collect()
    }

    /// Files with something to write.
    pub(crate) fn unwritten_files(&self) -> impl Iterator<Item = Nid> {
        let changed = self.files.iter().filter(|(_, file)| file.is_changed);
        self.waiting.keys().copied().chain(changed.map(|(ino, _)| *ino))
    }

    /// Most blocks that writing them takes.
    pub(crate) fn unwritten_blocks(&self) -> u32 {
        let of = |(ino, file): (&Nid, &MainFile)| {
            if !file.is_changed && !self.waiting.contains_key(ino) {
                return 0;
            }
            // A file with a block to move is marked as changed.
            let compacts = file.compacts.values().filter(|_| file.is_changed);
            let to_move = compacts.filter(|compact| compact.is_to_move).count();
            // All of its leaves, if they are written anew.
            2 + to_move + file.leaves.len()
        };
        let written = self.files.iter().map(of).sum::<usize>();
        // A file that comes into the list, and its neighbours; an index for each of those that
        // wait.
        let others = written + 3 * self.to_link.len() + self.waiting.len() + self.waiting_nodes.len();
        self.waiting_count
            .saturating_add(u32::try_from(others).unwrap_or(u32::MAX))
    }

    /// Forgets the index of a file in memory.
    pub(crate) fn forget_file(&mut self, ino: Nid) {
        self.files.remove(&ino);
    }

    /// Before another compact page is kept.
    fn make_room_for_compact_page(&mut self) {
        self.kept_pages += 1;
        if self.kept_pages > COMPACT_PAGES_MAX {
            self.kept_pages = 0;
            for compact in self.files.values_mut().flat_map(|file| file.compacts.values_mut()) {
                compact.block.take_if(|_| !compact.is_to_move);
            }
        }
    }

    /// Forgets what can be read again.
    #[cfg(test)]
    pub(crate) fn forget_all_unchanged(&mut self) {
        self.files.retain(|_, file| file.is_changed);
    }

    fn forget_unchanged(&mut self) {
        if self.files.len() > FILES_MAX {
            self.files.retain(|_, file| file.is_changed);
        }
    }
}

impl Small {
    /// The longest delta that goes into the main area, in bytes.
    pub(crate) fn main_delta_len_bytes_max(&self) -> usize {
        COMPACT_LEN_BYTES / self.packed_min.max(1)
    }

    /// Whether a delta of a page waits to be packed.
    pub(crate) fn is_waiting(&self, ino: Nid, page: u64) -> bool {
        self.main.waiting_of(ino, page).is_some()
    }

    /// Whether the index of a file is to be written.
    fn is_index_changed(&self, ino: Nid) -> bool {
        self.main.files.get(&ino).is_some_and(|file| file.is_changed)
    }
}

impl State {
    /// The index of a file; `None` if it has none.
    pub(crate) fn main_file(&mut self, ino: Nid) -> Result<Option<&mut MainFile>> {
        if !self.small.main.files.contains_key(&ino) {
            let address = self.inode(ino)?.delta_meta();
            if address == Address::NONE {
                return Ok(None);
            }
            let mut failed = None;
            let media = &self.media;
            let found = DeltaPlaces::read((ino, address), &media.areas, |at, kind| {
                media.read_sealed(at, kind).map_err(|error| failed = Some(error)).ok()
            });
            let what = Kind::DeltaMeta.name();
            let found = match (found, failed) {
                (Ok(found), _) => found,
                (Err(_), Some(error)) => return Err(error),
                (Err(address), None) => return Err(VolumeError::Damaged { address, what }),
            };
            self.small.main.forget_unchanged();
            self.small.main.files.insert(ino, MainFile::of(found));
        }
        Ok(self.small.main.files.get_mut(&ino))
    }

    fn compact_page(&mut self, ino: Nid, address: Address) -> Result<Arc<Block>> {
        let known = self
            .main_file(ino)?
            .and_then(|file| file.compacts.get(&address)?.block.clone());
        if let Some(block) = known {
            return Ok(block);
        }
        let block: Arc<Block> = self.media.read_sealed(address, Kind::DeltaCompact)?.into();
        if compact_page_ino(&block) != ino {
            let what = Kind::DeltaCompact.name();
            return Err(VolumeError::Damaged { address, what });
        }
        self.small.main.make_room_for_compact_page();
        let compact = self.main_file(ino)?.and_then(|file| file.compacts.get_mut(&address));
        if let Some(compact) = compact {
            compact.block = Some(Arc::clone(&block));
        }
        Ok(block)
    }

    fn delta_in(&mut self, ino: Nid, address: Address, place: DeltaPlace) -> Result<Vec<u8>> {
        let block = self.compact_page(ino, address)?;
        let what = Kind::DeltaCompact.name();
        let delta = block.get(place.range()).map(<[u8]>::to_vec);
        delta.ok_or(VolumeError::Damaged { address, what })
    }

    /// The delta of a page that counts, wherever it is.
    pub(crate) fn delta_of(&mut self, ino: Nid, page: u64) -> Result<Option<Vec<u8>>> {
        if let Some(delta) = self.small.main.waiting_of(ino, page) {
            return Ok(Some(delta.clone()));
        }
        if let Some(delta) = self.inode(ino)?.delta_of(page) {
            return Ok(Some(delta.to_vec()));
        }
        let (Some(file), Ok(page)) = (self.main_file(ino)?, u32::try_from(page)) else {
            return Ok(None);
        };
        if let Some(delta) = file.own().get(&page) {
            return Ok(Some(delta.clone()));
        }
        match file.places().get(&page).copied() {
            Some((address, place)) => self.delta_in(ino, address, place).map(Some),
            None => Ok(None),
        }
    }

    /// Whether pages of a file may have deltas, wherever they are.
    pub(crate) fn may_have_deltas(&mut self, ino: Nid) -> Result<bool> {
        let inode = self.inode(ino)?;
        Ok(inode.deltas() > 0 || inode.delta_meta() != Address::NONE || self.small.main.waiting.contains_key(&ino))
    }

    /// Whether a page has a delta that counts, even an empty one; also true if that cannot be
    /// known, as the index is damaged.
    pub(crate) fn has_delta(&mut self, ino: Nid, page: u64) -> bool {
        if self.small.is_waiting(ino, page) {
            return true;
        }
        match self.inode(ino) {
            Ok(inode) if inode.delta_of(page).is_some() => true,
            Ok(_) => match self.main_file(ino) {
                Ok(file) => file.is_some_and(|file| file.has(page)),
                Err(_) => true,
            },
            Err(_) => true,
        }
    }

    /// Whether deltas of a file of this length go into the main area.
    pub(crate) fn main_takes(&mut self, ino: Nid, len_bytes: usize) -> bool {
        if !self.small.delta_mode.uses_main() || len_bytes > self.small.main_delta_len_bytes_max() {
            return false;
        }
        let heat = self.small.hotness.heat(ino);
        heat.is_write_hot && !heat.is_read_hot && self.main_file(ino).is_ok()
    }

    /// Lets the delta of a page that is in memory wait.
    pub(crate) fn wait_for_packing(&mut self, ino: Nid, page: u32, delta: Vec<u8>) {
        self.tree.pages.pin((ino, u64::from(page)));
        self.small.main.wait(ino, page, delta);
    }

    /// Deltas of these pages do not wait any more.
    pub(crate) fn forget_waiting(&mut self, ino: Nid, first: u64, end: u64) {
        for page in self.small.main.forget_waiting(ino, first, end) {
            self.tree.pages.unpin((ino, page));
        }
    }

    /// Ends the index's delta of a page of which the inode has none: by a mark, if `may_mark` and
    /// there is room, else by changing the index. True in the second case.
    pub(crate) fn end_place(&mut self, ino: Nid, page: u64, may_mark: bool) -> Result<bool> {
        if self.inode(ino)?.delta_meta() == Address::NONE {
            return Ok(false);
        }
        let known = self.main_file(ino).map(|file| file.is_some_and(|file| file.has(page)));
        if matches!(known, Ok(false)) {
            return Ok(false);
        }
        let number = u16::try_from(page).ok().filter(|_| may_mark || known.is_err());
        if let Some(number) = number
            && self.change_inode(ino, |inode| inode.put_delta(number, &[]))?
        {
            return Ok(false);
        }
        known?;
        if let Some(file) = self.main_file(ino)? {
            file.remove(page);
        }
        Ok(true)
    }

    /// A page is about to be overwritten whose delta is unknown, as the index is damaged: from now
    /// on it has none.
    pub(crate) fn end_unknown_place(&mut self, ino: Nid, page: u64) -> Result<()> {
        let inode = self.inode(ino)?;
        if inode.delta_meta() == Address::NONE || inode.delta_of(page).is_some() || self.main_file(ino).is_ok() {
            return Ok(());
        }
        self.end_place(ino, page, true).map(drop)
    }

    /// A page was written as it is now: deltas that it had are over. `writes_index`: the index is
    /// written in any case. Answers whether it is now.
    pub(crate) fn end_delta(&mut self, ino: Nid, page: u64, writes_index: bool) -> Result<bool> {
        let inode = self.inode(ino)?;
        if inode.delta_of(page).is_some() {
            self.change_inode(ino, |inode| inode.remove_deltas(|of| u64::from(of) == page))?;
        }
        Ok(self.end_place(ino, page, !writes_index)? || writes_index)
    }

    /// Whether no delta of a file in the main area counts any more: index and compact pages are
    /// given up, which costs nothing.
    pub(crate) fn is_main_over(&mut self, ino: Nid) -> Result<bool> {
        let inode = self.inode(ino)?;
        if inode.delta_meta() == Address::NONE {
            return Ok(false);
        }
        Ok(match self.main_file(ino) {
            Ok(Some(file)) if file.len() <= usize::from(inode.deltas()) => {
                file.living_own(&inode).is_empty() && file.living(&inode).values().all(Vec::is_empty)
            }
            _ => false,
        })
    }

    /// Writes compact pages and the index of a file, after its pages. Room for what is new was
    /// taken.
    pub(crate) fn write_main_deltas(&mut self, ino: Nid, write: MainWrite) -> Result<()> {
        self.main_file(ino)?;
        let mut file = self.small.main.files.remove(&ino).unwrap_or_default();
        let packed = write.packing.iter().flat_map(Packing::pages).collect::<BTreeSet<u32>>();
        let packing = write.packing.unwrap_or_default();
        let inode = self.change_inode(ino, |inode| {
            inode.remove_deltas(|page| packed.contains(&u32::from(page)));
            inode.clone()
        })?;
        file.end_those_of(&inode);
        if !packed.is_empty() {
            drop(file.take_own());
            packing
                .own
                .into_iter()
                .for_each(|(page, delta)| file.put_own(page, delta));
        }
        self.small.delta_counts.packed += self.small.main.waiting.get(&ino).map_or(0, BTreeMap::len) as u64;
        let mut new_blocks = u32::try_from(packing.groups.len()).unwrap_or(u32::MAX);
        for group in packing.groups {
            self.write_compact_page(ino, &mut file, &group)?;
        }
        self.move_compact_pages(ino, &mut file)?;
        let mut old_blocks = self.give_up_unused(ino, &mut file);
        let old = inode.delta_meta();
        let mut index = None;
        if file.len() > 0 {
            let form = self.small.index_form(ino);
            let layout = file.lay_out(form, packing.to_leaves);
            old_blocks += self.write_leaves(ino, &mut file, layout, &mut new_blocks)?;
            if file.index_bytes(form).is_none() {
                // More pages are ended than there was room for, beside deltas in the index itself.
                new_blocks += self.empty_index(form, &mut file)?;
                let layout = file.lay_out(form, true);
                old_blocks += self.write_leaves(ino, &mut file, layout, &mut new_blocks)?;
            }
            let no_room = || VolumeError::Stopped("an index of deltas does not fit into its block".to_owned());
            index = Some(file.index_bytes(form).ok_or_else(no_room)?);
        }
        let new = match index {
            None => {
                for address in file.leaf_addresses().chain([old]).filter(|address| address.is_block()) {
                    self.page_gone(ino, address);
                    old_blocks += 1;
                }
                Address::NONE
            }
            Some(bytes) => {
                new_blocks += u32::from(!old.is_block());
                let mut block = zeros();
                fill(&mut block, &bytes);
                self.write_delta_block(ino, old, Kind::DeltaMeta, &mut block)?
            }
        };
        self.settle_room(packing.room_blocks, new_blocks);
        self.space.give_room(old_blocks);
        self.change_inode(ino, |inode| {
            inode.set_delta_meta(new);
            inode.remove_empty_deltas();
            let blocks = inode.blocks().saturating_add(u64::from(new_blocks));
            inode.set_blocks(blocks.saturating_sub(u64::from(old_blocks)));
        })?;
        if inode.flags().has_main_deltas != (new != Address::NONE) {
            self.small.main.to_link.insert(ino);
        }
        if new != Address::NONE {
            file.is_changed = false;
            self.small.main.files.insert(ino, file);
        }
        // Until here their pages could be read.
        self.forget_waiting(ino, 0, MAX_FILE_BLOCKS);
        Ok(())
    }

    /// Gives back reserved blocks that were not needed. An index that is written only because
    /// deltas are over may need one leaf more than it had, as many pages are ended, and no block is
    /// reserved for that: it is one block for a thousand deltas, and comes from the room kept free
    /// for cleaning.
    fn settle_room(&mut self, taken_blocks: u32, needed_blocks: u32) {
        self.space.counts.used_blocks = self.space.counts.used_blocks.saturating_add(needed_blocks);
        self.space.give_room(taken_blocks);
    }

    /// Gives up compact pages in which nothing counts; returns their number.
    fn give_up_unused(&mut self, ino: Nid, file: &mut MainFile) -> u32 {
        let unused = file.take_unused();
        unused.iter().for_each(|address| self.page_gone(ino, *address));
        u32::try_from(unused.len()).unwrap_or(u32::MAX)
    }

    /// Writes new leaves, and gives up others; returns the number of the latter.
    fn write_leaves(&mut self, ino: Nid, file: &mut MainFile, layout: Layout, new_blocks: &mut u32) -> Result<u32> {
        let mut gone = 0;
        for address in layout.dissolved {
            self.page_gone(ino, address);
            gone += 1;
        }
        for leaf in layout.leaves {
            let mut block = zeros();
            fill(&mut block, &leaf.bytes);
            let address = self.write_delta_block(ino, Address::NONE, Kind::DeltaLeaf, &mut block)?;
            file.add_leaf(address, leaf);
            *new_blocks += 1;
            self.small.delta_counts.index_leaves += 1;
        }
        Ok(gone)
    }

    /// Writes deltas that lie in the index itself to compact pages, however few they are; returns
    /// the number of these pages.
    fn empty_index(&mut self, form: Form, file: &mut MainFile) -> Result<u32> {
        let mut count = 0;
        let mut group: Vec<(u32, Vec<u8>)> = Vec::new();
        let mut taken_bytes = 0;
        for (page, delta) in file.take_own() {
            if taken_bytes + delta.len() > COMPACT_LEN_BYTES || group.len() >= form.packed_max() {
                self.write_compact_page(form.ino, file, &group)?;
                count += 1;
                taken_bytes = 0;
                group.clear();
            }
            taken_bytes += delta.len();
            group.push((page, delta));
        }
        if !group.is_empty() {
            self.write_compact_page(form.ino, file, &group)?;
            count += 1;
        }
        Ok(count)
    }

    fn write_compact_page(&mut self, ino: Nid, file: &mut MainFile, group: &[(u32, Vec<u8>)]) -> Result<()> {
        let mut block = zeros();
        let places = fill_compact_page(&mut block, ino, group.iter().map(|(page, delta)| (*page, &delta[..])));
        let address = self.write_delta_block(ino, Address::NONE, Kind::DeltaCompact, &mut block)?;
        let compact = Compact::of(block.into());
        self.small.main.make_room_for_compact_page();
        file.compacts.insert(address, compact);
        places.into_iter().for_each(|place| file.put_place(address, place));
        Ok(())
    }

    /// Moves compact pages out of segments that are cleaned; unreadable ones stay.
    fn move_compact_pages(&mut self, ino: Nid, file: &mut MainFile) -> Result<()> {
        let to_move = file.compacts.iter().filter(|(_, compact)| compact.is_to_move);
        let to_move: Vec<(Address, Option<Arc<Block>>)> = to_move
            .map(|(address, compact)| (*address, compact.block.clone()))
            .collect();
        for (address, block) in to_move {
            let places = file.places_in(address);
            let Some(block) = block.filter(|_| !places.is_empty()) else {
                continue;
            };
            let delta = |place: &DeltaPlace| Some((place.page, block.get(place.range())?.to_vec()));
            let group: Vec<(u32, Vec<u8>)> = places.iter().filter_map(delta).collect();
            self.write_compact_page(ino, file, &group)?;
            self.page_gone(ino, address);
            file.compacts.remove(&address);
        }
        Ok(())
    }

    /// Writes an index or a compact page to a new place.
    fn write_delta_block(&mut self, ino: Nid, old: Address, kind: Kind, block: &mut Block) -> Result<Address> {
        let (slot, what) = match kind {
            Kind::DeltaCompact => (COMPACT_SLOT, Written::Compact),
            _ => (INDEX_SLOT, Written::Index),
        };
        let summary = Summary {
            nid: ino,
            version: self.space.table.get(&self.media, ino)?.version,
            slot,
            checksum: 0,
        };
        let (address, _) = self.space.segments.allocate(LogKind::WarmData, summary, self.now_s())?;
        self.media.id.seal(block, kind, address);
        let checksum = page_checksum(&block[..]);
        self.space.segments.correct_checksums(address, &[checksum]);
        self.media.write(address, &block[..], what)?;
        self.page_moved(ino, old, address, checksum);
        self.space.write_filled(&self.media)?;
        Ok(address)
    }

    /// Ends the deltas in the main area of the pages from `first` to before `end`, which become
    /// holes.
    pub(crate) fn free_main_deltas(&mut self, ino: Nid, first: u64, end: u64) -> Result<()> {
        self.forget_waiting(ino, first, end);
        let inode = self.inode(ino)?;
        let address = inode.delta_meta();
        if address == Address::NONE {
            return Ok(());
        }
        let is_all = first == 0 && end >= MAX_FILE_BLOCKS;
        let compacts = match self.main_file(ino) {
            Ok(Some(file)) if is_all => file.compacts.keys().copied().chain(file.leaf_addresses()).collect(),
            Ok(Some(file)) => {
                file.retain(|page| !(first..end).contains(&u64::from(page)));
                return Ok(());
            }
            // Blocks of a damaged index are found by a repair.
            Ok(None) if is_all => Vec::new(),
            Err(error) if is_all && error.is_loss() => Vec::new(),
            Ok(None) => return Ok(()),
            Err(error) if error.is_loss() => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut blocks = 0;
        for address in compacts
            .into_iter()
            .chain([address])
            .filter(|address| address.is_block())
        {
            self.page_gone(ino, address);
            blocks += 1;
        }
        self.space.give_room(blocks);
        self.small.main.files.remove(&ino);
        self.small.main.to_link.insert(ino);
        self.change_inode(ino, |inode| {
            inode.set_delta_meta(Address::NONE);
            inode.set_blocks(inode.blocks().saturating_sub(u64::from(blocks)));
        })
    }

    /// Lets the index or a compact page of a file be written anew, as it lies in a segment that is
    /// cleaned; false if that cannot be.
    pub(crate) fn move_delta_block(&mut self, ino: Nid, address: Address) -> Result<bool> {
        let is_index = self.inode(ino)?.delta_meta() == address;
        let Ok(Some(file)) = self.main_file(ino) else {
            return Ok(false);
        };
        if file.compacts.contains_key(&address) {
            if self.compact_page(ino, address).is_err() {
                return Ok(false);
            }
        } else if !is_index && !file.leaf_addresses().any(|leaf| leaf == address) {
            return Ok(false);
        }
        let Ok(Some(file)) = self.main_file(ino) else {
            return Ok(false);
        };
        file.is_changed = true;
        if let Some(compact) = file.compacts.get_mut(&address) {
            compact.is_to_move = true;
        }
        for leaf in file.leaves.iter_mut().filter(|leaf| leaf.address == address) {
            leaf.is_to_move = true;
        }
        // Its node is written with that.
        self.change_inode(ino, |_| true)
    }
}

/// Puts bytes, for which there is room, at the beginning of a block.
fn fill(block: &mut Block, bytes: &[u8]) {
    block.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
}

/// Parts of a file's deltas in the main area to write.
#[derive(Debug, Default)]
pub(crate) struct MainWrite {
    packing: Option<Packing>,
}

#[cfg(test)]
mod tests;
