//! Errors of the store, sorted by what the caller has to do.
//!
//! `Invalid*`, `Conflict`, `ContentMismatch`, `PartsMissing` and `TooLarge` are the client's fault;
//! `Full` is for the operator; `Damaged` names what is lost and where; everything else is a fault
//! of the machine or of the program. After every error the store is as it was before the call,
//! apart from leaked segment bytes.

use crate::model::Conflict;
use crate::numbers::SegmentNumber;
use byteback_model::{DeviceId, FileId};
use std::io;

/// An error of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No folder of this name.
    #[error("there is no folder {0:?}")]
    FolderNotFound(String),
    /// No such snapshot in the folder.
    #[error("folder {folder:?} has no snapshot {id}")]
    SnapshotNotFound {
        /// The folder.
        folder: String,
        /// The snapshot.
        id: u64,
    },
    /// No such node at that moment.
    #[error("{0}")]
    NodeNotFound(String),
    /// A sequence number or range that the folder does not have, or a bad cursor.
    #[error("{0}")]
    InvalidParameter(String),
    /// A delta stream is malformed.
    #[error("the delta of file {file} is malformed: {source}")]
    InvalidDelta {
        /// The file.
        file: FileId,
        /// The error of the delta reader.
        source: byteback_delta::ReadError,
    },
    /// A search list is malformed or exceeds a limit.
    #[error("invalid search list: {0}")]
    InvalidSearch(String),
    /// A batch contradicts itself or the folder. Nothing was applied.
    #[error("{0}")]
    InvalidBatch(String),
    /// Another device changed the same things first. Nothing was applied.
    #[error("{} of the batch's changes are older than what the folder holds", conflicts.len())]
    Conflict {
        /// The first few conflicts.
        conflicts: Vec<Conflict>,
    },
    /// A batch follows another one that is not the newest of its device in the folder.
    #[error("the batch follows batch {follows} of its device, {}", if *is_applied { "but newer ones came after it" } else { "which is not applied" })]
    OutOfOrder {
        /// Counter of the batch that it follows.
        follows: u64,
        /// Whether that batch is applied at all.
        is_applied: bool,
    },
    /// A batch would produce contents other than its proofs say.
    #[error(
        "the contents of {} would differ from those of the batch's sender: nothing was applied",
        files_text(files)
    )]
    ContentMismatch {
        /// The first few files.
        files: Vec<FileId>,
    },
    /// A commit names parts that are not staged.
    #[error("part {} of the batch is not staged", missing.first().copied().unwrap_or(0))]
    PartsMissing {
        /// The first few missing parts.
        missing: Vec<u32>,
    },
    /// A batch exceeds a limit.
    #[error("{0}")]
    TooLarge(String),
    /// A join token was never given by this store, or expired long ago.
    #[error("this server did not issue this code")]
    JoinTokenUnknown,
    /// A join token was used by another device.
    #[error("the code was already used; each code works once")]
    JoinTokenUsed,
    /// A join token was not used in time.
    #[error("the code has expired")]
    JoinTokenExpired,
    /// A join token was withdrawn.
    #[error("the code was withdrawn")]
    JoinTokenWithdrawn,
    /// A device's token is void.
    #[error("device {0} was revoked")]
    DeviceRevoked(DeviceId),
    /// No such device.
    #[error("there is no device {0}")]
    DeviceNotFound(DeviceId),
    /// No such unused invitation.
    #[error("there is no unused invitation {0}")]
    InvitationNotFound(u64),
    /// The disk is full. Nothing was lost; the next attempt continues where this one began.
    #[error("the disk is full while writing {what}; free some space and try again: {source}")]
    Full {
        /// Description of the attempted write.
        what: String,
        /// The system's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Stored bytes differ from what was written.
    #[error("segment {segment} is damaged at offset {offset}: {what}")]
    Damaged {
        /// The segment file's number.
        segment: SegmentNumber,
        /// Offset in the segment, in bytes.
        offset: u64,
        /// The damage.
        what: String,
    },
    /// The catalog contradicts itself.
    #[error("the catalog is damaged: {0}; restore it from a backup, or run 'sqlite3 catalog.sqlite .recover'")]
    CatalogDamaged(String),
    /// The catalog was written by a newer program.
    #[error("the catalog has format {found}, but this program knows only formats up to {known}; use a newer program")]
    CatalogVersion {
        /// The version in the file.
        found: i64,
        /// The newest version that this program knows.
        known: i64,
    },
    /// Another process has the store open.
    #[error("the store is in use by another process")]
    InUse(#[source] io::Error),
    /// The catalog engine failed.
    #[error("the catalog cannot {what}: {source}")]
    Catalog {
        /// The attempted operation.
        what: &'static str,
        /// The engine's error.
        source: rusqlite::Error,
    },
    /// A segment file could not be read or written.
    #[error("segment {segment}: cannot {what}: {source}")]
    Segment {
        /// The segment file's number.
        segment: SegmentNumber,
        /// The attempted operation.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Another operation of the system failed.
    #[error("cannot {what}: {source}")]
    Io {
        /// The attempted operation.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// An earlier write to this segment failed, so the state of its tail is unknown. Send the data
    /// again.
    #[error("segment {0} was abandoned after a failed sync; send the data again")]
    SegmentAbandoned(SegmentNumber),
}

impl StoreError {
    pub(crate) fn segment(segment: SegmentNumber, what: &'static str, source: io::Error) -> Self {
        if is_full(&source) {
            return Self::Full {
                what: format!("segment {segment}"),
                source: Box::new(source),
            };
        }
        Self::Segment { segment, what, source }
    }

    pub(crate) fn io(what: &'static str, source: io::Error) -> Self {
        if is_full(&source) {
            return Self::Full {
                what: what.to_owned(),
                source: Box::new(source),
            };
        }
        Self::Io { what, source }
    }

    pub(crate) fn catalog(what: &'static str, source: rusqlite::Error) -> Self {
        if source.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull) {
            return Self::Full {
                what: "the catalog".to_owned(),
                source: Box::new(source),
            };
        }
        Self::Catalog { what, source }
    }
}

fn files_text(files: &[FileId]) -> String {
    let ids: Vec<String> = files.iter().map(ToString::to_string).collect();
    ids.join(", ")
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
