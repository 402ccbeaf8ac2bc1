//! The process behind a tree, on real mounts.
//!
//! `coverage`: random operations, and after each cut the saved picture must equal the tree at the
//! cut, byte for byte. `integrity`: bytes that change although no program wrote them are found and
//! not sent, and nothing else is. `landing`: changes of others are made in the tree while programs
//! use it. `leaves`: checksums of a file's leaves are those of the cut. `life`: start, stop,
//! untracked changes, everything that a start finds. `live`: the groups of continuous sync, applied
//! elsewhere, are the tree at one moment after the other. `trimming`: bytes that a write leaves as
//! they were are not reported. `undo`: files as they were some time ago.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "these are tests; the lint configuration only recognises test functions, not their helpers"
)]

#[path = "../../../byteback-mount/tests/mount/operations.rs"]
mod operations;

#[path = "../../../byteback-checksums/tests/btrfs/disk.rs"]
#[allow(dead_code, reason = "it is for other tests, too")]
mod btrfs_disk;

mod adversary;
mod before_images;
mod coverage;
mod crowd;
mod cuts;
mod deltas;
mod fixture;
mod handles;
mod integrity;
mod landing;
mod leaves;
mod life;
mod live;
mod other_mount;
mod saved;
mod trimming;
mod undo;

/// The body of the processes that the tests start as daemons.
#[test]
#[ignore = "it is run by the other tests, in processes of their own"]
fn serve() {
    fixture::serve_as_daemon();
}
