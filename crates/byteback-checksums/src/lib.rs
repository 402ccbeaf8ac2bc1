//! Checksums of blocks that exist already, so that content that did not change need not be read to
//! know it.
//!
//! - [`source`]: what all sources have in common: which checksums, of which blocks, and how it is
//!   known that they are of what the file holds now.
//! - [`btrfs`]: the checksums that the file system keeps (SkySync sections 3.1 and 3.4).
//! - [`kept`]: those that we summed ourselves, of files that did not change since; on any file
//!   system.
//! - [`written`]: those of what programs wrote, kept by the gate, by which bytes are noticed that
//!   changed by themselves.
//! - [`ChecksumStore`]: the client's own memory of what a server has of each file, block by block,
//!   since the last backup.
//!
//! Further sources, which no backup reads, are in the crate `byteback-sources`. This crate knows
//! neither deltas nor our network protocol, and opens no connection; in the store a file is a
//! number, and a version of all of them is a number.

mod backend;
pub mod btrfs;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod kept;
pub mod source;
mod store;
pub mod written;

pub use error::ChecksumError;
pub use store::{BLOCK_LEN, ChecksumStore, Session, Sum};
