//! How an operation reports its progress, and learns that it is to stop.
//!
//! The engine never prints. Everything that a person may want to see during the work goes to a
//! [`Monitor`]; the result is in the report. Numbers are increments, so that several threads can
//! report without agreeing. A monitor is called from several threads, must not block for long, and
//! its answers may be late.

mod meter;

use byteback_model::ByteString;

pub(crate) use meter::Meter;

/// The phase of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Asking the server and the folder's log for their state.
    Preparing,
    /// Taking one moment of the tree.
    Cutting,
    /// Reading the changes and sending them.
    Transferring,
    /// Waiting for the server to apply the batch.
    Committing,
    /// Making files and directories.
    Restoring,
    /// Setting owners, permissions and times of directories, removing surplus nodes.
    Finishing,
    /// The server reads what it has stored.
    Verifying,
    /// A folder is compared with a snapshot.
    Comparing,
}

/// The effect of a transfer on one path at its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The path is new there.
    New,
    /// The path gets another content.
    Content,
    /// Only its attributes change.
    Attributes,
    /// The path is removed.
    Removed,
    /// A push: the path has what a path that is gone had.
    Moved,
    /// A push: the path gets the content of another path there.
    Copied,
}

/// Something worth reporting.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A new phase begins.
    Phase(Phase),
    /// The total amount of work, as soon as it is known. It does not grow, except for a push, which
    /// compares as it goes.
    Totals {
        /// Files and other nodes.
        files: u64,
        /// Bytes of content; 0 also where only files are known.
        bytes: u64,
    },
    /// Further bytes of content read, from the folder or from the server.
    BytesRead(u64),
    /// Further bytes of content that need not be read: holes, present already, or failed.
    BytesSkipped(u64),
    /// Further bytes handed to the server.
    BytesSent(u64),
    /// A file or other node is done.
    FileDone {
        /// The path, where it is known without asking for it.
        path: Option<&'a ByteString>,
    },
    /// A path is changed at the destination, or would be.
    Changed {
        /// The path below what is transferred; `.` for the root of the transfer.
        path: &'a ByteString,
        /// The effect on it.
        change: Change,
    },
    /// A file failed; the operation goes on with the others.
    FileFailed {
        /// Its path, or a description where it has none.
        path: &'a ByteString,
        /// The reason.
        reason: &'a str,
    },
    /// Number of changes by others that are still to be applied here.
    ChangesToCome(u64),
    /// Comparing files on both sides when it is unknown which one is newer.
    Comparing {
        /// Files compared so far.
        done: u64,
        /// Files to compare in all.
        total: u64,
    },
    /// A message that the user should see, but that needs no action now.
    Warning(&'a str),
}

/// Receives the events of an operation.
pub trait Monitor: Send + Sync {
    /// Takes note of an event.
    fn event(&self, event: Event<'_>);

    /// Whether the operation is to end as soon as it can without damage.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// A monitor that ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Monitor for Silent {
    fn event(&self, _event: Event<'_>) {}
}

/// Returns [`BackupError::Cancelled`](crate::BackupError::Cancelled) if the operation is to stop.
pub fn check_cancelled(monitor: &dyn Monitor) -> crate::Result<()> {
    if monitor.is_cancelled() {
        return Err(crate::BackupError::Cancelled);
    }
    Ok(())
}
