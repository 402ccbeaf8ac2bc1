//! The outside world through small interfaces, real and simulated.
//!
//! Everything that a deciding crate needs from the machine enters through a trait of this crate:
//! durable files ([`durable`]), block devices ([`block`]), time ([`clock`]), randomness
//! ([`random`]). Each has a real implementation and a simulated one ([`sim`]) that is stricter than
//! any real machine: it loses, tears and reorders whatever was not synced, and crashes at any sync
//! point, reproducibly from a seed. [`boot`] tells one start of the machine from the next. [`tree`]
//! is the access to a directory tree of the machine (a tracked folder) by file descriptors; it has
//! no simulated twin, because its users are tested on real file systems. [`load`] says how busy the
//! machine is.
//!
//! This crate knows nothing of our domain: no extents, no epochs, no backups.

// Allowed only where a device is told what it may forget.
#![deny(unsafe_code)]

pub mod block;
pub mod boot;
pub mod clock;
pub mod durable;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod load;
pub mod random;
pub mod sim;
pub mod tree;

pub use error::{HostError, errno_of};
