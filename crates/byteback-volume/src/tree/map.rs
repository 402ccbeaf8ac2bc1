//! From a file's pages to blocks: slots are found, made, set and taken away.

use crate::error::{Result, VolumeError};
use crate::format::{Address, Block, DIRECT_SLOTS, Footer, INODE_SLOTS, Inode, MAX_FILE_BLOCKS, Nid, NodeBlock};
use crate::state::State;
use crate::tree::place::{PagePath, first_page_of, levels_below, pages_of, place_of, way};

/// The place of a page's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) node: Nid,
    pub(crate) slot: u32,
    /// The node is the inode.
    pub(crate) is_inode: bool,
    /// The node that the page's summary tells of: the inode also if its slots were moved.
    pub(crate) reported: Nid,
}

const WHAT: &str = "node with a file's addresses";

/// Most addresses for which room is reserved up front.
const ADDRESSES_AT_ONCE: usize = 4096;

impl Slot {
    /// How many pages from this one on have their addresses in the same node, one behind the other.
    fn left(self) -> u32 {
        let is_in_inode = self.reported != self.node || self.is_inode;
        let slots = if is_in_inode { INODE_SLOTS } else { DIRECT_SLOTS };
        slots.saturating_sub(self.slot).max(1)
    }
}

impl State {
    /// The slot of a page; `None` if no node has it.
    pub(crate) fn find_slot(&mut self, ino: Nid, page: u64) -> Result<Option<Slot>> {
        let Some(way) = way(page) else { return Ok(None) };
        let Some(first) = way.node else {
            return self.slot_in_inode(ino, way.slot).map(Some);
        };
        let mut node = self.inode(ino)?.node(first);
        let mut place = way.place;
        for (slot, place_below) in &way.steps {
            if node == Nid::NONE {
                return Ok(None);
            }
            node = Nid(NodeBlock::slot(self.node_of(ino, node, place, WHAT)?, *slot));
            place = *place_below;
        }
        if node == Nid::NONE {
            return Ok(None);
        }
        self.node_of(ino, node, place, WHAT)?;
        Ok(Some(Slot {
            node,
            slot: way.slot,
            is_inode: false,
            reported: node,
        }))
    }

    /// The slot of a page, with the nodes that lead there.
    pub(crate) fn make_slot(&mut self, ino: Nid, page: u64) -> Result<Slot> {
        let too_large = || VolumeError::FileTooLarge(MAX_FILE_BLOCKS.saturating_mul(4096));
        let PagePath {
            node,
            steps,
            place,
            slot,
        } = way(page).ok_or_else(too_large)?;
        let Some(first) = node else {
            if self.inode(ino)?.moved_slots().is_none() {
                self.make_room_for_slot(ino, slot)?;
            }
            return self.slot_in_inode(ino, slot);
        };
        let mut node = self.inode(ino)?.node(first);
        if node == Nid::NONE {
            node = self.new_node(Some(ino), place)?;
            self.change_inode(ino, |inode| {
                inode.set_node(first, node);
                inode.set_blocks(inode.blocks() + 1);
            })?;
        }
        let mut place_here = place;
        for (slot, place) in steps {
            let below = Nid(NodeBlock::slot(self.node_of(ino, node, place_here, WHAT)?, slot));
            place_here = place;
            node = match below {
                Nid::NONE => {
                    let below = self.new_node(Some(ino), place)?;
                    NodeBlock::set_slot(self.node_mut(node, WHAT)?, slot, below.0);
                    self.change_inode(ino, |inode| inode.set_blocks(inode.blocks() + 1))?;
                    below
                }
                below => below,
            };
        }
        self.node_of(ino, node, place_here, WHAT)?;
        Ok(Slot {
            node,
            slot,
            is_inode: false,
            reported: node,
        })
    }

