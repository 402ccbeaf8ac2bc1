//! Versions as layers of extents over immutable segments.
//!
//! A [`Store`] keeps folders. A *batch* of a device changes names, attributes and contents of one
//! folder in one transaction and gives the folder its next sequence number; every sequence number
//! can be read forever. A version of a file's contents is a *layer* over the version before:
//! literals go once into a *segment* and one small row of extents goes into the *catalog*, so that
//! applying a delta costs the delta, not the file.
//!
//! Map: [`segments`] literal frames; [`catalog`] rows and transactions; `layer`, `resolve`,
//! `compact` extents laid over each other; [`stage`] what arrives; `apply` what a batch may do;
//! [`read`], [`versions`], [`content`], [`verify`] what comes back; [`damage`] what does not, and
//! putting it right; [`signature`], [`search`] what helps to find a change; [`sums`] checksums that
//! are kept for that; [`token`], [`devices`] who may ask; `collect` what is thrown away.
//!
//! Order of durable steps: segments are written and synced, then one catalog transaction refers to
//! them, deletion comes last. A crash between them leaves bytes that nothing refers to; they are
//! collected at the next start.
//!
//! This crate knows no HTTP, no JSON and no client.

pub mod apply;
pub mod catalog;
mod codec;
pub mod collect;
mod compact;
pub mod content;
pub mod damage;
pub mod devices;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod groups;
mod layer;
pub mod model;
mod paths;
mod prove;
pub mod read;
mod resolve;
pub mod search;
pub mod segments;
pub mod signature;
pub mod stage;
mod store;
pub mod sums;
pub mod token;
pub mod totals;
pub mod verify;
pub mod versions;

pub use byteback_extents::ByteRange;
pub use error::StoreError;
pub use store::{Store, StoreLimits, StoreParts};

#[cfg(test)]
mod tests;
