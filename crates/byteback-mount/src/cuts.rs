//! Named cuts: moments of the whole tree that stay open under a name and are read like a directory.
//!
//! A named cut is the cut that a backup makes, held for longer and for everybody: the names come
//! from the log's snapshot ([`Cut`]), the content and the attributes from a [`Picture`] that goes
//! on to need everything. Making one ends the log's epoch and costs microseconds; programs go on
//! writing, and the state that they overwrite or remove is kept as far as the cut still needs it.
//!
//! Words: an *open* cut has a name; one that was *ended* has none any more, and lives only as long
//! as files of it are open.
//!
//! Limits: [`CUTS_MAX`] cuts at a time. Kept bytes go to an unnamed file in the state folder;
//! before that leaves less than [`RESERVE_BYTES`] free there, the cut is *lost*: its readers get
//! `EIO`, the daemon's log says why, and no writer is held up. Cuts end with the mount.
//!
//! [`Cuts::open`] waits for what the kernel still holds to be written, by requests that our own
//! threads answer: it must not be called from a thread that serves requests.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use byteback_host::clock::Clock;
use byteback_host::tree::check_component;
use byteback_model::{NodeId, NodeKind};
use byteback_oplog::{Cut, Epoch, LogError};
use parking_lot::Mutex;

use crate::live::LiveTree;
use crate::picture::{FrozenFile, NodeAttributes, Picture, PictureError, Pictures};
use crate::stores::{FlushError, Stores};

/// Cuts at a time, those included that were ended and are still being read.
pub const CUTS_MAX: usize = 32;

/// Bytes that stay free on the file system of the state folder.
pub const RESERVE_BYTES: u64 = 256 << 20;

/// Cuts that one mount can open in its life: the count is part of the inode numbers that programs
/// see.
pub(crate) const SERIAL_MAX: u64 = (1 << 20) - 1;

/// Longest name, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Listings of a cut that are remembered at the same time.
const LISTINGS_MAX: usize = 4;

/// Attributes of a cut that are remembered, in each of two generations.
const ATTRIBUTES_MAX: usize = 1024;

/// Where a line for people goes that looks after the daemon.
#[derive(Clone)]
pub struct Report(Arc<dyn Fn(&str) + Send + Sync>);

impl Report {
    /// Lines go to `tell`.
    pub fn new(tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    pub(crate) fn say(&self, line: &str) {
        (self.0)(line);
    }
}

impl Default for Report {
    fn default() -> Self {
        Self::new(|_| {})
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Report")
    }
}

/// The parts that cuts are made from.
#[derive(Clone)]
pub struct CutSetup {
    /// The tree and its log.
    pub live: LiveTree,
    /// The pictures that the gate saves for.
    pub pictures: Arc<Pictures>,
    /// Where old bytes are kept.
    pub keep_in: PathBuf,
    /// The time that people read.
    pub clock: Arc<dyn Clock>,
    /// Where a line goes when a cut is lost.
    pub report: Report,
}

/// Why a cut was not opened or ended.
#[derive(Debug, thiserror::Error)]
pub enum CutError {
    /// There is one of this name.
    #[error("a cut named {0:?} is already open; end it first, or choose another name")]
    Exists(OsString),
    /// There is none of this name.
    #[error("no cut named {0:?} is open; `byteback cut ls` lists them")]
    Missing(OsString),
    /// The name cannot be that of a directory.
    #[error("{0:?} is not a valid cut name: it must have 1 to 255 bytes without a slash, and not be '.' or '..'")]
    Name(OsString),
    /// The limit is reached.
    #[error("too many cuts: {CUTS_MAX} are open or still being read; end some with `byteback cut rm NAME`")]
    TooMany,
    /// The mount has used up its serial numbers for cuts.
    #[error("this mount has opened too many cuts; remount the folder")]
    Exhausted,
    /// The mount is ending.
    #[error("the folder is being unmounted")]
    Ended,
    /// The kernel could not write back the data that it holds.
    #[error(transparent)]
    Flush(#[from] FlushError),
    /// The log could not cut.
    #[error(transparent)]
    Log(#[from] LogError),
}

impl CutError {
    /// The error number that a program sees.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Exists(_) => libc::EEXIST,
            Self::Missing(_) => libc::ENOENT,
            Self::Name(_) => libc::EINVAL,
            Self::TooMany | Self::Exhausted => libc::EMFILE,
            Self::Ended => libc::ENODEV,
            Self::Flush(_) | Self::Log(_) => libc::EIO,
        }
    }
}

/// A cut, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutStatus {
    /// Its name; the one it had, if it was ended.
    pub name: OsString,
    /// The first epoch after it.
    pub epoch: Epoch,
    /// When it was opened, nanoseconds since 1970.
    pub opened_at_ns: i64,
    /// Old bytes kept for it so far.
    pub kept_bytes: u64,
    /// Its name is gone, and some of its files are still open.
    pub is_ended: bool,
    /// Why it cannot be read any more.
    pub lost: Option<String>,
}

