//! The two sides of a mount: the tree itself, and the folder `.byteback`.
//!
//! The adapter finds the target of each request in one place ([`super::Adapter::target`],
//! [`super::Adapter::target_at`]). A method that is written out here answers for a folder that
//! cannot be changed.

use std::ffi::{OsStr, OsString};

use byteback_host::tree::{FallocateFlags, SetXattr};
use fuser::{Errno, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyWrite};
use rustix::fs::{FileType, OFlags, RenameFlags};

use super::answer::{Answer, Attributes, Entry, Opened, Owed};
use crate::credentials::Caller;
use crate::inodes::InodeNumber;
use crate::stores::holes::Wanted;
use crate::tracked::Origin;
use crate::tree::attributes::SetAttributes;
use crate::tree::names::Creation;

/// A name in a directory.
pub(super) type At<'a> = (InodeNumber, &'a OsStr);

/// A write of the kernel's.
pub(super) struct Write<'a> {
    pub(super) node: InodeNumber,
    pub(super) handle: u64,
    pub(super) offset: u64,
    pub(super) data: &'a [u8],
    pub(super) origin: Origin,
    pub(super) is_direct: bool,
    pub(super) clear_set_id: bool,
}

/// An ioctl.
pub(super) struct Control<'a> {
    pub(super) node: InodeNumber,
    /// Of an open file, not of a directory.
    pub(super) handle: Option<u64>,
    pub(super) uid: u32,
    pub(super) number: u32,
    pub(super) bytes: &'a [u8],
    pub(super) answer_len_bytes: u32,
}

fn read_only<T>() -> Answer<T> {
    Err(Errno::EROFS.into())
}

/// See the module.
pub(super) trait Target {
    fn lookup(&self, at: At<'_>) -> Answer<Entry>;

    fn attributes(&self, node: InodeNumber, handle: Option<u64>) -> Answer<Attributes>;

    fn set_attributes(
        &self,
        _node: InodeNumber,
        _handle: Option<u64>,
        _caller: Caller,
        _new: &SetAttributes,
    ) -> Answer<Attributes> {
        read_only()
    }

    fn read_link(&self, node: InodeNumber) -> Answer<OsString>;

    fn make_node(&self, _at: At<'_>, _how: Creation, _kind: FileType, _device: u64) -> Answer<Entry> {
        read_only()
    }

    fn make_directory(&self, at: At<'_>, how: Creation, owed: Owed<'_, ReplyEntry>);

    fn unlink(&self, _at: At<'_>) -> Answer<()> {
        read_only()
    }

    fn remove_directory(&self, at: At<'_>) -> Answer<()>;

    fn symlink(&self, _at: At<'_>, _caller: Caller, _target: &OsStr) -> Answer<Entry> {
        read_only()
    }

    /// Both names are of this target.
    fn rename(&self, _from: At<'_>, _to: At<'_>, _flags: RenameFlags) -> Answer<()> {
        read_only()
    }

    /// The node and the name are of this target.
    fn link(&self, _node: InodeNumber, _to: At<'_>) -> Answer<Entry> {
        read_only()
    }

    fn open(&self, node: InodeNumber, caller: Caller, flags: OFlags) -> Answer<Opened>;

    fn create(&self, _at: At<'_>, _how: Creation, _flags: OFlags) -> Answer<(Entry, Opened)> {
        read_only()
    }

    /// `is_into_pages`: for the kernel's page cache.
    fn read(&self, handle: u64, range: (u64, usize), is_into_pages: bool, owed: Owed<'_, ReplyData>);

    fn write(&self, _write: &Write<'_>, owed: Owed<'_, ReplyWrite>) {
        owed.written(read_only());
    }

    fn release(&self, handle: u64);

    fn sync(&self, _handle: u64, _datasync: bool) -> Answer<()> {
        Ok(())
    }

    fn list(&self, node: InodeNumber, cookie: u64, owed: Owed<'_, ReplyDirectory>);

    /// With attributes.
    fn list_plus(&self, node: InodeNumber, cookie: u64, owed: Owed<'_, ReplyDirectoryPlus>);

    fn sync_directory(&self, _node: InodeNumber, _datasync: bool) -> Answer<()> {
        Ok(())
    }

    fn set_xattr(
        &self,
        _node: InodeNumber,
        _caller: Caller,
        _name: &OsStr,
        _value: &[u8],
        _how: SetXattr,
    ) -> Answer<()> {
        read_only()
    }

    fn get_xattr(&self, node: InodeNumber, name: &OsStr) -> Answer<Option<Vec<u8>>>;

    fn list_xattrs(&self, node: InodeNumber) -> Answer<Vec<OsString>>;

    fn remove_xattr(&self, _node: InodeNumber, _name: &OsStr) -> Answer<()> {
        read_only()
    }

    fn control(&self, _control: &Control<'_>, owed: Owed<'_, ReplyIoctl>) {
        owed.bytes(Err(Errno::ENOTTY.into()));
    }

    fn allocate(
        &self,
        _handle: u64,
        _caller: Caller,
        _mode: FallocateFlags,
        _offset: u64,
        _len_bytes: u64,
    ) -> Answer<()> {
        read_only()
    }

    fn seek(&self, node: InodeNumber, handle: u64, wanted: Wanted, from: u64, owed: Owed<'_, ReplyLseek>);

    /// Copies from one open file to another, each with its offset. From here the kernel copies
    /// through the page cache.
    fn copy_range(&self, _caller: Caller, _from: (u64, u64), _to: (u64, u64), _len_bytes: usize) -> Answer<usize> {
        Err(Errno::EXDEV.into())
    }
}