    /// A slot of an inode, wherever it is.
    pub(crate) fn slot_in_inode(&mut self, ino: Nid, slot: u32) -> Result<Slot> {
        let moved = self.inode(ino)?.moved_slots();
        if let Some(node) = moved {
            self.node_of(ino, node, Footer::MOVED_SLOTS, WHAT)?;
        }
        Ok(Slot {
            node: moved.unwrap_or(ino),
            slot,
            is_inode: moved.is_none(),
            reported: ino,
        })
    }

    /// Moves the addresses of a file's first pages into a node of their own, so that there is room
    /// for deltas in the inode of a large file, too. False if it has few, if they were moved
    /// already, or if there is no room.
    pub(crate) fn move_slots(&mut self, ino: Nid) -> Result<bool> {
        match self.inode(ino)?.used_slots() < self.small.moved_slots_min {
            true => Ok(false),
            false => self.move_all_slots(ino),
        }
    }

    /// The same however few there are.
    pub(crate) fn move_all_slots(&mut self, ino: Nid) -> Result<bool> {
        let inode = self.inode(ino)?;
        // The first one is needed, for the node.
        if inode.address_slots() == 0 {
            return Ok(false);
        }
        let node = match self.new_node(Some(ino), Footer::MOVED_SLOTS) {
            Ok(node) => node,
            Err(VolumeError::Full) => return Ok(false),
            Err(error) => return Err(error),
        };
        let slots = inode.used_slots();
        let block = self.node_mut(node, WHAT)?;
        for slot in 0..slots {
            NodeBlock::set_slot(block, slot, Inode::slot(&inode.0, slot).0);
        }
        self.change_inode(ino, |inode| {
            let end = usize::try_from(slots).unwrap_or(0) * 4;
            inode.inline_mut().get_mut(..end).unwrap_or_default().fill(0);
            inode.set_moved_slots(Some(node));
            inode.set_blocks(inode.blocks() + 1);
        })?;
        self.small.delta_counts.moved_slots += 1;
        Ok(true)
    }

    pub(crate) fn address_in(&mut self, slot: Slot) -> Result<Address> {
        if slot.is_inode {
            let inode = self.inode(slot.node)?;
            // Behind them are deltas.
            return Ok(match slot.slot < inode.address_slots() {
                true => Inode::slot(&inode.0, slot.slot),
                false => Address::NONE,
            });
        }
        Ok(Address(NodeBlock::slot(self.node(slot.node, WHAT)?, slot.slot)))
    }

    pub(crate) fn set_address(&mut self, slot: Slot, address: Address) -> Result<()> {
        if slot.is_inode {
            Inode::set_slot(self.node_mut(slot.node, WHAT)?, slot.slot, address);
            return Ok(());
        }
        NodeBlock::set_slot(self.node_mut(slot.node, WHAT)?, slot.slot, address.0);
        Ok(())
    }

    /// How many slots, from this one on, have addresses of pages that follow each other in the same
    /// node.
    pub(crate) fn slots_beside(&mut self, slot: Slot) -> Result<u32> {
        let held = match slot.is_inode {
            // Behind them are deltas.
            true => self.inode(slot.node)?.address_slots().saturating_sub(slot.slot),
            false => slot.left(),
        };
        Ok(held.max(1))
    }

    /// Sets the addresses of pages that follow each other, as [`State::slots_beside`] says, to
    /// those of blocks from `first` on; answers what they were.
    pub(crate) fn set_addresses(&mut self, slot: Slot, first: Address, count: u32) -> Result<Vec<Address>> {
        let block = self.node_mut(slot.node, WHAT)?;
        let both = (slot.slot..slot.slot.saturating_add(count)).zip(first.0..);
        Ok(both
            .map(|(at, address)| {
                let old = if slot.is_inode {
                    Inode::slot(block, at)
                } else {
                    Address(NodeBlock::slot(block, at))
                };
                match slot.is_inode {
                    true => Inode::set_slot(block, at, Address(address)),
                    false => NodeBlock::set_slot(block, at, address),
                }
                old
            })
            .collect())
    }

