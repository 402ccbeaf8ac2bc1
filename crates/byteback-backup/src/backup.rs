//! A backup: one moment of a tracked tree becomes one batch at the server.
//!
//! Order of durable steps, and what a crash after each of them leaves:
//!
//! 1. *Settle*: a pending cut of an earlier run is settled by asking the server about its batch.
//!    (Crash: asked again.)
//! 2. *Cut*. (Crash: a pending cut without a batch; the next run gives it up, the mark has not
//!    moved.)
//! 3. *Note* the batch's counter in the log, before the first byte of the batch leaves. (Crash: the
//!    next run asks the server about this counter: not applied, given up.)
//! 4. *Stage* full parts, keep the last one. (Crash: as 3; the next batch has the same number, and
//!    parts that come out the same are not sent again ([`resume`]). Unusable parts are given back.)
//! 5. If something could not be saved, note that too (the counter's lowest bit: real counters are
//!    even).
//! 6. *Commit*: the server applies all or nothing. (Crash: the next run finds it applied. If all
//!    was saved, the mark moves. If not, the mark stays and the same changes are sent once more on
//!    top: the dead process took with it which files were left out.)
//! 7. *Finish*: the mark moves, with the note for next time.
//!
//! Nothing is ever decided by a file's time or by the absence of an answer. If the server
//! contradicts the note (another server, one restored from an old copy, a folder changed by another
//! client), everything is sent, on top of whatever is there, and the report says why. That means
//! everything that the server lacks: its file at the same path is looked at first ([`followed`]).
//!
//! A *counter* must never be used for two contents, even when the state folder was restored from an
//! old copy: it is made of the time, random bits and the last one used, and not only of what is
//! remembered.
//!
//! Out of scope: finding changes (the tree's log does), mounting, printing.

mod changes;
mod content;
mod cut_batch;
mod examine;
mod followed;
mod foreseen;
mod heal;
mod limits;
pub(crate) mod note;
mod part_stream;
mod plain;
mod plan;
mod report;
mod resume;
mod transfer;
mod trim;

use crate::error::{BackupError, Result};
use crate::monitor::{Event, Meter, Monitor, Phase, check_cancelled};
use crate::snapshot_spec::snapshots;
use byteback_api::FolderName;
use byteback_api::messages::FolderInfo;
use byteback_api::problem::Code;
use byteback_checksums::ChecksumStore;
use byteback_client::ServerClient;
use byteback_client::ServerErrorKind;
use byteback_control::{ConsumerStatus, CutInfo, CutRequest, Outcome, TreeService};
use byteback_host::durable::DurableDir;
use byteback_host::random::{Randomness, RealRandomness};
use byteback_model::Origin;
use byteback_model::OwnBatch;
use byteback_model::{ByteString, DeviceId, FileId, NodeId, Seq, SnapshotLabel};
use byteback_oplog::{LedgerEntry, LedgerEvent, TreeId};
use foreseen::foreseen_bytes;
use note::Note;
use plan::Answers;
use plan::second_look::SecondLooks;
use resume::Numbered;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use transfer::{Sent, transfer};

pub use content::{Failure, FileDeltas, LITERAL_BYTES_MAX, unusable};
pub use cut_batch::{CutBatch, CutSent, send_cut};
pub use limits::SearchLimits;
pub use part_stream::{Destination, PartMemory, PartStream};
pub(crate) use plain::ContentSender;
pub use plan::DeltaChoice;
pub use report::{BackupDurations, BackupReport, UnsavedFile, WholeFiles};

/// Length of the parts that a large batch is cut into, in bytes.
pub const PART_LEN_BYTES_DEFAULT: usize = 16 * 1024 * 1024;

/// The smallest and the largest part length in use, whatever was asked for.
pub const PART_LEN_BYTES_RANGE: std::ops::RangeInclusive<usize> = 4 * 1024..=48 * 1024 * 1024;

