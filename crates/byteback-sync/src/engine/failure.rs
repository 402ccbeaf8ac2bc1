//! Failures that stop an engine, and what can be done about them.

use byteback_control::ServiceError;
use byteback_model::Seq;

use super::pause::is_passing;
use crate::identities::IdentityError;
use crate::receive::ReceiveError;
use crate::standing::StandingError;
use byteback_backup::{BackupError, with_causes};
use byteback_client::{ServerError, ServerErrorKind};

/// A failure to start, or to go on.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The standing cannot be read or written, or is of something else.
    #[error(transparent)]
    Standing(#[from] StandingError),
    /// The map of identities cannot be read or written, or is of another tree.
    #[error(transparent)]
    Identities(#[from] IdentityError),
    /// The server or the tree failed.
    #[error(transparent)]
    Sync(#[from] BackupError),
    /// The server was not reached; the message says why.
    #[error("{0}")]
    Away(String),
    /// Others' changes cannot be brought here.
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    /// The folder at the server was begun anew.
    #[error(
        "folder '{folder}' at the server is not the one that this directory was kept in sync with; nothing is sent"
    )]
    Exchanged {
        /// The folder.
        folder: String,
    },
    /// Another directory of this device, or this one before its log was lost, is in the folder.
    #[error(
        "this device has sent another directory into folder '{folder}', or this one before its records were lost; \
         nothing is sent"
    )]
    SameDevice {
        /// The folder.
        folder: String,
    },
    /// The server was restored from an older copy, or is another one.
    #[error(
        "folder '{folder}' at the server lacks batches that it had acknowledged (it is at {head} and was at {known}): \
         it was restored from an older copy or is a different folder; nothing is sent"
    )]
    Lost {
        /// The folder.
        folder: String,
        /// The folder's newest batch now.
        head: Seq,
        /// The newest batch that was acknowledged.
        known: Seq,
    },
}

impl From<ServerError> for EngineError {
    fn from(error: ServerError) -> Self {
        Self::Sync(error.into())
    }
}

impl From<ServiceError> for EngineError {
    fn from(error: ServiceError) -> Self {
        Self::Sync(error.into())
    }
}

impl EngineError {
    /// Whether the failure may pass by itself.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Away(_) => true,
            Self::Sync(error) | Self::Receive(ReceiveError::Sync(error)) => is_passing(error),
            _ => false,
        }
    }

    /// Whether sync can start over ([`request_start_over`]) where it cannot go on.
    #[must_use]
    pub fn is_over_by_starting_over(&self) -> bool {
        match self {
            Self::Exchanged { .. } | Self::SameDevice { .. } | Self::Lost { .. } => true,
            Self::Standing(error) => matches!(error, StandingError::Damaged(_) | StandingError::Other { .. }),
            Self::Identities(error) => matches!(error, IdentityError::Damaged(_) | IdentityError::OtherTree { .. }),
            _ => false,
        }
    }

    /// Whether the server was not there, or did not answer.
    pub(super) fn is_away(&self) -> bool {
        matches!(self, Self::Away(_) | Self::Sync(BackupError::OutcomeUnknown { .. })) || self.transient().is_some()
    }

    /// The failed request, if the server or the way to it is gone for now.
    fn transient(&self) -> Option<&ServerError> {
        let error = match self {
            Self::Sync(error) | Self::Receive(ReceiveError::Sync(error)) => error,
            _ => return None,
        };
        let error = match error {
            BackupError::Server(error) => error,
            BackupError::OutcomeUnknown { source, .. } => source,
            _ => return None,
        };
        error.kind.is_transient().then_some(error)
    }

    /// Whether the server does not know this device, or not any more.
    pub(super) fn is_token_refused(&self) -> bool {
        let (Self::Sync(error) | Self::Receive(ReceiveError::Sync(error))) = self else {
            return false;
        };
        error.server_kind() == Some(ServerErrorKind::WrongToken)
    }

    /// Whether the engine only ends because the tree or the caller wants it to.
    pub(super) fn is_end(&self) -> bool {
        matches!(
            self,
            Self::Sync(BackupError::Cancelled) | Self::Receive(ReceiveError::Sync(BackupError::Cancelled))
        )
    }
}

/// An error with its causes, for the status.
pub(super) fn reported(error: &EngineError) -> String {
    let away = match error {
        EngineError::Away(why) => Some(why.clone()),
        error => error.transient().map(ServerError::away_in_words),
    };
    if let Some(away) = away {
        return format!("{away}. Changes are kept here and sent when it is back");
    }
    let mut reported = with_causes(error);
    if error.is_over_by_starting_over() {
        reported.push_str(
            ". Stop it ('byteback umount DIR') and compare the folder with the server, which removes nothing: \
             byteback sync --start-over DIR",
        );
    }
    if let EngineError::Sync(error) = error
        && let Some(next) = error.next_step()
    {
        reported.push_str(". ");
        reported.push_str(next);
    }
    reported
}
