//! Checksums that other storage keeps of its blocks, and what two lists of them say about two
//! contents (SkySync). `byteback checksums` shows and compares them.
//!
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
//! - [`comparison`]: what two lists of checksums say about the contents that they are of.
//!
//! All of them are a [`byteback_checksums::source::Source`]. The crate opens no connection: the
//! caller brings HTTP and TCP. Out of scope: the sources that backups read, which are in
//! `byteback-checksums`.

pub mod ceph;
pub mod comparison;
pub mod deduplicated;
pub mod dmverity;
pub mod fsverity;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod hdfs;
pub mod http;
mod merkle;
pub mod moosefs;
mod programs;
pub mod s3;
pub mod seaweedfs;
pub mod tcp;
pub mod zfs;

pub use programs::Programs;
