//! Changes of names: files are created, linked, renamed and unlinked.
//!
//! Every change is made in memory, whole, and counts with the next checkpoint, whole. Steps that
//! may find the volume full come first, so that a refused change leaves everything as it was.

use crate::crash::checkpoint::ORPHANS_MAX;
use crate::error::{Result, VolumeError};
use crate::format::{Inode, MAX_FILE_BLOCKS, Nid};
use crate::state::State;
use crate::tree::Tree;
use crate::tree::attributes::{Attributes, DIRECTORY, REGULAR, SYMLINK, TYPE};
use crate::tree::directory::{Found, check_name};

/// Most names of a file.
pub(crate) const LINKS_MAX: u32 = 65_000;

/// Longest target of a symlink, in bytes.
const TARGET_LEN_BYTES_MAX: usize = 4095;

/// Attributes of a new file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewFile {
    /// Type and permissions, as in `st_mode`.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Device number of a device file.
    pub device: u32,
}

/// Effect of a rename on a name that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rename {
    /// The name then stands for the renamed file.
    Replace,
    /// The rename is refused.
    NoReplace,
    /// The two names are exchanged.
    Exchange,
}

impl Tree {
    /// Refuses a change that could leave more files without a name than can be recorded.
    fn check_orphans(&self) -> Result<()> {
        match self.orphans.len() < ORPHANS_MAX {
            true => Ok(()),
            false => Err(VolumeError::Full),
        }
    }

    /// Holds an open file.
    pub(crate) fn hold(&mut self, ino: Nid) {
        *self.held.entry(ino).or_default() += 1;
    }
}

impl State {
    /// A directory's inode.
    fn directory(&mut self, dir: Nid) -> Result<Inode> {
        let inode = self.inode(dir)?;
        match inode.mode() & TYPE == DIRECTORY {
            true if inode.links() > 0 => Ok(inode),
            true => Err(VolumeError::NotFound),
            false => Err(VolumeError::NotADirectory),
        }
    }

    pub(crate) fn look_up(&mut self, dir: Nid, name: &[u8]) -> Result<Attributes> {
        self.directory(dir)?;
        let found = self.find_entry(dir, name)?.ok_or(VolumeError::NotFound)?;
        self.attributes(found.ino)
    }

    fn found(&mut self, dir: Nid, name: &[u8]) -> Result<Found> {
        self.directory(dir)?;
        self.find_entry(dir, name)?.ok_or(VolumeError::NotFound)
    }

    /// Creates a file with a name.
    pub(crate) fn make(&mut self, dir: Nid, name: &[u8], new: &NewFile) -> Result<Nid> {
        check_name(name)?;
        let parent = self.directory(dir)?;
        if self.find_entry(dir, name)?.is_some() {
            return Err(VolumeError::Exists);
        }
        let is_directory = new.mode & TYPE == DIRECTORY;
        if is_directory && parent.links() >= LINKS_MAX {
            return Err(VolumeError::TooManyLinks(LINKS_MAX));
        }
        let ino = self.new_file(Some((dir, name)), new)?;
        if let Err(error) = self.add_entry(dir, name, ino, Attributes::kind(new.mode)) {
            self.free_file(ino)?;
            return Err(error);
        }
        if is_directory {
            self.change_links(dir, 1)?;
        }
        Ok(ino)
    }

