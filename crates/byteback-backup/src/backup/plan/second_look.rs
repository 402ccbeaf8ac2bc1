//! When what a finder left is looked for once more, in short blocks of an excerpt of the server's
//! version (`byteback_delta::excerpt`), and in how short ones.
//!
//! *Rounds.* Where an excerpt is long, the first round looks into a sample of it: mostly, bytes
//! that are left of long contents are new. Each round has blocks of a quarter of the length of
//! those before, and looks for the rest, in what is left of the server's version: long blocks find
//! most for little, and short ones cost little where little is left. At last, the unused part of
//! the server's version comes as it is, and is compared: bytes from the server cost a part of those
//! to it, and a comparison leaves the changed bytes alone. A round that finds next to nothing is
//! the last one.
//!
//! A plain function of what is left, by two accounts. *Bytes*: the list of the excerpt's ranges and
//! its signature have to be less than the literals that are expected to be saved. *Time*: a round
//! waits for a round trip. Where the cost model ([`super::cost`]) finds that it pays, there is one;
//! where it does not, bytes are saved all the same as long as nobody notices the time
//! ([`PATIENCE_NS`] in one batch). Looks whose first round found next to nothing, one after the
//! other, are the last ones of a batch.

use super::LOOKED_UP_LEN_MIN;
use super::cost::{
    Conditions, EXCERPT_ENTRY_LEN, SecondLookBytes, comparison_bytes, is_second_look_fast, second_look_bytes,
    second_look_wait_ns, whole_version_bytes,
};
use byteback_delta::leaves::LEAF_LEN_BYTES;

/// Time that a batch may wait for answers which save bytes but no time.
const PATIENCE_NS: u64 = 500_000_000;

/// Looks in vain, one after the other, after which there are no more.
const VAIN_MAX: u32 = 16;

/// Looks in the sums of whole versions in vain, one after the other, after which there are no more.
const WHOLE_VERSIONS_VAIN_MAX: u32 = 4;

/// A look is in vain if it finds no more than one byte of this many.
const VAIN_SHARE: u64 = 16;

/// Bounds of a block.
const BLOCK_LEN_MIN: u32 = 64;
const BLOCK_LEN_MAX: u32 = 1024;

/// The blocks of a round are longer than those of the next one by this factor.
const FINER_BY: u32 = 4;

/// The longest blocks in which literals are looked for all over the server's version.
const WHOLE_VERSION_BLOCK_LEN_MAX: u64 = 32 << 10;

/// A sample is looked into before an excerpt of at least this many bytes.
pub(in crate::backup) const SAMPLED_LEN_MIN: u64 = 1 << 20;

/// A sample is one byte of this many.
pub(in crate::backup) const SAMPLE_SHARE: u64 = 16;

/// After blocks of at most this length, what is left is compared.
const COMPARED_AFTER_LEN: u32 = 256;

/// The longest gap that is compared, in blocks that were looked for before.
const COMPARED_BLOCKS_MAX: u64 = 16;

/// The second looks of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backup) struct SecondLooks {
    patience_ns: u64,
    in_vain: u32,
    whole_versions_in_vain: u32,
}

impl Default for SecondLooks {
    fn default() -> Self {
        Self {
            patience_ns: PATIENCE_NS,
            in_vain: 0,
            whole_versions_in_vain: 0,
        }
    }
}

/// The literals that are left to be looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backup) struct Left {
    pub(in crate::backup) literal_bytes: u64,
    /// The number of gaps that they lie in.
    pub(in crate::backup) gaps: usize,
}

/// A way to look for what is left in an excerpt of the server's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backup) enum Way {
    /// By a signature of a sample of it in blocks of this length.
    Sample(u32),
    /// By a signature in blocks of this length.
    Blocks(u32),
    /// By comparison with its bytes, after blocks of this length were found around.
    Bytes(u32),
}

impl Way {
    /// Whether a gap of this length is looked for so. A gap in which many blocks could have been
    /// found, but none was, is not worth the bytes of what it replaced.
    pub(in crate::backup) fn is_for_gap_of(self, len_bytes: u64) -> bool {
        match self {
            Self::Sample(block_len) | Self::Blocks(block_len) => len_bytes >= block_len.into(),
            Self::Bytes(block_len) => len_bytes <= u64::from(block_len) * COMPARED_BLOCKS_MAX,
        }
    }
}

/// The result of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backup) struct Round {
    pub(in crate::backup) way: Way,
    pub(in crate::backup) left: Left,
    pub(in crate::backup) found_bytes: u64,
}

impl Round {
    /// Whether next to nothing was found; in a sample, nothing at all.
    fn is_vain(&self) -> bool {
        let vain_bytes = match self.way {
            Way::Sample(_) => 0,
            Way::Blocks(_) | Way::Bytes(_) => self.left.literal_bytes / VAIN_SHARE,
        };
        self.found_bytes <= vain_bytes
    }

    /// The share that was found.
    fn found_share(&self) -> f64 {
        self.found_bytes as f64 / self.left.literal_bytes.max(1) as f64
    }
}

impl SecondLooks {
    /// Whether there may be a round after `before`, or a first one.
    pub(in crate::backup) fn may_go_on(&self, before: Option<Round>) -> bool {
        match before {
            Some(before) => !before.is_vain(),
            None => self.in_vain < VAIN_MAX,
        }
    }

