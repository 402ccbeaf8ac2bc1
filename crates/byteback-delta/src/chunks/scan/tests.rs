use super::*;
use crate::model::noise;

#[test]
fn many_windows_have_the_hashes_of_single_ones() {
    for seed in 0..20 {
        let bytes: [u8; BLOCK_LEN] = noise(seed, BLOCK_LEN).try_into().unwrap();
        let mut anywhere = Block::EMPTY;
        let mut here = Block::EMPTY;
        anywhere.hash_anywhere(&bytes);
        here.hash(&bytes);
        for at in 0..BLOCK {
            let hash = hash_of(&bytes[at..at + WINDOW_LEN]);
            assert_eq!(
                (anywhere.hashes[at], here.hashes[at]),
                (hash, hash),
                "seed {seed}, window {at}"
            );
            assert!(here.least[at / GROUP] <= hash);
        }
        assert_eq!(here.least, anywhere.least);
        for (group, least) in here.hashes.chunks(GROUP).zip(here.least) {
            assert_eq!(group.iter().min(), Some(&least));
        }
    }
}

#[test]
fn golden_hashes() {
    // All versions of this program must agree on borders: these values never change.
    assert_eq!(hash_of(b"the quick brown fox jumps over a"), 0xcc23 - TARGET);
    assert_eq!(hash_of(&[255; WINDOW_LEN]), 0x50a0 - TARGET);
}

#[test]
fn the_first_candidate_is_the_one_that_a_plain_search_finds() {
    for distance in [64, 512, 4096, 16_384, 131_072] {
        let rule = Rule::one_in(distance);
        for seed in 0..30 {
            let bytes = noise(seed, 40_000 + seed as usize * 97);
            for (skip, windows) in [(0, 1), (3, 31), (0, 32), (1, 1023), (5, 1024), (7, 1025), (11, 39_000)] {
                let bytes = &bytes[skip..skip + windows + WINDOW_LEN - 1];
                let plain = bytes
                    .windows(WINDOW_LEN)
                    .position(|window| is_candidate(Some(window), rule));
                assert_eq!(
                    first_candidate(bytes, windows, rule),
                    plain,
                    "seed {seed}, {windows} windows"
                );
            }
        }
    }
}

#[test]
fn candidates_are_as_frequent_as_the_rule_says() {
    let bytes = noise(7, 4_000_000);
    for distance in [64_u32, 1024, 8192, 32_768] {
        let rule = Rule::one_in(distance);
        let found = bytes
            .windows(WINDOW_LEN)
            .filter(|&window| is_candidate(Some(window), rule))
            .count();
        let expected = 4e6 / f64::from(distance);
        assert!(
            (found as f64 - expected).abs() < 5.0 * expected.sqrt(),
            "1 in {distance}: {found}"
        );
    }
}

#[test]
fn a_run_of_one_byte_has_no_candidate() {
    for byte in 0..=255 {
        assert!(!is_candidate(Some(&[byte; WINDOW_LEN]), Rule::one_in(256)), "{byte}");
    }
}
