//! Checksums of blocks that exist already, so that nobody has to read content to know that it did
//! not change.
//!
//! - [`source`]: what all sources have in common: which checksums, of which blocks, and how it is
//!   known that they are of what the file holds now.
//! - [`btrfs`]: the checksums that the file system keeps (SkySync sections 3.1 and 3.4).
//! - [`fsverity`]: the hash trees of files that are sealed.
//! - [`dmverity`]: those of a device that the kernel verifies, of the files on it.
//! - [`zfs`]: those that ZFS keeps of each record of a file, as its own programs tell them.
//! - [`deduplicated`]: the fingerprints of files that a deduplicating store keeps in chunks of many
//!   lengths (casync), and recipes of such files.
//! - [`s3`]: those that S3 and servers like it keep of objects and their parts, over whatever
//!   [`http`] is brought.
//! - [`seaweedfs`]: those of the chunks that a file has there, over the same.
//! - [`hdfs`]: those that HDFS's DataNodes keep of each block, over the same and connections
//!   ([`tcp`]).
//! - [`moosefs`]: those that MooseFS's chunk servers keep of each block of a file, from their
//!   files.
//! - [`ceph`]: those that Ceph's BlueStore keeps of each object, by its own program, where the OSD
//!   is stopped.
//! - [`kept`]: those that we summed ourselves, of files that did not change since; on any file
//!   system.
//! - [`written`]: those of what programs wrote, kept by the gate, by which bytes are noticed that
//!   changed by themselves.
//! - [`ChecksumStore`]: the client's own memory of what a server has of each file, block by block,
//!   since the last backup.
//!
//! This crate knows neither deltas nor our network protocol, and opens no connection; in the store
//! a file is a number, and a version of all of them is a number.

mod backend;
pub mod btrfs;
pub mod ceph;
pub mod deduplicated;
pub mod dmverity;
pub mod fsverity;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod hdfs;
pub mod http;
pub mod kept;
mod merkle;
pub mod moosefs;
mod programs;
pub mod s3;
pub mod seaweedfs;
pub mod source;
mod store;
pub mod tcp;
pub mod written;
pub mod zfs;

pub use programs::Programs;
pub use store::{BLOCK_LEN, ChecksumError, ChecksumStore, Session, Sum};
