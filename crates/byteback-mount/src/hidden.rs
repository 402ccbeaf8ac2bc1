//! The folder `.byteback` in the root of a mount: no listing shows it, but programs that know its
//! name can enter it.
//!
//! | path | what |
//! |---|---|
//! | `.byteback/cut/` | the open cuts; `mkdir` in it opens one, `rmdir` ends it; writable by the tree's owner and root |
//! | `.byteback/cut/NAME/` | the tree at that moment, see [`crate::cuts`] |
//! | `.byteback/delta/NUMBER` | a frozen file, see [`crate::deltas`]; not even listed here |
//!
//! Everything below is read-only (`EROFS`); nothing can be moved or linked from here into the tree
//! or back (`EXDEV`, by copying at most). A real `.byteback` in the backing directory's root is
//! shadowed while the tree is mounted; cuts and backups see it.
//!
//! **Node numbers** are computed, not remembered: two bits say that a node is hidden (see
//! [`crate::inodes`]), the rest identify it. In a cut the rest is made of the cut's serial number
//! and the log's node number. So a node has the same number each time, hard links share it, and no
//! two cuts, nor a cut and the live tree, ever have the same: no kernel cache entry of one is taken
//! for another, and a program that compares device and inode never takes an old file for the live
//! one.
//!
//! This module knows no FUSE. All methods may be called from any number of threads that serve
//! requests.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use byteback_host::tree::{InodeFlags, Stat};
use byteback_model::{NodeId, NodeKind};
use parking_lot::Mutex;

use crate::cuts::{Cuts, FrozenTree, SERIAL_MAX};
use crate::deltas::{Context, Deltas};
use crate::inodes::InodeNumber;
use crate::picture::{FrozenFile, NodeAttributes};

/// The name in the root.
pub(crate) const HIDDEN_NAME: &str = ".byteback";
const CUT_NAME: &str = "cut";
const DELTA_NAME: &str = "delta";

/// Names in the root of what lands, until it is whole: nothing of the user's.
const ON_THEIR_WAY: [&[u8]; 2] = [b".byteback-landing-new-", b".byteback-landing-moved-"];

/// Hexadecimal digits at the end of such a name.
const ON_THEIR_WAY_DIGITS: usize = 32;

/// Low bits of a node's number that hold the log's node number.
const LOGGED_BITS: u32 = 40;
const LOGGED_MAX: u64 = (1 << LOGGED_BITS) - 1;

/// Position of the two bits that hold the kind of a hidden node, above the others.
const KIND_SHIFT: u32 = 60;
const KIND_FIXED: u64 = 0;
const KIND_FROZEN: u64 = 1;
const KIND_DELTA: u64 = 2;

/// A hidden node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HiddenNode {
    /// `.byteback`.
    Top,
    /// `.byteback/cut`.
    Cuts,
    /// `.byteback/delta`.
    Deltas,
    /// A frozen file: the number of its context.
    Delta(u64),
    /// A node of a cut.
    Frozen {
        /// The serial number of the cut.
        serial: u64,
        /// The node's number in the log.
        node: NodeId,
    },
}

impl HiddenNode {
    /// The hidden node that `node` stands for; `None` for a node of the live tree, `Some(None)` for
    /// a number that was never given.
    pub(crate) fn of(node: InodeNumber) -> Option<Option<Self>> {
        let number = node.hidden_number()?;
        let rest = number & ((1 << KIND_SHIFT) - 1);
        Some(match (number >> KIND_SHIFT, rest) {
            (KIND_FIXED, 1) => Some(Self::Top),
            (KIND_FIXED, 2) => Some(Self::Cuts),
            (KIND_FIXED, 3) => Some(Self::Deltas),
            (KIND_DELTA, number) => Some(Self::Delta(number)),
            (KIND_FROZEN, rest) => Some(Self::Frozen {
                serial: rest >> LOGGED_BITS,
                node: NodeId(rest & LOGGED_MAX),
            }),
            _ => None,
        })
    }

