//! The picture of a cut: the tree as it was at one moment, while programs go on changing it.
//!
//! Nothing is copied when a picture is taken. Before a change reaches the backing file, the gate
//! asks each open picture ([`Pictures::before_content`] and its sisters), and what the picture
//! still needs is saved first: old bytes of the range, the attributes, a descriptor of a file that
//! loses its name. A reader takes what was saved, and the rest from the backing file.
//!
//! **Invariant.** For a node of the picture, under its lock: each byte that is *needed* (not yet
//! read) is either in `kept` or unchanged in the backing file. Saving happens under the lock and
//! before the change; reading happens under the lock; so a change either comes after the read or
//! finds its old bytes saved.
//!
//! **Scope.** A new picture needs everything, because the cut must not wait for the list of
//! changes. Once that is known, [`Picture::restrict`] drops the rest, and from then on changes of
//! other nodes cost one look into a table. Of very many nodes only the numbers are noted
//! ([`Picture::restrict_to`]): they are needed whole, and cost memory only while they are read or
//! changed.
//!
//! A picture never blocks or fails a change. If the old state of a node cannot be read (no
//! permission, a bad sector), that node has *failed*: its reader gets an error, the others go on.
//! If it cannot be kept (no space), the picture is *lost*: its kept bytes are freed at once,
//! nothing more is saved, and its reader has to begin anew.
//!
//! Kept bytes go to an unnamed file, so they vanish with the process.

mod frozen;
mod keep;
mod piece;
mod source;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use byteback_extents::{ByteRange, ExtentMap, ExtentSet};
use byteback_host::tree::{Identity, Inode, Stat};
use byteback_model::{NodeId, NodeKind};
use parking_lot::{Mutex, RwLock};

use crate::integrity::{Fault, Integrity, Judgement};
use crate::live::{LiveTree, open_for_reading};
pub use frozen::FrozenFile;
use keep::{Kept, KeptBytes, NotSaved};
use piece::{PieceRead, next_piece};
use source::{FoundInodes, Source};

/// A file that loses its name is copied if at most this much of it is still needed; otherwise its
/// descriptor is kept, which costs no copy but one of a limited number of descriptors.
const COPY_ON_UNLINK_BYTES: u64 = 64 << 10;

/// Descriptors of removed files per picture; each open file of the mount takes one, too.
const HELD_FILES_MAX: usize = 4096;

/// Beyond that, removed files up to this size are copied; a larger one costs the picture.
const COPY_BEYOND_HELD_BYTES: u64 = 4 << 20;

/// See [`Picture::leaving_room_for_the_log`].
const ROOM_BYTES_MAX: u64 = 16 << 20;
const ROOM_PER_DISK: u64 = 16;

/// Content is read in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;

/// Everything about a node but its content.
#[derive(Clone, Debug)]
pub struct NodeAttributes {
    /// The result of a stat.
    pub stat: Stat,
    /// Where a symlink points.
    pub target: Option<OsString>,
    /// Extended attributes, POSIX ACLs among them, in order of their names.
    pub xattrs: Vec<(OsString, Vec<u8>)>,
}

