//! The operation log: which bytes, names and attributes of a tracked tree changed since a given
//! consumer last saw it.
//!
//! This is SolFS (USENIX ATC'25) for any file system: per-file logs of (offset, length), merged as
//! they come (section 3.2.1), kept in layers that backups separate (section 3.2.2), asked by any
//! number of backup programs (section 3.3). Beyond the paper, all files share one counter, so that
//! a backup is one moment of the whole tree; names are logged too, so that no backup has to walk
//! the tree; identity follows the inode, so that a rename costs nothing; and a crash costs only
//! files that were open.
//!
//! | to learn | read |
//! |---|---|
//! | what the gate may do and when | [`Log`], [`Operation`] |
//! | what survives a crash, and why | [`Settler`], `intents.rs`, `checkpoint.rs` |
//! | one moment of the tree | [`Cut`] |
//! | what changed up to it | [`ChangeList`] |
//! | who has saved what | [`ConsumerState`], `consumers.rs`, `file_marks.rs` |
//! | where layers are kept: in the database, or beside the files | [`LayerKeeper`], `keeper.rs` |
//! | what is kept, and for how long | `compact.rs` |
//! | what becomes of a damaged log | `damage.rs` |
//! | what happens at a start | [`Log::scan`] |
//!
//! Out of scope: FUSE and servers. A tracker feeds the log: today a mount, later perhaps one in the
//! kernel.

mod changes;
mod checkpoint;
mod codec;
mod compact;
mod consumers;
mod copies;
mod cut;
mod damage;
mod database;
mod error;
mod file_marks;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod held;
mod ids;
mod intents;
mod keeper;
mod known;
mod layer;
mod ledger;
mod log;
mod marks;
pub mod mlog;
mod operation;
mod options;
mod packed;
mod pending;
mod presence;
mod record;
mod scan;
mod usage;

pub use changes::{ChangeList, ChangesCursor, ChangesPage, ChangesTotals, ContentChange, NodeChange, PageLimits};
pub use checkpoint::{CheckpointReport, Close, Settler};
pub use compact::Compaction;
pub use cut::Cut;
pub use error::{CONSUMER_BYTES_MAX, LogError, Result};
pub use ids::{Epoch, TreeId};
pub use keeper::{FoundLayer, KeptLayer, LayerKeeper, WaitingLayer, WaitingLayers};
pub use layer::{Granularity, Layer, Unit, WholeReason};
pub use ledger::{LedgerEntry, LedgerEvent};
pub use log::{Counts, Log};
pub use marks::{ConsumerState, DropReason, Dropped, PendingCut};
pub use operation::{Operation, RemainingLinks};
pub use options::{ExpiryPolicy, LogOptions};
pub use presence::Presence;
pub use record::{Fence, TIME_TICK_NS};
pub use scan::{ScanReport, TreeView};
pub use usage::Usage;

#[cfg(test)]
mod tests;
