//! Opening a log: what the last process left, and the first epoch of this one.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use byteback_host::clock::Clock;
use byteback_host::durable::DurableDir;
use byteback_host::random::Randomness;
use foldhash::HashMap;
use parking_lot::{Mutex, RwLock};

use super::{Checkpointing, Log, State, append_to_ledger};
use crate::compact::CompactionState;
use crate::copies::Copies;
use crate::damage::{self, DamageWatch};
use crate::database::{self, Birth, Database, meta};
use crate::error::{LogError, Result};
use crate::ids::{Epoch, TreeId};
use crate::intents::{self, Generation, IntentFile, OpenIntents};
use crate::keeper::{self, KeeperHandle, LayerKeeper};
use crate::known::KnownNodes;
use crate::layer::WholeReason;
use crate::ledger::{LedgerEntry, LedgerEvent};
use crate::options::LogOptions;
use crate::pending::Pending;
use byteback_model::{NodeId, NodeKind};

/// The gap in node numbers after an unclean stop, behind the last one that is known: numbers given
/// since the last checkpoint are not known, and others may have heard of them (continuous sync
/// sends changes that are not in a checkpoint yet). No two checkpoints are that many nodes apart.
const NODES_SKIPPED: u64 = 1 << 32;

impl Log {
    /// Opens the log in `dir`, creating it if there is none, and begins a new epoch. Files for
    /// which intents were open are reported whole from now on. A damaged log is set aside (as
    /// `log.redb.damaged`), and a new one begins: the ledger says so.
    ///
    /// The caller holds the lock on `dir`, and compares the tree with the record next
    /// ([`Log::scan`]) before anything is tracked or cut.
    ///
    /// # Errors
    /// A disk that cannot be read or written, or a log of a newer version.
    pub fn open(dir: &Arc<dyn DurableDir>, clock: Arc<dyn Clock>, random: &dyn Randomness) -> Result<Self> {
        Self::open_with(dir, clock, random, LogOptions::default())
    }

