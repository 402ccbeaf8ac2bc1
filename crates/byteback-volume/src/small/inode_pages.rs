//! Pages in the inode: where pages may be compressed, one that is to be written anew need not
//! become a block. If it is short enough it lies compressed beside its file's addresses, as a delta
//! of a page of zeros, in the inode that is written in any case. So a sync of a page or two, which
//! no cluster makes cheaper, is the inode alone.
//!
//! **Passing through.** The inode has room for few. When others come they leave together, as one
//! cluster: of a log that grows by a page with each sync, one block is written for each three
//! kilobytes that it takes compressed, in place of one for each page. So a page is written as a
//! block once, later, or never if it is over by then.
//!
//! **Invariants.** The slot of such a page is
//! [`Address::RESERVED`](crate::format::Address::RESERVED), and the page reads as zeros but for the
//! delta; in other inodes no page without a block has one. A page that leaves the inode is marked
//! as changed in memory in the same call, so that it is written before the inode is. Never are more
//! blocks written than pages changed.
//!
//! Out of scope: pages of directories; choosing between a delta of what was there and
//! this: that is done when the page is written to, see `deltas`.

use std::collections::{BTreeMap, BTreeSet};

use byteback_delta::put_packed_page_delta;

use crate::error::Result;
use crate::format::{Address, Block, INLINE_LEN_BYTES, Nid, zeros};
use crate::small::clusters::Unit;
use crate::state::State;

/// If more pages than that are written, few in the inode are not worth looking for.
const TRIED_MAX: usize = 64;

/// How to write changed pages of a file.
#[derive(Debug, Default)]
struct Plan {
    units: Vec<Unit>,
    /// Pages that go to the inode, with what is kept of them.
    kept: Vec<(u64, Vec<u8>)>,
    /// Nodes that change only because of pages that leave the inode.
    more_nodes: usize,
}

impl Plan {
    fn cost(&self) -> usize {
        self.units.len() + self.more_nodes
    }

    /// Lets the last ones go to the inode, as far as they are short enough and have room: what
    /// comes last is most likely to change again.
    fn keep_last(&mut self, short: &BTreeMap<u64, Vec<u8>>, head_len_bytes: usize, room_bytes: usize) {
        let mut left = room_bytes;
        while let Some(unit) = self.units.last() {
            let deltas = unit.pages().iter().map(|page| Some((*page, short.get(page)?.clone())));
            let Some(deltas) = deltas.collect::<Option<Vec<_>>>() else {
                return;
            };
            let len_bytes: usize = deltas.iter().map(|(_, delta)| head_len_bytes + delta.len()).sum();
            let Some(rest) = left.checked_sub(len_bytes) else {
                return;
            };
            left = rest;
            self.kept.extend(deltas);
            self.units.pop();
        }
    }
}

impl State {
    /// Whether a page of which the slot says that room is set aside lies in the inode.
    pub(crate) fn is_in_inode(&mut self, ino: Nid, page: u64) -> Result<bool> {
        if !self.small.is_compressed {
            return Ok(false);
        }
        let inode = self.inode(ino)?;
        Ok(inode.flags().is_compressed && inode.delta_of(page).is_some_and(|delta| !delta.is_empty()))
    }

    /// Pages that lie in the inode, but for those of which the slot is lost.
    fn pages_in_inode(&mut self, ino: Nid) -> Result<Vec<u64>> {
        let inode = self.inode(ino)?;
        let mut pages = Vec::new();
        if inode.flags().is_compressed {
            for (page, _) in inode.deltas_of().filter(|(_, delta)| !delta.is_empty()) {
                let page = u64::from(page);
                match self.address_of(ino, page) {
                    Ok(Address::RESERVED) => pages.push(page),
                    Err(error) if !error.is_loss() => return Err(error),
                    _ => {}
                }
            }
        }
        pages.sort_unstable();
        Ok(pages)
    }

    /// Lets them leave, so that a delta has room; false if there are none.
    pub(crate) fn empty_inode(&mut self, ino: Nid) -> Result<bool> {
        if !self.small.is_compressed {
            return Ok(false);
        }
        let pages = self.pages_in_inode(ino)?;
        let mut is_any = false;
        for page in pages {
            if let Ok(page) = u16::try_from(page) {
                is_any |= self.try_push_out(ino, page)?;
            }
        }
        Ok(is_any)
    }

