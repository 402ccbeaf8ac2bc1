//! The log of one tracked tree, from the gate's point of view.
//!
//! [`Log::begin_write`] and [`Log::begin`] open an [`Operation`]: while one lives, no cut can happen, so what it does and
//! what it logs belong to the same epoch. The order within a write is the gate's first promise:
//!
//! 1. the intent is durable, unless the node is open already (group commit, see [`crate::intents`]);
//! 2. the operation begins (shared lock; a cut and a checkpoint take it exclusively for microseconds);
//! 3. the caller performs the change;
//! 4. the caller logs it, also when it failed half way.
//!
//! **Open and clean.** A node is *clean* when the database has its fence: then its content is durable and the log
//! complete. Its first write makes it *open*: either an intent says so, or (for a node that is new, or was found without
//! a fence) the lack of a fence does. [`Log::checkpoint`] closes nodes that have been quiet: the settler makes their content
//! durable, then the fence is committed, in the same transaction with the generation that drops their intents.
//! A write that comes meanwhile takes a new intent, of the younger generation.
//!
//! **Epochs.** The current epoch is durable before anything is logged in it, and each start begins a new one.
//!
//! Locks, in the order in which they may be taken: `checkpointing`, then the intents' generation, `gate`, `state`.
//! `state` is never held during I/O.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use byteback_host::clock::Clock;
use byteback_host::durable::DurableDir;
use byteback_host::random::Randomness;
use byteback_host::tree::Identity;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::database::{self, Birth, Database, Snapshot, meta};
use crate::error::{LogError, Result};
use crate::ids::{Epoch, NodeId, NodeKind, TreeId};
use crate::intents::{Appended, Generation, IntentFile};
use crate::layer::WholeReason;
use crate::ledger::{LedgerEntry, LedgerEvent};
use crate::operation::Operation;
use crate::pending::{Pending, Place};
use crate::record::{DiskKey, NodeRecord};

/// The operation log of one tracked tree. All methods may be called from any thread.
pub struct Log {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) database: Database,
    pub(crate) intents: IntentFile,
    pub(crate) gate: RwLock<()>,
    pub(crate) state: Mutex<State>,
    pub(crate) checkpointing: Mutex<Checkpointing>,
    tree: TreeId,
    root_device: AtomicU64,
}

/// What only one checkpoint or cut at a time may touch.
#[derive(Debug)]
pub(crate) struct Checkpointing {
    /// The generation that the database counts from.
    pub(crate) committed: Generation,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) epoch: Epoch,
    /// Something was logged in this epoch, be it already in the database.
    pub(crate) epoch_used: bool,
    pub(crate) next_node: NodeId,
    pub(crate) current: Pending,
    pub(crate) flushing: Option<Arc<Pending>>,
    /// How often something moved from memory into the database.
    pub(crate) flushes: u64,
    pub(crate) open: HashMap<NodeId, OpenNode>,
    pub(crate) generation: Generation,
}

/// A node that is not clean.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenNode {
    pub(crate) intent: Intent,
    pub(crate) born: Epoch,
    pub(crate) changed_at_ns: u64,
}

/// What a crash would find about an open node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    /// Its old fence, which differs from what is on the disk; enough as long as no byte was written.
    Attributes,
    /// No fence, or no record at all.
    NotNeeded,
    /// An intent.
    Durable(Generation),
}

