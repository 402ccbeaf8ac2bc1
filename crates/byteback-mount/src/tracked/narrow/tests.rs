//! Against the naive comparison: what differs is reported, and what is reported differs or lies in a short gap.

use byteback_host::random::SplitMix64;

use super::*;

fn ranges(old: &[u8], new: &[u8], offset: u64) -> Vec<(u64, u64)> {
    let mut changed = ExtentSet::new();
    differences(old, new, offset, &mut changed);
    changed.iter().map(|range| (range.start(), range.end())).collect()
}

#[test]
fn single_bytes_neighbours_and_ends() {
    assert_eq!(ranges(b"0123456789abcdef", b"0123456789abcdef", 100), []);
    assert_eq!(ranges(b"0123456789abcdef", b"0123456x89abcdef", 100), [(107, 108)]);
    assert_eq!(ranges(b"0123456789abcdef", b"x123456789abcdex", 100), [(100, 116)]);
    assert_eq!(ranges(b"0123", b"012345", 100), [(104, 106)]);
    assert_eq!(ranges(b"", b"012345", 0), [(0, 6)]);
    let (old, mut new) = ([0; 64], [0; 64]);
    (new[3], new[60]) = (1, 1);
    assert_eq!(ranges(&old, &new, 0), [(3, 4), (60, 61)]);
}

#[test]
fn every_difference_is_reported_and_little_else() {
    let seed = 5;
    let mut random = SplitMix64::new(seed);
    for run in 0..2000 {
        let old: Vec<u8> = (0..random.below(300)).map(|_| random.next_u64() as u8).collect();
        let mut new = old.clone();
        new.resize(random.below(300) as usize, 7);
        for _ in 0..random.below(6) {
            if !new.is_empty() {
                let at = random.below(new.len() as u64) as usize;
                new[at] = random.next_u64() as u8;
            }
        }
        let mut changed = ExtentSet::new();
        differences(&old, &new, 1000, &mut changed);
        for (at, byte) in new.iter().enumerate() {
            if old.get(at) != Some(byte) {
                assert!(
                    changed.contains(1000 + at as u64),
                    "seed {seed}, run {run}: {at} is missing"
                );
            }
        }
        for range in changed.iter() {
            let within = range.start() as usize - 1000..range.end() as usize - 1000;
            assert!(within.end <= new.len());
            let equal = within.clone().filter(|at| old.get(*at) == new.get(*at)).count();
            assert!(
                equal as u64 <= GAP_LEN_BYTES_MAX * (within.len() - equal) as u64,
                "seed {seed}, run {run}: {within:?} holds {equal} equal bytes"
            );
        }
    }
}
