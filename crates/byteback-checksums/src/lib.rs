//! Checksums of blocks that exist already, so that nobody has to read content to know that it did not change.
//!
//! One source so far: the client's own store ([`ChecksumStore`]), which remembers what a server has of each file, block by block, since
//! the last backup. What file systems and storage systems keep will come beside it.
//!
//! This crate knows neither deltas nor our network protocol; a file is a number, and a version of all of them is a number.

mod backend;
mod store;

pub use store::{BLOCK_LEN, ChecksumError, ChecksumStore, Session, Sum};
