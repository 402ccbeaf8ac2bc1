//! Moving what is in memory into the database, and closing nodes that have been quiet.
//!
//! Order of a checkpoint, and what a crash leaves after each step:
//!
//! 1. Take the pending log away and pick the quiet nodes. *Crash: all in memory is lost; intents and missing fences say
//!    which files to take as changed, the walk finds the names.*
//! 2. Let the settler make their content durable and stat them. *Same.*
//! 3. Write the intents that stay open as the next generation. *Same: both generations count.*
//! 4. Commit layers, names, fences and the generation together. *After it: the quiet nodes are clean.*
//!
//! If it fails, everything goes back into memory, and the quiet nodes are open again. Their intents of the elder
//! generation still count, because the younger one was not committed; their next write takes a new one all the same.

use std::sync::Arc;

use crate::database::{self, meta};
use crate::error::Result;
use crate::ids::{NodeId, NodeKind};
use crate::log::{Intent, Log, OpenNode};
use crate::pending::Pending;
use crate::record::Fence;

/// Makes content durable, on behalf of the log.
pub trait Settler {
    /// For each node: makes the content that it has now durable, then answers the fence, taken by a stat *after* that.
    /// `None` where the node cannot be found or synced, or was changed so recently that its times prove nothing
    /// ([`TIME_TICK_NS`]): it stays open.
    fn settle(&self, nodes: &[NodeId]) -> Vec<Option<Fence>>;
}

/// Two changes of a file within this time may leave it with the same times: kernels stamp with the tick of their clock,
/// 10 ms at worst. A fence whose change time is younger than that at the moment of its stat would not notice a later change.
pub const TIME_TICK_NS: i64 = 20_000_000;

/// Which nodes a checkpoint closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// Those that have not been changed for so long.
    QuietFor {
        /// Nanoseconds of the monotonic clock.
        ns: u64,
    },
    /// All: at the end of tracking.
    All,
}

/// What a checkpoint did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointReport {
    /// Nodes that are clean now.
    pub closed: u64,
    /// Nodes that stay open.
    pub open: u64,
}

impl Log {
    /// Writes what is in memory to the database and closes nodes. Writers wait only while the pending log is taken away.
    ///
    /// # Errors
    /// A disk that cannot be written. Nothing is lost then; the next checkpoint tries again.
    pub fn checkpoint(&self, settler: &dyn Settler, close: Close) -> Result<CheckpointReport> {
        let mut checkpointing = self.checkpointing.lock();
        let now_ns = self.clock.monotonic_ns();
        let (pending, quiet) = {
            let _no_operation = self.gate.write();
            let mut state = self.state.lock();
            let quiet: Vec<(NodeId, OpenNode)> = state
                .open
                .extract_if(|_, open| match close {
                    Close::All => true,
                    Close::QuietFor { ns } => now_ns.saturating_sub(open.changed_at_ns) >= ns,
                })
                .collect();
            let epoch = state.epoch;
            let pending = Arc::new(std::mem::replace(&mut state.current, Pending::new(epoch)));
            state.flushing = Some(Arc::clone(&pending));
            (pending, quiet)
        };
        if pending.is_empty() && quiet.is_empty() {
            let mut state = self.state.lock();
            state.flushing = None;
            return Ok(CheckpointReport { closed: 0, open: state.open.len() as u64 });
        }
        let nodes: Vec<NodeId> = quiet.iter().map(|(node, _)| *node).collect();
        let fences: Vec<(NodeId, Option<Fence>)> =
            if nodes.is_empty() { Vec::new() } else { nodes.iter().copied().zip(settler.settle(&nodes)).collect() };

        let committed = self.rotate(&checkpointing).and_then(|generation| {
            let (epoch, next_node) = self.numbers();
            self.database.write(|txn| {
                database::apply(txn, &pending)?;
                database::set_fences(txn, fences.iter().copied())?;
                database::set_number(txn, meta::EPOCH, epoch)?;
                database::set_number(txn, meta::NEXT_NODE, next_node)?;
                database::set_number(txn, meta::GENERATION, generation.0)
            })?;
            Ok(generation)
        });
        match committed {
            Ok(generation) => {
                checkpointing.committed = generation;
                let unsettled = self.still_existing_files(fences.iter().filter(|(_, fence)| fence.is_none()));
                let mut state = self.state.lock();
                state.flushing = None;
                state.flushes += 1;
                for (node, open) in quiet.iter().filter(|(node, _)| unsettled.contains(node)) {
                    // The database now says that it has no fence; a younger entry knows more.
                    state.open.entry(*node).or_insert(OpenNode {
                        intent: Intent::NotNeeded,
                        changed_at_ns: now_ns,
                        ..*open
                    });
                }
                let closed = (quiet.len() - unsettled.len()) as u64;
                Ok(CheckpointReport { closed, open: state.open.len() as u64 })
            }
            Err(error) => {
                self.take_back(pending);
                let mut state = self.state.lock();
                for (node, open) in quiet {
                    let intent = if open.intent == Intent::NotNeeded { open.intent } else { Intent::Attributes };
                    state.open.entry(node).or_insert(OpenNode { intent, ..open });
                }
                Err(error)
            }
        }
    }

