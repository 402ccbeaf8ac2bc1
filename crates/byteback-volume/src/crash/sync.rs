//! Syncing one file: what it is now survives a crash, without a checkpoint where that will do.

use crate::crash::written_pages::WrittenPages;
use crate::error::{Result, VolumeError};
use crate::format::{Nid, NodeFlags};
use crate::state::State;
use crate::tree::attributes::{REGULAR, TYPE};

impl State {
    /// Makes a file durable, with its name.
    ///
    /// # Errors
    /// Also if something of it was lost since this was asked last: the rest is durable then.
    pub(crate) fn sync_file(&mut self, ino: Nid) -> Result<()> {
        self.sync_what_there_is(ino)?;
        self.durability.take_lost_writes(ino)
    }

    fn sync_what_there_is(&mut self, ino: Nid) -> Result<()> {
        if self.inode(ino)?.links() == 0 {
            // Nobody will find it after a crash.
            return Ok(());
        }
        let beside = self.complete_file(ino);
        if beside.is_empty() && self.is_directory_durable(ino)? {
            return Ok(());
        }
        for file in beside.iter().copied().chain([ino]) {
            if !self.can_be_synced_alone(file)? {
                return self.checkpoint(false);
            }
        }
        let mut has_pages = false;
        for file in beside {
            let is_new = self.durability.since.made.contains(&file);
            let written = self.write_nodes(file, is_new);
            self.durability.stop_after(written)?;
            has_pages |= self
                .durability
                .since
                .pages
                .get(&file)
                .is_some_and(|pages| !pages.is_empty());
        }
        if has_pages {
            // Nodes that come later are only found behind these; pages are not, and one that is
            // missing makes those worthless.
            let flushed = self.media.device.flush().map_err(VolumeError::from);
            self.durability.stop_after(flushed)?;
        }
        let is_new = self.durability.since.made.contains(&ino);
        let written = self
            .write_nodes(ino, is_new)
            .and_then(|()| Ok(self.media.device.flush()?));
        self.durability.stop_after(written)
    }

    /// Whether a file can be found again without a checkpoint.
    pub(crate) fn can_be_synced_alone(&mut self, ino: Nid) -> Result<bool> {
        let inode = self.inode(ino)?;
        let is_new = self.durability.since.made.contains(&ino);
        let is_new_name_known = !self.durability.since.names_moved
            && inode.links() == 1
            && !self.durability.since.made.contains(&inode.parent());
        let is_regular = inode.mode() & TYPE == REGULAR;
        Ok(is_regular && !self.durability.since.renamed.contains(&ino) && (!is_new || is_new_name_known))
    }

    fn has_changed(&mut self, ino: Nid) -> Result<bool> {
        Ok(self.tree.pages.has_dirty(ino) || !self.dirty_nodes_of(ino)?.is_empty())
    }

    fn write_nodes(&mut self, ino: Nid, is_new: bool) -> Result<()> {
        if self.has_changed(ino)? {
            self.write_pages(ino)?;
            let flags = NodeFlags {
                is_synced: false,
                is_new_name: is_new,
            };
            for nid in self.dirty_nodes_of(ino)? {
                if nid != ino {
                    self.write_node(nid, Some(flags))?;
                }
            }
            let sum = self.durability.since.pages.get(&ino).map_or(0, WrittenPages::sum);
            self.change_inode(ino, |inode| inode.set_pages_sum(sum))?;
            let is_synced = true;
            self.write_node(ino, Some(NodeFlags { is_synced, ..flags }))?;
            if is_new {
                let inode = self.inode(ino)?;
                self.durability.since.names.synced(inode.parent(), inode.name());
                self.durability.since.synced.insert(ino);
            }
        }
        Ok(())
    }

    /// The nodes of a file that changed.
    fn dirty_nodes_of(&mut self, ino: Nid) -> Result<Vec<Nid>> {
        let dirty: Vec<Nid> = self.tree.nodes.dirty().iter().copied().collect();
        let mut of_file = Vec::new();
        for nid in dirty {
            if self.space.table.get(&self.media, nid)?.ino == ino {
                of_file.push(nid);
            }
        }
        Ok(of_file)
    }
}
