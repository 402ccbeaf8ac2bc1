//! How a fold is sent: from its cut, with the nodes that the server does not have under their ID
//! yet, as one batch on top of what is here, or in place of all that there is.

use byteback_model::{ByteString, FileId, NameChange, NodeId, NodeKind, Seq};
use std::collections::BTreeSet;
use std::sync::Arc;

use byteback_control::{
    CutId, ErrorKind, LiveFold, LiveGroup, LiveScope, Outcome, SYNC_CONSUMER, ServiceError, UnsentNode,
};

use super::blocked::Held;
use super::fold::{Elsewhere, FoldedTree, Unsent};
use super::phase::Event;
use super::sending::TWICE;
use super::{Engine, UNSAVED_AGAIN_AFTER};
use byteback_queue::GroupId;

use crate::identities::IdentityChange;
use crate::incoming::fetch::listing;
use crate::receive::log_changes::LogChanges;
use crate::upload::{Sent, batch_counter, sent};
use byteback_backup::BackupError;
use byteback_backup::{CutBatch, CutSent, send_cut};
use byteback_client::ServerErrorKind;

/// How the content of a fold is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reading {
    /// Equal parts are found by checksums.
    #[default]
    ByChecksums,
    /// The server refused the last one, so nothing that checksums find is trusted.
    InFull,
}

/// The fold in flight. It outlives the meeting that follows a refusal, until the tree asks what
/// becomes of its group.
#[derive(Debug, Default)]
pub(super) struct Fold {
    /// Its cut, as long as that is not ended.
    cut: Option<CutId>,
    /// The held nodes and names when it was first sent: the same fold, sent again, leaves out the
    /// same ones.
    held: Option<(GroupId, Arc<Held>)>,
    reading: Reading,
}

impl Fold {
    /// Notes the cut from which a fold is sent.
    pub(super) const fn open(&mut self, cut: CutId) {
        self.cut = Some(cut);
    }

    /// Whether its cut is not ended.
    pub(super) const fn is_open(&self) -> bool {
        self.cut.is_some()
    }
}

/// Nodes that could not be read when they were to be sent.
#[derive(Debug)]
pub(super) struct Unsaved {
    nodes: Vec<NodeId>,
    /// When they are tried again, by the monotonic clock.
    again_ns: Option<u64>,
}

impl Unsaved {
    /// None known yet. An earlier engine may have ended before it reported the nodes that had
    /// become free, so the `count` nodes of the tree are tried at once.
    pub(super) fn of_earlier(count: u64) -> Self {
        Self {
            nodes: Vec::new(),
            again_ns: (count > 0).then_some(0),
        }
    }

    /// When they are tried again, by the monotonic clock.
    pub(super) const fn again_ns(&self) -> Option<u64> {
        self.again_ns
    }

    /// Whether they are to be tried again now; if so, that is noted as done.
    pub(super) fn takes_turn(&mut self, now_ns: u64) -> bool {
        self.again_ns.take_if(|at_ns| now_ns >= *at_ns).is_some()
    }

    /// Has a node tried again at once, now that it is sound.
    pub(super) fn is_sound_again(&mut self, node: NodeId, now_ns: u64) {
        if self.nodes.contains(&node) {
            self.again_ns = Some(now_ns);
        }
    }
}

