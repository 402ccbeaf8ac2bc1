//! After a crash: the last checkpoint, and what was synced since.
//!
//! Whoever syncs a file writes its nodes that changed to the log of warm nodes, the inode last, marked. The log is a chain: each node says where the
//! next one will be, and after which checkpoint it was written. So the chain is followed from where the checkpoint left the log. Of each file that
//! has a marked inode in it, the nodes up to the last of these are *adopted*: they count instead of those of the checkpoint. What they refer to and
//! the elder ones did not is in use now, and the other way round.
//!
//! Pages and nodes that are synced become durable in any order. A node that did not ends the chain; of the pages the inode says what they add up to, and
//! if that is not what is there, the sync was not done: the one before it counts.
//!
//! All that a file's nodes can refer to anew was written after the checkpoint, and nodes are written by a sync or with a checkpoint only: so a new node is in the chain.
//! What contradicts that is no volume of ours: such a file stays as the checkpoint has it.
//!
//! A file that was made since gets its name again. It is synced by a checkpoint instead if that could be wrong: if names changed otherwise, or its directory is new, too.

use std::collections::{BTreeMap, BTreeSet};

use crate::attributes::{Attributes, DIRECTORY, TYPE};
use crate::directory::check_name;
use crate::error::Result;
use crate::format::{
    Address, Block, DIRECT_SLOTS, Footer, INDIRECT_NODES, INODE_SLOTS, Inode, Kind, LOGS, LogHead, Nid, NodeBlock,
    NodeEntry, Summary, page_sum,
};
use crate::node_table::NodeTable;
use crate::place::is_indirect;
use crate::segments::LogKind;
use crate::state::State;

/// A node of the chain.
#[derive(Clone, Copy, Debug)]
struct Link {
    address: Address,
    footer: Footer,
}

/// What a node refers to.
#[derive(Debug, Default)]
struct Referred {
    /// Pages, by slot.
    pages: BTreeMap<u32, Address>,
    /// Nodes.
    nodes: BTreeSet<Nid>,
}

fn referred(block: &Block) -> Referred {
    let place = Footer::read(block).place;
    let mut referred = Referred::default();
    if place == Footer::XATTRS {
        return referred;
    }
    if place == 0 {
        let inode = Inode(std::sync::Arc::new(*block));
        for slot in 0..inode.address_slots().min(INODE_SLOTS) {
            referred.pages.insert(slot, Inode::slot(block, slot));
        }
        referred
            .nodes
            .extend((0..INDIRECT_NODES).map(|index| inode.node(index)));
        referred.nodes.insert(inode.xattr_node());
    } else {
        for slot in 0..DIRECT_SLOTS {
            let value = NodeBlock::slot(block, slot);
            match is_indirect(place) {
                true => {
                    referred.nodes.insert(Nid(value));
                }
                false => {
                    referred.pages.insert(slot, Address(value));
                }
            }
        }
    }
    referred.pages.retain(|_, address| *address != Address::NONE);
    referred.nodes.remove(&Nid::NONE);
    referred
}

/// The nodes that a file's inode leads to, as far as they were written.
fn reached(ino: Nid, nodes: &BTreeMap<Nid, Referred>) -> BTreeSet<Nid> {
    let mut reached = BTreeSet::new();
    let mut to_visit = vec![ino];
    while let Some(nid) = to_visit.pop() {
        if let Some(referred) = nodes.get(&nid)
            && reached.insert(nid)
        {
            to_visit.extend(referred.nodes.iter().copied());
        }
    }
    reached
}

/// What changes when a file's nodes are adopted.
#[derive(Debug, Default)]
struct Adoption {
    nodes: Vec<(Link, NodeEntry)>,
    acquired: Vec<(Address, Summary)>,
    /// Pages that get room, and pages that lose it.
    more: u32,
    fewer: u32,
    released: Vec<Address>,
    /// File and node.
    freed: Vec<(Nid, Nid)>,
}

