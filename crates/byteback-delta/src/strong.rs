//! Strong checksums of blocks: equal means equal content.
//!
//! Our own kind is BLAKE3 in its keyed mode. The key comes from a random number drawn by the end
//! that makes the checksums: content crafted to collide without knowing that number does not. Hence
//! checksums may be cut to the length that random collisions require.
//!
//! Why BLAKE3: measured on one core of the development machine, it does 2.0 GB/s on blocks of 4 KiB
//! and 3.0 GB/s on 1 MiB, SHA-256 with SHA instructions 1.2 GB/s; without these instructions
//! SHA-256 falls to a third, while BLAKE3 still uses the vector unit.
//!
//! Other kinds exist because other programs make them. Signatures of librsync have MD4 and BLAKE2b;
//! storage keeps SHA-256 (btrfs, fs-verity) and BLAKE2b (btrfs), without a key, and with a shorter
//! last block padded with zeros. An attacker can make unkeyed checksums collide by finding a
//! collision at their truncated length: as evidence on their own they need [`PROOF_LEN_MIN`] bytes.
//!
//! *Tree kinds* have both advantages: a block's checksum is keyed BLAKE3 over the plain checksums
//! of its 4 KiB pieces ([`crate::leaves`]). Storage can keep these, at full length and without a
//! key, while the checksum made from them for one signature has a key again, so that it may be
//! short.

use md4::Digest;

use crate::crc::LastBlock;
use crate::leaves::{LEAF_LEN_BYTES, Leaf, LeafKind};

/// The kind of a strong checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StrongKind {
    /// BLAKE3, keyed by the signature's seed.
    Blake3,
    /// MD4 (RFC 1320). Broken: the author of both contents can make blocks collide. Only files of
    /// librsync have it.
    Md4,
    /// SHA-256 (FIPS 180-4), without a key.
    Sha256,
    /// SHA-256, with a shorter last block padded with zeros (btrfs, fs-verity without a salt).
    Sha256Padded,
    /// BLAKE2b (RFC 7693) of 256 bits, without a key.
    Blake2b256,
    /// BLAKE2b of 256 bits, with a shorter last block padded with zeros (btrfs).
    Blake2b256Padded,
    /// BLAKE3, keyed by the signature's seed, over the leaves of the block: of its bytes from each
    /// multiple of [`LEAF_LEN_BYTES`] on.
    Tree(LeafKind),
}

/// The longest strong checksum, in bytes.
pub const STRONG_LEN_MAX: usize = 32;

/// The shortest strong checksum, in bytes, that proves blocks equal without comparing their bytes.
/// A collision takes 2^80 attempts.
pub const PROOF_LEN_MIN: usize = 20;

impl StrongKind {
    /// The number that stands for the kind in a signature.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Blake3 => 1,
            Self::Sha256 => 2,
            Self::Sha256Padded => 3,
            Self::Blake2b256 => 4,
            Self::Blake2b256Padded => 5,
            Self::Tree(leaf) => leaf.code(),
            Self::Md4 => 0xf0,
        }
    }

    /// The full length of a checksum, in bytes.
    #[must_use]
    pub const fn len_bytes(self) -> usize {
        match self {
            Self::Md4 => 16,
            Self::Blake3
            | Self::Sha256
            | Self::Sha256Padded
            | Self::Blake2b256
            | Self::Blake2b256Padded
            | Self::Tree(_) => 32,
        }
    }

    /// How a shorter last block is summed.
    #[must_use]
    pub const fn last_block(self) -> LastBlock {
        match self {
            Self::Sha256Padded | Self::Blake2b256Padded => LastBlock::ZeroPadded,
            Self::Blake3 | Self::Sha256 | Self::Blake2b256 | Self::Tree(_) | Self::Md4 => LastBlock::AsItIs,
        }
    }

    /// Whether equal checksums of `len_bytes` prove that blocks are equal.
    #[must_use]
    pub const fn is_proof(self, len_bytes: usize) -> bool {
        !matches!(self, Self::Md4) && len_bytes >= PROOF_LEN_MIN
    }

    /// The kind that a number in one of our own signatures stands for.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Blake3),
            2 => Some(Self::Sha256),
            3 => Some(Self::Sha256Padded),
            4 => Some(Self::Blake2b256),
            5 => Some(Self::Blake2b256Padded),
            _ => match LeafKind::from_code(code) {
                Some(leaf) => Some(Self::Tree(leaf)),
                None => None,
            },
        }
    }

    /// Whether the kind is keyed with a number drawn by the signature's maker.
    #[must_use]
    pub const fn is_keyed(self) -> bool {
        matches!(self, Self::Blake3 | Self::Tree(_))
    }
}

/// The context string that separates these keys from all others derived with BLAKE3.
const KEY_CONTEXT: &str = "byteback 2026-11 strong checksums of a signature's blocks";

/// The context string of tree kinds.
const TREE_KEY_CONTEXT: &str = "byteback 2026-11 strong checksums of a signature's blocks from their leaves";