    /// Makes a file: with a name to be added, or without.
    pub(crate) fn new_file(&mut self, named: Option<(Nid, &[u8])>, new: &NewFile) -> Result<Nid> {
        if named.is_none() {
            self.tree.check_orphans()?;
        }
        let ino = self.new_node(None, 0)?;
        self.space.counts.inodes += 1;
        self.durability.since.made.insert(ino);
        let now = self.now();
        let generation = u32::try_from(self.durability.version & u64::from(u32::MAX)).unwrap_or(0);
        let kind = new.mode & TYPE;
        let is_compressed = self.small.is_compressed;
        self.change_inode(ino, |inode| {
            inode.set_mode(new.mode);
            inode.set_uid(new.uid);
            inode.set_gid(new.gid);
            inode.set_device(new.device);
            inode.set_generation(generation);
            inode.set_links(match (named, kind) {
                (None, _) => 0,
                (Some(_), DIRECTORY) => 2,
                (Some(_), _) => 1,
            });
            inode.set_blocks(1);
            inode.set_born(now);
            inode.set_accessed(now);
            inode.set_modified(now);
            inode.set_changed(now);
            let mut flags = inode.flags();
            flags.has_inline_data = matches!(kind, REGULAR | SYMLINK);
            flags.has_inline_entries = kind == DIRECTORY;
            flags.is_compressed = is_compressed && kind == REGULAR;
            inode.set_flags(flags);
            if let Some((dir, name)) = named {
                inode.set_parent(dir);
                inode.set_name(name);
            }
        })?;
        if named.is_none() {
            self.tree.orphans.insert(ino);
        }
        Ok(ino)
    }

    pub(crate) fn make_symlink(&mut self, dir: Nid, name: &[u8], target: &[u8], new: &NewFile) -> Result<Nid> {
        if target.is_empty() || target.len() > TARGET_LEN_BYTES_MAX {
            return Err(VolumeError::Invalid(
                "the target of a symlink must have 1 to 4095 bytes",
            ));
        }
        if new.mode & TYPE != SYMLINK {
            return Err(VolumeError::Invalid("the mode is not that of a symlink"));
        }
        let ino = self.make(dir, name, new)?;
        match self.write(ino, 0, target, true) {
            Ok(_) => Ok(ino),
            Err(error) => {
                self.unlink(dir, name)?;
                Err(error)
            }
        }
    }

