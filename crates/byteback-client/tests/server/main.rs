//! The client against a real server over TCP.
//!
//! | room | what is in it |
//! |---|---|
//! | `client` | what is repeated, what is not, what is counted |
//! | `line` | calls on a connection that stands |
//! | `listening` | a folder's batches, heard of as they are applied |
//! | `relay` | calls on the line of another process |
//! | `tls` | certificates, pinned and signed |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test"
)]

mod client;
mod line;
mod listening;
mod relay;
mod tls;
