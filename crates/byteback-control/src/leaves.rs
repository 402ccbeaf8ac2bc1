//! Checksums of a file's leaves at a cut: existing ones where there are any, otherwise ones
//! computed from the file.
//!
//! A *leaf* is [`LEAF_LEN_BYTES`] of a file, at a multiple of that; the last leaf of a file may be
//! shorter. The tree's process knows where checksums of a file are kept (in its file system, or by
//! itself) and whether they are of the content at the cut. The caller gets a checksum of each leaf,
//! ascending, and learns only at the end where they came from and how much had to be read for them.
//!
//! **Validity.** Checksums count only once the call has returned without an error. If a file turns
//! out to have changed while its checksums were fetched, the sequence begins anew: a piece at
//! offset 0 that is not the first makes void all pieces before it.

use byteback_extents::ByteRange;
use serde::{Deserialize, Serialize};

/// Bytes of a leaf; the last one of a file may be shorter.
pub const LEAF_LEN_BYTES: u64 = 4096;

/// Bytes of the checksum of a leaf, of each kind.
pub const LEAF_SUM_LEN: usize = 32;

/// Bytes of the CRC-32C of a leaf, little-endian.
pub const LEAF_CRC_LEN: usize = 4;

/// The function of the leaves' checksums, without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeafKind {
    /// SHA-256.
    Sha256,
    /// BLAKE2b of 256 bits.
    Blake2b256,
    /// BLAKE3.
    Blake3,
}

/// A source of checksums of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeafSource {
    /// Its file system is btrfs and keeps them.
    Btrfs,
    /// The tree's process summed the file before, and it has not changed since.
    Kept,
    /// No source has any: the file is read.
    Read,
}

/// The checksums that are available for a file without much work; see
/// [`crate::TreeService::leaf_offer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeafOffer {
    /// The kind to ask for.
    pub kind: LeafKind,
    /// The source that will answer, if the file is left alone meanwhile.
    pub source: LeafSource,
    /// Whether the CRC-32C of each leaf is available as well.
    pub has_crcs: bool,
}

/// The checksums requested of each leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeafRequest {
    /// Checksums of this kind.
    pub kind: LeafKind,
    /// The CRC-32C as well.
    pub with_crcs: bool,
}

impl LeafRequest {
    /// Bytes of the answer for one leaf: its CRC if that was asked for, then its checksum.
    #[must_use]
    pub const fn entry_len(self) -> usize {
        match self.with_crcs {
            true => LEAF_CRC_LEN + LEAF_SUM_LEN,
            false => LEAF_SUM_LEN,
        }
    }
}

/// The answer for a stretch of a file that begins with a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafPiece<'a> {
    /// Leaf after leaf, as [`LeafRequest::entry_len`] says.
    Sums {
        /// Where the first leaf begins.
        offset: u64,
        /// The checksums of these leaves.
        entries: &'a [u8],
    },
    /// A range that reads as zeros: a hole, or space that was never written. It ends with a leaf.
    Zeros(ByteRange),
}

/// How the checksums of a file were come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeavesSummary {
    /// The source of the checksums.
    pub source: LeafSource,
    /// Bytes of the file that were read to compute them, also in vain.
    pub read_bytes: u64,
}
