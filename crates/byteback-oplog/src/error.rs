//! The errors of a log, and what to do next.

use std::io;

use thiserror::Error;

/// The longest name of a consumer.
pub const CONSUMER_BYTES_MAX: usize = 1024;

/// An error of the operation log. It never harms the tracked files: at worst, the next backup reads
/// more.
#[derive(Debug, Error)]
pub enum LogError {
    /// A file of the log could not be read, written or synced.
    #[error("the log cannot use {file}: {source}; free space on the state folder's disk or repair it, then try again")]
    File {
        /// The file's name in the state folder.
        file: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The database of the log failed.
    #[error("the log cannot use its database: {0}; free space on the state folder's disk or repair it, then try again")]
    Database(#[source] Box<redb::Error>),
    /// The database of the log is inconsistent.
    #[error(
        "the log's database is damaged ({0}); mount the folder again to begin a new log (the next backup reads everything)"
    )]
    Corrupted(String),
    /// A persisted record cannot be understood.
    #[error(
        "the log's {what} is damaged; mount the folder again to begin a new log (the next backup reads everything)"
    )]
    Damaged {
        /// The kind of record.
        what: &'static str,
    },
    /// The log was written by a version of Byteback that this one does not know.
    #[error(
        "the log has format version {found}, but this program knows only versions up to {known}; use a newer Byteback"
    )]
    Version {
        /// The version found.
        found: u64,
        /// The version this program writes.
        known: u64,
    },
    /// The log keeps its layers beside the files of a volume, and was opened without that volume.
    #[error(
        "cannot open the log: what it knows of changed files lies in a volume; mount the folder with that volume: \
         byteback mount --volume"
    )]
    LayersBeside,
    /// The log keeps its layers in its database, and was opened with a volume for them.
    #[error(
        "cannot open the log: what it knows of changed files does not lie in this volume; mount the folder without it"
    )]
    LayersInDatabase,
    /// A directory of the tracked tree could not be read while comparing it with the record.
    #[error("cannot read {path}: {source}")]
    Tree {
        /// The path below the tree's root, with bytes that are not UTF-8 replaced.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// A mark was to be set at a moment that is not held any longer: changes before and after it
    /// may already be merged.
    #[error(
        "epoch {epoch} is no longer held; request the changes again, and set the mark while that answer is still open"
    )]
    NotHeld {
        /// The epoch.
        epoch: crate::ids::Epoch,
    },
    /// The log has as many consumers as it accepts.
    #[error(
        "{limit} programs already have marks in this folder's log, the limit; drop one with `byteback consumers drop \
         NAME` (`byteback consumers` lists them), or raise `consumers` in the section [log] of the configuration and \
         mount the folder again"
    )]
    TooManyConsumers {
        /// The limit.
        limit: u64,
    },
    /// A name that no consumer can have: empty or too long.
    #[error("a consumer's name must have 1 to {CONSUMER_BYTES_MAX} bytes, not {len_bytes}; choose another")]
    ConsumerName {
        /// The name's length.
        len_bytes: usize,
    },
    /// An earlier failure left the log unable to promise coverage.
    #[error("the log failed earlier ({0}) and may have missed changes; remount the folder")]
    Failed(String),
}

impl LogError {
    /// The OS error to hand to the program whose write could not be logged.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::File { source, .. } | Self::Tree { source, .. } => byteback_host::errno_of(source),
            Self::Database(error) => match &**error {
                redb::Error::Io(source) => byteback_host::errno_of(source),
                _ => None,
            },
            _ => None,
        }
    }
}

impl LogError {
    /// Whether the log is damaged; `false`: it could not be reached, or has another version.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, Self::Corrupted(_) | Self::Damaged { .. })
    }

    fn from_redb(error: redb::Error) -> Self {
        match error {
            redb::Error::Corrupted(what) => Self::Corrupted(what),
            // redb's errors for a file that is not one of its own (any more), and the error of a
            // file that ends too early.
            redb::Error::Io(source)
                if matches!(source.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
            {
                Self::Corrupted(source.to_string())
            }
            // A log that lacks one of its tables, or has one of another kind: all were made at
            // birth.
            error @ (redb::Error::TableDoesNotExist(_)
            | redb::Error::TableTypeMismatch { .. }
            | redb::Error::TableIsMultimap(_)
            | redb::Error::TableIsNotMultimap(_)
            | redb::Error::TypeDefinitionChanged { .. }
            | redb::Error::UpgradeRequired(_)) => Self::Corrupted(error.to_string()),
            error => Self::Database(Box::new(error)),
        }
    }
}

macro_rules! from_redb {
    ($($error:ty),*) => {$(
        impl From<$error> for LogError {
            fn from(error: $error) -> Self {
                Self::from_redb(error.into())
            }
        }
    )*};
}

from_redb!(
    redb::DatabaseError,
    redb::TransactionError,
    redb::TableError,
    redb::StorageError,
    redb::CommitError,
    redb::SetDurabilityError
);

/// The result of a log operation.
pub type Result<T, E = LogError> = std::result::Result<T, E>;
