//! Checksums of blocks that exist already, so that content need not be read to prove that it did
//! not change.
//!
//! - [`source`]: the interface of all sources: which checksums, of which blocks, and the proof that
//!   they are of the file's present content.
//! - [`btrfs`]: the checksums that the file system keeps (SkySync sections 3.1 and 3.4).
//! - [`fsverity`]: the hash trees of files that are sealed.
//! - [`dmverity`]: the hash tree of a device that the kernel verifies, for the files on it.
//! - [`zfs`]: the checksums that ZFS keeps of each record of a file, as its own programs report
//!   them.
//! - [`deduplicated`]: the fingerprints of files that a deduplicating store keeps in chunks of
//!   varying lengths (casync), and recipes of such files.
//! - [`s3`]: the checksums that S3 and compatible servers keep of objects and their parts, over the
//!   [`http`] implementation that the caller supplies.
//! - [`seaweedfs`]: the checksums of a file's chunks in SeaweedFS, over HTTP as well.
//! - [`hdfs`]: the checksums that HDFS's DataNodes keep of each block, over HTTP and connections
//!   ([`tcp`]).
//! - [`moosefs`]: the checksums that MooseFS's chunk servers keep of each block of a file, from
//!   their files.
//! - [`ceph`]: the checksums that Ceph's BlueStore keeps of each object, by its own program, while
//!   the OSD is stopped.
//! - [`kept`]: checksums that we summed ourselves, of files that did not change since; on any file
//!   system.
//! - [`written`]: checksums of what programs wrote, kept by the gate, to notice bytes that changed
//!   by themselves.
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
