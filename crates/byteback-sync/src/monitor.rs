//! How an operation tells what it is doing, and learns that it shall stop.
//!
//! The engine never prints. Everything that a person may want to see while it works goes to a
//! [`Monitor`]; what they want to know afterwards stands in the report. Numbers are increments, so
//! that several threads can report without agreeing. A monitor is called from several threads, must
//! not block for long, and its answers may be late.

mod meter;

use byteback_model::ByteString;

pub(crate) use meter::Meter;

/// What an operation is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Asking the server and the folder's log what is known.
    Preparing,
    /// Taking one moment of the tree.
    Cutting,
    /// Reading what changed and sending it.
    Transferring,
    /// Waiting for the server to apply the batch.
    Committing,
    /// Making files and directories.
    Restoring,
    /// Setting owners, permissions and times of directories, removing what is too much.
    Finishing,
    /// The server reads what it has stored.
    Verifying,
    /// A folder is compared with a snapshot.
    Comparing,
}

/// What a transfer does to one path at its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// It is new there.
    New,
    /// It gets another content.
    Content,
    /// Only its attributes change.
    Attributes,
    /// It goes away.
    Removed,
}

/// Something worth telling.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A new phase begins.
    Phase(Phase),
    /// How much there is to do in all, as soon as it is known. It does not grow, except of a push,
    /// which compares as it goes.
    Totals {
        /// Files and other nodes.
        files: u64,
        /// Bytes of content; 0 also where only files are known.
        bytes: u64,
    },
    /// So many more bytes of content were read, from the folder or from the server.
    BytesRead(u64),
    /// So many more bytes of content need not be read: holes, what is there already, what failed.
    BytesSkipped(u64),
    /// So many more bytes were handed to the server.
    BytesSent(u64),
    /// One more file or other node is done.
    FileDone {
        /// Its path, where it is known without asking for it.
        path: Option<&'a ByteString>,
    },
    /// A path is changed at the destination, or would be.
    Changed {
        /// The path below what is transferred; `.` for that itself.
        path: &'a ByteString,
        /// How.
        change: Change,
    },
    /// One file failed; the others go on.
    FileFailed {
        /// Its path, or a description where it has none.
        path: &'a ByteString,
        /// Why.
        reason: &'a str,
    },
    /// So many changes of others are still to be made here.
    ChangesToCome(u64),
    /// Files of both sides of which nothing is known about which is newer.
    Comparing {
        /// So many were compared.
        done: u64,
        /// So many are to be.
        total: u64,
    },
    /// Something that the user should know, but that needs no action now.
    Warning(&'a str),
}

/// Where an operation reports to.
pub trait Monitor: Send + Sync {
    /// Takes note of an event.
    fn event(&self, event: Event<'_>);

    /// Whether the operation shall end as soon as it can without damage.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Takes no note of anything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Monitor for Silent {
    fn event(&self, _event: Event<'_>) {}
}

/// Stops an operation that shall stop.
pub(crate) fn check_cancelled(monitor: &dyn Monitor) -> crate::Result<()> {
    if monitor.is_cancelled() {
        return Err(crate::SyncError::Cancelled);
    }
    Ok(())
}
