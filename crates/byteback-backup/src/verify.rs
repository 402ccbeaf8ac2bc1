//! Verification of a snapshot: the server re-reads every stored byte that it needs, and, if asked,
//! each file is compared with the folder, byte by byte.
//!
//! The comparison walks the snapshot and the directory together. Nodes on both sides are compared
//! in kind, attributes and content; nodes on one side only are reported. A folder that was changed
//! after the snapshot differs rightly: the user knows, this module does not. Contents are never
//! held: the stream of the server is compared as it comes.
//!
//! Out of scope: repair.

mod compare;

use crate::error::{BackupError, Result};
use crate::monitor::{Event, Meter, Monitor, Phase, check_cancelled};
use crate::snapshot_spec::{SnapshotSpec, resolve_snapshot};
use crate::tree_reader::TreeReader;
use byteback_api::FolderName;
use byteback_api::messages::{DamagedRange, VerifyEvent};
use byteback_client::{ServerClient, WireBytes};
use byteback_client::{ServerError, ServerErrorKind};
use byteback_host::tree::{self};
use byteback_model::{ByteString, FileId, NodeKind, Seq};
use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Most damaged files listed in a report. The monitor gets each of them.
pub const DAMAGED_LISTED_MAX: usize = 10_000;

/// Most bytes of paths and reasons listed in a report.
const LISTED_LEN_MAX: usize = 64 * 1024 * 1024;

/// How thoroughly to verify.
#[derive(Clone, Copy, Debug, Default)]
pub struct VerifyOptions<'a> {
    /// The folder that the snapshot is of, if it is here: files that are damaged at the server are
    /// looked for in it.
    pub here: Option<&'a Path>,
    /// Compare with this directory, too.
    pub deep: Option<&'a Path>,
}

/// A file that the server cannot read in full.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VerifyDamage {
    /// The file.
    pub id: FileId,
    /// A path of the file.
    pub path: Option<ByteString>,
    /// The error.
    pub detail: String,
    /// The first ranges that are lost, ascending.
    pub ranges: Vec<DamagedRange>,
    /// Number of lost bytes in all; 0 if nothing is known of the contents.
    pub lost_bytes: u64,
    /// Whether the folder has a file of the same length and time at this path, with which a backup
    /// heals it; null if there was no folder to look into.
    pub healable: Option<bool>,
}

/// A difference between the folder and the snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "difference", rename_all = "snake_case")]
pub enum DifferenceKind {
    /// The snapshot has the path, the folder does not.
    Missing,
    /// The folder has the path, the snapshot does not.
    Extra,
    /// Another kind of node, for example a file and a directory.
    Kind,
    /// Another length.
    Size {
        /// In the snapshot.
        snapshot: u64,
        /// In the folder.
        folder: u64,
    },
    /// Other bytes.
    Content {
        /// Offset of the first one.
        first_offset: u64,
    },
    /// Other attributes.
    Attribute {
        /// The attribute: `mode`, `owner`, `mtime`, `rdev`, `target`, `xattrs`.
        which: &'static str,
    },
    /// Two names of one file in the snapshot are two files in the folder.
    NotLinked,
    /// The node cannot be read in the folder.
    Unreadable {
        /// The reason.
        reason: String,
    },
}

/// A difference at a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The path.
    pub path: ByteString,
    /// The difference.
    #[serde(flatten)]
    pub kind: DifferenceKind,
}

/// Result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// The snapshot.
    pub snapshot_id: u64,
    /// Its sequence number.
    pub seq: Seq,
    /// Files that the server checked.
    pub files: u64,
    /// Frames that it read.
    pub frames: u64,
    /// Stored bytes that it read.
    pub bytes: u64,
    /// Files that it cannot read in full; beyond [`DAMAGED_LISTED_MAX`] they are only counted.
    pub damaged: Vec<VerifyDamage>,
    /// The number of them.
    pub damaged_files: u64,
    /// Files whose checksums, which the server kept to save reading, did not agree with their
    /// bytes; it threw them away. The bytes are whole, but its memory or its disk may not be.
    pub wrong_sums: u64,
    /// Whether the folder was compared.
    pub is_deep: bool,
    /// Names compared with the folder.
    pub compared: u64,
    /// Bytes of content compared with the folder.
    pub compared_bytes: u64,
    /// The differences.
    pub differences: Vec<Difference>,
    /// Bytes on the socket.
    pub wire: WireBytes,
    /// Total duration, in nanoseconds.
    pub total_ns: u64,
}

impl VerifyReport {
    /// Whether nothing is damaged and nothing differs.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.damaged_files == 0 && self.differences.is_empty()
    }
}

