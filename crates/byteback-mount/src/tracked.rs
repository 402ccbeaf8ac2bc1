//! The gate: each modification of the tree passes here, one method per kind, and nowhere else.
//!
//! The layer before the gate (the file system protocol) does not know what happens to a change; the
//! layer behind it (the backing directory) does not know who asked. A method is given everything
//! that a log needs to know about its change: the node, the inode it changes, the range, and for
//! changes of names the directory, the name, what was there before, and how many names that had.
//!
//! Order within a method, and why:
//!
//! 1. begin with the log: for content, the intent is durable before anything else happens; from
//!    here on there is no cut;
//! 2. take [`observer::Order`], if there is an observer;
//! 3. let each witness note the old state, as `witness` says; ranges of content are logged here,
//!    so that a failure that changed part of them is covered, too;
//! 4. perform the change on the backing directory;
//! 5. let each witness hear what became of it.
//!
//! A change that lands from elsewhere passes the same gate with [`Origin::Remote`], see
//! [`landing`].
//!
//! Bytes that a write leaves between the old end of a file and its own offset are zeros and not
//! logged: a reader of the log takes bytes beyond the old end and in no range as zeros.

mod account;
mod change;
mod error;
mod inode_flags;
pub mod landing;
pub mod observer;
mod passage;
mod perform;
mod ranges;
mod times;
mod trim;
mod witness;
mod witnesses;

use std::ffi::{OsStr, OsString};
use std::io;

use byteback_checksums::written;
use byteback_extents::ByteRange;
use byteback_host::tree::{Creator, FallocateFlags, Identity, Inode, NewInode, SetXattr, Stat};
use byteback_model::{NodeId, NodeKind};
use byteback_oplog::{Fence, Log};
use byteback_undo::ContentHow;
use rustix::fs::{AtFlags, OFlags, RenameFlags, Timespec, Timestamps};

use crate::handles::OpenFile;
use crate::inodes::InodeNumber;
use crate::integrity::Integrity;
pub use account::Account;
use change::{Change, Content};
pub use error::{TrackedError, TrackedResult};
pub use inode_flags::InodeFlags;
use inode_flags::set_flags;
pub(crate) use inode_flags::{FSX_LEN_BYTES, descriptor};
use observer::Observer;
use passage::{Gate, Passage, Underway};
use ranges::Ranges;

/// Deeper than any tree that the kernel can walk in reasonable time; bounds the walk if names below
/// us were moved so that the remembered ones form a ring.
pub(crate) const DEPTH_MAX: usize = 1 << 16;

/// An inode of the tree and the number it has in this mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its number while the mount lasts.
    pub node: InodeNumber,
    /// The inode's identity beyond the mount.
    pub identity: Identity,
    /// The kind of file.
    pub kind: NodeKind,
}

/// A name in a directory of the tree.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The directory.
    pub parent: InodeNumber,
    /// The directory, as an `O_PATH` descriptor.
    pub dir: &'a Inode,
    /// The directory's identity beyond the mount.
    pub identity: Identity,
    /// The name.
    pub name: &'a OsStr,
}

/// The inode that loses a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The inode.
    pub object: Object,
    /// How many names it has before.
    pub nlink: u64,
    /// The inode's state before.
    pub fence: Fence,
}

impl Victim {
    /// Whether the inode has no name left afterwards.
    #[must_use]
    pub fn is_last_link(&self) -> bool {
        self.object.kind == NodeKind::Directory || self.nlink <= 1
    }
}

/// Where a change comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From a program's call: bytes are what it wrote.
    Program,
    /// From a program's call on a file that it opened to append, and not for direct I/O: the offset
    /// is where the kernel believes the file to end.
    Append,
    /// From the kernel's pages, of which any part may have changed.
    PageCache,
    /// From another machine, see [`landing`]; no write of a program's.
    Remote,
}

/// The bytes of one write that are in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Where they begin; an append goes to the end of the file, wherever it was aimed.
    pub offset: u64,
    /// How many.
    pub len_bytes: usize,
}

/// New values of an inode's attributes; `None` keeps one.
#[derive(Clone, Debug, Default)]
pub struct NewAttributes {
    /// The permission bits.
    pub mode: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// Last access and last modification, each to be set, kept or now (`UTIME_OMIT`, `UTIME_NOW`).
    pub times: Option<Timestamps>,
}

/// See the module.
#[derive(Default)]
pub struct Tracked {
    gate: Option<Gate>,
    times: times::Times,
}

