//! Leaves: checksums of 4 KiB blocks as storage keeps them, and what follows from them without the
//! bytes.
//!
//! A content is cut at every multiple of [`LEAF_LEN_BYTES`]; the *leaf* of a block is its plain
//! checksum of 32 bytes, of one of three kinds ([`LeafKind`]). The last block is as short as it is;
//! it is never padded. (btrfs pads it: its checksum of a shorter last block is no leaf, and that
//! block is summed from its bytes.)
//!
//! - [`LeafBlocks`]: from the leaves and CRCs of a content, those of the longer blocks of a
//!   signature of a *tree* kind ([`crate::strong::StrongKind::Tree`]). So both ends of a signature
//!   can take its checksums from what storage has, while blocks are as long, and checksums as
//!   short, as suits the wire.
//! - [`TreeSums`]: the same, collected for [`crate::find::find_sky`].
//! - [`LeafDigest`]: a digest of the whole content, from its leaves. It proves at one end what was
//!   composed at the other, as [`crate::ContentDigest`] does, and costs each end the bytes whose
//!   leaves it does not know. The sums of groups of leaves that it is made of are compared before
//!   anything else is ([`crate::groups`]).
//!
//! A leaf has no key and is never cut, so that it can be kept and is worth as much as the bytes:
//! who finds two contents with one leaf has broken SHA-256, BLAKE2b or BLAKE3. Whether a leaf *is*
//! of the bytes that are meant nobody can see by looking at it: whoever keeps leaves says what
//! binds them to their bytes.

mod blocks;
mod digest;

use md4::Digest;

pub use blocks::{LeafBlock, LeafBlocks, TreeSums};
pub use digest::{GROUP_LEAVES, GROUP_LEN_BYTES, GroupSum, LeafDigest, group_sum};

/// Length of a block that has a leaf, in bytes.
pub const LEAF_LEN_BYTES: u32 = 4096;

/// The checksum of a block of up to [`LEAF_LEN_BYTES`].
pub type Leaf = [u8; 32];

/// How leaves are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LeafKind {
    /// SHA-256 (btrfs).
    Sha256,
    /// BLAKE2b of 256 bits, without a key (btrfs).
    Blake2b256,
    /// BLAKE3, without a key: the fastest where nothing is kept.
    Blake3,
}

impl LeafKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Sha256, Self::Blake2b256, Self::Blake3];

    /// The number that stands for it; that of its tree kind in a signature, too.
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

    /// Its name in messages.
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

    /// The leaf of a block of so many zeros, at most [`LEAF_LEN_BYTES`].
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