impl State {
    /// Adopts what was synced since the checkpoint that was read. Answers how many files there were.
    pub(crate) fn roll_forward(&mut self, heads: &[LogHead; LOGS]) -> Result<u32> {
        let chain = self.read_chain(heads);
        let mut synced: BTreeMap<Nid, Vec<usize>> = BTreeMap::new();
        for (index, link) in chain.iter().enumerate() {
            if link.footer.place == 0 && link.footer.flags.is_synced {
                synced.entry(link.footer.ino).or_default().push(index);
            }
        }
        let mut chosen = Vec::new();
        for (ino, mut syncs) in synced {
            while let Some(last) = syncs.pop() {
                let of_file = chain.get(..=last).unwrap_or_default().iter();
                let of_file = of_file.filter(|link| link.footer.ino == ino);
                let nodes: BTreeMap<Nid, Link> = of_file.map(|link| (link.footer.nid, *link)).collect();
                if let Some(adoption) = self.compare(ino, &nodes, heads)? {
                    let is_new = nodes.get(&ino).is_some_and(|link| link.footer.flags.is_new_name);
                    chosen.push((last, ino, is_new, adoption));
                    break;
                }
            }
        }
        // In the order of the syncs: a name that was given to one file after the other belongs to the last one.
        chosen.sort_unstable_by_key(|(last, ..)| *last);
        let adopted = u32::try_from(chosen.len()).unwrap_or(u32::MAX);
        for (_, ino, is_new, adoption) in chosen {
            self.adopt(adoption)?;
            if is_new {
                self.restore_name(ino)?;
            }
        }
        Ok(adopted)
    }

    fn read_chain(&mut self, heads: &[LogHead; LOGS]) -> Vec<Link> {
        let areas = self.media.areas;
        let mut chain = Vec::new();
        let mut seen = BTreeSet::new();
        let Some(head) = heads.get(LogKind::WarmNode as usize) else {
            return chain;
        };
        let mut at = match head.next < areas.segment_blocks {
            true => Address(areas.segment_first(head.segment).0 + head.next),
            false => areas.segment_first(head.upcoming.min(areas.main_segments)),
        };
        let end = NodeTable::end(&self.media);
        while self.segments.was_unwritten(at, heads) && seen.insert(at) {
            // What cannot be read was not synced, or is lost: the chain ends here.
            let Ok(block) = self.media.read_sealed(at, Kind::Node) else {
                break;
            };
            let footer = Footer::read(&block);
            let is_node = |nid: Nid| nid != Nid::NONE && nid.0 < end;
            if footer.checkpoint != self.version || !is_node(footer.nid) || !is_node(footer.ino) {
                break;
            }
            chain.push(Link { address: at, footer });
            at = footer.next;
        }
        chain
    }

    /// What adopting these nodes of a file changes; `None` if they cannot be.
    fn compare(&mut self, ino: Nid, nodes: &BTreeMap<Nid, Link>, heads: &[LogHead; LOGS]) -> Result<Option<Adoption>> {
        let mut adoption = Adoption::default();
        let Some(inode_link) = nodes.get(&ino) else {
            return Ok(None);
        };
        let inode = Inode(self.media.read_sealed(inode_link.address, Kind::Node)?.into());
        let before = self.table.get(&self.media, ino)?;
        let is_new = inode_link.footer.flags.is_new_name;
        let is_there = before.address.is_block();
        if inode.links() == 0 || inode.mode() & TYPE == DIRECTORY || is_new == is_there {
            return Ok(None);
        }
        let mut new_nodes: BTreeMap<Nid, Referred> = BTreeMap::new();
        for (nid, link) in nodes {
            let block = self.media.read_sealed(link.address, Kind::Node)?;
            new_nodes.insert(*nid, referred(&block));
        }
        let reached = reached(ino, &new_nodes);
        let (mut kept, mut lost) = (BTreeSet::new(), BTreeSet::new());
        for (nid, link) in nodes {
            let entry = self.table.get(&self.media, *nid)?;
            let is_there = entry.address.is_block();
            // Written meanwhile, and given up again before the file was synced last.
            if !is_there && !reached.contains(nid) {
                continue;
            }
            let old = match is_there {
                true if entry.ino != ino => return Ok(None),
                true => referred(&*self.media.read_sealed(entry.address, Kind::Node)?),
                false => Referred::default(),
            };
            let Some(new) = new_nodes.get(nid) else { continue };
            if new.nodes.difference(&old.nodes).any(|node| !nodes.contains_key(node)) {
                return Ok(None);
            }
            if !self.compare_pages((*nid, entry.version), &old, new, heads, &mut adoption)? {
                return Ok(None);
            }
            kept.extend(new.nodes.iter().copied());
            lost.extend(old.nodes.difference(&new.nodes).copied());
            adoption.nodes.push((*link, entry));
        }
        adoption.freed = lost.difference(&kept).map(|nid| (ino, *nid)).collect();
        let sums = adoption.acquired.iter();
        let sums = sums.map(|(address, summary)| page_sum(*address, summary.checksum));
        let is_whole = sums.fold(0, u64::wrapping_add) == inode.pages_sum();
        Ok(is_whole.then_some(adoption))
    }