/// The source, the destination and the manner of a backup.
#[derive(Clone, Debug)]
pub struct BackupOptions {
    /// The consumer whose mark in the folder's log counts, for example `backup:` and the folder's
    /// address.
    pub consumer: String,
    /// This machine's number at the server, as `join` returned it together with the token.
    pub device: DeviceId,
    /// Tags of the snapshot.
    pub tags: Vec<String>,
    /// Host, for the snapshot's label.
    pub host: ByteString,
    /// Directory, for the snapshot's label.
    pub path: ByteString,
    /// Length of a part of the batch; [`PART_LEN_BYTES_DEFAULT`].
    pub part_len_bytes: usize,
    /// Only report what would be sent.
    pub dry_run: bool,
    /// Send everything, as if nothing had ever been saved.
    pub force_full: bool,
    /// Make a snapshot also when nothing has changed.
    pub snapshot_if_unchanged: bool,
    /// Directory for checksums of the server's contents, kept between backups; nothing else may use
    /// it meanwhile. Without it, everything that may have changed is sent, or looked for at the
    /// server.
    pub block_checksums: Option<Arc<dyn DurableDir>>,
    /// How to find changes.
    pub delta: DeltaChoice,
    /// The share of a processor that a thread gets on this machine now, above 0, at most 1
    /// (`byteback_host::load`): the cost of searching depends on it.
    pub processor_share: f64,
    /// Directory that remembers the batch that was begun, so that the next run goes on where this
    /// one stops; nothing else may use it meanwhile. Without it, an interrupted backup begins anew.
    pub unfinished: Option<Arc<dyn DurableDir>>,
    /// Directory that records how each file was saved and why (see [`crate::decisions`]); nothing
    /// else may use it meanwhile.
    pub decisions: Option<Arc<dyn DurableDir>>,
    /// Bounds of searches.
    pub limits: SearchLimits,
}

impl BackupOptions {
    /// The usual options for a consumer on a device.
    #[must_use]
    pub fn new(consumer: impl Into<String>, device: DeviceId) -> Self {
        Self {
            consumer: consumer.into(),
            device,
            tags: Vec::new(),
            host: ByteString::default(),
            path: ByteString::default(),
            part_len_bytes: PART_LEN_BYTES_DEFAULT,
            dry_run: false,
            force_full: false,
            snapshot_if_unchanged: true,
            block_checksums: None,
            delta: DeltaChoice::Auto,
            processor_share: 1.0,
            unfinished: None,
            decisions: None,
            limits: SearchLimits::default(),
        }
    }
}

/// The identity of a node at servers: the tree's number and the node's.
#[must_use]
pub fn file_id(tree: TreeId, node: NodeId) -> FileId {
    FileId((u128::from(tree.0) << 64) | u128::from(node.0))
}

/// A number that this device has never used for a batch; even, and larger than `last`.
pub(crate) fn draw_counter(server: &ServerClient, last: u64) -> Result<u64> {
    let random = RealRandomness
        .next_u64()
        .map_err(|error| BackupError::local("draw", "a batch number", error))?;
    let now_ns = u64::try_from(server.clock().now_ns()).unwrap_or(0);
    // A millisecond or so of the time gives way to random bits: a clock that was set back, or a
    // copy of this machine that starts at the same moment, still draws another number.
    let drawn = (now_ns & !0xf_ffff) | (random & 0xf_fffe);
    let counter = drawn.max(last.saturating_add(2) & !1);
    // The server's numbers have 63 bits; nanoseconds fill those in the year 2262.
    Ok(counter.clamp(2, u64::MAX >> 1 & !1))
}

/// Whether the root of a folder is that of a tracked tree: trees number their nodes, and their root
/// is always the first.
pub(crate) fn is_root_of_tree(root: FileId) -> bool {
    root.to_bytes().get(8..) == Some(&NodeId::ROOT.0.to_be_bytes()[..])
}

/// The state of the server that a batch builds on.
struct Basis {
    /// Send everything, and the reason.
    everything: Option<String>,
    /// The reason is one that the user must hear of: the server, or the log, has lost data.
    is_alarming: bool,
    /// The folder's sequence number that the changes follow; `None` with everything.
    base_seq: Option<Seq>,
    /// With everything: the folder's sequence number that the batch replaces, in which files are
    /// looked for; `None`: nothing is looked for.
    replaces: Option<Seq>,
    /// With a base: this device's newest batch, which the changes build on as well.
    follows: Option<OwnBatch>,
    note: Option<Note>,
}

