//! Nodes in memory. Those that changed stay until they are written: with a checkpoint, or with a
//! file that is synced.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::error::{Result, VolumeError};
use crate::format::{Address, Block, Footer, Inode, Kind, Nid, NodeEntry, NodeFlags, Summary, zeros};
use crate::log::segments::LogKind;
use crate::state::State;
use crate::tree::Tree;

/// Most unchanged nodes kept in memory.
pub(crate) const CLEAN_NODES_MAX: usize = 8192;

#[derive(Debug)]
struct Cached {
    block: Arc<Block>,
    is_dirty: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Nodes {
    cached: BTreeMap<Nid, Cached>,
    dirty: BTreeSet<Nid>,
    /// A block of zeros: stands in for an inode while that is changed.
    nothing: Arc<Block>,
}

impl Default for Nodes {
    fn default() -> Self {
        Self {
            cached: BTreeMap::new(),
            dirty: BTreeSet::new(),
            nothing: zeros().into(),
        }
    }
}

impl Nodes {
    /// Nodes that changed.
    pub(crate) fn dirty(&self) -> &BTreeSet<Nid> {
        &self.dirty
    }

    /// How many nodes are in memory beyond those that changed.
    #[cfg(test)]
    pub(crate) fn clean_count(&self) -> usize {
        self.cached.len() - self.dirty.len()
    }

    /// Forgets all that did not change, as if many others had been needed.
    #[cfg(test)]
    pub(crate) fn forget_unchanged(&mut self) {
        self.cached.retain(|_, cached| cached.is_dirty);
    }

    fn forget_clean(&mut self) {
        if self.cached.len() > CLEAN_NODES_MAX + self.dirty.len() {
            self.cached.retain(|_, cached| cached.is_dirty);
        }
    }
}

/// The log of a node.
fn log_of(block: &Block, is_directory: bool) -> LogKind {
    let place = Footer::read(block).place;
    match (crate::tree::place::is_indirect(place), is_directory) {
        (true, _) => LogKind::ColdNode,
        (false, true) => LogKind::HotNode,
        (false, false) => LogKind::WarmNode,
    }
}

impl Tree {
    /// Forgets what is in memory of a node, of which another version counts.
    pub(crate) fn forget_node(&mut self, nid: Nid) {
        self.nodes.cached.remove(&nid);
        self.nodes.dirty.remove(&nid);
    }
}

impl State {
    /// A node, to be looked at.
    pub(crate) fn node(&mut self, nid: Nid, what: &'static str) -> Result<&Block> {
        Ok(&*self.load_node(nid, what)?.block)
    }

    /// A node of a file, which must be the one of this place: then no damage makes a file endless,
    /// or lets it lead into another one.
    pub(crate) fn node_of(&mut self, ino: Nid, nid: Nid, place: u32, what: &'static str) -> Result<&Block> {
        let footer = Footer::read(self.node(nid, what)?);
        if (footer.ino, footer.place) != (ino, place) {
            let address = self.space.table.get(&self.media, nid)?.address;
            return Err(VolumeError::Damaged { address, what });
        }
        self.node(nid, what)
    }

    /// A node, to be changed.
    pub(crate) fn node_mut(&mut self, nid: Nid, what: &'static str) -> Result<&mut Block> {
        self.load_node(nid, what)?;
        self.tree.nodes.dirty.insert(nid);
        let cached = self.tree.nodes.cached.get_mut(&nid);
        let cached = cached.ok_or(VolumeError::Missing { nid, what })?;
        cached.is_dirty = true;
        Ok(Arc::make_mut(&mut cached.block))
    }

    /// A node that is in memory is to be written.
    pub(crate) fn mark_node_changed(&mut self, nid: Nid, what: &'static str) -> Result<()> {
        self.load_node(nid, what)?;
        if let Some(cached) = self.tree.nodes.cached.get_mut(&nid)
            && !cached.is_dirty
        {
            cached.is_dirty = true;
            self.tree.nodes.dirty.insert(nid);
        }
        Ok(())
    }

    fn load_node(&mut self, nid: Nid, what: &'static str) -> Result<&Cached> {
        if !self.tree.nodes.cached.contains_key(&nid) {
            let entry = self.space.table.get(&self.media, nid)?;
            if !entry.address.is_block() {
                return Err(VolumeError::Missing { nid, what });
            }
            let block = self.media.read_sealed(entry.address, Kind::Node)?;
            let footer = Footer::read(&block);
            if (footer.nid, footer.ino) != (nid, entry.ino) {
                return Err(VolumeError::Damaged {
                    address: entry.address,
                    what,
                });
            }
            self.tree.nodes.forget_clean();
            let (block, is_dirty) = (block.into(), false);
            self.tree.nodes.cached.insert(nid, Cached { block, is_dirty });
        }
        self.tree
            .nodes
            .cached
            .get(&nid)
            .ok_or(VolumeError::Missing { nid, what })
    }

