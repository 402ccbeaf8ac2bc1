//! Backup, restore, verification and comparison of folders with a server.
//!
//! It talks to a tree through [`byteback_control::TreeService`] (in this process, or a daemon
//! behind a socket: it does not know which) and to a server through [`byteback_client`]. It decides
//! what is sent, in which order and what happens when one side fails; it never prints and reads no
//! environment. Progress goes to a [`Monitor`].
//!
//! | to do | call |
//! |---|---|
//! | save what changed | [`backup()`] |
//! | get it back | [`restore()`] |
//! | make a place at a server what is here, and the other way round, without a log | [`push()`], [`pull()`] |
//! | check it | [`verify()`] |
//! | hand a change to another program | [`export_delta()`] |
//! | tell why a file was saved as it was | [`decisions`] |
//! | look at it | [`snapshots()`], [`list()`], [`diff()`], [`changes()`], [`changed_paths()`], [`file_change()`] |
//! | send a cut as one batch of a larger exchange (continuous sync) | [`send_cut()`], [`PartStream`], [`FileDeltas`] |
//!
//! It must not know how folders are mounted or how the server stores.

mod backup;
mod damage;
pub mod decisions;
mod error;
mod exclude;
mod export_delta;
mod file_change;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod listing;
mod local_node;
mod monitor;
mod path_list;
mod pull;
mod push;
mod restore;
mod same_content;
mod snapshot_spec;
mod tree_reader;
mod verify;

pub use backup::{
    BackupDurations, BackupOptions, BackupReport, CutBatch, CutSent, DeltaChoice, Destination, Failure, FileDeltas,
    LITERAL_BYTES_MAX, PART_LEN_BYTES_DEFAULT, PART_LEN_BYTES_RANGE, PartMemory, PartStream, SearchLimits, UnsavedFile,
    WholeFiles, backup, file_id, send_cut, unusable,
};
pub use error::{BackupError, Result, with_causes};
pub use exclude::Exclude;
pub use export_delta::{ExportReport, ExportRequest, export_delta};
pub use file_change::{FileChange, FileContent, WholeFileReason, file_change};
pub use listing::{ChangedName, ChangedNode, ChangesHeader, ListedEntry, TreeChange, changes, diff, list};
pub use monitor::{Change, Event, Monitor, Phase, Silent, check_cancelled};
pub use path_list::{PathChange, changed_paths};
pub use pull::{PullOptions, PullReport, pull};
pub use push::{PushOptions, PushReport, push, push_state_name};
pub use restore::{
    LostRange, NotRestored, NotRestoredKind, RestoreOptions, RestoreReport, SalvagedFile, is_partial_name,
    partial_name, restore,
};
pub use same_content::{PieceSink, is_same_content};
pub use snapshot_spec::{ParseSnapshotSpecError, SnapshotSpec, resolve_snapshot, snapshots};
pub use verify::{DAMAGED_LISTED_MAX, Difference, DifferenceKind, VerifyDamage, VerifyOptions, VerifyReport, verify};
