//! The delta: how one content of a file follows from another, as an extent map and as a stream of
//! bytes.
//!
//! "A change is an extent map" (ARCHITECTURE.md, first idea). Every finder of changes (operation
//! log, rsync, chunking, storage checksums) yields a delta, and every consumer (server, other
//! clients, restore) takes one; finders and consumers never meet.
//!
//! Words:
//! - *base*: the content that a delta starts from; *new*: the content that it leads to.
//! - [`Source`]: where the bytes of an extent come from: a *literal* (carried by the delta), a
//!   *copy* (from the base, at any offset) or *zero* (a hole). Bytes that no extent covers keep
//!   their value from the base at the same offset, and are zero past the base's end.
//! - [`DeltaMap`]: the delta in memory; [`DeltaMap::then`] and [`compose`] merge two deltas into
//!   one.
//! - *stream*: the delta on the wire and on disk (docs/formats/delta.md), written by
//!   [`DeltaWriter`] and read by [`DeltaReader`], a *block* at a time. A block holds some extents
//!   and one *frame* with their literal bytes, compressed where that pays. Extents can be read
//!   without touching the frames, which a server stores as they are.
//! - [`apply_to_new`], [`apply_in_place`]: base + stream = new.
//! - [`LibrsyncWriter`]: deltas in the format of `rdiff` (librsync).
//! - [`signature`]: what one end sends to describe a content; [`find`]: finders, which make a delta
//!   from a signature and a new content.
//! - [`crc`]: checksums of any range, computed from the checksums of parts that storage keeps.
//!   [`cuckoo`]: the table in which they are looked up.
//! - [`excerpt`]: ranges of a base of which a signature in short blocks is asked for.
//! - [`matches`]: the answer to a search on the server.
//! - [`chunks`]: content-defined chunks, lists of them and the answers to such lists, for the
//!   finder that works at both ends.
//! - [`leaves`]: checksums of 4 KiB blocks as storage keeps them, and the deltas and digests made
//!   from them.
//! - [`groups`]: sums over 256 leaves, which are compared first.
//! - [`bundle`]: several short contents in one stream.
//! - [`contents`]: many of them in a stream of frames, sent while it is made.
//! - [`put_page_delta`], [`apply_page_delta`]: the difference of two pages in a few bytes, for
//!   storage that keeps a page's changes beside it.
//! - [`ContentDigest`], [`leaves::LeafDigest`]: digests by which one end proves that it composed
//!   the content that the other end has.
//!
//! Every function that reads a stream takes it from an untrusted sender: bad input gives a typed
//! error, memory stays bounded by one block. This crate knows no names, versions, storage or
//! network.

mod apply;
pub mod bundle;
pub mod chunks;
pub mod contents;
pub mod crc;
pub mod cuckoo;
mod digest;
pub mod excerpt;
pub mod find;
mod frame;
pub mod groups;
pub mod leaves;
mod librsync;
mod map;
pub mod matches;
#[cfg(test)]
mod model;
mod read;
mod room;
mod sequence;
pub mod signature;
mod source;
pub mod strong;
mod varint;
pub mod weak;
mod wire;
mod write;
mod xor;

pub use apply::{ApplyError, ApplyStats, Base, EmptyBase, Target, apply_in_place, apply_to_new};
pub use digest::{ContentDigest, DIGEST_LEN};
pub use frame::{Codec, Effort, FRAME_RAW_LEN_MAX, Frame, FrameDecoder, FrameEncoder, FrameError};
pub use librsync::{COMMAND_LEN_MAX, LIBRSYNC_MAGIC, LibrsyncStats, LibrsyncWriter};
#[cfg(any(test, feature = "fuzzing"))]
pub use librsync::{
    IntoLibrsync, LIBRSYNC_STRONG_LEN_MIN, LibrsyncError, LibrsyncSignatureWriter, apply_librsync, librsync_params,
    read_librsync_delta, read_librsync_signature,
};
pub use map::{ComposeError, DeltaMap, Resolve, compose};
pub use read::{Block, DeltaReader, ReadError, validate, verify};
pub use sequence::WriteError;
pub use source::Source;
pub use wire::{
    BLOCK_EXTENTS_MAX, DeltaHeader, DeltaStats, EXTENT_LEN_MAX, Extent, FILE_LEN_MAX, FrameSlice, MAGIC, VERSION,
};
pub use write::{DeltaWriter, WriterOptions};
pub use xor::{MalformedPageDelta, apply_page_delta, put_packed_page_delta, put_page_delta};
