//! Power cuts under real file systems: ext4, btrfs and XFS on a disk that forgets.
//!
//! Folder, log and daemon live on a file system on a disk that this test serves ([`device`]): it
//! knows which writes were flushed and which only arrived. At a random moment in the midst of
//! writers and backups the wire to the server is cut and the disk stops; what the disk holds
//! afterwards is everything that was flushed and an arbitrary choice of the rest. The kernel mounts
//! that again, as after a reboot, and Byteback starts on it.
//!
//! Then
//!
//! - everything that a program had synced through the mount is there;
//! - every backup that was acknowledged restores to what it was;
//! - the next backup restores to exactly the tree that the file system came back with: no change is
//!   missed, whatever times and sizes the file system lost; and the one after it finds nothing more
//!   to do;
//! - every file that was sent whole has a reason.
//!
//! The server is another machine: it goes on. docs/fault-model.md states the promises.
//!
//! `BYTEBACK_SEED` repeats the choices of a run (not the order of events in the kernel),
//! `BYTEBACK_ROUNDS` sets the number of cuts.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "these are tests; the lint configuration only recognises test functions, not their helpers"
)]

#[path = "../rig/mod.rs"]
#[allow(dead_code, reason = "shared with other test targets, which use other parts of it")]
mod rig;

mod cuts;
mod device;

/// The body of the processes that the tests start as writers.
#[test]
#[ignore = "it is run by the other tests, in processes of their own"]
fn hand() {
    rig::hand::serve_as_hand();
}