impl Log {
    /// Opens the log in `dir`, creating it if there is none, and begins a new epoch. Files for which intents were open
    /// are reported whole from now on.
    ///
    /// The caller holds the lock on `dir`, and compares the tree with the record next ([`Log::scan`]) before anything is
    /// tracked or cut.
    ///
    /// # Errors
    /// A disk that cannot be read or written, a damaged log, or one of a newer version.
    pub fn open(dir: &Arc<dyn DurableDir>, clock: Arc<dyn Clock>, random: &dyn Randomness) -> Result<Self> {
        let mut is_new = false;
        let database = Database::open(Arc::clone(dir), || {
            is_new = true;
            let tree =
                random.next_u64().map_err(|source| LogError::File { file: "source of random numbers", source })?;
            Ok(Birth { tree })
        })?;
        let snapshot = database.snapshot()?;
        let tree = TreeId(snapshot.number(meta::TREE)?);
        let epoch = Epoch(snapshot.number(meta::EPOCH)?).next();
        let next_node = NodeId(snapshot.number(meta::NEXT_NODE)?);
        let counted_from = Generation(snapshot.number(meta::GENERATION)?);
        let was_tracking = snapshot.number(meta::TRACKING)? != 0;
        let (intents, found, _) = IntentFile::open(dir.as_ref(), counted_from)?;

        let mut interrupted = Vec::new();
        if found.every_node {
            use redb::ReadableTable;
            for entry in snapshot.transaction().open_table(database::NODES)?.iter()? {
                interrupted.push(NodeId(entry?.0.value()));
            }
        } else {
            interrupted.extend(found.nodes);
        }
        interrupted.retain(|node| {
            matches!(snapshot.record(*node), Ok(Some(record)) if record.kind == NodeKind::File)
        });
        let mut pending = Pending::new(epoch);
        for node in &interrupted {
            pending.mark_whole(*node, WholeReason::Interrupted);
        }
        drop(snapshot);

        // Nothing counts from the old intents any more once the layers are durable that they stand for.
        let generation = intents.rotate(|_| Vec::new())?;
        let mut events = Vec::new();
        if is_new {
            events.push(LedgerEvent::Created);
        }
        if was_tracking {
            events.push(LedgerEvent::Interrupted { open_files: interrupted.len() as u64 });
        }
        let at_ns = clock.now_ns();
        database.write(|txn| {
            database::apply(txn, &pending)?;
            database::set_fences(txn, interrupted.iter().map(|node| (*node, None)))?;
            database::set_number(txn, meta::EPOCH, epoch.0)?;
            database::set_number(txn, meta::GENERATION, generation.0)?;
            database::set_number(txn, meta::TRACKING, 0)?;
            events.into_iter().try_for_each(|event| append_to_ledger(txn, LedgerEntry { at_ns, event }))
        })?;

        let state = State {
            epoch,
            epoch_used: !interrupted.is_empty(),
            next_node,
            current: Pending::new(epoch),
            flushing: None,
            flushes: 0,
            open: HashMap::new(),
            generation,
        };
        Ok(Self {
            clock,
            database,
            intents,
            gate: RwLock::new(()),
            state: Mutex::new(state),
            checkpointing: Mutex::new(Checkpointing { committed: generation }),
            tree,
            root_device: AtomicU64::new(0),
        })
    }

    /// The identity of this log and of the history it holds.
    #[must_use]
    pub fn tree(&self) -> TreeId {
        self.tree
    }

