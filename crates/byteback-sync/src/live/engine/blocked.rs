//! What others changed and does not let itself be changed here, for the engine: when it is tried again, and what of this machine's changes waits until then.
//!
//! Whatever would be sent of a **held** node stands on what is not here: a content that others have replaced, or a node that the server has no more. So it is told by no
//! group and no fold, not even by one that replaces all there is, and stays unsaved in the log. Once the node can be changed, the plan sees both changes.
//!
//! A group that is about something held is not sent: others' change is tried first, then all that waits is folded, and the fold leaves out what is still held.

use std::collections::HashSet;
use std::time::Duration;

use byteback_control::{LiveGroup, NameChange, NamePlace, ServiceError};
use byteback_oplog::NodeId;

use super::Engine;
use crate::live::receive::left_out::BlockedChange;

/// The time after which it is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// The same where programs change what is held.
const AGAIN_AFTER_CHANGE: Duration = Duration::from_secs(5);

/// Nodes and names of which nothing is sent.
#[derive(Debug, Default)]
pub(super) struct Held {
    nodes: HashSet<NodeId>,
    names: HashSet<NamePlace>,
    /// A file whose content could not be changed was removed here.
    has_removed: bool,
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.names.is_empty() && !self.has_removed
    }

    pub(super) fn has(&self, node: NodeId) -> bool {
        self.nodes.contains(&node)
    }

    /// Whether a name stands for something else at the server, or is in a directory that the server has no more.
    pub(super) fn has_name(&self, name: &NameChange) -> bool {
        let place = || NamePlace {
            parent: name.parent,
            name: name.name.clone(),
        };
        !self.is_empty() && (self.has(name.parent) || self.names.contains(&place()))
    }

    /// Whether a group tells of anything held.
    fn is_in(&self, group: &LiveGroup) -> bool {
        let is_about = |name: &NameChange| {
            self.has_name(name)
                || name.child.is_some_and(|child| self.has(child))
                || (name.child.is_none() && self.has_removed)
        };
        group.contents.iter().any(|content| self.has(content.node))
            || group.nodes.iter().any(|changed| self.has(changed.node))
            || group.names.iter().any(is_about)
    }
}

impl Engine {
    /// What is held now.
    pub(super) fn held(&self) -> Result<Held, ServiceError> {
        let mut held = Held::default();
        let mut elsewhere = HashSet::new();
        for change in self.left_out.blocked() {
            match change {
                BlockedChange::Content { node, .. } => held.nodes.extend(self.identities.node_of(*node)),
                BlockedChange::Name {
                    parent, name, after, ..
                } => {
                    elsewhere.extend(*after);
                    let (parent, name) = (self.identities.node_of(*parent), name.clone());
                    held.names.extend(parent.map(|parent| NamePlace { parent, name }));
                }
            }
        }
        let landing = &self.parts.landing;
        for node in &held.nodes {
            held.has_removed |= landing.look(*node)?.is_none_or(|found| found.names.is_empty());
        }
        for place in &held.names {
            let Some(node) = landing.child(place)? else { continue };
            // Where it waits for a name it is at the server, under that one.
            if elsewhere.contains(&self.file_id(node)) {
                continue;
            }
            let names = landing.look(node)?.map(|found| found.names).unwrap_or_default();
            if names.iter().all(|name| held.names.contains(name)) {
                held.nodes.insert(node);
            }
        }
        Ok(held)
    }

    /// Whether a group cannot be sent, as it tells of something held: that is tried again soon.
    pub(super) fn is_held(&mut self, group: &LiveGroup) -> Result<bool, ServiceError> {
        if group.fold.is_some() || self.left_out.blocked().is_empty() || !self.held()?.is_in(group) {
            return Ok(false);
        }
        let soon_ns = self.blocked_tried_ns.saturating_add(nanoseconds(AGAIN_AFTER_CHANGE));
        self.blocked_again_ns = self.blocked_again_ns.map(|again_ns| again_ns.min(soon_ns));
        Ok(true)
    }

    /// Whether what could not be changed is to be tried again.
    pub(super) fn is_blocked_due(&self) -> bool {
        let now_ns = self.clock().monotonic_ns();
        !self.left_out.blocked().is_empty() && self.blocked_again_ns.is_none_or(|again_ns| now_ns >= again_ns)
    }

    /// What is blocked was tried; `before` is what was.
    pub(super) fn has_tried_blocked(&mut self, before: &[BlockedChange]) {
        let now_ns = self.clock().monotonic_ns();
        self.blocked_tried_ns = now_ns;
        let blocked = self.left_out.blocked();
        let again_ns = now_ns.saturating_add(nanoseconds(AGAIN_AFTER));
        self.blocked_again_ns = (!blocked.is_empty()).then_some(again_ns);
        if before.iter().any(|change| !blocked.contains(change)) {
            // What was held is unsaved in the log.
            self.parts
                .live
                .give_up("what others changed could not be changed here, and now it could");
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
