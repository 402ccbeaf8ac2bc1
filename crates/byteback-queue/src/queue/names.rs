//! Names: the nodes that an operation adds to the queue, and those that it takes out (DeltaCFS
//! section III-B, "deleted").
//!
//! A node that loses its last name before anything of it was sent leaves the queue without a trace:
//! its creation, contents, attributes and names are taken out, and so is the removal itself. The
//! effects of its names on others stay: where it was renamed over another file, that file was
//! removed; where it was exchanged with one, that one was moved. Of a node that the server knows,
//! the unsent contents and attributes are taken out. In either case all from the first of these to
//! the removal counts only as a whole. The directories whose time such names moved are remembered
//! ([`Change::Times`]), unless that is sent anyway.
//!
//! Not taken out: a directory in which a name was changed that is still to be sent, and the base of
//! a delta.

use std::collections::BTreeSet;

use crate::ids::Position;
use crate::operation::{NameOperation, Victim};
use crate::queue::{Change, Queue};
use byteback_model::{NodeId, NodeKind};

/// Directories whose times wait longer together; each event that touches one looks at all of them.
const PUT_OFF_MAX: usize = 64;

impl Queue {
    pub(super) fn name(&mut self, operation: &NameOperation, now_ns: u64) {
        let position = self.position;
        let mut operation = operation.clone();
        match &mut operation {
            NameOperation::Created { .. } | NameOperation::Linked { .. } => {}
            NameOperation::Unlinked { victim, .. } => {
                self.pack(victim.node);
                let directories = self.directories_of(victim.node);
                if self.lose(*victim) {
                    self.times(directories, now_ns);
                    return;
                }
            }
            NameOperation::Renamed { node, replaced, .. } => {
                self.pack(node.node);
                if let Some(victim) = *replaced {
                    self.pack(victim.node);
                    let directories = self.directories_of(victim.node);
                    if self.lose(victim) {
                        *replaced = None;
                        self.enqueue(position, Change::Name(operation), now_ns);
                        self.position.0 += 1;
                        self.join(position);
                        self.times(directories, now_ns);
                        return;
                    }
                }
            }
            NameOperation::Exchanged {
                one_node, other_node, ..
            } => {
                self.pack(one_node.node);
                self.pack(other_node.node);
            }
        }
        self.enqueue(position, Change::Name(operation), now_ns);
    }

    /// The directories in which waiting operations on names of `node` take place.
    fn directories_of(&self, node: NodeId) -> BTreeSet<NodeId> {
        let waiting = self.waiting_about(node);
        let changes = waiting.into_iter().filter_map(|position| self.change_at(position));
        changes.flat_map(Change::parents).collect()
    }

    /// Enqueues the times of `directories`, in which names came and went, except of new ones and of
    /// those whose time waits to be sent already.
    fn times(&mut self, mut directories: BTreeSet<NodeId>, now_ns: u64) {
        directories.retain(|directory| {
            let first = self
                .waiting_about(*directory)
                .first()
                .and_then(|first| self.change_at(*first));
            let is_new =
                matches!(first, Some(Change::Name(NameOperation::Created { node, .. })) if node.node == *directory);
            !is_new
        });
        if directories.is_empty() || self.put_off_times(&directories, now_ns) {
            return;
        }
        directories.retain(|directory| !self.timed.contains_key(directory));
        if !directories.is_empty() {
            self.enqueue(self.position, Change::Times { directories }, now_ns);
        }
    }

    /// Where nothing else waits behind times, these and new ones wait longer together: names that
    /// come and go all the time, as locks do, cause one change in the longest delay. Returns
    /// whether that was done.
    fn put_off_times(&mut self, directories: &BTreeSet<NodeId>, now_ns: u64) -> bool {
        let Some((position, last)) = self.nodes.last_key_value() else {
            return false;
        };
        let (position, mut waiting) = (*position, last.change.times());
        let new = directories.difference(&waiting).count();
        if position <= self.frozen || waiting.is_empty() || new + waiting.len() > PUT_OFF_MAX {
            return false;
        }
        // Changes that count only together with these times must not wait with them.
        let before = self.nodes.range(..position).next_back().map(|(before, _)| *before);
        if before.is_some_and(|before| before > self.frozen && self.spans.end_of(before) >= position) {
            return false;
        }
        let Some(mut node) = self.remove(position) else {
            return false;
        };
        node.touched_ns = node.touched_ns.max(now_ns);
        if new > 0 {
            waiting.extend(directories);
            node.change = Change::Times { directories: waiting };
        }
        self.insert(position, node);
        true
    }