    /// Reserves room for those pages from `first` to before `end` that have none.
    ///
    /// # Errors
    /// [`VolumeError::Full`]: those before one that there is no room for have some then.
    pub(crate) fn set_aside(&mut self, ino: Nid, first: u64, end: u64) -> Result<()> {
        let mut page = first;
        while page < end {
            let slot = self.make_slot(ino, page)?;
            let behind = end.min(page + u64::from(self.slots_beside(slot)?));
            let slots = slot.slot..slot.slot + u32::try_from(behind - page).unwrap_or(0);
            let of = |block: &Block, at: u32| match slot.is_inode {
                true => Inode::slot(block, at),
                false => Address(NodeBlock::slot(block, at)),
            };
            let block = self.node(slot.node, WHAT)?;
            let missing: Vec<u32> = slots.filter(|at| of(block, *at) == Address::NONE).collect();
            let count = u32::try_from(missing.len()).unwrap_or(u32::MAX);
            if count > 0 {
                self.space.take_room(&self.media.areas, count)?;
                let block = self.node_mut(slot.node, WHAT)?;
                for at in missing {
                    match slot.is_inode {
                        true => Inode::set_slot(block, at, Address::RESERVED),
                        false => NodeBlock::set_slot(block, at, Address::RESERVED.0),
                    }
                }
                self.change_inode(ino, |inode| inode.set_blocks(inode.blocks() + u64::from(count)))?;
            }
            page = behind;
        }
        Ok(())
    }

    /// Pages from `first` to before `end`, which have slots, are to be written: so are the nodes
    /// with their addresses, which change then. From now on these count as what waits to be
    /// written, and stay in memory: what happens to them on the device meanwhile keeps no page from
    /// being written.
    pub(crate) fn change_slots_of(&mut self, ino: Nid, first: u64, end: u64) -> Result<()> {
        let mut page = first;
        while page < end {
            // Only found: who makes one may push deltas out, and come here.
            let Some(slot) = self.find_slot(ino, page)? else {
                page += 1;
                continue;
            };
            self.mark_node_changed(slot.node, WHAT)?;
            page += u64::from(slot.left());
        }
        Ok(())
    }

    /// Lower bound of the blocks missing before all pages from `first` to before `end` have room,
    /// nodes for their addresses among them. Counting stops once it exceeds `most`.
    pub(crate) fn missing_blocks(&mut self, ino: Nid, first: u64, end: u64, most: u64) -> Result<u64> {
        let (mut page, mut missing) = (first, 0u64);
        while page < end && missing <= most {
            let Some(slot) = self.find_slot(ino, page)? else {
                let behind = self.behind_missing_node(ino, page)?.min(end);
                let pages = behind - page;
                missing = missing
                    .saturating_add(pages)
                    .saturating_add(pages.div_ceil(u64::from(DIRECT_SLOTS)));
                page = behind;
                continue;
            };
            let behind = end.min(page + u64::from(slot.left()));
            let addresses = self.addresses_of(ino, page, behind)?;
            missing += addresses.iter().filter(|address| **address == Address::NONE).count() as u64;
            page = behind;
        }
        Ok(missing)
    }

    /// Address of a page of a file.
    pub(crate) fn address_of(&mut self, ino: Nid, page: u64) -> Result<Address> {
        match self.find_slot(ino, page)? {
            Some(slot) => self.address_in(slot),
            None => Ok(Address::NONE),
        }
    }

    /// Addresses of the pages of a file from `first` to before `end`, in order.
    pub(crate) fn addresses_of(&mut self, ino: Nid, first: u64, end: u64) -> Result<Vec<Address>> {
        let count = usize::try_from(end.saturating_sub(first)).unwrap_or(usize::MAX);
        let mut addresses = Vec::with_capacity(count.min(ADDRESSES_AT_ONCE));
        let mut page = first;
        while page < end {
            let behind = self.put_addresses_in_one_node(ino, page, end, &mut addresses)?;
            // No node has the others.
            let holes = usize::try_from(behind - first).unwrap_or(usize::MAX);
            addresses.resize(holes, Address::NONE);
            page = behind;
        }
        Ok(addresses)
    }

