//! The client engine: backup, restore, continuous sync, verification and comparison of tracked
//! folders with a server.
//!
//! The engine talks to a tree through [`byteback_control::TreeService`] (in this process, or a
//! daemon behind a socket: it does not know which) and to a server through the HTTP API. It decides
//! what is sent, in which order and what happens when one side fails; it never prints and reads no
//! environment. Progress goes to a [`Monitor`].
//!
//! | to do | call |
//! |---|---|
//! | reach a server | [`ServerClient::new`], [`join`] |
//! | save what changed | [`backup()`] |
//! | get it back | [`restore()`] |
//! | make a place at a server what is here, and the other way round, without a log | [`push()`], [`pull()`] |
//! | check it | [`verify()`] |
//! | hand a change to another program | [`export_delta()`] |
//! | tell why a file was saved as it was | [`decisions`] |
//! | compare two contents by checksums that storage keeps of them | [`compare_checksums()`] |
//! | look at it | [`snapshots()`], [`list()`], [`diff()`], [`changes()`], [`changed_paths()`], [`file_change()`] |
//!
//! The engine must not know how folders are mounted or how the server stores.

mod backup;
mod damage;
pub mod decisions;
mod error;
mod exclude;
mod existing_sums;
mod export_delta;
mod file_change;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod json_file;
mod listing;
pub mod live;
mod local_node;
mod monitor;
mod path_list;
mod pull;
mod push;
mod restore;
mod same_content;
mod server_client;
mod snapshot_spec;
pub mod throttle;
mod tree_reader;
mod verify;

pub use backup::{
    BackupDurations, BackupOptions, BackupReport, DeltaChoice, PART_LEN_BYTES_DEFAULT, UnsavedFile, WholeFiles, backup,
    file_id,
};
pub use error::{Result, ServerError, ServerErrorKind, SyncError};
pub use exclude::Exclude;
pub use existing_sums::{Comparison, Incomparable, Likeness, compare_checksums};
pub use export_delta::{ExportReport, ExportRequest, export_delta};
pub use file_change::{FileChange, FileContent, WholeFileReason, file_change};
pub use listing::{ChangedName, ChangedNode, ChangesHeader, ListedEntry, TreeChange, changes, diff, list};
pub use monitor::{Change, Event, Monitor, Phase, Silent};
pub use path_list::{PathChange, changed_paths};
pub use pull::{PullOptions, PullReport, pull};
pub use push::{PushOptions, PushReport, push, push_state_name};
pub use restore::{LostRange, NotRestored, NotRestoredKind, RestoreOptions, RestoreReport, SalvagedFile, restore};
pub use server_client::{
    CertificateChanged, ClientOptions, Connection, ContentReader, Heard, Listening, Network, ServerClient, TreePlace,
    VerifyStream, WireBytes, join,
};
pub use snapshot_spec::{ParseSnapshotSpecError, SnapshotSpec, resolve_snapshot, snapshots};
pub use verify::{DAMAGED_LISTED_MAX, Difference, DifferenceKind, VerifyDamage, VerifyOptions, VerifyReport, verify};

#[cfg(test)]
mod tests;
