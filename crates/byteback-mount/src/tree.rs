//! POSIX behaviour over a backing directory: what each request means, without any FUSE notion.
//!
//! The rooms: [`names`] (lookup and everything that changes a name), [`exported`] (nodes that the
//! kernel knows by number), [`attributes`] (stat, chmod, xattrs), [`data`] (open, read, write),
//! [`listing`] (readdir), [`landing`] (what others changed). This file holds what they share: how a
//! node is reached.
//!
//! **Reaching a node.** An open file is reached through its handle, a directory through a cached
//! `O_PATH` descriptor, anything else by its name in its directory. On the way each step is
//! compared with the identity that the table remembers; if another inode bears the name now (the
//! tree was changed below us), the answer is `ESTALE`, upon which the kernel looks the path up
//! afresh.
//!
//! **Locks**, in this order: `renames` (shared while a name is in use, exclusive while one moves,
//! so that nobody sees a file between its two names), then one of the small locks inside, never
//! two.
//!
//! Out of scope: permission checks. The kernel has made them (`default_permissions`); an
//! ordinary user's daemon cannot do more than that user anyway.

pub(crate) mod attributes;
pub(crate) mod data;
pub(crate) mod directories;
mod exported;
pub(crate) mod inode_flags;
pub(crate) mod landing;
pub(crate) mod listing;
pub(crate) mod names;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use byteback_host::tree::{Identity, Inode, Stat};
use byteback_model::NodeKind;
use rustix::fs::OFlags;

use self::directories::{DirectoryCache, HeldInode};
use self::listing::ListingPool;
use crate::handles::{HandleTable, OpenFile};
use crate::inodes::{InodeNumber, InodeTable, Interned, Link};
use crate::tracked::{DEPTH_MAX, Object, Tracked};

/// A mounted tree. All methods may be called from any number of threads.
#[derive(Debug)]
pub(crate) struct Tree {
    root: Arc<HeldInode>,
    root_stat: Stat,
    /// See the module about locks.
    renames: RwLock<()>,
    inodes: Mutex<InodeTable>,
    directories: Mutex<DirectoryCache>,
    listings: Mutex<ListingPool>,
    pub(crate) handles: HandleTable,
    pub(crate) tracked: Arc<Tracked>,
    /// Whether new files need the caller's ids, and set-id bits are ours to take away: the daemon
    /// is root, or the tree a library's.
    switch_user: bool,
    /// Nodes, other than regular files, that have lost their last name while the kernel still
    /// refers to them: a FIFO that is open, a directory that a program works in. Held by `O_PATH`
    /// descriptors, because no handle of ours holds them.
    orphans: Mutex<HashMap<InodeNumber, Arc<HeldInode>>>,
    /// The threads of ours that open files through the mount just now, see [`OpenFile::own`].
    own_threads: Mutex<Vec<u32>>,
    /// Held while something is appended to an append-only file.
    appending: Mutex<()>,
    /// Makes the caches of a node's attributes forget them: they have changed without a request to
    /// do so. Must not wait.
    forget_attributes: OnceLock<ForgetAttributes>,
}

struct ForgetAttributes(Box<dyn Fn(InodeNumber) + Send + Sync>);

impl fmt::Debug for ForgetAttributes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ForgetAttributes")
    }
}

/// The reply to the kernel about a name that it asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) interned: Interned,
    pub(crate) stat: Stat,
}

/// A descriptor of a node, whichever could be had.
#[derive(Debug)]
pub(crate) enum NodeFd {
    /// Of an open file.
    Open(Arc<OpenFile>),
    /// `O_PATH`, kept.
    Kept(Arc<HeldInode>),
    /// `O_PATH`, opened for this request.
    Path(Inode),
}

impl Deref for NodeFd {
    type Target = Inode;

    fn deref(&self) -> &Inode {
        match self {
            Self::Open(file) => file,
            Self::Kept(inode) => inode,
            Self::Path(inode) => inode,
        }
    }
}

pub(crate) fn stale() -> io::Error {
    io::Error::from_raw_os_error(libc::ESTALE)
}

