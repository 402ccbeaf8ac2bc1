//! A log-structured file system on a file or a block device, which stores an overwritten page as a
//! small delta beside its inode (DeltaFS, sections 4 and 5).
//!
//! | room | what it is for |
//! |---|---|
//! | [`format`] | the format on the device, byte by byte: sealed blocks and their contents; nothing else knows an offset |
//! | `create` | creation of an empty volume |
//! | `volume` | an open volume: the one entrance, and the lock |
//! | `state` | an open volume: one part for each of the four folders below, and operations that need several |
//! | `log` | the device as six logs of blocks: what is in use, where nodes are, making room |
//! | `tree` | nodes and pages in memory; files, names and attributes as programs see them |
//! | `small` | pages in less than a block: deltas and compressed pages (DeltaFS section 4) |
//! | `crash` | checkpoints, syncs, and what a start makes of them |
//! | `inside` | files that are kept in step with those of programs |
//! | `statistics` | statistics, as numbers |
//! | `check`, `repair` | an independent check of all of it, and repair of what can be repaired |
//!
//! Out of scope: FUSE, permissions, anything of networks. The crate depends on its device and its
//! clock alone.

#![forbid(unsafe_code)]

pub mod format;

mod check;
mod crash;
mod create;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod inside;
mod log;
mod repair;
mod small;
mod state;
mod statistics;
mod tree;
mod volume;

pub use check::{CheckOptions, Problem, Report, Trouble, check};
pub use create::{CreateOptions, create};
pub use error::{Result, VolumeError};
pub use inside::{Companion, Inside};
pub use repair::{RepairOptions, Repaired, repair};
pub use small::deltas::{DeltaCounts, DeltaMode};
pub use small::hotness::Heat;
pub use statistics::{VolumeStats, WrittenBlocks};
pub use tree::attributes::{Attributes, SetAttributes};
pub use tree::directory::Listed;
pub use tree::file::Allocate;
pub use tree::names::{NewFile, Rename};
pub use tree::xattr::SetAttribute;
pub use volume::{OpenOptions, Usage, Volume};
