//! Remote changes as the tree's own operations: like a program's, but addressed by nodes of the
//! log, and each with the state that it expects.
//!
//! `renames` is held exclusively meanwhile: no name is in use, none is looked up, and none that a
//! program changes is half way, so the node of a name can be compared at leisure, and no unfinished
//! change is visible. The kernel's caches are wrong afterwards; [`Stale`] tells the caller which
//! parts to drop once it holds no lock any more.

use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::PoisonError;

use byteback_host::tree::{Creator, Inode, NewInode, SetTime, Stat, timestamps};
use byteback_model::{NodeId, NodeKind};
use byteback_oplog::Log;
use rustix::fs::{AtFlags, Dev, FileType, OFlags, RenameFlags};

use super::Tree;
use super::directories::HeldInode;
use crate::inodes::InodeNumber;
use crate::tracked::landing::Arbiter;
use crate::tracked::{NewAttributes, Place, TrackedError, TrackedResult, Victim};

/// Why something did not land.
#[derive(Debug, thiserror::Error)]
pub enum LandingError {
    /// The target is not as it was expected; nothing was done.
    #[error("not applied: {0}")]
    Overtaken(String),
    /// The file system takes the name for another one that is there, as it does not tell cases or
    /// spellings apart; nothing was done.
    #[error("the file system does not distinguish this name from one that already exists")]
    Collides,
    /// A system call failed.
    #[error("{0}")]
    Failed(#[from] io::Error),
}

impl From<TrackedError> for LandingError {
    fn from(error: TrackedError) -> Self {
        match error {
            TrackedError::Overtaken(why) => Self::Overtaken(why),
            TrackedError::Log(error) => Self::Failed(io::Error::other(error)),
            error @ TrackedError::Backing { .. } => {
                // With its number, for readers that want to know what kind of failure it is.
                let number = error.errno();
                Self::Failed(io::Error::new(io::Error::from_raw_os_error(number).kind(), error))
            }
        }
    }
}

/// A part of the kernel's cache that has become wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stale {
    /// The node of a name, and the content of its directory, which has this number in the log.
    Name(InodeNumber, NodeId, OsString),
    /// The attributes of a node, with its number in the log.
    Attributes(InodeNumber, NodeId),
}

/// The kind of node to make.
#[derive(Clone, Copy, Debug)]
pub enum NewKind<'a> {
    /// A regular file, empty.
    File,
    /// A directory.
    Directory,
    /// A symlink to this.
    Symlink(&'a OsStr),
    /// A pipe, a socket or a device.
    Special(FileType, Dev),
}

/// A name in a directory that was found by its node.
#[derive(Debug)]
pub(crate) struct NameAt<'a> {
    logged: NodeId,
    parent: InodeNumber,
    dir: HeldInode,
    name: &'a OsStr,
}

impl NameAt<'_> {
    fn place(&self) -> Place<'_> {
        self.dir.place(self.parent, self.name)
    }

    fn stale(&self) -> Stale {
        Stale::Name(self.parent, self.logged, self.name.to_owned())
    }
}

fn overtaken<T>(why: &str) -> Result<T, LandingError> {
    Err(LandingError::Overtaken(why.to_owned()))
}

/// The error for a node that is not as it was found: changed beside the mount.
fn passed_by<T>() -> Result<T, LandingError> {
    overtaken("something was changed there, bypassing the mount")
}

/// Turns the backing directory's refusals of a node that is not as it was found into "overtaken".
fn performed<T>(done: TrackedResult<T>) -> Result<T, LandingError> {
    done.map_err(|error| match error {
        TrackedError::Backing { ref source, .. } => match source.raw_os_error() {
            Some(libc::ENOTEMPTY | libc::EEXIST) => LandingError::Overtaken("something is already there".to_owned()),
            Some(libc::ENOENT | libc::ESTALE) => LandingError::Overtaken("it no longer exists".to_owned()),
            _ => LandingError::from(error),
        },
        error => LandingError::from(error),
    })
}

/// Whether a directory lists a name exactly as it is spelled here.
fn is_listed(dir: &Inode, name: &OsStr) -> io::Result<bool> {
    for entry in dir.read_dir(0)? {
        if entry?.name == name {
            return Ok(true);
        }
    }
    Ok(false)
}

fn make_at(dir: &Inode, name: &OsStr, kind: NewKind<'_>) -> io::Result<()> {
    // For nobody else, until it is finished.
    const MODE: u32 = 0o600;
    let creator = Creator::process();
    let new = match kind {
        NewKind::File => return dir.create_at(name, OFlags::WRONLY, MODE, creator).map(drop),
        NewKind::Directory => NewInode::Directory(MODE | 0o100),
        NewKind::Symlink(target) => NewInode::Symlink(target),
        NewKind::Special(kind, device) => NewInode::Special(kind, MODE, device),
    };
    dir.make_at(name, new, creator)
}

impl Tree {
    fn log(&self) -> Result<&Log, LandingError> {
        match self.tracked.account() {
            Some(account) => Ok(&account.log),
            None => overtaken("this folder is not tracked"),
        }
    }

