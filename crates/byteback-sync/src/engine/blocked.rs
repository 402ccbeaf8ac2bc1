//! Changes of others that cannot be made here, because the file is immutable, append-only or in
//! use: when they are tried again, and which changes of this machine wait until then.
//!
//! **Held** are the nodes whose content others have replaced, or which the server no longer has,
//! while the old state is still here. Any change of them that this machine sent would undo the
//! others' change, so no group and no fold tells of them, not even a fold that replaces everything
//! at the server. They stay unsaved in the log, and once they can be changed the plan sees both
//! changes.
//!
//! A group that tells of a held node is not sent: the others' change is tried first, then
//! everything that waits is folded, and the fold leaves out the nodes that are still held.

use byteback_model::{NameChange, NodeId, NodeKind, Place};
use std::collections::HashSet;
use std::time::Duration;

use byteback_control::{LiveGroup, ServiceError};

use super::Engine;
use crate::receive::left_out::BlockedChange;

/// Blocked changes are tried again after this time.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Blocked changes are tried again this soon where programs change a held node.
const AGAIN_AFTER_CHANGE: Duration = Duration::from_secs(5);

/// Blocked changes over time. Which ones there are is listed with the left-out names.
#[derive(Debug, Default)]
pub(super) struct Blocked {
    /// Nodes that the last fold left out because they were held.
    pub(super) held_back: HashSet<NodeId>,
    /// When blocked changes are tried again, by the monotonic clock.
    again_ns: Option<u64>,
    /// When they were last tried.
    tried_ns: u64,
}

/// Nodes and names of which nothing is sent.
#[derive(Debug, Default)]
pub(super) struct Held {
    nodes: HashSet<NodeId>,
    names: HashSet<Place<NodeId>>,
    /// A file whose content could not be changed was removed here.
    has_removed: bool,
    /// The nodes among them that were changed here: the last fold left them out.
    left_out: HashSet<NodeId>,
}

impl Held {
    fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.names.is_empty()
    }

    pub(super) fn has(&self, node: NodeId) -> bool {
        self.nodes.contains(&node)
    }

    pub(super) fn was_left_out(&self, node: NodeId) -> bool {
        self.left_out.contains(&node)
    }

    /// Whether a name stands for something else at the server, or is in a directory that the server
    /// has no more.
    pub(super) fn has_name(&self, name: &NameChange<NodeId>) -> bool {
        !self.is_empty() && (self.has(name.parent) || self.names.contains(&name.place()))
    }

    /// Whether a group tells of anything held.
    fn is_in(&self, group: &LiveGroup) -> bool {
        let is_about =
            |name: &NameChange<NodeId>| self.has_name(name) || name.child.is_some_and(|child| self.has(child));
        group.contents.iter().any(|content| self.has(content.node))
            || group.nodes.iter().any(|changed| self.has(changed.node))
            || group.names.iter().any(is_about)
    }
}

impl Engine {
    /// The nodes and names that are held now.
    pub(super) fn held(&self) -> Result<Held, ServiceError> {
        let mut held = Held::default();
        let mut elsewhere = HashSet::new();
        for change in self.arrivals.left_out.blocked() {
            match change {
                BlockedChange::Content { node, .. } => held.nodes.extend(self.identities.node_of(*node)),
                BlockedChange::Name {
                    parent, name, after, ..
                } => {
                    elsewhere.extend(*after);
                    let (parent, name) = (self.identities.node_of(*parent), name.clone());
                    held.names.extend(parent.map(|parent| Place { parent, name }));
                }
            }
        }
        let landing = &self.parts.landing;
        for node in &held.nodes {
            held.has_removed |= landing.look(*node)?.is_none_or(|found| found.names.is_empty());
        }
        for place in held.names.clone() {
            let Some(node) = landing.child(&place)? else { continue };
            // If the name's new node only waits for it, the server has the node under that name.
            if elsewhere.contains(&self.file_id(node)) {
                continue;
            }
            self.hold_below(node, &mut held)?;
        }
        held.left_out = self.blocked.held_back.intersection(&held.nodes).copied().collect();
        Ok(held)
    }

    /// Holds a node that has no name but held ones, and everything that is nowhere but in it: with
    /// the directory it is gone at the server.
    fn hold_below(&self, node: NodeId, held: &mut Held) -> Result<(), ServiceError> {
        let landing = &self.parts.landing;
        let mut to_do = vec![node];
        while let Some(node) = to_do.pop() {
            let Some(found) = landing.look(node)? else { continue };
            let is_held = |name: &Place<NodeId>| held.names.contains(name) || held.nodes.contains(&name.parent);
            if !found.names.iter().all(is_held) || !held.nodes.insert(node) || found.kind != NodeKind::Directory {
                continue;
            }
            let mut after = None;
            loop {
                let page = landing.entries(node, after.as_ref())?;
                let Some(last) = page.last() else { break };
                after = Some(last.name.clone());
                to_do.extend(page.into_iter().map(|entry| entry.node));
            }
        }
        Ok(())
    }

    /// Whether a group cannot be sent because it tells of something held. If so, the blocked change
    /// is tried again soon.
    pub(super) fn is_held(&mut self, group: &LiveGroup) -> Result<bool, ServiceError> {
        if self.arrivals.left_out.blocked().is_empty() {
            return Ok(false);
        }
        let held = self.held()?;
        if held.has_removed {
            // The removal would reach the server, and with it what others wrote. Nothing is in the
            // way of that any more.
            self.blocked.again_ns = Some(self.clock().monotonic_ns());
            return Ok(true);
        }
        if group.fold.is_some() || !held.is_in(group) {
            return Ok(false);
        }
        let soon_ns = self.blocked.tried_ns.saturating_add(nanoseconds(AGAIN_AFTER_CHANGE));
        self.blocked.again_ns = self.blocked.again_ns.map(|again_ns| again_ns.min(soon_ns));
        Ok(true)
    }

    /// Whether the blocked changes are to be tried again.
    pub(super) fn is_blocked_due(&self) -> bool {
        let now_ns = self.clock().monotonic_ns();
        // The attempt that freed a node may have ended in an error before its change was reported.
        let waits = !self.arrivals.left_out.blocked().is_empty() || !self.blocked.held_back.is_empty();
        waits && self.blocked.again_ns.is_none_or(|again_ns| now_ns >= again_ns)
    }

    /// When blocked changes are tried again, by the monotonic clock.
    pub(super) const fn blocked_again_ns(&self) -> Option<u64> {
        self.blocked.again_ns
    }

    /// Notes that the blocked changes were tried.
    pub(super) fn has_tried_blocked(&mut self) -> Result<(), ServiceError> {
        let now_ns = self.clock().monotonic_ns();
        self.blocked.tried_ns = now_ns;
        let again_ns = now_ns.saturating_add(nanoseconds(AGAIN_AFTER));
        self.blocked.again_ns = (!self.arrivals.left_out.blocked().is_empty()).then_some(again_ns);
        let held = self.held()?;
        let mut released = self.blocked.held_back.iter().filter(|node| !held.has(**node));
        if released.any(|node| self.parts.landing.is_node_queued(*node)) {
            // The log alone knows of their changes: a fold of everything since the mark reports
            // them.
            let why = "changes by others that could not be made here have been made";
            self.parts.live.give_up(why);
        }
        self.blocked.held_back.retain(|node| held.has(*node));
        Ok(())
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
