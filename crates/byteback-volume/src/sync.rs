//! Syncing one file: what it is now survives a crash, without a checkpoint where that will do.

use crate::attributes::{REGULAR, TYPE};
use crate::error::Result;
use crate::format::{Nid, NodeFlags, page_sum};
use crate::state::State;

impl State {
    /// Makes a file durable, with its name.
    pub(crate) fn sync_file(&mut self, ino: Nid) -> Result<()> {
        let inode = self.inode(ino)?;
        if inode.links() == 0 {
            // Nobody will find it after a crash.
            return Ok(());
        }
        let is_new = self.since.made.contains(&ino);
        let is_new_name_known =
            !self.since.names_moved && inode.links() == 1 && !self.since.made.contains(&inode.parent());
        let is_simple =
            inode.mode() & TYPE == REGULAR && !self.since.renamed.contains(&ino) && (!is_new || is_new_name_known);
        if !is_simple {
            return self.checkpoint(false);
        }
        let has_changed = self.has_changed(ino)?;
        let written = self.write_file(ino, is_new, has_changed);
        self.stop_after(written)
    }

    fn has_changed(&mut self, ino: Nid) -> Result<bool> {
        Ok(!self.pages.dirty_of(ino).is_empty() || !self.dirty_nodes_of(ino)?.is_empty())
    }

    fn write_file(&mut self, ino: Nid, is_new: bool, has_changed: bool) -> Result<()> {
        if has_changed {
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
            let sum = self.since.pages.get(&ino).map_or(0, |pages| {
                let sums = pages.iter().map(|(address, checksum)| page_sum(*address, *checksum));
                sums.fold(0, u64::wrapping_add)
            });
            self.change_inode(ino, |inode| inode.set_pages_sum(sum))?;
            let is_synced = true;
            self.write_node(ino, Some(NodeFlags { is_synced, ..flags }))?;
        }
        Ok(self.media.device.flush()?)
    }

    /// The nodes of a file that changed.
    fn dirty_nodes_of(&mut self, ino: Nid) -> Result<Vec<Nid>> {
        let dirty: Vec<Nid> = self.nodes.dirty().iter().copied().collect();
        let mut of_file = Vec::new();
        for nid in dirty {
            if self.table.get(&self.media, nid)?.ino == ino {
                of_file.push(nid);
            }
        }
        Ok(of_file)
    }
}