    /// The ways for the round after `before`, or for the first one of a look, the best first; empty
    /// if there should be none.
    pub(in crate::backup) fn next_ways(&self, left: Left, before: Option<Round>) -> Vec<Way> {
        if left.gaps == 0 || !self.may_go_on(before) {
            return Vec::new();
        }
        let Some(before) = before else {
            return vec![Way::Blocks(first_block_len(left))];
        };
        let block_len = match before.way {
            Way::Sample(block_len) => return vec![Way::Blocks(block_len)],
            Way::Blocks(block_len) => block_len,
            Way::Bytes(_) => return Vec::new(),
        };
        let finer = (block_len / FINER_BY).max(BLOCK_LEN_MIN);
        let blocks = (block_len > BLOCK_LEN_MIN).then_some(Way::Blocks(finer));
        let bytes = (block_len <= COMPARED_AFTER_LEN).then_some(Way::Bytes(block_len));
        bytes.into_iter().chain(blocks).collect()
    }

    /// Whether a round is worth it: in this way, for what is left in gaps that are long enough for
    /// it, with an excerpt by its length in bytes and the number of its ranges.
    pub(in crate::backup) fn begin(
        &mut self,
        (way, left): (Way, Left),
        excerpt: (u64, usize),
        before: Option<Round>,
        conditions: &Conditions,
    ) -> bool {
        let found_share = before.map_or(1.0, |before| before.found_share());
        let bytes = match way {
            Way::Sample(block_len) | Way::Blocks(block_len) => {
                second_look_bytes((left.literal_bytes, left.gaps), excerpt, block_len.into())
            }
            Way::Bytes(_) => comparison_bytes(left.literal_bytes, found_share, excerpt),
        };
        left.gaps > 0 && bytes.asked < bytes.saved && self.has_time(left.literal_bytes, &bytes, conditions)
    }

    /// Whether the sums of the server's whole version in blocks of this length are worth it for
    /// this number of literals.
    pub(in crate::backup) fn begin_whole_version(
        &mut self,
        literal_bytes: u64,
        base_len_bytes: u64,
        block_len_bytes: u32,
        conditions: &Conditions,
    ) -> bool {
        let bytes = whole_version_bytes(literal_bytes, base_len_bytes, block_len_bytes);
        let is_vain = self.whole_versions_in_vain >= WHOLE_VERSIONS_VAIN_MAX;
        !is_vain && bytes.asked < bytes.saved && self.has_time(literal_bytes, &bytes, conditions)
    }

    /// Notes a look in the sums of a whole version.
    pub(in crate::backup) fn end_whole_version(&mut self, found_bytes: u64) {
        self.whole_versions_in_vain = match found_bytes {
            0 => self.whole_versions_in_vain.saturating_add(1),
            _ => 0,
        };
    }

    /// Whether a look saves time, or there is patience for it, which it then uses up.
    fn has_time(&mut self, literal_bytes: u64, bytes: &SecondLookBytes, conditions: &Conditions) -> bool {
        if is_second_look_fast(literal_bytes, bytes, conditions) {
            return true;
        }
        let patience_ns = self.patience_ns.checked_sub(second_look_wait_ns(conditions));
        self.patience_ns = patience_ns.unwrap_or(self.patience_ns);
        patience_ns.is_some()
    }

    /// Notes the result of the first round of a look.
    pub(in crate::backup) fn end(&mut self, first: Round) {
        self.in_vain = match first.is_vain() {
            true => self.in_vain.saturating_add(1),
            false => 0,
        };
    }
}

/// The length of the blocks in which literals are looked for all over a version of this length in
/// bytes; `None`: of hardly a file would whole blocks be found. Its sums have a quarter of the
/// literals' bytes if the file is as long as before, as a disk image is; otherwise less, since the
/// contents of few other files come back at another place.
pub(in crate::backup) fn whole_version_block_len(
    literal_bytes: u64,
    base_len_bytes: u64,
    is_as_long: bool,
) -> Option<u32> {
    let share = match is_as_long {
        true => 4,
        false => 16,
    };
    let sums_len = (literal_bytes / share).max(1);
    let leaf_len = u64::from(LEAF_LEN_BYTES);
    let block_len = (base_len_bytes.saturating_mul(EXCERPT_ENTRY_LEN) / sums_len)
        .max(1)
        .checked_next_multiple_of(leaf_len)?;
    let fits = literal_bytes >= LOOKED_UP_LEN_MIN && block_len <= WHOLE_VERSION_BLOCK_LEN_MAX;
    u32::try_from(block_len).ok().filter(|_| fits)
}

/// The length at which a block for each gap, which is sent, and the signature, of which each byte
/// counts as a part of a byte up, cost least together.
fn first_block_len(left: Left) -> u32 {
    let gaps = u64::try_from(left.gaps).unwrap_or(u64::MAX).max(1);
    let signature_len = left.literal_bytes.saturating_mul(EXCERPT_ENTRY_LEN) / 4;
    let least = u32::try_from((signature_len / gaps).isqrt()).unwrap_or(u32::MAX);
    least.clamp(BLOCK_LEN_MIN, BLOCK_LEN_MAX).next_power_of_two()
}

#[cfg(test)]
mod tests;
