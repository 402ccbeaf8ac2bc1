//! Names: looking them up, making, moving and removing them.
//!
//! The kernel serialises what changes one directory, so two requests never create or remove the
//! same name at once. A name that exists below us although the kernel believes that it does not is
//! answered with `ESTALE`, so that the kernel looks it up afresh and then checks permissions on
//! what is really there.

use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::{Arc, PoisonError};

use byteback_host::tree::{Creator, NewInode, Stat};
use byteback_model::NodeKind;
use byteback_oplog::Fence;
use rustix::fs::{Dev, FileType, OFlags, RenameFlags};

use super::directories::HeldInode;
use super::{Found, Tree, stale};
use crate::credentials::{Assumed, Caller, assume};
use crate::handles::{OpenFile, backing_flags};
use crate::inodes::InodeNumber;
use crate::tracked::{Object, Place, Victim};

/// Nameless FIFOs, directories and the like that are held at the same time. The kernel forgets most
/// of them at once; beyond this many, asking about one more answers `ESTALE`.
const ORPHAN_COUNT_MAX: usize = 512;

/// An end of a rename: a directory, its number, and a name in it.
type End<'a> = (&'a HeldInode, InodeNumber, &'a OsStr);

/// The caller's part of a creating request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Creation {
    pub(crate) caller: Caller,
    pub(crate) umask: u32,
    pub(crate) mode: u32,
}