/// A moment of the tree that can be read.
pub(crate) struct FrozenTree {
    name: OsString,
    serial: u64,
    pub(crate) cut: Cut,
    pub(crate) picture: Arc<Picture>,
    setup: CutSetup,
    opened_at_ns: i64,
    told_lost: AtomicBool,
    listings: Mutex<Vec<(NodeId, Listing)>>,
    attributes: Mutex<AttributeCache>,
}

/// The names of a directory with what they stand for.
pub(crate) type Listing = Arc<Vec<(OsString, NodeId)>>;

#[derive(Default)]
struct AttributeCache {
    young: HashMap<NodeId, Arc<NodeAttributes>>,
    old: HashMap<NodeId, Arc<NodeAttributes>>,
}

impl AttributeCache {
    fn get(&mut self, node: NodeId) -> Option<Arc<NodeAttributes>> {
        if let Some(known) = self.young.get(&node) {
            return Some(Arc::clone(known));
        }
        let known = self.old.remove(&node)?;
        self.insert(node, Arc::clone(&known));
        Some(known)
    }

    fn insert(&mut self, node: NodeId, attributes: Arc<NodeAttributes>) {
        if self.young.len() >= ATTRIBUTES_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(node, attributes);
    }
}

impl fmt::Debug for FrozenTree {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("FrozenTree")
            .field("name", &self.name)
            .field("serial", &self.serial)
            .finish_non_exhaustive()
    }
}

impl Drop for FrozenTree {
    fn drop(&mut self) {
        self.setup.pictures.close(&self.picture);
    }
}

impl FrozenTree {
    /// Cuts the tree now; the caller has flushed the kernel's data before. The cut is lost before
    /// its kept bytes leave less than `reserve_bytes` free.
    pub(crate) fn make(setup: &CutSetup, name: OsString, serial: u64, reserve_bytes: u64) -> Result<Self, LogError> {
        let picture = Picture::leaving_free(&setup.keep_in, reserve_bytes);
        let pictures = &setup.pictures;
        let made = setup
            .live
            .log()
            .cut_held(|| pictures.open(Arc::clone(&picture)))
            .and_then(|cut| {
                picture.ends_with(cut.last_node()?);
                Ok(cut)
            });
        let cut = match made {
            Ok(cut) => cut,
            Err(error) => {
                pictures.close(&picture);
                return Err(error);
            }
        };
        Ok(Self {
            name,
            serial,
            cut,
            picture,
            setup: setup.clone(),
            opened_at_ns: setup.clock.now_ns(),
            told_lost: AtomicBool::new(false),
            listings: Mutex::default(),
            attributes: Mutex::default(),
        })
    }

    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// The error that a program sees for `error`; a lost cut is also reported in the daemon's log,
    /// once.
    pub(crate) fn failed(&self, error: &PictureError) -> io::Error {
        match error {
            PictureError::Lost(why) => {
                if !self.told_lost.swap(true, Ordering::Relaxed) {
                    let name = self.name.to_string_lossy();
                    self.setup
                        .report
                        .say(&format!("the cut {name:?} is lost and can no longer be read: {why}"));
                }
                io::Error::from_raw_os_error(libc::EIO)
            }
            PictureError::Node { source } if source.kind() == io::ErrorKind::PermissionDenied => {
                io::Error::from_raw_os_error(libc::EACCES)
            }
            PictureError::Node { .. } | PictureError::Stopped => io::Error::from_raw_os_error(libc::EIO),
        }
    }

    pub(crate) fn child(&self, directory: NodeId, name: &OsStr) -> io::Result<Option<NodeId>> {
        self.cut.child(directory, name).map_err(unreadable)
    }

    pub(crate) fn kind(&self, node: NodeId) -> io::Result<Option<NodeKind>> {
        self.cut.kind(node).map_err(unreadable)
    }

    pub(crate) fn attributes(&self, node: NodeId) -> io::Result<Arc<NodeAttributes>> {
        if let Some(why) = self.picture.lost() {
            return Err(self.failed(&PictureError::Lost(why)));
        }
        if let Some(known) = self.attributes.lock().get(node) {
            return Ok(known);
        }
        let read = self.picture.attributes(&self.setup.live, node);
        let read = Arc::new(read.map_err(|error| self.failed(&error))?);
        self.attributes.lock().insert(node, Arc::clone(&read));
        Ok(read)
    }

