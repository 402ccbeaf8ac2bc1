//! The store against costs, crashes, full disks, damage and hostile batches.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

mod conformance;
mod cost;
mod cuts;
mod damage;
mod defragment;
mod durability;
mod follow;
mod hostile;
mod lab;
mod loss;
mod many;
mod memory;
mod parts;
mod passes;
mod prove;
mod search;
mod sequence;
mod sums;
mod times;
mod twins;
