//! Push: makes a place at a server equal to a file or directory of this machine, without a mount, a
//! log or any state of its own.
//!
//! The local tree is walked beside the server's, directory by directory in the order of names. A
//! node with the same path, kind, length and modification time is taken for unchanged (with
//! [`PushOptions::checksum`], one with the same content); of the rest, names and attributes are
//! sent as they are and contents as their difference from the server's, found and proven as in a
//! backup.
//!
//! *Paths.* The content of a directory becomes the content of the named place, in which missing
//! directories are made. A file becomes the named place, or goes under its own name into it if that
//! is a directory there, ends in a slash, or is the folder itself. A slash behind a local directory
//! means nothing.
//!
//! *Moved and copied* files are looked for in the server's files of other paths (`compare/late`,
//! `compare/elsewhere`); their contents are proven by digests before anything rests on them.
//!
//! *Identity* follows the path: a file keeps its identity at the server while there is one of its
//! kind at its path. A file or directory whose path is new and whose former one is gone and removed
//! ([`PushOptions::delete`]) keeps it too: its versions go on, and a directory costs one name. All
//! others are new nodes with copied contents: the server's names stay as they are. Names of one
//! local inode become names of one file; names that are one file at the server and two here are
//! separated. A name that is not compared (outside the place, excluded, or gone here without
//! [`PushOptions::delete`]) keeps its content: a file that changed is separated from it (`names`).
//!
//! *One batch*: a run is applied as a whole or not at all, and all others see either. It builds on
//! the sequence number that was compared with: if another client has changed the same files since,
//! the server refuses it (first write wins), and nothing happened. A server takes 20 million
//! records in a batch, which is some seven million new files; push more directory by directory.
//! Memory: the names of a directory on both ends, 16 bytes for each node that both have, the parts
//! on their way; and with limits 48 bytes for each file of the server, the names that are new here,
//! and the entries that only the server has.
//!
//! *A file that changes while it is read* is tried once more, then left as the server has it and
//! reported.
//!
//! *Tracked folders.* A folder that a tracked tree backs up into is refused: that tree's next
//! backup would find a sequence number that it did not make, and would either keep foreign files in
//! its snapshots or look at everything anew ([`BackupError::BackedUpFolder`]).
//!
//! Order of durable steps with [`PushOptions::state`], and what a crash after each leaves:
//! 1. The batch's number and base are recorded (`resume`) before its first part leaves. (Nothing at
//!    the server.)
//! 2. Parts are staged, and each is recorded when the server has it. (The next run makes the same
//!    batch again; parts of the same bytes are not sent again.)
//! 3. The batch is committed. (The next run asks what became of it, and compares anew.)
//! 4. The record is removed.
//!
//! Without a state, everything is sent again, and staged parts expire at the server after a day.
//!
//! Out of scope: holding the tree still (a mounted folder's backup does), recognising renamed links
//! and special files, printing.

mod compare;
mod destination;
mod names;
mod report;
mod resume;

use crate::backup::{DeltaChoice, Destination, PART_LEN_BYTES_RANGE, PartMemory, PartStream, is_root_of_tree};
use crate::error::{BackupError, Result};
use crate::exclude::Exclude;
use crate::local_node::LocalNode;
use crate::monitor::{Event, Monitor, Phase, check_cancelled};
use byteback_api::FolderName;
use byteback_api::messages::FolderInfo;
use byteback_client::ServerClient;
use byteback_client::ServerErrorKind;
use byteback_host::durable::DurableDir;
use byteback_model::{ByteString, DeviceId, Manifest, NodeKind, SnapshotLabel, Totals};
use compare::Comparison;
use destination::destination;
use resume::{Begun, Record};
use rustix::fs::{Mode, OFlags};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

pub use report::PushReport;
pub use resume::push_state_name;

/// The manner of a push.
#[derive(Clone, Debug)]
pub struct PushOptions {
    /// This machine's number at the server.
    pub device: DeviceId,
    /// Host, for the snapshot's label.
    pub host: ByteString,
    /// Tags of the snapshot.
    pub tags: Vec<String>,
    /// Only report what would be sent.
    pub dry_run: bool,
    /// Remove names at the server that do not exist here.
    pub delete: bool,
    /// Compare the contents of files of the same length and time, too.
    pub checksum: bool,
    /// Leave mounted file systems alone.
    pub one_file_system: bool,
    /// Paths that are neither sent nor removed.
    pub exclude: Exclude,
    /// How to find changes.
    pub delta: DeltaChoice,
    /// The share of a processor that a thread gets on this machine now, above 0, at most 1: the
    /// cost of searching depends on it.
    pub processor_share: f64,
    /// Length of a part of the batch, in bytes.
    pub part_len_bytes: usize,
    /// Directory that remembers which parts the server has of an interrupted push. For one source
    /// and one destination; nothing else may use it meanwhile.
    pub state: Option<Arc<dyn DurableDir>>,
}

