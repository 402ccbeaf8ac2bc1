//! Entries of a directory: in its inode while they are few, then in its pages.
//!
//! ```text
//! area = one bit for each slot | slots (hash u32, ino u32, name_len u16, kind u8)
//!        | pieces of names (8 bytes for each slot)
//! ```
//! A name of more than eight bytes takes the pieces of the slots behind its own, too, whose bits
//! are set. An entry stays in its slot until it is removed, so its place can be handed to a reader
//! as the position to go on from.
//!
//! The pages of a directory are levels of buckets, see `crate::tree::directory`.

use super::{Block, Nid, put, put_u8, put_u16, put_u32, u8_at, u16_at, u32_at};

/// Bytes of a name in one slot.
pub const DENTRY_NAME_LEN_BYTES: usize = 8;

const DENTRY_LEN_BYTES: usize = 11;

/// Slots of a directory's page.
const BLOCK_DENTRIES: usize = 213;

/// Slots in an inode.
pub const INLINE_DENTRIES: usize = 181;

const fn area_len_bytes(slots: usize) -> usize {
    slots.div_ceil(8) + slots * (DENTRY_LEN_BYTES + DENTRY_NAME_LEN_BYTES)
}

const _: () = assert!(area_len_bytes(BLOCK_DENTRIES) <= super::SEALED_LEN_BYTES);
const _: () = assert!(area_len_bytes(INLINE_DENTRIES) <= super::INLINE_LEN_BYTES);
const _: () = assert!(area_len_bytes(INLINE_DENTRIES + 1) > super::INLINE_LEN_BYTES);

/// A number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots(pub usize);

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dentry<'a> {
    /// Hash of the name.
    pub hash: u32,
    /// The file.
    pub ino: Nid,
    /// File type: the type bits of `st_mode`, shifted down by 12.
    pub kind: u8,
    /// Its name.
    pub name: &'a [u8],
}

/// Bytes that hold entries.
#[derive(Clone, Copy, Debug)]
pub struct DentryArea<'a> {
    bytes: &'a [u8],
    slots: usize,
}

/// A page of a directory.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryBlock;

impl DirectoryBlock {
    /// The page's entries.
    #[must_use]
    pub fn area(block: &Block) -> DentryArea<'_> {
        Self::SLOTS.area(block)
    }

    /// Number of slots.
    pub const SLOTS: Slots = Slots(BLOCK_DENTRIES);
}

impl Slots {
    /// Number of slots that a name takes.
    #[must_use]
    pub fn of_name(name: &[u8]) -> usize {
        name.len().div_ceil(DENTRY_NAME_LEN_BYTES).max(1)
    }

    /// Entries in `bytes`.
    #[must_use]
    pub fn area(self, bytes: &[u8]) -> DentryArea<'_> {
        DentryArea { bytes, slots: self.0 }
    }

    fn at(self, slot: usize) -> usize {
        self.0.div_ceil(8) + slot * DENTRY_LEN_BYTES
    }

    fn at_name(self, slot: usize) -> usize {
        self.at(self.0) + slot * DENTRY_NAME_LEN_BYTES
    }

    fn mark(bytes: &mut [u8], slots: std::ops::Range<usize>, is_used: bool) {
        for slot in slots {
            if let Some(byte) = bytes.get_mut(slot / 8) {
                let bit = 1 << (slot % 8);
                *byte = if is_used { *byte | bit } else { *byte & !bit };
            }
        }
    }

    /// Writes an entry to a slot with enough free ones behind it.
    pub fn put(self, bytes: &mut [u8], slot: usize, entry: &Dentry<'_>) {
        let at = self.at(slot);
        put_u32(bytes, at, entry.hash);
        put_u32(bytes, at + 4, entry.ino.0);
        put_u16(bytes, at + 8, u16::try_from(entry.name.len()).unwrap_or(0));
        put_u8(bytes, at + 10, entry.kind);
        put(bytes, self.at_name(slot), entry.name);
        Self::mark(bytes, slot..slot + Self::of_name(entry.name), true);
    }

    /// Makes the entry in a slot stand for another file.
    pub fn replace(self, bytes: &mut [u8], slot: usize, ino: Nid, kind: u8) {
        let at = self.at(slot);
        put_u32(bytes, at + 4, ino.0);
        put_u8(bytes, at + 10, kind);
    }

    /// Removes the entry in a slot, which has this name.
    pub fn remove(self, bytes: &mut [u8], slot: usize, name: &[u8]) {
        Self::mark(bytes, slot..slot + Self::of_name(name), false);
    }
}

impl<'a> DentryArea<'a> {
    fn is_used(&self, slot: usize) -> bool {
        u8_at(self.bytes, slot / 8) >> (slot % 8) & 1 == 1
    }

    /// The entry that begins in a slot in use; `None` if the bytes there are no entry.
    fn entry(&self, slot: usize) -> Option<Dentry<'a>> {
        let slots = Slots(self.slots);
        let at = slots.at(slot);
        let name_len = usize::from(u16_at(self.bytes, at + 8));
        let end = slot + name_len.div_ceil(DENTRY_NAME_LEN_BYTES);
        let is_entry = (1..=255).contains(&name_len) && end <= self.slots;
        let name = self.bytes.get(slots.at_name(slot)..)?.get(..name_len)?;
        is_entry.then_some(Dentry {
            hash: u32_at(self.bytes, at),
            ino: Nid(u32_at(self.bytes, at + 4)),
            kind: u8_at(self.bytes, at + 10),
            name,
        })
    }

    /// All entries, each with its slot. Bytes that are no entry are skipped.
    pub fn entries(self) -> impl Iterator<Item = (usize, Dentry<'a>)> {
        let mut slot = 0;
        std::iter::from_fn(move || {
            while slot < self.slots {
                let at = slot;
                slot += 1;
                if !self.is_used(at) {
                    continue;
                }
                if let Some(entry) = self.entry(at) {
                    slot = at + Slots::of_name(entry.name);
                    return Some((at, entry));
                }
            }
            None
        })
    }

    /// The entry of a name, with its slot.
    #[must_use]
    pub fn find(self, hash: u32, name: &[u8]) -> Option<(usize, Dentry<'a>)> {
        let slots = Slots(self.slots);
        let mut slot = 0;
        while slot < self.slots {
            if !self.is_used(slot) {
                slot += 1;
                continue;
            }
            // Most entries have another hash: only the length of these is read.
            let at = slots.at(slot);
            if u32_at(self.bytes, at) == hash
                && let Some(entry) = self.entry(slot)
                && entry.name == name
            {
                return Some((slot, entry));
            }
            let name_len = usize::from(u16_at(self.bytes, at + 8));
            let taken = name_len.div_ceil(DENTRY_NAME_LEN_BYTES);
            let is_entry = (1..=255).contains(&name_len) && slot + taken <= self.slots;
            slot += if is_entry { taken } else { 1 };
        }
        None
    }

    /// The first of `count` free slots in a row.
    #[must_use]
    pub fn room(self, count: usize) -> Option<usize> {
        let mut free = 0;
        for slot in 0..self.slots {
            free = if self.is_used(slot) { 0 } else { free + 1 };
            if free == count {
                return Some(slot + 1 - count);
            }
        }
        None
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.entries().next().is_none()
    }
}
