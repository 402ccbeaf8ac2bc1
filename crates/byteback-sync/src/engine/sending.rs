//! How one group is sent: what of it may be sent, and what its outcome means for the tree.

use byteback_model::{BatchApplied, NameChange, NodeId, OwnBatch};
use byteback_queue::GroupId;

use byteback_control::{ErrorKind, LiveContent, LiveGroup, LiveScope, LiveSource, ServiceError};

use super::ignoring::Sifted;
use super::pause::is_passing;
use super::phase::{Event, Failure};
use super::{Engine, EngineError};
use crate::upload::{Sent, Upload, batch_counter};
use byteback_backup::BackupError;

/// See [`Engine::is_known_twice`].
pub(super) const TWICE: &str =
    "the server knows another group by this number: the records here were put back to an older state";

/// Bytes that take about as long to be sent over a usual link as a node to be looked at.
const BYTES_PER_WALKED_NODE: u64 = 32;

/// Groups on their way, beyond what the tree knows of them.
#[derive(Debug, Default)]
pub(super) struct Sending {
    /// The group that was sent last, completely or in part: the server may know it.
    attempted: Option<GroupId>,
    /// Groups in a row that were refused or could not be sent.
    setbacks: u32,
}

impl Sending {
    /// Forgets the group that was sent last: groups get other names at the server.
    pub(super) const fn start_over(&mut self) {
        self.attempted = None;
    }
}

impl Engine {
    /// Whether the server applied another group under this number. It says that it applied this
    /// group before; if that cannot be, the number was given twice, because the remembered state
    /// was put back to an older one.
    pub(super) fn is_known_twice(&self, group: &LiveGroup, applied: &BatchApplied) -> bool {
        let may_be =
            self.sending.attempted == Some(group.id) || self.parts.live.unanswered_before().contains(&group.id);
        applied.repeated && !may_be
    }

    /// Sends what of a group may be sent, and reports the outcome.
    pub(super) fn send(&mut self, group: &LiveGroup) -> Result<Event, EngineError> {
        let sifted = match &group.fold {
            Some(fold) => {
                self.fold.open(fold.cut.cut);
                let (LiveScope::Everything { names } | LiveScope::Items { names, .. }) = &fold.scope;
                let is_due = self.review(fold.cut.cut, Some(names));
                is_due.map(|is_due| if is_due { Sifted::Fold } else { Sifted::Whole })
            }
            None => self.sift(group),
        };
        let names = match &sifted {
            Ok(Sifted::Whole) => group.names.as_slice(),
            Ok(Sifted::Part(part)) => part.names.as_slice(),
            _ => &[],
        };
        let removes = |name: &NameChange<NodeId>| name.child.is_none() && self.is_left_out(name.parent, &name.name);
        let removes = names.iter().any(removes);
        let is_held = self.is_held(group)?;
        let is_due = matches!(sifted, Ok(Sifted::Fold));
        let is_worth_a_cut = match (&sifted, &group.fold) {
            (Ok(Sifted::Whole), None) => self.is_worth_a_cut(group)?,
            (Ok(Sifted::Part(part)), _) => self.is_worth_a_cut(part)?,
            _ => false,
        };
        if self.is_left_out_over()? || removes || is_held || is_due || is_worth_a_cut {
            // Left-out names come first: what is sent may have taken one of them. A removed name of
            // these stood for another node than the server has by that name, so the removal is left
            // to a fold, which leaves out such names.
            return Ok(Event::Deferred(group.id));
        }
        let sent = match (sifted, &group.fold) {
            (Err(error), _) => Err(error),
            (Ok(Sifted::Nothing), _) => Ok(Sent::Nothing),
            (Ok(Sifted::Part(part)), _) => self.upload(&part),
            (Ok(_), Some(fold)) => self.send_fold(group, fold),
            (Ok(_), None) => self.upload(group),
        };
        let sent = match sent {
            Ok(Sent::Applied(applied)) if self.is_known_twice(group, &applied) => {
                Ok(Sent::Unsendable(TWICE.to_owned()))
            }
            sent => sent,
        };
        self.sending.attempted = Some(group.id);
        match sent {
            Ok(Sent::Applied(applied)) => Ok(Event::Applied(group.id, applied)),
            Ok(Sent::Nothing) => Ok(Event::Empty(group.id)),
            Ok(Sent::Refused(error)) => Ok(Event::Refused(group.id, error.into())),
            Ok(Sent::Unanswered(error)) => Ok(Event::Unanswered(error, Failure::Passing)),
            Ok(Sent::Unsendable(why)) => Ok(Event::Unsendable(why)),
            Err(BackupError::Cancelled) => Err(BackupError::Cancelled.into()),
            Err(error) => {
                let failure = Failure::of(is_passing(&error));
                Ok(Event::Unanswered(error, failure))
            }
        }
    }

    /// Whether a group has so much new content that it is taken from a cut: there it is examined,
    /// so that moved and repeated content is found, and copies that programs made are sent as
    /// copies. A delta is sent as it is, unless it has as much new content itself: a file system in
    /// a disk image copies a file to blocks that had something else.
    fn is_worth_a_cut(&self, group: &LiveGroup) -> Result<bool, EngineError> {
        let contents = group.contents.iter().filter(|content| !content.is_gone);
        let new_bytes = contents.fold(0, |sum: u64, content| sum.saturating_add(self.new_bytes_of(content)));
        // A group that was perhaps sent before is sent again, so that its first answer counts.
        let may_be_known =
            self.sending.attempted == Some(group.id) || self.parts.live.unanswered_before().contains(&group.id);
        if group.is_conflict || may_be_known || new_bytes < self.parts.examined_from_bytes {
            return Ok(false);
        }
        if !self.may_ignore() {
            return Ok(true);
        }
        // Where something may be ignored, a cut is a walk of the whole tree.
        let walk_bytes = self.parts.tree.status()?.nodes.saturating_mul(BYTES_PER_WALKED_NODE);
        Ok(new_bytes >= self.parts.examined_from_bytes.saturating_add(walk_bytes))
    }

