//! The list of files with deltas in the main area, and restoring their pages in idle time (`BGRes`,
//! DeltaFS section 4.2.1).
//!
//! Each inode in the list names the next one and the previous one; the checkpoint names the first.
//! The list is that of the checkpoint: files enter and leave it when one is written, so a file that
//! is synced in between names its neighbours of the last checkpoint, and those count after a crash.
//! Only a removed file leaves at once.
//!
//! **Restoring.** Pages whose deltas are in the main area are marked as changed, and written as
//! pages with the next checkpoint: all of a file that is now read much; else those whose compact
//! page has fewer than five valid deltas left, and those in the index if they are fewer than five
//! in all and the file is no longer written much.
//!
//! Out of scope: detecting idle time.

use std::collections::BTreeSet;

use crate::error::Result;
use crate::format::{Address, Nid};
use crate::state::State;

/// Pages restored at once.
const RESTORED_AT_ONCE_PAGES: usize = 64;

impl State {
    /// Before a checkpoint: adds files to the list that have deltas in the main area, and removes
    /// those that have none any more.
    pub(crate) fn link_delta_files(&mut self) -> Result<()> {
        for ino in std::mem::take(&mut self.small.main.to_link) {
            // The file may be gone.
            let Ok(inode) = self.inode(ino) else { continue };
            match (inode.delta_meta() != Address::NONE, inode.flags().has_main_deltas) {
                (true, false) => self.link_delta_file(ino)?,
                (false, true) => self.unlink_delta_file(ino)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Puts a file at the beginning of the list.
    pub(crate) fn link_delta_file(&mut self, ino: Nid) -> Result<()> {
        let next = self.small.delta_list;
        self.set_delta_links(ino, true, Nid::NONE, next)?;
        // An inode that cannot be read stays as it is: a check finds it.
        if self.inode(next).is_ok() {
            self.change_inode(next, |inode| inode.set_delta_previous(ino))?;
        }
        self.small.delta_list = ino;
        Ok(())
    }

    /// Takes a file out of the list.
    pub(crate) fn unlink_delta_file(&mut self, ino: Nid) -> Result<()> {
        let inode = self.inode(ino)?;
        let (previous, next) = (inode.delta_previous(), inode.delta_next());
        if self.small.delta_list == ino {
            self.small.delta_list = next;
        }
        if self.inode(previous).is_ok_and(|previous| previous.delta_next() == ino) {
            self.change_inode(previous, |inode| inode.set_delta_next(next))?;
        }
        if self.inode(next).is_ok_and(|next| next.delta_previous() == ino) {
            self.change_inode(next, |inode| inode.set_delta_previous(previous))?;
        }
        self.set_delta_links(ino, false, Nid::NONE, Nid::NONE)
    }

    /// Sets the list fields of an inode.
    pub(crate) fn set_delta_links(&mut self, ino: Nid, is_in_list: bool, previous: Nid, next: Nid) -> Result<()> {
        self.change_inode(ino, |inode| {
            let mut flags = inode.flags();
            flags.has_main_deltas = is_in_list;
            inode.set_flags(flags);
            inode.set_delta_previous(previous);
            inode.set_delta_next(next);
        })
    }

    /// Rebuilds the list from these files, as far as they can be read.
    pub(crate) fn make_delta_list(&mut self, files: &[Nid]) -> Result<()> {
        self.small.delta_list = Nid::NONE;
        for ino in files {
            let Ok(inode) = self.inode(*ino) else { continue };
            if inode.flags().has_main_deltas || inode.delta_meta() != Address::NONE {
                self.set_delta_links(*ino, false, Nid::NONE, Nid::NONE)?;
                self.small.main.to_link.insert(*ino);
            }
        }
        self.link_delta_files()
    }

    /// The files of the list.
    pub(crate) fn delta_files(&mut self) -> Vec<Nid> {
        let mut files = Vec::new();
        let mut seen = BTreeSet::new();
        let mut at = self.small.delta_list;
        // The list may be a cycle if the volume is damaged.
        while at != Nid::NONE && seen.insert(at) {
            let Ok(inode) = self.inode(at) else { break };
            files.push(at);
            at = inode.delta_next();
        }
        files
    }

    /// Number of valid deltas in the main area of the files in the list, and of the compact pages
    /// that hold them.
    pub(crate) fn count_main_deltas(&mut self) -> (u64, u64) {
        let (mut deltas, mut compact_pages) = (0, 0);
        for ino in self.delta_files() {
            let Ok(inode) = self.inode(ino) else { continue };
            if let Ok(Some(file)) = self.main_file(ino) {
                let living = file.living(&inode);
                deltas += file.living_own(&inode).len() + living.values().map(Vec::len).sum::<usize>();
                compact_pages += living.len();
            }
        }
        (deltas as u64, compact_pages as u64)
    }

    /// In idle time: restores some pages of one file that should not have deltas in the main area
    /// any more. False if there is no such file.
    pub(crate) fn restore_some(&mut self) -> Result<bool> {
        for ino in self.delta_files() {
            let (heat, packed_min) = (self.small.hotness.heat(ino), self.small.packed_min);
            let inode = self.inode(ino)?;
            // Files with a damaged index stay as they are.
            let Ok(Some(file)) = self.main_file(ino) else { continue };
            let is_to_restore = |count: usize| heat.is_read_hot || count < packed_min;
            let living = file.living(&inode);
            // Such a compact page is given up with the next index.
            let has_new_waste = !file.is_changed() && living.values().any(Vec::is_empty);
            let mut pages = file.living_own(&inode);
            let all = pages.len() + living.values().map(Vec::len).sum::<usize>();
            // These cost no block beyond the index, as long as more are to come.
            if !heat.is_read_hot && (all >= packed_min || heat.is_write_hot) {
                pages.clear();
            }
            let chosen = living.into_values().filter(|places| is_to_restore(places.len()));
            pages.extend(chosen.flatten().map(|place| place.page));
            let mut restored = 0;
            for page in pages.into_iter().map(u64::from) {
                let is_over = self.tree.pages.is_dirty((ino, page)) || self.small.is_waiting(ino, page);
                if restored == RESTORED_AT_ONCE_PAGES {
                    break;
                }
                // Damaged pages stay as they are.
                if !is_over && matches!(self.page(ino, page), Ok(Some(_))) {
                    self.tree.pages.mark_dirty((ino, page));
                    self.change_slots_of(ino, page, page + 1)?;
                    restored += 1;
                }
            }
            if restored > 0 || has_new_waste {
                self.small.delta_counts.restored += restored as u64;
                if let Ok(Some(file)) = self.main_file(ino) {
                    file.change();
                }
                // The inode is written with it.
                self.change_inode(ino, |_| ())?;
                return Ok(true);
            }
        }
        Ok(false)
    }
}