/// Verifies a snapshot at the server and, with [`VerifyOptions::deep`], against a directory.
///
/// # Errors
/// If the verification itself fails; its findings are in the report.
pub fn verify(
    server: &ServerClient,
    folder: &FolderName,
    at: SnapshotSpec,
    options: &VerifyOptions<'_>,
    monitor: &dyn Monitor,
) -> Result<VerifyReport> {
    let clock = server.clock();
    let started_ns = clock.monotonic_ns();
    let wire_before = server.wire_bytes();
    monitor.event(Event::Phase(Phase::Preparing));
    let snapshot = resolve_snapshot(server, folder, at)?;
    let mut report = VerifyReport {
        snapshot_id: snapshot.id,
        seq: snapshot.seq,
        ..VerifyReport::default()
    };
    // Only for progress: without it, less is shown.
    let root = TreeReader::new(server, folder, report.seq).node_at(&[]).ok();
    let totals = root.and_then(|root| server.totals(folder, root.id, report.seq).ok());
    // The server reads each stored byte once, and their number is known only at the end; files are
    // what can be counted.
    let (files, bytes) = (totals.as_ref().map_or(0, |totals| totals.files), 0);
    monitor.event(Event::Totals { files, bytes });
    monitor.event(Event::Phase(Phase::Verifying));
    verify_stored(server, folder, monitor, &mut report)?;
    if let Some(dir) = options.here {
        for damage in &mut report.damaged {
            check_cancelled(monitor)?;
            damage.healable = Some(is_here(server, folder, (damage, report.seq), dir));
        }
    }
    if let Some(dir) = options.deep {
        report.is_deep = true;
        monitor.event(Event::Phase(Phase::Comparing));
        let meter = Meter::new(monitor);
        if let Some(totals) = &totals {
            meter.foresee(totals.names, Some(totals.bytes));
        }
        compare::compare(server, folder, dir, &meter, &mut report)?;
    }
    report.wire = server.wire_bytes().since(wire_before);
    report.total_ns = clock.monotonic_ns().saturating_sub(started_ns);
    Ok(report)
}

/// Whether the folder has the file as it was when it was saved, as far as length and time tell. The
/// backup that heals compares the bytes.
fn is_here(server: &ServerClient, folder: &FolderName, (damage, at): (&VerifyDamage, Seq), dir: &Path) -> bool {
    let Some(path) = &damage.path else { return false };
    let Ok(node) = server.node(folder, damage.id, at) else {
        return false;
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let there = rustix::fs::open(dir, flags, Mode::empty())
        .map_err(std::io::Error::from)
        .and_then(|root| {
            let whole = path.as_bytes();
            let (above, name) = match whole.iter().rposition(|byte| *byte == b'/') {
                Some(slash) => (
                    whole.get(..slash).unwrap_or_default(),
                    whole.get(slash + 1..).unwrap_or_default(),
                ),
                None => (&[][..], whole),
            };
            let above = tree::open_beneath(&root, Path::new(OsStr::from_bytes(above)))?;
            tree::stat_at(&above, OsStr::from_bytes(name))
        });
    there.is_ok_and(|there| {
        let then = &node.attributes;
        there.kind == NodeKind::File && there.size == then.size && there.mtime_ns == then.mtime_ns
    })
}

/// Lets the server check its stored bytes.
fn verify_stored(
    server: &ServerClient,
    folder: &FolderName,
    monitor: &dyn Monitor,
    report: &mut VerifyReport,
) -> Result<()> {
    let mut stream = server.verify_stream(folder, report.seq)?;
    let (mut reported_bytes, mut reported_files) = (0, 0);
    let failed = |kind, message: String| {
        BackupError::Server(ServerError {
            kind,
            request: format!("POST /v1/folders/{folder}/verify"),
            message,
            next: "Check the server's log, then try again.".to_owned(),
            problem: None,
            source: None,
        })
    };
    let mut listed_len = 0usize;
    loop {
        check_cancelled(monitor)?;
        match stream.next_event()? {
            Some(VerifyEvent::Progress { files, bytes, .. }) => {
                monitor.event(Event::BytesRead(bytes.saturating_sub(reported_bytes)));
                reported_bytes = bytes.max(reported_bytes);
                for _ in reported_files..files {
                    monitor.event(Event::FileDone { path: None });
                }
                reported_files = files.max(reported_files);
            }
            Some(VerifyEvent::Damage {
                id,
                path,
                detail,
                ranges,
                lost_bytes,
            }) => {
                let shown = path.clone().unwrap_or_else(|| ByteString::from(id.to_string()));
                monitor.event(Event::FileFailed {
                    path: &shown,
                    reason: &detail,
                });
                report.damaged_files += 1;
                listed_len += detail
                    .len()
                    .saturating_add(path.as_ref().map_or(0, |path| path.as_bytes().len()));
                listed_len = listed_len.saturating_add(ranges.len().saturating_mul(size_of::<DamagedRange>()));
                if report.damaged.len() < DAMAGED_LISTED_MAX && listed_len < LISTED_LEN_MAX {
                    report.damaged.push(VerifyDamage {
                        id,
                        path,
                        detail,
                        ranges,
                        lost_bytes,
                        healable: None,
                    });
                }
            }
            Some(VerifyEvent::Summary {
                files,
                frames,
                bytes,
                damaged_files,
                wrong_sums,
            }) => {
                let reported = report.damaged_files;
                if damaged_files != reported {
                    return Err(BackupError::hostile(format!(
                        "the summary counts {damaged_files} damaged files, {reported} were listed"
                    )));
                }
                // Not every file has a line of its own.
                monitor.event(Event::BytesRead(bytes.saturating_sub(reported_bytes)));
                for _ in reported_files..files {
                    monitor.event(Event::FileDone { path: None });
                }
                (report.files, report.frames, report.bytes) = (files, frames, bytes);
                report.wrong_sums = wrong_sums;
                return Ok(());
            }
            Some(VerifyEvent::Failed { detail }) => return Err(failed(ServerErrorKind::Internal, detail)),
            None => {
                let message = "the verification broke off early and proves nothing".to_owned();
                return Err(failed(ServerErrorKind::Unreachable, message));
            }
        }
    }
}