    /// # Errors
    /// `EOVERFLOW` for a node of the log with a number that does not fit.
    pub(crate) fn number(self) -> io::Result<InodeNumber> {
        let number = match self {
            Self::Top => 1,
            Self::Cuts => 2,
            Self::Deltas => 3,
            Self::Delta(number) if number < 1 << KIND_SHIFT => (KIND_DELTA << KIND_SHIFT) | number,
            Self::Delta(_) => return Err(io::Error::from_raw_os_error(libc::EOVERFLOW)),
            Self::Frozen { serial, node } => {
                if node.0 > LOGGED_MAX || serial > SERIAL_MAX {
                    return Err(io::Error::from_raw_os_error(libc::EOVERFLOW));
                }
                (KIND_FROZEN << KIND_SHIFT) | (serial << LOGGED_BITS) | node.0
            }
        };
        Ok(InodeNumber::hidden(number))
    }
}

/// How long the kernel may remember an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lasting {
    /// For ever: the answer never changes.
    Always,
    /// Not at all: the next answer may differ.
    No,
}

/// The hidden node that a name stands for.
#[derive(Clone, Debug)]
pub(crate) struct HiddenFound {
    pub(crate) node: InodeNumber,
    pub(crate) stat: Stat,
    /// The name stands for this node.
    pub(crate) name: Lasting,
    pub(crate) attributes: Lasting,
}

/// A listed name.
#[derive(Clone, Debug)]
pub(crate) struct HiddenEntry {
    pub(crate) name: OsString,
    pub(crate) node: InodeNumber,
    pub(crate) kind: NodeKind,
    /// The position after it.
    pub(crate) cookie: u64,
}

/// An open file below `.byteback`.
#[derive(Debug)]
pub(crate) struct HiddenFile {
    tree: Arc<FrozenTree>,
    file: FrozenFile,
}

/// Work that a thread which serves requests must not do.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// See the module.
pub(crate) struct Hidden {
    cuts: Arc<Cuts>,
    deltas: Arc<Deltas>,
    jobs: Sender<Job>,
    files: Mutex<HashMap<u64, Arc<HiddenFile>>>,
    next_file: AtomicU64,
}

impl std::fmt::Debug for Hidden {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Hidden").finish_non_exhaustive()
    }
}

fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

impl Hidden {
    /// `jobs` go to a thread that may wait for requests to be served.
    pub(crate) fn new(cuts: Arc<Cuts>, deltas: Deltas, jobs: Sender<Job>) -> Self {
        Self {
            cuts,
            deltas: Arc::new(deltas),
            jobs,
            files: Mutex::default(),
            next_file: AtomicU64::new(1),
        }
    }

    pub(crate) fn is_hidden_name(name: &OsStr) -> bool {
        name.as_bytes() == HIDDEN_NAME.as_bytes()
    }

    /// Whether a name in the root is one of what is on its way: no listing shows it.
    pub(crate) fn is_on_its_way(name: &OsStr) -> bool {
        let mut digits = ON_THEIR_WAY
            .iter()
            .filter_map(|prefix| name.as_bytes().strip_prefix(*prefix));
        digits.any(|digits| digits.len() == ON_THEIR_WAY_DIGITS && digits.iter().all(u8::is_ascii_hexdigit))
    }

    fn node(node: InodeNumber) -> io::Result<HiddenNode> {
        HiddenNode::of(node).flatten().ok_or_else(|| errno(libc::ESTALE))
    }

    fn tree(&self, serial: u64) -> io::Result<Arc<FrozenTree>> {
        self.cuts.numbered(serial).ok_or_else(|| errno(libc::ESTALE))
    }