    /// What of a node's pages is other than it was; false if that cannot be.
    fn compare_pages(
        &mut self,
        (nid, version): (Nid, u8),
        old: &Referred,
        new: &Referred,
        heads: &[LogHead; LOGS],
        adoption: &mut Adoption,
    ) -> Result<bool> {
        for (slot, address) in &new.pages {
            if old.pages.get(slot) == Some(address) {
                continue;
            }
            if address.is_block() {
                if !self.segments.was_unwritten(*address, heads) || self.segments.is_valid(*address) {
                    return Ok(false);
                }
                let page = self.media.read(*address)?;
                let summary = Summary {
                    nid,
                    version,
                    slot: u16::try_from(*slot).unwrap_or(u16::MAX),
                    checksum: crc32c::crc32c(&page[..]),
                };
                adoption.acquired.push((*address, summary));
            }
            adoption.more += u32::from(!old.pages.contains_key(slot));
        }
        for (slot, address) in &old.pages {
            if new.pages.get(slot) != Some(address) {
                if address.is_block() {
                    adoption.released.push(*address);
                }
                adoption.fewer += u32::from(!new.pages.contains_key(slot));
            }
        }
        Ok(true)
    }

    fn adopt(&mut self, adoption: Adoption) -> Result<()> {
        for address in adoption.released {
            self.segments.release(address);
        }
        for (address, summary) in adoption.acquired {
            self.segments.acquire(address);
            self.segments.amend_summary(address, summary);
        }
        for (link, entry) in adoption.nodes {
            let (nid, ino) = (link.footer.nid, link.footer.ino);
            match entry.address.is_block() {
                true => self.segments.release(entry.address),
                false => {
                    self.counts.used_blocks += 1;
                    self.counts.nodes += 1;
                    self.counts.inodes += u32::from(nid == ino);
                }
            }
            self.segments.acquire(link.address);
            let summary = Summary {
                nid,
                version: entry.version,
                ..Summary::default()
            };
            self.segments.amend_summary(link.address, summary);
            let entry = NodeEntry {
                address: link.address,
                ino,
                version: entry.version,
            };
            self.table.set(nid, entry);
            self.forget_node(nid);
        }
        self.counts.used_blocks = (self.counts.used_blocks + adoption.more).saturating_sub(adoption.fewer);
        let mut seen = BTreeSet::new();
        for (ino, nid) in adoption.freed {
            self.free_nodes_below(ino, nid, &mut seen)?;
        }
        Ok(())
    }

    /// Takes a node away that a file has no more, and what only that refers to. Its pages were given up with it.
    fn free_nodes_below(&mut self, ino: Nid, nid: Nid, seen: &mut BTreeSet<Nid>) -> Result<()> {
        // Each one once, and none of another file, whatever a damaged node says.
        if !seen.insert(nid) || self.table.get(&self.media, nid)?.ino != ino {
            return Ok(());
        }
        let block = Box::new(*self.node(nid, "node that a file had")?);
        let referred = referred(&block);
        for address in referred.pages.values() {
            if address.is_block() {
                self.segments.release(*address);
            }
            self.give_room(1);
        }
        for node in referred.nodes {
            self.free_nodes_below(ino, node, seen)?;
        }
        self.free_node(nid)
    }

    /// Gives a file that was made since the checkpoint its name.
    fn restore_name(&mut self, ino: Nid) -> Result<()> {
        let inode = self.inode(ino)?;
        let (dir, name) = (inode.parent(), inode.name().to_vec());
        let is_directory = self.inode(dir).is_ok_and(|dir| dir.mode() & TYPE == DIRECTORY);
        if check_name(&name).is_err() || !is_directory {
            return self.free_file(ino);
        }
        if let Some(found) = self.find_entry(dir, &name)? {
            // It stood for a file that had lost it.
            self.remove_entry(dir, &name, found)?;
            let links = self.inode(found.ino)?.links();
            self.change_inode(found.ino, |inode| inode.set_links(links.saturating_sub(1)))?;
            if links <= 1 {
                self.free_file(found.ino)?;
            }
        }
        self.add_entry(dir, &name, ino, Attributes::kind(inode.mode()))
    }
}