impl PushOptions {
    /// The usual options of a device.
    #[must_use]
    pub fn new(device: DeviceId) -> Self {
        Self {
            device,
            host: ByteString::default(),
            tags: Vec::new(),
            dry_run: false,
            delete: false,
            checksum: false,
            one_file_system: false,
            exclude: Exclude::default(),
            delta: DeltaChoice::Auto,
            processor_share: 1.0,
            part_len_bytes: crate::PART_LEN_BYTES_DEFAULT,
            state: None,
        }
    }
}

/// The context of a push.
struct Job<'a> {
    server: &'a ServerClient,
    folder: &'a FolderName,
    /// The place in the folder; without slashes at its ends.
    to: &'a [u8],
    /// Whether it names a directory, by a slash at its end.
    to_is_directory: bool,
    source: &'a Path,
    options: &'a PushOptions,
    monitor: &'a dyn Monitor,
}

/// Makes `to`, a path below the root of `folder`, equal to `source`; see the module's header for
/// how paths are meant.
///
/// # Errors
/// Everything that keeps the whole from being sent; then nothing was changed at the server, except
/// with [`BackupError::OutcomeUnknown`]. A failure that concerns one file only is no error: see
/// [`PushReport::unsaved`].
pub fn push(
    server: &ServerClient,
    folder: &FolderName,
    to: &[u8],
    source: &Path,
    options: &PushOptions,
    monitor: &dyn Monitor,
) -> Result<PushReport> {
    let job = Job {
        server,
        folder,
        to: crate::listing::trim_slashes(to),
        to_is_directory: to.ends_with(b"/"),
        source,
        options,
        monitor,
    };
    let started_ns = server.clock().monotonic_ns();
    let wire_before = server.wire_bytes();
    monitor.event(Event::Phase(Phase::Preparing));
    // Follows a symlink: it was named.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let local = rustix::fs::open(source, flags, Mode::empty())
        .map_err(std::io::Error::from)
        .and_then(LocalNode::of)
        .map_err(|error| BackupError::local("open", source.display().to_string(), error))?;
    let mut report = job.run(&local)?;
    report.wire = server.wire_bytes().since(wire_before);
    report.total_ns = server.clock().monotonic_ns().saturating_sub(started_ns);
    Ok(report)
}