/// Makes strong checksums of one kind and seed.
#[derive(Clone)]
pub struct StrongHasher {
    kind: StrongKind,
    /// The key, for kinds that have one.
    key: [u8; 32],
    /// The length to which a shorter block is padded with zeros; 0 for no padding.
    padded_len: usize,
}

impl std::fmt::Debug for StrongHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StrongHasher").finish_non_exhaustive()
    }
}

impl StrongHasher {
    /// A hasher without padding, for contents other than a shorter last block of a padded kind.
    #[must_use]
    pub fn new(kind: StrongKind, seed: u64) -> Self {
        Self::for_blocks(kind, seed, 0)
    }

    /// A hasher of blocks of `block_len` bytes; a shorter block is the last one of a content.
    #[must_use]
    pub fn for_blocks(kind: StrongKind, seed: u64, block_len: usize) -> Self {
        let key = match kind {
            StrongKind::Blake3 => blake3::derive_key(KEY_CONTEXT, &seed.to_le_bytes()),
            StrongKind::Tree(_) => blake3::derive_key(TREE_KEY_CONTEXT, &seed.to_le_bytes()),
            _ => [0; 32],
        };
        let padded_len = match kind.last_block() {
            LastBlock::ZeroPadded => block_len,
            LastBlock::AsItIs => 0,
        };
        Self { kind, key, padded_len }
    }

    /// The checksum of a block, at full length; the caller cuts it to the length wanted. Shorter
    /// kinds are padded with zeros.
    #[must_use]
    pub fn of(&self, block: &[u8]) -> [u8; STRONG_LEN_MAX] {
        match self.kind {
            StrongKind::Blake3 => *blake3::keyed_hash(&self.key, block).as_bytes(),
            StrongKind::Tree(kind) => {
                let mut tree = self.tree();
                for block in block.chunks(LEAF_LEN_BYTES as usize) {
                    tree.push(&kind.leaf(block));
                }
                tree.sum()
            }
            StrongKind::Md4 => {
                let mut strong = [0; STRONG_LEN_MAX];
                strong[..16].copy_from_slice(&md4::Md4::digest(block));
                strong
            }
            StrongKind::Sha256 | StrongKind::Sha256Padded => self.padded::<sha2::Sha256>(block).into(),
            StrongKind::Blake2b256 | StrongKind::Blake2b256Padded => self.padded::<blake2::Blake2b256>(block).into(),
        }
    }

    /// A hasher that makes a block's checksum of a tree kind from its leaves, in order.
    pub(crate) fn tree(&self) -> TreeHasher {
        TreeHasher {
            key: self.key,
            few: [0; FEW_LEN],
            few_len: 0,
            many: None,
        }
    }

    /// The checksum of a block and its padding.
    fn padded<D: Digest>(&self, block: &[u8]) -> md4::digest::Output<D> {
        const ZEROS: [u8; 4096] = [0; 4096];
        let mut digest = D::new();
        digest.update(block);
        let mut left = self.padded_len.saturating_sub(block.len());
        while left > 0 {
            let now = left.min(ZEROS.len());
            digest.update(&ZEROS[..now]);
            left -= now;
        }
        digest.finalize()
    }
}

/// The number of bytes of leaves hashed at once: one chunk of BLAKE3, which needs no tree inside
/// BLAKE3.
const FEW_LEN: usize = 1024;

/// Combines the leaves of a block into a checksum.
///
/// Most blocks have few leaves, whose checksum is one call that works in registers. A hasher for
/// any number of leaves has two kilobytes of state, whose set-up takes longer than that call.
pub(crate) struct TreeHasher {
    key: [u8; 32],
    few: [u8; FEW_LEN],
    few_len: usize,
    /// The hash of the leaves before those in `few`, if there are any.
    many: Option<Box<blake3::Hasher>>,
}

impl TreeHasher {
    /// Adds the next leaf.
    pub(crate) fn push(&mut self, leaf: &Leaf) {
        if self.few_len == FEW_LEN {
            self.many
                .get_or_insert_with(|| Box::new(blake3::Hasher::new_keyed(&self.key)))
                .update(&self.few);
            self.few_len = 0;
        }
        let end = self.few_len + leaf.len();
        self.few[self.few_len..end].copy_from_slice(leaf);
        self.few_len = end;
    }

    /// The checksum of the leaves added; the hasher then begins the next block.
    pub(crate) fn sum(&mut self) -> [u8; STRONG_LEN_MAX] {
        let few = &self.few[..self.few_len];
        self.few_len = 0;
        match self.many.take() {
            None => *blake3::keyed_hash(&self.key, few).as_bytes(),
            Some(mut many) => *many.update(few).finalize().as_bytes(),
        }
    }

    /// Discards the leaves added.
    pub(crate) fn restart(&mut self) {
        self.few_len = 0;
        self.many = None;
    }
}

#[cfg(test)]
mod tests;
