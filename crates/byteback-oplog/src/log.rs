//! The log of one tracked tree, from the gate's point of view.
//!
//! [`Log::begin_write`] and [`Log::begin`] open an [`Operation`]: while one lives, no cut can
//! happen, so what it does and what it logs belong to the same epoch. The order within a write is
//! the gate's first promise:
//!
//! 1. the intent is durable, unless the node is open already (group commit, see
//!    [`crate::intents`]);
//! 2. the operation begins (shared lock; a cut and a checkpoint take it exclusively for
//!    microseconds);
//! 3. the caller performs the change;
//! 4. the caller logs it, also when it failed half way.
//!
//! **Open and clean.** A node is *clean* when the database has its fence: then its content is
//! durable and the log complete. Its first write makes it *open*: either an intent says so, or (for
//! a node that is new, or was found without a fence) the lack of a fence does. [`Log::checkpoint`]
//! closes nodes that have been quiet: the settler makes their content durable, then the fence is
//! committed, in the same transaction with the generation that drops their intents. A write that
//! comes meanwhile takes a new intent, of the newer generation.
//!
//! Why intents can be dropped: a generation is only ever committed together with everything that
//! was logged before it began. Each byte that was written is then either in a layer of the
//! database, or its node is named by an intent that still counts, or its node has no fence.
//!
//! **Epochs.** Nothing of an epoch, no layer and no mark, is in the database before the epoch
//! itself is, and each start begins a new one: none is ever used twice. That holds too when the
//! log's files are restored from an older copy, or made anew: the first epoch of a start is derived
//! from the time, and is beyond all that a log can have used by then (one a millisecond).
//!
//! **Serialised by the caller.** Changes of the names of one node, as the kernel does for every
//! file system: `link`, `unlink` and `rename` of the same node are logged in the order in which
//! they happened.
//!
//! Locks, in the order in which they may be taken: `checkpointing`, then the intents' generation,
//! `gate`, `state`. `state` is never held during I/O.
//!
//! The tables of `state` are looked into several times for each write, so they are hashed by
//! foldhash, seeded anew for each table. The numbers of our nodes are not chosen from outside;
//! inode numbers and birth times come from the file system, and an attacker who could bend them
//! neither knows the seed nor sees how long a lookup takes.

mod open;

use std::ffi::{OsStr, OsString};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use byteback_extents::ByteRange;
use byteback_host::clock::Clock;
use byteback_host::tree::Identity;
use foldhash::HashMap;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::compact::CompactionState;
use crate::copies::Copies;
use crate::damage::DamageWatch;
use crate::database::{self, Database, Snapshot, meta};
use crate::error::{LogError, Result};
use crate::held::HeldBorders;
use crate::ids::{Epoch, TreeId};
use crate::intents::{Appended, Generation, IntentFile};
use crate::keeper::KeeperHandle;
use crate::known::KnownNodes;
use crate::layer::WholeReason;
use crate::ledger::{LedgerEntry, LedgerEvent};
use crate::operation::Operation;
use crate::options::LogOptions;
use crate::pending::{Pending, Place};
use crate::record::{DiskKey, Fence, NodeRecord};
use byteback_model::{NodeId, NodeKind};

