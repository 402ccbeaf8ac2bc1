//! One change on its way through the gate, and the words in which the gate logs it.
//!
//! When it ends, the time is noted as what explains the node's change time: see
//! [`crate::checkpoint`] on changes that pass the gate by.

use std::cell::Cell;
use std::ffi::OsStr;

use byteback_extents::ByteRange;
use byteback_host::tree::Identity;
use parking_lot::RwLockReadGuard;

use crate::error::Result;
use crate::log::{Intent, Log, OpenNode, State};
use crate::record::{Fence, NodeRecord};
use byteback_model::{NodeId, NodeKind};

/// A change that is under way. While it lives there is no cut: keep it until the change is done and
/// logged, no longer, and begin no other on the same thread.
#[must_use = "the change must be logged through this"]
pub struct Operation<'a> {
    log: &'a Log,
    /// The node whose content or attributes it changes; changes of names are logged when they are
    /// done.
    node: Cell<Option<NodeId>>,
    /// See [`Operation::is_logged`].
    pub(crate) is_logged: bool,
    _gate: RwLockReadGuard<'a, ()>,
}

/// The state of a node after one of its names was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemainingLinks {
    /// The node has other names.
    Linked,
    /// This was its last name.
    Gone,
}

impl<'a> Operation<'a> {
    /// `node`: the one that is about to be written.
    pub(crate) fn new(log: &'a Log, gate: RwLockReadGuard<'a, ()>, node: Option<NodeId>) -> Self {
        Self {
            log,
            node: Cell::new(node),
            is_logged: false,
            _gate: gate,
        }
    }

    /// Compares the file `node`, if it is clean, with its fence, before anything about it is
    /// changed: what came to it without passing the gate would be hidden by this change for good.
    /// If it differs it is reported whole. `look` answers what it looks like now; `None` if that
    /// cannot be told.
    ///
    /// # Errors
    /// If the record cannot be read.
    pub fn compare(&self, node: NodeId, look: impl FnOnce() -> Option<Fence>) -> Result<()> {
        self.log.compare_with_fence(node, look)
    }

    /// Bytes in `range` may have changed: written, zeroed, cut off, or part of what was gained by
    /// lengthening. Only for an operation begun by [`Log::begin_write`] for this node.
    pub fn wrote(&self, node: NodeId, range: ByteRange) {
        let mut state = self.log.state.lock();
        if !state.log_write_if_known(node, range) {
            state.epoch_used = true;
            state.current.wrote(node, range);
            if let Some(inode) = state.inode_of(node) {
                state.current.wrote_inode(node, inode);
            }
        }
    }

    /// Whether all that there is to log about the range that [`Log::begin_content`] was given was
    /// logged when the operation began: the node was born in this epoch, is reported whole anyway,
    /// or these very bytes were logged since the last checkpoint. If not, it is worth finding out
    /// what of the range really changes, and [`Operation::wrote`] is to be told.
    #[must_use]
    pub fn is_logged(&self) -> bool {
        self.is_logged
    }

    /// Owner, mode, times or extended attributes of `node` may have changed.
    pub fn attributes_changed(&self, node: NodeId) {
        self.node.set(Some(node));
        let now = self.log.now();
        self.log.state.lock().touch(node, now);
    }

    /// A new node came into being under `name`.
    pub fn created(&self, parent: NodeId, name: &OsStr, identity: &Identity, kind: NodeKind) -> NodeId {
        let key = self.log.key(identity);
        let now = self.log.now();
        let mut state = self.log.state.lock();
        let epoch = state.epoch;
        state.last_node = NodeId(state.last_node.0 + 1);
        let node = state.last_node;
        state.born(
            node,
            NodeRecord {
                kind,
                key,
                born: epoch,
                fence: None,
            },
        );
        state.open.insert(
            node,
            OpenNode {
                intent: Intent::NotNeeded,
                inode: key.inode,
                born: epoch,
                changed_at_ns: now.monotonic_ns,
                explained_ns: now.wall_ns,
            },
        );
        state.current.set_name(parent, name, Some(node));
        state.touch(parent, now);
        node
    }

    /// `node` got another name.
    pub fn linked(&self, parent: NodeId, name: &OsStr, node: NodeId) {
        let now = self.log.now();
        let mut state = self.log.state.lock();
        state.current.set_name(parent, name, Some(node));
        state.touch(node, now);
        state.touch(parent, now);
    }

    /// `node` lost a name.
    pub fn unlinked(&self, parent: NodeId, name: &OsStr, node: NodeId, remains: RemainingLinks) {
        let now = self.log.now();
        let mut state = self.log.state.lock();
        state.current.set_name(parent, name, None);
        state.touch(parent, now);
        state.remove(node, remains, now);
    }