impl NodeAttributes {
    /// Reads them from any descriptor of the node.
    ///
    /// # Errors
    /// The system's error.
    pub fn read(fd: &Inode) -> io::Result<Self> {
        let stat = fd.stat()?;
        let target = if stat.kind == NodeKind::Symlink {
            Some(fd.read_link()?)
        } else {
            None
        };
        let mut xattrs = Vec::new();
        match fd.list_xattrs() {
            Ok(names) => {
                for name in names {
                    // Gone since it was listed, or hidden from us: not ours to save.
                    if let Ok(Some(value)) = fd.get_xattr(&name) {
                        xattrs.push((name, value));
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(error) => return Err(error),
        }
        xattrs.sort_unstable();
        Ok(Self { stat, target, xattrs })
    }
}

/// Why a picture cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    /// A single node cannot be read; the others can.
    #[error("{source}")]
    Node {
        /// The system's error.
        source: io::Error,
    },
    /// Old bytes could not be saved.
    #[error("the picture is lost ({0}): free space in the state folder and start the backup again")]
    Lost(String),
    /// The reader's own error, handed back.
    #[error("the reader stopped")]
    Stopped,
}

/// A piece of content as of the cut.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    /// Bytes at an offset.
    Data(u64, &'a [u8]),
    /// Nothing is stored here; it reads as zeros.
    Hole(ByteRange),
}

/// All open pictures of a tree, as the gate sees them.
#[derive(Debug, Default)]
pub struct Pictures {
    open: RwLock<Vec<Arc<Picture>>>,
    /// Files that lost their names while pictures hold descriptors of them: the log does not know
    /// them any more, but programs may go on writing them.
    removed: Mutex<HashMap<Identity, NodeId>>,
    /// The sums that content is compared with, if any are kept.
    integrity: OnceLock<Arc<Integrity>>,
}

impl Pictures {
    /// Adds a picture. Called at the cut, while no change is under way.
    pub fn open(&self, picture: Arc<Picture>) {
        if let Some(integrity) = self.integrity.get() {
            let _ = picture.integrity.set(Arc::clone(integrity));
        }
        self.open.write().push(picture);
    }

    /// From now on what is read, or kept, for a picture is compared with these sums.
    pub fn compare_with(&self, integrity: Arc<Integrity>) {
        let _ = self.integrity.set(integrity);
    }

    /// Ends a picture: nothing is saved for it any more.
    pub fn close(&self, picture: &Arc<Picture>) {
        let mut open = self.open.write();
        open.retain(|other| !Arc::ptr_eq(other, picture));
        if open.is_empty() {
            self.removed.lock().clear();
        }
    }

    /// The content of `node` in `range` is about to change through `fd`; so are its size and times.
    pub fn before_content(&self, node: NodeId, fd: &Inode, range: ByteRange) {
        self.each(node, |picture, state| picture.save(node, state, fd, Some(range)));
    }

    /// The content of an inode that the log does not know is about to change. If it was removed
    /// since a picture was taken, this is as [`Pictures::before_content`].
    pub fn before_content_of_unknown(&self, identity: &Identity, fd: &Inode, range: ByteRange) {
        let removed = self.removed.lock().get(identity).copied();
        if let Some(node) = removed {
            self.before_content(node, fd, range);
        }
    }

    /// `node` is about to get another name than `name` in `dir`, which moves its change time.
    pub fn before_rename(&self, node: NodeId, dir: &Inode, name: &OsStr) {
        self.each(node, |picture, state| {
            if state.attributes.is_some() || state.failed.is_some() {
                return Ok(());
            }
            let fd = dir.open_path_at(name).map_err(NotSaved::Node)?;
            picture.save(node, state, &fd, None)
        });
    }

    /// Attributes of `node` are about to change.
    pub fn before_attributes(&self, node: NodeId, fd: &Inode) {
        self.each(node, |picture, state| picture.save(node, state, fd, None));
    }

    /// `node`, which is `identity` on the disk, is about to lose the name `name` in `dir`.
    pub fn before_unlink(&self, node: NodeId, identity: &Identity, dir: &Inode, name: &OsStr) {
        self.each(node, |picture, state| {
            picture.save_before_unlink(node, state, dir, name)?;
            if state.fd.is_some() {
                self.removed.lock().insert(*identity, node);
            }
            Ok(())
        });
    }

    fn each(&self, node: NodeId, save: impl Fn(&Picture, &mut NodeState) -> Result<(), NotSaved>) {
        for picture in self.open.read().iter() {
            let Some(state) = picture.state_of(node) else { continue };
            let mut state = state.lock();
            match save(picture, &mut state) {
                Ok(()) => {}
                Err(NotSaved::Node(error)) => state.fail(&error),
                Err(NotSaved::Kept(error)) => {
                    // While the node is locked: the bytes in `kept` may be no copy, and the next
                    // thread that locks it must find the picture lost.
                    picture.mark_lost(&error);
                    drop(state);
                    picture.lose(&error);
                }
            }
        }
    }
}

/// A picture of the tree. Dropping it frees the kept bytes.
#[derive(Debug)]
pub struct Picture {
    nodes: Mutex<Scope>,
    kept: Kept,
    lost: Mutex<Option<String>>,
    read_bytes: AtomicU64,
    /// Descriptors of removed files that are held.
    held_files: AtomicUsize,
    found: FoundInodes,
    integrity: OnceLock<Arc<Integrity>>,
}

#[derive(Debug)]
struct Scope {
    /// The numbers of nodes that are needed whole, also where they are not listed.
    whole: ExtentSet,
    /// Of those, the ones whose content was read, and of which nothing else is known.
    read: ExtentSet,
    nodes: HashMap<NodeId, Arc<Mutex<NodeState>>>,
}

impl Scope {
    fn state_of(&mut self, node: NodeId) -> Option<Arc<Mutex<NodeState>>> {
        if !self.whole.contains(node.0) {
            return self.nodes.get(&node).cloned();
        }
        let state = self.nodes.entry(node).or_insert_with(|| {
            let mut state = NodeState::default();
            if self.read.contains(node.0) {
                state.done.insert(ALL);
            }
            Arc::new(Mutex::new(state))
        });
        Some(Arc::clone(state))
    }
}

/// All bytes that a file can have, or all nodes that there can be.
const ALL: ByteRange = match ByteRange::new(0, u64::MAX) {
    Some(all) => all,
    None => unreachable!(),
};

/// The part of a node's content that a picture's reader will want.
#[derive(Clone, Debug, Default)]
pub enum Needed {
    /// All of it.
    #[default]
    All,
    /// Only these ranges; none for a node of which only the attributes matter.
    Ranges(ExtentSet),
}

#[derive(Debug, Default)]
struct NodeState {
    needed: Needed,
    /// Ranges that were read already.
    done: ExtentSet,
    kept: ExtentMap<KeptBytes>,
    attributes: Option<NodeAttributes>,
    /// Where to read a file that has no name any more.
    fd: Option<Inode>,
    /// All that is needed was kept, since the file was about to lose a name: the backing file is
    /// not asked for any more.
    is_kept_whole: bool,
    /// Why its state at the cut is not known any more.
    failed: Option<String>,
    /// Its content may have changed since the cut.
    is_written: bool,
}

impl NodeState {
    /// Gives the node up, with what is held of it.
    fn fail(&mut self, why: &io::Error) {
        *self = Self {
            failed: Some(why.to_string()),
            ..Self::default()
        };
    }

    fn check(&self) -> Result<(), PictureError> {
        match &self.failed {
            None => Ok(()),
            Some(why) => Err(PictureError::Node {
                source: io::Error::other(format!(
                    "it was changed before it was read, and its old state could not be saved: {why}"
                )),
            }),
        }
    }

    /// Whether `range` is held still: what is not needed may have changed since the cut.
    fn holds(&self, range: ByteRange) -> bool {
        match &self.needed {
            Needed::All => true,
            Needed::Ranges(needed) => needed.covers(range),
        }
    }

    /// The part of `range` that is needed, not yet read, and not kept.
    fn missing(&self, range: ByteRange) -> ExtentSet {
        let mut missing = ExtentSet::new();
        match &self.needed {
            Needed::All => missing.insert(range),
            Needed::Ranges(needed) => needed.iter_within(range).for_each(|range| missing.insert(range)),
        }
        missing.subtract(&self.done);
        for (kept, _) in self.kept.pieces(range) {
            missing.remove(kept);
        }
        missing
    }
}

impl Picture {
    /// A picture that keeps its old bytes in an unnamed file in `dir`, whatever room that leaves.
    #[cfg(test)]
    pub(crate) fn new(dir: &Path) -> Arc<Self> {
        Self::leaving_free(dir, 0)
    }

    /// A picture for a backup: it leaves room for the log, which refuses programs their writes when
    /// it has none: 16 MiB, or a sixteenth of a small disk.
    ///
    /// # Errors
    /// If the free space of `dir` cannot be told.
    pub fn leaving_room_for_the_log(dir: &Path) -> io::Result<Arc<Self>> {
        let space = rustix::fs::statvfs(dir)?;
        let of_small = space.f_blocks.saturating_mul(space.f_frsize) / ROOM_PER_DISK;
        Ok(Self::leaving_free(dir, of_small.min(ROOM_BYTES_MAX)))
    }

    /// A picture that keeps its old bytes in an unnamed file in `dir`. It is given up before it
    /// leaves less than `reserve_bytes` free on the file system of `dir`: one that may be kept for
    /// long must not be what fills a disk.
    #[must_use]
    pub fn leaving_free(dir: &Path, reserve_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            nodes: Mutex::new(Scope {
                whole: [ALL].into_iter().collect(),
                read: ExtentSet::new(),
                nodes: HashMap::new(),
            }),
            kept: Kept::new(dir, reserve_bytes),
            lost: Mutex::new(None),
            read_bytes: AtomicU64::new(0),
            held_files: AtomicUsize::new(0),
            found: FoundInodes::default(),
            integrity: OnceLock::new(),
        })
    }

