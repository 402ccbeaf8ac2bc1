//! Errors of the process behind a tree, most of them with what to do next.

use std::io;
use std::path::PathBuf;

use byteback_mount::MountError;
use byteback_mount::volume_tree::VolumeTreeError;
use byteback_oplog::LogError;
use thiserror::Error;

use crate::doubt::HeldBack;

/// An error of the process behind a tree.
#[derive(Debug, Error)]
pub enum DaemonError {
    /// The tracked directory cannot be used.
    #[error("cannot use the folder {path}: {source}")]
    Folder {
        /// The tracked directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The state folder cannot be used.
    #[error("cannot use the state folder {path}: {source}")]
    State {
        /// The state folder, or what is affected in it.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The journal of continuous sync was written by another version of this program.
    #[error(
        "{path} has format version {version}, but this program knows only version {known}: use the newer \
         Byteback that wrote it. If that is no longer available, move the file away: the whole folder is then compared \
         with the server once, and nothing is lost"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The version of its format.
        version: u8,
        /// The version that this program writes.
        known: u8,
    },
    /// Another process owns the tree.
    #[error("{path} is already in use: {reason}")]
    InUse {
        /// The tracked directory.
        path: PathBuf,
        /// The lock's error, which names the owner if it is known.
        reason: String,
    },
    /// The state folder lies in the tree that it describes.
    #[error("the state folder {state} lies inside {path}; choose another with XDG_STATE_HOME or --state-dir")]
    StateInside {
        /// The state folder.
        state: PathBuf,
        /// The tracked directory.
        path: PathBuf,
    },
    /// A folder within the tracked one was mounted over itself while that was being compared.
    #[error("{inner}, a folder of its own, was mounted in the meantime; try again")]
    FolderInside {
        /// The folder within.
        inner: PathBuf,
    },
    /// Sync of a folder waits for a decision of its user, see [`crate::presence`].
    #[error("sync of {path} is held back: {}", held.doubt)]
    HeldBack {
        /// The tracked directory.
        path: PathBuf,
        /// Why and since when it waits.
        held: HeldBack,
    },
    /// The volume that the tree lies in cannot be used.
    #[error(transparent)]
    Volume(#[from] VolumeTreeError),
    /// Files appeared where a volume is about to be mounted, and would be hidden by it.
    #[error("{path} is not empty; the mount would hide its contents")]
    NotEmpty {
        /// The directory at the mount point.
        path: PathBuf,
    },
    /// A folder that has files and a log of its own cannot become the place of a volume.
    #[error("{path} is already a tracked folder; create an empty directory, and mount the volume there")]
    TrackedAlready {
        /// The tracked folder.
        path: PathBuf,
    },
    /// The log failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The mount failed.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The control socket cannot be made.
    #[error("cannot listen on {path}: {source}")]
    Socket {
        /// The path of the socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}
