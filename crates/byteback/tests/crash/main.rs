//! Sudden death: the daemon, the server and the command are killed with SIGKILL while writers work
//! and backups run.
//!
//! After each blow:
//!
//! - the folder is a plain directory again, soon, and looking at it never hangs;
//! - that directory holds every write that a program was told succeeded (mode `exact`);
//! - every acknowledged snapshot restores to a moment of the tree that it may be of, and continues
//!   to do so, whatever is killed later;
//! - the next backup, of a folder at rest, restores to exactly that folder: no change made before
//!   the blow, between it and the next mount, or behind the mount's back is missing; and the backup
//!   after it finds nothing more to do.
//!
//! The truth is the directory below the mount, which outlives the daemon.
//!
//! `BYTEBACK_SEED` repeats the choices of a run (not the order of events in the kernel),
//! `BYTEBACK_ROUNDS` sets the number of blows.

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

mod blows;
mod commit;
mod flush;
mod meddling;
mod narrowing;

/// The body of the processes that the tests start as writers.
#[test]
#[ignore = "it is run by the other tests, in processes of their own"]
fn hand() {
    rig::hand::serve_as_hand();
}
