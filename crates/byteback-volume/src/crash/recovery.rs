//! After a crash: the last checkpoint, and what was synced since.
//!
//! A sync of a file writes its changed nodes to the log of warm nodes, the inode last, marked. The
//! log is a chain: each node says where the next one will be, and after which checkpoint it was
//! written. Recovery follows the chain from where the checkpoint left the log. Of each file that
//! has a marked inode in it, the nodes up to the last of these are *adopted*: they count instead of
//! those of the checkpoint. Blocks that only the new nodes refer to are in use now, and those that
//! only the old ones did are released.
//!
//! Pages and nodes that are synced become durable in any order. A node that did not ends the chain;
//! for the pages, the inode states their sum, and if that differs from what is there, the sync was
//! not complete: the one before it counts.
//!
//! All that a file's nodes can refer to anew was written after the checkpoint, and nodes are
//! written only by a sync or with a checkpoint: so a new node is in the chain. A file that
//! contradicts this was not written by us, and stays as the checkpoint has it.
//!
//! A file created since gets its name again. It is synced by a checkpoint instead if that could be
//! wrong: if names changed otherwise, or its directory is new, too.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Result, VolumeError};
use crate::format::{
    Address, Block, CLUSTER_SLOT, COMPACT_SLOT, DIRECT_SLOTS, DeltaPlaces, Footer, INDEX_SLOT, INDIRECT_NODES,
    INODE_SLOTS, Inode, Kind, LOGS, LogHead, Nid, NodeBlock, NodeEntry, Summary, cluster_checksum, page_checksum,
    page_sum,
};
use crate::log::node_table::NodeTable;
use crate::log::segments::LogKind;
use crate::state::State;
use crate::tree::attributes::{Attributes, DIRECTORY, TYPE};
use crate::tree::directory::check_name;
use crate::tree::place::{is_double_indirect, is_indirect};

/// A node of the chain.
#[derive(Clone, Copy, Debug)]
struct Link {
    address: Address,
    footer: Footer,
}

