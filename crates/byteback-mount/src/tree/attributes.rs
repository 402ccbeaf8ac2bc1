//! Attributes of a node: reading and setting them; extended attributes, ACLs, inode flags.
//!
//! **Set-id bits.** With `HANDLE_KILLPRIV_V2` clearing them is our duty when a caller without
//! `CAP_FSETID` writes, truncates, allocates or copies. A root daemon has that capability, so the
//! backing file system would not do it for us. For writes the kernel says when; for the others it
//! says so in a field that the FUSE library does not pass on, so there every caller but root
//! counts. A change of owner clears them in the backing file system. The kernel remembers modes and
//! does not ask again after a write, so it is told to forget them whenever bits are cleared: it
//! would run the program with the owner's rights all the same.
//!
//! A POSIX ACL set by a caller outside the file's group clears set-group-id, which we do too, for
//! the same reason.

use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::PoisonError;

use byteback_host::tree::{Inode, SetXattr, Stat};
use byteback_model::NodeKind;
use rustix::fs::{OFlags, StatVfs, Timestamps};

use super::{NodeFd, Tree, stale};
use crate::credentials::Caller;
use crate::handles::OpenFile;
use crate::inodes::InodeNumber;
use crate::tracked::{NewAttributes, Object};

/// The attributes that one request may set at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct SetAttributes {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) len_bytes: Option<u64>,
    pub(crate) times: Option<Timestamps>,
}

/// The mode of `fd`, and the bits of it that a change of its data without `CAP_FSETID` clears.
pub(super) fn set_id_to_drop(fd: &Inode) -> io::Result<(u32, u32)> {
    let stat = fd.stat()?;
    let mut doomed = libc::S_ISUID;
    if stat.mode & libc::S_IXGRP != 0 {
        // Without group execution the bit once meant mandatory locking, and stays.
        doomed |= libc::S_ISGID;
    }
    if stat.kind != NodeKind::File {
        doomed = 0;
    }
    Ok((stat.mode, stat.mode & doomed))
}

impl Tree {
    pub(crate) fn stat(&self, node: InodeNumber, handle: Option<u64>) -> io::Result<Stat> {
        if let Some(file) = handle.and_then(|handle| self.handles.get(handle)) {
            return file.stat();
        }
        let _names = self.renames.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = self.handles.any_of(node) {
            return file.stat();
        }
        let known = self.inodes().known(node).ok_or_else(stale)?;
        if known.kind == NodeKind::Directory {
            return self.directory(node)?.stat();
        }
        if known.links.is_empty()
            && let Some(fd) = self.orphan(node)
        {
            return fd.stat();
        }
        for link in &known.links {
            let Ok(dir) = self.directory(link.parent) else {
                continue;
            };
            match dir.stat_at(&link.name) {
                Ok(stat) if stat.identity() == known.identity => return Ok(stat),
                Ok(_) => {}
                Err(error) => super::gone_or(error)?,
            }
        }
        Err(stale())
    }

    pub(crate) fn set_attributes(
        &self,
        node: InodeNumber,
        handle: Option<u64>,
        caller: Caller,
        new: &SetAttributes,
    ) -> io::Result<Stat> {
        let _names = self.renames.read().unwrap_or_else(PoisonError::into_inner);
        let file = handle.and_then(|handle| self.handles.get(handle));
        let object = self.object(node)?;
        let fd = match file {
            Some(file) => NodeFd::Open(file),
            None => self.node_fd(node)?,
        };
        let of_owner = NewAttributes {
            mode: new.mode,
            uid: new.uid,
            gid: new.gid,
            times: None,
        };
        if of_owner.mode.is_some() || of_owner.uid.is_some() || of_owner.gid.is_some() {
            self.tracked.set_attributes(object, &fd, &of_owner)?;
        }
        if let Some(len_bytes) = new.len_bytes {
            match &fd {
                NodeFd::Open(open) if open.for_writing() => self.tracked.truncate(object, open, len_bytes)?,
                other => {
                    let writable = other.reopen(OFlags::WRONLY | OFlags::NONBLOCK)?;
                    self.tracked.truncate(object, &writable, len_bytes)?;
                }
            }
            self.drop_set_id(object, &fd, caller)?;
        }
        if new.times.is_some() {
            let of_times = NewAttributes {
                times: new.times.clone(),
                ..NewAttributes::default()
            };
            self.tracked.set_attributes(object, &fd, &of_times)?;
        }
        fd.stat()
    }