    /// Nodes with a greater number than `last` came after the cut and are not in the picture.
    pub fn ends_with(&self, last: NodeId) {
        let mut scope = self.nodes.lock();
        scope.whole.truncate(last.0.saturating_add(1));
        scope.nodes.retain(|node, _| *node <= last);
    }

    /// From now on only the nodes with these numbers are needed, whole.
    pub fn restrict_to(&self, numbers: ExtentSet) {
        let mut scope = self.nodes.lock();
        if self.check().is_err() {
            return;
        }
        scope.nodes.retain(|node, _| numbers.contains(node.0));
        scope.whole = numbers;
    }

    /// From now on only these nodes are needed, and of their content only these ranges.
    pub fn restrict(&self, needed: HashMap<NodeId, Needed>) {
        let mut scope = self.nodes.lock();
        if self.check().is_err() {
            return;
        }
        scope.whole.clear();
        scope.nodes.retain(|node, _| needed.contains_key(node));
        for (node, needed) in needed {
            scope.nodes.entry(node).or_default().lock().needed = needed;
        }
    }

    /// Bytes of content read from backing files so far.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// Old bytes kept so far.
    #[must_use]
    pub fn kept_bytes(&self) -> u64 {
        self.kept.len_bytes()
    }

    /// Why the picture is lost, if it is.
    #[must_use]
    pub fn lost(&self) -> Option<String> {
        self.lost.lock().clone()
    }

