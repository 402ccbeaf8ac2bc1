//! Byte ranges, sets of them, and maps from them: the extent tree.
//!
//! "A change is an extent map" (ARCHITECTURE.md, first idea): the operation log, the delta, the
//! server's layered versions and the client's queue all keep changes as extents, and all merge
//! versions by laying one extent map over another. This crate is that one structure, without I/O,
//! files or time.
//!
//! - [`ByteRange`]: a half-open range of byte offsets that is never empty.
//! - [`ExtentSet`]: a set of bytes; the mergeable operation log tree of SolFS (section 3.2.1).
//! - [`ExtentMap`]: ranges with values; later ranges overlay earlier ones.
//! - [`ExtentValue`]: the operations of a value by which extents can be cut and joined.
//!
//! All offsets are `u64` byte offsets. As ranges are half-open, the byte at offset `u64::MAX`
//! cannot be addressed; no file has one.

mod coarse;
mod map;
mod range;
mod set;
mod value;

pub use coarse::gap_to_fill;
pub use map::{ExtentMap, Gaps, Iter, Pieces, Tiles};
pub use range::ByteRange;
pub use set::{ExtentSet, Ranges, RangesWithin};
pub use value::ExtentValue;
