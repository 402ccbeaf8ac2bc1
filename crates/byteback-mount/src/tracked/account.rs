//! The gate's account of a change: the log that records it, and the pictures that save the old
//! state first.

use std::ffi::OsStr;
use std::sync::Arc;

use byteback_checksums::written;
use byteback_extents::ByteRange;
use byteback_host::tree::{Identity, Inode, Stat};
use byteback_model::{NodeId, NodeKind};
use byteback_oplog::{Log, Operation, Remains};
use byteback_undo::{NameHow, Undo};
use parking_lot::RwLockWriteGuard;

use super::observer::{KnownNode, LostName, NamedAt, NamesChanged, Observer, Removal, Watched};
use super::{Object, Place, TrackedResult, Victim};
use crate::integrity::Integrity;
use crate::picture::Pictures;
use crate::tracked::kept;

/// The recipients of each change.
#[derive(Clone)]
pub struct Account {
    /// The log of the tree.
    pub log: Arc<Log>,
    /// The pictures that are being read.
    pub pictures: Arc<Pictures>,
    /// The store of overwritten bytes, if old bytes are kept for a while.
    pub undo: Option<Arc<Undo>>,
    /// The observer of each change in order, if there is one.
    pub observer: Option<Arc<dyn Observer>>,
    /// The sums of written blocks, if they are kept.
    pub integrity: Option<Arc<Integrity>>,
}

/// A change under way: begun with the log, its old state saved. Without an account, or for a node
/// that the log does not know (it has no name any more, or came into the tree behind our back, and
/// the next start will find it), there is nothing to log.
#[derive(Default)]
pub(super) struct Change<'a> {
    pub(super) integrity: Option<&'a Integrity>,
    /// Its attributes change, and not its content.
    pub(super) is_of_attributes: bool,
    /// Before the operation ends, the observer knows what became of the change.
    pub(super) _watched: Option<Watched<'a>>,
    pub(super) kept: Option<(Operation<'a>, NodeId)>,
}

impl Change<'_> {
    pub(super) fn attributes(&self) {
        if let Some((operation, node)) = &self.kept {
            operation.attributes_changed(*node);
        }
    }

    /// Performs a change of content through `fd`, and lets the sums follow. `is_whole` tells of
    /// what was done whether it was all.
    pub(super) fn perform<T>(
        &self,
        fd: &Inode,
        change: written::Change<'_>,
        perform: impl FnOnce() -> TrackedResult<T>,
        is_whole: impl FnOnce(&T) -> bool,
    ) -> TrackedResult<T> {
        match (self.integrity, &self.kept) {
            (Some(integrity), Some((_, node))) => integrity.change(*node, fd, change, perform, is_whole),
            _ => perform(),
        }
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if let (true, Some(integrity), Some((_, node))) = (self.is_of_attributes, self.integrity, &self.kept) {
            integrity.sums().touched(node.0);
        }
    }
}

/// A change of names under way.
pub(super) struct NameChange<'a> {
    /// Let go before the operation ends.
    _order: Option<RwLockWriteGuard<'a, ()>>,
    /// The observer is told of it.
    is_told: bool,
    pub(super) operation: Operation<'a>,
    pub(super) account: &'a Account,
}

impl<'a> NameChange<'a> {
    pub(super) fn begin(account: &'a Account) -> Self {
        let operation = account.log.begin();
        let observer = account.observer.as_deref();
        Self {
            _order: observer.map(|observer| observer.order().exclusive()),
            is_told: true,
            operation,
            account,
        }
    }

    /// Of what lands from elsewhere, of which the observer is not told.
    pub(super) fn begin_landing(account: &'a Account) -> Self {
        Self {
            is_told: false,
            ..Self::begin(account)
        }
    }

