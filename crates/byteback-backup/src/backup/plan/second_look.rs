//! When what a finder left is looked for once more, in short blocks of an excerpt of the server's
//! version (`byteback_delta::excerpt`).
//!
//! A plain function of what is left, by two accounts. *Bytes*: the list of the excerpt's ranges and
//! its signature have to be less than the literals that are expected to be saved. *Time*: a second
//! look waits for a round trip. Where the cost model ([`super::cost`]) finds that it pays, it has
//! one; where it does not, bytes are saved all the same as long as nobody notices the time
//! ([`PATIENCE_NS`] in one batch). Looks that found next to nothing, one after the other, are the
//! last ones of a batch.

use super::cost::{Conditions, EXCERPT_ENTRY_LEN, is_second_look_fast, second_look_bytes, second_look_wait_ns};

/// Time that a batch may wait for answers which save bytes but no time.
const PATIENCE_NS: u64 = 500_000_000;

/// Looks in vain, one after the other, after which there are no more.
const VAIN_MAX: u32 = 16;

/// A look is in vain if it finds no more than one byte of this many.
const VAIN_SHARE: u64 = 16;

/// Bounds of a block.
const BLOCK_LEN_MIN: u64 = 64;
const BLOCK_LEN_MAX: u64 = 1024;

/// The second looks of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backup) struct SecondLooks {
    patience_ns: u64,
    in_vain: u32,
}

impl Default for SecondLooks {
    fn default() -> Self {
        Self {
            patience_ns: PATIENCE_NS,
            in_vain: 0,
        }
    }
}

impl SecondLooks {
    /// The length of the blocks in which to look for `literal_bytes` that are left in this number
    /// of gaps; `None` if it is not worth it.
    pub(in crate::backup) fn begin(&mut self, literal_bytes: u64, gaps: usize, conditions: &Conditions) -> Option<u32> {
        if gaps == 0 || self.in_vain >= VAIN_MAX {
            return None;
        }
        let block_len = block_len(literal_bytes, gaps);
        let bytes = second_look_bytes(literal_bytes, gaps, block_len);
        if bytes.asked >= bytes.saved {
            return None;
        }
        if !is_second_look_fast(literal_bytes, &bytes, conditions) {
            self.patience_ns = self.patience_ns.checked_sub(second_look_wait_ns(conditions))?;
        }
        // At most 1024.
        Some(block_len as u32)
    }

    /// Notes the result of a look for this number of bytes.
    pub(in crate::backup) fn end(&mut self, literal_bytes: u64, found_bytes: u64) {
        self.in_vain = match found_bytes > literal_bytes / VAIN_SHARE {
            true => 0,
            false => self.in_vain.saturating_add(1),
        };
    }
}

/// The length at which a block for each gap, which is sent, and the signature, of which each byte
/// counts as one byte down, cost least together.
fn block_len(literal_bytes: u64, gaps: usize) -> u64 {
    let gaps = u64::try_from(gaps).unwrap_or(u64::MAX).max(1);
    let signature_len = literal_bytes.saturating_mul(EXCERPT_ENTRY_LEN) / 4;
    let least = (signature_len / gaps).isqrt();
    least.clamp(BLOCK_LEN_MIN, BLOCK_LEN_MAX).next_power_of_two()
}

#[cfg(test)]
mod tests;
