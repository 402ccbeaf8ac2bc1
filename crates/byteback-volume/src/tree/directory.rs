//! Entries of a directory: found, added, removed, listed.
//!
//! While they fit, they lie in the inode. Then they move to pages: *levels*, each with twice the
//! *buckets* of the previous one, and two pages to a bucket (four from the sixteenth level on), as
//! in F2FS. A name belongs to one bucket of each level, by its hash, and is in one of them; a new
//! name goes to the first level that has room, and a level is added when none has. So a search
//! reads two pages of each level, and a directory with a million entries has about a dozen levels.
//!
//! A place in a listing is page and slot: an entry keeps it until it is removed. Only when entries
//! move out of the inode do they change places; a listing under way may then return an entry twice,
//! but misses none, as places in pages are greater.

use crate::error::{Result, VolumeError};
use crate::format::{Dentry, DirectoryBlock, INLINE_DENTRIES, Nid, Slots};
use crate::state::State;
use crate::tree::PAGE;
use crate::tree::Tree;

const INLINE: Slots = Slots(INLINE_DENTRIES);

/// Longest name, in bytes.
pub(crate) const NAME_LEN_BYTES_MAX: usize = 255;

/// From this level on, buckets have more pages, and the number of buckets does not grow further.
const WIDE_LEVEL: u32 = 16;

/// Most levels in a directory.
const LEVELS_MAX: u8 = 48;

/// Places of a page in a listing: the first ones are slots of the inode, then come pages.
const SLOTS_PER_PAGE: u64 = 256;

/// An entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The place at which the listing goes on behind it.
    pub next: u64,
    /// Its file.
    pub ino: u32,
    /// File type: the type bits of `st_mode`, shifted down by 12.
    pub kind: u8,
    /// Its name.
    pub name: Vec<u8>,
}

/// An entry that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) ino: Nid,
    pub(crate) kind: u8,
    /// The page; `None` if the entry is in the inode.
    page: Option<u64>,
    slot: usize,
}

fn buckets(level: u32) -> u64 {
    1 << level.min(WIDE_LEVEL)
}

fn bucket_pages(level: u32) -> u64 {
    if level < WIDE_LEVEL { 2 } else { 4 }
}

/// The pages of a level in which a name with this hash may be.
fn bucket(level: u32, hash: u32) -> std::ops::Range<u64> {
    let before: u64 = (0..level).map(|level| buckets(level) * bucket_pages(level)).sum();
    let first = before + u64::from(hash) % buckets(level) * bucket_pages(level);
    first..first + bucket_pages(level)
}

/// Number of pages of all levels together.
fn pages_of_levels(levels: u8) -> u64 {
    bucket(u32::from(levels), 0).start
}

pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    let is_name = (1..=NAME_LEN_BYTES_MAX).contains(&name.len()) && !name.iter().any(|byte| matches!(byte, b'/' | 0));
    match is_name && name != b"." && name != b".." {
        true => Ok(()),
        false => Err(VolumeError::BadName),
    }
}

impl Tree {
    /// Hash of a name.
    fn hash(&self, name: &[u8]) -> u32 {
        let hash = xxhash_rust::xxh3::xxh3_64_with_seed(name, self.hash_seed);
        // The lower half; dropping the upper one loses nothing.
        u32::try_from(hash & u64::from(u32::MAX)).unwrap_or(0)
    }
}