    fn state_of(&self, node: NodeId) -> Option<Arc<Mutex<NodeState>>> {
        self.nodes.lock().state_of(node)
    }

    fn mark_lost(&self, why: &io::Error) {
        self.lost.lock().get_or_insert_with(|| why.to_string());
    }

    /// Gives the picture up, with everything that it holds. Called without the lock of any node.
    fn lose(&self, why: &io::Error) {
        self.mark_lost(why);
        let nodes = {
            let mut scope = self.nodes.lock();
            scope.whole.clear();
            scope.read.clear();
            std::mem::take(&mut scope.nodes)
        };
        drop(nodes);
        self.found.clear();
        self.kept.free();
    }

    /// Gives the picture up for another reason than its own.
    pub(crate) fn give_up(&self, why: &str) {
        self.lose(&io::Error::other(why.to_owned()));
    }

    fn check(&self) -> Result<(), PictureError> {
        self.lost
            .lock()
            .as_ref()
            .map_or(Ok(()), |why| Err(PictureError::Lost(why.clone())))
    }

    fn save(&self, node: NodeId, state: &mut NodeState, fd: &Inode, range: Option<ByteRange>) -> Result<(), NotSaved> {
        if state.failed.is_some() {
            return Ok(());
        }
        state.is_written |= range.is_some();
        let size = match &state.attributes {
            Some(attributes) => attributes.stat.size,
            None => {
                let attributes = NodeAttributes::read(fd).map_err(NotSaved::Node)?;
                state.attributes.insert(attributes).stat.size
            }
        };
        let Some(range) = range.and_then(|range| range.split_at(size).0) else {
            return Ok(());
        };
        let missing = state.missing(range);
        if missing.is_empty() {
            return Ok(());
        }
        let file = open_for_reading(fd).map_err(NotSaved::Node)?;
        for range in missing.iter() {
            if let Some(integrity) = self.integrity.get() {
                let checked = integrity.check_before_change(node, &file, range);
                checked.map_err(NotSaved::Node)?;
            }
            self.kept.copy(&file, range, &mut state.kept)?;
        }
        Ok(())
    }

    fn save_before_unlink(
        &self,
        node: NodeId,
        state: &mut NodeState,
        dir: &Inode,
        name: &OsStr,
    ) -> Result<(), NotSaved> {
        if state.fd.is_some() || state.is_kept_whole || state.failed.is_some() {
            return Ok(());
        }
        let fd = dir.open_path_at(name).map_err(NotSaved::Node)?;
        let attributes = match &state.attributes {
            Some(attributes) => attributes,
            None => {
                let attributes = NodeAttributes::read(&fd).map_err(NotSaved::Node)?;
                state.attributes.insert(attributes)
            }
        };
        let (kind, size) = (attributes.stat.kind, attributes.stat.size);
        if kind != NodeKind::File {
            return Ok(());
        }
        let all = ByteRange::new(0, size);
        let missing_bytes = all.map_or(0, |all| state.missing(all).total_len_bytes());
        let is_crowded = self.held_files.load(Ordering::Relaxed) >= HELD_FILES_MAX;
        if missing_bytes <= COPY_ON_UNLINK_BYTES || (is_crowded && missing_bytes <= COPY_BEYOND_HELD_BYTES) {
            self.save(node, state, &fd, all)?;
            state.is_kept_whole = true;
            return Ok(());
        }
        if is_crowded {
            return Err(NotSaved::Kept(io::Error::other(
                "too many large files were removed while the picture was open",
            )));
        }
        self.held_files.fetch_add(1, Ordering::Relaxed);
        state.fd = Some(fd);
        Ok(())
    }

