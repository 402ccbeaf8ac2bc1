//! Moving what is in memory into the database, and closing nodes that have been quiet.
//!
//! Order of a checkpoint, and what a crash leaves after each step:
//!
//! 1. Take the pending log away and pick the quiet nodes. *Crash: everything in memory is lost;
//!    intents and missing fences say which files to take as changed, and the walk finds the names.*
//! 2. Let the settler make their content durable and stat them. *Same.*
//! 3. Wait for the operations under way. A node touched since step 1 stays open: its stat may
//!    already show a change that is logged only in memory. *Same.*
//! 4. Write the intents that stay open as the next generation. *Same: both generations count.*
//! 5. Commit layers, names, fences and the generation together. *After it: the quiet nodes are
//!    clean.* A change between steps 3 and 5 is newer than the stat, so the fence does not match
//!    it; if it is a write, it has an intent.
//!
//! **Changes that bypass the gate**, through a descriptor that is older than the mount or another
//! path to the directory: a clean node shows them at the next start, by its fence. An open node
//! shows them in step 3: its change time is newer than the log can explain. It is then reported
//! whole and stays open until its change time is explained. A change that bypasses the gate on an
//! open node and is followed by an operation through the gate stays unseen; one on a clean file is
//! found when the gate opens it ([`crate::Operation::compare`]).
//!
//! If the commit fails, everything goes back into memory. The quiet nodes are open again but need
//! new intents: it is unknown whether the transaction arrived, and so whether their old intents
//! count.

use std::sync::Arc;

use foldhash::HashSet;

use crate::database::{self, meta};
use crate::error::Result;
use crate::keeper::KeeperHandle;
use crate::layer::WholeReason;
use crate::log::{Intent, Log, OpenNode, State};
use crate::pending::Pending;
use crate::record::Fence;
use byteback_model::{NodeId, NodeKind};

/// Makes content durable, on behalf of the log.
pub trait Settler {
    /// For each node: makes its present content durable, then returns the fence, taken by a stat
    /// *after* that. `None` if the node cannot be found or synced, or changed so recently that its
    /// times prove nothing ([`Fence::proves_at`]): the node then stays open.
    fn settle(&self, nodes: &[NodeId]) -> Vec<Option<Fence>>;
}

/// The most nodes closed at once: this bounds the memory needed, and lets cuts come in between.
const CLOSE_AT_ONCE: usize = 1 << 14;

/// The nodes that a checkpoint closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// The nodes that have been quiet for a given time.
    QuietFor {
        /// Nanoseconds of the monotonic clock.
        ns: u64,
    },
    /// All nodes, at the end of tracking.
    All,
}

/// The outcome of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointReport {
    /// Nodes that are clean now.
    pub closed: u64,
    /// Nodes that stay open.
    pub open: u64,
}

impl Log {
    /// Writes the pending log to the database and closes nodes. Writers wait only while the pending
    /// log is taken away.
    ///
    /// # Errors
    /// A disk that cannot be written. Nothing is lost then; the next checkpoint tries again.
    pub fn checkpoint(&self, settler: &dyn Settler, close: Close) -> Result<CheckpointReport> {
        self.damage.watch(self.try_checkpoint(settler, close))
    }

    fn try_checkpoint(&self, settler: &dyn Settler, close: Close) -> Result<CheckpointReport> {
        let now_ns = self.clock.monotonic_ns();
        let is_quiet = |open: &OpenNode| match close {
            Close::All => true,
            Close::QuietFor { ns } => now_ns.saturating_sub(open.changed_at_ns) >= ns,
        };
        let mut quiet: Vec<NodeId> = {
            let state = self.state.lock();
            let quiet = state.open.iter().filter(|(_, open)| is_quiet(open));
            quiet.map(|(node, _)| *node).collect()
        };
        quiet.sort_unstable();
        let mut report = CheckpointReport::default();
        let mut portions = quiet.chunks(CLOSE_AT_ONCE);
        // At least once, to write the pending log.
        let mut portion = portions.next().unwrap_or_default();
        loop {
            let step = self.checkpoint_and_close(settler, portion, &is_quiet)?;
            report.closed += step.closed;
            report.open = step.open;
            match portions.next() {
                Some(next) => portion = next,
                None => return Ok(report),
            }
        }
    }

