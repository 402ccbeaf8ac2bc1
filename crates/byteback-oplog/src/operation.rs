//! One change on its way through the gate, and the words in which the gate logs it.
//!
//! When it ends, the time is noted as what explains the node's change time: see [`crate::checkpoint`] on changes that pass
//! the gate by.

use std::cell::Cell;
use std::ffi::OsStr;

use byteback_extents::ByteRange;
use byteback_host::tree::Identity;
use parking_lot::RwLockReadGuard;

use crate::error::Result;
use crate::ids::{NodeId, NodeKind};
use crate::log::{Intent, Log, OpenNode, State};
use crate::record::{Fence, NodeRecord};

/// A change that is under way. While it lives there is no cut: keep it until the change is done and logged, no longer,
/// and begin no other on the same thread.
#[must_use = "the change must be logged through this"]
pub struct Operation<'a> {
    log: &'a Log,
    /// The node whose content or attributes it changes; changes of names are logged when they are done.
    node: Cell<Option<NodeId>>,
    _gate: RwLockReadGuard<'a, ()>,
}

/// What became of the node whose name was taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remains {
    /// It has other names.
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
            _gate: gate,
        }
    }

    /// Compares the file `node`, if it is clean, with its fence, before anything about it is changed: what came to it
    /// without passing the gate would be hidden by this change for good. If it differs it is reported whole. `look` answers
    /// what it looks like now; `None` if that cannot be told.
    ///
    /// # Errors
    /// If the record cannot be read.
    pub fn compare(&self, node: NodeId, look: impl FnOnce() -> Option<Fence>) -> Result<()> {
        self.log.compare_with_fence(node, look)
    }

    /// Bytes in `range` may have changed: written, zeroed, cut off, or part of what was gained by lengthening.
    /// Only for an operation begun by [`Log::begin_write`] for this node.
    pub fn wrote(&self, node: NodeId, range: ByteRange) {
        let mut state = self.log.state.lock();
        // A node without any name was not opened for the log: nothing to say about it.
        let Some(born) = state.open.get(&node).map(|open| open.born) else {
            return;
        };
        state.epoch_used = true;
        if born == state.epoch {
            state.current.touch(node);
        } else {
            state.current.wrote(node, range);
        }
    }

    /// Whether [`Operation::wrote`] would add anything about `range`. If not (the node was born in this epoch, is reported whole
    /// anyway, or these very bytes were logged since the last checkpoint), it is not worth finding out what of the range
    /// really changes.
    #[must_use]
    pub fn is_news(&self, node: NodeId, range: ByteRange) -> bool {
        let state = self.log.state.lock();
        let is_new = |open: &OpenNode| open.born == state.epoch;
        !state.open.get(&node).is_none_or(is_new) && !state.current.has_written(node, range)
    }

    /// Owner, mode, times or extended attributes of `node` may have changed.
    pub fn attributes_changed(&self, node: NodeId) {
        self.node.set(Some(node));
        self.touch(&mut self.log.state.lock(), node);
    }

    /// A new node came into being under `name`.
    pub fn created(&self, parent: NodeId, name: &OsStr, identity: &Identity, kind: NodeKind) -> NodeId {
        let key = self.log.key(identity);
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
        let changed_at_ns = self.log.clock.monotonic_ns();
        state.open.insert(
            node,
            OpenNode {
                intent: Intent::NotNeeded,
                born: epoch,
                changed_at_ns,
                explained_ns: self.log.clock.now_ns(),
            },
        );
        state.current.set_name(parent, name, Some(node));
        self.touch(&mut state, parent);
        node
    }

    /// `node` got another name.
    pub fn linked(&self, parent: NodeId, name: &OsStr, node: NodeId) {
        let mut state = self.log.state.lock();
        state.current.set_name(parent, name, Some(node));
        self.touch(&mut state, node);
        self.touch(&mut state, parent);
    }

    /// `node` lost a name.
    pub fn unlinked(&self, parent: NodeId, name: &OsStr, node: NodeId, remains: Remains) {
        let mut state = self.log.state.lock();
        state.current.set_name(parent, name, None);
        self.touch(&mut state, parent);
        self.remove(&mut state, node, remains);
    }

    /// `node` changed its name. `replaced`: what the new name stood for before.
    pub fn renamed(
        &self,
        from: (NodeId, &OsStr),
        to: (NodeId, &OsStr),
        node: NodeId,
        replaced: Option<(NodeId, Remains)>,
    ) {
        let mut state = self.log.state.lock();
        if replaced.is_some_and(|(replaced, _)| replaced == node) {
            // Two names of one node: POSIX keeps both.
            return;
        }
        state.current.set_name(from.0, from.1, None);
        state.current.set_name(to.0, to.1, Some(node));
        for touched in [from.0, to.0, node] {
            self.touch(&mut state, touched);
        }
        if let Some((replaced, remains)) = replaced {
            self.remove(&mut state, replaced, remains);
        }
    }

    /// Two names were exchanged; each node is given with the name it had before.
    pub fn exchanged(&self, one: (NodeId, &OsStr, NodeId), other: (NodeId, &OsStr, NodeId)) {
        let mut state = self.log.state.lock();
        state.current.set_name(one.0, one.1, Some(other.2));
        state.current.set_name(other.0, other.1, Some(one.2));
        for touched in [one.0, one.2, other.0, other.2] {
            self.touch(&mut state, touched);
        }
    }

    fn remove(&self, state: &mut State, node: NodeId, remains: Remains) {
        match remains {
            Remains::Linked => self.touch(state, node),
            Remains::Gone => state.gone(node),
        }
    }

    fn touch(&self, state: &mut State, node: NodeId) {
        state.epoch_used = true;
        state.current.touch(node);
        let changed_at_ns = self.log.clock.monotonic_ns();
        let explained_ns = self.log.clock.now_ns();
        if let Some(open) = state.open.get_mut(&node) {
            open.changed_at_ns = changed_at_ns;
            open.explained_ns = open.explained_ns.max(explained_ns);
            return;
        }
        // `born` only matters for content, which cannot be written before an intent has looked it up.
        let open = OpenNode {
            intent: Intent::Attributes,
            born: crate::ids::Epoch(0),
            changed_at_ns,
            explained_ns,
        };
        state.open.insert(node, open);
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
