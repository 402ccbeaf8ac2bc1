//! Names that changed since the last checkpoint, and whether a crash would leave them as they are:
//! then a directory is synced by doing nothing.
//!
//! A file that was made and synced gets its name again after a crash (`recovery`). So a directory
//! in which nothing happened but that such files were made is as durable as a checkpoint would make
//! it; that is what a database does which makes its journal anew for each transaction. A name that
//! nothing has any more must be one that a crash does not bring back: the checkpoint does not know
//! it, and no file was synced under it.
//!
//! **Invariant.** Each name of a directory that differs from what the checkpoint has is here, or
//! [`NameChanges::of`] answers nothing.
//!
//! Out of scope: names that move from one file to another, which is noted elsewhere
//! ([`super::SinceCheckpoint`]).

use std::collections::BTreeMap;

use crate::error::Result;
use crate::format::Nid;
use crate::state::State;
use crate::tree::attributes::{DIRECTORY, TYPE};

/// Most names remembered; beyond that, none are known.
const NAMES_MAX: usize = 4096;

/// The names of a directory that changed, and of each whether a crash may bring it back though
/// nothing has it.
type OfDirectory = BTreeMap<Vec<u8>, bool>;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct NameChanges {
    of: BTreeMap<Nid, OfDirectory>,
    count: usize,
}

impl NameChanges {
    /// A file got a name that nothing had.
    pub(crate) fn added(&mut self, dir: Nid, name: &[u8]) {
        self.note(dir, name, false);
    }

    /// A file lost its name.
    pub(crate) fn removed(&mut self, dir: Nid, name: &[u8]) {
        // One that is not noted yet is the checkpoint's.
        self.note(dir, name, true);
    }

    /// A file that was made since was synced under its name.
    pub(crate) fn synced(&mut self, dir: Nid, name: &[u8]) {
        self.note(dir, name, true);
        if let Some(may_come_back) = self.of.get_mut(&dir).and_then(|names| names.get_mut(name)) {
            *may_come_back = true;
        }
    }

    fn note(&mut self, dir: Nid, name: &[u8], may_come_back: bool) {
        if self.count > NAMES_MAX {
            return;
        }
        let names = self.of.entry(dir).or_default();
        if !names.contains_key(name) {
            names.insert(name.to_vec(), may_come_back);
            self.count += 1;
        }
        if self.count > NAMES_MAX {
            self.of.clear();
        }
    }

    /// The names of a directory that changed; `None` if that is not known any more.
    fn of(&self, dir: Nid) -> Option<OfDirectory> {
        match self.count > NAMES_MAX {
            true => None,
            false => Some(self.of.get(&dir).cloned().unwrap_or_default()),
        }
    }
}

impl State {
    /// Whether a crash would leave a directory as it is now.
    pub(crate) fn is_directory_durable(&mut self, dir: Nid) -> Result<bool> {
        let is_directory = self.inode(dir)?.mode() & TYPE == DIRECTORY;
        let since = &self.durability.since;
        let is_changed_otherwise =
            since.made.contains(&dir) || since.renamed.contains(&dir) || since.attributes_of.contains(&dir);
        if !is_directory || is_changed_otherwise || since.names_moved {
            return Ok(false);
        }
        let Some(names) = self.durability.since.names.of(dir) else {
            return Ok(false);
        };
        for (name, may_come_back) in names {
            let is_durable = match self.find_entry(dir, &name)? {
                Some(found) => {
                    self.durability.since.synced.contains(&found.ino)
                        && self.can_be_synced_alone(found.ino)?
                        && self.inode(found.ino)?.parent() == dir
                }
                None => !may_come_back,
            };
            if !is_durable {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
