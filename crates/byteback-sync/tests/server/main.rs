//! Continuous sync against a real server over TCP and a real mount.
//!
//! | room | what is in it |
//! |---|---|
//! | `engine` | a real mount that programs change at random, kept in sync with a server that dies and comes back |
//! | `uploading` | groups of the sync queue as batches: chains of contents, lost answers, conflicts |
//! | `examined` | groups of much new content, of which the server stores only what it lacks |
//! | `incoming` | changes by others since the cursor, fetched while connections break, without this device's own |
//! | `receiving` | what others did, done in the tree while programs use it |
//! | `ignoring` | what of the tree is ignored, by rules that change |
//! | `folding`, `folding_disk` | file systems that take some names for the same |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test"
)]

mod engine;
mod examined;
mod folding;
mod folding_disk;
mod ignoring;
mod incoming;
mod line;
mod receiving;
mod uploading;