impl State {
    pub(crate) fn find_entry(&mut self, dir: Nid, name: &[u8]) -> Result<Option<Found>> {
        let hash = self.tree.hash(name);
        let inode = self.inode(dir)?;
        let found = |page, found: Option<(usize, Dentry<'_>)>| {
            found.map(|(slot, entry)| Found {
                ino: entry.ino,
                kind: entry.kind,
                page,
                slot,
            })
        };
        if inode.flags().has_inline_entries {
            return Ok(found(None, INLINE.area(inode.inline()).find(hash, name)));
        }
        for level in 0..u32::from(inode.levels().min(LEVELS_MAX)) {
            for page in bucket(level, hash) {
                let Some(block) = self.page(dir, page)? else { continue };
                if let Some(found) = found(Some(page), DirectoryBlock::area(block).find(hash, name)) {
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }

    /// Adds an entry with a name that does not exist yet.
    pub(crate) fn add_entry(&mut self, dir: Nid, name: &[u8], ino: Nid, kind: u8) -> Result<()> {
        // Also if there is no room for it: then the name is looked up in vain.
        self.durability.since.names.added(dir, name);
        let hash = self.tree.hash(name);
        let entry = Dentry { hash, ino, kind, name };
        let inode = self.inode(dir)?;
        if inode.flags().has_inline_entries {
            match INLINE.area(inode.inline()).room(Slots::of_name(name)) {
                Some(slot) => {
                    self.change_inode(dir, |inode| INLINE.put(inode.inline_mut(), slot, &entry))?;
                    return self.touch(dir);
                }
                None => self.move_entries_out(dir)?,
            }
        }
        self.put_entry(dir, &entry)?;
        self.touch(dir)
    }

    fn put_entry(&mut self, dir: Nid, entry: &Dentry<'_>) -> Result<()> {
        let count = Slots::of_name(entry.name);
        for level in 0..=LEVELS_MAX {
            let levels = self.inode(dir)?.levels();
            if level >= levels {
                self.change_inode(dir, |inode| {
                    inode.set_levels(level + 1);
                    inode.set_len_bytes(inode.len_bytes().max(pages_of_levels(level + 1) * PAGE));
                })?;
            }
            for page in bucket(u32::from(level), entry.hash) {
                let room = match self.page(dir, page)? {
                    Some(block) => DirectoryBlock::area(block).room(count),
                    None => Some(0),
                };
                if let Some(slot) = room {
                    let block = self.page_mut(dir, page, false)?;
                    DirectoryBlock::SLOTS.put(block, slot, entry);
                    return Ok(());
                }
            }
        }
        Err(VolumeError::Full)
    }

    /// Moves the entries of a directory out of its inode.
    fn move_entries_out(&mut self, dir: Nid) -> Result<()> {
        let inode = self.inode(dir)?;
        // Room for their pages and any nodes on the way there: without it everything stays as it
        // was.
        let entries: Vec<_> = INLINE.area(inode.inline()).entries().map(|(_, entry)| entry).collect();
        self.space.take_room(&self.media.areas, 4)?;
        self.space.give_room(4);
        self.change_inode(dir, |inode| {
            let mut flags = inode.flags();
            flags.has_inline_entries = false;
            inode.set_flags(flags);
            inode.inline_mut().fill(0);
            inode.set_len_bytes(0);
        })?;
        for entry in &entries {
            self.put_entry(dir, entry)?;
        }
        Ok(())
    }

    /// Removes an entry.
    pub(crate) fn remove_entry(&mut self, dir: Nid, name: &[u8], found: Found) -> Result<()> {
        self.durability.since.names.removed(dir, name);
        match found.page {
            None => self.change_inode(dir, |inode| INLINE.remove(inode.inline_mut(), found.slot, name))?,
            Some(page) => DirectoryBlock::SLOTS.remove(self.page_mut(dir, page, false)?, found.slot, name),
        }
        self.touch(dir)
    }

    /// Makes an entry stand for another file, when names move.
    pub(crate) fn replace_entry(&mut self, dir: Nid, found: Found, ino: Nid, kind: u8) -> Result<()> {
        match found.page {
            None => self.change_inode(dir, |inode| INLINE.replace(inode.inline_mut(), found.slot, ino, kind))?,
            Some(page) => DirectoryBlock::SLOTS.replace(self.page_mut(dir, page, false)?, found.slot, ino, kind),
        }
        self.touch(dir)
    }

    fn touch(&mut self, dir: Nid) -> Result<()> {
        let now = self.now();
        self.change_inode(dir, |inode| {
            inode.set_modified(now);
            inode.set_changed(now);
        })
    }

    /// Entries of a directory from a place on, at most `count`, without `.` and `..`; the first
    /// place is 0.
    pub(crate) fn list(&mut self, dir: Nid, from: u64, count: usize) -> Result<Vec<Listed>> {
        let inode = self.inode(dir)?;
        let listed = |page: u64, (slot, entry): (usize, Dentry<'_>)| Listed {
            next: page * SLOTS_PER_PAGE + slot as u64 + 1,
            ino: entry.ino.0,
            kind: entry.kind,
            name: entry.name.to_vec(),
        };
        let from_slot = |from: u64| usize::try_from(from % SLOTS_PER_PAGE).unwrap_or(0);
        if inode.flags().has_inline_entries {
            if from >= SLOTS_PER_PAGE {
                return Ok(Vec::new());
            }
            let entries = INLINE.area(inode.inline()).entries();
            let entries = entries.filter(|(slot, _)| *slot >= from_slot(from));
            return Ok(entries.map(|entry| listed(0, entry)).take(count).collect());
        }
        let mut all = Vec::new();
        // Pages are counted from 1, behind the slots of the inode.
        let mut page = (from / SLOTS_PER_PAGE).max(1);
        let mut slot = if from >= SLOTS_PER_PAGE { from_slot(from) } else { 0 };
        let end = pages_of_levels(inode.levels().min(LEVELS_MAX)) + 1;
        while all.len() < count {
            page = self.next_page(dir, page - 1, end - 1, |address| {
                address != crate::format::Address::NONE
            })? + 1;
            if page >= end {
                break;
            }
            if let Some(block) = self.page(dir, page - 1)? {
                // From the first entry on: a place may be in the middle of a name that was added
                // later.
                let entries = DirectoryBlock::area(block).entries();
                let entries = entries.filter(|(at, _)| *at >= slot);
                all.extend(entries.map(|entry| listed(page, entry)).take(count - all.len()));
            }
            page += 1;
            slot = 0;
        }
        Ok(all)
    }

    /// Whether a directory has no entries.
    pub(crate) fn is_empty(&mut self, dir: Nid) -> Result<bool> {
        Ok(self.list(dir, 0, 1)?.is_empty())
    }
}
