//! Errors that end an operation of this crate. A failure that concerns one file and lets the rest
//! go on is an event of the [`Monitor`](crate::Monitor) and a line of the report instead.

use byteback_api::batch::BatchError;
use byteback_client::{ServerError, ServerErrorKind};
use byteback_control::ServiceError;
use std::io;

/// An operation of this crate failed.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The server, or the way to it.
    #[error("the request to the server failed")]
    Server(#[from] ServerError),
    /// The tracked tree, or its daemon.
    #[error("cannot read the folder")]
    Tree(#[from] ServiceError),
    /// The user stopped it. Nothing was saved, nothing is lost.
    #[error("stopped on request; nothing was saved")]
    Cancelled,
    /// The batch could not be put together.
    #[error("cannot assemble the batch")]
    Batch(#[from] BatchError),
    /// A delta could not be written or read.
    #[error("a delta of {subject} is unusable")]
    Delta {
        /// The file.
        subject: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The connection broke while the server was committing, and it has not answered since.
    #[error(
        "the server at {} stopped answering while it saved the changes; nothing is lost: run the same command again, \
         which asks the server what became of them (batch {counter})", .source.server()
    )]
    OutcomeUnknown {
        /// The batch.
        counter: u64,
        /// Why the outcome is unknown.
        source: Box<ServerError>,
    },
    /// The server applied the batch, but the folder's log could not note that.
    #[error("the backup is saved, but the folder's log could not record it; the next backup asks the server about it")]
    SavedNotNoted(#[source] ServiceError),
    /// The server sends what no honest server would send.
    #[error("the server's answer cannot be trusted: {what}; none of it was used")]
    Hostile {
        /// The broken rule.
        what: String,
    },
    /// No snapshot fits the specification.
    #[error("there is no snapshot '{spec}' in folder '{folder}'; list them with 'snapshots'")]
    NoSuchSnapshot {
        /// The specification as given.
        spec: String,
        /// The folder.
        folder: String,
    },
    /// Restoring would mix with what is in the target.
    #[error("{target} is not empty; choose an empty directory, or allow overwriting")]
    TargetNotEmpty {
        /// The directory.
        target: String,
    },
    /// A tracked tree backs up into this folder.
    #[error(
        "folder '{folder}' holds the backups of a tracked folder: a push into it would mix with them, and the next \
         backup would examine everything again; push into another folder"
    )]
    BackedUpFolder {
        /// The folder.
        folder: String,
    },
    /// The path cannot be pushed to.
    #[error("cannot push to '{path}': {why}")]
    BadDestination {
        /// The place.
        path: String,
        /// The reason.
        why: &'static str,
    },
    /// Another client came first.
    #[error("another client changed the same files at the server after this push began ({what}); nothing was changed")]
    ChangedMeanwhile {
        /// The server's message.
        what: String,
        /// The server's answer.
        source: Box<ServerError>,
    },
    /// Something on this machine could not be done.
    #[error("cannot {operation} {subject}: {source}")]
    Local {
        /// The operation, as an infinitive.
        operation: &'static str,
        /// The file or other subject.
        subject: String,
        /// The system's error.
        source: io::Error,
    },
}

impl BackupError {
    /// The next step for the user, where that is not already part of the text.
    #[must_use]
    pub fn next_step(&self) -> Option<&str> {
        match self {
            Self::Server(error) => Some(&error.next),
            Self::ChangedMeanwhile { .. } => {
                Some("Look at those changes ('byteback diff'), then push again to put yours on top of them.")
            }
            Self::Local { source, .. }
                if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) =>
            {
                Some("Free space there and run this again (restore: with --overwrite); complete files are kept.")
            }
            _ => None,
        }
    }

    /// The kind of the server's failure, if it is one.
    #[must_use]
    pub fn server_kind(&self) -> Option<ServerErrorKind> {
        match self {
            Self::Server(error) => Some(error.kind),
            Self::OutcomeUnknown { source, .. } => Some(source.kind),
            _ => None,
        }
    }

    /// [`BackupError::Local`]: `operation` is an infinitive, `subject` the file.
    pub fn local(operation: &'static str, subject: impl Into<String>, source: io::Error) -> Self {
        Self::Local {
            operation,
            subject: subject.into(),
            source,
        }
    }

    /// [`BackupError::Hostile`], with what is wrong with the answer.
    pub fn hostile(what: impl Into<String>) -> Self {
        Self::Hostile { what: what.into() }
    }

    /// [`BackupError::Delta`]: `subject` names the file.
    pub fn delta(subject: impl ToString, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Delta {
            subject: subject.to_string(),
            source: source.into(),
        }
    }
}

/// An error and its causes, in one line.
#[must_use]
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut reported = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        // Some wrappers repeat the text of the error that they wrap.
        if !reported.contains(&text) {
            reported.push_str(": ");
            reported.push_str(&text);
        }
        cause = error.source();
    }
    reported
}

/// The result of an operation of this crate.
pub type Result<T, E = BackupError> = std::result::Result<T, E>;