/// Pages and nodes that a node refers to.
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
        referred.nodes.extend(inode.moved_slots());
    } else {
        let slots = match place {
            Footer::MOVED_SLOTS => INODE_SLOTS,
            _ => DIRECT_SLOTS,
        };
        for slot in 0..slots {
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

/// Changes due to the adoption of a file's nodes.
#[derive(Debug, Default)]
struct Adoption {
    nodes: Vec<(Link, NodeEntry)>,
    acquired: Vec<(Address, Summary)>,
    /// Pages that get room, and pages that lose it.
    more: u32,
    fewer: u32,
    released: Vec<Address>,
    /// Clusters among `acquired`: several pages lead to one.
    new_clusters: BTreeSet<Address>,
    /// Clusters that pages left: whether others lead there still is seen when the new nodes count.
    left_clusters: BTreeSet<Address>,
    /// File and node.
    freed: Vec<(Nid, Nid)>,
    /// The file's fields of the list of files with deltas in the main area, in the checkpoint:
    /// whether it is in the list, the previous file, and the next one.
    delta_links: (bool, Nid, Nid),
}

impl State {
    /// Adopts what was synced since the checkpoint that was read. Returns the number of files
    /// adopted. A reader, without `writes`, leaves out unreadable blocks: it can recover them
    /// another time.
    ///
    /// # Errors With `writes`: the device cannot read a block. It is then unknown whether something
    /// was synced, so it must not be given up silently.
    pub(crate) fn roll_forward(&mut self, heads: &[LogHead; LOGS], writes: bool) -> Result<u32> {
        let is_passed_over =
            |error: &VolumeError| error.is_loss() && !(writes && matches!(error, VolumeError::Unreadable { .. }));
        let chain = self.read_chain(heads, is_passed_over)?;
        // Until the next checkpoint the chain is what leads to what was synced, also where a node
        // in it does not count: the power may go again.
        for link in &chain {
            self.space.segments.keep_until_checkpoint(link.address);
        }
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
                let adoption = match self.compare(ino, &nodes, heads) {
                    // The file's nodes of the checkpoint are damaged, so the changes are unknown.
                    Err(error) if is_passed_over(&error) => None,
                    compared => compared?,
                };
                if let Some(adoption) = adoption {
                    let is_new = nodes.get(&ino).is_some_and(|link| link.footer.flags.is_new_name);
                    chosen.push((last, ino, is_new, adoption));
                    break;
                }
            }
        }
        // In the order of the syncs: a name that was given to one file after the other belongs to
        // the last one.
        chosen.sort_unstable_by_key(|(last, ..)| *last);
        let adopted = u32::try_from(chosen.len()).unwrap_or(u32::MAX);
        let mut new_names = Vec::new();
        for (_, ino, is_new, adoption) in chosen {
            self.adopt(ino, adoption)?;
            new_names.extend(is_new.then_some(ino));
        }
        // When nothing is adopted any more: a file that loses its name by that is taken away as it
        // is then.
        for ino in new_names {
            match self.restore_name(ino) {
                // The directory is lost, the file is not: a repair finds it without a name.
                Err(error) if error.is_loss() => {}
                restored => restored?,
            }
        }
        Ok(adopted)
    }

    /// Nodes that may have been synced.
    fn read_chain(
        &mut self,
        heads: &[LogHead; LOGS],
        is_passed_over: impl Fn(&VolumeError) -> bool,
    ) -> Result<Vec<Link>> {
        let areas = self.media.areas;
        let mut chain = Vec::new();
        let mut seen = BTreeSet::new();
        let Some(head) = heads.get(LogKind::WarmNode as usize) else {
            return Ok(chain);
        };
        let mut at = match head.next < areas.segment_blocks {
            true => Address(areas.segment_first(head.segment).0 + head.next),
            false => areas.segment_first(head.upcoming.min(areas.main_segments)),
        };
        let end = NodeTable::end(&self.media);
        while self.space.segments.was_unwritten(at, heads) && seen.insert(at) {
            let block = match self.media.read_sealed(at, Kind::Node) {
                Ok(block) => block,
                // It was not synced, or is lost: the chain ends here.
                Err(error) if is_passed_over(&error) => break,
                Err(error) => return Err(error),
            };
            let footer = Footer::read(&block);
            let is_node = |nid: Nid| nid != Nid::NONE && nid.0 < end;
            if footer.checkpoint != self.durability.version || !is_node(footer.nid) || !is_node(footer.ino) {
                break;
            }
            chain.push(Link { address: at, footer });
            at = footer.next;
        }
        Ok(chain)
    }

    /// Those of the nodes in the chain that a file's inode leads to, by way of nodes that did not
    /// change, too; `None` if one of these cannot be read.
    fn reached(&mut self, ino: Nid, nodes: &BTreeMap<Nid, Referred>) -> Result<Option<BTreeSet<Nid>>> {
        let (mut reached, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let mut to_visit = vec![ino];
        let mut unchanged = Vec::new();
        loop {
            while let Some(nid) = to_visit.pop() {
                match nodes.get(&nid) {
                    Some(referred) if reached.insert(nid) => to_visit.extend(referred.nodes.iter().copied()),
                    Some(_) => {}
                    None => unchanged.push(nid),
                }
            }
            if reached.len() == nodes.len() {
                return Ok(Some(reached));
            }
            let Some(nid) = unchanged.pop() else {
                return Ok(Some(reached));
            };
            let entry = self.space.table.get(&self.media, nid)?;
            if !seen.insert(nid) || entry.ino != ino || !entry.address.is_block() {
                continue;
            }
            let Ok(block) = self.media.read_sealed(entry.address, Kind::Node) else {
                return Ok(None);
            };
            let leads_on = is_double_indirect(Footer::read(&block).place);
            let below = referred(&block).nodes.into_iter();
            to_visit.extend(below.filter(|nid| leads_on || nodes.contains_key(nid)));
        }
    }

    /// Changes due to adopting these nodes of a file; `None` if they cannot be adopted.
    fn compare(&mut self, ino: Nid, nodes: &BTreeMap<Nid, Link>, heads: &[LogHead; LOGS]) -> Result<Option<Adoption>> {
        let mut adoption = Adoption::default();
        let Some(inode_link) = nodes.get(&ino) else {
            return Ok(None);
        };
        let inode = Inode(self.media.read_sealed(inode_link.address, Kind::Node)?.into());
        let before = self.space.table.get(&self.media, ino)?;
        let is_new = inode_link.footer.flags.is_new_name;
        let is_there = before.address.is_block();
        if inode.links() == 0 || inode.mode() & TYPE == DIRECTORY || is_new == is_there {
            return Ok(None);
        }
        let mut new_nodes: BTreeMap<Nid, Referred> = BTreeMap::new();
        let mut old_nodes: BTreeMap<Nid, (NodeEntry, Referred)> = BTreeMap::new();
        for (nid, link) in nodes {
            let block = self.media.read_sealed(link.address, Kind::Node)?;
            new_nodes.insert(*nid, referred(&block));
            let entry = self.space.table.get(&self.media, *nid)?;
            let old = match entry.address.is_block() {
                true if entry.ino != ino => return Ok(None),
                true => referred(&*self.media.read_sealed(entry.address, Kind::Node)?),
                false => Referred::default(),
            };
            old_nodes.insert(*nid, (entry, old));
        }
        // Addresses that left the inode since: they are compared with those of the node that has
        // them now.
        if let Some(moved) = inode.moved_slots()
            && old_nodes
                .get(&moved)
                .is_some_and(|(entry, _)| !entry.address.is_block())
            && let Some((_, of_inode)) = old_nodes.get_mut(&ino)
        {
            let pages = std::mem::take(&mut of_inode.pages);
            if let Some((_, of_moved)) = old_nodes.get_mut(&moved) {
                of_moved.pages = pages;
            }
        }
        let reached = self.reached(ino, &new_nodes)?;
        let (mut kept, mut lost) = (BTreeSet::new(), BTreeSet::new());
        for (nid, link) in nodes {
            let Some((entry, old)) = old_nodes.remove(nid) else {
                continue;
            };
            let is_there = entry.address.is_block();
            // Written meanwhile, and given up again before the file was synced last. If the
            // checkpoint has it, it is taken away as what it is there, with what led to it.
            let is_reached = reached.as_ref().map(|reached| reached.contains(nid));
            if !is_reached.unwrap_or(is_there) {
                continue;
            }
            let Some(new) = new_nodes.get(nid) else { continue };
            if new.nodes.difference(&old.nodes).any(|node| !nodes.contains_key(node)) {
                return Ok(None);
            }
            let reported = match link.footer.place {
                Footer::MOVED_SLOTS => (ino, before.version),
                _ => (*nid, entry.version),
            };
            if !self.compare_pages((ino, before.version), reported, &old, new, heads, &mut adoption)? {
                return Ok(None);
            }
            if *nid == ino {
                let old = match is_there {
                    true => Some(Inode(self.media.read_sealed(entry.address, Kind::Node)?.into())),
                    false => None,
                };
                if !self.compare_deltas((ino, entry.version), old.as_ref(), &inode, heads, &mut adoption)? {
                    return Ok(None);
                }
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

    /// Compares a file's deltas in the main area with the previous ones; false if the new ones are
    /// impossible, or were not written.
    ///
    /// # Errors
    /// The device does not say what was written.
    fn compare_deltas(
        &self,
        (ino, version): (Nid, u8),
        old: Option<&Inode>,
        new: &Inode,
        heads: &[LogHead; LOGS],
        adoption: &mut Adoption,
    ) -> Result<bool> {
        if let Some(old) = old {
            adoption.delta_links = (old.flags().has_main_deltas, old.delta_previous(), old.delta_next());
        }
        let before = old.map_or(Address::NONE, Inode::delta_meta);
        let now = new.delta_meta();
        if before == now {
            return Ok(true);
        }
        // Blocks of an index that is lost are found by a repair.
        let old_blocks = match before {
            Address::NONE => BTreeMap::new(),
            _ => self
                .delta_blocks(ino, before)
                .ok()
                .flatten()
                .unwrap_or_else(|| BTreeMap::from([(before, INDEX_SLOT)])),
        };
        let new_blocks = match now {
            Address::NONE => Some(BTreeMap::new()),
            _ => self.delta_blocks(ino, now)?,
        };
        let Some(new_blocks) = new_blocks else {
            return Ok(false);
        };
        for (address, slot) in &new_blocks {
            if old_blocks.contains_key(address) {
                continue;
            }
            if !self.space.segments.was_unwritten(*address, heads) || self.space.segments.is_valid(*address) {
                return Ok(false);
            }
            let block = self.media.read(*address)?;
            let summary = Summary {
                nid: ino,
                version,
                slot: *slot,
                checksum: page_checksum(&block[..]),
            };
            adoption.acquired.push((*address, summary));
            adoption.more += 1;
        }
        for address in old_blocks.keys().filter(|address| !new_blocks.contains_key(address)) {
            if address.is_block() {
                adoption.released.push(*address);
                adoption.fewer += 1;
            }
        }
        Ok(true)
    }

    /// An index, its leaves and its compact pages, with what summaries say of them; `None` if these
    /// are not there.
    ///
    /// # Errors
    /// The device does not say what is there.
    fn delta_blocks(&self, ino: Nid, address: Address) -> Result<Option<BTreeMap<Address, u16>>> {
        let areas = &self.media.areas;
        let mut unreadable = None;
        let read = |at, kind| match self.media.read_sealed(at, kind) {
            Err(error @ VolumeError::Unreadable { .. }) => {
                unreadable = Some(error);
                None
            }
            block => block.ok(),
        };
        let found = DeltaPlaces::read((ino, address), areas, read);
        let Ok(found) = found else {
            return unreadable.map_or(Ok(None), Err);
        };
        let mut blocks = BTreeMap::from([(address, INDEX_SLOT)]);
        blocks.extend(found.leaves.iter().map(|(leaf, _)| (*leaf, INDEX_SLOT)));
        blocks.extend(found.compacts.keys().map(|compact| (*compact, COMPACT_SLOT)));
        Ok(Some(blocks))
    }

    /// Compares a node's pages with the previous ones; false if the new ones are impossible.
    fn compare_pages(
        &mut self,
        (ino, ino_version): (Nid, u8),
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
                if !self.space.segments.was_unwritten(*address, heads) || self.space.segments.is_valid(*address) {
                    return Ok(false);
                }
                let page = self.media.read(*address)?;
                let summary = match self.is_sealed_cluster(ino, *address, &page) {
                    true => Summary {
                        nid: ino,
                        version: ino_version,
                        slot: CLUSTER_SLOT,
                        checksum: cluster_checksum(&page),
                    },
                    false => Summary {
                        nid,
                        version,
                        slot: u16::try_from(*slot).unwrap_or(u16::MAX),
                        checksum: page_checksum(&page[..]),
                    },
                };
                if summary.slot != CLUSTER_SLOT || adoption.new_clusters.insert(*address) {
                    adoption.acquired.push((*address, summary));
                }
            }
            adoption.more += u32::from(!old.pages.contains_key(slot));
        }
        for (slot, address) in &old.pages {
            if new.pages.get(slot) != Some(address) {
                if address.is_block() && self.is_cluster(ino, *address) {
                    adoption.left_clusters.insert(*address);
                } else if address.is_block() {
                    adoption.released.push(*address);
                }
                adoption.fewer += u32::from(!new.pages.contains_key(slot));
            }
        }
        Ok(true)
    }

    fn adopt(&mut self, ino: Nid, adoption: Adoption) -> Result<()> {
        let (is_linked, previous, next) = adoption.delta_links;
        for address in adoption.released {
            self.space.segments.release(address);
        }
        for (address, summary) in adoption.acquired {
            self.space.segments.acquire(address);
            self.space.segments.amend_summary(address, summary);
        }
        for (link, entry) in adoption.nodes {
            let nid = link.footer.nid;
            match entry.address.is_block() {
                true => self.space.segments.release(entry.address),
                false => {
                    self.space.counts.used_blocks += 1;
                    self.space.counts.nodes += 1;
                    self.space.counts.inodes += u32::from(nid == ino);
                }
            }
            self.space.segments.acquire(link.address);
            let summary = Summary {
                nid,
                version: entry.version,
                ..Summary::default()
            };
            self.space.segments.amend_summary(link.address, summary);
            let entry = NodeEntry {
                address: link.address,
                ino,
                version: entry.version,
            };
            self.space.table.set(nid, entry);
            self.tree.forget_node(nid);
        }
        self.space.counts.used_blocks = (self.space.counts.used_blocks + adoption.more).saturating_sub(adoption.fewer);
        let mut seen = BTreeSet::new();
        for (ino, nid) in adoption.freed {
            self.free_nodes_below(ino, nid, &mut seen)?;
        }
        for address in adoption.left_clusters {
            self.release_unless_shared(ino, address);
        }
        let said = |inode: &Inode| {
            (
                inode.flags().has_main_deltas,
                inode.delta_previous(),
                inode.delta_next(),
            )
        };
        if self.inode(ino).is_ok_and(|inode| said(&inode) != adoption.delta_links) {
            self.set_delta_links(ino, is_linked, previous, next)?;
        }
        self.small.main.to_link.insert(ino);
        Ok(())
    }

    /// Takes a node away that a file has no more, and what only that refers to. Its pages were
    /// given up with it.
    fn free_nodes_below(&mut self, ino: Nid, nid: Nid, seen: &mut BTreeSet<Nid>) -> Result<()> {
        // Each one once, and none of another file, whatever a damaged node says.
        if !seen.insert(nid) || self.space.table.get(&self.media, nid)?.ino != ino {
            return Ok(());
        }
        let block = Box::new(*self.node(nid, "node that belonged to a file")?);
        let referred = referred(&block);
        for address in referred.pages.values() {
            if address.is_block() {
                self.release_unless_shared(ino, *address);
            }
            self.space.give_room(1);
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
            match self.inode(found.ino).map(|inode| inode.links()) {
                Ok(links) => {
                    self.change_inode(found.ino, |inode| inode.set_links(links.saturating_sub(1)))?;
                    if links <= 1 {
                        self.free_file(found.ino)?;
                    }
                }
                // A repair finds what it had.
                Err(error) if error.is_loss() => {}
                Err(error) => return Err(error),
            }
        }
        self.add_entry(dir, &name, ino, Attributes::kind(inode.mode()))
    }
}