impl std::fmt::Debug for Tracked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracked")
            .field("is_logged", &self.gate.is_some())
            .finish()
    }
}

impl Tracked {
    /// A gate that only passes through.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A gate that keeps account of every change.
    #[must_use]
    pub fn with_account(account: Account) -> Self {
        Self::with_gate(Gate::new(account))
    }

    fn with_gate(gate: Gate) -> Self {
        Self {
            gate: Some(gate),
            times: times::Times::default(),
        }
    }

    /// The account of the changes, if one is kept.
    #[must_use]
    pub fn account(&self) -> Option<&Account> {
        self.gate.as_ref().map(|gate| &gate.account)
    }

    /// Begins a change of content. `to`: what is known of it without a look at the file.
    /// `ranges_of` answers which ones are, none if only attributes are; where that depends on the
    /// file, it must look while there is no cut: what is changed between the look and this change
    /// is then of the same epoch, and logged by whoever changed it. It is told whether it is worth
    /// a look for less than `range`.
    fn begin_content<'a>(
        &'a self,
        identity: &Identity,
        fd: &'a Inode,
        how: ContentHow,
        to: Extent,
        ranges_of: impl FnOnce(Look<'_>) -> TrackedResult<Ranges>,
    ) -> TrackedResult<Underway<'a>> {
        let Some(gate) = &self.gate else {
            return Ok(Underway::default());
        };
        let log = &gate.account.log;
        let mut passage = Passage {
            gate,
            origin: Origin::Program,
            order: None,
            operation: None,
        };
        let Some((operation, node)) = log.begin_content(identity, to.range, || looks_like(fd))? else {
            let ranges = ranges_of(Look::Whole)?;
            let identity = *identity;
            return Ok(passage.announce(Change::ContentOfUnknown { identity, fd, ranges }));
        };
        // However it ends, any of these bytes may be new, or at least the times.
        let is_news = !operation.is_logged();
        passage.operation = Some(operation);
        passage.order = gate.shared_order();
        let look = match gate.observer() {
            Some(observer) if observer.is_landing(node) || (to.appends && observer.may_stray(node)) => {
                Look::Landing(observer, node)
            }
            observer => {
                let wants_trimmed =
                    |observer: &dyn Observer| to.range.is_some_and(|range| observer.wants_trimmed(node, range));
                Look::trimmed_if(is_news || observer.is_some_and(wants_trimmed))
            }
        };
        let content = Content {
            node,
            identity: *identity,
            fd,
            how,
            ranges: ranges_of(look)?,
            announced: to.range,
            len_after_bytes: to.len_after_bytes,
            is_named: gate.observer().is_none() || log.is_open(node),
        };
        Ok(passage.announce(Change::Content(content)))
    }

    fn begin_attributes<'a>(&'a self, object: Object, fd: &'a Inode) -> TrackedResult<Underway<'a>> {
        let Some(gate) = &self.gate else {
            return Ok(Underway::default());
        };
        let log = &gate.account.log;
        let Some(node) = log.node_of(&object.identity)? else {
            return Ok(Underway::default());
        };
        let is_file = object.kind == NodeKind::File;
        let change = Change::Attributes { node, is_file, fd };
        let passage = gate.begin_attributes(Origin::Program, &change)?;
        // Where the log cannot be read, it is told once too often.
        if gate.observer().is_some() && !log.is_known(node).unwrap_or(true) {
            return Ok(Underway::default());
        }
        Ok(passage.announce(change))
    }

    fn begin_names(&self) -> Option<Passage<'_>> {
        self.gate.as_ref().map(|gate| gate.begin_names(Origin::Program))
    }

    /// Makes something new at `place` by `make`.
    fn make<T>(
        &self,
        place: Place<'_>,
        make: impl FnOnce() -> TrackedResult<T>,
        stat_of: impl FnOnce(&T) -> &Stat,
    ) -> TrackedResult<T> {
        let made = perform::make(self.begin_names().as_ref(), place, make, stat_of)?;
        Ok(made.0)
    }

    /// Writes `data` at `offset`, or, of [`Origin::Append`], behind the end. Fewer bytes than asked
    /// are written only when the disk or a limit is reached.
    ///
    /// # Errors
    /// The error of the backing file, if not a single byte was written.
    pub fn write(&self, file: &OpenFile, offset: u64, data: &[u8], origin: Origin) -> TrackedResult<Written> {
        let Some(range) = ByteRange::new(offset, offset.saturating_add(data.len() as u64)) else {
            return Ok(Written { offset, len_bytes: 0 });
        };
        let (mut stores, mut aimed_at) = (None, offset);
        let ranges_of = |look: Look<'_>| {
            Ok(match look {
                Look::Landing(observer, node) if origin == Origin::Append => {
                    aimed_at = observer.append_at(node, file, offset).map_err(backing("write"))?;
                    ByteRange::from_offset_len(aimed_at, data.len() as u64).into()
                }
                Look::Trimmed => trim::changed_ranges(file, offset, data, origin),
                Look::Landing(observer, node) if origin == Origin::PageCache => {
                    let merged = observer.merge_page(node, offset, data).map_err(backing("write"))?;
                    stores.insert(merged).clone().into()
                }
                Look::Whole | Look::Landing(..) => Some(range).into(),
            })
        };
        let mut change = self.begin_content(
            &file.identity(),
            file,
            ContentHow::Written,
            Extent {
                appends: origin == Origin::Append,
                ..Extent::of(Some(range))
            },
            ranges_of,
        )?;
        if let Some(stores) = stores {
            let hull = stores.iter().copied().reduce(ByteRange::hull);
            // Bytes between the stores stay as they are.
            let what = hull.map_or(
                written::Change::Written { offset, data: &[] },
                written::Change::Overwritten,
            );
            let write = || write_stores(file, offset, data, &stores).map(|()| data.len());
            let write = || self.times.keep(file, write);
            let len_bytes = change.write(file, what, write, |_| true)?;
            return Ok(Written { offset, len_bytes });
        }
        let what = written::Change::Written { offset: aimed_at, data };
        let write = || self.times.keep(file, || write_all(file, aimed_at, data));
        let len_bytes = change.write(file, what, write, |written| *written == data.len())?;
        Ok(Written {
            offset: aimed_at,
            len_bytes,
        })
    }

    /// Sets the length of the file that `fd` can write.
    ///
    /// # Errors
    /// The error of the backing file.
    pub fn truncate(&self, object: Object, fd: &Inode, len_bytes: u64) -> TrackedResult<()> {
        // The part that is cut off or gained: zeros are content, too.
        let ranges_of = |_: Look<'_>| {
            let size = fd.stat().map_err(backing("truncate"))?.size;
            Ok(ByteRange::new(size.min(len_bytes), size.max(len_bytes)).into())
        };
        let to = Extent {
            len_after_bytes: Some(len_bytes),
            ..Extent::of(None)
        };
        let mut change = self.begin_content(&object.identity, fd, ContentHow::Truncated, to, ranges_of)?;
        let truncate = || fd.truncate(len_bytes).map_err(backing("truncate"));
        change.write(fd, written::Change::Truncated(len_bytes), truncate, |()| true)
    }

    /// Allocates, frees or zeroes a range, as `mode` says.
    ///
    /// # Errors
    /// The error of the backing file.
    pub fn allocate(&self, file: &OpenFile, mode: FallocateFlags, offset: u64, len_bytes: u64) -> TrackedResult<()> {
        let zeroes = FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE;
        let moves = FallocateFlags::COLLAPSE_RANGE | FallocateFlags::INSERT_RANGE;
        let mut end = offset.saturating_add(len_bytes);
        let ranges_of = |look: Look<'_>| {
            let range = if mode == FallocateFlags::KEEP_SIZE {
                None
            } else if mode.is_empty() {
                // Allocating leaves the bytes as they are; beyond the end it adds zeros.
                ByteRange::new(file.stat().map_err(backing("allocate"))?.size, end)
            } else {
                if let Look::Landing(observer, node) = look
                    && mode.intersects(zeroes)
                    && mode.contains(FallocateFlags::KEEP_SIZE)
                {
                    // Programs mean to zero nothing behind the end that they see.
                    end = observer.len_before(node).unwrap_or(end).clamp(offset, end);
                }
                ByteRange::new(offset, end)
            };
            Ok(range.into())
        };
        let (identity, to) = (file.identity(), Extent::of(None));
        let mut change = self.begin_content(&identity, file, ContentHow::Allocated, to, ranges_of)?;
        let what = match ByteRange::new(offset, end) {
            Some(range) if mode.intersects(zeroes) => written::Change::Zeroed(range),
            _ if mode.intersects(moves) => written::Change::Moved,
            // Allocating changes no byte.
            _ => written::Change::Written { offset, data: &[] },
        };
        let allocate = || match end.saturating_sub(offset) {
            0 if len_bytes > 0 => Ok(()),
            len_bytes => file.fallocate(mode, offset, len_bytes).map_err(backing("allocate")),
        };
        let allocate = || self.times.keep(file, allocate);
        change.write(file, what, allocate, |()| true)
    }

    /// Lets the blocks of a range count as just written, whatever wrote them.
    ///
    /// # Errors
    /// The error of the backing file; an error of the log.
    pub fn accept(&self, identity: &Identity, fd: &Inode, range: ByteRange) -> TrackedResult<()> {
        let ranges_of = |_: Look<'_>| Ok(Some(range).into());
        let mut change = self.begin_content(identity, fd, ContentHow::Written, Extent::of(Some(range)), ranges_of)?;
        let accept = || {
            // No byte changes, but it is another version of the file.
            let now = Timestamps {
                last_access: KEEP_TIME,
                last_modification: TIME_OF_NOW,
            };
            fd.set_timestamps(&now).map_err(backing("change the times"))
        };
        change.write(fd, written::Change::Accepted(range), accept, |()| true)
    }

    /// Copies up to `len_bytes` inside the backing file system. Returns how many.
    ///
    /// # Errors
    /// The error of the backing file system; `EXDEV` and `EOPNOTSUPP` let the kernel copy through
    /// the page cache.
    pub fn copy_range(
        &self,
        from: &OpenFile,
        from_offset: u64,
        to: &OpenFile,
        to_offset: u64,
        len_bytes: usize,
    ) -> TrackedResult<usize> {
        // Programs ask for far more than there is; no more is copied than the log was told.
        let source_len_bytes = from.stat().map_err(backing("copy a range"))?.size;
        let left = usize::try_from(source_len_bytes.saturating_sub(from_offset)).unwrap_or(usize::MAX);
        let len_bytes = len_bytes.min(left);
        let range = ByteRange::new(to_offset, to_offset.saturating_add(len_bytes as u64));
        let ranges_of = |_: Look<'_>| Ok(range.into());
        let (identity, extent) = (to.identity(), Extent::of(range));
        let mut change = self.begin_content(&identity, to, ContentHow::Written, extent, ranges_of)?;
        let copy = || {
            from.copy_range_to(from_offset, to, to_offset, len_bytes)
                .map_err(backing("copy a range"))
        };
        let copy = || self.times.keep(to, copy);
        // Nobody has seen the bytes.
        let what = range.map_or(written::Change::Written { offset: 0, data: &[] }, |range| {
            written::Change::Overwritten(range)
        });
        let copied = change.write(to, what, copy, |_| true)?;
        if let Some(account) = self.account() {
            // A guess that is missing costs a backup bytes, and nothing else.
            let _ = account.log.copied(&from.identity(), &identity, copied);
        }
        Ok(copied)
    }

    /// The sums that a program's reads of a file are compared with, if reads are verified.
    pub(crate) fn verifying(&self, identity: &Identity) -> Option<(&Integrity, NodeId)> {
        let account = self.account()?;
        let integrity = account
            .integrity
            .as_deref()
            .filter(|integrity| integrity.verifies_reads())?;
        Some((integrity, account.log.node_of(identity).ok()??))
    }

    /// The names from the root by which the log reaches the inode of this number.
    pub(crate) fn paths_of_inode(&self, inode: u64) -> Vec<Vec<OsString>> {
        let Some(log) = self.account().map(|account| &account.log) else {
            return Vec::new();
        };
        // If the log cannot be read, the node is not found.
        let nodes = log.nodes_of_inode(inode).unwrap_or_default();
        nodes.into_iter().filter_map(|node| path_of(log, node)).collect()
    }

    /// Whether a program that wants the bytes of a file to be durable must have its times as well,
    /// so that what it wrote is not taken for what a crash left.
    pub(crate) fn must_sync_times(&self, identity: &Identity) -> bool {
        let integrity = self
            .account()
            .and_then(|account| Some((account, account.integrity.as_ref()?)));
        integrity.is_some_and(|(account, integrity)| match account.log.node_of(identity) {
            Ok(Some(node)) => integrity.sums().must_sync_times(node.0),
            Ok(None) | Err(_) => false,
        })
    }

    /// Closes an open file by `close`, which answers whether it was the last one of its inode that
    /// could be written.
    pub fn close(&self, identity: &Identity, close: impl FnOnce() -> bool) {
        let observer = self
            .account()
            .and_then(|account| Some((account, account.observer.as_deref()?)));
        let Some((account, observer)) = observer else {
            close();
            return;
        };
        // Where the log cannot be read, that it was closed is not told: it costs time until it is
        // sent, no more.
        let node = account.log.node_of(identity).ok().flatten();
        let _order = observer.order().exclusive();
        if let (true, Some(node)) = (close(), node) {
            observer.closed(node);
        }
    }

    /// Creates a regular file that must not exist and opens it with `flags`.
    ///
    /// # Errors
    /// `EEXIST`, or the error of the backing directory.
    pub fn create(&self, place: Place<'_>, mode: u32, flags: OFlags, creator: Creator) -> TrackedResult<(Inode, Stat)> {
        let create = || {
            let fd = place.dir.create_at(place.name, flags, mode, creator)?;
            let stat = fd.stat()?;
            Ok((fd, stat))
        };
        self.make(place, || create().map_err(backing("create")), |(_, stat)| stat)
    }

    /// Makes anything but a regular file that is opened at once.
    ///
    /// # Errors
    /// The error of the backing directory.
    pub fn make_at(&self, place: Place<'_>, new: NewInode<'_>, creator: Creator) -> TrackedResult<Stat> {
        let operation = match new {
            NewInode::Directory(_) => "make a directory",
            NewInode::Symlink(_) => "make a symlink",
            NewInode::File(_) | NewInode::Special(..) => "make a node",
        };
        let make = || {
            place.dir.make_at(place.name, new, creator)?;
            place.dir.stat_at(place.name)
        };
        self.make(place, || make().map_err(backing(operation)), |stat| stat)
    }

    /// Gives the inode that `fd` names one more name.
    ///
    /// # Errors
    /// The error of the backing directory.
    pub fn link(&self, object: Object, fd: &Inode, place: Place<'_>) -> TrackedResult<Stat> {
        perform::link(self.begin_names().as_ref(), object, fd, place)
    }

    /// Removes a name that is no directory.
    ///
    /// # Errors
    /// The error of the backing directory.
    pub fn unlink(&self, place: Place<'_>, victim: Victim) -> TrackedResult<()> {
        self.remove(place, victim, AtFlags::empty(), "unlink")
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// The error of the backing directory.
    pub fn rmdir(&self, place: Place<'_>, victim: Victim) -> TrackedResult<()> {
        self.remove(place, victim, AtFlags::REMOVEDIR, "remove a directory")
    }

    fn remove(&self, place: Place<'_>, victim: Victim, flags: AtFlags, operation: &'static str) -> TrackedResult<()> {
        perform::remove(self.begin_names().as_ref(), place, victim, flags, operation)
    }

    /// Moves a name. `replaced` is what the new name stood for before: it loses that name, or with
    /// `RenameFlags::EXCHANGE` gets the old one.
    ///
    /// # Errors
    /// The error of the backing directory.
    pub fn rename(
        &self,
        from: Place<'_>,
        to: Place<'_>,
        flags: RenameFlags,
        moved: Victim,
        replaced: Option<Victim>,
    ) -> TrackedResult<()> {
        perform::rename(self.begin_names().as_ref(), from, to, flags, moved, replaced)
    }

    /// Sets owner, permissions and times of what `fd` names, in this order: a new owner clears
    /// set-id bits, and everything else moves the times.
    ///
    /// # Errors
    /// The error of the backing file; earlier attributes of the list are then already set.
    pub fn set_attributes(&self, object: Object, fd: &Inode, new: &NewAttributes) -> TrackedResult<()> {
        self.begin_attributes(object, fd)?
            .perform(|| self.set_each(object, fd, new))
    }

    fn set_each(&self, object: Object, fd: &Inode, new: &NewAttributes) -> TrackedResult<()> {
        if new.uid.is_some() || new.gid.is_some() {
            fd.set_owner(new.uid, new.gid).map_err(backing("change the owner"))?;
        }
        if let Some(mode) = new.mode {
            fd.set_mode(mode).map_err(backing("change the mode"))?;
        }
        if let Some(times) = &new.times {
            let _order = self.times.order(&object.identity);
            fd.set_timestamps(times).map_err(backing("change the times"))?;
        }
        Ok(())
    }

    /// Sets an extended attribute of what `fd` names, POSIX ACLs included.
    ///
    /// # Errors
    /// The error of the backing file.
    pub fn set_xattr(
        &self,
        object: Object,
        fd: &Inode,
        name: &OsStr,
        value: &[u8],
        how: SetXattr,
    ) -> TrackedResult<()> {
        self.begin_attributes(object, fd)?.perform(|| {
            fd.set_xattr(name, value, how)
                .map_err(backing("set an extended attribute"))
        })
    }

    /// Sets inode flags or the project id of what `fd` has open.
    ///
    /// # Errors
    /// The error of the backing file.
    pub fn set_inode_flags(&self, object: Object, fd: &Inode, flags: InodeFlags) -> TrackedResult<()> {
        // They are in no backup, but move the change time.
        self.begin_attributes(object, fd)?
            .perform(|| set_flags(fd, flags).map_err(backing("set inode flags")))
    }

    /// Removes an extended attribute of what `fd` names.
    ///
    /// # Errors
    /// The error of the backing file.
    pub fn remove_xattr(&self, object: Object, fd: &Inode, name: &OsStr) -> TrackedResult<()> {
        self.begin_attributes(object, fd)?
            .perform(|| fd.remove_xattr(name).map_err(backing("remove an extended attribute")))
    }
}