    /// A new node of the file `ino`; `None` for a new file.
    pub(crate) fn new_node(&mut self, ino: Option<Nid>, place: u32) -> Result<Nid> {
        self.space.take_room(&self.media.areas, 1)?;
        let nid = match self.space.table.give(&self.media, ino) {
            Ok(nid) => nid,
            Err(error) => {
                self.space.give_room(1);
                return Err(error);
            }
        };
        let mut block = zeros();
        let footer = Footer {
            nid,
            ino: ino.unwrap_or(nid),
            place,
            ..Footer::default()
        };
        footer.write(&mut block);
        self.space.counts.nodes += 1;
        // Creating many files reads no other node, so nothing else would forget those that were
        // written.
        self.tree.nodes.forget_clean();
        self.tree.nodes.dirty.insert(nid);
        let block = block.into();
        self.tree.nodes.cached.insert(nid, Cached { block, is_dirty: true });
        Ok(nid)
    }

    /// Takes a node away.
    pub(crate) fn free_node(&mut self, nid: Nid) -> Result<()> {
        let entry = self.space.table.get(&self.media, nid)?;
        if entry.address.is_block() {
            self.space.segments.release(entry.address);
        }
        if entry.address != Address::NONE {
            self.space.give_room(1);
            self.space.counts.nodes = self.space.counts.nodes.saturating_sub(1);
        }
        self.space.table.give_back(nid, entry);
        self.tree.nodes.cached.remove(&nid);
        self.tree.nodes.dirty.remove(&nid);
        Ok(())
    }

    /// Writes a node to the end of a log. Of a file that is synced, all go to one log, in which
    /// they are found after a crash.
    pub(crate) fn write_node(&mut self, nid: Nid, synced: Option<NodeFlags>) -> Result<()> {
        const WHAT: &str = "node to be written";
        let entry = self.space.table.get(&self.media, nid)?;
        let is_directory = synced.is_none() && self.is_directory(entry.ino);
        let log = match synced {
            Some(_) => LogKind::WarmNode,
            None => log_of(self.node(nid, WHAT)?, is_directory),
        };
        let summary = Summary {
            nid,
            version: entry.version,
            ..Summary::default()
        };
        let (address, next) = self.space.segments.allocate(log, summary, self.now_s())?;
        let checkpoint = self.durability.version;
        let block = self.node_mut(nid, WHAT)?;
        let footer = Footer {
            flags: synced.unwrap_or_default(),
            checkpoint,
            next,
            ..Footer::read(block)
        };
        footer.write(block);
        let mut copy = Box::new(*block);
        self.media.write_sealed(address, Kind::Node, &mut copy)?;
        if entry.address.is_block() {
            self.space.segments.release(entry.address);
        }
        self.space.table.set(nid, NodeEntry { address, ..entry });
        self.tree.nodes.dirty.remove(&nid);
        if let Some(cached) = self.tree.nodes.cached.get_mut(&nid) {
            cached.is_dirty = false;
        }
        self.space.write_filled(&self.media)
    }

    /// The inode of a file.
    pub(crate) fn inode(&mut self, ino: Nid) -> Result<Inode> {
        const WHAT: &str = "inode";
        let block = &self.load_node(ino, WHAT)?.block;
        let footer = Footer::read(block);
        if footer.place != 0 || footer.nid != footer.ino {
            return Err(VolumeError::NotFound);
        }
        let inode = Inode(Arc::clone(block));
        if inode.len_bytes() > crate::tree::file::LEN_BYTES_MAX {
            let address = self.space.table.get(&self.media, ino)?.address;
            return Err(VolumeError::Damaged { address, what: WHAT });
        }
        Ok(inode)
    }

    /// Changes the inode of a file.
    pub(crate) fn change_inode<T>(&mut self, ino: Nid, change: impl FnOnce(&mut Inode) -> T) -> Result<T> {
        const WHAT: &str = "inode";
        // Dropped at once: what only the cache has is changed where it is.
        drop(self.inode(ino)?);
        self.tree.nodes.dirty.insert(ino);
        let cached = self.tree.nodes.cached.get_mut(&ino);
        let cached = cached.ok_or(VolumeError::Missing { nid: ino, what: WHAT })?;
        cached.is_dirty = true;
        let mut inode = Inode(std::mem::replace(
            &mut cached.block,
            Arc::clone(&self.tree.nodes.nothing),
        ));
        let deltas = |inode: &Inode| inode.deltas_of().filter(|(_, delta)| !delta.is_empty()).count();
        let (bytes_before, before) = (inode.delta_bytes(), deltas(&inode));
        let answer = change(&mut inode);
        if inode.delta_bytes() != bytes_before {
            let more = i64::try_from(deltas(&inode)).unwrap_or(0) - i64::try_from(before).unwrap_or(0);
            self.small.delta_counts.more_in_inodes += more;
        }
        cached.block = inode.0;
        Ok(answer)
    }

    /// Puts a changed inode in the place of what it was made of.
    pub(crate) fn put_inode(&mut self, ino: Nid, inode: Inode) -> Result<()> {
        self.change_inode(ino, |there| *there = inode)
    }

    fn is_directory(&mut self, ino: Nid) -> bool {
        self.inode(ino)
            .is_ok_and(|inode| inode.mode() & crate::tree::attributes::TYPE == crate::tree::attributes::DIRECTORY)
    }
}
