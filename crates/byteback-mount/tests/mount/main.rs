//! The mount as programs see it: real mounts over temporary directories.
//!
//! Needs `/dev/fuse` and root; without them the tests fail and say so, they never pass by not
//! running. Random tests print their seed; `BYTEBACK_SEED` repeats it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "these are tests; the lint configuration only recognises test functions, not their helpers"
)]

mod differential;
mod harness;
mod life;
#[allow(dead_code, reason = "parts of it are only used by the harness of byteback-daemon")]
mod operations;
mod other_user;
mod semantics;
mod trace;
