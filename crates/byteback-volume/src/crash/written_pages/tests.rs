use byteback_host::random::SplitMix64;

use super::*;

/// Beside a plain map of addresses.
#[test]
fn the_sum_is_that_of_the_pages_that_are_there() {
    let seed: u64 = std::env::var("BYTEBACK_SEED").map_or(1, |seed| seed.parse().unwrap());
    for seed in seed..seed + 20 {
        println!("BYTEBACK_SEED={seed}");
        let mut random = SplitMix64::new(seed);
        let mut written = WrittenPages::default();
        let mut model: BTreeMap<u32, u32> = BTreeMap::new();
        // Far apart, beside each other, and the last ones that there are.
        let mut segments: Vec<u32> = (1..1_200).map(|number| number * 700).collect();
        segments.extend((0..1_200).map(|number| u32::MAX - 40 - 40 * number));
        let mut next = 10;
        let mut written_to = 0;
        for step in 0..3_000 {
            match random.below(8) {
                0..=3 => {
                    let count = random.below(40 - written_to);
                    written_to += count;
                    for _ in 0..count {
                        let checksum = random.below(1 << 32) as u32;
                        written.add(Address(next), checksum);
                        model.insert(next, checksum);
                        next += 1;
                    }
                }
                // Another segment, also one before, but none a second time.
                4 => {
                    let index = random.below(segments.len() as u64) as usize;
                    next = segments.swap_remove(index);
                    written_to = 0;
                }
                _ => {
                    let at = match random.below(4) {
                        0 => random.below(1 << 32) as u32,
                        _ => {
                            let all: Vec<u32> = model.keys().copied().collect();
                            all.get(random.below(all.len().max(1) as u64) as usize)
                                .copied()
                                .unwrap_or(3)
                        }
                    };
                    for at in at..at.saturating_add(random.below(30) as u32) {
                        written.remove(Address(at));
                        model.remove(&at);
                    }
                }
            }
            let sums = model.iter().map(|(at, checksum)| page_sum(Address(*at), *checksum));
            assert_eq!(
                written.sum(),
                sums.fold(0, u64::wrapping_add),
                "seed {seed}, step {step}"
            );
            assert_eq!(written.is_empty(), model.is_empty(), "seed {seed}, step {step}");
        }
        for at in model.keys().copied().collect::<Vec<_>>() {
            written.remove(Address(at));
        }
        assert_eq!((written.sum(), written.is_empty()), (0, true));
    }
}
