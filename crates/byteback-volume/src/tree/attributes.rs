//! Attributes of files: type, owner, permissions, times.

use crate::error::{Result, VolumeError};
use crate::format::{Inode, Nid, Time};
use crate::state::State;

/// The bits of a mode that hold the file type.
pub(crate) const TYPE: u32 = 0o170_000;
/// File type of a regular file.
pub(crate) const REGULAR: u32 = 0o100_000;
/// File type of a directory.
pub(crate) const DIRECTORY: u32 = 0o040_000;
/// File type of a symlink.
pub(crate) const SYMLINK: u32 = 0o120_000;

/// Attributes of a file, as `stat` reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number.
    pub ino: u32,
    /// Type and permissions, as in `st_mode`.
    pub mode: u32,
    /// Number of names; of a directory, 2 and one for each subdirectory.
    pub links: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Device number of a device file.
    pub device: u32,
    /// The length, in bytes.
    pub len_bytes: u64,
    /// Room on the volume, in blocks of 4 KiB.
    pub blocks: u64,
    /// Last access.
    pub accessed: Time,
    /// Last change of the content.
    pub modified: Time,
    /// Last change of content or attributes.
    pub changed: Time,
    /// Creation time.
    pub born: Time,
    /// Tells apart the files that had the same number one after the other.
    pub generation: u32,
    /// Flags as `chattr` sets them.
    pub flags: u32,
}

/// Attributes to change; those that are `None` stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permissions; the file type stays.
    pub mode: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The length, in bytes.
    pub len_bytes: Option<u64>,
    /// Last access.
    pub accessed: Option<Time>,
    /// Last change of the content.
    pub modified: Option<Time>,
    /// Flags as `chattr` sets them.
    pub flags: Option<u32>,
}

impl Attributes {
    pub(crate) fn of(ino: Nid, inode: &Inode) -> Self {
        Self {
            ino: ino.0,
            mode: inode.mode(),
            links: inode.links(),
            uid: inode.uid(),
            gid: inode.gid(),
            device: inode.device(),
            len_bytes: inode.len_bytes(),
            blocks: inode.blocks(),
            accessed: inode.accessed(),
            modified: inode.modified(),
            changed: inode.changed(),
            born: inode.born(),
            generation: inode.generation(),
            flags: inode.attributes(),
        }
    }

    /// File type in the form of directory entries.
    pub(crate) fn kind(mode: u32) -> u8 {
        u8::try_from((mode & TYPE) >> 12).unwrap_or(0)
    }
}

impl State {
    pub(crate) fn attributes(&mut self, ino: Nid) -> Result<Attributes> {
        Ok(Attributes::of(ino, &self.inode(ino)?))
    }

    pub(crate) fn set_attributes(&mut self, ino: Nid, set: &SetAttributes) -> Result<Attributes> {
        let now = self.now();
        let mode = self.inode(ino)?.mode();
        if let Some(len_bytes) = set.len_bytes {
            match mode & TYPE {
                REGULAR => self.set_len(ino, len_bytes)?,
                DIRECTORY => return Err(VolumeError::IsADirectory),
                _ => return Err(VolumeError::Invalid("only the length of a regular file can be set")),
            }
        }
        if mode & TYPE == DIRECTORY {
            self.durability.since.attributes_of.insert(ino);
        }
        self.change_inode(ino, |inode| {
            if let Some(mode) = set.mode {
                inode.set_mode(inode.mode() & TYPE | mode & !TYPE);
            }
            inode.set_uid(set.uid.unwrap_or_else(|| inode.uid()));
            inode.set_gid(set.gid.unwrap_or_else(|| inode.gid()));
            inode.set_accessed(set.accessed.unwrap_or_else(|| inode.accessed()));
            inode.set_modified(set.modified.unwrap_or_else(|| inode.modified()));
            inode.set_attributes(set.flags.unwrap_or_else(|| inode.attributes()));
            inode.set_changed(now);
        })?;
        self.attributes(ino)
    }
}