impl Basis {
    fn everything(why: impl Into<String>) -> Self {
        Self {
            everything: Some(why.into()),
            is_alarming: false,
            base_seq: None,
            replaces: None,
            follows: None,
            note: None,
        }
    }

    /// The moment of the server's folder that files are compared with.
    fn compared_seq(&self) -> Option<Seq> {
        let follows = self.follows.map_or(0, |own| own.seq);
        self.base_seq.map(|seq| seq.max(follows)).or(self.replaces)
    }

    fn replacing(self, replaces: Option<Seq>) -> Self {
        Self { replaces, ..self }
    }

    /// The batch that brought the contents which the server has at `base_seq`, if it is a known one
    /// of ours.
    fn batch(&self) -> Option<u64> {
        let note = self.note.as_ref()?;
        (self.base_seq == Some(note.seq)).then_some(note.counter)
    }

    fn alarming(why: impl Into<String>) -> Self {
        Self {
            is_alarming: true,
            ..Self::everything(why)
        }
    }
}

/// The context of a backup.
struct Job<'a> {
    tree: &'a dyn TreeService,
    server: &'a ServerClient,
    folder: &'a FolderName,
    options: &'a BackupOptions,
    monitor: &'a Meter<'a>,
    /// The calls worth making: one that the server lacks is dropped, all are if it is busy or gone.
    answers: Cell<Answers>,
    /// Success and patience of second looks so far.
    second_looks: Cell<SecondLooks>,
    /// Whether the server refused a proof of what was found: then nothing is looked for any more.
    proof_refused: Cell<bool>,
    /// Checksums of the server's contents.
    store: Option<ChecksumStore>,
    /// The identity of a node at the server, if it is not that of [`file_id`].
    identities: Option<&'a (dyn Fn(NodeId) -> FileId + Sync)>,
    /// The server's files, under other names, from which files here grew.
    origins: Option<&'a (dyn Fn(NodeId) -> Option<Origin> + Sync)>,
    /// Directories of which only the time is sent, so that it conflicts with no change of others in
    /// them.
    sends_time_only: Option<&'a (dyn Fn(NodeId) -> bool + Sync)>,
    /// Whether the batch leaves a snapshot.
    makes_snapshot: bool,
    /// Whether the server reported known damage.
    knows_damage: Cell<bool>,
    /// Files that are damaged at the server and cannot be healed there: none of the server's bytes
    /// of them count.
    damaged: BTreeSet<NodeId>,
    /// Whether staged parts of an earlier batch may be used.
    may_resume: Cell<bool>,
    /// Number of damaged files that were not sent anew; the log reports them to the next batch.
    unmended: Cell<usize>,
}

