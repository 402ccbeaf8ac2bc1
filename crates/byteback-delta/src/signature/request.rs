//! The wishes of one end for a signature, and the other end's choice from them (SkySync, section
//! 3.3.1: block size and kinds of checksums are negotiated in the first request).
//!
//! The requester names kinds in order of preference, the best ones being those that its storage
//! keeps. The responder takes the first kind that it can make, and records its choice in the
//! signature's header. Unknown names are skipped, so that newer kinds can be requested from older
//! servers.

use byteback_extents::ByteRange;

use super::{BLOCK_LEN_MAX, STRONG_LEN_MIN, SignatureParams};
use crate::leaves::{LEAF_LEN_BYTES, LeafKind};
use crate::strong::{PROOF_LEN_MIN, STRONG_LEN_MAX, StrongKind};
use crate::weak::WeakKind;

/// The kinds that can be requested, with their names.
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
    /// The kind's name in requests; `None` if only files of librsync have it.
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
    /// The kind's name in requests; `None` if only files of librsync have it.
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

/// A request for a signature. The default leaves all choices to the responder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignatureRequest {
    /// The length of a block in bytes; for tree kinds it is rounded up to whole leaves. `None`:
    /// rsync's choice.
    pub block_len_bytes: Option<u32>,
    /// Kinds of weak checksums, the preferred one first. Empty: rsync's.
    pub weak: Vec<WeakKind>,
    /// Kinds of strong checksums, the preferred one first. Empty: keyed BLAKE3.
    pub strong: Vec<StrongKind>,
    /// The length in bytes to which strong checksums are cut. `None`: as short as random collisions
    /// allow or, for unkeyed kinds, at least as long as a proof.
    pub strong_len_bytes: Option<u8>,
    /// The part of the content that the signature is of, as if that part were all; it is cut at the
    /// content's end. `None`: all of it.
    pub part: Option<ByteRange>,
}

/// A request names kinds, but none that this program can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("none of the requested kinds of {which} checksums is supported; add 'rolling' or 'blake3-keyed' to the list")]
pub struct NoCommonKind {
    /// `weak` or `strong`.
    pub which: &'static str,
}

impl SignatureRequest {
    /// Adds the kinds of weak checksums named in a comma-separated list; unknown names are skipped.
    ///
    /// # Errors
    /// If none is known.
    pub fn prefer_weak(&mut self, names: &str) -> Result<(), NoCommonKind> {
        self.weak.extend(names.split(',').filter_map(WeakKind::from_name));
        (!self.weak.is_empty())
            .then_some(())
            .ok_or(NoCommonKind { which: "weak" })
    }

    /// Adds the kinds of strong checksums named in a comma-separated list; unknown names are
    /// skipped.
    ///
    /// # Errors
    /// If none is known.
    pub fn prefer_strong(&mut self, names: &str) -> Result<(), NoCommonKind> {
        self.strong.extend(names.split(',').filter_map(StrongKind::from_name));
        (!self.strong.is_empty())
            .then_some(())
            .ok_or(NoCommonKind { which: "strong" })
    }

    /// The kinds of weak checksums as a comma-separated list; `None` if the responder chooses.
    #[must_use]
    pub fn weak_names(&self) -> Option<String> {
        names(self.weak.iter().map(|kind| kind.name()))
    }

    /// The kinds of strong checksums as a comma-separated list; `None` if the responder chooses.
    #[must_use]
    pub fn strong_names(&self) -> Option<String> {
        names(self.strong.iter().map(|kind| kind.name()))
    }

    /// The parameters for a content of `len_bytes`: the first kinds requested, and lengths clamped
    /// to the possible range. `seed` must be drawn at random.
    #[must_use]
    pub fn params(&self, len_bytes: u64, seed: u64) -> SignatureParams {
        let weak = self.weak.first().copied().unwrap_or(WeakKind::Rsync);
        let strong = self.strong.first().copied().unwrap_or(StrongKind::Blake3);
        let mut block_len = match self.block_len_bytes {
            Some(block_len) => block_len.clamp(1, BLOCK_LEN_MAX),
            None => SignatureParams::for_content(len_bytes, seed).block_len_bytes,
        };
        if let StrongKind::Tree(_) = strong {
            // The longest block consists of whole leaves, so this stays within it.
            block_len = block_len.next_multiple_of(LEAF_LEN_BYTES);
        }
        let chosen = SignatureParams::with_block_len(len_bytes, block_len, seed);
        let strong_len = match self.strong_len_bytes {
            Some(wanted) => wanted,
            None if strong.is_keyed() => chosen.strong_len_bytes,
            // 20 fits.
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