impl Tree {
    /// The tree below the directory `root`, an `O_PATH` descriptor.
    pub(crate) fn new(root: Inode, tracked: Arc<Tracked>) -> io::Result<Self> {
        let root_stat = root.stat()?;
        // Only we take set-id bits away from a library's files.
        let switch_user = rustix::process::geteuid().is_root() || !root.is_of_system();
        Ok(Self {
            root: Arc::new(HeldInode {
                inode: root,
                identity: root_stat.identity(),
            }),
            root_stat,
            renames: RwLock::new(()),
            inodes: Mutex::new(InodeTable::new(root_stat.identity())),
            directories: Mutex::new(DirectoryCache::default()),
            listings: Mutex::new(ListingPool::default()),
            handles: HandleTable::default(),
            tracked,
            switch_user,
            orphans: Mutex::new(HashMap::new()),
            own_threads: Mutex::new(Vec::new()),
            appending: Mutex::new(()),
            forget_attributes: OnceLock::new(),
        })
    }

    /// Sets the callback that forgets cached attributes. Before, and without a kernel, none are
    /// cached.
    pub(crate) fn tell_of_changed_attributes(&self, forget: impl Fn(InodeNumber) + Send + Sync + 'static) {
        let _ = self.forget_attributes.set(ForgetAttributes(Box::new(forget)));
    }

    /// The length that programs are told of a file in which something lands, as long as that is not
    /// its real one.
    pub(crate) fn len_before(&self, stat: &Stat) -> Option<u64> {
        match stat.kind {
            NodeKind::File => self.tracked.len_before(&stat.identity()),
            _ => None,
        }
    }

    /// Attributes of a node are not what they were, and the kernel does not know that.
    pub(crate) fn attributes_changed(&self, node: InodeNumber) {
        if let Some(forget) = self.forget_attributes.get() {
            forget.0(node);
        }
    }

