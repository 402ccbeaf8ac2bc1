//! The gate's errors, and the error number that a program sees.

use std::io;

use byteback_host::errno_of;
use byteback_oplog::LogError;

/// Why the gate did not let a change through.
#[derive(Debug, thiserror::Error)]
pub enum TrackedError {
    /// The log could not promise to know of it: it was not performed.
    #[error("cannot log a change: {0}")]
    Log(#[from] LogError),
    /// The backing directory refused it.
    #[error("cannot {operation} in the backing directory: {source}")]
    Backing {
        /// The attempted operation, as an infinitive.
        operation: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The change was to land from elsewhere, and something was in the way: it was not performed.
    #[error("not applied: {0}")]
    Overtaken(String),
}

impl TrackedError {
    /// The error number that the program sees.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            // Another number would tell of the log's disk, and be taken for the file's.
            Self::Log(error) => match error.errno() {
                Some(full @ (libc::ENOSPC | libc::EDQUOT)) => full,
                _ => libc::EIO,
            },
            Self::Overtaken(_) => libc::EIO,
            Self::Backing { source, .. } => errno_of(source).unwrap_or(libc::EIO),
        }
    }
}

/// A change that the log refused, with its cause in words and the number for the program.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct NotLogged {
    message: String,
    #[source]
    number: io::Error,
}

impl From<TrackedError> for io::Error {
    fn from(error: TrackedError) -> Self {
        match error {
            TrackedError::Log(_) => {
                let number = Self::from_raw_os_error(error.errno());
                let message = error.to_string();
                Self::new(number.kind(), NotLogged { message, number })
            }
            // Without a number of its own, which makes it EIO to a program, but with the cause.
            TrackedError::Overtaken(_) => Self::other(error.to_string()),
            TrackedError::Backing { .. } => Self::from_raw_os_error(error.errno()),
        }
    }
}

/// A result of the gate.
pub type TrackedResult<T> = Result<T, TrackedError>;

#[cfg(test)]
mod tests;
