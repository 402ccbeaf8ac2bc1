//! Checksums of a file's leaves at a cut: those that exist already, and those of what had to be
//! read because none did.
//!
//! A *leaf* is [`LEAF_LEN_BYTES`] of a file, at a multiple of that; the last one of a file is as
//! short as it is. The tree's process knows who keeps checksums of a file (its file system, or
//! itself) and whether they are of what the file held at the cut. Whoever asks gets a checksum of
//! each leaf, ascending, and never learns from whom but in the end, together with how much had to
//! be read for it.
//!
//! **What counts.** All that was told, and only when the call has returned without an error. If a
//! file turns out to have changed while its checksums were fetched, the telling begins anew: a
//! piece at offset 0 that is not the first makes void what came before it.

use byteback_extents::ByteRange;
use serde::{Deserialize, Serialize};

/// Bytes of a leaf; the last one of a file may be shorter.
pub const LEAF_LEN_BYTES: u64 = 4096;

/// Bytes of the checksum of a leaf, of each kind.
pub const LEAF_SUM_LEN: usize = 32;

/// Bytes of the CRC-32C of a leaf, little-endian.
pub const LEAF_CRC_LEN: usize = 4;

/// Which function the checksums of leaves are, without a key.
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

/// Who has checksums of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeafSource {
    /// Its file system is btrfs and keeps them.
    Btrfs,
    /// The tree's process summed the file before, and it has not changed since.
    Kept,
    /// Nobody: the file is read.
    Read,
}

/// What can be told of a file without much work; see [`crate::TreeService::leaf_offer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeafOffer {
    /// The kind to ask for.
    pub kind: LeafKind,
    /// Who will answer, if the file is left alone meanwhile.
    pub source: LeafSource,
    /// Whether the CRC-32C of each leaf can be told as well.
    pub has_crcs: bool,
}

/// What is asked for of each leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeafRequest {
    /// Checksums of this kind.
    pub kind: LeafKind,
    /// The CRC-32C as well.
    pub with_crcs: bool,
}

impl LeafRequest {
    /// Bytes of what is told of one leaf: its CRC if that was asked for, then its checksum.
    #[must_use]
    pub const fn entry_len(self) -> usize {
        match self.with_crcs {
            true => LEAF_CRC_LEN + LEAF_SUM_LEN,
            false => LEAF_SUM_LEN,
        }
    }
}

/// What is told of a stretch of a file that begins with a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafPiece<'a> {
    /// Leaf after leaf, as [`LeafRequest::entry_len`] says.
    Sums {
        /// Where the first leaf begins.
        offset: u64,
        /// What is told of them.
        entries: &'a [u8],
    },
    /// It reads as zeros: a hole, or space that nothing was written to. It ends with a leaf.
    Zeros(ByteRange),
}

/// How the checksums of a file were come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeavesTold {
    /// Who had them.
    pub source: LeafSource,
    /// Bytes of the file that were read to tell them, also in vain.
    pub read_bytes: u64,
}
