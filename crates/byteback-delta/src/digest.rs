//! The digest of a whole content, which proves that the content composed at one end equals the one
//! at the other end.
//!
//! Two levels: each MiB of the content (the last piece may be shorter) has a BLAKE3 checksum, a
//! *leaf*; the digest is the BLAKE3 checksum of the content's length and all leaves. So a hole
//! costs a constant per MiB instead of hashing zeros, and the digest does not depend on which holes
//! either end knows of or how the content is stored.
//!
//! ```text
//! digest = BLAKE3-derive(CONTEXT, len u64 LE | leaf*)
//! leaf = BLAKE3(up to 1 MiB of the content)
//! ```

/// The length of a digest, in bytes.
pub const DIGEST_LEN: usize = 32;

/// The number of bytes of the content under a leaf.
const LEAF_LEN: u64 = 1 << 20;

/// The context string that separates these digests from all other uses of BLAKE3.
const CONTEXT: &str = "byteback 2026-11 digest of a whole content";

/// Zeros, which are hashed in pieces of this length where they do not fill a leaf.
const ZEROS: [u8; 16 * 1024] = [0; 16 * 1024];

/// Computes the digest of a content that arrives in order, from its first byte to its last.
#[derive(Clone, Debug)]
pub struct ContentDigest {
    root: blake3::Hasher,
    leaf: blake3::Hasher,
    /// The number of bytes in `leaf`.
    filled: u64,
    announced: u64,
    len: u64,
    /// The checksum of an all-zero leaf, once one was needed.
    zero_leaf: Option<[u8; 32]>,
}

impl ContentDigest {
    /// Begins the digest of a content of `len_bytes`.
    #[must_use]
    pub fn new(len_bytes: u64) -> Self {
        let mut root = blake3::Hasher::new_derive_key(CONTEXT);
        root.update(&len_bytes.to_le_bytes());
        Self {
            root,
            leaf: blake3::Hasher::new(),
            filled: 0,
            announced: len_bytes,
            len: 0,
            zero_leaf: None,
        }
    }

    /// Adds the next bytes.
    pub fn push(&mut self, mut bytes: &[u8]) {
        self.len = self.len.saturating_add(bytes.len() as u64);
        while !bytes.is_empty() {
            let room = (LEAF_LEN - self.filled) as usize;
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.leaf.update(now);
            self.filled += now.len() as u64;
            if self.filled == LEAF_LEN {
                self.end_leaf();
            }
            bytes = later;
        }
    }

    /// Adds `len_bytes` zeros.
    pub fn push_zeros(&mut self, mut len_bytes: u64) {
        while len_bytes > 0 {
            if self.filled == 0 && len_bytes >= LEAF_LEN {
                let leaf = *self
                    .zero_leaf
                    .get_or_insert_with(|| *blake3::hash(&vec![0; LEAF_LEN as usize]).as_bytes());
                let leaves = len_bytes / LEAF_LEN;
                for _ in 0..leaves {
                    self.root.update(&leaf);
                }
                self.len = self.len.saturating_add(leaves * LEAF_LEN);
                len_bytes -= leaves * LEAF_LEN;
                continue;
            }
            let now = len_bytes.min(LEAF_LEN - self.filled).min(ZEROS.len() as u64);
            self.push(&ZEROS[..now as usize]);
            len_bytes -= now;
        }
    }

    /// The number of bytes added so far.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len
    }

    /// The digest; `None` if the number of bytes added is not the announced one.
    #[must_use]
    pub fn finish(mut self) -> Option<[u8; DIGEST_LEN]> {
        if self.len != self.announced {
            return None;
        }
        if self.filled > 0 {
            self.end_leaf();
        }
        Some(*self.root.finalize().as_bytes())
    }

    fn end_leaf(&mut self) {
        self.root.update(self.leaf.finalize().as_bytes());
        self.leaf.reset();
        self.filled = 0;
    }
}

#[cfg(test)]
mod tests;
