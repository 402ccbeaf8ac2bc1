//! Sums that follow changes against sums made anew.

use byteback_host::random::SplitMix64;

use super::*;

#[test]
fn a_sum_follows_any_change_of_a_part_of_its_block() {
    let mut random = SplitMix64::new(7);
    for _ in 0..2000 {
        let mut block = random.bytes(BLOCK);
        let sum = sum_of(&block);
        let at = random.below(BLOCK_LEN) as usize;
        let len = 1 + random.below((BLOCK - at) as u64) as usize;
        let new = random.coin().then(|| random.bytes(len));
        // Behind the end of the file there are zeros, and nothing is read.
        let known = random.below(len as u64 + 1) as usize;
        block[at + known..].fill(0);
        let sum = if known < len { sum_of(&block) } else { sum };
        let full = block.clone();
        let after = patched(sum_of(&full), at, &full[at..at + known], new.as_deref(), len);
        block[at..at + len].copy_from_slice(new.as_deref().unwrap_or(&vec![0; len]));
        assert_eq!(after, sum_of(&block), "{len} at {at}, {known} read");
        // Damage elsewhere stays.
        if sum == sum_of(&full) {
            assert_eq!(
                patched(sum ^ 5, at, &full[at..at + known], new.as_deref(), len),
                after ^ 5
            );
        }
    }
}