    /// The attributes of `node` at the cut.
    ///
    /// # Errors
    /// [`PictureError::Node`] if they cannot be read; [`PictureError::Lost`].
    pub fn attributes(&self, live: &LiveTree, node: NodeId) -> Result<NodeAttributes, PictureError> {
        Ok(self.attributes_and_file(live, node)?.0)
    }

    /// The same for a reader that asks for the content soon after that: a file's descriptor is kept
    /// for it.
    ///
    /// # Errors
    /// As [`Picture::attributes`].
    pub fn attributes_before_content(&self, live: &LiveTree, node: NodeId) -> Result<NodeAttributes, PictureError> {
        let (attributes, found) = self.attributes_and_file(live, node)?;
        if let Some(found) = found.filter(|_| attributes.stat.kind == NodeKind::File) {
            self.found.keep(node, found);
            // A picture that was lost meanwhile holds nothing.
            self.check().inspect_err(|_| self.found.clear())?;
        }
        Ok(attributes)
    }

    /// The attributes, and the descriptor that they were read from, unless they were kept.
    fn attributes_and_file(
        &self,
        live: &LiveTree,
        node: NodeId,
    ) -> Result<(NodeAttributes, Option<Inode>), PictureError> {
        self.check()?;
        let visit = self.visit(node)?;
        let state = &visit.state;
        let known = |state: &NodeState| {
            self.check()?;
            state.check()?;
            Ok(state.attributes.clone())
        };
        if let Some(attributes) = known(&state.lock())? {
            return Ok((attributes, None));
        }
        let found = source::find(live, node);
        // Changed meanwhile: then they were saved before.
        let state = state.lock();
        if let Some(attributes) = known(&state)? {
            return Ok((attributes, None));
        }
        let found = found?;
        let attributes = NodeAttributes::read(&found).map_err(|source| PictureError::Node { source })?;
        self.check()?;
        Ok((attributes, Some(found)))
    }

