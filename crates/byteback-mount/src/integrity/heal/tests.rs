//! Damage and changes of a block told apart, against what was really written.

use byteback_checksums::written::block_sum;
use byteback_host::random::SplitMix64;

use super::*;

#[test]
fn a_block_is_what_was_written_or_nothing_in_random_lives() {
    let seed = std::env::var("BYTEBACK_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(20);
    println!("BYTEBACK_SEED={seed}");
    let mut random = SplitMix64::new(seed);
    let mut found = 0;
    for round in 0..400 {
        let len = 1 + random.below(4096) as usize;
        let sent = random.bytes(len);
        let mut written = sent.clone();
        let change = |random: &mut SplitMix64, block: &mut [u8]| {
            let from = random.below(len as u64) as usize;
            let to = len.min(from + 1 + random.below(60) as usize);
            block[from..to].copy_from_slice(&random.bytes(to - from));
        };
        for _ in 0..random.below(3) {
            change(&mut random, &mut written);
        }
        let mut now = written.clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(len as u64) as usize;
            now[at] ^= 1 << random.below(8);
        }
        let healed = healed(block_sum(&written), &now, &sent);
        if let Some(healed) = &healed {
            assert_eq!(*healed, written, "round {round}");
            found += 1;
        }
        if written == sent {
            assert!(
                healed.is_some(),
                "round {round}: what the server has is all that is needed"
            );
        }
    }
    // Where damage touches what was changed nobody can tell what was there.
    assert!(found > 300, "{found}");
}

#[test]
fn what_nobody_has_is_not_made_up() {
    let mut random = SplitMix64::new(4);
    let (written, now, other) = (random.bytes(4096), random.bytes(4096), random.bytes(4096));
    assert_eq!(healed(block_sum(&written), &now, &other), None);
    assert_eq!(healed(block_sum(&written), &written[..100], &other[..100]), None);
    // A shorter version ends in zeros.
    let mut longer = other[..100].to_vec();
    longer.resize(200, 0);
    assert_eq!(healed(block_sum(&longer), &now[..200], &other[..100]), Some(longer));
}