    /// `victim` loses a name by the present event. Returns whether the server never hears of it.
    fn lose(&mut self, victim: Victim) -> bool {
        if !victim.is_last {
            return false;
        }
        if victim.kind == NodeKind::File {
            self.nameless.insert(victim.node);
            self.freed.push(victim.node);
        }
        if self.is_unknown_to_the_server(victim.node) && !self.is_version_used(victim.node) {
            self.pass_relations_on(victim.node);
        }
        if self.cancel_all(victim.node) {
            self.end_relation(victim.node);
            return true;
        }
        self.cancel_contents(victim.node);
        // A content that must be sent nevertheless is still worth comparing: a file that was saved
        // twice within the delay.
        if !self.has_unsent_content(victim.node) {
            self.end_relation(victim.node);
        }
        false
    }

    /// Whether the creation of a node waits, and nothing that waits is in it.
    fn is_unknown_to_the_server(&self, node: NodeId) -> bool {
        let first = self
            .waiting_about(node)
            .first()
            .and_then(|first| self.change_at(*first));
        let is_new = first.is_some_and(
            |change| matches!(change, Change::Name(NameOperation::Created { node: created, .. }) if created.node == node),
        );
        is_new && !self.parents.contains_key(&node)
    }

    /// Takes all of a node out that the server does not know, if nothing that stays needs it.
    fn cancel_all(&mut self, node: NodeId) -> bool {
        if !self.is_unknown_to_the_server(node) || self.bases.contains_key(&node) {
            return false;
        }
        for position in self.waiting_about(node) {
            let change = match self.change_at(position) {
                Some(Change::Name(operation)) => without(node, operation).map(Change::Name),
                _ => None,
            };
            self.replace(position, change);
        }
        true
    }

    /// Takes the contents and attributes of a node out that were not sent.
    fn cancel_contents(&mut self, node: NodeId) {
        let is_base = self.bases.contains_key(&node);
        for position in self.waiting_about(node) {
            match self.change_at(position) {
                Some(Change::Attributes { .. }) => self.replace(position, None),
                Some(Change::Content(_)) if !is_base => {
                    self.replace(position, None);
                    self.outdated.insert(node);
                }
                _ => {}
            }
        }
    }

    /// Where a waiting node takes the last name of `node` away.
    pub(super) fn waiting_removal(&self, node: NodeId) -> Option<Position> {
        self.waiting_about(node)
            .into_iter()
            .rev()
            .find(|position| self.change_at(*position).and_then(Change::last_removal) == Some(node))
    }
}

/// The effect of an operation on nodes other than `node`, which never existed for the server.
fn without(node: NodeId, operation: &NameOperation) -> Option<NameOperation> {
    match operation {
        NameOperation::Created { .. } | NameOperation::Linked { .. } | NameOperation::Unlinked { .. } => None,
        NameOperation::Renamed {
            from,
            to,
            node: moved,
            replaced,
        } => match replaced {
            replaced if moved.node != node => Some(NameOperation::Renamed {
                from: from.clone(),
                to: to.clone(),
                node: *moved,
                replaced: replaced.filter(|victim| victim.node != node),
            }),
            Some(victim) => Some(NameOperation::Unlinked {
                at: to.clone(),
                victim: *victim,
            }),
            None => None,
        },
        NameOperation::Exchanged {
            one,
            one_node,
            other,
            other_node,
        } => {
            let (from, to, moved) = match one_node.node == node {
                true => (other, one, other_node),
                false => (one, other, one_node),
            };
            Some(NameOperation::Renamed {
                from: from.clone(),
                to: to.clone(),
                node: *moved,
                replaced: None,
            })
        }
    }
}