/// The operation log of one tracked tree. All methods may be called from any thread.
///
/// ```
/// use std::ffi::OsStr;
/// use std::num::NonZeroUsize;
/// use std::sync::Arc;
///
/// use byteback_host::clock::RealClock;
/// use byteback_host::durable::DurableDir;
/// use byteback_host::random::RealRandomness;
/// use byteback_host::sim::SimDisk;
/// use byteback_host::tree::Identity;
/// use byteback_model::{NodeId, NodeKind};
/// use byteback_oplog::{ChangesCursor, Log, PageLimits};
///
/// let disk: Arc<dyn DurableDir> = Arc::new(SimDisk::new(0));
/// let log = Log::open(&disk, Arc::new(RealClock), &RealRandomness)?;
/// // A tree that exists is compared with the record here, by `Log::scan`.
/// let cut = log.cut("backup", || ())?;
/// log.advance("backup", Some(cut.epoch()), b"")?;
///
/// // A file was created; only now is the operation over.
/// let identity = Identity { dev: 1, ino: 12, birth_ns: None };
/// let notes = log.begin().created(NodeId::ROOT, OsStr::new("notes"), &identity, NodeKind::File);
///
/// let cut = log.cut("backup", || ())?;
/// let all = PageLimits { items: NonZeroUsize::MAX, ranges: NonZeroUsize::MAX };
/// let since = log.consumer("backup")?.mark;
/// let page = cut.changes(since)?.page(&ChangesCursor::default(), all)?;
/// assert_eq!(page.names[0].name.as_bytes(), b"notes");
/// assert_eq!(page.names[0].child, Some(notes));
/// log.advance("backup", Some(cut.epoch()), b"")?;
/// # Ok::<(), byteback_oplog::LogError>(())
/// ```
pub struct Log {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) database: Database,
    /// `None` if layers are kept beside the files, which need none.
    pub(crate) intents: Option<IntentFile>,
    /// Where layers are that the database does not have.
    pub(crate) kept: Option<Arc<KeeperHandle>>,
    pub(crate) gate: RwLock<()>,
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) checkpointing: Mutex<Checkpointing>,
    pub(crate) held: Arc<HeldBorders>,
    pub(crate) damage: Arc<DamageWatch>,
    pub(crate) options: LogOptions,
    tree: TreeId,
    root_device: AtomicU64,
    keeps_births: AtomicBool,
    pub(crate) before_commit: OnceLock<Box<dyn Fn() + Send + Sync>>,
    on_untracked: RwLock<Vec<OnUntracked>>,
    pub(crate) copies: Copies,
}

/// A callback for a file that changed without passing the gate.
type OnUntracked = Box<dyn Fn(NodeId) + Send + Sync>;

/// The number of nodes that a log knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Nodes in the database; a new one gets there with the next checkpoint.
    pub nodes: u64,
    /// Nodes that are not clean.
    pub open_nodes: u64,
}

/// State that only one checkpoint or cut at a time may touch.
#[derive(Debug)]
pub(crate) struct Checkpointing {
    /// The generation that the database counts from.
    pub(crate) committed: Generation,
    pub(crate) compaction: CompactionState,
    /// How often a mark of a file was moved or taken away.
    pub(crate) file_mark_changes: u64,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) epoch: Epoch,
    /// Something was logged in this epoch, be it already in the database.
    pub(crate) epoch_used: bool,
    /// The newest number that was given away.
    pub(crate) last_node: NodeId,
    pub(crate) current: Pending,
    pub(crate) flushing: Option<Arc<Pending>>,
    /// How often something moved from memory into the database.
    pub(crate) flushes: u64,
    pub(crate) open: HashMap<NodeId, OpenNode>,
    /// Nodes that a checkpoint is closing, each with the newest change time that the log can
    /// explain: no longer open, and without a fence until that is committed.
    pub(crate) closing: HashMap<NodeId, i64>,
    known: KnownNodes,
    pub(crate) generation: Generation,
    /// Whether the inodes of changed nodes are noted, for the keeper of layers beside files.
    pub(crate) notes_inodes: bool,
}

/// A node that is not clean.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenNode {
    pub(crate) intent: Intent,
    /// 0 if unknown.
    pub(crate) inode: u64,
    pub(crate) born: Epoch,
    /// When it was last changed, on the monotonic clock, to the tick.
    pub(crate) changed_at_ns: u64,
    /// The newest change time (on the wall clock) that the log can explain: the end of the last
    /// operation on the node, or what a scan saw. If the node's change time is newer, the node was
    /// changed without passing the gate.
    pub(crate) explained_ns: i64,
}