impl Job<'_> {
    fn run(&self, local: &LocalNode) -> Result<PushReport> {
        let mut report = PushReport {
            dry_run: self.options.dry_run,
            ..PushReport::default()
        };
        let info = self.folder_info(&mut report)?;
        if info.as_ref().and_then(|info| info.root).is_some_and(is_root_of_tree) {
            return Err(BackupError::BackedUpFolder {
                folder: self.folder.to_string(),
            });
        }
        let base_seq = info.as_ref().map_or(0, |info| info.seq);
        let mut record = self.record(base_seq, &mut report)?;
        let mut fresh = report.clone();
        let mut earlier = PushReport::default();
        let (mut proof_refused, mut was_resent) = (false, false);
        loop {
            let ended = self.attempt(local, &record, proof_refused, &mut report);
            let error = match ended {
                Ok(()) => {
                    record.remove();
                    report.absorb(&earlier);
                    let stood_on = record.begun().base_seq;
                    if !record.is_resumed() || stood_on == base_seq {
                        return Ok(report);
                    }
                    // Changes by others since the interrupted run began were not compared with.
                    earlier = report;
                    let now = self.server.folder(self.folder)?;
                    record = Record::begin(self, now.seq)?;
                    fresh = PushReport::default();
                    report = fresh.clone();
                    continue;
                }
                Err(BackupError::Server(error)) => error,
                // Staged parts stay for the next run.
                Err(error) => return Err(error),
            };
            // Nothing was applied.
            let kind = match error.kind {
                // Another client has given the folder its root meanwhile.
                ServerErrorKind::Refused
                    if record.begun().base_seq == 0 && self.server.folder(self.folder).is_ok_and(|now| now.seq > 0) =>
                {
                    ServerErrorKind::Conflict
                }
                kind => kind,
            };
            match kind {
                ServerErrorKind::ContentMismatch if !proof_refused => {
                    proof_refused = true;
                    record.forget_parts();
                    let message = format!("{}; sending such files in full", error.message);
                    self.monitor.event(Event::Warning(&message));
                }
                ServerErrorKind::PartsMissing if !was_resent => {
                    was_resent = true;
                    record.forget_parts();
                    let message = format!("{}; sending it again", error.message);
                    self.monitor.event(Event::Warning(&message));
                }
                // The base is no longer at the server: the interrupted push cannot be completed,
                // but a new one may succeed.
                ServerErrorKind::Conflict | ServerErrorKind::NotFound if record.is_resumed() => {
                    record.remove();
                    record = Record::begin(self, base_seq)?;
                    fresh.resumed = false;
                }
                ServerErrorKind::Conflict => {
                    record.remove();
                    return Err(BackupError::ChangedMeanwhile {
                        what: error.message.clone(),
                        source: Box::new(error),
                    });
                }
                kind => {
                    if !kind.is_transient()
                        && ServerClient::commit_outcome_is_known(kind)
                        && kind != ServerErrorKind::Full
                    {
                        record.remove();
                    }
                    return Err(error.into());
                }
            }
            report = fresh.clone();
        }
    }

    /// The folder, made if it is missing and may be made.
    fn folder_info(&self, report: &mut PushReport) -> Result<Option<FolderInfo>> {
        match self.server.folder(self.folder) {
            Ok(info) => Ok(Some(info)),
            Err(error) if error.kind == ServerErrorKind::NotFound => {
                report.folder_is_new = true;
                match self.options.dry_run {
                    true => Ok(None),
                    false => Ok(Some(self.server.create_folder(self.folder)?)),
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The record that an interrupted push has left, or a new one.
    fn record(&self, base_seq: u64, report: &mut PushReport) -> Result<Record> {
        if self.options.dry_run {
            return Record::begin(self, base_seq);
        }
        if let Some((mut left, begun)) = Record::left(self) {
            let status = self.server.batch_status(self.folder, begun.counter)?;
            // A batch that was applied is part of what is compared with; one without parts is of no
            // use.
            if status.applied.is_none() && !status.staged_parts.is_empty() && begun.base_seq <= base_seq {
                left.at_server(status.staged_parts);
                report.resumed = true;
                return Ok(left);
            }
            left.remove();
        }
        Record::begin(self, base_seq)
    }

    /// Compares, sends and commits once.
    fn attempt(&self, local: &LocalNode, record: &Record, proof_refused: bool, report: &mut PushReport) -> Result<()> {
        check_cancelled(self.monitor)?;
        self.monitor.event(Event::Phase(Phase::Transferring));
        let begun = record.begun();
        let place = destination(self, begun, local.kind() == NodeKind::Directory)?;
        report.base_seq = begun.base_seq;
        let manifest = self.manifest(begun, place.root);
        if self.options.dry_run {
            let mut comparison = Comparison::new(self, record, None, proof_refused, report);
            return comparison.run(local, &place);
        }
        let destination = Destination {
            server: self.server,
            folder: self.folder,
            counter: begun.counter,
            monitor: self.monitor,
            memory: Some(record as &dyn PartMemory),
            link_before_bytes_per_s: None,
            processor_share: self.options.processor_share,
        };
        let range = PART_LEN_BYTES_RANGE;
        let part_len_bytes = self.options.part_len_bytes.clamp(*range.start(), *range.end());
        let note = || {
            record.keep(self.monitor);
            Ok(())
        };
        std::thread::scope(|scope| {
            let stream = PartStream::begin(scope, destination, part_len_bytes, &manifest, &note)?;
            let mut comparison = Comparison::new(self, record, Some(stream), proof_refused, report);
            comparison.run(local, &place)?;
            comparison.prove_resumed()?;
            let Some(stream) = comparison.into_stream() else {
                return Ok(());
            };
            report.parts = stream.staged_parts();
            (report.parts_reused, report.reused_bytes) = record.reused();
            if stream.totals() == Totals::default() {
                return Ok(());
            }
            self.monitor.event(Event::Phase(Phase::Committing));
            let applied = stream.commit(|| check_cancelled(self.monitor))?;
            // Known for certain only now: the last parts may have been answered while the commit
            // waited.
            (report.parts_reused, report.reused_bytes) = record.reused();
            report.counter = Some(begun.counter);
            report.seq = Some(applied.seq);
            report.snapshot_id = applied.snapshot_id;
            report.stored_bytes = applied.stored_bytes;
            Ok(())
        })
    }

    fn manifest(&self, begun: &Begun, root: byteback_model::FileId) -> Manifest {
        let path = std::path::absolute(self.source).unwrap_or_else(|_| self.source.to_owned());
        let path = ByteString::from(path.as_os_str().as_bytes());
        Manifest {
            device: self.options.device,
            counter: begun.counter,
            base_seq: Some(begun.base_seq),
            replaces: None,
            follows: None,
            root,
            created_ns: begun.created_ns,
            host: self.options.host.clone(),
            path: path.clone(),
            snapshot: Some(SnapshotLabel {
                time_ns: begun.created_ns,
                host: self.options.host.clone(),
                path,
                tags: self.options.tags.clone(),
            }),
        }
    }
}
