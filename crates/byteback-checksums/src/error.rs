//! The reasons why a database of checksums cannot be used.

use std::io;

/// The reason why the store cannot be used. A backup goes on without it.
#[derive(Debug, thiserror::Error)]
pub enum ChecksumError {
    /// The file system failed.
    #[error("cannot {what} the block checksums")]
    Io {
        /// The action that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The database failed.
    #[error("the database of the block checksums failed; without it, a backup sends everything that may have changed")]
    Database(#[source] Box<redb::Error>),
    /// The file was made by another version of this program.
    #[error(
        "the block checksums have format {found}, but this program supports only {known}; remove their file to start over"
    )]
    Version {
        /// The version of the file.
        found: u64,
        /// The version that this program writes.
        known: u64,
    },
}

pub(crate) type Result<T> = std::result::Result<T, ChecksumError>;

pub(crate) fn db(error: impl Into<redb::Error>) -> ChecksumError {
    ChecksumError::Database(Box::new(error.into()))
}

/// The error for a database of another version than the known one.
pub(crate) fn other_version(found: u64, known: u64) -> ChecksumError {
    ChecksumError::Version { found, known }
}