    pub(crate) fn read_symlink(&mut self, ino: Nid) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        if inode.mode() & TYPE != SYMLINK {
            return Err(VolumeError::Invalid("not a symlink"));
        }
        let len = usize::try_from(inode.len_bytes()).unwrap_or(usize::MAX);
        let mut target = vec![0; len.min(TARGET_LEN_BYTES_MAX)];
        self.read(ino, 0, &mut target)?;
        Ok(target)
    }

    /// Gives a file one more name.
    pub(crate) fn link(&mut self, ino: Nid, dir: Nid, name: &[u8]) -> Result<()> {
        check_name(name)?;
        self.directory(dir)?;
        let inode = self.inode(ino)?;
        if inode.mode() & TYPE == DIRECTORY {
            return Err(VolumeError::IsADirectory);
        }
        if inode.links() >= LINKS_MAX {
            return Err(VolumeError::TooManyLinks(LINKS_MAX));
        }
        if self.find_entry(dir, name)?.is_some() {
            return Err(VolumeError::Exists);
        }
        self.add_entry(dir, name, ino, Attributes::kind(inode.mode()))?;
        self.tree.orphans.remove(&ino);
        self.durability.since.names_moved = true;
        self.durability.since.renamed.insert(ino);
        self.change_links(ino, 1)
    }

    /// Removes a name of a file that is no directory.
    pub(crate) fn unlink(&mut self, dir: Nid, name: &[u8]) -> Result<()> {
        self.tree.check_orphans()?;
        let found = self.found(dir, name)?;
        if self.inode(found.ino)?.mode() & TYPE == DIRECTORY {
            return Err(VolumeError::IsADirectory);
        }
        self.remove_entry(dir, name, found)?;
        self.lose_name(found.ino)
    }

    /// Removes an empty directory.
    pub(crate) fn remove_directory(&mut self, dir: Nid, name: &[u8]) -> Result<()> {
        self.tree.check_orphans()?;
        let found = self.found(dir, name)?;
        self.directory(found.ino)?;
        if !self.is_empty(found.ino)? {
            return Err(VolumeError::NotEmpty);
        }
        // A file that is made under this name and synced would be found beside what was one
        // directory more.
        self.durability.since.names_moved = true;
        self.remove_entry(dir, name, found)?;
        self.change_links(dir, -1)?;
        self.lose_directory(found.ino)
    }

    /// Renames. A file that is replaced must have the same type, and be empty if it is a directory.
    pub(crate) fn rename(
        &mut self,
        (dir, name): (Nid, &[u8]),
        (new_dir, new_name): (Nid, &[u8]),
        how: Rename,
    ) -> Result<()> {
        check_name(new_name)?;
        self.tree.check_orphans()?;
        let from = self.found(dir, name)?;
        let to_inode = self.directory(new_dir)?;
        let to = self.find_entry(new_dir, new_name)?;
        let is_directory = self.inode(from.ino)?.mode() & TYPE == DIRECTORY;
        match (how, to) {
            (Rename::NoReplace, Some(_)) => return Err(VolumeError::Exists),
            (Rename::Exchange, None) => return Err(VolumeError::NotFound),
            (_, Some(to)) if to.ino == from.ino => return Ok(()),
            _ => {}
        }
        if is_directory && self.is_below(new_dir, from.ino)? {
            return Err(VolumeError::Invalid("a directory cannot be moved into itself"));
        }
        let is_replaced_directory = match to {
            Some(to) => self.inode(to.ino)?.mode() & TYPE == DIRECTORY,
            None => false,
        };
        if how == Rename::Exchange && is_replaced_directory && self.is_below(dir, to.map_or(Nid::NONE, |to| to.ino))? {
            return Err(VolumeError::Invalid("a directory cannot be moved into itself"));
        }
        if let (Rename::Replace, Some(to)) = (how, to) {
            match (is_directory, is_replaced_directory) {
                (true, false) => return Err(VolumeError::NotADirectory),
                (false, true) => return Err(VolumeError::IsADirectory),
                (true, true) if !self.is_empty(to.ino)? => return Err(VolumeError::NotEmpty),
                _ => {}
            }
        }
        let gains_directory = is_directory && !is_replaced_directory && dir != new_dir;
        if gains_directory && to_inode.links() >= LINKS_MAX {
            return Err(VolumeError::TooManyLinks(LINKS_MAX));
        }
        self.durability.since.names_moved = true;
        self.durability.since.renamed.insert(from.ino);
        match (how, to) {
            (Rename::Exchange, Some(to)) => self.exchange((dir, name, from), (new_dir, new_name, to)),
            (_, Some(to)) => {
                self.replace_entry(new_dir, to, from.ino, from.kind)?;
                self.remove_entry(dir, name, from)?;
                self.moved(from.ino, new_dir, new_name)?;
                if is_directory {
                    self.change_links(dir, -1)?;
                    self.lose_directory(to.ino)
                } else {
                    self.lose_name(to.ino)
                }
            }
            (_, None) => {
                self.add_entry(new_dir, new_name, from.ino, from.kind)?;
                // The new entry may have moved those of the same directory out of its inode.
                let from = self.found(dir, name)?;
                self.remove_entry(dir, name, from)?;
                self.moved(from.ino, new_dir, new_name)?;
                if is_directory && dir != new_dir {
                    self.change_links(dir, -1)?;
                    self.change_links(new_dir, 1)?;
                }
                Ok(())
            }
        }
    }

    fn exchange(&mut self, one: (Nid, &[u8], Found), other: (Nid, &[u8], Found)) -> Result<()> {
        let is_directory = |found: Found| found.kind == Attributes::kind(DIRECTORY);
        self.durability.since.renamed.insert(other.2.ino);
        self.replace_entry(one.0, one.2, other.2.ino, other.2.kind)?;
        self.replace_entry(other.0, other.2, one.2.ino, one.2.kind)?;
        self.moved(one.2.ino, other.0, other.1)?;
        self.moved(other.2.ino, one.0, one.1)?;
        if one.0 != other.0 && is_directory(one.2) != is_directory(other.2) {
            let (loses, gains) = if is_directory(one.2) {
                (one.0, other.0)
            } else {
                (other.0, one.0)
            };
            self.change_links(loses, -1)?;
            self.change_links(gains, 1)?;
        }
        Ok(())
    }

    /// A file has another name and perhaps another directory.
    fn moved(&mut self, ino: Nid, dir: Nid, name: &[u8]) -> Result<()> {
        let now = self.now();
        self.change_inode(ino, |inode| {
            inode.set_parent(dir);
            inode.set_name(name);
            inode.set_changed(now);
        })
    }

    /// Whether a directory is another one, or below it.
    fn is_below(&mut self, dir: Nid, above: Nid) -> Result<bool> {
        let mut at = dir;
        let mut seen = std::collections::BTreeSet::new();
        // In a circle, if the volume is damaged.
        while seen.insert(at) {
            if at == above {
                return Ok(true);
            }
            if at == Nid::ROOT || at == Nid::NONE {
                return Ok(false);
            }
            at = self.inode(at)?.parent();
        }
        Ok(true)
    }

    fn change_links(&mut self, ino: Nid, by: i32) -> Result<()> {
        let now = self.now();
        self.change_inode(ino, |inode| {
            inode.set_links(inode.links().saturating_add_signed(by));
            inode.set_changed(now);
        })
    }

    fn lose_name(&mut self, ino: Nid) -> Result<()> {
        self.change_links(ino, -1)?;
        self.durability.since.renamed.insert(ino);
        self.forget_if_unused(ino)
    }

    fn lose_directory(&mut self, ino: Nid) -> Result<()> {
        self.change_inode(ino, |inode| inode.set_links(0))?;
        self.forget_if_unused(ino)
    }

    /// A file without a name is kept as long as it is open.
    fn forget_if_unused(&mut self, ino: Nid) -> Result<()> {
        if self.inode(ino)?.links() > 0 {
            return Ok(());
        }
        if self.tree.held.contains_key(&ino) {
            self.tree.orphans.insert(ino);
            return Ok(());
        }
        self.free_file(ino)
    }

    /// Ends `times` holds of a file.
    pub(crate) fn release_hold(&mut self, ino: Nid, times: u64) -> Result<()> {
        let left = match self.tree.held.get_mut(&ino) {
            Some(count) => {
                *count = count.saturating_sub(times);
                *count
            }
            None => 0,
        };
        if left > 0 {
            return Ok(());
        }
        self.tree.held.remove(&ino);
        if self.tree.orphans.contains(&ino) && self.durability.check_writable().is_ok() {
            self.free_file(ino)?;
        }
        Ok(())
    }

    /// Removes files without a name that are not open. A file whose inode is lost stays for a
    /// repair.
    pub(crate) fn free_orphans(&mut self) -> Result<()> {
        for ino in self.tree.orphans.clone() {
            if self.tree.held.contains_key(&ino) {
                continue;
            }
            match self.free_file(ino) {
                Err(error) if error.is_loss() => {}
                freed => freed?,
            }
        }
        Ok(())
    }

    /// Removes a file, with everything that it has.
    pub(crate) fn free_file(&mut self, ino: Nid) -> Result<()> {
        let inode = self.inode(ino)?;
        let flags = inode.flags();
        if !flags.has_inline_data && !flags.has_inline_entries {
            self.free_pages(ino, 0, MAX_FILE_BLOCKS)?;
        }
        if inode.xattr_node() != Nid::NONE {
            self.free_node_of(ino, inode.xattr_node())?;
        }
        if flags.has_main_deltas {
            self.unlink_delta_file(ino)?;
        }
        self.free_node(ino)?;
        self.space.counts.inodes = self.space.counts.inodes.saturating_sub(1);
        self.tree.orphans.remove(&ino);
        self.durability.forget_file(ino);
        self.small.hotness.forget(ino);
        self.small.attempts.forget(ino);
        Ok(())
    }
}