    fn inodes(&self) -> MutexGuard<'_, InodeTable> {
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn directories(&self) -> MutexGuard<'_, DirectoryCache> {
        self.directories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listings(&self) -> MutexGuard<'_, ListingPool> {
        self.listings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn orphans(&self) -> MutexGuard<'_, HashMap<InodeNumber, Arc<HeldInode>>> {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn orphan(&self, node: InodeNumber) -> Option<Arc<HeldInode>> {
        self.orphans().get(&node).cloned()
    }

    pub(crate) fn own_threads(&self) -> MutexGuard<'_, Vec<u32>> {
        self.own_threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the tree lies in the system's file systems.
    pub(crate) fn is_of_system(&self) -> bool {
        self.root.is_of_system()
    }

    pub(crate) fn root_stat(&self) -> &Stat {
        &self.root_stat
    }

    /// Whether the backing directory itself has an entry of this name.
    pub(crate) fn has_in_root(&self, name: &OsStr) -> bool {
        self.root.stat_at(name).is_ok()
    }

    /// The number that programs see for an inode: what the kernel was or would be told.
    pub(crate) fn visible_ino(&self, node: InodeNumber, stat: &Stat) -> u64 {
        if node == InodeNumber::ROOT {
            stat.ino
        } else {
            node.get()
        }
    }

    /// The directory `node`. The caller holds `renames`.
    pub(crate) fn directory(&self, node: InodeNumber) -> io::Result<Arc<HeldInode>> {
        if node == InodeNumber::ROOT {
            return Ok(Arc::clone(&self.root));
        }
        if let Some(fd) = self.directories().get(node) {
            return Ok(fd);
        }
        if let Some(fd) = self.orphan(node) {
            return Ok(fd);
        }
        // Up to the nearest directory that is open, then down again.
        let mut steps: Vec<(InodeNumber, Link, Identity)> = Vec::new();
        let mut at = node;
        let mut fd = loop {
            if at == InodeNumber::ROOT {
                break Arc::clone(&self.root);
            }
            if let Some(fd) = self.directories().get(at) {
                break fd;
            }
            if steps.len() > DEPTH_MAX {
                return Err(stale());
            }
            let (link, identity) = self.inodes().latest_link(at).ok_or_else(stale)?;
            let parent = link.parent;
            steps.push((at, link, identity));
            at = parent;
        };
        for (node, link, identity) in steps.into_iter().rev() {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let opened = fd.open_at(&link.name, flags).map_err(map_not_found_to_stale)?;
            if opened.stat()?.identity() != identity {
                return Err(stale());
            }
            fd = Arc::new(HeldInode {
                inode: opened,
                identity,
            });
            self.directories().insert(node, Arc::clone(&fd));
        }
        Ok(fd)
    }

    /// A descriptor of `node`: of an open file if there is one. The caller holds `renames`.
    pub(crate) fn node_fd(&self, node: InodeNumber) -> io::Result<NodeFd> {
        if let Some(file) = self.handles.any_of(node) {
            return Ok(NodeFd::Open(file));
        }
        let known = self.inodes().known(node).ok_or_else(stale)?;
        if known.kind == NodeKind::Directory {
            return self.directory(node).map(NodeFd::Kept);
        }
        if known.links.is_empty()
            && let Some(fd) = self.orphan(node)
        {
            return Ok(NodeFd::Kept(fd));
        }
        for link in &known.links {
            let Ok(dir) = self.directory(link.parent) else {
                continue;
            };
            match dir.open_path_at(&link.name) {
                Ok(fd) if fd.stat()?.identity() == known.identity => return Ok(NodeFd::Path(fd)),
                Ok(_) => {}
                Err(error) => {
                    gone_or(error)?;
                }
            }
        }
        Err(stale())
    }

    /// A file opened anew with `flags`. The caller holds `renames`.
    fn open_node(&self, node: InodeNumber, flags: OFlags) -> io::Result<(Inode, Identity)> {
        let known = self.inodes().known(node).ok_or_else(stale)?;
        if let Some(file) = self.handles.any_of(node) {
            // O_NOFOLLOW would refuse the magic link itself.
            return Ok((file.reopen(flags - OFlags::NOFOLLOW)?, known.identity));
        }
        for link in &known.links {
            let Ok(dir) = self.directory(link.parent) else {
                continue;
            };
            match dir.open_at(&link.name, flags) {
                Ok(fd) if fd.stat()?.identity() == known.identity => return Ok((fd, known.identity)),
                Ok(_) => {}
                Err(error) => {
                    gone_or(error)?;
                }
            }
        }
        Err(stale())
    }

    /// The gate's description of a live node.
    fn object(&self, node: InodeNumber) -> io::Result<Object> {
        let (identity, kind) = self.inodes().identity(node).ok_or_else(stale)?;
        Ok(Object { node, identity, kind })
    }

    /// The gate's description of an inode that was just looked at, live or not.
    fn object_of(&self, stat: &Stat) -> Object {
        Object {
            node: self.inodes().node_of(stat.dev, stat.ino),
            identity: stat.identity(),
            kind: stat.kind,
        }
    }

    /// Looks up `name` in the directory `parent`.
    fn look_at(&self, dir: &Inode, parent: InodeNumber, name: &OsStr) -> io::Result<Found> {
        loop {
            let births = self.inodes().births();
            let stat = dir.stat_at(name)?;
            let at = (parent, name);
            let interned = self.inodes().intern_seen(births, at, stat.identity(), stat.kind);
            if let Some(interned) = interned {
                return Ok(Found { interned, stat });
            }
        }
    }

    fn found_new(&self, parent: InodeNumber, name: &OsStr, stat: Stat) -> Found {
        let interned = self.inodes().intern_new(parent, name, stat.identity(), stat.kind);
        Found { interned, stat }
    }

    /// The kernel dropped `count` lookups of `node`.
    pub(crate) fn forget(&self, node: InodeNumber, count: u64) {
        if self.inodes().forget(node, count) {
            self.directories().remove(node);
            self.orphans().remove(&node);
        }
    }

    /// The names from the root to `node`, the root's own excluded; `None` if no name is known.
    pub(crate) fn path_of(&self, node: InodeNumber) -> Option<Vec<std::ffi::OsString>> {
        let inodes = self.inodes();
        let mut names = Vec::new();
        let mut at = node;
        while at != InodeNumber::ROOT {
            if names.len() > DEPTH_MAX {
                return None;
            }
            let (link, _) = inodes.latest_link(at)?;
            names.push(link.name);
            at = link.parent;
        }
        names.reverse();
        Some(names)
    }
}

/// A name that is not there any more means that the node is to be looked up again, not that it does
/// not exist.
fn map_not_found_to_stale(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP) => stale(),
        _ => error,
    }
}

/// Lets the caller try the next name if this one is not there any more.
fn gone_or(error: io::Error) -> io::Result<()> {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP) => Ok(()),
        _ => Err(error),
    }
}