    /// Clears set-id bits of `fd` after a change of its data by `caller`, unless that is root.
    pub(super) fn drop_set_id(&self, object: Object, fd: &Inode, caller: Caller) -> io::Result<()> {
        if caller.uid == 0 {
            return Ok(());
        }
        if !self.switch_user {
            // An ordinary user's daemon has no CAP_FSETID: the backing file system has done it.
            self.attributes_changed(object.node);
            return Ok(());
        }
        self.drop_set_id_always(object, fd)
    }

    /// Clears set-id bits of `fd`.
    pub(super) fn drop_set_id_always(&self, object: Object, fd: &Inode) -> io::Result<()> {
        let (mode, doomed) = set_id_to_drop(fd)?;
        if doomed == 0 {
            return Ok(());
        }
        let new = NewAttributes {
            mode: Some(mode & !doomed),
            ..NewAttributes::default()
        };
        self.tracked.set_attributes(object, fd, &new)?;
        // The kernel goes by the mode that it remembers when it runs a program.
        self.attributes_changed(object.node);
        Ok(())
    }

    /// The value of an extended attribute; `None` if there is none of that name.
    pub(crate) fn get_xattr(&self, node: InodeNumber, name: &OsStr) -> io::Result<Option<Vec<u8>>> {
        let _names = self.renames.read().unwrap_or_else(PoisonError::into_inner);
        self.node_fd(node)?.get_xattr(name)
    }

    pub(crate) fn list_xattrs(&self, node: InodeNumber) -> io::Result<Vec<OsString>> {
        let _names = self.renames.read().unwrap_or_else(PoisonError::into_inner);
        self.node_fd(node)?.list_xattrs()
    }

    pub(crate) fn set_xattr(
        &self,
        node: InodeNumber,
        caller: Caller,
        name: &OsStr,
        value: &[u8],
        how: SetXattr,
    ) -> io::Result<()> {
        let _names = self.renames.read().unwrap_or_else(PoisonError::into_inner);
        let fd = self.node_fd(node)?;
        let object = self.object(node)?;
        self.tracked.set_xattr(object, &fd, name, value, how)?;
        if name == "system.posix_acl_access" && caller.uid != 0 && self.switch_user {
            let stat = fd.stat()?;
            if stat.mode & libc::S_ISGID != 0 && !caller.is_in_group(stat.gid) {
                let new = NewAttributes {
                    mode: Some(stat.mode & !libc::S_ISGID),
                    ..NewAttributes::default()
                };
                self.tracked.set_attributes(object, &fd, &new)?;
                self.attributes_changed(node);
            }
        }
        Ok(())
    }

    pub(crate) fn remove_xattr(&self, node: InodeNumber, name: &OsStr) -> io::Result<()> {
        let _names = self.renames.read().unwrap_or_else(PoisonError::into_inner);
        let fd = self.node_fd(node)?;
        self.tracked.remove_xattr(self.object(node)?, &fd, name)?;
        Ok(())
    }

    /// The space of the file system that `node` lies on.
    pub(crate) fn statvfs(&self, node: InodeNumber) -> io::Result<StatVfs> {
        let _names = self.renames.read().unwrap_or_else(PoisonError::into_inner);
        let fd = self.node_fd(node).unwrap_or(NodeFd::Kept(self.root.clone()));
        fd.space()
    }

    /// The gate's description of an open file.
    pub(super) fn object_of_file(file: &OpenFile) -> Object {
        Object {
            node: file.node(),
            identity: file.identity(),
            kind: NodeKind::File,
        }
    }
}