    /// `node` changed its name. `replaced`: what the new name stood for before.
    pub fn renamed(
        &self,
        from: (NodeId, &OsStr),
        to: (NodeId, &OsStr),
        node: NodeId,
        replaced: Option<(NodeId, RemainingLinks)>,
    ) {
        let now = self.log.now();
        let mut state = self.log.state.lock();
        if replaced.is_some_and(|(replaced, _)| replaced == node) {
            // Two names of one node: POSIX keeps both.
            return;
        }
        state.current.set_name(from.0, from.1, None);
        state.current.set_name(to.0, to.1, Some(node));
        for touched in [from.0, to.0, node] {
            state.touch(touched, now);
        }
        if let Some((replaced, remains)) = replaced {
            state.remove(replaced, remains, now);
        }
    }

    /// Two names were exchanged; each node is given with the name it had before.
    pub fn exchanged(&self, one: (NodeId, &OsStr, NodeId), other: (NodeId, &OsStr, NodeId)) {
        let now = self.log.now();
        let mut state = self.log.state.lock();
        state.current.set_name(one.0, one.1, Some(other.2));
        state.current.set_name(other.0, other.1, Some(one.2));
        for touched in [one.0, one.2, other.0, other.2] {
            state.touch(touched, now);
        }
    }
}

/// A moment on both clocks.
#[derive(Clone, Copy)]
struct Moment {
    /// To the tick.
    monotonic_ns: u64,
    /// To the nanosecond: kernels stamp some changes just as finely, and what is logged must
    /// explain them.
    wall_ns: i64,
}

impl Log {
    /// Whether the log explains the state `seen` of the file `node`: no change of it is known to
    /// have bypassed the gate. False also while a change is under way.
    ///
    /// # Errors
    /// If the record cannot be read.
    pub fn explains(&self, node: NodeId, seen: &Fence) -> Result<bool> {
        {
            let state = self.state.lock();
            if let Some(open) = state.open.get(&node) {
                return Ok(seen.ctime_ns <= open.explained_ns);
            }
            if let Some(explained_ns) = state.closing.get(&node) {
                return Ok(seen.ctime_ns <= *explained_ns);
            }
            if state.layers().any(|pending| pending.nodes.contains_key(&node)) {
                return Ok(false);
            }
        }
        let fence = self.record(node)?.and_then(|record| record.fence);
        Ok(fence.is_some_and(|fence| fence == *seen))
    }

    /// Whether `node` has a name.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn is_known(&self, node: NodeId) -> Result<bool> {
        Ok(self.record(node)?.is_some())
    }

    /// Whether a node, whose content changes by an operation that is under way, still has a name:
    /// it is open until it loses the last one.
    #[must_use]
    pub fn is_open(&self, node: NodeId) -> bool {
        self.state.lock().open.contains_key(&node)
    }

    fn now(&self) -> Moment {
        Moment {
            monotonic_ns: self.clock.coarse_monotonic_ns(),
            wall_ns: self.clock.now_ns(),
        }
    }
}

impl State {
    /// Logs that bytes in `range` of `node` may have changed, unless that would be news: whether it
    /// was logged.
    pub(crate) fn log_write_if_known(&mut self, node: NodeId, range: ByteRange) -> bool {
        // A node without any name was not opened for the log: nothing to say about it.
        let Some(born) = self.open.get(&node).map(|open| open.born) else {
            return true;
        };
        if born == self.epoch {
            self.epoch_used = true;
            self.current.touch(node);
            self.note_touched_inode(node);
            return true;
        }
        self.current.has_written(node, range)
    }

    /// The inode of an open node, if inodes are noted and it is known.
    pub(crate) fn inode_of(&self, node: NodeId) -> Option<u64> {
        let open = self.open.get(&node).filter(|_| self.notes_inodes)?;
        Some(open.inode).filter(|inode| *inode != 0)
    }

    fn note_touched_inode(&mut self, node: NodeId) {
        if let Some(inode) = self.inode_of(node) {
            self.current.touched_inode(node, inode);
        }
    }

    fn remove(&mut self, node: NodeId, remains: RemainingLinks, now: Moment) {
        match remains {
            RemainingLinks::Linked => self.touch(node, now),
            RemainingLinks::Gone => self.gone(node),
        }
    }

    fn touch(&mut self, node: NodeId, now: Moment) {
        self.epoch_used = true;
        self.current.touch(node);
        self.note_touched_inode(node);
        if let Some(open) = self.open.get_mut(&node) {
            open.changed_at_ns = now.monotonic_ns;
            open.explained_ns = open.explained_ns.max(now.wall_ns);
            return;
        }
        // `born` only matters for content, which cannot be written before an intent has looked it
        // up.
        let open = OpenNode {
            intent: Intent::Attributes,
            inode: 0,
            born: crate::ids::Epoch(0),
            changed_at_ns: now.monotonic_ns,
            explained_ns: now.wall_ns,
        };
        self.open.insert(node, open);
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        let Some(node) = self.node.get() else { return };
        let now_ns = self.log.clock.now_ns();
        if let Some(open) = self.log.state.lock().open.get_mut(&node) {
            open.explained_ns = open.explained_ns.max(now_ns);
        }
    }
}
