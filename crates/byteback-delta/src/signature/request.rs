//! What one end wants a signature to be, and what the other end makes of it (SkySync, section
//! 3.3.1: block size and kinds of checksums are negotiated in the first request).
//!
//! Who asks names kinds in the order in which it prefers them, the best ones being those that its
//! storage has. Who answers takes the first that it can make, and says in the signature's header
//! what it took. Names that it does not know are passed over, so that newer kinds can be asked of
//! older servers.

use super::{BLOCK_LEN_MAX, STRONG_LEN_MIN, SignatureParams};
use crate::leaves::{LEAF_LEN_BYTES, LeafKind};
use crate::strong::{PROOF_LEN_MIN, STRONG_LEN_MAX, StrongKind};
use crate::weak::WeakKind;

/// The kinds that have a name, by which they are asked for.
const WEAK_NAMES: [(WeakKind, &str); 5] = [
    (WeakKind::Rsync, "rolling"),
    (WeakKind::Crc32c, "crc32c"),
    (WeakKind::Crc32cPadded, "crc32c-padded"),
    (WeakKind::Crc32, "crc32"),
    (WeakKind::Crc32Padded, "crc32-padded"),
];

const STRONG_NAMES: [(StrongKind, &str); 8] = [
    (StrongKind::Blake3, "blake3-keyed"),
    (StrongKind::Sha256, "sha256"),
    (StrongKind::Sha256Padded, "sha256-padded"),
    (StrongKind::Blake2b256, "blake2b256"),
    (StrongKind::Blake2b256Padded, "blake2b256-padded"),
    (StrongKind::Tree(LeafKind::Sha256), "tree-sha256"),
    (StrongKind::Tree(LeafKind::Blake2b256), "tree-blake2b256"),
    (StrongKind::Tree(LeafKind::Blake3), "tree-blake3"),
];

impl WeakKind {
    /// Its name in requests; `None` if only files of librsync have it.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        let found = WEAK_NAMES.iter().find(|(kind, _)| *kind == self);
        found.map(|(_, name)| *name)
    }

    /// The kind of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let found = WEAK_NAMES.iter().find(|(_, known)| *known == name);
        found.map(|(kind, _)| *kind)
    }
}

impl StrongKind {
    /// Its name in requests; `None` if only files of librsync have it.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        let found = STRONG_NAMES.iter().find(|(kind, _)| *kind == self);
        found.map(|(_, name)| *name)
    }

    /// The kind of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let found = STRONG_NAMES.iter().find(|(_, known)| *known == name);
        found.map(|(kind, _)| *kind)
    }
}

/// What a signature is wanted to be. The default leaves all to who makes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignatureRequest {
    /// Length of a block in bytes; of tree kinds it is rounded up to whole leaves. `None`: as rsync
    /// chooses it.
    pub block_len_bytes: Option<u32>,
    /// Kinds of weak checksums, the preferred one first. Empty: rsync's.
    pub weak: Vec<WeakKind>,
    /// Kinds of strong checksums, the preferred one first. Empty: keyed BLAKE3.
    pub strong: Vec<StrongKind>,
    /// To how many bytes strong checksums are cut. `None`: as short as chance allows; without a
    /// key, as short as a proof may be.
    pub strong_len_bytes: Option<u8>,
}

/// A request names kinds, but none that this program makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "none of the kinds of {which} checksums that were asked for is known here: add 'rolling' or 'blake3-keyed' to the list"
)]
pub struct NoCommonKind {
    /// `weak` or `strong`.
    pub which: &'static str,
}

impl SignatureRequest {
    /// Adds the kinds of weak checksums that a comma list names; unknown names are passed over.
    ///
    /// # Errors
    /// If none is known.
    pub fn prefer_weak(&mut self, names: &str) -> Result<(), NoCommonKind> {
        self.weak.extend(names.split(',').filter_map(WeakKind::from_name));
        (!self.weak.is_empty())
            .then_some(())
            .ok_or(NoCommonKind { which: "weak" })
    }

    /// Adds the kinds of strong checksums that a comma list names; unknown names are passed over.
    ///
    /// # Errors
    /// If none is known.
    pub fn prefer_strong(&mut self, names: &str) -> Result<(), NoCommonKind> {
        self.strong.extend(names.split(',').filter_map(StrongKind::from_name));
        (!self.strong.is_empty())
            .then_some(())
            .ok_or(NoCommonKind { which: "strong" })
    }

    /// The kinds of weak checksums as a comma list; `None` if it is left to who makes the
    /// signature.
    #[must_use]
    pub fn weak_names(&self) -> Option<String> {
        names(self.weak.iter().map(|kind| kind.name()))
    }

    /// The kinds of strong checksums as a comma list; `None` if it is left to who makes the
    /// signature.
    #[must_use]
    pub fn strong_names(&self) -> Option<String> {
        names(self.strong.iter().map(|kind| kind.name()))
    }

    /// How a content of so many bytes is cut and summed: the first kinds that were asked for, and
    /// lengths that are possible. `seed` is to be drawn at random.
    #[must_use]
    pub fn params(&self, len_bytes: u64, seed: u64) -> SignatureParams {
        let weak = self.weak.first().copied().unwrap_or(WeakKind::Rsync);
        let strong = self.strong.first().copied().unwrap_or(StrongKind::Blake3);
        let mut block_len = match self.block_len_bytes {
            Some(block_len) => block_len.clamp(1, BLOCK_LEN_MAX),
            None => SignatureParams::for_content(len_bytes, seed).block_len_bytes,
        };
        if let StrongKind::Tree(_) = strong {
            // The longest block is made of whole leaves.
            block_len = block_len.next_multiple_of(LEAF_LEN_BYTES);
        }
        let chosen = SignatureParams::with_block_len(len_bytes, block_len, seed);
        let strong_len = match self.strong_len_bytes {
            Some(wanted) => wanted,
            None if strong.is_keyed() => chosen.strong_len_bytes,
            // 20.
            None => chosen.strong_len_bytes.max(PROOF_LEN_MIN as u8),
        };
        SignatureParams {
            weak,
            strong,
            // At most 32.
            strong_len_bytes: strong_len.clamp(STRONG_LEN_MIN, STRONG_LEN_MAX as u8),
            ..chosen
        }
    }
}

fn names(names: impl Iterator<Item = Option<&'static str>>) -> Option<String> {
    let names: Vec<&str> = names.flatten().collect();
    (!names.is_empty()).then(|| names.join(","))
}

const _: () = assert!(BLOCK_LEN_MAX.is_multiple_of(LEAF_LEN_BYTES));

#[cfg(test)]
mod tests;
