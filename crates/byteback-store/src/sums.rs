//! Checksums of 4 KiB blocks that the store keeps, so that the cost of signatures and proofs
//! follows the change and not the contents.
//!
//! Of a file's newest contents, CRC-32C and leaf (`byteback_delta::leaves`) of each 4 KiB are kept
//! in the catalog, one row for each MiB (a *chunk*). The first signature or proof that needs them
//! makes them; writing costs nothing. They are a cache: missing, damaged or outdated sums are made
//! again from the bytes; the sums of the least recently used file go when there are too many.
//!
//! *The binding of a sum to its bytes.* Each chunk lists where its bytes lay when they were summed:
//! frames in segments, places in them, zeros. Frames never change, and a number that the catalog
//! ever referred to is never used for another segment. A reader that needs the sums of a version
//! resolves its layers anyway, sees where *its* bytes lie, and takes the leaves of which every byte
//! lies in the same place ([`chunk::KeptChunk::unchanged`]); the others are read and summed. So no
//! claim about versions is trusted ("these sums are of layer 7", "nothing changed since"): sums of
//! another version, of a file that was set back, of a batch that came in between, of two requests
//! that kept at the same time are all valid for exactly those leaves that are the same bytes.
//! Merged runs name the same frames as the layers that they were made of.
//!
//! That matters because a kept leaf can vouch for itself: a signature says "equal" by it, the
//! client leaves the block out, and the proof by sums takes the very same leaf for the client's
//! content. Hence also:
//! - Rows are written only for contents whose frames the catalog refers to: those of a batch that
//!   is being proven wait until it is committed ([`keep::KeptRows`]). A frame of a batch that
//!   failed may lie in a segment whose number is used again after a crash.
//! - A row's checksum covers its key. A row that does not decode counts as missing.
//! - [`Store::verify`](crate::store::Store::verify) reads the bytes and compares; sums that
//!   disagree are reported and thrown away (`audit`).
//!
//! A sum that is wrong at random (memory failed while it was made) matches no client's leaf: either
//! the client finds the block changed and sends it, so that it is summed again, or a proof
//! disagrees, which throws the file's sums away.
//!
//! Not excluded: bytes that were summed correctly and rot later. Their frames have checksums;
//! reading finds the damage, as it does for bytes that no signature ever covered.
//!
//! | module | purpose |
//! |---|---|
//! | `chunk` | a row: its bytes, and which of its leaves still hold |
//! | `leaves` | leaves from bytes |
//! | `reader` | the leaves of one content in order, kept or made |
//! | `keep` | writes rows, bounds them |
//! | `audit` | compares rows with bytes |

pub(crate) mod audit;
pub(crate) mod chunk;
pub(crate) mod keep;
mod leaves;
pub(crate) mod reader;

use byteback_delta::leaves::{GROUP_LEAVES, LEAF_LEN_BYTES};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of contents that one row covers.
pub(crate) const CHUNK_LEN: u64 = GROUP_LEAVES * LEAF_LEN_BYTES as u64;

/// Shortest contents whose sums are kept, in bytes: reading shorter ones costs less than looking
/// rows up and writing them.
pub(crate) const KEPT_LEN_MIN: u64 = 256 * 1024;

/// Cost of signatures and proofs since the store was opened, in bytes of contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SumsCost {
    /// Read for signatures.
    pub signature_read_bytes: u64,
    /// Not read for signatures, because their checksums were kept or they are zeros.
    pub signature_unread_bytes: u64,
    /// Read for proofs.
    pub proof_read_bytes: u64,
    /// Not read for proofs, because their checksums were kept or they are zeros.
    pub proof_unread_bytes: u64,
}

/// The purpose for which contents are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Signature,
    Proof,
}

/// Counts [`SumsCost`].
#[derive(Debug, Default)]
pub(crate) struct SumsWork {
    read: [AtomicU64; 2],
    unread: [AtomicU64; 2],
}

impl SumsWork {
    pub(crate) fn add(&self, purpose: Purpose, read_bytes: u64, unread_bytes: u64) {
        let index = purpose as usize;
        for (counters, by) in [(&self.read, read_bytes), (&self.unread, unread_bytes)] {
            if let Some(counter) = counters.get(index) {
                counter.fetch_add(by, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn cost(&self) -> SumsCost {
        let [signature_read_bytes, proof_read_bytes] =
            self.read.each_ref().map(|counter| counter.load(Ordering::Relaxed));
        let [signature_unread_bytes, proof_unread_bytes] =
            self.unread.each_ref().map(|counter| counter.load(Ordering::Relaxed));
        SumsCost {
            signature_read_bytes,
            signature_unread_bytes,
            proof_read_bytes,
            proof_unread_bytes,
        }
    }
}

#[cfg(test)]
mod tests;