/// Backs up the changes of `tree` since the last backup of this consumer to `folder` of `server`.
///
/// # Errors
/// Everything that keeps the whole backup from being made; then nothing was saved and the next
/// backup covers it again, except for [`BackupError::OutcomeUnknown`] and
/// [`BackupError::SavedNotNoted`], after which the next backup finds out. A file that cannot be
/// read is no error: see [`BackupReport::unsaved`].
pub fn backup(
    tree: &dyn TreeService,
    server: &ServerClient,
    folder: &FolderName,
    options: &BackupOptions,
    monitor: &dyn Monitor,
) -> Result<BackupReport> {
    let monitor = &Meter::new(monitor);
    let mut job = Job {
        tree,
        server,
        folder,
        options,
        monitor,
        answers: Cell::new(Answers::ALL),
        second_looks: Cell::new(SecondLooks::default()),
        proof_refused: Cell::new(false),
        store: match options.dry_run {
            true => None,
            false => trim::open_store(options, monitor),
        },
        identities: None,
        origins: None,
        sends_time_only: None,
        makes_snapshot: true,
        knows_damage: Cell::new(false),
        damaged: BTreeSet::new(),
        may_resume: Cell::new(true),
        unmended: Cell::new(0),
    };
    let started_ns = server.clock().monotonic_ns();
    let wire_before = server.wire_bytes();
    let mut report = BackupReport {
        device: options.device,
        dry_run: options.dry_run,
        ..BackupReport::default()
    };
    monitor.event(Event::Phase(Phase::Preparing));
    let mut basis = job.basis()?;
    job.damaged = heal::heal(&job, &mut report)?;
    report.durations.prepare_ns = server.clock().monotonic_ns().saturating_sub(started_ns);
    let fresh = BackupReport {
        durations: report.durations,
        ..report.clone()
    };
    let mut was_resent = false;
    let mut saved: Option<BackupReport> = None;
    loop {
        if basis.is_alarming
            && let Some(why) = &basis.everything
        {
            monitor.event(Event::Warning(&format!("{why}; sending everything")));
        }
        match job.attempt(&basis, &mut report) {
            Ok(()) => {
                // The log reports only now those files that are damaged at the server and unchanged
                // here. Once: files that cannot be sent stay reported.
                if job.unmended.get() > 0 && saved.is_none() {
                    basis = job.basis()?;
                    saved = Some(std::mem::replace(&mut report, fresh.clone()));
                    continue;
                }
                break;
            }
            Err(BackupError::Server(error)) if basis.base_seq.is_some() && contradicts_basis(&error) => {
                let newest = job.server.folder(folder)?;
                let why = format!(
                    "the server refused the changes since the last backup ({})",
                    error.message
                );
                basis = Basis::alarming(why).replacing(job.replaced(&newest));
            }
            // The server is older than batches that follow what they replace, or another client
            // came between. Nothing was applied.
            Err(BackupError::Server(error))
                if basis.base_seq.is_none() && basis.replaces.is_some() && refuses_to_follow(&error) =>
            {
                basis.replaces = None;
                basis.is_alarming = false;
                monitor.event(Event::Warning(&format!(
                    "the server refused a batch that builds on what it has ({}); sending everything in full",
                    error.message
                )));
            }
            // The server's checksums did not match its contents. Nothing was applied.
            Err(BackupError::Server(error))
                if error.kind == ServerErrorKind::ContentMismatch && !job.proof_refused.get() =>
            {
                job.proof_refused.set(true);
                monitor.event(Event::Warning(&format!(
                    "{}; sending such files in full",
                    error.message
                )));
            }
            // Nothing was applied, so the same can be sent as another batch. Once: a server that
            // loses parts twice will lose them again.
            Err(BackupError::Server(error)) if error.kind == ServerErrorKind::PartsMissing && !was_resent => {
                was_resent = true;
                monitor.event(Event::Warning(&format!("{}; sending it again", error.message)));
            }
            Err(error) => return Err(error),
        }
        // Another batch, of which nothing is staged yet.
        job.may_resume.set(false);
        report = fresh.clone();
    }
    if let Some(saved) = saved {
        report = saved.followed_by(report);
    }
    report.wire = server.wire_bytes().since(wire_before);
    report.durations.total_ns = server.clock().monotonic_ns().saturating_sub(started_ns);
    Ok(report)
}

/// Why the previous log was lost, if it was.
fn lost(ledger: &[LedgerEntry]) -> Option<&str> {
    ledger.iter().rev().find_map(|entry| match &entry.event {
        LedgerEvent::LogLost { reason, .. } => Some(reason.as_str()),
        _ => None,
    })
}

/// Whether another batch may succeed after this one, of which nothing was applied.
fn may_be_retried(error: &byteback_client::ServerError) -> bool {
    refuses_to_follow(error)
        || matches!(
            error.kind,
            ServerErrorKind::PartsMissing | ServerErrorKind::ContentMismatch
        )
}

/// Whether an error says that the batch does not fit the server's state; nothing was applied then.
fn contradicts_basis(error: &byteback_client::ServerError) -> bool {
    error.kind == ServerErrorKind::Conflict
        || error
            .problem
            .as_ref()
            .is_some_and(|problem| problem.code == Code::InvalidBatch)
}

/// Whether an error may mean that contents cannot follow those of other files: older servers do not
/// understand such a batch, and for others it may be too large.
fn refuses_to_follow(error: &byteback_client::ServerError) -> bool {
    let code = error.problem.as_ref().map(|problem| problem.code);
    contradicts_basis(error) || matches!(code, Some(Code::InvalidBody | Code::BatchTooLarge))
}