/// A path of the node from the root, by one of its names.
fn path_of(log: &Log, node: NodeId) -> Option<Vec<OsString>> {
    let mut names = Vec::new();
    let mut at = node;
    while at != NodeId::ROOT {
        if names.len() > DEPTH_MAX {
            return None;
        }
        let (parent, name) = log.places_of(at).ok()?.into_iter().next()?;
        names.push(name);
        at = parent;
    }
    names.reverse();
    Some(names)
}

/// A time that stays.
const KEEP_TIME: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: rustix::fs::UTIME_OMIT,
};

/// A time that becomes that of the system.
const TIME_OF_NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: rustix::fs::UTIME_NOW,
};

/// Writes until the disk or a limit is reached: how many bytes, at least one.
fn write_all(file: &OpenFile, offset: u64, data: &[u8]) -> TrackedResult<usize> {
    let mut written: usize = 0;
    while let Some(rest) = data.get(written..).filter(|rest| !rest.is_empty()) {
        let at = offset.saturating_add(written as u64);
        match file.write_at(at, rest) {
            Ok(0) => break,
            Ok(count) => written = written.saturating_add(count),
            Err(_) if written > 0 => break,
            Err(error) => return Err(backing("write")(error)),
        }
    }
    Ok(written)
}

/// How closely it is worth looking at which bytes change.
#[derive(Clone, Copy)]
enum Look<'a> {
    /// All bytes that may change count.
    Whole,
    /// Only bytes that differ count.
    Trimmed,
    /// Something lands in this file: of pages only what a program has stored counts, of what
    /// programs write all.
    Landing(&'a dyn Observer, NodeId),
}