    /// A directory of ours: its owner is the tree's.
    fn fixed(&self, node: HiddenNode) -> io::Result<HiddenFound> {
        let stat = self.cuts.setup().live.root().stat()?;
        // The kernel keeps a listing until the time of change moves.
        let (nlink, changed_ns) = match node {
            HiddenNode::Cuts => (2 + self.cuts.names().len() as u64, self.cuts.changed_at_ns()),
            _ => (3, 0),
        };
        let stat = Stat {
            mode: if node == HiddenNode::Deltas { 0o711 } else { 0o755 },
            nlink,
            size: 0,
            blocks: 0,
            mtime_ns: changed_ns.into(),
            ctime_ns: changed_ns,
            inode_flags: InodeFlags::NONE,
            ..stat
        };
        Ok(HiddenFound {
            node: node.number()?,
            stat,
            name: Lasting::Always,
            attributes: Lasting::No,
        })
    }

    fn context(&self, number: u64) -> io::Result<Arc<Context>> {
        self.deltas.numbered(number).ok_or_else(|| errno(libc::ESTALE))
    }

    /// A frozen file belongs to the user who opened it, whatever the file's owner.
    fn delta(&self, number: u64, context: &Context) -> io::Result<HiddenFound> {
        let stat = self.attributes(&context.tree, context.node)?.stat;
        Ok(HiddenFound {
            node: HiddenNode::Delta(number).number()?,
            stat: Stat {
                mode: 0o400,
                uid: context.uid,
                nlink: 1,
                ..stat
            },
            // It goes with the file through which it was made.
            name: Lasting::No,
            attributes: Lasting::Always,
        })
    }

    /// The frozen files.
    pub(crate) fn deltas(&self) -> &Arc<Deltas> {
        &self.deltas
    }

    /// Work for the thread that may wait for requests.
    pub(crate) fn later(&self, job: Job) {
        // If nobody takes it, the mount is ending, and with it the request: its reply goes with the
        // job.
        let _ = self.jobs.send(job);
    }

    fn attributes(&self, tree: &FrozenTree, node: NodeId) -> io::Result<Arc<NodeAttributes>> {
        let read = tree.attributes(node)?;
        // Checked after the read. Attributes remembered earlier are right, but no longer needed.
        self.cuts.check_attached()?;
        Ok(read)
    }

    fn frozen(&self, tree: &FrozenTree, node: NodeId) -> io::Result<HiddenFound> {
        let number = HiddenNode::Frozen {
            serial: tree.serial(),
            node,
        }
        .number()?;
        let attributes = match self.attributes(tree, node) {
            Err(_) if node == NodeId::ROOT && tree.picture.lost().is_some() => return self.lost_root(number),
            attributes => attributes?,
        };
        Ok(HiddenFound {
            node: number,
            stat: attributes.stat,
            name: Lasting::Always,
            attributes: Lasting::Always,
        })
    }

    /// `.byteback` itself.
    pub(crate) fn top(&self) -> io::Result<HiddenFound> {
        self.fixed(HiddenNode::Top)
    }

    /// Looks up `name` in `parent`. Both answers come with how long they hold.
    pub(crate) fn lookup(&self, parent: InodeNumber, name: &OsStr) -> io::Result<Result<HiddenFound, Lasting>> {
        match Self::node(parent)? {
            HiddenNode::Top if name == CUT_NAME => self.fixed(HiddenNode::Cuts).map(Ok),
            HiddenNode::Top if name == DELTA_NAME => self.fixed(HiddenNode::Deltas).map(Ok),
            HiddenNode::Deltas => match name.to_str().and_then(|name| name.parse().ok()) {
                // As it is written, not "+1" or "01".
                Some(number) if name == OsStr::new(&u64::to_string(&number)) => match self.deltas.numbered(number) {
                    Some(context) => self.delta(number, &context).map(Ok),
                    None => Ok(Err(Lasting::No)),
                },
                _ => Ok(Err(Lasting::No)),
            },
            HiddenNode::Delta(_) => Err(errno(libc::ENOTDIR)),
            HiddenNode::Top => Ok(Err(Lasting::No)),
            HiddenNode::Cuts => match self.cuts.named(name) {
                Some(tree) => self.cut_root(&tree).map(Ok),
                None => Ok(Err(Lasting::No)),
            },
            HiddenNode::Frozen { serial, node } => {
                let tree = self.tree(serial)?;
                match tree.child(node, name)? {
                    Some(child) => self.frozen(&tree, child).map(Ok),
                    None => Ok(Err(Lasting::Always)),
                }
            }
        }
    }