impl Job<'_> {
    /// The identity of a node at the server.
    fn file_id(&self, tree: TreeId, node: NodeId) -> FileId {
        match self.identities {
            Some(identities) => identities(node),
            None => file_id(tree, node),
        }
    }

    /// Finds out the server's state, and settles what an earlier run left.
    fn basis(&self) -> Result<Basis> {
        let info = self.server.folder(self.folder)?;
        self.knows_damage.set(info.knows_damage);
        let basis = self.basis_on(&info)?;
        // Needed even with a base, in case the log turns out to have forgotten the last backup.
        Ok(basis.replacing(self.replaced(&info)))
    }

    /// The moment that a batch of everything replaces, and in which files are looked for.
    fn replaced(&self, info: &FolderInfo) -> Option<Seq> {
        let options = self.options;
        let is_wanted = !options.force_full && options.delta != DeltaChoice::Full;
        (is_wanted && info.root.is_some()).then_some(info.seq)
    }

    fn basis_on(&self, info: &FolderInfo) -> Result<Basis> {
        let status = self.tree.status()?;
        let none = ConsumerStatus {
            name: self.options.consumer.clone(),
            ..ConsumerStatus::default()
        };
        let consumer = status
            .consumers
            .into_iter()
            .find(|consumer| consumer.name == self.options.consumer)
            .unwrap_or(none);
        let root = file_id(status.tree, NodeId::ROOT);
        let mut note = Note::from_bytes(&consumer.note);
        let mut mark = consumer.mark;
        let mut later_seq = None;
        if let Some((epoch, batch)) = consumer.pending
            && !self.options.dry_run
        {
            let settled = self.settle(batch, root, note.as_ref())?;
            if let Some((_, true)) = &settled {
                mark = Some(epoch);
            }
            match settled {
                Some((saved, true)) => note = Some(saved),
                // Applied, but incomplete: the same changes go on top of it once more.
                Some((saved, false)) => later_seq = Some(saved.seq),
                None => {}
            }
        }
        if self.options.force_full {
            return Ok(Basis::everything("a full backup was requested"));
        }
        let (Some(note), Some(_)) = (note, mark) else {
            let other = info.root.is_some_and(|other| other != root);
            return Ok(match lost(&status.ledger) {
                // The lost log also held the note of this server, which still has the backups.
                Some(why) if other => Basis::alarming(format!("the folder's log was lost ({why})")),
                None if other => {
                    Basis::alarming("the folder's log was recreated since the last backup, or another tree made that")
                }
                _ => Basis::everything("this is the first backup of the folder to this server"),
            });
        };
        if note.everything_next {
            return Ok(Basis::everything("too many files could not be saved last time"));
        }
        if note.server != self.server.base_url() || note.folder != self.folder.as_str() {
            return Ok(Basis::everything(format!(
                "the last backup went to another place ({}, folder {})",
                note.server, note.folder
            )));
        }
        if note.device != self.options.device {
            return Ok(Basis::everything(
                "this machine has joined the server again since the last backup",
            ));
        }
        if note.root != root {
            return Ok(Basis::alarming("the folder's log was recreated since the last backup"));
        }
        if info.seq < note.seq {
            return Ok(Basis::alarming(format!(
                "the server has lost batches (it is at {}, the last backup was {}): it was restored from an older copy",
                info.seq, note.seq
            )));
        }
        if info.root != Some(root) {
            return Ok(Basis::alarming(self.describe_intervening(note.seq)?));
        }
        let applied = self.server.batch_status(self.folder, note.counter)?.applied;
        if applied.is_none_or(|applied| applied.seq != note.seq) {
            return Ok(Basis::alarming(
                "the server does not know the last backup: it was restored from an older copy or is a different server",
            ));
        }
        Ok(Basis {
            everything: None,
            is_alarming: false,
            base_seq: Some(later_seq.unwrap_or(note.seq)),
            replaces: None,
            follows: None,
            note: Some(note),
        })
    }

    /// Another tree has backed up into the folder since batch `since`: names it, for people.
    fn describe_intervening(&self, since: Seq) -> Result<String> {
        let mut newest = None;
        snapshots(self.server, self.folder, |snapshot| {
            if snapshot.seq > since {
                newest = Some(snapshot);
            }
            Ok(())
        })?;
        Ok(match newest {
            Some(snapshot) => format!(
                "machine {} has backed up {} into this folder since",
                snapshot.label.host, snapshot.label.path
            ),
            None => "another machine or directory has saved into this folder since".to_owned(),
        })
    }

    /// Settles a pending cut: returns the note of its batch, if that was applied, and whether the
    /// mark moved.
    fn settle(&self, batch: u64, root: FileId, last: Option<&Note>) -> Result<Option<(Note, bool)>> {
        let consumer = &self.options.consumer;
        let (counter, is_complete) = (batch & !1, batch & 1 == 0);
        let applied = match counter {
            0 => None,
            counter => self.server.batch_status(self.folder, counter)?.applied,
        };
        let Some(applied) = applied else {
            self.tree.resolve_pending(consumer, None)?;
            if counter != 0 && resume::noted_counter(self.options) != Some(counter) {
                // If it cannot be given back, it expires.
                let _ = self.server.abandon(self.folder, counter);
            }
            return Ok(None);
        };
        let note = Note::new(
            self.server.base_url(),
            self.folder.as_str(),
            self.options.device,
            counter,
            applied.seq,
            applied.snapshot_id.or(last.and_then(|last| last.snapshot_id)),
            root,
        );
        self.tree
            .resolve_pending(consumer, is_complete.then(|| note.to_bytes()))?;
        Ok(Some((note, is_complete)))
    }

    /// Makes one backup on a given basis.
    fn attempt(&self, basis: &Basis, report: &mut BackupReport) -> Result<()> {
        check_cancelled(self.monitor)?;
        self.monitor.event(Event::Phase(Phase::Cutting));
        let clock = self.server.clock();
        let cut_began_ns = clock.monotonic_ns();
        let cut = self.tree.cut(&CutRequest {
            everything: basis.everything.is_some(),
            look_only: self.options.dry_run,
            // Damaged files are sent whole, whatever changed in them.
            whole_files: self.options.delta != DeltaChoice::Auto || !self.damaged.is_empty(),
            ..CutRequest::of(&self.options.consumer)
        })?;
        report.durations.cut_ns = clock.monotonic_ns().saturating_sub(cut_began_ns);
        report.tree_nodes = cut.tree_nodes;
        report.everything_because.clone_from(&basis.everything);
        for unreadable in &cut.unreadable {
            report.unsaved.push(unsaved(unreadable));
            self.tell_failure(report.unsaved.last());
        }
        // The tree reported everything without being asked to: it has no mark (any more).
        let forgotten;
        let basis = if cut.since.is_none() && basis.everything.is_none() {
            let why = "the folder's log no longer knows the last backup";
            self.monitor
                .event(Event::Warning(&format!("{why}; sending everything")));
            report.everything_because = Some(why.to_owned());
            forgotten = Basis::everything(why).replacing(basis.replaces);
            &forgotten
        } else {
            basis
        };
        if self.options.dry_run {
            let counted = changes::count(self.tree, &cut, report);
            self.tree.finish(cut.cut, &Outcome::Abandoned)?;
            report.changed_bytes = cut.content_bytes;
            report.seq = basis.base_seq;
            return counted;
        }
        self.save(&cut, basis, report)
    }

    /// Sends what the cut reports and finishes it, one way or the other.
    fn save(&self, cut: &CutInfo, basis: &Basis, report: &mut BackupReport) -> Result<()> {
        let clock = self.server.clock();
        let transfer_began_ns = clock.monotonic_ns();
        self.monitor.foresee(cut.nodes, foreseen_bytes(self, cut));
        self.monitor.event(Event::Phase(Phase::Transferring));
        let number = self.number(basis, cut.tree);
        let result = number.and_then(|number| {
            let sent = transfer(self, cut, basis, &number, report);
            let ended = number.ended(self, sent);
            number.reused().add_to(report);
            Ok((ended?, number.counter()))
        });
        report.durations.transfer_ns = clock
            .monotonic_ns()
            .saturating_sub(transfer_began_ns)
            .saturating_sub(report.durations.commit_ns);
        let (sent, counter) = match result {
            Ok(done) => done,
            Err(error) => {
                let outcome = match error {
                    BackupError::OutcomeUnknown { .. } => Outcome::Unknown,
                    _ => Outcome::Abandoned,
                };
                let finished = self.tree.finish(cut.cut, &outcome);
                return match (error, finished) {
                    // Another try would have to begin with a new cut, which a failing log cannot
                    // make.
                    (BackupError::Server(error), Err(log)) if may_be_retried(&error) => Err(log.into()),
                    // The first error is the one to report; a log that fails as well keeps the mark
                    // anyway.
                    (error, _) => Err(error),
                };
            }
        };
        let Sent {
            applied,
            mut unsaved,
            missing,
            left_out,
            mended,
        } = sent;
        // Files that this backup did not send are reported to the next one by the log.
        let is_unmended = |node: &&NodeId| !mended.contains(*node) && !unsaved.contains(*node);
        let unmended: Vec<NodeId> = self.damaged.iter().filter(is_unmended).copied().collect();
        self.unmended.set(unmended.len());
        unsaved.extend(unmended);
        let root = file_id(cut.tree, NodeId::ROOT);
        let note = match (&applied, &basis.note) {
            (Some(applied), _) => {
                report.counter = counter;
                report.seq = Some(applied.seq);
                report.snapshot_id = applied.snapshot_id;
                report.stored_bytes = applied.stored_bytes;
                Note::new(
                    self.server.base_url(),
                    self.folder.as_str(),
                    self.options.device,
                    counter,
                    applied.seq,
                    applied.snapshot_id,
                    root,
                )
            }
            (None, Some(last)) => {
                report.seq = basis.base_seq;
                let mut note = last.clone();
                if self.options.snapshot_if_unchanged {
                    // Before the mark moves, so that the log remembers it as the last one.
                    match self.server.create_snapshot(self.folder, basis.base_seq, &self.label()) {
                        Ok(snapshot) => {
                            report.snapshot_id = Some(snapshot.id);
                            note.snapshot_id = Some(snapshot.id);
                        }
                        Err(error) => {
                            let _ = self.tree.finish(cut.cut, &Outcome::Abandoned);
                            return Err(error.into());
                        }
                    }
                }
                note
            }
            // Everything holds at least the root, so there is always a batch.
            (None, None) => return Err(BackupError::hostile("the folder's log reports no root directory")),
        };
        let link_bytes_per_s = self
            .server
            .link_bytes_per_s()
            .or_else(|| basis.note.as_ref()?.link_bytes_per_s);
        let note = note.with_left_out(missing, left_out).with_link(link_bytes_per_s);
        let finished = self
            .tree
            .finish(
                cut.cut,
                &Outcome::Saved {
                    note: note.to_bytes(),
                    unsaved,
                },
            )
            .map_err(BackupError::SavedNotNoted)?;
        if let (Some(store), Some(_)) = (&self.store, &applied) {
            // If it fails, the next backup does it.
            let _ = store.settle(Some(counter));
        }
        report.read_bytes = finished.read_bytes;
        report.kept_bytes = finished.kept_bytes;
        report.daemon_cpu_ns = finished.cpu_ns;
        Ok(())
    }

    fn label(&self) -> SnapshotLabel {
        SnapshotLabel {
            time_ns: self.server.clock().now_ns(),
            host: self.options.host.clone(),
            path: self.options.path.clone(),
            tags: self.options.tags.clone(),
        }
    }

    /// The number of an interrupted batch that can be resumed, or one that this device has never
    /// used for a batch of this folder; even.
    fn number(&self, basis: &Basis, tree: TreeId) -> Result<Numbered> {
        let may_resume = self.may_resume.get();
        if let Some(left) = Numbered::left(self, tree, may_resume)? {
            return Ok(left);
        }
        let counter = draw_counter(self.server, basis.note.as_ref().map_or(0, |note| note.counter))?;
        Ok(Numbered::begin(self, tree, counter))
    }

    fn tell_failure(&self, file: Option<&UnsavedFile>) {
        if let Some(file) = file {
            self.monitor.event(Event::FileFailed {
                path: &file.path,
                reason: &file.reason,
            });
        }
    }
}

fn unsaved(error: &byteback_control::ServiceError) -> UnsavedFile {
    UnsavedFile {
        path: error.path.clone().unwrap_or_default(),
        reason: error.message.clone(),
    }
}
