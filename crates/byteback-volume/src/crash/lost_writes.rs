//! Pages that programs wrote and that cannot be written to the device: the nodes that lead to them
//! were damaged or became unreadable while the pages were in memory. These are pages that are given
//! up for damaged nodes, not writes that a device lost.
//!
//! They are given up, one by one, and all else goes on: a volume that refused to write because of
//! them would lose what is written to other files, too. Reads never return something else in their
//! place, as they need the lost nodes, too. The next sync of the file reports the error, once.
//!
//! Out of scope: devices that refuse a write. Then it is not known what they have, and
//! nothing more is written ([`Durability::stop_after`](super::Durability::stop_after)).

use crate::error::{Result, VolumeError};
use crate::format::{Address, MAX_FILE_BLOCKS, Nid};
use crate::state::State;

const WHAT: &str = "node with addresses of changed pages";

impl State {
    /// Of pages of a file that changed, in ascending order, those that can be written: their slots
    /// are in memory until then, and deltas that they had can be ended. The others are given up.
    pub(crate) fn writable_pages(&mut self, ino: Nid, dirty: Vec<u64>) -> Result<Vec<u64>> {
        let is_index_lost = self.inode(ino)?.delta_meta() != Address::NONE && self.main_file(ino).is_err();
        let mut writable = Vec::with_capacity(dirty.len());
        let mut held_until = 0;
        for page in dirty {
            let mut can_be = Ok(());
            if page >= held_until {
                can_be = self.hold_slot(ino, page).map(|count| held_until = page + count);
            }
            if is_index_lost && can_be.is_ok() {
                can_be = self.end_unknown_place(ino, page);
            }
            match can_be {
                Ok(()) => writable.push(page),
                Err(error) if error.is_loss() => self.give_up_page(ino, page, error),
                Err(error) => return Err(error),
            }
        }
        Ok(writable)
    }

    /// Marks the node with a page's slot as changed, so that it stays in memory. Returns for how
    /// many pages from this one on that holds.
    fn hold_slot(&mut self, ino: Nid, page: u64) -> Result<u64> {
        let slot = self.make_slot(ino, page)?;
        self.space.table.get(&self.media, slot.reported)?;
        self.mark_node_changed(slot.node, WHAT)?;
        self.slots_beside(slot).map(u64::from)
    }

    fn give_up_page(&mut self, ino: Nid, page: u64, why: VolumeError) {
        self.forget_waiting(ino, page, page + 1);
        self.tree.pages.forget(ino, page, page + 1);
        self.durability.lost_writes.entry(ino).or_insert(why);
    }

    /// Gives up all pages of a file that changed: its inode is lost.
    pub(crate) fn give_up_pages(&mut self, ino: Nid, why: VolumeError) {
        self.forget_waiting(ino, 0, MAX_FILE_BLOCKS);
        for page in self.tree.pages.dirty_of(ino) {
            self.tree.pages.forget(ino, page, page + 1);
        }
        self.small.main.forget_file(ino);
        self.durability.lost_writes.entry(ino).or_insert(why);
    }
}