    /// Declares nodes clean whose content the caller has read between two stats that agree: the way of a folder that is
    /// not mounted. `None` leaves a node open.
    ///
    /// # Errors
    /// A disk that cannot be written.
    pub fn set_fences(&self, fences: &[(NodeId, Option<Fence>)]) -> Result<()> {
        let _one = self.checkpointing.lock();
        self.database.write(|txn| database::set_fences(txn, fences.iter().copied()))?;
        let mut state = self.state.lock();
        for (node, fence) in fences {
            if fence.is_some() {
                state.open.remove(node);
            }
        }
        Ok(())
    }

    /// Writes what is in memory to the database, and nothing else.
    pub(crate) fn flush(&self) -> Result<()> {
        let _one = self.checkpointing.lock();
        let pending = {
            let _no_operation = self.gate.write();
            let mut state = self.state.lock();
            let epoch = state.epoch;
            let pending = Arc::new(std::mem::replace(&mut state.current, Pending::new(epoch)));
            state.flushing = Some(Arc::clone(&pending));
            pending
        };
        self.commit_pending(pending, |_| Ok(()))
    }

    /// Commits a pending log that was taken away, together with what `also` writes; takes it back on failure.
    pub(crate) fn commit_pending(
        &self,
        pending: Arc<Pending>,
        also: impl FnOnce(&redb::WriteTransaction) -> Result<()>,
    ) -> Result<()> {
        let (epoch, next_node) = self.numbers();
        let committed = self.database.write(|txn| {
            database::apply(txn, &pending)?;
            database::set_number(txn, meta::EPOCH, epoch)?;
            database::set_number(txn, meta::NEXT_NODE, next_node)?;
            also(txn)
        });
        if committed.is_err() {
            self.take_back(pending);
        } else {
            let mut state = self.state.lock();
            state.flushing = None;
            state.flushes += 1;
        }
        committed
    }

    fn numbers(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.epoch.0, state.next_node.0)
    }

    fn take_back(&self, pending: Arc<Pending>) {
        let mut state = self.state.lock();
        state.flushing = None;
        let epoch = state.epoch;
        let younger = std::mem::replace(&mut state.current, Pending::new(epoch));
        if let Some(mut elder) = Arc::into_inner(pending) {
            elder.lay(younger);
            state.current = elder;
        }
        state.epoch_used = true;
    }

    fn still_existing_files<'a>(
        &self,
        nodes: impl Iterator<Item = &'a (NodeId, Option<Fence>)>,
    ) -> std::collections::HashSet<NodeId> {
        nodes
            .map(|(node, _)| *node)
            .filter(|node| matches!(self.record(*node), Ok(Some(record)) if record.kind == NodeKind::File))
            .collect()
    }
}