    /// Where the pages from `first` on are that have their addresses in the same node, and the
    /// first page behind them that may have one.
    pub(crate) fn addresses_in_one_node(&mut self, ino: Nid, first: u64) -> Result<(Vec<Address>, u64)> {
        let mut addresses = Vec::new();
        let behind = self.put_addresses_in_one_node(ino, first, MAX_FILE_BLOCKS, &mut addresses)?;
        Ok((addresses, behind))
    }

    /// The same, of those before `end`, added to `addresses`.
    fn put_addresses_in_one_node(
        &mut self,
        ino: Nid,
        first: u64,
        end: u64,
        addresses: &mut Vec<Address>,
    ) -> Result<u64> {
        let Some(slot) = self.find_slot(ino, first)? else {
            return Ok(self.behind_missing_node(ino, first)?.min(end));
        };
        let behind = end.min(first + u64::from(slot.left()));
        let slots = slot.slot..slot.slot + u32::try_from(behind - first).unwrap_or(0);
        if slot.is_inode {
            let inode = self.inode(slot.node)?;
            let held = inode.address_slots();
            addresses.extend(slots.map(|slot| match slot < held {
                true => Inode::slot(&inode.0, slot),
                false => Address::NONE,
            }));
        } else {
            let node = self.node(slot.node, WHAT)?;
            addresses.extend(slots.map(|slot| Address(NodeBlock::slot(node, slot))));
        }
        Ok(behind)
    }

    /// Makes holes of the pages from `first` to before `end`. Nodes that lead only to holes are
    /// removed.
    pub(crate) fn free_pages(&mut self, ino: Nid, first: u64, end: u64) -> Result<()> {
        self.tree.pages.forget(ino, first, end);
        self.free_main_deltas(ino, first, end)?;
        let mut freed = 0u64;
        self.change_inode(ino, |inode| {
            inode.remove_deltas(|page| (first..end).contains(&u64::from(page)))
        })?;
        let slots = self.inode(ino)?.address_slots().min(INODE_SLOTS);
        for slot in first..end.min(u64::from(slots)) {
            let slot = u32::try_from(slot).unwrap_or(u32::MAX);
            let address = Inode::slot(self.node(ino, WHAT)?, slot);
            if address != Address::NONE {
                freed += self.free_page(ino, u64::from(slot), address);
                Inode::set_slot(self.node_mut(ino, WHAT)?, slot, Address::NONE);
            }
        }
        if let Some(node) = self.inode(ino)?.moved_slots()
            && first < u64::from(INODE_SLOTS)
        {
            let (is_gone, blocks) = self.free_below(ino, (node, 0), 0, (first, end))?;
            freed += blocks;
            if is_gone {
                self.change_inode(ino, |inode| inode.set_moved_slots(None))?;
            }
        }
        for index in 0..crate::format::INDIRECT_NODES {
            let node = self.inode(ino)?.node(index);
            let start = first_page_of(index);
            let stop = start.saturating_add(pages_of(levels_below(index)));
            if node == Nid::NONE || stop <= first || end <= start {
                continue;
            }
            let (is_gone, blocks) = self.free_below(ino, (node, levels_below(index)), start, (first, end))?;
            freed += blocks;
            if is_gone {
                self.change_inode(ino, |inode| inode.set_node(index, Nid::NONE))?;
            }
        }
        if freed > 0 {
            self.change_inode(ino, |inode| inode.set_blocks(inode.blocks().saturating_sub(freed)))?;
        }
        Ok(())
    }