    fn cut_root(&self, tree: &FrozenTree) -> io::Result<HiddenFound> {
        Ok(HiddenFound {
            // It can be ended and another opened under the same name.
            name: Lasting::No,
            ..self.frozen(tree, NodeId::ROOT)?
        })
    }

    /// The stand-in for the root of a lost cut: something that can be named and removed.
    fn lost_root(&self, node: InodeNumber) -> io::Result<HiddenFound> {
        Ok(HiddenFound {
            node,
            name: Lasting::No,
            ..self.fixed(HiddenNode::Top)?
        })
    }

    pub(crate) fn stat(&self, node: InodeNumber) -> io::Result<HiddenFound> {
        match Self::node(node)? {
            HiddenNode::Frozen { serial, node } => self.frozen(&*self.tree(serial)?, node),
            HiddenNode::Delta(number) => self.delta(number, &*self.context(number)?),
            fixed => self.fixed(fixed),
        }
    }

    /// The attributes of a frozen node beyond its stat; `None` for our own directories, which have
    /// no more.
    fn more(&self, node: InodeNumber) -> io::Result<Option<Arc<NodeAttributes>>> {
        match Self::node(node)? {
            HiddenNode::Frozen { serial, node } => self.attributes(&*self.tree(serial)?, node).map(Some),
            _ => Ok(None),
        }
    }

    pub(crate) fn read_link(&self, node: InodeNumber) -> io::Result<OsString> {
        let target = self.more(node)?.and_then(|more| more.target.clone());
        target.ok_or_else(|| errno(libc::EINVAL))
    }

    pub(crate) fn get_xattr(&self, node: InodeNumber, name: &OsStr) -> io::Result<Option<Vec<u8>>> {
        let more = self.more(node)?;
        let found = more.and_then(|more| more.xattrs.iter().find(|(known, _)| known == name).cloned());
        Ok(found.map(|(_, value)| value))
    }

    pub(crate) fn list_xattrs(&self, node: InodeNumber) -> io::Result<Vec<OsString>> {
        let more = self.more(node)?;
        Ok(more.map_or_else(Vec::new, |more| {
            more.xattrs.iter().map(|(name, _)| name.clone()).collect()
        }))
    }

    /// The entries of `node` after the position `cookie`, until `deliver` says that one does not
    /// fit.
    pub(crate) fn list(
        &self,
        node: InodeNumber,
        cookie: u64,
        mut deliver: impl FnMut(&HiddenEntry, Option<HiddenFound>) -> bool,
    ) -> io::Result<()> {
        let which = Self::node(node)?;
        let frozen = match which {
            HiddenNode::Frozen { serial, node } => Some((self.tree(serial)?, node)),
            _ => None,
        };
        let dots = [".", ".."].map(OsString::from);
        let mut position = cookie;
        for name in dots.into_iter().skip(usize::try_from(cookie).unwrap_or(usize::MAX)) {
            position += 1;
            let entry = HiddenEntry {
                name,
                node,
                kind: NodeKind::Directory,
                cookie: position,
            };
            if deliver(&entry, None) {
                return Ok(());
            }
        }
        let skip = usize::try_from(position.saturating_sub(2)).unwrap_or(usize::MAX);
        let Some((tree, directory)) = frozen else {
            let entries = match which {
                HiddenNode::Top => vec![(OsString::from(CUT_NAME), self.fixed(HiddenNode::Cuts)?)],
                HiddenNode::Cuts => self.cut_roots()?,
                _ => Vec::new(),
            };
            for (name, found) in entries.into_iter().skip(skip) {
                position += 1;
                let entry = HiddenEntry {
                    name,
                    node: found.node,
                    kind: NodeKind::Directory,
                    cookie: position,
                };
                if deliver(&entry, Some(found)) {
                    break;
                }
            }
            return Ok(());
        };
        for (name, child) in tree.entries(directory)?.iter().skip(skip) {
            position += 1;
            let Some(kind) = tree.kind(*child)? else { continue };
            // An unreadable child is listed all the same; a program that asks for it gets the
            // error.
            let found = self.frozen(&tree, *child).ok();
            let serial = tree.serial();
            let entry = HiddenEntry {
                name: name.clone(),
                node: HiddenNode::Frozen { serial, node: *child }.number()?,
                kind,
                cookie: position,
            };
            if deliver(&entry, found) {
                break;
            }
        }
        Ok(())
    }

