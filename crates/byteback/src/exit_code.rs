//! The exit codes, and which failure ends with which.
//!
//! They are restic's, so that scripts written for it keep working. A failure that is not listed
//! here is [`Exit::Failed`]. Wrong usage (an unknown flag, a missing argument) ends with 2, which
//! the argument parser decides.

use byteback_api::problem::Code;
use byteback_backup::BackupError;
use byteback_client::{ServerError, ServerErrorKind};
use byteback_daemon::DaemonError;
use byteback_mount::MountError;
use byteback_store::StoreError;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Success.
    Fine = 0,
    /// Failure.
    Failed = 1,
    /// Part of the source could not be read; the rest is saved, or restored with `--salvage`.
    SourceUnreadable = 3,
    /// `status`: a folder needs attention.
    NeedsAttention = 4,
    /// `status --check`: changes are on their way, or the server is away.
    Behind = 5,
    /// The server has no such folder, or no server is named.
    NoRepository = 10,
    /// The folder or the store is in use by another process.
    Locked = 11,
    /// The token is missing or wrong.
    WrongCredentials = 12,
    /// Stopped by a signal.
    Interrupted = 130,
}

/// Every code with its meaning, for the documentation.
pub(crate) const MEANINGS: &[(u8, &str)] = &[
    (0, "success"),
    (1, "failure; the message says why and what to do"),
    (2, "wrong usage: an unknown flag or a missing argument"),
    (
        3,
        "part of the source could not be read; the rest is saved, or restored (restore --salvage)",
    ),
    (4, "status: a folder needs attention"),
    (
        5,
        "status --check: changes are still on their way, or the server is unreachable",
    ),
    (
        10,
        "no repository: the server has no such folder, or the directory is not bound to one",
    ),
    (11, "locked: another process is using the folder or the store"),
    (12, "wrong credentials: the token is missing or not accepted"),
    (
        130,
        "stopped by a signal; nothing is lost, the next run covers the same changes",
    ),
];

impl Exit {
    /// The number that the shell sees.
    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn of_server(error: &ServerError) -> Self {
        match (error.kind, error.problem.as_ref().map(|problem| problem.code)) {
            (ServerErrorKind::WrongToken | ServerErrorKind::Forbidden, _) => Self::WrongCredentials,
            (_, Some(Code::FolderNotFound)) => Self::NoRepository,
            _ => Self::Failed,
        }
    }

    pub(crate) fn of_sync(error: &BackupError) -> Self {
        match error {
            BackupError::Server(error) => Self::of_server(error),
            BackupError::Cancelled => Self::Interrupted,
            _ => Self::Failed,
        }
    }

    pub(crate) fn of_daemon(error: &DaemonError) -> Self {
        match error {
            DaemonError::InUse { .. } | DaemonError::Mount(MountError::AlreadyMounted { .. }) => Self::Locked,
            _ => Self::Failed,
        }
    }

    pub(crate) fn of_store(error: &StoreError) -> Self {
        match error {
            StoreError::InUse(_) => Self::Locked,
            _ => Self::Failed,
        }
    }
}