    pub(crate) fn open(&self, node: NodeId) -> io::Result<FrozenFile> {
        self.picture
            .open_file(&self.setup.live, node)
            .map_err(|error| self.failed(&error))
    }

    /// The entries of a directory; they never change, so the position in the list is the position
    /// of a reader.
    pub(crate) fn entries(&self, directory: NodeId) -> io::Result<Listing> {
        let known = {
            let listings = self.listings.lock();
            let known = listings.iter().find(|(node, _)| *node == directory);
            known.map(|(_, listing)| Arc::clone(listing))
        };
        if let Some(listing) = known {
            return Ok(listing);
        }
        let listing = Arc::new(self.cut.entries(directory).map_err(unreadable)?);
        let mut listings = self.listings.lock();
        if listings.len() >= LISTINGS_MAX {
            listings.remove(0);
        }
        listings.push((directory, Arc::clone(&listing)));
        Ok(listing)
    }

    fn status(&self, is_ended: bool) -> CutStatus {
        CutStatus {
            name: self.name.clone(),
            epoch: self.cut.epoch(),
            opened_at_ns: self.opened_at_ns,
            kept_bytes: self.picture.kept_bytes(),
            is_ended,
            lost: self.picture.lost(),
        }
    }
}

/// An error of the log's database, for a program.
fn unreadable(_: LogError) -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

/// The cuts of one mount.
pub struct Cuts {
    setup: CutSetup,
    stores: Arc<Stores>,
    is_attached: Box<dyn Fn() -> io::Result<bool> + Send + Sync>,
    state: Mutex<State>,
}

impl fmt::Debug for Cuts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Cuts").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    /// `None` while one of this name is being made.
    by_name: BTreeMap<OsString, Option<Arc<FrozenTree>>>,
    by_serial: HashMap<u64, Arc<FrozenTree>>,
    ended: Vec<Weak<FrozenTree>>,
    next_serial: u64,
    /// When the names last changed, nanoseconds since 1970.
    changed_at_ns: i64,
    is_over: bool,
    is_detached: bool,
}

impl Cuts {
    /// `is_attached` looks whether the mount is still in its place, without asking any file system.
    pub(crate) fn new(
        setup: CutSetup,
        stores: Arc<Stores>,
        is_attached: impl Fn() -> io::Result<bool> + Send + Sync + 'static,
    ) -> Self {
        Self {
            setup,
            stores,
            is_attached: Box::new(is_attached),
            state: Mutex::default(),
        }
    }

    pub(crate) fn setup(&self) -> &CutSetup {
        &self.setup
    }

    /// Opens a cut of the tree as it is now. It contains every change whose call returned before
    /// this one.
    ///
    /// # Errors
    /// See [`CutError`]; nothing is open then.
    pub fn open(&self, name: &OsStr) -> Result<CutStatus, CutError> {
        self.open_tree(name).map(|tree| tree.status(false))
    }

    pub(crate) fn open_tree(&self, name: &OsStr) -> Result<Arc<FrozenTree>, CutError> {
        if check_component(name).is_err() || name.len() > NAME_BYTES_MAX {
            return Err(CutError::Name(name.to_owned()));
        }
        let serial = {
            let mut state = self.state.lock();
            if state.is_over {
                return Err(CutError::Ended);
            }
            state.ended.retain(|tree| tree.strong_count() > 0);
            if state.by_name.contains_key(name) {
                return Err(CutError::Exists(name.to_owned()));
            }
            if state.by_name.len() + state.ended.len() >= CUTS_MAX {
                return Err(CutError::TooMany);
            }
            if state.next_serial > SERIAL_MAX {
                return Err(CutError::Exhausted);
            }
            let serial = state.next_serial;
            state.next_serial += 1;
            state.by_name.insert(name.to_owned(), None);
            serial
        };
        let made = self
            .stores
            .flush()
            .map_err(CutError::Flush)
            .and_then(|_| Ok(FrozenTree::make(&self.setup, name.to_owned(), serial, RESERVE_BYTES)?));
        let mut state = self.state.lock();
        let made = if state.is_over { Err(CutError::Ended) } else { made };
        match made {
            Ok(tree) => {
                let tree = Arc::new(tree);
                state.by_name.insert(name.to_owned(), Some(Arc::clone(&tree)));
                state.by_serial.insert(serial, Arc::clone(&tree));
                state.changed_at_ns = self.setup.clock.now_ns();
                Ok(tree)
            }
            Err(error) => {
                state.by_name.remove(name);
                drop(state);
                let name = name.to_string_lossy();
                self.setup.report.say(&format!("cannot open the cut {name:?}: {error}"));
                Err(error)
            }
        }
    }

