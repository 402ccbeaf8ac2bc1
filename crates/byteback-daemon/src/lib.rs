//! The process behind one tracked tree: it owns the log and, while the tree is mounted, the gate
//! and the pictures.
//!
//! | module | contents |
//! |---|---|
//! | [`state_folder`] | where a tree's log lives, and who may use it |
//! | [`presence`] | whether the directory at a path is still the folder that was tracked |
//! | [`tree`] | a tree with its log, opened and compared with the record |
//! | [`service`] | the tree as [`byteback_control::TreeService`]: cuts, changes, content |
//! | [`live`] | continuous sync at the origin: the changes to send, in order, with their bytes as of then |
//! | [`integrity`] | checksums of what programs wrote, and the scrub that compares the disk with them |
//! | [`daemon`] | the mounted tree: checkpoints, socket, start and end in good order |
//! | `bare_directory`, [`lost_writes`] | the directory below a volume, and what a volume lost |
//! | `embedded` | the same without a mount, on a disk and a clock of the caller's: for simulations |
//!
//! A folder that is not mounted is served by the same [`service`], inside the command that backs it
//! up. Nothing protects a file while it is read then, so each file is compared with itself before
//! and after.
//!
//! Out of scope: servers and the network.

mod attributes;
mod bare_directory;
pub mod daemon;
mod doubt;
#[cfg(feature = "simulation")]
pub mod embedded;
mod error;
pub mod integrity;
pub mod live;
pub mod lost_writes;
mod memory;
pub mod presence;
pub mod service;
pub mod state_folder;
pub mod tree;

pub use daemon::{Daemon, DaemonOptions, Rhythm};
pub use doubt::{Doubt, HeldBack};
pub use error::DaemonError;
pub use integrity::ChecksumOptions;
pub use live::LiveOptions;
pub use lost_writes::LostWrites;
pub use presence::OnDoubt;
pub use service::Service;
pub use state_folder::StateFolder;
pub use tree::TrackedTree;