/// The durable trace of an open node that a crash would leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    /// Nothing of its own: all that was written to it is in memory or in the database, and the next
    /// write needs an intent.
    Attributes,
    /// No fence, or no record at all.
    NotNeeded,
    /// An intent.
    Durable(Generation),
}

impl State {
    pub(crate) fn layers(&self) -> impl Iterator<Item = &Pending> {
        [Some(&self.current), self.flushing.as_deref()].into_iter().flatten()
    }

    /// Whether `node` is open, or was changed since the fence that the database may still have.
    fn is_touched(&self, node: NodeId) -> bool {
        self.open.contains_key(&node) || self.layers().any(|pending| pending.nodes.contains_key(&node))
    }

    /// The record of a node according to memory, or that it is gone; `None`: ask the database.
    pub(crate) fn pending_record(&self, node: NodeId) -> Option<Option<NodeRecord>> {
        self.layers()
            .find_map(|pending| pending.record(node))
            .map(|record| record.copied())
    }

    /// The node of a key according to memory, in the same way.
    pub(crate) fn pending_node_of(&self, key: DiskKey) -> Option<Option<NodeId>> {
        let node = self.layers().find_map(|pending| pending.keys.get(&key).copied())?;
        Some(node.filter(|node| self.pending_record(*node) != Some(None)))
    }

    /// As [`State::pending_node_of`], but also from answers of the database that were cached.
    fn known_node_of(&self, key: DiskKey) -> Option<Option<NodeId>> {
        self.pending_node_of(key).or_else(|| self.known.node_of(key).map(Some))
    }

    /// A node came into being, or into the tree.
    pub(crate) fn born(&mut self, node: NodeId, record: NodeRecord) {
        self.known.forget_key(record.key);
        self.current.born(node, record);
    }

    /// Remembers what the database answered when it was asked after `flushes`, unless that may be
    /// outdated.
    fn learn(&mut self, key: DiskKey, node: NodeId, flushes: u64) {
        if self.flushes == flushes && self.pending_node_of(key).is_none() && self.pending_record(node) != Some(None) {
            self.known.learn(key, node);
        }
    }

    /// The last name of a node is gone.
    pub(crate) fn gone(&mut self, node: NodeId) {
        self.known.forget(node);
        self.open.remove(&node);
        self.current.gone(node);
        self.epoch_used = true;
    }
}

impl OpenNode {
    /// Whether it may be written now: with the intent it has, or with the `durable` one that was
    /// just made.
    fn make_writable(&mut self, current: Generation, durable: Option<Generation>, changed_at_ns: u64) -> bool {
        if self.intent == Intent::Attributes {
            // An intent of an older generation may have been dropped by a rotation that did not
            // know of this write.
            let Some(generation) = durable.filter(|durable| *durable == current) else {
                return false;
            };
            self.intent = Intent::Durable(generation);
        }
        self.changed_at_ns = changed_at_ns;
        true
    }
}

impl Log {
    /// The identity of this log and of the history it holds.
    #[must_use]
    pub fn tree(&self) -> TreeId {
        self.tree
    }

    /// How it is kept.
    #[must_use]
    pub fn options(&self) -> &LogOptions {
        &self.options
    }

    /// Runs `before_commit` before each commit, when everything that it will make durable was
    /// logged: what is kept beside the log and must not be behind it is made durable there. It may
    /// wait for a disk, and must not call the log. Only the first one counts.
    pub fn set_before_commit(&self, before_commit: impl Fn() + Send + Sync + 'static) {
        let _ = self.before_commit.set(Box::new(before_commit));
    }

    /// Runs `on_untracked` for each file that is found to have been changed without passing the
    /// gate while this log is open. It may be called from within an operation, and must not call
    /// the log.
    pub fn set_on_untracked(&self, on_untracked: impl Fn(NodeId) + Send + Sync + 'static) {
        self.on_untracked.write().push(Box::new(on_untracked));
    }