    /// How pages of a file that changed, ascending, are written. Those that lie in the inode
    /// afterwards count as written.
    pub(crate) fn compress_pages(&mut self, ino: Nid, dirty: &[u64]) -> Result<Vec<Unit>> {
        let mut plan = Plan {
            units: self.units_of(ino, dirty),
            ..Plan::default()
        };
        if dirty.is_empty() || dirty.len() > TRIED_MAX {
            return Ok(plan.units);
        }
        let inode = self.inode(ino)?;
        let head_len_bytes = inode.delta_head_len_bytes();
        let room_behind_slots = INLINE_LEN_BYTES.saturating_sub(4 * usize::try_from(inode.used_slots()).unwrap_or(0));
        let short = self.short_pages(ino, dirty, room_behind_slots);
        // The inode's content of other pages stays.
        let is_dirty = |page: u16| dirty.binary_search(&u64::from(page)).is_ok();
        let others = inode.deltas_of().filter(|(page, _)| !is_dirty(*page));
        let others: BTreeMap<u64, usize> = others
            .map(|(page, delta)| (u64::from(page), head_len_bytes + delta.len()))
            .collect();
        let room_bytes = room_behind_slots.saturating_sub(others.values().sum());
        plan.keep_last(&short, head_len_bytes, room_bytes);
        let mut leaving = Vec::new();
        if !plan.units.is_empty() {
            let pages = self.pages_in_inode(ino)?;
            leaving = pages.into_iter().filter(|page| others.contains_key(page)).collect();
            let left_bytes: usize = leaving.iter().filter_map(|page| others.get(page)).sum();
            match self.plan_with(ino, dirty, &leaving)? {
                Some(mut with) => {
                    with.keep_last(&short, head_len_bytes, room_bytes + left_bytes);
                    if with.cost() <= plan.cost() {
                        plan = with;
                    } else {
                        leaving.clear();
                    }
                }
                None => leaving.clear(),
            }
        }
        for page in &leaving {
            self.tree.pages.mark_dirty((ino, *page));
        }
        let over: BTreeSet<u64> = leaving
            .iter()
            .chain(plan.kept.iter().map(|(page, _)| page))
            .copied()
            .collect();
        let is_over = |page: u16| over.contains(&u64::from(page)) || is_dirty(page);
        if inode.deltas_of().any(|(page, _)| is_over(page)) {
            self.change_inode(ino, |inode| inode.remove_deltas(is_over))?;
        }
        for (page, delta) in std::mem::take(&mut plan.kept) {
            if !self.put_into_inode(ino, page, &delta)? {
                plan.units.push(Unit::Page(page));
            }
        }
        Ok(plan.units)
    }

    /// Compressed forms of these pages, which are in memory: of those that fit into an inode.
    fn short_pages(&self, ino: Nid, pages: &[u64], room_bytes: usize) -> BTreeMap<u64, Vec<u8>> {
        let mut short = BTreeMap::new();
        let nothing = zeros();
        for page in pages {
            let (Ok(_), Some(block)) = (u16::try_from(*page), self.tree.pages.get((ino, *page))) else {
                continue;
            };
            let mut delta = Vec::new();
            // A page of zeros has no delta, and is written as it is.
            if put_packed_page_delta(&nothing[..], &block[..], room_bytes, &mut delta) && !delta.is_empty() {
                short.insert(*page, delta);
            }
        }
        short
    }

    /// How these are written together with those that leave the inode; `None` if there are none, or
    /// they cannot be read.
    fn plan_with(&mut self, ino: Nid, dirty: &[u64], leaving: &[u64]) -> Result<Option<Plan>> {
        if leaving.is_empty() {
            return Ok(None);
        }
        let mut nodes = BTreeSet::new();
        for page in dirty {
            nodes.extend(self.find_slot(ino, *page)?.map(|slot| slot.node));
        }
        let mut more_nodes = BTreeSet::new();
        for page in leaving {
            match self.page(ino, *page) {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(None),
                Err(error) if error.is_loss() => return Ok(None),
                Err(error) => return Err(error),
            }
            let slot = self.find_slot(ino, *page)?.filter(|slot| !slot.is_inode);
            let is_new = |node: &Nid| !nodes.contains(node) && !self.tree.nodes.dirty().contains(node);
            more_nodes.extend(slot.map(|slot| slot.node).filter(is_new));
        }
        // Reading one may have let go of another.
        if leaving.iter().any(|page| self.tree.pages.get((ino, *page)).is_none()) {
            return Ok(None);
        }
        let mut pages: Vec<u64> = dirty.iter().chain(leaving).copied().collect();
        pages.sort_unstable();
        Ok(Some(Plan {
            units: self.units_of(ino, &pages),
            kept: Vec::new(),
            more_nodes: more_nodes.len(),
        }))
    }

    /// Keeps a page that changed in the inode, which has nothing of it; false if it has no room.
    fn put_into_inode(&mut self, ino: Nid, page: u64, delta: &[u8]) -> Result<bool> {
        let Ok(number) = u16::try_from(page) else {
            return Ok(false);
        };
        let slot = self.make_slot(ino, page)?;
        if !self.change_inode(ino, |inode| inode.put_delta(number, delta))? {
            return Ok(false);
        }
        let old = self.address_in(slot)?;
        if old != Address::RESERVED {
            self.page_left(ino, page, old);
            self.set_address(slot, Address::RESERVED)?;
        }
        self.tree.pages.mark_clean((ino, page));
        self.small.delta_counts.pages_in_inodes += 1;
        Ok(true)
    }

    /// A page as it was written last, with its delta; `None` if there is none at this address.
    pub(crate) fn stored_page(&mut self, ino: Nid, page: u64, address: Address) -> Result<Option<Box<Block>>> {
        let mut block = match address {
            Address::NONE => return Ok(None),
            Address::RESERVED if !self.is_in_inode(ino, page)? => return Ok(None),
            Address::RESERVED => zeros(),
            address => self.read_page(ino, page, address)?,
        };
        self.restore(ino, page, &mut block)?;
        Ok(Some(block))
    }
}
