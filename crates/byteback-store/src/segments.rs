//! Segments: append-only files that hold the literal frames of all versions.
//!
//! Terms: a *frame* is the stored form of one delta block's literals, opaque to the store; a
//! [`FrameRef`] says where it lies. One segment is *active* and takes appends from all writers
//! until it reaches [`SEGMENT_LEN_MAX`]; then a new one is begun. A segment is *pinned* while a
//! [`SegmentWriter`] that wrote to it is alive, because its frames may be about to be referred to.
//!
//! Order of durable steps: (1) the segment file is created and its directory synced, before the
//! first frame is appended; (2) frames are appended; (3) [`SegmentWriter::sync`] makes them
//! durable; (4) only then may the catalog refer to them. A crash before (4) leaves bytes that
//! nothing refers to: a leak in a segment that other frames keep alive, or a whole file that the
//! store removes at its next start. After a restart the old active segment is never appended to
//! again, so bytes beyond what the catalog knows can't be mistaken for frames.
//!
//! After a failed sync the state of a file's tail is unknown: the segment is *abandoned*, every
//! writer with unsynced frames in it fails, and the next append begins a new one. A failed append
//! (disk full) is harmless: the next one overwrites it.
//!
//! A number that the catalog ever referred to is never used twice. Out of scope: interpreting
//! frames, counting references, compaction.

mod files;
pub(crate) mod format;

use crate::error::StoreError;
use crate::numbers::SegmentNumber;
use byteback_delta::Codec;
use std::collections::BTreeSet;
use std::fmt::Debug;

pub use files::SegmentFiles;
pub use format::{FRAME_HEADER_LEN, SEGMENT_HEADER_LEN};

/// A segment that is at least this long takes no more frames, in bytes.
pub const SEGMENT_LEN_MAX: u64 = 64 * 1024 * 1024;

/// The place of a frame, and what its record must say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameRef {
    /// Number of the segment.
    pub segment: SegmentNumber,
    /// Offset of the frame's record (its header) in the segment, in bytes.
    pub offset: u64,
    /// Stored bytes.
    pub stored_len: u32,
    /// Bytes after decoding.
    pub raw_len: u32,
    /// [`Codec::code`] of the frame.
    pub codec: u8,
}

/// A segment file in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its number.
    pub id: SegmentNumber,
    /// Its length in bytes.
    pub len_bytes: u64,
}

/// Immutable storage of frames.
pub trait Segments: Send + Sync + Debug {
    /// A new writer; the segments that it writes to stay pinned until it is dropped.
    fn writer(&self) -> Box<dyn SegmentWriter>;

    /// Reads the stored bytes of a frame into `stored`, checked against its record.
    ///
    /// # Errors
    /// `Damaged` if the bytes are not those that were written; otherwise the system's error.
    fn read(&self, frame: &FrameRef, stored: &mut Vec<u8>) -> Result<(), StoreError>;

    /// Writes the stored bytes of a damaged frame back to their place and makes them durable, if
    /// the frame's header there agrees with its own checksum and these are its bytes; returns
    /// whether they are.
    ///
    /// # Errors
    /// The system's error.
    fn rewrite(&self, frame: &FrameRef, stored: &[u8]) -> Result<bool, StoreError>;

    /// All segments, by number.
    ///
    /// # Errors
    /// The system's error.
    fn list(&self) -> Result<Vec<SegmentInfo>, StoreError>;

    /// Whether a segment is active or pinned, and so must not be removed.
    fn is_in_use(&self, segment: SegmentNumber) -> bool;

    /// Removes a segment; one that does not exist is not an error.
    ///
    /// # Errors
    /// The system's error.
    fn remove(&self, segment: SegmentNumber) -> Result<(), StoreError>;
}

/// Appends frames on behalf of one request.
pub trait SegmentWriter: Send + Debug {
    /// Appends a frame. It is readable at once, and durable after [`Self::sync`].
    ///
    /// # Errors
    /// `Full` when the disk is full; otherwise the system's error. Nothing refers to the frame
    /// then.
    fn append(&mut self, codec: Codec, raw_len: u32, stored: &[u8]) -> Result<FrameRef, StoreError>;

    /// Makes all frames of this writer durable.
    ///
    /// # Errors
    /// The frames may not be durable: nothing may refer to the writer's frames then.
    fn sync(&mut self) -> Result<(), StoreError>;

    /// Gives back the space of the appended frames, as far as nothing was appended behind them.
    /// Nothing refers to them, and nothing will.
    fn discard(&mut self) {}

    /// The segments that this writer appended to.
    fn segments(&self) -> BTreeSet<SegmentNumber>;
}