    /// Bytes of a content that the server may have elsewhere, as far as is known here.
    fn new_bytes_of(&self, content: &LiveContent) -> u64 {
        match &content.source {
            LiveSource::Ranges(ranges) => ranges
                .iter()
                .fold(0, |sum, (_, len_bytes)| sum.saturating_add(*len_bytes)),
            // It could not be sent in a group.
            LiveSource::Delta { len_bytes, .. } if *len_bytes > self.parts.part_len_bytes as u64 => *len_bytes,
            // A delta from another file was made from both contents.
            LiveSource::Delta {
                base, stamp, len_bytes, ..
            } if *base == content.node && *len_bytes >= self.parts.examined_from_bytes => self.literal_bytes_of(*stamp),
            LiveSource::Delta { .. } => 0,
        }
    }

    /// The literals of a delta, as they are sent; 0 if it cannot be read.
    fn literal_bytes_of(&self, stamp: u64) -> u64 {
        let mut delta = Vec::new();
        let read = self.parts.live.read_delta(stamp, &mut |bytes| {
            delta.extend_from_slice(bytes);
            Ok(())
        });
        match read.is_ok().then(|| byteback_delta::validate(&delta[..])) {
            Some(Ok((_, stats))) => stats.literal_stored_bytes,
            _ => 0,
        }
    }

    fn upload(&self, group: &LiveGroup) -> Result<Sent, BackupError> {
        let file_id = |node| self.file_id(node);
        let upload = Upload {
            server: &self.parts.server,
            folder: &self.parts.folder,
            device: self.parts.device,
            live: &*self.parts.live,
            tree: self.remembered.names,
            file_id: &file_id,
            root: self.root(),
            host: self.parts.host.clone(),
            path: self.parts.path.clone(),
            part_len_bytes: self.parts.part_len_bytes,
            monitor: &*self.shared,
        };
        upload.send(group, self.ground.footing())
    }

    /// Asks what became of a group that cannot be sent again.
    pub(super) fn ask(&mut self, group: GroupId) -> Result<(), EngineError> {
        self.drop_cut();
        let counter = batch_counter(self.remembered.names, group);
        let status = self.parts.server.batch_status(&self.parts.folder, counter)?;
        match status.applied {
            Some(applied) => {
                let seq = applied.seq;
                self.applied(OwnBatch { counter, seq });
                self.parts.live.applied(group)?;
            }
            None => self.parts.live.never_arrived(group)?,
        }
        Ok(())
    }

    /// Tells the tree that a group is not sent now.
    pub(super) fn defer(&mut self, group: GroupId) {
        self.drop_cut();
        let _ = self.parts.live.refused(group);
    }

    /// Tells the tree that all of a group is at the server.
    pub(super) fn confirm(&mut self, group: GroupId, applied: Option<&BatchApplied>) -> Result<(), EngineError> {
        let Some(applied) = applied else {
            self.worked();
            self.done(group);
            return Ok(());
        };
        let counter = batch_counter(self.remembered.names, group);
        let seq = applied.seq;
        self.applied(OwnBatch { counter, seq });
        self.done(group);
        self.note_if_due()
    }

    /// Tells the tree that a group was refused: the folder does not have what we thought.
    pub(super) fn refuse(&mut self, group: GroupId, error: BackupError) -> Result<(), EngineError> {
        // If it was given up meanwhile, the engine asks for its outcome.
        let _ = self.parts.live.refused(group);
        self.set_back(error)
    }

    /// Has the groups in flight sent again, after a pause.
    pub(super) fn send_again(&mut self, error: BackupError, failure: Failure) {
        let pause = self.next_pause(failure);
        self.failed(&EngineError::Sync(error));
        self.parts.live.unanswered(pause);
    }

    /// Gives up the order of a group that cannot be sent as it is.
    pub(super) fn give_up(&mut self, why: String) -> Result<(), EngineError> {
        self.parts.live.give_up(&why);
        let error = ServiceError::new(ErrorKind::Refused, why);
        self.set_back(error.into())
    }

    /// The first setback only leads to another way of sending; each further one in a row waits.
    fn set_back(&mut self, error: BackupError) -> Result<(), EngineError> {
        self.sending.setbacks = self.sending.setbacks.saturating_add(1);
        match self.sending.setbacks {
            0 | 1 => Ok(()),
            _ => Err(error.into()),
        }
    }

    /// A batch of ours is at the server.
    fn applied(&mut self, own: OwnBatch) {
        self.ground.applied(own);
        self.remembered.count();
        self.shared.stands(self.ground.cursor);
        self.shared.applied(self.clock().now_ns());
        self.worked();
    }

    /// All of a group is at the server.
    fn done(&mut self, group: GroupId) {
        self.sending.setbacks = 0;
        // If it was given up meanwhile, the engine asks for its outcome; that costs one request.
        let _ = self.parts.live.applied(group);
    }
}