    /// Closes those of `candidates` that are still quiet.
    fn checkpoint_and_close(
        &self,
        settler: &dyn Settler,
        candidates: &[NodeId],
        is_quiet: &dyn Fn(&OpenNode) -> bool,
    ) -> Result<CheckpointReport> {
        let mut checkpointing = self.checkpointing.lock();
        let now_ns = self.clock.monotonic_ns();
        let mut passed_by = Vec::new();
        let (pending, mut quiet) = {
            let _no_operation = self.gate.write();
            let mut state = self.state.lock();
            let mut quiet: Vec<(NodeId, OpenNode)> = Vec::with_capacity(candidates.len());
            for node in candidates {
                if state.open.get(node).is_some_and(is_quiet) {
                    quiet.extend(state.open.remove_entry(node));
                }
            }
            state.closing = quiet.iter().map(|(node, open)| (*node, open.explained_ns)).collect();
            // At first contact with a large tree every file was open, and the map took a hundred
            // bytes for each.
            if state.open.len() < state.open.capacity() / 4 {
                let room = state.open.len() * 2;
                state.open.shrink_to(room);
            }
            (state.take_pending(), quiet)
        };
        if pending.is_empty() && quiet.is_empty() {
            let mut state = self.state.lock();
            state.flushing = None;
            return Ok(CheckpointReport {
                closed: 0,
                open: state.open.len() as u64,
            });
        }
        let nodes: Vec<NodeId> = quiet.iter().map(|(node, _)| *node).collect();
        let mut fences = if nodes.is_empty() {
            Vec::new()
        } else {
            settler.settle(&nodes)
        };
        fences.resize(nodes.len(), None);
        let mut fences: Vec<(NodeId, Option<Fence>)> = nodes.into_iter().zip(fences).collect();
        {
            let _no_operation = self.gate.write();
            let mut state = self.state.lock();
            for ((node, fence), (_, open)) in fences.iter_mut().zip(&mut quiet) {
                if state.open.contains_key(node) {
                    *fence = None;
                } else if state.pending_record(*node) == Some(None) {
                    // A change that was logged with it explains the state that the stat saw.
                    *fence = None;
                } else if let Some(unexplained) = fence.filter(|fence| fence.ctime_ns > open.explained_ns) {
                    open.explained_ns = unexplained.ctime_ns;
                    *fence = None;
                    passed_by.push(*node);
                }
            }
            for node in &passed_by {
                // For a directory this reports only the attributes; its names wait for the next
                // start.
                state.current.mark_whole(*node, WholeReason::Untracked);
                state.epoch_used = true;
            }
        }
        passed_by.iter().for_each(|node| self.tell_untracked(*node));
        let committed = match self.rotate(&checkpointing) {
            Err(error) => {
                self.take_back(pending);
                Err(error)
            }
            Ok(generation) => self
                .commit_pending(pending, |txn| {
                    database::set_fences(txn, fences.iter().copied())?;
                    database::set_number(txn, meta::GENERATION, generation.0)
                })
                .map(|()| generation),
        };
        match committed {
            Ok(generation) => {
                checkpointing.committed = generation;
                let unsettled = self.still_existing_files(&fences);
                let mut state = self.state.lock();
                for (node, open) in quiet.iter().filter(|(node, _)| unsettled.contains(node)) {
                    // The database now has no fence for it; a newer entry knows more.
                    let open = OpenNode {
                        intent: Intent::NotNeeded,
                        changed_at_ns: now_ns,
                        ..*open
                    };
                    state.open.entry(*node).or_insert(open);
                }
                state.closing = Default::default();
                let closed = fences.iter().filter(|(_, fence)| fence.is_some()).count() as u64;
                Ok(CheckpointReport {
                    closed,
                    open: state.open.len() as u64,
                })
            }
            Err(error) => {
                self.reopen(&quiet);
                self.state.lock().closing = Default::default();
                Err(error)
            }
        }
    }

    /// Declares nodes clean whose content the caller has read between two matching stats and has
    /// made durable after the first of them (`syncfs` for a whole folder): for a folder that is not
    /// mounted. `None` leaves a node open, as does a change that was logged since the last cut or
    /// checkpoint.
    ///
    /// # Errors
    /// A disk that cannot be written.
    pub fn set_fences(&self, fences: &[(NodeId, Option<Fence>)]) -> Result<()> {
        let _one = self.checkpointing.lock();
        let (pending, closed) = {
            let _no_operation = self.gate.write();
            let mut state = self.state.lock();
            let mut closed = Vec::new();
            for (node, _) in fences.iter().filter(|(_, fence)| fence.is_some()) {
                closed.extend(state.open.remove_entry(node));
            }
            (state.take_pending(), closed)
        };
        let changed: HashSet<NodeId> = pending.nodes.keys().copied().collect();
        let fences = fences
            .iter()
            .map(|(node, fence)| (*node, fence.filter(|_| !changed.contains(node))));
        let committed = self.commit_pending(pending, |txn| database::set_fences(txn, fences));
        if committed.is_err() {
            self.reopen(&closed);
        }
        committed
    }

