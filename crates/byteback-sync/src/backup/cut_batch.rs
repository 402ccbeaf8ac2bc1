//! A cut that somebody else has made and will finish, as one batch: what a backup does between its
//! cut and its end, for continuous sync. It knows what it stands on, and remembers what a batch had
//! to leave out in a note, as a backup does.

use std::cell::Cell;
use std::collections::BTreeSet;

use byteback_api::FolderName;
use byteback_control::{CutInfo, ErrorKind, ServiceError, TreeService};
use byteback_model::{BatchApplied, FileId, NodeId, Seq};

use super::note::Note;
use super::plan::Answers;
use super::resume::Numbered;
use super::transfer::{Sent, transfer};
use super::{BackupOptions, BackupReport, Basis, Job};
use crate::error::Result;
use crate::live::identities::Origin;
use crate::live::standing::OwnBatch;
use crate::monitor::{Meter, Monitor};
use crate::server_client::ServerClient;

/// What is to be sent, and on top of what.
pub(crate) struct CutBatch<'a> {
    /// Tells what the cut reports. It is asked to note the batch, and does not have to.
    pub(crate) tree: &'a dyn TreeService,
    pub(crate) server: &'a ServerClient,
    pub(crate) folder: &'a FolderName,
    pub(crate) options: &'a BackupOptions,
    pub(crate) monitor: &'a dyn Monitor,
    pub(crate) cut: &'a CutInfo,
    /// The batch's number.
    pub(crate) counter: u64,
    /// What a node is called at the server.
    pub(crate) file_id: &'a (dyn Fn(NodeId) -> FileId + Sync),
    /// What a file that is new to the server grew from there.
    pub(crate) origin: &'a (dyn Fn(NodeId) -> Option<Origin> + Sync),
    /// Of which directories nothing is told but the time.
    pub(crate) tells_time_only: &'a (dyn Fn(NodeId) -> bool + Sync),
    /// The folder's sequence number that the changes stand on; `None`: they are everything there
    /// is.
    pub(crate) base_seq: Option<Seq>,
    /// With everything: the sequence number that it replaces.
    pub(crate) replaces: Option<Seq>,
    /// With a base: this device's newest batch.
    pub(crate) follows: Option<OwnBatch>,
    /// The note of the last such batch.
    pub(crate) note: &'a [u8],
    /// What is found by checksums is not to be trusted.
    pub(crate) is_in_full: bool,
}

/// What became of it.
pub(crate) struct CutSent {
    /// The server's answer; `None` if there was nothing to send.
    pub(crate) applied: Option<BatchApplied>,
    /// What could not be read, which the log is to report again.
    pub(crate) unsaved: Vec<NodeId>,
    /// For the next one.
    pub(crate) note: Vec<u8>,
}

/// Sends it. Whoever calls finishes the cut.
pub(crate) fn send_cut(batch: &CutBatch<'_>) -> Result<CutSent> {
    let monitor = Meter::new(batch.monitor);
    let job = Job {
        tree: batch.tree,
        server: batch.server,
        folder: batch.folder,
        options: batch.options,
        monitor: &monitor,
        answers: Cell::new(Answers::ALL),
        proof_refused: Cell::new(batch.is_in_full),
        store: None,
        identities: Some(batch.file_id),
        origins: Some(batch.origin),
        tells_time_only: Some(batch.tells_time_only),
        makes_snapshot: false,
        knows_damage: Cell::new(false),
        damaged: BTreeSet::new(),
        may_resume: Cell::new(true),
        unmended: Cell::new(0),
    };
    let is_everything = batch.base_seq.is_none();
    let basis = Basis {
        everything: is_everything.then(|| "nothing is known of what the server has".to_owned()),
        base_seq: batch.base_seq,
        replaces: batch.replaces,
        follows: batch.follows,
        // With everything nothing is missing that is not tried again.
        note: Note::from_bytes(batch.note).filter(|_| !is_everything),
        is_alarming: false,
    };
    let number = Numbered::of(batch.counter, batch.server.clock().now_ns());
    let mut report = BackupReport::default();
    let Sent {
        applied,
        unsaved,
        missing,
        left_out,
        mended: _,
    } = transfer(&job, batch.cut, &basis, &number, &mut report)?;
    let note = Note::new(
        batch.server.base_url(),
        batch.folder.as_str(),
        batch.options.device,
        batch.counter,
        applied.as_ref().map_or(0, |applied| applied.seq),
        None,
        (batch.file_id)(NodeId::ROOT),
    );
    let note = note.with_left_out(missing, left_out);
    if note.everything_next {
        let message = "too many files cannot be read to remember which; they are tried again";
        return Err(ServiceError::new(ErrorKind::Log, message).into());
    }
    Ok(CutSent {
        applied,
        unsaved,
        note: note.to_bytes(),
    })
}