    /// The current epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.state.lock().epoch
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
            append_to_ledger(txn, LedgerEntry { at_ns, event })
        })
    }

    /// Begins a change of names or attributes, which needs no intent: names are compared with the record after an
    /// unclean stop, and attributes with the fence.
    #[must_use]
    pub fn begin(&self) -> Operation<'_> {
        Operation::new(self, self.gate.read())
    }

    /// Begins a change of `node`'s content, after making the intent durable if the node was clean.
    ///
    /// # Errors
    /// If the intent cannot be made durable; the change must then not be performed.
    pub fn begin_write(&self, node: NodeId) -> Result<Operation<'_>> {
        if let Some(gate) = self.try_begin_write(node, None) {
            return Ok(Operation::new(self, gate));
        }
        loop {
            match self.intents.append(node)? {
                Appended::Full => {
                    let mut checkpointing = self.checkpointing.lock();
                    self.commit_generation(&mut checkpointing)?;
                }
                Appended::Durable(generation) => {
                    if let Some(gate) = self.try_begin_write(node, Some(generation)) {
                        return Ok(Operation::new(self, gate));
                    }
                }
            }
        }
    }

    /// `durable`: the generation of an intent that was just made for this write.
    fn try_begin_write(&self, node: NodeId, durable: Option<Generation>) -> Option<RwLockReadGuard<'_, ()>> {
        let gate = self.gate.read();
        let born_if_unknown = if self.state.lock().open.contains_key(&node) {
            None
        } else {
            // Read before `state` is locked again; nothing but this node's own birth could change it.
            Some(self.record(node).ok().flatten().map(|record| record.born))
        };
        let mut state = self.state.lock();
        let generation = state.generation;
        let changed_at_ns = self.clock.monotonic_ns();
        // An intent of an elder generation may have been dropped by a rotation that did not know of this write.
        let fresh = durable.filter(|durable| *durable == generation).map(Intent::Durable);
        match state.open.get_mut(&node) {
            Some(open) => {
                if open.intent == Intent::Attributes {
                    open.intent = fresh?;
                }
                open.changed_at_ns = changed_at_ns;
            }
            None => match born_if_unknown? {
                // A node without any name is nobody's business any more: it is written, not logged.
                None => return Some(gate),
                Some(born) => {
                    state.open.insert(node, OpenNode { intent: fresh?, born, changed_at_ns });
                }
            },
        }
        Some(gate)
    }

    /// Begins the next generation of intents with those of the nodes that are open, and commits it.
    pub(crate) fn commit_generation(&self, checkpointing: &mut Checkpointing) -> Result<()> {
        let generation = self.rotate(checkpointing)?;
        self.database.write(|txn| database::set_number(txn, meta::GENERATION, generation.0))?;
        checkpointing.committed = generation;
        Ok(())
    }

    /// The generation to commit next: a new one, unless the last one never was committed.
    pub(crate) fn rotate(&self, checkpointing: &Checkpointing) -> Result<Generation> {
        let current = self.intents.current();
        if current > checkpointing.committed {
            return Ok(current);
        }
        self.intents.rotate(|next| {
            let mut state = self.state.lock();
            state.generation = next;
            let durable = state.open.iter_mut().filter(|(_, open)| matches!(open.intent, Intent::Durable(_)));
            durable
                .map(|(node, open)| {
                    open.intent = Intent::Durable(next);
                    *node
                })
                .collect()
        })
    }

    pub(crate) fn record(&self, node: NodeId) -> Result<Option<NodeRecord>> {
        {
            let state = self.state.lock();
            for pending in [Some(&state.current), state.flushing.as_deref()].into_iter().flatten() {
                if let Some(record) = pending.record(node) {
                    return Ok(record.copied());
                }
            }
        }
        self.database.snapshot()?.record(node)
    }

    pub(crate) fn key(&self, identity: &Identity) -> DiskKey {
        DiskKey::new(identity, self.root_device.load(Ordering::Relaxed))
    }

    pub(crate) fn set_root_device(&self, device: u64) {
        self.root_device.store(device, Ordering::Relaxed);
    }

    /// The node that `identity` is known as.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn node_of(&self, identity: &Identity) -> Result<Option<NodeId>> {
        let key = self.key(identity);
        {
            let state = self.state.lock();
            for pending in [Some(&state.current), state.flushing.as_deref()].into_iter().flatten() {
                if let Some(node) = pending.keys.get(&key) {
                    return Ok(*node);
                }
            }
        }
        self.database.snapshot()?.node_of(key)
    }

    /// The identity on the disk of a known node, with the device number 0 standing for the root's device.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn is_same(&self, node: NodeId, identity: &Identity) -> Result<bool> {
        Ok(self.record(node)?.is_some_and(|record| record.key == self.key(identity)))
    }

    /// The names under which `node` is known now.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn places_of(&self, node: NodeId) -> Result<Vec<(NodeId, OsString)>> {
        loop {
            let flushes = self.state.lock().flushes;
            let durable = self.database.snapshot()?.places_of(node)?;
            let state = self.state.lock();
            if state.flushes != flushes {
                // A checkpoint moved names from memory into a database younger than the one that was read.
                continue;
            }
            let layers: Vec<&Pending> =
                [Some(&state.current), state.flushing.as_deref()].into_iter().flatten().collect();
            let mut places: Vec<Place> = Vec::new();
            for place in layers.iter().flat_map(|layer| layer.places_of(node)).chain(&durable) {
                let now = layers.iter().find_map(|layer| layer.names.get(place));
                if now.is_none_or(|child| *child == Some(node)) && !places.contains(place) {
                    places.push(place.clone());
                }
            }
            return Ok(places);
        }
    }

    /// The names that lead from the root to `node` now, by any of its names; `None` if it has none.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn locate(&self, node: NodeId) -> Result<Option<Vec<OsString>>> {
        locate(node, |node| self.places_of(node))
    }

    /// What `name` in `parent` stands for now.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn child(&self, parent: NodeId, name: &OsStr) -> Result<Option<NodeId>> {
        let place = (parent, name.to_owned());
        {
            let state = self.state.lock();
            for pending in [Some(&state.current), state.flushing.as_deref()].into_iter().flatten() {
                if let Some(child) = pending.names.get(&place) {
                    return Ok(*child);
                }
            }
        }
        self.database.snapshot()?.child(parent, name)
    }

    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        self.database.snapshot()
    }
}

/// A tree deeper than this is taken for a cycle in a damaged log.
const DEPTH_MAX: usize = 1 << 16;

pub(crate) fn locate(
    node: NodeId,
    places_of: impl Fn(NodeId) -> Result<Vec<Place>>,
) -> Result<Option<Vec<OsString>>> {
    let mut names = Vec::new();
    let mut at = node;
    while at != NodeId::ROOT {
        let Some((parent, name)) = places_of(at)?.into_iter().next() else { return Ok(None) };
        names.push(name);
        if names.len() > DEPTH_MAX {
            return Err(LogError::Damaged { what: "table of names" });
        }
        at = parent;
    }
    names.reverse();
    Ok(Some(names))
}

pub(crate) fn append_to_ledger(txn: &redb::WriteTransaction, entry: LedgerEntry) -> Result<()> {
    use redb::ReadableTable;
    let mut table = txn.open_table(database::LEDGER)?;
    let next = table.last()?.map_or(0, |(number, _)| number.value() + 1);
    table.insert(next, entry.encode().as_slice())?;
    Ok(())
}
