//! Remote changes are made in a mounted tree, while programs use it: the entrance beside the file
//! system protocol.
//!
//! Nodes are those of the log. Each step passes the same tree and the same gate as a program's
//! ([`crate::tracked::landing`]), then the kernel invalidates what has become stale: names,
//! attributes, pages. That waits for the programs that use them, which may in turn wait for this
//! process: so it is done when no lock is held any more, and **nothing here may be called from a
//! thread that serves requests, or while holding a lock** that such a thread may want.
//!
//! **Directory contents in the kernel.** Dropping a name waits for the lookups and listings in its
//! directory, so that their answers have reached the kernel by then and are dropped, too. The pages
//! of a listing are dropped after that.
//!
//! **Replies in flight.** A lookup reply that was right when it was given may still be on its way
//! when the kernel is told to forget a node, which it does not know then; it would believe that
//! stale reply for a day. So before a node is forgotten, we wait for the lookups and listings in
//! the directories of its names. For a node that it knows the kernel does not accept such a late
//! reply.
//!
//! **Mounts in the tree.** The kernel unmounts a file system in the tree when it is told to forget
//! a name above it. So no such name is taken away (`mounted_within`).
//!
//! **File contents in the kernel.** Pages that were read before are dropped after the bytes below
//! them changed. A page that a program stored to through a mapping is written back then, and may
//! hold old bytes: [`crate::tracked::observer::Observer::merge_page`] says how it is decided which
//! of them count.

use std::ffi::OsStr;
use std::io;
use std::ops::Deref;
use std::sync::Arc;

use byteback_extents::ByteRange;
use byteback_host::tree::{self as host, Identity, Inode, Stat};
use byteback_model::{NodeId, NodeKind};
pub use byteback_undo::ContentHow;
use rustix::fs::{Access, AtFlags, OFlags, RenameFlags, accessat};
use rustix::io::Errno;

use crate::hidden::Hidden;
use crate::inodes::InodeNumber;
use crate::live::LiveTree;
use crate::mounted_within::MountedWithin;
use crate::stores::Stores;
use crate::tracked::TrackedResult;
pub use crate::tracked::landing::{Arbiter, LandingContent};
use crate::tree::Tree;
pub use crate::tree::landing::{LandingError, NewKind};
use crate::tree::landing::{NameAt, Stale};

/// Whether a name in the root of a mount is one of what is on its way from elsewhere, which no
/// listing shows.
#[must_use]
pub fn is_name_on_its_way(name: &OsStr) -> bool {
    Hidden::is_on_its_way(name)
}

/// A name, as the log knows its directory.
pub type LoggedName<'a> = (NodeId, &'a OsStr);

/// A file that is open to be landed in.
#[derive(Debug)]
pub struct LandingFile {
    inode: Inode,
    identity: Identity,
    number: InodeNumber,
    logged: NodeId,
}

impl Deref for LandingFile {
    type Target = Inode;

    fn deref(&self) -> &Inode {
        &self.inode
    }
}

/// See the module.
#[derive(Clone)]
pub struct Landing {
    tree: Arc<Tree>,
    stores: Arc<Stores>,
    live: LiveTree,
    mounted: Arc<MountedWithin>,
}

/// Whether a node cannot have one more name, here or at all.
fn has_no_links(error: &io::Error) -> bool {
    let number = byteback_host::errno_of(error);
    let refused = [
        libc::EPERM,
        libc::EMLINK,
        libc::EOPNOTSUPP,
        libc::ENOSYS,
        libc::EINVAL,
        libc::EXDEV,
    ];
    number.is_some_and(|number| refused.contains(&number)) || error.kind() == io::ErrorKind::Unsupported
}

fn gone<T>() -> Result<T, LandingError> {
    Err(LandingError::Overtaken("it no longer has a name".to_owned()))
}

impl Landing {
    pub(crate) fn new(tree: Arc<Tree>, stores: Arc<Stores>, live: LiveTree, mounted: MountedWithin) -> Self {
        Self {
            tree,
            stores,
            live,
            mounted: Arc::new(mounted),
        }
    }

