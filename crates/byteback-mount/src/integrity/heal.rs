//! Reconstructs a damaged block from a good version that need not be the newest. Pure.
//!
//! The sum of the written block is known. A server has the block as it was sent last; programs may
//! have changed bytes of it since, which are nowhere but in the damaged block itself. So where the
//! two differ, each stretch is either damage or a change: the combination that has the sum is the
//! block as written. As few stretches are tried, the chance that a wrong combination has the sum is
//! below 1 in 16 million for each block.

use byteback_checksums::written::block_sum;

/// Stretches that are told apart at most: each doubles the number of combinations.
const STRETCHES_MAX: usize = 8;

/// Stretches that are nearer to each other, in bytes, are one.
const APART_MIN: usize = 8;

/// The block with this sum, made of what lies there `now` and of a `good` version, as long as it is
/// now; what is missing of `good` is zeros.
pub(super) fn healed(sum: u32, now: &[u8], good: &[u8]) -> Option<Vec<u8>> {
    let mut old = good.to_vec();
    old.resize(now.len(), 0);
    let stretches = stretches(now, &old);
    if stretches.len() > STRETCHES_MAX {
        return (block_sum(&old) == sum).then_some(old);
    }
    // The server's block first; then with more and more of the bytes that are here.
    for kept in 0..1u32 << stretches.len() {
        let mut block = old.clone();
        for (number, (from, to)) in stretches.iter().enumerate() {
            if kept >> number & 1 == 1
                && let (Some(into), Some(of)) = (block.get_mut(*from..*to), now.get(*from..*to))
            {
                into.copy_from_slice(of);
            }
        }
        if block_sum(&block) == sum {
            return Some(block);
        }
    }
    None
}

/// Where two blocks of the same length differ.
fn stretches(one: &[u8], other: &[u8]) -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = Vec::new();
    let differing = one
        .iter()
        .zip(other)
        .enumerate()
        .filter(|(_, (one, other))| one != other);
    for (at, _) in differing {
        match found.last_mut() {
            Some((_, end)) if at.saturating_sub(*end) < APART_MIN => *end = at.saturating_add(1),
            _ => found.push((at, at.saturating_add(1))),
        }
    }
    found
}

#[cfg(test)]
mod tests;
