//! Joining against the naive way: fill the smallest gap, again and again.

use proptest::prelude::*;

use super::*;

fn set(max: u64) -> impl Strategy<Value = ExtentSet> {
    prop::collection::vec((0..max, 1..9_u64), 0..80).prop_map(|ranges| {
        ranges
            .into_iter()
            .filter_map(|(start, len)| ByteRange::new(start, start + len))
            .collect()
    })
}

fn naive(set: &ExtentSet, extents_max: usize) -> Vec<ByteRange> {
    let mut ranges: Vec<ByteRange> = set.iter().collect();
    while ranges.len() > extents_max {
        let gap = |at: &usize| ranges[at + 1].start() - ranges[*at].end();
        let smallest = (0..ranges.len() - 1).min_by_key(gap).unwrap();
        let next = ranges.remove(smallest + 1);
        ranges[smallest] = ranges[smallest].hull(next);
    }
    ranges
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn joining_fills_the_smallest_gaps(before in set(400), extents_max in 1..40_usize) {
        let mut after = before.clone();
        let added = after.join_closest(extents_max);
        after.check_invariants().unwrap();
        prop_assert_eq!(after.iter().collect::<Vec<_>>(), naive(&before, extents_max));
        prop_assert_eq!(added, after.total_len_bytes() - before.total_len_bytes());
        prop_assert!(after.len() <= extents_max);
        prop_assert!(before.iter().all(|range| after.covers(range)));
    }

    #[test]
    fn joining_of_several_sets_fills_the_smallest_gaps_of_all(
        before in prop::collection::vec(set(400), 1..6), surplus in 0..60_usize,
    ) {
        let total = |sets: &[ExtentSet]| sets.iter().map(ExtentSet::len).sum::<usize>();
        let gaps = |sets: &[ExtentSet]| -> Vec<u64> { sets.iter().flat_map(ExtentSet::gaps_bytes).collect() };
        let mut after = before.clone();
        match gap_to_fill(before.iter(), surplus) {
            None => prop_assert!(surplus == 0 || gaps(&before).len() < surplus),
            Some(gap) => {
                let added: u64 = after.iter_mut().map(|set| set.join_within(gap)).sum();
                let filled: u64 = gaps(&before).into_iter().filter(|bytes| *bytes <= gap).sum();
                prop_assert_eq!(added, filled);
                prop_assert!(total(&before) - total(&after) >= surplus);
                prop_assert!(gaps(&after).iter().all(|bytes| *bytes > gap));
                // A smaller bound would not do.
                let fewer = gaps(&before).into_iter().filter(|bytes| *bytes < gap).count();
                prop_assert!(fewer < surplus);
            }
        }
        for (before, after) in before.iter().zip(&after) {
            after.check_invariants().unwrap();
            prop_assert!(before.iter().all(|range| after.covers(range)));
        }
    }

    /// A covering set with no more extents has no fewer bytes: alignment gives such a set.
    #[test]
    fn joining_adds_no_more_than_aligning_to_as_many_extents(before in set(4000), shift in 1..8_u32) {
        let aligned = before.aligned_out(NonZeroU64::new(1 << shift).unwrap());
        prop_assert!(before.iter().all(|range| aligned.covers(range)));
        prop_assert!(aligned.iter().all(|range| range.start() % (1 << shift) == 0 && range.end() % (1 << shift) == 0));
        let mut joined = before.clone();
        joined.join_closest(aligned.len());
        prop_assert!(joined.total_len_bytes() <= aligned.total_len_bytes());
    }
}

#[test]
fn the_far_end_cannot_be_aligned_further() {
    let set: ExtentSet = ByteRange::new(u64::MAX - 5, u64::MAX - 1).into_iter().collect();
    let aligned = set.aligned_out(NonZeroU64::new(4096).unwrap());
    assert_eq!(aligned.hull(), ByteRange::new(u64::MAX - 4095, u64::MAX));
    let mut none = ExtentSet::new();
    assert_eq!(none.join_closest(0), 0);
    let mut two: ExtentSet = [(0, 1), (u64::MAX - 1, u64::MAX)]
        .into_iter()
        .filter_map(|(a, b)| ByteRange::new(a, b))
        .collect();
    assert_eq!(two.join_closest(0), u64::MAX - 2);
    assert_eq!(two.len(), 1);
}
