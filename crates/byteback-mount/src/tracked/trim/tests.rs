//! Against the naive comparison: what differs is reported, and what is reported differs or lies in
//! a short gap.

use byteback_extents::ExtentSet;
use byteback_host::random::SplitMix64;

use super::*;

fn ranges(old: &[u8], new: &[u8], offset: u64) -> Vec<(u64, u64)> {
    let mut changed = Vec::new();
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
        let mut ranges = Vec::new();
        differences(&old, &new, 1000, &mut ranges);
        let mut changed = ExtentSet::new();
        ranges.iter().for_each(|range| changed.insert(*range));
        assert_eq!(
            changed.len(),
            ranges.len(),
            "seed {seed}, run {run}: not ascending with gaps: {ranges:?}"
        );
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

/// Long writes: whatever could be read of the old bytes, nothing that differs is missing, and a
/// write of equal bytes is empty.
#[test]
fn long_writes_are_compared_from_both_ends() {
    let seed = 11;
    let mut random = SplitMix64::new(seed);
    for run in 0..300 {
        let len = 1 + random.below(600 << 10) as usize;
        let old: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
        let mut new = old.clone();
        let changes = random.below(3);
        for _ in 0..changes {
            let at = random.below(len as u64) as usize;
            new[at] = new[at].wrapping_add(1);
        }
        // Not in memory from here on, and the end of the old bytes.
        let missing_at = if random.coin() {
            random.below(len as u64) as usize
        } else {
            len
        };
        let changed = compare_all(7, &new, |at, buffer| {
            let from = at as usize - 7;
            let known = missing_at.saturating_sub(from).min(buffer.len());
            buffer[..known].copy_from_slice(&old[from..from + known]);
            known
        });
        let mut set = ExtentSet::new();
        changed.iter().for_each(|range| set.insert(*range));
        let ascending = changed.windows(2).all(|pair| pair[0].end() <= pair[1].start());
        assert!(ascending, "seed {seed}, run {run}: {changed:?}");
        assert!(
            set.hull()
                .is_none_or(|hull| hull.start() >= 7 && hull.end() <= 7 + len as u64)
        );
        for at in 0..len {
            if new[at] != old[at] || at >= missing_at {
                assert!(
                    set.contains(7 + at as u64),
                    "seed {seed}, run {run}: {at} of {len} is missing"
                );
            }
        }
        if changes == 0 && missing_at == len {
            assert!(changed.is_empty(), "seed {seed}, run {run}: {changed:?}");
        }
        if changes == 1 && missing_at == len {
            assert_eq!(set.total_len_bytes(), 1, "seed {seed}, run {run}: {changed:?}");
        }
    }
}
