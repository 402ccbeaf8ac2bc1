//! Leaves: checksums of 4 KiB blocks as storage keeps them, and the checksums that follow from them
//! without the bytes.
//!
//! A content is cut at every multiple of [`LEAF_LEN_BYTES`]; the *leaf* of a block is its plain
//! checksum of 32 bytes, of one of three kinds ([`LeafKind`]). A shorter last block is never
//! padded. (btrfs pads it: its checksum of a shorter last block is no leaf, and that block is
//! summed from its bytes.)
//!
//! - [`LeafBlocks`]: makes, from the leaves and CRCs of a content, the checksums of the longer
//!   blocks of a signature of a *tree* kind ([`crate::strong::StrongKind::Tree`]). So both ends of
//!   a signature can derive its checksums from those that storage keeps, while blocks are as long,
//!   and checksums as short, as suits the wire.
//! - [`TreeSums`]: collects the same checksums for [`crate::find::find_sky`].
//! - [`LeafDigest`]: a digest of the whole content, from its leaves. By it one end proves the
//!   content that the other end composed, as by [`crate::ContentDigest`]; each end reads only the
//!   bytes whose leaves it does not know. The digest is made of the sums of groups of leaves, which
//!   are compared before anything else ([`crate::groups`]).
//!
//! A leaf has no key and is never cut, so that it can be kept and is worth as much as the bytes:
//! two blocks with the same leaf would break SHA-256, BLAKE2b or BLAKE3. A leaf does not show
//! whether it belongs to the intended bytes: a store of leaves documents what binds them to their
//! bytes.

mod blocks;
mod digest;

use md4::Digest;

pub use blocks::{LeafBlock, LeafBlocks, TreeSums};
pub use digest::{GROUP_LEAVES, GROUP_LEN_BYTES, GroupSum, LeafDigest, group_sum};

/// The length of a block under a leaf, in bytes.
pub const LEAF_LEN_BYTES: u32 = 4096;

/// The checksum of a block of up to [`LEAF_LEN_BYTES`].
pub type Leaf = [u8; 32];

/// The kind of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LeafKind {
    /// SHA-256 (btrfs).
    Sha256,
    /// BLAKE2b of 256 bits, without a key (btrfs).
    Blake2b256,
    /// BLAKE3, without a key: the fastest kind where storage keeps none.
    Blake3,
}

impl LeafKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Sha256, Self::Blake2b256, Self::Blake3];

    /// The number that stands for the kind, and for its tree kind in a signature.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Sha256 => 6,
            Self::Blake2b256 => 7,
            Self::Blake3 => 8,
        }
    }

    /// The kind that a number stands for.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            6 => Some(Self::Sha256),
            7 => Some(Self::Blake2b256),
            8 => Some(Self::Blake3),
            _ => None,
        }
    }

    /// The kind's name in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Blake2b256 => "blake2b256",
            Self::Blake3 => "blake3",
        }
    }

    /// The kind of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The leaf of a block, which has 1 to [`LEAF_LEN_BYTES`] bytes.
    #[must_use]
    pub fn leaf(self, block: &[u8]) -> Leaf {
        match self {
            Self::Sha256 => sha2::Sha256::digest(block).into(),
            Self::Blake2b256 => blake2::Blake2b256::digest(block).into(),
            Self::Blake3 => *blake3::hash(block).as_bytes(),
        }
    }

    /// The leaf of a block of `len_bytes` zeros, at most [`LEAF_LEN_BYTES`].
    #[must_use]
    pub fn leaf_of_zeros(self, len_bytes: u32) -> Leaf {
        self.leaf(&ZEROS[..len_bytes.min(LEAF_LEN_BYTES) as usize])
    }
}

/// A block of zeros.
pub(crate) const ZEROS: [u8; LEAF_LEN_BYTES as usize] = [0; LEAF_LEN_BYTES as usize];

/// The number of leaves of a content.
#[must_use]
pub const fn leaf_count(content_len_bytes: u64) -> u64 {
    content_len_bytes.div_ceil(LEAF_LEN_BYTES as u64)
}

/// The length of the block under a leaf; 0 if the content has no such block.
#[must_use]
pub const fn leaf_len_bytes(content_len_bytes: u64, leaf: u64) -> u32 {
    let left = content_len_bytes.saturating_sub(leaf.saturating_mul(LEAF_LEN_BYTES as u64));
    if left < LEAF_LEN_BYTES as u64 {
        // Less than a leaf, which fits.
        left as u32
    } else {
        LEAF_LEN_BYTES
    }
}

#[cfg(test)]
mod tests;
