//! The checksums that btrfs keeps, on real file systems in image files: needs root and loop
//! devices, like other tests of this repository.
//!
//! `files`: files of every kind, at rest.
//! `model`: files made by random operations.
//! `writers`: files that are written, and whose extents are moved, meanwhile.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "these are tests; the lint configuration only recognises test functions, not their helpers"
)]

mod disk;
mod files;
mod model;
mod writers;
