//! Segments: append-only files that hold the literal frames of all versions.
//!
//! Words: a *frame* is the stored form of one delta block's literals, opaque to the store; a
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
//! After a failed sync nothing is known of a file's tail: the segment is *abandoned*, every writer
//! with unsynced frames in it fails, and the next append begins a new one. A failed append (disk
//! full) is harmless: the next one writes over it.
//!
//! A number that the catalog ever referred to is never used twice. Out of scope: interpret
//! frames, count references, compact.

mod files;
pub(crate) mod format;

use crate::error::StoreError;
use byteback_delta::Codec;
use std::collections::BTreeSet;
use std::fmt::Debug;

pub use files::SegmentFiles;
pub use format::{FRAME_HEADER_LEN, SEGMENT_HEADER_LEN};

/// A segment that is at least this long takes no more frames, in bytes.
pub const SEGMENT_LEN_MAX: u64 = 64 * 1024 * 1024;

/// Where a frame lies, and what its record must say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameRef {
    /// Number of the segment.
    pub segment: u64,
    /// Offset of the frame's record (its header) in the segment, in bytes.
    pub offset: u64,
    /// Stored bytes.
    pub stored_len: u32,
    /// Bytes after decoding.
    pub raw_len: u32,
    /// [`Codec::code`] of the frame.
    pub codec: u8,
}

/// A segment file as it lies there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its number.
    pub id: u64,
    /// Its length in bytes.
    pub len_bytes: u64,
}

/// Immutable storage of frames.
pub trait Segments: Send + Sync + Debug {
    /// Begins to write; what the writer wrote to stays pinned until it is dropped.
    fn writer(&self) -> Box<dyn SegmentWriter>;

    /// The stored bytes of a frame, checked against its record, into `stored`.
    ///
    /// # Errors
    /// `Damaged` if the bytes are not those that were written; otherwise what the system answered.
    fn read(&self, frame: &FrameRef, stored: &mut Vec<u8>) -> Result<(), StoreError>;

    /// Writes the stored bytes of a damaged frame back to their place and makes them durable, if
    /// the frame's header there agrees with its own checksum and says that these are its bytes;
    /// answers whether it does.
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
    fn is_in_use(&self, segment: u64) -> bool;

    /// Removes a segment; one that does not exist is not an error.
    ///
    /// # Errors
    /// The system's error.
    fn remove(&self, segment: u64) -> Result<(), StoreError>;
}

/// Appends frames on behalf of one request.
pub trait SegmentWriter: Send + Debug {
    /// Appends a frame. It is readable at once, and durable after [`Self::sync`].
    ///
    /// # Errors
    /// `Full` when the disk is full; otherwise what the system answered. Nothing refers to the
    /// frame then.
    fn append(&mut self, codec: Codec, raw_len: u32, stored: &[u8]) -> Result<FrameRef, StoreError>;

    /// Makes all frames of this writer durable.
    ///
    /// # Errors
    /// When any of them may not be: the writer's frames must then not be referred to.
    fn sync(&mut self) -> Result<(), StoreError>;

    /// Gives back what was appended, as far as nothing was appended behind it; nothing refers to
    /// it, and nothing will.
    fn discard(&mut self) {}

    /// The segments that this writer appended to.
    fn segments(&self) -> BTreeSet<u64>;
}