    /// Waits until the kernel has written back the data that it holds.
    pub(crate) fn flush(&self) -> Result<(), FlushError> {
        self.stores.flush().map(drop)
    }

    /// Ends a cut: its name is gone at once, what is open of it can be read until it is closed.
    ///
    /// # Errors
    /// [`CutError::Missing`].
    pub fn close(&self, name: &OsStr) -> Result<(), CutError> {
        let tree = {
            let mut state = self.state.lock();
            match state.by_name.remove(name) {
                Some(Some(tree)) => {
                    state.by_serial.remove(&tree.serial);
                    state.ended.push(Arc::downgrade(&tree));
                    state.changed_at_ns = self.setup.clock.now_ns();
                    tree
                }
                Some(None) => {
                    state.by_name.insert(name.to_owned(), None);
                    return Err(CutError::Missing(name.to_owned()));
                }
                None => return Err(CutError::Missing(name.to_owned())),
            }
        };
        // The kept bytes are freed here, or with the last reader: not under the lock.
        drop(tree);
        Ok(())
    }

    /// The names and the changes of an open cut, for callers that list the changes up to it.
    ///
    /// # Errors
    /// [`CutError::Missing`].
    pub fn cut_of(&self, name: &OsStr) -> Result<Cut, CutError> {
        let tree = self.named(name).ok_or_else(|| CutError::Missing(name.to_owned()))?;
        Ok(tree.cut.clone())
    }

    /// All cuts, by name; then those that were ended and are still being read.
    #[must_use]
    pub fn list(&self) -> Vec<CutStatus> {
        let (open, ended) = {
            let state = self.state.lock();
            let open: Vec<_> = state.by_name.values().flatten().cloned().collect();
            let ended: Vec<_> = state.ended.iter().filter_map(Weak::upgrade).collect();
            (open, ended)
        };
        let open = open.iter().map(|tree| tree.status(false));
        open.chain(ended.iter().map(|tree| tree.status(true))).collect()
    }

    /// Ends all cuts; no more can be opened.
    pub(crate) fn end(&self) {
        let open = {
            let mut state = self.state.lock();
            state.is_over = true;
            state.by_name.retain(|_, tree| tree.is_none());
            std::mem::take(&mut state.by_serial)
        };
        drop(open);
    }

    /// The mount was taken away while it is in use: changes pass it by, so nothing protects a
    /// picture any more. Answers how many cuts are lost.
    pub(crate) fn detach(&self) -> usize {
        let trees: Vec<_> = {
            let mut state = self.state.lock();
            if state.is_detached {
                return 0;
            }
            state.is_over = true;
            state.is_detached = true;
            let ended = state.ended.iter().filter_map(Weak::upgrade);
            state.by_serial.values().cloned().chain(ended).collect()
        };
        for tree in &trees {
            tree.picture
                .give_up("the folder was unmounted while programs were using it");
        }
        trees.len()
    }

    /// Whether the mount is still in its place; if not, the cuts are lost.
    ///
    /// # Errors
    /// If the system cannot tell.
    pub(crate) fn look_attached(&self) -> io::Result<bool> {
        if self.state.lock().is_detached {
            return Ok(false);
        }
        let is_attached = (self.is_attached)()?;
        if !is_attached && self.detach() > 0 {
            self.setup
                .report
                .say("another program unmounted the folder: its cuts are lost; mount it again and open new ones");
        }
        Ok(is_attached)
    }

    /// Called *after* something was read of a picture: it was held still then. See
    /// [`crate::session::place`].
    ///
    /// # Errors
    /// `EIO` if it may be of any time.
    pub(crate) fn check_attached(&self) -> io::Result<()> {
        match self.look_attached() {
            Ok(true) => Ok(()),
            _ => Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    }

    pub(crate) fn named(&self, name: &OsStr) -> Option<Arc<FrozenTree>> {
        self.state.lock().by_name.get(name).cloned().flatten()
    }

    pub(crate) fn numbered(&self, serial: u64) -> Option<Arc<FrozenTree>> {
        self.state.lock().by_serial.get(&serial).cloned()
    }

    /// When the names last changed, nanoseconds since 1970; 0 before the first one.
    pub(crate) fn changed_at_ns(&self) -> i64 {
        self.state.lock().changed_at_ns
    }

    /// The names of the open cuts, in order.
    pub(crate) fn names(&self) -> Vec<OsString> {
        let state = self.state.lock();
        let open = state.by_name.values().flatten();
        open.map(|tree| tree.name.clone()).collect()
    }
}