    fn observer(&self) -> Option<&'a dyn Observer> {
        self.account.observer.as_deref().filter(|_| self.is_told)
    }

    fn tell(&self, change: &NamesChanged<'_>) {
        if let Some(observer) = self.observer() {
            observer.names_changed(change);
        }
    }

    /// Performs it, after [`NameChange::victim`].
    pub(super) fn perform(&self, perform: impl FnOnce() -> TrackedResult<()>) -> TrackedResult<()> {
        let performed = perform();
        if let (Err(_), Some(observer)) = (&performed, self.observer()) {
            observer.removal_failed();
        }
        performed
    }

    pub(super) fn node(&self, identity: &Identity) -> TrackedResult<Option<NodeId>> {
        Ok(self.account.log.node_of(identity)?)
    }

    /// The directory of `place`, whose times are about to change.
    pub(super) fn directory(&self, place: Place<'_>) -> TrackedResult<Option<NodeId>> {
        let node = self.node(&place.identity)?;
        if let Some(node) = node {
            self.account.pictures.before_attributes(node, place.dir);
        }
        Ok(node)
    }

    fn look(&self, node: NodeId, victim: &Victim) {
        let integrity = self.account.integrity.as_ref();
        if let Some(integrity) = integrity.filter(|_| victim.object.kind == NodeKind::File) {
            integrity.before_names(node, victim.object.identity, &victim.fence);
        }
    }

    /// Names of a node changed, and with them its times.
    fn touched(&self, node: NodeId, remains: Remains) {
        if let Some(integrity) = &self.account.integrity {
            match remains {
                Remains::Linked => integrity.sums().touched(node.0),
                Remains::Gone => integrity.sums().removed(node.0),
            }
        }
    }

    /// The node that is about to get another name.
    pub(super) fn moved(&self, place: Place<'_>, moved: Victim) -> TrackedResult<Option<NodeId>> {
        let node = self.node(&moved.object.identity)?;
        if let Some(node) = node {
            self.operation.compare(node, || Some(moved.fence))?;
            self.look(node, &moved);
            self.account.pictures.before_rename(node, place.dir, place.name);
        }
        Ok(node)
    }

    /// The node that is about to lose the name at `place`.
    pub(super) fn victim(
        &self,
        place: Place<'_>,
        parent: Option<NodeId>,
        victim: Victim,
    ) -> TrackedResult<Option<NodeId>> {
        let node = self.node(&victim.object.identity)?;
        if let Some(node) = node {
            let identity = &victim.object.identity;
            if !victim.is_last_link() {
                self.operation.compare(node, || Some(victim.fence))?;
                self.look(node, &victim);
            }
            self.account
                .pictures
                .before_unlink(node, identity, place.dir, place.name);
            if let Some(undo) = &self.account.undo {
                kept::before_removal(undo, node, place, victim);
            }
            // Last: from here on nothing fails but the change itself.
            if let (Some(observer), Some(parent)) = (self.observer(), parent) {
                let lost = self.lost(victim, node, (parent, place.name));
                observer.before_removal(&Removal {
                    lost,
                    identity: victim.object.identity,
                    has_other_names: victim.object.kind == NodeKind::File && lost.is_last && victim.nlink > 1,
                    dir: place.dir,
                    name: place.name,
                });
            }
        }
        Ok(node)
    }

    pub(super) fn created(&self, parent: Option<NodeId>, name: &OsStr, stat: &Stat) -> Option<NodeId> {
        parent.map(|parent| self.created_in(parent, name, stat))
    }

    fn created_in(&self, parent: NodeId, name: &OsStr, stat: &Stat) -> NodeId {
        let node = self.operation.created(parent, name, &stat.identity(), stat.kind);
        self.keep_name((parent, name), NameHow::Created, None, Some(node));
        let kind = stat.kind;
        self.tell(&NamesChanged::Created {
            at: NamedAt { parent, name },
            node: KnownNode { node, kind },
        });
        node
    }

    /// Logs that an inode got a name that the log did not know before: all of it is new.
    pub(super) fn appeared(&self, parent: Option<NodeId>, name: &OsStr, object: Object, fd: &Inode, stat: &Stat) {
        let all = ByteRange::new(0, stat.size).filter(|_| stat.kind == NodeKind::File);
        if let (Some(observer), Some(all)) = (self.observer(), all) {
            // Knowledge of the inode under another number does not change with it.
            observer.before_content_of_unknown(&object.identity, fd, &[all]);
        }
        let Some(parent) = parent else { return };
        let node = self.created_in(parent, name, stat);
        if let (Some(observer), Some(all)) = (self.observer(), all) {
            observer.before_content(node, fd, &[all], Some(stat.size));
            observer.after_content(node, fd);
        }
    }

    /// Logs one more name of a node.
    pub(super) fn linked(&self, parent: NodeId, name: &OsStr, node: NodeId, kind: NodeKind) {
        self.operation.linked(parent, name, node);
        self.touched(node, Remains::Linked);
        self.keep_name((parent, name), NameHow::MovedHere, None, Some(node));
        self.tell(&NamesChanged::Linked {
            at: NamedAt { parent, name },
            node: KnownNode { node, kind },
        });
    }

    /// Logs that a name is gone.
    pub(super) fn unlinked(&self, parent: NodeId, name: &OsStr, node: NodeId, victim: Victim) {
        let remains = self.remains(victim, node, (parent, name));
        self.operation.unlinked(parent, name, node, remains);
        self.touched(node, remains);
        self.keep_name((parent, name), NameHow::Removed, Some(node), None);
        self.tell(&NamesChanged::Unlinked {
            at: NamedAt { parent, name },
            lost: lost_name(victim, node, remains),
        });
    }

    fn lost(&self, victim: Victim, node: NodeId, gone: (NodeId, &OsStr)) -> LostName {
        lost_name(victim, node, self.remains(victim, node, gone))
    }

    fn keep_name(&self, place: (NodeId, &OsStr), how: NameHow, before: Option<NodeId>, after: Option<NodeId>) {
        if let Some(undo) = &self.account.undo {
            undo.name_changed(place.0, place.1, how, before, after);
        }
    }

    /// Whether a node remains once `gone` is no name of it any more: names outside the tree do not
    /// count.
    pub(super) fn remains(&self, victim: Victim, node: NodeId, gone: (NodeId, &OsStr)) -> Remains {
        if victim.is_last_link() {
            return Remains::Gone;
        }
        match self.account.log.places_of(node) {
            Ok(places) if places.iter().all(|(parent, name)| (*parent, name.as_os_str()) == gone) => Remains::Gone,
            // The change is done and cannot be refused any more; a node too many does no harm.
            _ => Remains::Linked,
        }
    }

    /// Logs a rename that was done: for each end the place, its directory, the node that was there
    /// and what it was.
    pub(super) fn renamed(
        &self,
        from: (Place<'_>, Option<NodeId>, Option<NodeId>, Victim),
        to: (Place<'_>, Option<NodeId>, Option<NodeId>, Option<Victim>),
        exchange: bool,
    ) {
        let (from_place, from_dir, moved, moved_stat) = from;
        let (to_place, to_dir, over, over_stat) = to;
        let (Some(from_dir), Some(to_dir), Some(moved)) = (from_dir, to_dir, moved) else {
            // One end is unknown to the log: what left the known part is gone, what came into it is
            // new.
            let moved = moved.map(|node| (node, moved_stat));
            return self.moved_across_the_border(from_place, from_dir, moved, to_place, to_dir);
        };
        let at = |parent, name| NamedAt { parent, name };
        let (from_at, to_at) = (at(from_dir, from_place.name), at(to_dir, to_place.name));
        let moved_node = KnownNode {
            node: moved,
            kind: moved_stat.object.kind,
        };
        let mut replaced = None;
        self.touched(moved, Remains::Linked);
        match (over, over_stat) {
            (Some(over), Some(stat)) if exchange => {
                self.operation
                    .exchanged((from_dir, from_place.name, moved), (to_dir, to_place.name, over));
                self.touched(over, Remains::Linked);
                let (from, to) = ((from_dir, from_place.name), (to_dir, to_place.name));
                self.keep_name(from, NameHow::Exchanged, Some(moved), Some(over));
                self.keep_name(to, NameHow::Exchanged, Some(over), Some(moved));
                self.tell(&NamesChanged::Exchanged {
                    one: from_at,
                    one_node: moved_node,
                    other: to_at,
                    other_node: KnownNode {
                        node: over,
                        kind: stat.object.kind,
                    },
                });
                return;
            }
            (Some(over), Some(stat)) => {
                let remains = self.remains(stat, over, (to_dir, to_place.name));
                let (from, to) = ((from_dir, from_place.name), (to_dir, to_place.name));
                self.operation.renamed(from, to, moved, Some((over, remains)));
                self.touched(over, remains);
                replaced = Some(lost_name(stat, over, remains));
            }
            _ => self
                .operation
                .renamed((from_dir, from_place.name), (to_dir, to_place.name), moved, None),
        }
        self.keep_name((from_dir, from_place.name), NameHow::MovedAway, Some(moved), None);
        self.keep_name((to_dir, to_place.name), NameHow::MovedHere, over, Some(moved));
        self.tell(&NamesChanged::Renamed {
            from: from_at,
            to: to_at,
            node: moved_node,
            replaced,
        });
    }

    fn moved_across_the_border(
        &self,
        from: Place<'_>,
        from_dir: Option<NodeId>,
        moved: Option<(NodeId, Victim)>,
        to: Place<'_>,
        to_dir: Option<NodeId>,
    ) {
        if let Some(observer) = self.observer() {
            observer.lost_track();
        }
        if let (Some(from_dir), Some((node, victim))) = (from_dir, moved) {
            self.unlinked(from_dir, from.name, node, victim);
        }
        if let (Some(_), Ok(stat)) = (to_dir, to.dir.stat_at(to.name)) {
            self.created(to_dir, to.name, &stat);
        }
    }
}

fn lost_name(victim: Victim, node: NodeId, remains: Remains) -> LostName {
    LostName {
        node: KnownNode {
            node,
            kind: victim.object.kind,
        },
        is_last: remains == Remains::Gone,
        len_bytes: victim.fence.size_bytes,
    }
}
