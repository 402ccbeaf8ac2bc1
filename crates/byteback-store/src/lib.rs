//! Versions as layers of extents over immutable segments.
//!
//! A [`Store`] keeps folders. A *batch* of a device changes names, attributes and contents of one
//! folder in one transaction and gives the folder its next sequence number; every sequence number
//! can be read forever. A version of a file's contents is a *layer* over the version before:
//! literals go once into a *segment* and one small row of extents goes into the *catalog*, so that
//! applying a delta costs the delta, not the file.
//!
//! Map: [`segments`] literal frames; [`catalog`] rows and transactions; `layer`, `resolve`,
//! `compact` extents laid over each other; [`stage`] the parts of a batch as they arrive; `apply`
//! the rules of a batch; [`read`], [`versions`], [`content`], [`many`], [`verify`] reading;
//! [`damage`] finding and repairing damaged frames; [`defragment`] keeping what is read often
//! together; [`signature`], [`search`] help for finding
//! changes, with the checksums kept in [`sums`]; [`token`], [`devices`] access; `collect` garbage
//! collection.
//!
//! Order of durable steps: segments are written and synced, then one catalog transaction refers to
//! them, deletion comes last. A crash between them leaves unreferenced bytes, which the next start
//! collects.
//!
//! This crate knows no HTTP, no JSON and no client.

pub mod alike;
pub mod apply;
pub mod catalog;
mod codec;
pub mod collect;
mod compact;
pub mod content;
pub mod damage;
pub mod defragment;
pub mod devices;
pub mod directories;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod groups;
mod layer;
pub mod many;
pub mod model;
pub mod numbers;
mod paths;
mod prove;
pub mod read;
mod resolve;
pub mod search;
pub mod segments;
mod sheets;
pub mod signature;
pub mod stage;
mod store;
pub mod sums;
pub mod token;
pub mod totals;
pub mod verify;
pub mod versions;

pub use alike::ALIKE_LEN_MIN;
pub use byteback_extents::ByteRange;
pub use error::StoreError;
pub use store::{Store, StoreLimits, StoreParts};

#[cfg(test)]
mod tests;
