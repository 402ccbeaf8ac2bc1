//! The errors of commands: what failed, on which file, and what to do next.
//!
//! The libraries' errors are typed and keep their sources; here they become one sentence for a
//! person, a next step where there is one, and an exit code. Nothing is decided by the text.

use std::error::Error;
use std::fmt::Display;
use std::path::Path;

use byteback_api::problem::Code;
use byteback_backup::BackupError;
use byteback_client::{ServerError, ServerErrorKind};
use byteback_control::ServiceError;
use byteback_daemon::DaemonError;
use byteback_mount::MountError;
use byteback_oplog::LogError;
use byteback_store::StoreError;

use crate::exit_code::Exit;
use crate::served::names_this_machine;
use crate::signals;

/// Why a command ended early.
#[derive(Debug)]
pub(crate) enum CommandError {
    /// A failure that the user must be told about.
    Failed(Failure),
    /// The reader of our output is gone, as in `byteback ls | head`: there is nothing left to
    /// report.
    OutputClosed,
    /// Everything was reported already.
    Reported(Exit),
}

/// A failure in words.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// The failed operation, without a full stop.
    pub(crate) message: String,
    /// The next step for the user: one or more sentences.
    pub(crate) next: Option<String>,
}

/// The result of a command or of a part of one.
pub(crate) type Result<T, E = CommandError> = std::result::Result<T, E>;

impl CommandError {
    /// A plain failure.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self::with_exit(Exit::Failed, message)
    }

    /// A failure with its own exit code.
    pub(crate) fn with_exit(exit: Exit, message: impl Into<String>) -> Self {
        Self::Failed(Failure {
            exit,
            message: message.into(),
            next: None,
        })
    }

    /// The message "cannot OPERATION PATH: CAUSE".
    pub(crate) fn file(operation: &str, path: &Path, error: &dyn Display) -> Self {
        Self::new(format!("cannot {operation} {}: {error}", path.display()))
    }

    /// Adds the next step.
    #[must_use]
    pub(crate) fn next(mut self, next: impl Into<String>) -> Self {
        if let Self::Failed(failure) = &mut self {
            failure.next = Some(next.into());
        }
        self
    }
}

/// The messages of an error and of its sources, each once.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(error) = below {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        below = error.source();
    }
    text
}

impl From<ServerError> for CommandError {
    fn from(error: ServerError) -> Self {
        let exit = Exit::of_server(&error);
        let next = next_step(&error);
        let said = error.problem.as_ref().map(|problem| problem.detail.clone());
        let code = error.problem.as_ref().map(|problem| problem.code);
        let message = match error.kind {
            ServerErrorKind::Unreachable => format!("cannot reach {}: {}", error.server(), error.message),
            ServerErrorKind::Tls => format!("cannot connect to {} securely: {}", error.server(), error.message),
            ServerErrorKind::WrongToken => {
                format!(
                    "{} does not accept the token: {}",
                    error.server(),
                    said.unwrap_or_else(|| error.message.clone())
                )
            }
            ServerErrorKind::Forbidden | ServerErrorKind::NotFound => said.unwrap_or_else(|| error.message.clone()),
            _ if code == Some(Code::InvalidParameter) => said.unwrap_or_else(|| error.message.clone()),
            _ => format!(
                "the request to {} failed: {} ({})",
                error.server(),
                error.message,
                error.request
            ),
        };
        Self::with_exit(exit, message).next(next)
    }
}

/// The next step, in terms of the command line where the server's text uses those of its API.
fn next_step(error: &ServerError) -> String {
    let next = match error.problem.as_ref().map(|problem| problem.code) {
        Some(Code::FolderNotFound) => "Check the name after the last slash; 'byteback init DIR -r URL' creates it.",
        Some(Code::SnapshotNotFound) => "'byteback snapshots' lists the existing snapshots.",
        Some(Code::NodeNotFound) => {
            "'byteback ls SNAPSHOT' lists its contents; paths are relative to the folder that was saved."
        }
        Some(Code::InvalidParameter) => {
            "Check the arguments; 'byteback snapshots' and 'byteback versions FILE' list the states that exist."
        }
        Some(Code::Unauthorized) => {
            "Join the server again with a new code ('byteback invite' makes one), or give the right --token-file."
        }
        _ if error.kind == ServerErrorKind::Unreachable && names_this_machine(error.server()) => {
            "Check that the server is running (byteback serve). The address is that of this machine itself; if the \
             server is another machine, join with a code made there by 'byteback invite --address HOST'."
        }
        _ => return error.next.clone(),
    };
    next.to_owned()
}

impl From<BackupError> for CommandError {
    fn from(error: BackupError) -> Self {
        let exit = Exit::of_sync(&error);
        match error {
            // A user who asked to stop does not want to hear about an abandoned connection.
            BackupError::Server(error) if error.kind.is_transient() && signals::stop_is_asked() => {
                BackupError::Cancelled.into()
            }
            BackupError::Server(error) => error.into(),
            BackupError::Tree(error) => error.into(),
            BackupError::TargetNotEmpty { target } => Self::new(format!("{target} is not empty"))
                .next("Choose another directory, or add --overwrite to replace files of the same name."),
            BackupError::NoSuchSnapshot { spec, folder } => {
                Self::new(format!("folder '{folder}' has no snapshot '{spec}'"))
                    .next("'byteback snapshots' lists the existing snapshots.")
            }
            other => {
                let failed = Self::with_exit(exit, chain(&other));
                match other.next_step() {
                    Some(next) => failed.next(next),
                    None => failed,
                }
            }
        }
    }
}

impl From<ServiceError> for CommandError {
    fn from(error: ServiceError) -> Self {
        Self::new(error.message)
    }
}

impl From<DaemonError> for CommandError {
    fn from(error: DaemonError) -> Self {
        let exit = Exit::of_daemon(&error);
        let failed = Self::with_exit(exit, chain(&error));
        match error {
            DaemonError::NotEmpty { path } => crate::commands::mount::not_empty(&path),
            DaemonError::InUse { .. } => failed.next(
                "It is in use by another backup, or by a mount that is just starting. Wait for that to end, then run \
                 the same command again.",
            ),
            DaemonError::Mount(MountError::Refused { .. }) if !rustix::process::geteuid().is_root() => failed.next(
                "Ordinary users can mount their own folders if everyone may open /dev/fuse (mode 0666, as \
                 distributions ship it) and fusermount3 is installed with its set-user-ID bit (package fuse3).",
            ),
            _ => failed,
        }
    }
}

impl From<LogError> for CommandError {
    fn from(error: LogError) -> Self {
        Self::new(chain(&error))
    }
}

impl From<StoreError> for CommandError {
    fn from(error: StoreError) -> Self {
        let exit = Exit::of_store(&error);
        Self::with_exit(exit, chain(&error))
    }
}
