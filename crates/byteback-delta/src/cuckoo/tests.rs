//! The table against a naive map, at the load limit, and with crafted checksums.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn spread(index: u64) -> u64 {
    let mut x = index.wrapping_add(1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 31;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 29)
}

fn crc(index: u64) -> u32 {
    spread(index) as u32
}

/// Every entry is found, nothing else is, and equal checksums keep as many entries as allowed.
fn check<W: WeakSum + std::fmt::Debug>(table: &CuckooTable<W, u32>, entries: &[(W, u32)], others: &[W]) {
    let mut naive: BTreeMap<W, Vec<u32>> = BTreeMap::new();
    for &(weak, value) in entries {
        naive.entry(weak).or_default().push(value);
    }
    let mut len = 0;
    for (&weak, values) in &naive {
        let found: Vec<u32> = table.get(weak).collect();
        assert!(table.contains(weak));
        assert!(found.len() >= values.len().min(EQUAL_MAX), "{weak:?}: {found:?}");
        assert!(found.len() <= 2 * EQUAL_MAX);
        let mut distinct = found.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), found.len(), "no entry twice");
        assert!(found.iter().all(|value| values.contains(value)), "{weak:?}");
        len += found.len();
    }
    assert_eq!(table.len(), len);
    for &weak in others {
        assert_eq!(table.contains(weak), naive.contains_key(&weak), "{weak:?}");
        assert_eq!(table.get(weak).count() > 0, naive.contains_key(&weak));
    }
}

#[test]
fn equation_5_gives_the_size() {
    for (entries, buckets) in [(0, 4), (1, 4), (13, 4), (14, 8), (25_600, 8192), (1 << 20, 1 << 19)] {
        let places = Places::for_entries(entries);
        assert_eq!(places.mask + 1, buckets, "{entries}");
    }
}

#[test]
fn cuckoo_buckets_lie_in_different_halves_and_find_each_other() {
    for bits in [2, 3, 10, 31] {
        let places = Places::with_bits(bits);
        for index in 0..1000 {
            let weak = spread(index);
            let (first, second) = (places.first(weak), places.second(weak));
            assert!(first <= places.mask && second <= places.mask);
            assert_eq!((first ^ second) & places.half, places.half);
            assert_eq!(first, (weak % (1_u64 << bits)) as usize);
            assert_eq!(places.other(weak, first), second);
            assert_eq!(places.other(weak, second), first);
        }
    }
}

#[test]
fn cuckoo_table_does_not_overflow_up_to_a_load_of_0_91() {
    for round in 0..5_u64 {
        let slots = 4 * 8192;
        let count = slots * 91 / 100;
        let entries: Vec<_> = (0..count).map(|at| (crc(at + (round << 32)), at as u32)).collect();
        let table = CuckooTable::build_at(Places::with_bits(13), entries.iter().copied());
        assert_eq!(table.overflowed(), 0, "round {round}");
        assert!(table.load() > 0.90);
        check(
            &table,
            &entries,
            &(0..20_000).map(|at| crc(at + (77 << 40))).collect::<Vec<_>>(),
        );
    }
}

#[test]
fn a_table_that_is_too_small_keeps_the_rest_in_order() {
    for percent in [95, 98, 100, 150, 400] {
        let entries: Vec<_> = (0..4 * 1024 * percent / 100).map(|at| (crc(at), at as u32)).collect();
        let table = CuckooTable::build_at(Places::with_bits(10), entries.iter().copied());
        println!("{percent} %: load {:.3}, {} outside", table.load(), table.overflowed());
        assert!(percent > 95 || table.overflowed() <= 4);
        check(
            &table,
            &entries,
            &(0..10_000).map(|at| crc(at + (9 << 40))).collect::<Vec<_>>(),
        );
    }
}

