use super::*;

/// A home's link.
fn slow() -> Conditions {
    Conditions {
        link_bytes_per_s: 1_000_000,
        round_trip_ns: 30_000_000,
        processor_share: 1.0,
    }
}

#[test]
fn blocks_are_short_where_changes_are() {
    // One change in each page.
    assert_eq!(block_len(4096, 1), 128);
    assert_eq!(block_len(400 * 4096, 400), 128);
    // One in a hundred KiB, and in nearly nothing.
    assert_eq!(block_len(100 << 10, 1), 1024);
    assert_eq!(block_len(700, 1), 64);
}

#[test]
fn little_is_not_looked_for_again() {
    let mut looks = SecondLooks::default();
    assert_eq!(looks.begin(0, 0, &slow()), None);
    assert_eq!(looks.begin(700, 1, &slow()), None);
    // Gaps that are not much longer than a block.
    assert_eq!(looks.begin(100 * 80, 100, &slow()), None);
    assert_eq!(looks, SecondLooks::default());
}

#[test]
fn looks_that_save_no_time_end_when_patience_does() {
    let mut looks = SecondLooks::default();
    let begun = (0..1000).filter(|_| looks.begin(4096, 1, &slow()).is_some());
    assert_eq!(begun.count() as u64, PATIENCE_NS / 30_200_000);
    // One that saves time needs none.
    assert!(looks.begin(10 << 20, 100, &slow()).is_some());
}

#[test]
fn looks_in_vain_one_after_the_other_are_the_last_ones() {
    let mut looks = SecondLooks::default();
    let look = |looks: &mut SecondLooks, found| {
        let begun = looks.begin(10 << 20, 100, &slow()).is_some();
        looks.end(10 << 20, found);
        begun
    };
    for round in 0..10 {
        for _ in 1..VAIN_MAX {
            assert!(look(&mut looks, 1000), "round {round}");
        }
        assert!(look(&mut looks, 5 << 20), "round {round}");
    }
    for _ in 0..VAIN_MAX {
        assert!(look(&mut looks, 0));
    }
    assert!(!look(&mut looks, 5 << 20));
}
