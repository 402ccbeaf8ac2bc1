//! Sends a cut that the caller has made and will finish as one batch: the part of a backup between
//! its cut and its end, for continuous sync. The caller gives the basis, and keeps the note in
//! which a batch remembers what it had to leave out, as in a backup.

use std::cell::Cell;
use std::collections::BTreeSet;

use byteback_api::FolderName;
use byteback_control::{CutInfo, ErrorKind, ServiceError, TreeService};
use byteback_model::{BatchApplied, FileId, NodeId, Origin, OwnBatch, Seq};

use super::note::Note;
use super::plan::Answers;
use super::plan::second_look::SecondLooks;
use super::resume::Numbered;
use super::transfer::{Sent, transfer};
use super::{BackupOptions, BackupReport, Basis, Job};
use crate::error::Result;
use crate::monitor::{Meter, Monitor};
use byteback_client::ServerClient;

/// The cut to send, and the state that it builds on.
pub struct CutBatch<'a> {
    /// Reports the changes of the cut. It is asked to note the batch, and does not have to.
    pub tree: &'a dyn TreeService,
    /// The server that it goes to.
    pub server: &'a ServerClient,
    /// The folder there.
    pub folder: &'a FolderName,
    /// The sender's device, the length of parts, what is kept of checksums and decisions.
    pub options: &'a BackupOptions,
    /// Hears of progress, and may stop it.
    pub monitor: &'a dyn Monitor,
    /// The cut; the caller finishes it.
    pub cut: &'a CutInfo,
    /// The batch's number.
    pub counter: u64,
    /// The identity of a node at the server.
    pub file_id: &'a (dyn Fn(NodeId) -> FileId + Sync),
    /// The file at the server from which a new file here grew.
    pub origin: &'a (dyn Fn(NodeId) -> Option<Origin> + Sync),
    /// Directories of which only the time is sent.
    pub sends_time_only: &'a (dyn Fn(NodeId) -> bool + Sync),
    /// The folder's sequence number that the changes follow; `None`: they are everything there is.
    pub base_seq: Option<Seq>,
    /// With everything: the sequence number that the batch replaces.
    pub replaces: Option<Seq>,
    /// With a base: this device's newest batch.
    pub follows: Option<OwnBatch>,
    /// The note of the last such batch.
    pub note: &'a [u8],
    /// Matches by checksums are not to be trusted: everything is sent in full.
    pub is_in_full: bool,
}

/// Result of sending a cut.
pub struct CutSent {
    /// The server's answer; `None` if there was nothing to send.
    pub applied: Option<BatchApplied>,
    /// Nodes that could not be read; the log is to report them again.
    pub unsaved: Vec<NodeId>,
    /// The note for the next batch.
    pub note: Vec<u8>,
}

/// Sends the cut as one batch. The caller finishes the cut.
///
/// # Errors
/// As [`backup`](crate::backup()), and a service error of the log if more files are unreadable than
/// a note can hold.
pub fn send_cut(batch: &CutBatch<'_>) -> Result<CutSent> {
    let monitor = Meter::new(batch.monitor);
    let job = Job {
        tree: batch.tree,
        server: batch.server,
        folder: batch.folder,
        options: batch.options,
        monitor: &monitor,
        answers: Cell::new(Answers::ALL),
        second_looks: Cell::new(SecondLooks::default()),
        proof_refused: Cell::new(batch.is_in_full),
        store: None,
        identities: Some(batch.file_id),
        origins: Some(batch.origin),
        sends_time_only: Some(batch.sends_time_only),
        makes_snapshot: false,
        knows_damage: Cell::new(false),
        damaged: BTreeSet::new(),
        may_resume: Cell::new(true),
        unmended: Cell::new(0),
    };
    let is_everything = batch.base_seq.is_none();
    let basis = Basis {
        everything: is_everything.then(|| "it is not known what the server has".to_owned()),
        base_seq: batch.base_seq,
        replaces: batch.replaces,
        follows: batch.follows,
        // With everything, every missing node is tried again anyway.
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
        let message = "too many files are unreadable to note each of them; they will be tried again";
        return Err(ServiceError::new(ErrorKind::Log, message).into());
    }
    Ok(CutSent {
        applied,
        unsaved,
        note: note.to_bytes(),
    })
}
