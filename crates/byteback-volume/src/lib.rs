//! A log-structured file system on a file or a block device, which stores an overwritten page as a
//! small delta beside its inode (DeltaFS, sections 4 and 5).
//!
//! | room | what it is for |
//! |---|---|
//! | [`format`] | the format on the device, byte by byte: sealed blocks and their contents; nothing else knows an offset |
//! | `geometry`, `create` | division of a device; creation of an empty volume |
//! | `volume` | an open volume: the one entrance, and the lock |
//! | `state` | the state of an open volume; all modules below are parts of it |
//! | `media` | the device, by sealed blocks |
//! | `segments`, `node_table` | blocks in use, the six logs, addresses of nodes |
//! | `nodes`, `pages` | nodes and pages in memory |
//! | `place`, `map` | from a page of a file to its block |
//! | `file`, `directory`, `names`, `attributes`, `xattr` | operations of programs |
//! | `reading`, `writing` | reading and writing much at once |
//! | `deltas` | overwritten pages that are not written (DeltaFS section 4.1) |
//! | `clusters` | several pages in one block, compressed |
//! | `inode_pages` | pages that lie in the inode, compressed |
//! | `attempts` | which overwritten pages are compared, to be kept as deltas |
//! | `main_deltas` | several deltas in one block (section 4.2) |
//! | `delta_list` | files with such deltas, and restoring their pages in idle time |
//! | `hotness` | which files are written and read much (section 4.2.1) |
//! | `lost_writes` | changed pages that cannot be written, as nodes that lead to them are lost |
//! | `written_pages` | pages that a sync without a checkpoint vouches for |
//! | `checkpoint`, `sync`, `name_changes`, `recovery` | what survives a crash, and how it is recovered |
//! | `inside` | files that are kept in step with those of programs |
//! | `clean` | making room |
//! | `statistics` | statistics, as numbers |
//! | `check` | an independent check of all of it |
//! | `repair` | repair of what can be repaired |
//!
//! Out of scope: FUSE, permissions, anything of networks. The crate depends on its device and its
//! clock alone.

#![forbid(unsafe_code)]

pub mod format;

mod attempts;
mod attributes;
mod check;
mod checkpoint;
mod clean;
mod clusters;
mod create;
mod delta_list;
mod deltas;
mod directory;
mod error;
mod file;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod geometry;
mod hotness;
mod inode_pages;
mod inside;
mod lost_writes;
mod main_deltas;
mod map;
mod media;
mod name_changes;
mod names;
mod node_table;
mod nodes;
mod pages;
mod place;
mod reading;
mod recovery;
mod repair;
mod segments;
mod state;
mod statistics;
mod sync;
mod volume;
mod writing;
mod written_pages;
mod xattr;

pub use attributes::{Attributes, SetAttributes};
pub use check::{CheckOptions, Problem, Report, Trouble, check};
pub use create::{CreateOptions, create};
pub use deltas::{DeltaCounts, DeltaMode};
pub use directory::Listed;
pub use error::{Result, VolumeError};
pub use file::Allocate;
pub use hotness::Heat;
pub use inside::{Companion, Inside};
pub use names::{NewFile, Rename};
pub use repair::{RepairOptions, Repaired, repair};
pub use statistics::{VolumeStats, WrittenBlocks};
pub use volume::{OpenOptions, Usage, Volume};
pub use xattr::SetAttribute;
