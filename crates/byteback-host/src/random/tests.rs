//! Randomness: the real one differs, the simulated one repeats.

use super::{Randomness, RealRandomness, SimRandomness, SplitMix64};

#[test]
fn splitmix64_gives_the_published_numbers() {
    // First outputs of the reference implementation (Vigna, prng.di.unimi.it) for seed 1234567.
    let mut generator = SplitMix64::new(1_234_567);
    assert_eq!(generator.next_u64(), 6_457_827_717_110_365_317);
    assert_eq!(generator.next_u64(), 3_203_168_211_198_807_973);
    assert_eq!(generator.next_u64(), 9_817_491_932_198_370_423);
}

#[test]
fn the_same_seed_repeats_and_another_does_not() {
    let draw = |seed| {
        let mut bytes = [0; 37];
        SimRandomness::new(seed).fill(&mut bytes).unwrap();
        bytes
    };
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
}

#[test]
fn the_kernel_fills_long_buffers_and_does_not_repeat() {
    let mut first = vec![0; 1 << 20];
    RealRandomness.fill(&mut first).unwrap();
    // 64 zero bytes in a row do not happen by chance: an unfilled part would show.
    assert!(first.chunks(64).all(|chunk| chunk.iter().any(|byte| *byte != 0)));
    assert_ne!(RealRandomness.next_u64().unwrap(), RealRandomness.next_u64().unwrap());
}