    pub(crate) fn tell_untracked(&self, node: NodeId) {
        for on_untracked in self.on_untracked.read().iter() {
            on_untracked(node);
        }
    }

    /// The current epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.state.lock().epoch
    }

    /// The first epoch of which nothing is logged so far: the current one, or the next.
    #[must_use]
    pub fn first_unused_epoch(&self) -> Epoch {
        let state = self.state.lock();
        match state.epoch_used {
            true => state.epoch.next(),
            false => state.epoch,
        }
    }

    /// How many nodes there are.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn counts(&self) -> Result<Counts> {
        let nodes = self.database.snapshot()?.node_count()?;
        Ok(Counts {
            nodes,
            open_nodes: self.state.lock().open.len() as u64,
        })
    }

    /// Says that from now on every change passes the gate, until [`Log::end_tracking`].
    ///
    /// # Errors
    /// If that cannot be made durable.
    pub fn begin_tracking(&self) -> Result<()> {
        self.note_tracking(1, LedgerEvent::TrackingBegan)
    }

    /// Says that tracking ended in good order. The caller has made a last checkpoint before.
    ///
    /// # Errors
    /// If that cannot be made durable; the next start then treats the end as unclean.
    pub fn end_tracking(&self) -> Result<()> {
        self.note_tracking(0, LedgerEvent::TrackingEnded)
    }

    fn note_tracking(&self, value: u64, event: LedgerEvent) -> Result<()> {
        let at_ns = self.clock.now_ns();
        self.database.write(|txn| {
            database::set_number(txn, meta::TRACKING, value)?;
            append_to_ledger(txn, &LedgerEntry { at_ns, event })
        })
    }

    /// Begins a change of names or attributes, which needs no intent: names are compared with the
    /// record after an unclean stop, and attributes with the fence.
    pub fn begin(&self) -> Operation<'_> {
        Operation::new(self, self.gate.read(), None)
    }

    /// Waits until the changes that are under way now are done and logged.
    pub fn wait_for_operations(&self) {
        drop(self.gate.write());
    }

    /// Begins a change of `node`'s content, after making the intent durable if the node was clean.
    /// `look`: see [`Operation::compare`].
    ///
    /// # Errors
    /// If the intent cannot be made durable; the change must then not be performed.
    pub fn begin_write(&self, node: NodeId, look: impl FnOnce() -> Option<Fence>) -> Result<Operation<'_>> {
        if let Some(gate) = self.try_begin_write(node, None)? {
            return Ok(Operation::new(self, gate, Some(node)));
        }
        {
            let _no_checkpoint = self.gate.read();
            self.compare_with_fence(node, look)?;
        }
        loop {
            let appended = match &self.intents {
                Some(intents) => intents.append(node)?,
                None => Appended::Durable(self.state.lock().generation),
            };
            match appended {
                Appended::Full(generation) => self.make_room_for_intents(generation)?,
                Appended::Durable(generation) => {
                    if let Some(gate) = self.try_begin_write(node, Some(generation))? {
                        return Ok(Operation::new(self, gate, Some(node)));
                    }
                }
            }
        }
    }

    /// Begins a change of the content of the inode `identity`, as [`Log::begin_write`] does for its
    /// node; `None` if the log knows no such node. `range`: the bytes that are about to change, if
    /// the caller knows that before the operation has begun; they are logged at once unless they
    /// are news ([`Operation::is_logged`]).
    ///
    /// # Errors
    /// As [`Log::begin_write`], or if the database cannot be read.
    pub fn begin_content(
        &self,
        identity: &Identity,
        range: Option<ByteRange>,
        look: impl FnOnce() -> Option<Fence>,
    ) -> Result<Option<(Operation<'_>, NodeId)>> {
        if let Some(begun) = self.begin_open_content(self.key(identity), range) {
            return Ok(Some(begun));
        }
        let Some(node) = self.node_of(identity)? else {
            return Ok(None);
        };
        let mut operation = self.begin_write(node, look)?;
        let mut state = self.state.lock();
        let Some(open) = state.open.get_mut(&node) else {
            // It lost its last name since it was asked for.
            return Ok(None);
        };
        open.inode = identity.ino;
        operation.is_logged = range.is_some_and(|range| state.log_write_if_known(node, range));
        drop(state);
        Ok(Some((operation, node)))
    }

    /// [`Log::begin_content`] where memory answers all that is to be known, which is nearly always:
    /// under one lock.
    fn begin_open_content(&self, key: DiskKey, range: Option<ByteRange>) -> Option<(Operation<'_>, NodeId)> {
        let changed_at_ns = self.clock.coarse_monotonic_ns();
        let gate = self.gate.read();
        let mut state = self.state.lock();
        let node = state.known_node_of(key)??;
        let generation = state.generation;
        let open = state.open.get_mut(&node)?;
        if !open.make_writable(generation, None, changed_at_ns) {
            return None;
        }
        let is_logged = range.is_some_and(|range| state.log_write_if_known(node, range));
        drop(state);
        let mut operation = Operation::new(self, gate, Some(node));
        operation.is_logged = is_logged;
        Some((operation, node))
    }

    /// `durable`: the generation of an intent that was just made for this write. `None`: an intent
    /// is needed.
    fn try_begin_write(&self, node: NodeId, durable: Option<Generation>) -> Result<Option<RwLockReadGuard<'_, ()>>> {
        let changed_at_ns = self.clock.coarse_monotonic_ns();
        let gate = self.gate.read();
        {
            let mut state = self.state.lock();
            let generation = state.generation;
            if let Some(open) = state.open.get_mut(&node) {
                return Ok(open.make_writable(generation, durable, changed_at_ns).then_some(gate));
            }
        }
        // Read without `state`. That the node is open cannot change meanwhile but by another write
        // of its own.
        let Some(record) = self.record(node)? else {
            // A node without any name is of no interest any more: it is written, not logged.
            return Ok(Some(gate));
        };
        let mut state = self.state.lock();
        let generation = state.generation;
        let closed = OpenNode {
            intent: Intent::Attributes,
            inode: record.key.inode,
            born: record.born,
            changed_at_ns,
            explained_ns: record.fence.map_or(i64::MIN, |fence| fence.ctime_ns),
        };
        let open = state.open.get(&node).copied();
        let mut opened = open.unwrap_or(closed);
        let is_writable = opened.make_writable(generation, durable, changed_at_ns);
        if is_writable {
            state.open.insert(node, opened);
        }
        Ok(is_writable.then_some(gate))
    }

    /// See [`Operation::compare`]. The caller holds the gate, so that the node is not closed
    /// meanwhile.
    pub(crate) fn compare_with_fence(&self, node: NodeId, look: impl FnOnce() -> Option<Fence>) -> Result<()> {
        if self.state.lock().is_touched(node) {
            return Ok(());
        }
        let record = self.record(node)?.filter(|record| record.kind == NodeKind::File);
        let Some(fence) = record.and_then(|record| record.fence) else {
            return Ok(());
        };
        if look().is_none_or(|seen| seen == fence) {
            return Ok(());
        }
        let mut state = self.state.lock();
        // A thread that touched the node meanwhile has compared it before, and may have caused the
        // change seen here.
        if !state.is_touched(node) {
            state.current.mark_whole(node, WholeReason::Untracked);
            state.epoch_used = true;
            drop(state);
            self.tell_untracked(node);
        }
        Ok(())
    }

    /// Begins the next generation of intents with those of the nodes that are open, unless another
    /// thread did so since `full`, which found no room.
    fn make_room_for_intents(&self, full: Generation) -> Result<()> {
        let mut checkpointing = self.checkpointing.lock();
        if self.intents.as_ref().is_none_or(|intents| intents.current() != full) {
            return Ok(());
        }
        // The pending log goes first: see the module on why intents can be dropped.
        let pending = self.take_pending();
        let generation = match self.rotate(&checkpointing) {
            Ok(generation) => generation,
            Err(error) => {
                self.take_back(pending);
                return Err(error);
            }
        };
        self.commit_pending(pending, |txn| database::set_number(txn, meta::GENERATION, generation.0))?;
        checkpointing.committed = generation;
        Ok(())
    }

    /// The generation to commit next: a new one, unless the last one never was committed. The
    /// caller has taken the pending log away before, and commits both together.
    pub(crate) fn rotate(&self, checkpointing: &Checkpointing) -> Result<Generation> {
        let Some(intents) = &self.intents else {
            return Ok(checkpointing.committed);
        };
        let current = intents.current();
        if current > checkpointing.committed {
            return Ok(current);
        }
        intents.rotate(|next| {
            let mut state = self.state.lock();
            state.generation = next;
            let durable = state
                .open
                .iter_mut()
                .filter(|(_, open)| matches!(open.intent, Intent::Durable(_)));
            durable
                .map(|(node, open)| {
                    open.intent = Intent::Durable(next);
                    *node
                })
                .collect()
        })
    }

    pub(crate) fn record(&self, node: NodeId) -> Result<Option<NodeRecord>> {
        let pending = self.state.lock().pending_record(node);
        match pending {
            Some(record) => Ok(record),
            None => self
                .damage
                .watch(self.database.snapshot().and_then(|now| now.record(node))),
        }
    }

    /// Why the log is known to be damaged; the next start begins a new one.
    #[must_use]
    pub fn damage(&self) -> Option<&str> {
        self.damage.reason()
    }

    pub(crate) fn key(&self, identity: &Identity) -> DiskKey {
        let keeps_births = self.keeps_births.load(Ordering::Relaxed);
        DiskKey::new(identity, self.root_device.load(Ordering::Relaxed), keeps_births)
    }

    pub(crate) fn set_root(&self, device: u64, keeps_births: bool) {
        self.root_device.store(device, Ordering::Relaxed);
        self.keeps_births.store(keeps_births, Ordering::Relaxed);
        self.state.lock().known.clear();
    }

    /// The node that `identity` is known as.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn node_of(&self, identity: &Identity) -> Result<Option<NodeId>> {
        let key = self.key(identity);
        let flushes = {
            let state = self.state.lock();
            if let Some(node) = state.known_node_of(key) {
                return Ok(node);
            }
            state.flushes
        };
        let found = self.damage.watch(self.node_of_key(key, || self.database.snapshot()))?;
        if let Some(node) = found {
            self.state.lock().learn(key, node, flushes);
        }
        Ok(found)
    }

    pub(crate) fn node_of_key(
        &self,
        key: DiskKey,
        mut snapshot: impl FnMut() -> Result<Snapshot>,
    ) -> Result<Option<NodeId>> {
        loop {
            let flushes = {
                let state = self.state.lock();
                if let Some(node) = state.pending_node_of(key) {
                    return Ok(node);
                }
                state.flushes
            };
            let found = snapshot()?.node_of(key)?;
            let state = self.state.lock();
            if state.flushes != flushes {
                // A checkpoint moved the news that a node is gone, or another one is there, from
                // memory into a database newer than the one that was read: it would go
                // unnoticed.
                continue;
            }
            if let Some(node) = state.pending_node_of(key) {
                return Ok(node);
            }
            // The key of a node that is gone waits in the database for the next checkpoint.
            return Ok(found.filter(|node| state.pending_record(*node) != Some(None)));
        }
    }

    /// The nodes that may be the inode of this number on the device of the root: more than one
    /// where a number was used again.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn nodes_of_inode(&self, inode: u64) -> Result<Vec<NodeId>> {
        loop {
            let flushes = self.state.lock().flushes;
            let snapshot = self.database.snapshot();
            let mut found = self
                .damage
                .watch(snapshot.and_then(|snapshot| snapshot.nodes_of_inode(inode)))?;
            let state = self.state.lock();
            if state.flushes != flushes {
                // A checkpoint moved some from memory into a database newer than the one that was
                // read.
                continue;
            }
            let keys = state.layers().flat_map(|pending| pending.keys.iter());
            let of_inode = keys.filter(|(key, _)| key.device == 0 && key.inode == inode);
            found.extend(of_inode.filter_map(|(_, node)| *node));
            found.sort_unstable();
            found.dedup();
            return Ok(found);
        }
    }

    /// Whether `identity` is who `node` is on the disk.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn is_same(&self, node: NodeId, identity: &Identity) -> Result<bool> {
        Ok(self
            .record(node)?
            .is_some_and(|record| record.key == self.key(identity)))
    }

    /// The names under which `node` is known now.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn places_of(&self, node: NodeId) -> Result<Vec<(NodeId, OsString)>> {
        self.damage.watch(self.with_places_of(node, |_, places| places))
    }

    /// Calls `act` with the names of `node`, while nothing can be logged.
    pub(crate) fn with_places_of<T>(&self, node: NodeId, act: impl FnOnce(&mut State, Vec<Place>) -> T) -> Result<T> {
        loop {
            let flushes = self.state.lock().flushes;
            let durable = self.database.snapshot()?.places_of(node)?;
            let mut state = self.state.lock();
            if state.flushes != flushes {
                // A checkpoint moved names from memory into a database newer than the one that
                // was read.
                continue;
            }
            let layers: Vec<&Pending> = state.layers().collect();
            let mut places: Vec<Place> = Vec::new();
            for place in layers.iter().flat_map(|layer| layer.places_of(node)).chain(&durable) {
                let now = layers.iter().find_map(|layer| layer.names.get(place));
                if now.is_none_or(|child| *child == Some(node)) && !places.contains(place) {
                    places.push(place.clone());
                }
            }
            drop(layers);
            return Ok(act(&mut state, places));
        }
    }

    /// The names that lead from the root to `node` now, by any of its names; `None` if it has none.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn locate(&self, node: NodeId) -> Result<Option<Vec<OsString>>> {
        locate(node, |node| self.places_of(node))
    }

    /// The node that has the name `name` in `parent` now.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn child(&self, parent: NodeId, name: &OsStr) -> Result<Option<NodeId>> {
        let place = (parent, name.to_owned());
        let pending = self
            .state
            .lock()
            .layers()
            .find_map(|pending| pending.names.get(&place).copied());
        if let Some(child) = pending {
            return Ok(child);
        }
        self.damage
            .watch(self.database.snapshot().and_then(|now| now.child(parent, name)))
    }
}

/// A tree deeper than this is taken for a cycle in a damaged log.
const DEPTH_MAX: usize = 1 << 20;

pub(crate) fn locate(node: NodeId, places_of: impl Fn(NodeId) -> Result<Vec<Place>>) -> Result<Option<Vec<OsString>>> {
    let mut names = Vec::new();
    let mut at = node;
    while at != NodeId::ROOT {
        let Some((parent, name)) = places_of(at)?.into_iter().next() else {
            return Ok(None);
        };
        names.push(name);
        if names.len() > DEPTH_MAX {
            return Err(LogError::Damaged { what: "table of names" });
        }
        at = parent;
    }
    names.reverse();
    Ok(Some(names))
}

pub(crate) fn append_to_ledger(txn: &redb::WriteTransaction, entry: &LedgerEntry) -> Result<()> {
    use redb::ReadableTable;
    let mut table = txn.open_table(database::LEDGER)?;
    let next = table.last()?.map_or(0, |(number, _)| number.value() + 1);
    table.insert(next, entry.encode().as_slice())?;
    Ok(())
}

#[cfg(test)]
mod tests;
