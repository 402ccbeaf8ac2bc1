//! Result of a restore, including its failures.

use super::place::Place;
use crate::damage::named;
use crate::monitor::{Event, Monitor};
use byteback_client::WireBytes;
use byteback_extents::ByteRange;
use byteback_model::{ByteString, FileId, Seq};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A kind of attribute or node that could not be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NotRestoredKind {
    /// Owner or group: needs privilege.
    Owner,
    /// Set-id bits, because the owner could not be given.
    SetId,
    /// Permissions.
    Mode,
    /// An extended attribute or ACL.
    Xattr,
    /// Times.
    Times,
    /// Immutable and append-only: needs privilege.
    Flags,
    /// A device node: needs privilege.
    Device,
    /// The file or directory itself.
    File,
}

/// Things of one kind that could not be restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotRestored {
    /// The kind.
    pub kind: NotRestoredKind,
    /// The number of them.
    pub count: u64,
    /// The first of them.
    pub first_path: ByteString,
    /// Why the first one could not be restored.
    pub first_reason: String,
}

/// A file that the server could not read in full.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SalvagedFile {
    /// The file's path.
    pub path: ByteString,
    /// Its length in bytes.
    pub size: u64,
    /// Lost ranges, which are holes now, ascending.
    pub lost: Vec<LostRange>,
    /// The number of bytes in them.
    pub lost_bytes: u64,
}

/// A range of lost bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LostRange {
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// Result of a restore.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RestoreReport {
    /// The snapshot.
    pub snapshot_id: u64,
    /// Its sequence number.
    pub seq: Seq,
    /// Files written.
    pub files: u64,
    /// Files that were there already, with the right length and time.
    pub files_kept: u64,
    /// Symlinks, pipes, sockets and devices.
    pub specials: u64,
    /// Further names of files.
    pub hard_links: u64,
    /// Names removed because the snapshot does not have them.
    pub removed: u64,
    /// Bytes written; holes take none.
    pub written_bytes: u64,
    /// Bytes on the socket.
    pub wire: WireBytes,
    /// Total duration, in nanoseconds.
    pub total_ns: u64,
    /// Nodes and attributes that could not be restored, by kind.
    pub not_restored: Vec<NotRestored>,
    /// Files that were restored in part
    /// ([`RestoreOptions::salvage`](super::RestoreOptions::salvage)), by path.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub salvaged: Vec<SalvagedFile>,
}

impl RestoreReport {
    /// Whether everything in the snapshot is there now, as it was.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.not_restored.is_empty() && self.salvaged.is_empty()
    }
}

/// Counts from several threads.
pub(super) struct Tally<'a> {
    monitor: &'a dyn Monitor,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    report: RestoreReport,
    not_restored: BTreeMap<NotRestoredKind, NotRestored>,
    /// The place of each node that may have further names.
    places: HashMap<FileId, Place>,
}

impl<'a> Tally<'a> {
    pub(super) fn new(monitor: &'a dyn Monitor) -> Self {
        Self {
            monitor,
            counts: Mutex::new(Counts::default()),
        }
    }

    pub(super) fn into_report(self) -> RestoreReport {
        let mut counts = self.counts.into_inner().unwrap_or_else(PoisonError::into_inner);
        counts.report.salvaged.sort_by(|a, b| a.path.cmp(&b.path));
        RestoreReport {
            not_restored: counts.not_restored.into_values().collect(),
            ..counts.report
        }
    }

    pub(super) fn remember(&self, file: FileId, place: &Place) {
        self.lock().places.insert(file, place.clone());
    }

    pub(super) fn first_place(&self, file: FileId) -> Option<Place> {
        self.lock().places.get(&file).cloned()
    }

    /// Notes that a file is whole; it is counted when it has its name.
    pub(super) fn file_written(&self, path: &[u8]) {
        self.done(path);
    }

    pub(super) fn file_done(&self, written_bytes: u64) {
        let mut counts = self.lock();
        counts.report.files += 1;
        counts.report.written_bytes += written_bytes;
    }

    /// Notes that a file has holes where the server could not read it.
    pub(super) fn salvaged(&self, path: &[u8], size: u64, lost: &[ByteRange]) {
        let path = ByteString::from(path);
        let message = format!("'{path}' is damaged at the server: {} are lost", named(lost));
        self.monitor.event(Event::Warning(&message));
        let range = |range: &ByteRange| LostRange {
            offset: range.start(),
            len: range.len_bytes(),
        };
        self.lock().report.salvaged.push(SalvagedFile {
            path,
            size,
            lost: lost.iter().map(range).collect(),
            lost_bytes: lost.iter().map(|range| range.len_bytes()).sum(),
        });
    }

    pub(super) fn file_kept(&self, path: &[u8]) {
        self.lock().report.files_kept += 1;
        self.done(path);
    }

    pub(super) fn special_done(&self, path: &[u8]) {
        self.lock().report.specials += 1;
        self.done(path);
    }

    pub(super) fn link_done(&self, path: &[u8]) {
        self.lock().report.hard_links += 1;
        self.done(path);
    }

    pub(super) fn removed(&self) {
        self.lock().report.removed += 1;
    }

    pub(super) fn failed(&self, path: &[u8], error: &io::Error) {
        self.not_restored(NotRestoredKind::File, path, &error.to_string());
    }

    /// Counts a thing that could not be restored; reports each failed file, and the first of every
    /// other kind.
    pub(super) fn not_restored(&self, kind: NotRestoredKind, path: &[u8], reason: &str) {
        let path = ByteString::from(path);
        let mut counts = self.lock();
        let entry = counts.not_restored.entry(kind).or_insert_with(|| NotRestored {
            kind,
            count: 0,
            first_path: path.clone(),
            first_reason: reason.to_owned(),
        });
        entry.count += 1;
        let is_first = entry.count == 1;
        drop(counts);
        if kind == NotRestoredKind::File {
            self.monitor.event(Event::FileFailed { path: &path, reason });
        } else if is_first {
            let what = match kind {
                NotRestoredKind::Owner => "owners",
                NotRestoredKind::SetId => "set-id bits",
                NotRestoredKind::Mode => "permissions",
                NotRestoredKind::Xattr => "extended attributes",
                NotRestoredKind::Times => "times",
                NotRestoredKind::Flags => "immutable or append-only flags",
                NotRestoredKind::Device | NotRestoredKind::File => "devices",
            };
            self.monitor.event(Event::Warning(&format!(
                "some {what} cannot be restored here, the first at '{path}': {reason}"
            )));
        }
    }

    fn done(&self, path: &[u8]) {
        self.monitor.event(Event::FileDone {
            path: Some(&ByteString::from(path)),
        });
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