    /// Reads `ranges` of `node` as of the cut, clipped to its size then, and hands them to `sink`
    /// in order. Bytes that were read are not needed any more.
    ///
    /// # Errors
    /// [`PictureError::Node`] if this file cannot be read; [`PictureError::Lost`];
    /// [`PictureError::Stopped`] if `sink` says so.
    pub fn read(
        &self,
        live: &LiveTree,
        node: NodeId,
        ranges: impl IntoIterator<Item = ByteRange>,
        sink: &mut dyn FnMut(Content<'_>) -> Result<(), PictureError>,
    ) -> Result<(), PictureError> {
        self.check()?;
        let visit = self.visit(node)?;
        let source = self.source(live, &visit.state, node)?;
        self.read_ranges((node, &visit.state), &source, ranges, true, sink)?;
        let mut state = visit.state.lock();
        let size = size_of(&state, &source)?;
        if ByteRange::new(0, size).is_none_or(|all| state.done.covers(all)) {
            // Bytes beyond the end are no part of the picture.
            state.done.insert(ALL);
        }
        Ok(())
    }

    /// Counts bytes of a backing file that were read elsewhere, for this picture's reader.
    pub fn count_read_bytes(&self, bytes: u64) {
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// `once`: what was read is not needed any more.
    fn read_ranges(
        &self,
        (node, shared): (NodeId, &Mutex<NodeState>),
        source: &Source,
        ranges: impl IntoIterator<Item = ByteRange>,
        once: bool,
        sink: &mut dyn FnMut(Content<'_>) -> Result<(), PictureError>,
    ) -> Result<(), PictureError> {
        let faulty = |fault| PictureError::Node {
            source: io::Error::other::<Fault>(fault),
        };
        if let (Some(integrity), Source::File(file)) = (self.integrity.get(), source) {
            let checked = integrity.check_interrupted(node, file);
            checked.map_err(|source| PictureError::Node { source })?;
        }
        let held_back = self.integrity.get().and_then(|integrity| integrity.held_back(node));
        if let Some(fault) = held_back {
            return Err(faulty(fault));
        }
        let mut read = PieceRead::default();
        for range in ranges {
            let mut at = range.start();
            while at < range.end() {
                let mut state = shared.lock();
                self.check()?;
                state.check()?;
                let size = size_of(&state, source)?;
                let Some(rest) = ByteRange::new(at, range.end().min(size)) else {
                    break;
                };
                let piece = next_piece(&state, source, rest, read.known_data);
                at = piece.end();
                if !state.holds(piece) {
                    return Err(not_held());
                }
                read.clear();
                self.read_piece((node, &state), source, piece, &mut read)
                    .map_err(|source| PictureError::Node { source })?;
                self.check()?;
                if once {
                    state.done.insert(piece);
                }
                // The receiver may be slow; writers of this node wait only for the reading.
                drop(state);
                if let (Some(mismatch), Source::File(file)) = (&read.mismatch, source) {
                    let integrity = self.integrity.get();
                    match integrity.map(|integrity| integrity.judge(node, file, file, mismatch)) {
                        None | Some(Judgement::WrittenElsewhere) => {}
                        Some(Judgement::Fault(fault)) => return Err(faulty(fault)),
                        // Put right since, but not yet at the cut, and what was there then is
                        // nowhere any more.
                        Some(Judgement::Overtaken) => return Err(faulty(Fault::of(mismatch))),
                    }
                }
                read.hand_on(sink)?;
            }
        }
        Ok(())
    }

    fn read_piece(
        &self,
        (node, state): (NodeId, &NodeState),
        source: &Source,
        piece: ByteRange,
        read: &mut PieceRead,
    ) -> io::Result<()> {
        for (range, kept) in state.kept.tiles(piece) {
            match (kept, source) {
                (Some(KeptBytes::Hole), _) => read.hole(range),
                (Some(KeptBytes::At { offset }), _) => self.kept.read(offset, read.data(range)?)?,
                (None, Source::File(file)) => self.read_backing((node, file), range, read)?,
                (None, Source::Kept) => return Err(io::Error::other("not all of its old content was kept")),
            }
        }
        Ok(())
    }

    fn read_backing(&self, (node, file): (NodeId, &Inode), range: ByteRange, read: &mut PieceRead) -> io::Result<()> {
        if read.known_data.is_some_and(|known| known.covers(range)) {
            return self.read_data((node, file), range, read);
        }
        let mut at = range.start();
        let mut found = file.data_ranges(range.start(), range.end());
        while let Some(data) = found.next() {
            let data = data?;
            read.known_data = ByteRange::new(data.start, found.data_end());
            if let Some(hole) = ByteRange::new(at, data.start) {
                read.hole(hole);
            }
            at = data.end;
            if let Some(data) = ByteRange::new(data.start, data.end) {
                self.read_data((node, file), data, read)?;
            }
        }
        if let Some(hole) = ByteRange::new(at, range.end()) {
            read.hole(hole);
        }
        Ok(())
    }

    fn read_data(&self, (node, file): (NodeId, &Inode), data: ByteRange, read: &mut PieceRead) -> io::Result<()> {
        if let Some(integrity) = self.integrity.get() {
            let (bytes, mismatch) = integrity.read_range(node, file, data)?;
            if read.mismatch.is_none() {
                read.mismatch = mismatch;
            }
            read.data(data)?.copy_from_slice(&bytes);
            self.read_bytes.fetch_add(data.len_bytes(), Ordering::Relaxed);
            return Ok(());
        }
        read_exact_at(file, data.start(), read.data(data)?)?;
        self.read_bytes.fetch_add(data.len_bytes(), Ordering::Relaxed);
        Ok(())
    }
}

fn size_of(state: &NodeState, source: &Source) -> Result<u64, PictureError> {
    match (&state.attributes, source) {
        (Some(attributes), _) => Ok(attributes.stat.size),
        (None, Source::File(file)) => file
            .stat()
            .map(|stat| stat.size)
            .map_err(|source| PictureError::Node { source }),
        (None, Source::Kept) => Err(not_in_picture()),
    }
}

fn not_held() -> PictureError {
    PictureError::Node {
        source: io::Error::new(
            io::ErrorKind::InvalidInput,
            "the requested part is no longer protected by this picture",
        ),
    }
}

fn not_in_picture() -> PictureError {
    PictureError::Node {
        source: io::Error::new(io::ErrorKind::NotFound, "not part of this picture"),
    }
}

pub(crate) fn read_exact_at(file: &Inode, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(offset + done as u64, &mut buffer[done..]) {
            // Cut off since its size was asked: the picture saved what it needed, so only an
            // untracked change can do that.
            Ok(0) => {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "it was truncated while it was being read",
                ));
            }
            Ok(more) => done += more,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