    /// A name in the directory that `dir` names, with what that is. The caller looked for it by its
    /// node of the log.
    pub(crate) fn name_at<'a>(
        &self,
        logged: NodeId,
        (dir, stat): (Inode, Stat),
        name: &'a OsStr,
    ) -> Result<NameAt<'a>, LandingError> {
        if stat.kind != NodeKind::Directory {
            return overtaken("its parent is no longer a directory");
        }
        Ok(NameAt {
            logged,
            parent: self.number_of(&stat),
            dir: HeldInode {
                inode: dir,
                identity: stat.identity(),
            },
            name,
        })
    }

    /// The number by which the kernel speaks of an inode, if it does.
    pub(crate) fn number_of(&self, stat: &Stat) -> InodeNumber {
        self.inodes().node_of(stat.dev, stat.ino)
    }

    /// The node of a name, if it is the expected one. The caller holds `renames` exclusively.
    fn expect(&self, at: &NameAt<'_>, expected: Option<NodeId>) -> Result<Option<Victim>, LandingError> {
        let log = self.log()?;
        let there = match at.dir.stat_at(at.name) {
            Ok(stat) => Some(stat),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => None,
            Err(error) => return Err(error.into()),
        };
        let named = log.child(at.logged, at.name).map_err(TrackedError::from)?;
        match (there, named) {
            (None, None) if expected.is_none() => Ok(None),
            (None, None) => overtaken("the name no longer exists"),
            (Some(stat), Some(named)) if log.is_same(named, &stat.identity()).map_err(TrackedError::from)? => {
                match expected {
                    Some(expected) if expected == named => Ok(Some(self.victim(stat))),
                    Some(_) => overtaken("the name now belongs to something else"),
                    None => overtaken("the name is no longer free"),
                }
            }
            // Something answers to the name, which nobody gave: it may answer to other spellings of
            // its own.
            (Some(_), None) if expected.is_none() && !is_listed(&at.dir.inode, at.name)? => Err(LandingError::Collides),
            _ => passed_by(),
        }
    }

    /// See [`crate::landing::Landing::is_taken_by_another`].
    pub(crate) fn is_taken_by_another(&self, at: &NameAt<'_>) -> Result<bool, LandingError> {
        let _names = self.renames.read().unwrap_or_else(PoisonError::into_inner);
        if self
            .log()?
            .child(at.logged, at.name)
            .map_err(TrackedError::from)?
            .is_some()
        {
            return Ok(false);
        }
        match at.dir.stat_at(at.name) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            _ => Ok(true),
        }
    }

    /// Refuses to take the last name from a file that a program can write: what it writes
    /// afterwards would be nowhere. The caller holds `renames` exclusively, so that nobody opens it
    /// meanwhile.
    fn expect_no_writer(&self, victim: &Victim) -> Result<(), LandingError> {
        match victim.is_last_link() && self.handles.has_writer(victim.object.node) {
            true => overtaken("a program has it open for writing"),
            false => Ok(()),
        }
    }

    fn expect_node(&self, at: &NameAt<'_>, expected: NodeId) -> Result<Victim, LandingError> {
        match self.expect(at, Some(expected))? {
            Some(victim) => Ok(victim),
            None => overtaken("the name no longer exists"),
        }
    }

    /// Makes something new, to be finished by `finish` before anybody sees it.
    pub(crate) fn land_new(
        &self,
        at: &NameAt<'_>,
        kind: NewKind<'_>,
        finish: &mut dyn FnMut(&Inode),
        arbiter: &dyn Arbiter,
    ) -> Result<(NodeId, Vec<Stale>), LandingError> {
        let _names = self.renames.write().unwrap_or_else(PoisonError::into_inner);
        self.expect(at, None)?;
        let make = || {
            make_at(&at.dir, at.name, kind)?;
            let finished = at.dir.open_path_at(at.name).and_then(|fd| {
                finish(&fd);
                fd.stat()
            });
            if finished.is_err() {
                let flags = match kind {
                    NewKind::Directory => AtFlags::REMOVEDIR,
                    _ => AtFlags::empty(),
                };
                let _ = at.dir.unlink_at(at.name, flags);
            }
            finished
        };
        let (_, node) = performed(self.tracked.land_new(at.place(), arbiter, make))?;
        self.listings().changed(at.parent);
        Ok((node, vec![at.stale()]))
    }

    /// Gives what `fd` names one more name.
    pub(crate) fn land_link(
        &self,
        (fd, stat): (Inode, Stat),
        at: &NameAt<'_>,
        arbiter: &dyn Arbiter,
    ) -> Result<Vec<Stale>, LandingError> {
        let _names = self.renames.write().unwrap_or_else(PoisonError::into_inner);
        self.expect(at, None)?;
        let logged = self.log()?.node_of(&stat.identity()).map_err(TrackedError::from)?;
        let Some(logged) = logged else {
            return overtaken("it no longer has a name");
        };
        let object = self.object_of(&stat);
        performed(self.tracked.land_link(object, &fd, at.place(), arbiter))?;
        self.listings().changed(at.parent);
        self.inodes().add_link(object.node, at.parent, at.name);
        Ok(vec![at.stale(), Stale::Attributes(object.node, logged)])
    }

    /// Gives what stands under `from` the free name `to`, too, as a program would.
    pub(crate) fn land_second_name(
        &self,
        node: NodeId,
        (fd, stat): (Inode, Stat),
        from: &NameAt<'_>,
        to: &NameAt<'_>,
    ) -> Result<Vec<Stale>, LandingError> {
        let _names = self.renames.write().unwrap_or_else(PoisonError::into_inner);
        let found = self.expect_node(from, node)?;
        self.expect(to, None)?;
        if found.object.identity != stat.identity() {
            return passed_by();
        }
        performed(self.tracked.link(found.object, &fd, to.place()))?;
        self.listings().changed(to.parent);
        self.inodes().add_link(found.object.node, to.parent, to.name);
        Ok(vec![to.stale(), Stale::Attributes(found.object.node, node)])
    }

    /// Removes a name.
    pub(crate) fn land_removal(
        &self,
        at: &NameAt<'_>,
        node: NodeId,
        arbiter: &dyn Arbiter,
    ) -> Result<Vec<Stale>, LandingError> {
        let _names = self.renames.write().unwrap_or_else(PoisonError::into_inner);
        let victim = self.expect_node(at, node)?;
        self.expect_no_writer(&victim)?;
        let removed = self.remove_held((&at.dir, at.parent, at.name), victim, |place| {
            self.tracked.land_removal(place, victim, arbiter)
        });
        performed(removed)?;
        Ok(vec![at.stale(), Stale::Attributes(victim.object.node, node)])
    }

    /// Moves a name; with [`RenameFlags::EXCHANGE`] `replaced` gets the old one. Without an arbiter
    /// as a program would.
    pub(crate) fn land_rename(
        &self,
        (from, node): (&NameAt<'_>, NodeId),
        (to, replaced): (&NameAt<'_>, Option<NodeId>),
        flags: RenameFlags,
        arbiter: Option<&dyn Arbiter>,
    ) -> Result<Vec<Stale>, LandingError> {
        let _names = self.renames.write().unwrap_or_else(PoisonError::into_inner);
        let moved = self.expect_node(from, node)?;
        let over = self.expect(to, replaced)?;
        if over.is_some_and(|over| over.object.identity == moved.object.identity) {
            // The call would do nothing, by POSIX.
            return overtaken("both names belong to the same file");
        }
        if let Some(over) = over.filter(|_| !flags.contains(RenameFlags::EXCHANGE)) {
            self.expect_no_writer(&over)?;
        }
        let ends = ((&from.dir, from.parent, from.name), (&to.dir, to.parent, to.name));
        let rename = |flags| {
            let renamed = self.rename_held(ends, flags, moved, over, |from, to| match arbiter {
                Some(arbiter) => self.tracked.land_rename(from, to, flags, (moved, over), arbiter),
                None => self.tracked.rename(from, to, flags, moved, over),
            });
            performed(renamed)
        };
        // A name that is free must be so for the file system, too, whatever it takes for the same
        // name. Not all can be asked that.
        let is_unknown = |error: &LandingError| match error {
            LandingError::Failed(error) => error.kind() == io::ErrorKind::InvalidInput,
            _ => false,
        };
        match over.is_none() && flags.is_empty() {
            true => match rename(RenameFlags::NOREPLACE) {
                Err(error) if is_unknown(&error) => rename(flags)?,
                renamed => renamed?,
            },
            false => rename(flags)?,
        }
        let mut stale = vec![from.stale(), to.stale(), Stale::Attributes(moved.object.node, node)];
        let over = over.zip(replaced);
        stale.extend(over.map(|(over, replaced)| Stale::Attributes(over.object.node, replaced)));
        Ok(stale)
    }

    /// Changes attributes of what `fd` names.
    pub(crate) fn land_attributes(
        &self,
        node: NodeId,
        (fd, stat): (Inode, Stat),
        set: &mut dyn FnMut(&Inode),
        arbiter: &dyn Arbiter,
    ) -> Result<Vec<Stale>, LandingError> {
        let set = || set(&fd);
        performed(self.tracked.land_attributes(&stat.identity(), &fd, arbiter, set))?;
        Ok(vec![Stale::Attributes(self.number_of(&stat), node)])
    }

    /// Sets a time as a program does: the observer is told.
    pub(crate) fn set_modification_time(
        &self,
        node: NodeId,
        (fd, stat): (Inode, Stat),
        mtime_ns: i128,
    ) -> Result<Vec<Stale>, LandingError> {
        let new = NewAttributes {
            times: Some(timestamps(SetTime::Keep, SetTime::To(mtime_ns))),
            ..NewAttributes::default()
        };
        performed(self.tracked.set_attributes(self.object_of(&stat), &fd, &new))?;
        Ok(vec![Stale::Attributes(self.number_of(&stat), node)])
    }
}