    /// As [`Log::open`], with other than the default options.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub fn open_with(
        dir: &Arc<dyn DurableDir>,
        clock: Arc<dyn Clock>,
        random: &dyn Randomness,
        options: LogOptions,
    ) -> Result<Self> {
        Self::open_kept(dir, None, clock, random, options)
    }

    /// As [`Log::open_with`], with the layers of files kept by `keeper`, if there is one. A log
    /// that began with a keeper is never opened without one, nor the other way round.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub fn open_kept(
        dir: &Arc<dyn DurableDir>,
        keeper: Option<Arc<dyn LayerKeeper>>,
        clock: Arc<dyn Clock>,
        random: &dyn Randomness,
        options: LogOptions,
    ) -> Result<Self> {
        match Self::try_open(dir, keeper.clone(), Arc::clone(&clock), random, options) {
            Err(error) if error.is_damage() => {
                damage::mark_damage(dir.as_ref(), &error)?;
                Self::try_open(dir, keeper, clock, random, options)
            }
            opened => opened,
        }
    }

    fn try_open(
        dir: &Arc<dyn DurableDir>,
        keeper: Option<Arc<dyn LayerKeeper>>,
        clock: Arc<dyn Clock>,
        random: &dyn Randomness,
        options: LogOptions,
    ) -> Result<Self> {
        let kept = keeper.map(KeeperHandle::new);
        let loss = damage::take_loss(dir.as_ref(), intents::FILE_NAME)?;
        let at_ns = clock.now_ns();
        let mut is_new = false;
        let database = Database::open(Arc::clone(dir), kept.is_some(), || {
            is_new = loss.is_none();
            let tree = random.next_u64().map_err(|source| LogError::File {
                file: "the source of random numbers",
                source,
            })?;
            let event = loss.map(|loss| LedgerEvent::LogLost {
                reason: loss.reason,
                set_aside: loss.set_aside,
            });
            Ok(Birth {
                tree,
                loss: event.map(|event| LedgerEntry { at_ns, event }),
            })
        })?;
        let snapshot = database.snapshot()?;
        let tree = TreeId(snapshot.number(meta::TREE)?);
        let beside = kept
            .as_ref()
            .map(|kept| kept.found(tree))
            .transpose()?
            .unwrap_or_default();
        let last_epoch = keeper::last_epoch(Epoch(snapshot.number(meta::EPOCH)?), &beside);
        let epoch = first_epoch(last_epoch, clock.now_ns());
        let mut last_node = NodeId(snapshot.number(meta::LAST_NODE)?);
        let counted_from = Generation(snapshot.number(meta::GENERATION)?);
        let was_tracking = snapshot.number(meta::TRACKING)? != 0;
        if was_tracking {
            last_node.0 = last_node.0.saturating_add(NODES_SKIPPED);
        }
        let (intents, found) = match &kept {
            None => {
                let (intents, found) = IntentFile::open(dir.as_ref(), counted_from, options.intent_half_sectors)?;
                (Some(intents), found)
            }
            Some(_) => (None, OpenIntents::default()),
        };

        let mut interrupted = Vec::new();
        if found.every_node {
            snapshot.for_each_node(|node, record, _| {
                if record.kind == NodeKind::File {
                    interrupted.push(node);
                }
            })?;
        } else {
            for node in found.nodes {
                // One without a record was new, and is found by the walk.
                if snapshot
                    .record(node)?
                    .is_some_and(|record| record.kind == NodeKind::File)
                {
                    interrupted.push(node);
                }
            }
        }
        let mut pending = Pending::new(epoch, options.bounds(), options.pending_extents_max());
        for node in &interrupted {
            pending.mark_whole(*node, WholeReason::Interrupted);
        }
        drop(snapshot);

        // Nothing counts from the old intents any more once the layers are durable that they stand
        // for.
        let generation = match &intents {
            Some(intents) => intents.rotate(|_| Vec::new())?,
            None => counted_from,
        };
        let mut events = Vec::new();
        if is_new {
            events.push(LedgerEvent::Created);
        }
        if was_tracking {
            events.push(LedgerEvent::Interrupted {
                open_files: interrupted.len() as u64,
            });
        }
        database.write(|txn| {
            if let Some(kept) = &kept {
                kept.take_over(txn, &beside, was_tracking.then_some(at_ns))?;
            }
            database::apply(txn, &pending, kept.as_deref())?;
            database::set_number(txn, meta::EPOCH, epoch.0)?;
            database::set_number(txn, meta::GENERATION, generation.0)?;
            database::set_number(txn, meta::TRACKING, 0)?;
            database::set_number(txn, meta::LAST_NODE, last_node.0)?;
            events
                .into_iter()
                .try_for_each(|event| append_to_ledger(txn, &LedgerEntry { at_ns, event }))
        })?;

        let state = State {
            epoch,
            epoch_used: !interrupted.is_empty(),
            last_node,
            current: Pending::new(epoch, options.bounds(), options.pending_extents_max()),
            flushing: None,
            flushes: 0,
            open: HashMap::default(),
            closing: HashMap::default(),
            known: KnownNodes::default(),
            generation,
            notes_inodes: kept.is_some(),
        };
        let state = Arc::new(Mutex::new(state));
        if let Some(kept) = &kept {
            kept.begin(&state);
        }
        Ok(Self {
            clock,
            database,
            intents,
            kept,
            gate: RwLock::new(()),
            state,
            checkpointing: Mutex::new(Checkpointing {
                committed: generation,
                compaction: CompactionState::default(),
                file_mark_changes: 0,
            }),
            held: Arc::default(),
            damage: DamageWatch::new(Arc::clone(dir)),
            options,
            tree,
            root_device: AtomicU64::new(0),
            keeps_births: AtomicBool::new(true),
            before_commit: OnceLock::new(),
            on_untracked: RwLock::default(),
            copies: Copies::default(),
        })
    }
}

/// The first epoch of a start, after the last one that the database knows. A copy of a database may
/// be older than what programs were told, so the next number is not enough.
fn first_epoch(last: Epoch, now_ns: i64) -> Epoch {
    // In units of 1.05 ms: each cut waits for a disk, so that epochs come slower than that for as
    // long as a log runs.
    let by_the_clock = Epoch(u64::try_from(now_ns >> 20).unwrap_or(0));
    last.next().max(by_the_clock)
}
