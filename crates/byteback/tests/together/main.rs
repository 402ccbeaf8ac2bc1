//! Continuous sync from end to end: real processes on three machines of one folder, each in a
//! network namespace of its own, beside a server in a fourth; real programs work on the mounts.
//! | part | content |
//! |---|---|
//! | `network` | namespaces, a bridge between them, links that are cut and restored |
//! | `machines` | the server, the machines with their homes and folders, an auditor that fetches the server's content |
//! | `programs` | sqlite3, git, vim, sed, tar, rsync and the shell, as scripts; and invariants of their files, anywhere, at any moment |
//! | `sizes` | a sparse file of 100 GiB, and a disk that is too small |
//! | `lives` | rounds of work during which processes are killed, stopped and restarted, and links cut; all trees are equal in the end |
//!
//! `BYTEBACK_SEED` repeats the choices of a run (not the order of events in the kernel),
//! `BYTEBACK_LIVES` sets the number of lives and `BYTEBACK_ROUNDS` that of the rounds in each.
//! Needs root, `/dev/fuse` and network namespaces; where the last cannot be made, the machines
//! share one network, and no link is cut.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "these are tests; the lint configuration only recognises test functions, not their helpers"
)]

#[path = "../commands/world.rs"]
#[allow(dead_code, reason = "shared with other test targets, which use other parts of it")]
mod world;

mod lives;
mod machines;
mod network;
mod programs;
mod sizes;