impl Engine {
    pub(super) fn send_fold(&mut self, group: &LiveGroup, fold: &LiveFold) -> Result<Sent, BackupError> {
        self.fold.open(fold.cut.cut);
        let is_whole = matches!(fold.scope, LiveScope::Everything { .. }) && fold.cut.since.is_none();
        let grew = |node| self.identities.origin_of(node).is_some_and(|origin| origin.seq > 0);
        let mut unsent = Unsent::at(&*self.parts.tree, fold.cut.cut, &self.identities.unsent(), &grew)?;
        self.tell_removed(&mut unsent)?;
        let held = match self.fold.held.take() {
            Some((id, held)) if id == group.id => held,
            _ => Arc::new(self.held()?),
        };
        self.fold.held = Some((group.id, Arc::clone(&held)));
        let ended = self.transfer(group, fold, is_whole, (&unsent, &held));
        let ended = match ended {
            Ok(ended) => ended,
            Err(error) => {
                let refused = matches!(
                    error.server_kind(),
                    Some(ServerErrorKind::Refused | ServerErrorKind::ContentMismatch | ServerErrorKind::TooLarge)
                );
                if refused && self.fold.reading == Reading::InFull && !is_whole {
                    // The server lacks what the mark says it has: the next fold is everything there
                    // is.
                    self.drop_cut();
                    self.parts.tree.drop_consumer(SYNC_CONSUMER)?;
                }
                if refused {
                    self.fold.reading = Reading::InFull;
                }
                return sent(Err(error));
            }
        };
        if ended
            .applied
            .as_ref()
            .is_some_and(|applied| self.is_known_twice(group, applied))
        {
            return Ok(Sent::Unsendable(TWICE.to_owned()));
        }
        self.fold.reading = Reading::ByChecksums;
        self.ignoring.names_are_told();
        self.blocked.held_back = ended.unsaved.iter().copied().filter(|node| held.has(*node)).collect();
        let held_back = self.blocked.held_back.len();
        let unread = ended.unsaved.len().saturating_sub(held_back);
        self.shared.unsaved(unread as u64, held_back as u64);
        let again_ns = u64::try_from(UNSAVED_AGAIN_AFTER.as_nanos()).unwrap_or(u64::MAX);
        self.unsaved.again_ns = (unread > 0).then(|| self.clock().monotonic_ns().saturating_add(again_ns));
        self.arrived(&unsent, &ended.unsaved);
        if self.turn(fold.cut.cut).is_err() {
            // The fold's changes are reported. The rules that were to come into force do so with
            // the next one.
            self.has_unclear();
            self.parts.live.fold();
        }
        let (note, unsaved) = (ended.note, ended.unsaved);
        self.unsaved.nodes.clone_from(&unsaved);
        self.parts.live.unsaved(&unsaved);
        if let Err(error) = self.end_cut(&Outcome::Saved { note, unsaved }) {
            // The mark stays; unreadable nodes are reported with the next fold only if that is
            // everything since then.
            self.parts
                .live
                .give_up(&format!("the log could not record what was sent: {error}"));
        }
        Ok(ended.applied.map_or(Sent::Nothing, Sent::Applied))
    }

    fn transfer(
        &self,
        group: &LiveGroup,
        fold: &LiveFold,
        is_whole: bool,
        (unsent, held): (&Unsent, &Held),
    ) -> Result<CutSent, BackupError> {
        let is_there = |node| self.identities.is_bound(node) && self.identities.origin_of(node).is_none();
        let is_forgotten = |node| self.identities.file_of(node).is_none();
        let identities = (&is_there as _, &is_forgotten as _);
        let is_left_out = |parent, name: &ByteString| self.is_left_out(parent, name);
        let replaces = self.ground.replaced();
        let elsewhere = match is_whole {
            true => self.elsewhere(fold, replaces)?,
            false => Elsewhere::default(),
        };
        let is_withheld = |node| self.is_withheld(node);
        let reported_as = |name: &NameChange<NodeId>| self.reported_as(name);
        let withheld = (&is_withheld as _, &reported_as as _);
        let tree = FoldedTree::new(
            &*self.parts.tree,
            fold,
            unsent,
            identities,
            &is_left_out,
            (withheld, held, self.reported_again()),
            &elsewhere,
        );
        let origin = |node| self.identities.origin_of(node).filter(|origin| origin.seq > 0);
        let consumers = self.parts.tree.status()?.consumers;
        let note = consumers.into_iter().find(|consumer| consumer.name == SYNC_CONSUMER);
        let file_id = |node| elsewhere.file_of(node).unwrap_or_else(|| self.file_id(node));
        let sends_time_only = |node| tree.sends_time_only(node);
        let mut ended = send_cut(&CutBatch {
            tree: &tree,
            server: &self.parts.server,
            folder: &self.parts.folder,
            options: &self.options,
            monitor: &*self.shared,
            cut: &fold.cut,
            counter: batch_counter(self.remembered.names, group.id),
            file_id: &file_id,
            origin: &origin,
            sends_time_only: &sends_time_only,
            base_seq: (!is_whole).then_some(self.ground.cursor),
            replaces: is_whole.then_some(replaces),
            follows: self.ground.newest,
            note: &note.map(|consumer| consumer.note).unwrap_or_default(),
            is_in_full: self.fold.reading == Reading::InFull,
        })?;
        ended.unsaved.extend(tree.passed_over());
        Ok(ended)
    }