    fn cut_roots(&self) -> io::Result<Vec<(OsString, HiddenFound)>> {
        let names = self.cuts.names().into_iter();
        names
            .filter_map(|name| {
                let tree = self.cuts.named(&name)?;
                Some(self.cut_root(&tree).map(|found| (name, found)))
            })
            .collect()
    }

    pub(crate) fn open(&self, node: InodeNumber) -> io::Result<u64> {
        let file = match Self::node(node)? {
            HiddenNode::Frozen { serial, node } => {
                let tree = self.tree(serial)?;
                let file = tree.open(node)?;
                HiddenFile { tree, file }
            }
            HiddenNode::Delta(number) => {
                let context = self.context(number)?;
                let file = context.tree.open(context.node)?;
                HiddenFile {
                    tree: Arc::clone(&context.tree),
                    file,
                }
            }
            _ => return Err(errno(libc::EISDIR)),
        };
        let handle = self.next_file.fetch_add(1, Ordering::Relaxed);
        self.files.lock().insert(handle, Arc::new(file));
        Ok(handle)
    }

    pub(crate) fn release(&self, handle: u64) {
        let file = self.files.lock().remove(&handle);
        // Perhaps the last reader of a cut that was ended: what that kept is freed without the
        // lock.
        drop(file);
    }

    fn file(&self, handle: u64) -> io::Result<Arc<HiddenFile>> {
        self.files
            .lock()
            .get(&handle)
            .cloned()
            .ok_or_else(|| errno(libc::EBADF))
    }

    /// Fills `buffer`; fewer bytes only at the end of the file.
    pub(crate) fn read(&self, handle: u64, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let HiddenFile { tree, file } = &*self.file(handle)?;
        let filled = file.read_at(offset, buffer).map_err(|error| tree.failed(&error))?;
        // After the reading.
        self.cuts.check_attached()?;
        Ok(filled)
    }

    pub(crate) fn seek(&self, handle: u64, from: u64, to_data: bool) -> io::Result<u64> {
        let HiddenFile { tree, file } = &*self.file(handle)?;
        let found = file.seek(from, to_data).map_err(|error| tree.failed(&error))?;
        self.cuts.check_attached()?;
        found.ok_or_else(|| errno(libc::ENXIO))
    }

    /// Opens a cut on another thread; `done` hears of it there.
    pub(crate) fn make_directory(
        self: &Arc<Self>,
        parent: InodeNumber,
        name: &OsStr,
        done: impl FnOnce(io::Result<HiddenFound>) + Send + 'static,
    ) {
        match Self::node(parent) {
            Ok(HiddenNode::Cuts) => {}
            Ok(_) => return done(Err(errno(libc::EROFS))),
            Err(error) => return done(Err(error)),
        }
        let (hidden, name) = (Arc::clone(self), name.to_owned());
        let job: Job = Box::new(move || {
            let opened = hidden.cuts.open_tree(&name);
            done(match opened {
                Ok(tree) => hidden.cut_root(&tree),
                Err(error) => Err(errno(error.errno())),
            });
        });
        self.later(job);
    }

    /// Ends a cut.
    pub(crate) fn remove_directory(&self, parent: InodeNumber, name: &OsStr) -> io::Result<()> {
        match Self::node(parent)? {
            HiddenNode::Cuts => self.cuts.close(name).map_err(|error| errno(error.errno())),
            _ => Err(errno(libc::EROFS)),
        }
    }
}

#[cfg(test)]
mod tests;