impl Look<'_> {
    fn trimmed_if(is_worth_a_look: bool) -> Self {
        match is_worth_a_look {
            true => Self::Trimmed,
            false => Self::Whole,
        }
    }
}

/// Writes those bytes of a page at `offset` that lie in `stores`.
fn write_stores(file: &OpenFile, offset: u64, page: &[u8], stores: &[ByteRange]) -> TrackedResult<()> {
    for store in stores {
        let from = usize::try_from(store.start().saturating_sub(offset)).unwrap_or(usize::MAX);
        let to = usize::try_from(store.end().saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut at = store.start();
        let mut rest = page.get(from..to).unwrap_or_default();
        while !rest.is_empty() {
            match file.write_at(at, rest) {
                Ok(0) => return Err(backing("write")(io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    rest = rest.get(count..).unwrap_or_default();
                    at = at.saturating_add(count as u64);
                }
                Err(error) => return Err(backing("write")(error)),
            }
        }
    }
    Ok(())
}

/// The known facts of a change of content before it has begun.
#[derive(Clone, Copy, Debug)]
struct Extent {
    /// The bytes that are about to change at most.
    range: Option<ByteRange>,
    /// The file's length afterwards, where it is set.
    len_after_bytes: Option<u64>,
    /// Whether the bytes are to be appended.
    appends: bool,
}

impl Extent {
    fn of(range: Option<ByteRange>) -> Self {
        Self {
            range,
            len_after_bytes: None,
            appends: false,
        }
    }
}

/// The state that the log compares a clean file with.
fn looks_like(fd: &Inode) -> Option<Fence> {
    fd.stat().ok().map(|stat| Fence::of(&stat))
}

fn backing(operation: &'static str) -> impl FnOnce(io::Error) -> TrackedError {
    move |source| TrackedError::Backing { operation, source }
}
