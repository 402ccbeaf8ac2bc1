//! Gaps in coverage: whatever happens to a folder, to its state or to the clock while no daemon
//! runs, with the real program. docs/fault-model.md states the promise for each.
//!
//! After each gap the next backup must restore to exactly the present tree, and the one after it
//! must find nothing to do; where the program refuses to start, its message must give advice, and
//! following it must help.
//!
//! `elsewhere`: the tree was changed, replaced or restored by other programs. `state`: the state
//! folder was damaged, put back from an older copy, or copied to another machine. `full_disk`: the
//! log has no room.

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

mod disk;
mod elsewhere;
mod full_disk;
mod scene;
mod state;
