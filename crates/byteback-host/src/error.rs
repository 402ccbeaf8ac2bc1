//! Errors that name the operation and its subject around the system's error.
//!
//! The traits of this crate speak `io::Error`, so that simulated and real failures look alike and
//! callers can match on `kind()`. The bare system error says neither file nor operation;
//! [`context`] wraps it in a [`HostError`] of the same kind, and [`errno_of`] finds the number
//! again.

use std::io;

/// An operation that failed on a named thing; the source is the system's answer.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {subject:?}: {source}")]
pub struct HostError {
    /// The attempted operation, as an infinitive: `open`, `sync`.
    pub operation: &'static str,
    /// The file or directory, as it was named by the caller.
    pub subject: String,
    /// The system's answer.
    pub source: io::Error,
}

/// Wraps `source` with the operation and its subject, keeping its kind.
pub(crate) fn context(operation: &'static str, subject: &str, source: io::Error) -> io::Error {
    io::Error::new(
        source.kind(),
        HostError {
            operation,
            subject: subject.to_owned(),
            source,
        },
    )
}

/// The system's error number in `error` or in an error that it wraps.
#[must_use]
pub fn errno_of(error: &io::Error) -> Option<i32> {
    if let Some(errno) = error.raw_os_error() {
        return Some(errno);
    }
    let mut inner = error.get_ref().map(|inner| inner as &(dyn std::error::Error + 'static));
    while let Some(current) = inner {
        if let Some(errno) = current.downcast_ref::<io::Error>().and_then(errno_of) {
            return Some(errno);
        }
        inner = current.source();
    }
    None
}