    /// A name is not taken away from what another file system is mounted on, or below: that would
    /// be unmounted.
    fn refuse_mounted(&self, (parent, name): LoggedName<'_>) -> Result<(), LandingError> {
        let Some(above) = self.live.log().locate(parent).map_err(io::Error::other)? else {
            return gone();
        };
        match self.mounted.find(&above, name) {
            None => Ok(()),
            Some(point) => {
                let text = format!(
                    "a file system is mounted at {}, which this would unmount; it is done once that is unmounted",
                    point.display()
                );
                Err(io::Error::new(io::ErrorKind::ResourceBusy, text).into())
            }
        }
    }

    fn find(&self, node: NodeId) -> Result<(Inode, Stat), LandingError> {
        match self.live.find(node)? {
            Some(found) => Ok(found),
            None => gone(),
        }
    }

    fn name<'a>(&self, (parent, name): LoggedName<'a>) -> Result<NameAt<'a>, LandingError> {
        host::check_component(name)?;
        if parent == NodeId::ROOT && Hidden::is_hidden_name(name) {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "this name is reserved for the mount");
            return Err(error.into());
        }
        self.tree.name_at(parent, self.find(parent)?, name)
    }

    /// Whether the file system has something under another name that it does not tell from this
    /// one, or will never have such a name.
    ///
    /// # Errors
    /// [`LandingError::Overtaken`] if the directory is not there any more.
    pub fn is_taken_by_another(&self, at: LoggedName<'_>) -> Result<bool, LandingError> {
        let at = self.name(at)?;
        self.tree.is_taken_by_another(&at)
    }

    /// Makes the kernel forget. Errors are ignored: the kernel knows none of it, or the mount is
    /// gone.
    fn forget(&self, stale: &[Stale]) {
        let mut directories = Vec::new();
        for stale in stale {
            match stale {
                Stale::Name(parent, logged, name) => {
                    self.stores.forget_name(*parent, name);
                    if !directories.contains(&(*parent, *logged)) {
                        directories.push((*parent, *logged));
                    }
                }
                Stale::Attributes(node, logged) => {
                    self.wait_for_lookups(*logged);
                    self.stores.forget_attributes(*node);
                }
            }
        }
        for (directory, logged) in directories {
            self.wait_for_lookups(logged);
            self.stores.forget_pages(directory, None);
        }
    }

    /// Waits for replies about a node that are not true any more, until the kernel knows of the
    /// node and can be made to forget it.
    fn wait_for_lookups(&self, node: NodeId) {
        if !self.stores.has_kernel() {
            return;
        }
        // A node becomes known only by a name in a directory that is known.
        for (parent, _) in self.live.log().places_of(node).unwrap_or_default() {
            if let Ok(Some((_, stat))) = self.live.find(parent) {
                self.stores.wait_for_lookups(self.tree.number_of(&stat));
            }
        }
    }

    /// Passes through the gate the data that programs stored through mappings of a file, and all
    /// else that waits in the kernel for it, before this returns.
    ///
    /// # Errors
    /// If the kernel could not write back everything.
    pub fn flush(&self, node: NodeId) -> Result<(), LandingError> {
        let (_, stat) = self.find(node)?;
        self.flush_number(self.tree.number_of(&stat))
    }

    /// Whether a program has a node open for writing.
    ///
    /// # Errors
    /// If the node cannot be looked for.
    pub fn is_open_for_writing(&self, node: NodeId) -> io::Result<bool> {
        let found = self.live.find(node)?;
        Ok(found.is_some_and(|(_, stat)| self.tree.handles.has_writer(self.tree.number_of(&stat))))
    }

    fn flush_number(&self, number: InodeNumber) -> Result<(), LandingError> {
        let flushed = self.stores.flush_node(number);
        flushed.map(drop).map_err(|error| io::Error::other(error).into())
    }

    /// Makes a node under a free name; `finish` gives it its attributes before anybody sees it.
    ///
    /// # Errors
    /// [`LandingError::Overtaken`] if the name is not free, or the arbiter says so.
    pub fn make(
        &self,
        at: LoggedName<'_>,
        kind: NewKind<'_>,
        finish: &mut dyn FnMut(&Inode),
        arbiter: &dyn Arbiter,
    ) -> Result<NodeId, LandingError> {
        let at = self.name(at)?;
        let (node, stale) = self.tree.land_new(&at, kind, finish, arbiter)?;
        self.forget(&stale);
        Ok(node)
    }

    /// Gives a node one more name, which is free.
    ///
    /// # Errors
    /// [`LandingError::Overtaken`] if the name is not free, the node has none any more, or the
    /// arbiter says so.
    pub fn link(&self, node: NodeId, at: LoggedName<'_>, arbiter: &dyn Arbiter) -> Result<(), LandingError> {
        let at = self.name(at)?;
        let stale = self.tree.land_link(self.find(node)?, &at, arbiter)?;
        self.forget(&stale);
        Ok(())
    }

    /// Removes a name that stands for `node`; of a directory, if it is empty.
    ///
    /// # Errors
    /// [`LandingError::Overtaken`] if it stands for something else, the directory is not empty, it
    /// is the last name of a file that a program has open for writing, or the arbiter says so.
    pub fn remove(&self, at: LoggedName<'_>, node: NodeId, arbiter: &dyn Arbiter) -> Result<(), LandingError> {
        self.flush(node)?;
        self.refuse_mounted(at)?;
        let at = self.name(at)?;
        let stale = self.tree.land_removal(&at, node, arbiter)?;
        self.forget(&stale);
        Ok(())
    }

    /// Moves a name of a node to one that stands for `replaced`, or is free.
    ///
    /// # Errors
    /// [`LandingError::Overtaken`] if a name stands for something else, `replaced` would lose its
    /// last name and a program has it open for writing, or the arbiter says so.
    pub fn rename(
        &self,
        (node, from): (NodeId, LoggedName<'_>),
        (replaced, to): (Option<NodeId>, LoggedName<'_>),
        arbiter: &dyn Arbiter,
    ) -> Result<(), LandingError> {
        if let Some(replaced) = replaced {
            self.flush(replaced)?;
        }
        self.refuse_mounted(from)?;
        self.refuse_mounted(to)?;
        let (from, to) = (self.name(from)?, self.name(to)?);
        let ends = ((&from, node), (&to, replaced));
        let stale = self
            .tree
            .land_rename(ends.0, ends.1, RenameFlags::empty(), Some(arbiter))?;
        self.forget(&stale);
        Ok(())
    }

    /// Exchanges two names.
    ///
    /// # Errors
    /// As [`Landing::rename`].
    pub fn exchange(
        &self,
        (one, one_at): (NodeId, LoggedName<'_>),
        (other, other_at): (NodeId, LoggedName<'_>),
        arbiter: &dyn Arbiter,
    ) -> Result<(), LandingError> {
        self.refuse_mounted(one_at)?;
        self.refuse_mounted(other_at)?;
        let (from, to) = (self.name(one_at)?, self.name(other_at)?);
        let ends = ((&from, one), (&to, Some(other)));
        let stale = self
            .tree
            .land_rename(ends.0, ends.1, RenameFlags::EXCHANGE, Some(arbiter))?;
        self.forget(&stale);
        Ok(())
    }

    /// Whether a name can be taken from a node at all, as far as that can be told without trying.
    /// For callers that change other things first and could not take that back.
    ///
    /// # Errors
    /// [`LandingError::Failed`] says why it cannot: the file or its directory is immutable or
    /// append-only, the directory is not writable, a file system is mounted there.
    pub fn check_removable(&self, node: NodeId, at: LoggedName<'_>) -> Result<(), LandingError> {
        self.refuse_mounted(at)?;
        let (_, stat) = self.find(node)?;
        let (directory, above) = self.find(at.0)?;
        if !stat.inode_flags.is_empty() || !above.inode_flags.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::EPERM).into());
        }
        if let Some(descriptor) = directory.descriptor() {
            let asked = Access::WRITE_OK | Access::EXEC_OK;
            // On any other answer, trying will tell.
            let answer = accessat(descriptor, c"", asked, AtFlags::EACCESS | AtFlags::EMPTY_PATH);
            if let Err(errno @ (Errno::ACCESS | Errno::PERM | Errno::ROFS)) = answer {
                return Err(io::Error::from(errno).into());
            }
        }
        Ok(())
    }

    /// Moves a name to a free one, as a program would: the observer is told, as of a program's
    /// change.
    /// With `leaves_old` the node gets the new name beside the old one, if it can have two.
    ///
    /// # Errors
    /// [`LandingError::Overtaken`] if the old name stands for something else, or the new one is not
    /// free.
    pub fn displace(
        &self,
        node: NodeId,
        from: LoggedName<'_>,
        to: LoggedName<'_>,
        leaves_old: bool,
    ) -> Result<(), LandingError> {
        self.refuse_mounted(from)?;
        let (from, to) = (self.name(from)?, self.name(to)?);
        if leaves_old {
            match self.tree.land_second_name(node, self.find(node)?, &from, &to) {
                Err(LandingError::Failed(error)) if has_no_links(&error) => {}
                linked => {
                    self.forget(&linked?);
                    return Ok(());
                }
            }
        }
        let stale = self
            .tree
            .land_rename((&from, node), (&to, None), RenameFlags::empty(), None)?;
        self.forget(&stale);
        Ok(())
    }

    /// Changes attributes of a node by `set`, all at once.
    ///
    /// # Errors
    /// [`LandingError::Overtaken`] if it has no name any more, or the arbiter says so.
    pub fn set_attributes(
        &self,
        node: NodeId,
        set: &mut dyn FnMut(&Inode),
        arbiter: &dyn Arbiter,
    ) -> Result<(), LandingError> {
        let stale = self.tree.land_attributes(node, self.find(node)?, set, arbiter)?;
        self.forget(&stale);
        Ok(())
    }

    /// Moves the time of the last modification of a node on, as a program does, if it still is
    /// `from_ns`: by a nanosecond, or by the next larger step, up to two seconds, where the file
    /// system has no finer times.
    ///
    /// # Errors
    /// [`LandingError::Overtaken`] if it has no name any more; the system's error.
    pub fn advance_time(&self, node: NodeId, from_ns: i128) -> Result<(), LandingError> {
        for step_ns in [1, 100, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000] {
            let (fd, stat) = self.find(node)?;
            if stat.mtime_ns != from_ns {
                break;
            }
            let next_ns = from_ns.saturating_add(step_ns);
            let stale = self.tree.set_modification_time(node, (fd, stat), next_ns)?;
            self.forget(&stale);
        }
        Ok(())
    }

    /// Opens a file to land in it.
    ///
    /// # Errors
    /// [`LandingError::Overtaken`] if it has no name any more; the system's error.
    pub fn open(&self, node: NodeId) -> Result<LandingFile, LandingError> {
        let (fd, stat) = self.find(node)?;
        if stat.kind != NodeKind::File {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file").into());
        }
        Ok(LandingFile {
            inode: fd.reopen(OFlags::RDWR | OFlags::NONBLOCK)?,
            identity: stat.identity(),
            number: self.tree.number_of(&stat),
            logged: node,
        })
    }

    /// As [`Landing::flush`], of a file that is open to be landed in, whether it has a name or not.
    ///
    /// # Errors
    /// As [`Landing::flush`].
    pub fn flush_file(&self, file: &LandingFile) -> Result<(), LandingError> {
        self.flush_number(file.number)
    }

    /// Changes the content of a file. [`Landing::forget_content`] follows in any case.
    ///
    /// # Errors
    /// [`LandingError::Overtaken`] if `landing` decides so; the system's error.
    pub fn content(
        &self,
        file: &LandingFile,
        how: ContentHow,
        landing: &mut dyn LandingContent,
    ) -> Result<(), LandingError> {
        let done: TrackedResult<()> = self.tree.tracked.land_content(&file.identity, file, how, landing);
        Ok(done?)
    }

    /// Lets the bytes in the blocks of a range of a file count as if a program had just written
    /// them: the log and the observer are told.
    ///
    /// # Errors
    /// The system's error.
    pub fn accept(&self, file: &LandingFile, range: ByteRange) -> Result<(), LandingError> {
        let done = self.tree.tracked.accept(&file.identity, file, range);
        // A program may still see what was there before it was damaged.
        self.forget_content(file, Some(range));
        Ok(done?)
    }

    /// Makes the kernel drop its pages of a range of a file, or of all of it.
    /// [`Landing::report_len`] follows where the length changed.
    pub fn forget_content(&self, file: &LandingFile, range: Option<ByteRange>) {
        self.wait_for_lookups(file.logged);
        self.stores.forget_pages(file.number, range);
    }

    /// Makes the kernel learn the length of a file: a program that has it mapped reaches the bytes
    /// gained, and sees nothing behind the new end.
    pub fn report_len(&self, file: &LandingFile) {
        self.stores.look_at(file.number);
    }
}