    /// The server's files at a moment under names that this tree does not hold: without them,
    /// sending everything here would take them from all others.
    fn elsewhere(&self, fold: &LiveFold, at: Seq) -> Result<Elsewhere, BackupError> {
        let mut elsewhere = Elsewhere::default();
        let noted = self.arrivals.left_out.noted();
        let parents: BTreeSet<FileId> = noted.iter().map(|left_out| left_out.parent).collect();
        for file in parents {
            let Some(parent) = self.identities.node_of(file) else {
                continue;
            };
            let reported = self.parts.tree.names(fold.cut.cut, &[parent])?;
            // With a directory that was removed here they are removed, too.
            if parent != NodeId::ROOT && reported.iter().all(|reported| reported.names.is_empty()) {
                continue;
            }
            let is_left_out = |name: &[u8]| {
                let mut noted = noted.iter();
                noted.any(|left_out| left_out.parent == file && left_out.name.as_bytes() == name)
            };
            let mut directories = vec![(parent, file)];
            let mut seen = BTreeSet::new();
            while let Some((parent, directory)) = directories.pop() {
                if !seen.insert(directory) {
                    let why = format!("the server lists directory {directory} inside itself or twice in the tree");
                    return Err(ServiceError::new(ErrorKind::Protocol, why).into());
                }
                let listed = match listing(&self.parts.server, &self.parts.folder, at, directory, &*self.shared) {
                    Err(error) if error.server_kind() == Some(ServerErrorKind::NotFound) => Vec::new(),
                    listed => listed?,
                };
                for (name, child, attributes) in listed {
                    if directory == file && !is_left_out(&name) {
                        continue;
                    }
                    let node = elsewhere.add(parent, ByteString(name), child);
                    if attributes.kind == NodeKind::Directory {
                        directories.push((node, child));
                    }
                }
            }
        }
        Ok(elsewhere)
    }

    /// Nodes that a cut must report though they may not have changed: those that the server does
    /// not have under their ID, and those that could not be read last time. A file that grew from a
    /// content of the server has mostly changed, and is then not reported as a whole; one that was
    /// only in use when others removed it has not.
    pub(super) fn to_be_told(&self) -> Result<Vec<NodeId>, ServiceError> {
        let held = self.held()?;
        let mut reported = self.unsaved.nodes.clone();
        let mut log = None;
        for node in self.identities.unsent() {
            let grew = self.identities.origin_of(node).is_some_and(|origin| origin.seq > 0);
            let Some(found) = self.parts.landing.look(node)? else {
                continue;
            };
            let is_reported = grew && found.kind == NodeKind::File && self.is_changed(node, &mut log)?;
            if !is_reported {
                reported.push(node);
            }
        }
        reported.retain(|node| !held.has(*node));
        Ok(reported)
    }

    /// Whether a cut reports a node by itself.
    fn is_changed(&self, node: NodeId, log: &mut Option<LogChanges>) -> Result<bool, ServiceError> {
        let unsent = self.parts.landing.unsent_of(node);
        if !unsent.is_everything {
            return Ok(unsent != UnsentNode::default());
        }
        let log = match log {
            Some(log) => log,
            None => log.insert(LogChanges::ask(&*self.parts.tree)?),
        };
        Ok(log.node(node).is_some())
    }

    /// Reports as removed all that the server has in returned directories and that is not here.
    fn tell_removed(&self, unsent: &mut Unsent) -> Result<(), BackupError> {
        let returned = unsent.nodes().filter_map(|node| {
            let origin = self.identities.origin_of(node)?;
            (origin.seq > 0 && Some(origin.file) == self.identities.file_of(node)).then_some((node, origin.file))
        });
        for (node, file) in returned.collect::<Vec<_>>() {
            let cursor = self.ground.cursor;
            let listed = listing(&self.parts.server, &self.parts.folder, cursor, file, &*self.shared)?;
            let is_left_out = |name: &ByteString| {
                let mut left_out = self.arrivals.left_out.noted().iter();
                left_out.any(|left_out| left_out.parent == file && left_out.name == *name)
            };
            let names = listed.into_iter().map(|(name, ..)| ByteString(name));
            unsent.removed(node, names.filter(|name| !is_left_out(name)));
        }
        Ok(())
    }

    /// Notes that the server has these nodes under their ID now. If that cannot be noted, they are
    /// sent once more.
    fn arrived(&mut self, unsent: &Unsent, unsaved: &[NodeId]) {
        let arrived = unsent.nodes().filter(|node| !unsaved.contains(node));
        let arrived = arrived.map(IdentityChange::Arrived);
        let gone = unsent.gone.iter().copied().map(IdentityChange::Forgotten);
        let changes: Vec<_> = arrived.chain(gone).collect();
        if self.identities.change(&changes).is_err() {
            self.has_unclear();
        }
    }

    /// Reports that the server has something that could not be noted or finished here.
    fn has_unclear(&mut self) {
        // Nothing follows before the fold is answered.
        let _ = self.tell(Event::Unclear);
    }

    /// Ends the cut of the fold in flight, if there is one.
    pub(super) fn end_cut(&mut self, outcome: &Outcome) -> Result<(), ServiceError> {
        match self.fold.cut.take() {
            Some(cut) => self.parts.tree.finish(cut, outcome).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Ends the cut of a fold that is not sent from it. If the log does not take that, the mark
    /// stays all the more.
    pub(super) fn drop_cut(&mut self) {
        let _ = self.end_cut(&Outcome::Abandoned);
    }
}