/// The effect of the paper's equation 4: two buckets that are each other's only alternative hold
/// eight entries.
#[test]
fn closed_pairs_overflow_long_before_they_are_full() {
    let mut loads = Vec::new();
    for round in 0..20_u64 {
        let mut pairs = vec![0; 8192 / 2];
        let mut count = 0;
        loop {
            let pair = crc(count + (round << 32)) as usize % pairs.len();
            if pairs[pair] == 8 {
                break;
            }
            pairs[pair] += 1;
            count += 1;
        }
        loads.push(count as f64 / f64::from(4 * 8192));
    }
    let mean = loads.iter().sum::<f64>() / loads.len() as f64;
    println!("load at the first overflow: {mean:.2}");
    assert!((0.1..0.5).contains(&mean), "{mean}");
}

#[test]
fn crafted_checksums_neither_loop_nor_grow() {
    // All equal: as many are kept as allowed.
    let entries: Vec<_> = (0..100_000).map(|at| (0x1234_5678_u32, at)).collect();
    let table = CuckooTable::build(entries.len(), entries.iter().copied());
    check(&table, &entries, &[0, 1, 0x1234_5679]);
    assert!(table.len() <= 2 * EQUAL_MAX);
    // All in one first bucket, and then all in the same two.
    let places = Places::for_entries(100_000);
    let same_first: Vec<_> = (0..100_000_u32).map(|at| ((at << 15) | 7, at)).collect();
    let table = CuckooTable::build(same_first.len(), same_first.iter().copied());
    check(&table, &same_first, &(0..1000).map(|at| at << 3).collect::<Vec<_>>());
    let same_both: Vec<_> = (0_u64..)
        .map(|at| (at << 20) | 7)
        .filter(|&weak| places.second(weak) == places.second(7))
        .take(2000)
        .zip(0..)
        .collect();
    let table = CuckooTable::build_at(places, same_both.iter().copied());
    check(&table, &same_both, &(0..1000).map(|at| at << 3).collect::<Vec<_>>());
    assert!(table.overflowed() >= same_both.len() - 8);
    // The checksums that mark empty slots.
    let small: Vec<_> = (0..16_u32).map(|at| (at, at)).collect();
    let table = CuckooTable::build(small.len(), small.iter().copied());
    check(&table, &small, &(0..64).collect::<Vec<_>>());
    let empty: CuckooTable<u32, u32> = CuckooTable::build(0, std::iter::empty());
    check(&empty, &[], &(0..64).collect::<Vec<_>>());
}

#[test]
fn entries_of_the_checksum_alone() {
    let table: CuckooTable<u64, ()> = CuckooTable::build(1000, (0..1000).map(|at| (spread(at), ())));
    assert!((0..1000).all(|at| table.contains(spread(at))));
    assert!((1000..9000).all(|at| !table.contains(spread(at))));
    assert_eq!(std::mem::size_of::<Bucket<u32, ()>>(), 16);
    assert_eq!(std::mem::size_of::<Bucket<u32, u32>>(), 32);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_table_is_a_map_of_32_bits(
        weak in prop::collection::vec(prop_oneof![any::<u32>(), 0..40_u32, (0..40_u32).prop_map(|at| at << 16)], 0..3000),
        bits in 2..10_u32,
    ) {
        let entries: Vec<_> = weak.into_iter().zip(0..).collect();
        let others: Vec<u32> = (0..200).chain((0..200).map(|at| at << 16)).collect();
        check(&CuckooTable::build(entries.len(), entries.iter().copied()), &entries, &others);
        check(&CuckooTable::build_at(Places::with_bits(bits), entries.iter().copied()), &entries, &others);
    }

    #[test]
    fn a_table_is_a_map_of_64_bits(
        weak in prop::collection::vec(prop_oneof![any::<u64>(), 0..40_u64, (0..40_u64).prop_map(|at| at << 40)], 0..3000),
        bits in 2..10_u32,
    ) {
        let entries: Vec<_> = weak.into_iter().zip(0..).collect();
        let others: Vec<u64> = (0..200).chain((0..200).map(|at| at << 40)).collect();
        check(&CuckooTable::build(entries.len(), entries.iter().copied()), &entries, &others);
        check(&CuckooTable::build_at(Places::with_bits(bits), entries.iter().copied()), &entries, &others);
    }
}