    /// Makes durable which files these nodes are, so that they keep their numbers after any crash.
    /// A caller that passes a node number to another party does this first: a new file whose number
    /// was only in memory gets another one after a crash, and would be a different file to that
    /// party. Costs nothing if the numbers are durable already.
    ///
    /// Where layers are kept beside the files, everything is made durable, not only numbers: a
    /// crash there takes changes back as if they had never happened, and no report of that reaches
    /// a party that learned of them without a cut.
    ///
    /// # Errors
    /// A disk that cannot be written. Nothing is lost then.
    pub fn keep_numbers(&self, nodes: &[NodeId]) -> Result<()> {
        let _one = self.checkpointing.lock();
        for node in nodes {
            let is_in_memory = self.state.lock().pending_record(*node).is_some();
            // Not known anywhere: the operation that creates it is still under way, so wait for it.
            if is_in_memory || self.record(*node)?.is_none() {
                return self.flush();
            }
        }
        self.kept.as_ref().map_or(Ok(()), |kept| kept.sync())
    }

    /// Writes the pending log to the database, and nothing else. The caller holds `checkpointing`.
    pub(crate) fn flush(&self) -> Result<()> {
        let pending = self.take_pending();
        self.commit_pending(pending, |_| Ok(()))
    }

    /// Takes the pending log away while no operation is under way; it then counts as flushing.
    pub(crate) fn take_pending(&self) -> Arc<Pending> {
        let _no_operation = self.gate.write();
        self.state.lock().take_pending()
    }

    /// Commits a pending log that was taken away, together with what `also` writes; takes it back
    /// on failure.
    pub(crate) fn commit_pending(
        &self,
        pending: Arc<Pending>,
        also: impl FnOnce(&redb::WriteTransaction) -> Result<()>,
    ) -> Result<()> {
        self.commit_with(database::apply, pending, also)
    }

    /// As [`Log::commit_pending`], with `apply` to write the pending log.
    pub(crate) fn commit_with(
        &self,
        apply: impl FnOnce(&redb::WriteTransaction, &Pending, Option<&KeeperHandle>) -> Result<()>,
        pending: Arc<Pending>,
        also: impl FnOnce(&redb::WriteTransaction) -> Result<()>,
    ) -> Result<()> {
        let (epoch, last_node) = {
            let state = self.state.lock();
            (state.epoch.0, state.last_node.0)
        };
        if let Some(before_commit) = self.before_commit.get() {
            before_commit();
        }
        let committed = self.database.write(|txn| {
            apply(txn, &pending, self.kept.as_deref())?;
            database::set_number(txn, meta::EPOCH, epoch)?;
            database::set_number(txn, meta::LAST_NODE, last_node)?;
            also(txn)?;
            // The files first: see [`crate::keeper`] on order.
            self.kept.as_ref().map_or(Ok(()), |kept| kept.sync())
        });
        let committed = self.damage.watch(committed);
        if committed.is_err() {
            self.take_back(pending);
        } else {
            let mut state = self.state.lock();
            state.flushing = None;
            state.flushes += 1;
            drop(state);
            self.sweep_kept();
        }
        committed
    }

    /// Removes layers that were given up. Those that cannot be removed now are left to the next
    /// start. The caller holds `checkpointing`.
    pub(crate) fn sweep_kept(&self) {
        if let Some(kept) = &self.kept {
            let _ = kept.sweep(&self.database);
        }
    }

    /// Puts a pending log whose commit failed, or may have failed, back beneath the changes logged
    /// meanwhile.
    pub(crate) fn take_back(&self, pending: Arc<Pending>) {
        let mut state = self.state.lock();
        state.flushing = None;
        let fresh = state.fresh_pending();
        let newer = std::mem::replace(&mut state.current, fresh);
        let mut older = Arc::unwrap_or_clone(pending);
        older.overlay(newer);
        older.may_be_durable = true;
        state.current = older;
        state.epoch_used = true;
    }

    /// Reopens nodes that could not be closed. Their next write takes an intent: if the transaction
    /// arrived after all, they have a fence, and their old intents do not count.
    fn reopen(&self, closed: &[(NodeId, OpenNode)]) {
        let mut state = self.state.lock();
        for (node, open) in closed {
            state.open.entry(*node).or_insert(OpenNode {
                intent: Intent::Attributes,
                ..*open
            });
        }
    }

    fn still_existing_files(&self, fences: &[(NodeId, Option<Fence>)]) -> HashSet<NodeId> {
        let unsettled = fences
            .iter()
            .filter(|(_, fence)| fence.is_none())
            .map(|(node, _)| *node);
        // If the database cannot be read: a node that is not known as open takes an intent, at
        // worst an unnecessary one.
        let is_file = |node: &NodeId| matches!(self.record(*node), Ok(Some(record)) if record.kind == NodeKind::File);
        unsettled.filter(is_file).collect()
    }
}

impl State {
    /// An empty pending log of the current epoch.
    fn fresh_pending(&self) -> Pending {
        self.current.next(self.epoch)
    }

    /// Takes the pending log away; it then counts as flushing. The caller holds the gate
    /// exclusively.
    pub(crate) fn take_pending(&mut self) -> Arc<Pending> {
        let fresh = self.fresh_pending();
        let pending = Arc::new(std::mem::replace(&mut self.current, fresh));
        self.flushing = Some(Arc::clone(&pending));
        pending
    }
}