impl Tree {
    /// Looks up `name` in `parent`; `None` if there is no such name.
    pub(crate) fn lookup(&self, parent: InodeNumber, name: &OsStr) -> io::Result<Option<Found>> {
        let _names = self.renames.read().unwrap_or_else(PoisonError::into_inner);
        let dir = self.directory(parent)?;
        match self.look_at(&dir, parent, name) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Where the symlink `node` points to.
    pub(crate) fn read_link(&self, node: InodeNumber) -> io::Result<OsString> {
        let _names = self.renames.read().unwrap_or_else(PoisonError::into_inner);
        self.node_fd(node)?.read_link()
    }

    /// Creates a regular file and opens it with `flags`. Returns the handle, and whether it can be
    /// read.
    pub(crate) fn create(
        &self,
        parent: InodeNumber,
        name: &OsStr,
        how: Creation,
        flags: OFlags,
    ) -> io::Result<(Found, u64, Arc<OpenFile>)> {
        let _names = self.renames.read().unwrap_or_else(PoisonError::into_inner);
        let dir = self.directory(parent)?;
        let place = dir.place(parent, name);
        // A descriptor that creates a file may use it whatever the mode, so the first choice is
        // always granted.
        let got = backing_flags(flags).first().copied().unwrap_or(OFlags::RDWR);
        let (creator, assumed) = self.become_caller(place, how)?;
        let created = self.tracked.create(place, how.mode & 0o7777, got, creator);
        drop(assumed);
        let (fd, stat) = match created {
            Err(error) if error.errno() == libc::EEXIST && !flags.contains(OFlags::EXCL) => return Err(stale()),
            created => created?,
        };
        self.listings().changed(parent);
        let found = self.found_new(parent, name, stat);
        let file = Arc::new(OpenFile::new(
            fd,
            found.interned.node,
            stat.identity(),
            flags,
            got,
            false,
        ));
        let handle = self.handles.insert(Arc::clone(&file));
        Ok((found, handle, file))
    }

    /// Creates a file that is no directory and no symlink.
    pub(crate) fn mknod(
        &self,
        parent: InodeNumber,
        name: &OsStr,
        how: Creation,
        kind: FileType,
        device: Dev,
    ) -> io::Result<Found> {
        self.make(parent, name, how, NewInode::Special(kind, how.mode & 0o7777, device))
    }

    pub(crate) fn mkdir(&self, parent: InodeNumber, name: &OsStr, how: Creation) -> io::Result<Found> {
        self.make(parent, name, how, NewInode::Directory(how.mode & 0o7777))
    }

    pub(crate) fn symlink(
        &self,
        parent: InodeNumber,
        name: &OsStr,
        caller: Caller,
        target: &OsStr,
    ) -> io::Result<Found> {
        let how = Creation {
            caller,
            umask: 0,
            mode: 0,
        };
        self.make(parent, name, how, NewInode::Symlink(target))
    }

    fn make(&self, parent: InodeNumber, name: &OsStr, how: Creation, new: NewInode<'_>) -> io::Result<Found> {
        let _names = self.renames.read().unwrap_or_else(PoisonError::into_inner);
        let dir = self.directory(parent)?;
        let place = dir.place(parent, name);
        let (creator, assumed) = self.become_caller(place, how)?;
        let made = self.tracked.make_at(place, new, creator);
        drop(assumed);
        let stat = made?;
        self.listings().changed(parent);
        Ok(self.found_new(parent, name, stat))
    }

    /// The creator of a new node; for the system's file systems the thread acts as the caller until
    /// the second part of the result is dropped.
    fn become_caller(&self, place: Place<'_>, how: Creation) -> io::Result<(Creator, Option<Assumed>)> {
        // Only a set-group-id bit that was asked for makes it matter who is in the directory's
        // group.
        let keep_set_group_id = how.mode & libc::S_ISGID == 0 || {
            let parent = place.dir.stat()?;
            how.caller.is_in_group(parent.gid)
        };
        let Caller { uid, gid, .. } = how.caller;
        let creator = Creator {
            uid,
            gid,
            umask: how.umask,
            keeps_set_group_id: uid == 0 || keep_set_group_id,
        };
        let assumed = match place.dir.is_of_system() {
            true => Some(assume(how.caller, how.umask, keep_set_group_id, self.switch_user)?),
            false => None,
        };
        Ok((creator, assumed))
    }

    /// Gives `node` one more name.
    pub(crate) fn link(&self, node: InodeNumber, parent: InodeNumber, name: &OsStr) -> io::Result<Found> {
        let _names = self.renames.read().unwrap_or_else(PoisonError::into_inner);
        let dir = self.directory(parent)?;
        let fd = self.node_fd(node)?;
        let place = dir.place(parent, name);
        let stat = self.tracked.link(self.object(node)?, &fd, place)?;
        self.listings().changed(parent);
        // The kernel holds the inode while it gives it a name, so its number is not another's.
        let interned = self.inodes().intern(parent, name, stat.identity(), stat.kind);
        Ok(Found { interned, stat })
    }

    pub(crate) fn unlink(&self, parent: InodeNumber, name: &OsStr) -> io::Result<()> {
        self.remove(parent, name, |tree, place, victim| {
            Ok(tree.tracked.unlink(place, victim)?)
        })
    }

    pub(crate) fn rmdir(&self, parent: InodeNumber, name: &OsStr) -> io::Result<()> {
        self.remove(parent, name, |tree, place, victim| {
            Ok(tree.tracked.rmdir(place, victim)?)
        })
    }

    fn remove(
        &self,
        parent: InodeNumber,
        name: &OsStr,
        remove: impl FnOnce(&Self, Place<'_>, Victim) -> io::Result<()>,
    ) -> io::Result<()> {
        let _names = self.renames.read().unwrap_or_else(PoisonError::into_inner);
        let dir = self.directory(parent)?;
        let victim = self.victim(dir.stat_at(name)?);
        self.remove_held((&dir, parent, name), victim, |place| remove(self, place, victim))
    }

    /// Removes a name by `remove`, and all that is remembered of it. The caller holds `renames`.
    pub(super) fn remove_held<E>(
        &self,
        (dir, parent, name): (&HeldInode, InodeNumber, &OsStr),
        victim: Victim,
        remove: impl FnOnce(Place<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let orphaned = self.keep_orphan(dir, name, victim);
        // Once the last name is gone from the disk, another program may create an inode that is
        // given the same number.
        let bearer = self.inodes().bearer(victim.object.node);
        if let Err(error) = remove(dir.place(parent, name)) {
            if orphaned {
                self.orphans().remove(&victim.object.node);
            }
            return Err(error);
        }
        self.listings().changed(parent);
        self.inodes().remove_link(bearer, parent, name, victim.is_last_link());
        Ok(())
    }

    /// Holds what is about to lose its last name, if the kernel may go on to refer to it and no
    /// handle of ours would hold it: without that its number could be given to another inode. A
    /// regular file is held by its handles; one that is not open must be gone, with its space, when
    /// `unlink` returns. Returns whether it is held now.
    fn keep_orphan(&self, dir: &HeldInode, name: &OsStr, victim: Victim) -> bool {
        let Object { node, identity, kind } = victim.object;
        if kind == NodeKind::File || !victim.is_last_link() || self.orphans().len() >= ORPHAN_COUNT_MAX {
            return false;
        }
        if self.inodes().identity(node) != Some((identity, kind)) {
            return false;
        }
        let Ok(fd) = dir.open_path_at(name) else {
            return false;
        };
        if !fd.stat().is_ok_and(|stat| stat.identity() == identity) {
            return false;
        }
        self.orphans().insert(node, Arc::new(HeldInode { inode: fd, identity }));
        true
    }

    pub(super) fn victim(&self, stat: Stat) -> Victim {
        Victim {
            object: self.object_of(&stat),
            nlink: stat.nlink,
            fence: Fence::of(&stat),
        }
    }

    pub(crate) fn rename(
        &self,
        parent: InodeNumber,
        name: &OsStr,
        new_parent: InodeNumber,
        new_name: &OsStr,
        flags: RenameFlags,
    ) -> io::Result<()> {
        let _names = self.renames.write().unwrap_or_else(PoisonError::into_inner);
        let (dir, new_dir) = (self.directory(parent)?, self.directory(new_parent)?);
        let moved = self.victim(dir.stat_at(name)?);
        let replaced = match new_dir.stat_at(new_name) {
            Ok(stat) => Some(self.victim(stat)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => None,
            Err(error) => return Err(error),
        };
        let ends = ((&*dir, parent, name), (&*new_dir, new_parent, new_name));
        self.rename_held(ends, flags, moved, replaced, |from, to| {
            Ok(self.tracked.rename(from, to, flags, moved, replaced)?)
        })
    }

    /// Moves a name by `rename`, and all that is remembered of it. The caller holds `renames`
    /// exclusively.
    pub(super) fn rename_held<E>(
        &self,
        ((dir, parent, name), (new_dir, new_parent, new_name)): (End<'_>, End<'_>),
        flags: RenameFlags,
        moved: Victim,
        replaced: Option<Victim>,
        rename: impl FnOnce(Place<'_>, Place<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let from = dir.place(parent, name);
        let to = new_dir.place(new_parent, new_name);
        let overwritten = replaced.filter(|_| !flags.contains(RenameFlags::EXCHANGE));
        let orphaned = overwritten.filter(|victim| self.keep_orphan(new_dir, new_name, *victim));
        if let Err(error) = rename(from, to) {
            if let Some(victim) = orphaned {
                self.orphans().remove(&victim.object.node);
            }
            return Err(error);
        }
        self.listings().changed(parent);
        self.listings().changed(new_parent);
        let same_inode = replaced.is_some_and(|replaced| replaced.object.identity == moved.object.identity);
        if same_inode {
            if let Some(victim) = orphaned {
                self.orphans().remove(&victim.object.node);
            }
            // Two names of one inode: the call does nothing, by POSIX.
            return Ok(());
        }
        let mut inodes = self.inodes();
        if let Some(replaced) = replaced {
            let exchanged = flags.contains(RenameFlags::EXCHANGE);
            let last = !exchanged && replaced.is_last_link();
            let bearer = inodes.bearer(replaced.object.node);
            inodes.remove_link(bearer, new_parent, new_name, last);
            if exchanged {
                inodes.add_link(replaced.object.node, parent, name);
            }
        }
        inodes.add_link(moved.object.node, new_parent, new_name);
        if moved.object.kind != NodeKind::Directory {
            let bearer = inodes.bearer(moved.object.node);
            inodes.remove_link(bearer, parent, name, false);
        }
        Ok(())
    }
}
