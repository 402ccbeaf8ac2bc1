//! Internal files that a companion keeps in step with those of programs: it is called before
//! anything becomes durable, and adds what belongs to it.
//!
//! The operation log lies in a volume in this way (SolFS, section 4.2): the log's records of a file
//! are in the checkpoint that holds its data, or in none. When a file is synced by itself, the
//! files that the companion names go first, to the same log of nodes: a recovery that finds the
//! file's nodes after a crash has found those before.
//!
//! The companion is called with the volume's lock held, and changes files through [`Inside`] only.
//! Its writes are not accounted to the last call, so it reports beforehand how many blocks they may
//! take ([`Companion::waiting_blocks`]): room in the logs is kept for them.

use std::sync::Arc;

use crate::error::{Result, VolumeError};
use crate::format::Nid;
use crate::state::State;
use crate::tree::attributes::Attributes;
use crate::tree::names::NewFile;
use crate::tree::xattr::SetAttribute;

/// See the module.
pub trait Companion: Send + Sync {
    /// Called before a checkpoint. The companion must cope with failures to add its data.
    fn before_checkpoint(&self, inside: &mut Inside<'_>);

    /// Called before this file is synced by itself. Returns the files to sync with it.
    fn before_sync(&self, inside: &mut Inside<'_>, ino: u32) -> Vec<u32>;

    /// Most blocks that the companion may write with the next checkpoint.
    fn waiting_blocks(&self) -> u32;
}

/// A volume while its lock is held.
pub struct Inside<'a> {
    state: &'a mut State,
}

impl std::fmt::Debug for Inside<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inside").finish_non_exhaustive()
    }
}

impl<'a> Inside<'a> {
    pub(crate) fn new(state: &'a mut State) -> Self {
        Self { state }
    }

    /// As [`crate::Volume::attributes`].
    ///
    /// # Errors
    /// As there.
    pub fn attributes(&mut self, ino: u32) -> Result<Attributes> {
        self.state.attributes(Nid(ino))
    }

    /// As [`crate::Volume::make`]; returns the number.
    ///
    /// # Errors
    /// As there.
    pub fn make(&mut self, dir: u32, name: &[u8], new: &NewFile) -> Result<u32> {
        self.state.make(Nid(dir), name, new).map(|ino| ino.0)
    }

    /// As [`crate::Volume::unlink`].
    ///
    /// # Errors
    /// As there.
    pub fn unlink(&mut self, dir: u32, name: &[u8]) -> Result<()> {
        self.state.unlink(Nid(dir), name)
    }

    /// The whole content of a file.
    ///
    /// # Errors
    /// The file is damaged, or longer than `len_bytes_max`.
    pub fn content(&mut self, ino: u32, len_bytes_max: u64) -> Result<Vec<u8>> {
        let len_bytes = self.state.attributes(Nid(ino))?.len_bytes;
        if len_bytes > len_bytes_max {
            return Err(VolumeError::FileTooLarge(len_bytes_max));
        }
        let mut bytes = vec![0; usize::try_from(len_bytes).unwrap_or(0)];
        self.state.read(Nid(ino), 0, &mut bytes)?;
        Ok(bytes)
    }

    /// Replaces the content of a file. If there is too little room, only a part may be written.
    ///
    /// # Errors
    /// No room.
    pub fn set_content(&mut self, ino: u32, bytes: &[u8]) -> Result<()> {
        if self.state.write(Nid(ino), 0, bytes, true)? < bytes.len() {
            return Err(VolumeError::Full);
        }
        self.state.set_len(Nid(ino), bytes.len() as u64)
    }

    /// As [`crate::Volume::xattr`]; `None` if there is none.
    ///
    /// # Errors
    /// They are damaged.
    pub fn attribute(&mut self, ino: u32, name: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.state.xattr(Nid(ino), name) {
            Ok(value) => Ok(Some(value)),
            Err(VolumeError::NoAttribute) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets an extended attribute, if its value differs.
    ///
    /// # Errors
    /// No room.
    pub fn set_attribute(&mut self, ino: u32, name: &[u8], value: &[u8]) -> Result<()> {
        match self.attribute(ino, name)? {
            Some(there) if there == value => Ok(()),
            _ => self.state.set_xattr(Nid(ino), name, value, SetAttribute::Any),
        }
    }
}

impl State {
    /// Lets the companion add what belongs to everything.
    pub(crate) fn complete_all(&mut self) {
        if let Some(companion) = self.durability.companion.clone() {
            companion.before_checkpoint(&mut Inside::new(self));
        }
    }

    /// Lets the companion add what belongs to a file; answers what is to be synced with it.
    pub(crate) fn complete_file(&mut self, ino: Nid) -> Vec<Nid> {
        let companion: Option<Arc<dyn Companion>> = self.durability.companion.clone();
        let beside = companion.map(|companion| companion.before_sync(&mut Inside::new(self), ino.0));
        beside.unwrap_or_default().into_iter().map(Nid).collect()
    }
}