    fn free_page(&mut self, ino: Nid, page: u64, address: Address) -> u64 {
        self.page_left(ino, page, address);
        self.space.give_room(1);
        1
    }

    /// Frees the pages in the range below a node. Returns whether the node is gone, and how many
    /// blocks are.
    fn free_below(
        &mut self,
        ino: Nid,
        (nid, levels): (Nid, u32),
        start: u64,
        (first, end): (u64, u64),
    ) -> Result<(bool, u64)> {
        let place = match start < u64::from(INODE_SLOTS) {
            true => Footer::MOVED_SLOTS,
            false => place_of(start, levels),
        };
        let block = match self.node_of(ino, nid, place, WHAT) {
            Ok(block) => Box::new(*block),
            // A file of which something is lost can be removed all the same; what the node led to
            // is found by a repair.
            Err(error) if first <= start && error.is_loss() => {
                return Ok((true, self.free_node_of(ino, nid)?));
            }
            Err(error) => return Err(error),
        };
        let pages_each = if levels == 0 { 1 } else { pages_of(levels - 1) };
        let (mut is_empty, mut freed) = (true, 0);
        for slot in 0..DIRECT_SLOTS {
            let value = NodeBlock::slot(&block, slot);
            if value == 0 {
                continue;
            }
            let from = start.saturating_add(u64::from(slot).saturating_mul(pages_each));
            if from.saturating_add(pages_each) <= first || end <= from {
                is_empty = false;
                continue;
            }
            let (is_gone, blocks) = match levels {
                0 => (true, self.free_page(ino, from, Address(value))),
                _ => self.free_below(ino, (Nid(value), levels - 1), from, (first, end))?,
            };
            freed += blocks;
            match is_gone {
                true => NodeBlock::set_slot(self.node_mut(nid, WHAT)?, slot, 0),
                false => is_empty = false,
            }
        }
        if is_empty {
            self.free_node(nid)?;
            freed += 1;
        }
        Ok((is_empty, freed))
    }

    /// Removes a node that is a file's own; returns the number of blocks freed.
    pub(crate) fn free_node_of(&mut self, ino: Nid, nid: Nid) -> Result<u64> {
        let entry = self.space.table.get(&self.media, nid)?;
        if entry.ino != ino || entry.address == Address::NONE {
            return Ok(0);
        }
        self.free_node(nid)?;
        Ok(1)
    }

    /// The first page at or after `page` and before `end` that is or is not a hole; `end` if there
    /// is none.
    pub(crate) fn next_page(
        &mut self,
        ino: Nid,
        page: u64,
        end: u64,
        is_wanted: impl Fn(Address) -> bool,
    ) -> Result<u64> {
        let mut page = page;
        while page < end {
            let Some(slot) = self.find_slot(ino, page)? else {
                if is_wanted(Address::NONE) {
                    return Ok(page);
                }
                page = self.behind_missing_node(ino, page)?;
                continue;
            };
            if is_wanted(self.address_in(slot)?) {
                return Ok(page);
            }
            page += 1;
        }
        Ok(end)
    }

    /// Of a page that no node has: the first page of the next node that could have one.
    fn behind_missing_node(&mut self, ino: Nid, page: u64) -> Result<u64> {
        let Some(PagePath { node: Some(first), .. }) = way(page) else {
            return Ok(page + 1);
        };
        let start = first_page_of(first);
        let levels = levels_below(first);
        let mut node = self.inode(ino)?.node(first);
        let mut covered = (start, pages_of(levels));
        for levels in (0..levels).rev() {
            if node == Nid::NONE {
                break;
            }
            let each = pages_of(levels);
            let slot = (page - covered.0) / each;
            covered = (covered.0 + slot * each, each);
            node = Nid(NodeBlock::slot(
                self.node(node, WHAT)?,
                u32::try_from(slot).unwrap_or(u32::MAX),
            ));
        }
        Ok(covered.0.saturating_add(covered.1).max(page + 1))
    }
}
