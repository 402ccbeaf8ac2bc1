use super::*;

/// A home's link.
fn slow() -> Conditions {
    Conditions {
        link_bytes_per_s: 1_000_000,
        round_trip_ns: 30_000_000,
        processor_share: 1.0,
    }
}

fn left(literal_bytes: u64, gaps: usize) -> Left {
    Left { literal_bytes, gaps }
}

/// The length of the blocks of the first round of a look, if it is worth it.
fn begin(looks: &mut SecondLooks, left: Left) -> Option<u32> {
    let ways = looks.next_ways(left, None);
    let [Way::Blocks(block_len)] = ways[..] else {
        return None;
    };
    let excerpt = (left.literal_bytes, left.gaps);
    let begun = looks.begin((Way::Blocks(block_len), left), excerpt, None, &slow());
    begun.then_some(block_len)
}

#[test]
fn blocks_are_short_where_changes_are() {
    // One change in each page.
    assert_eq!(first_block_len(left(4096, 1)), 128);
    assert_eq!(first_block_len(left(400 * 4096, 400)), 128);
    // One in a hundred KiB, and in nearly nothing.
    assert_eq!(first_block_len(left(200 << 10, 1)), 1024);
    assert_eq!(first_block_len(left(700, 1)), 64);
}

#[test]
fn rounds_are_finer_until_they_find_nothing() {
    use Way::{Blocks, Bytes, Sample};
    let looks = SecondLooks::default();
    let left = left(1 << 20, 3);
    let round = |way, found_bytes| Round { way, left, found_bytes };
    let after = |round| looks.next_ways(left, Some(round));
    assert_eq!(looks.next_ways(left, None), [Blocks(1024)]);
    assert_eq!(after(round(Sample(1024), 1024)), [Blocks(1024)]);
    assert_eq!(after(round(Sample(1024), 0)), []);
    assert_eq!(after(round(Blocks(1024), 1 << 19)), [Blocks(256)]);
    assert_eq!(after(round(Blocks(256), 1 << 19)), [Bytes(256), Blocks(64)]);
    assert_eq!(after(round(Blocks(128), 1 << 19)), [Bytes(128), Blocks(64)]);
    assert_eq!(after(round(Blocks(64), 1 << 19)), [Bytes(64)]);
    assert_eq!(after(round(Bytes(64), 1 << 19)), []);
    assert_eq!(after(round(Blocks(1024), 1 << 16)), []);
}

#[test]
fn long_gaps_without_a_block_are_not_compared() {
    assert!(Way::Bytes(128).is_for_gap_of(1) && Way::Bytes(128).is_for_gap_of(2048));
    assert!(!Way::Bytes(128).is_for_gap_of(2049));
    assert!(!Way::Blocks(128).is_for_gap_of(127) && Way::Blocks(128).is_for_gap_of(128));
}

#[test]
fn bytes_come_if_a_round_before_says_that_they_are_alike() {
    let left = left(1 << 20, 100);
    let begin = |found_bytes, excerpt_len| {
        let before = Round {
            way: Way::Blocks(256),
            left,
            found_bytes,
        };
        SecondLooks::default().begin((Way::Bytes(256), left), (excerpt_len, 100), Some(before), &slow())
    };
    assert!(begin(1 << 19, 1 << 20));
    // The excerpt is much longer than what may be found in it, or little was found in others.
    assert!(!begin(1 << 19, 3 << 20));
    assert!(!begin(1 << 17, 1 << 20));
}

#[test]
fn little_is_not_looked_for_again() {
    let mut looks = SecondLooks::default();
    assert_eq!(begin(&mut looks, left(0, 0)), None);
    assert_eq!(begin(&mut looks, left(700, 1)), None);
    // Gaps that are not much longer than a block.
    assert_eq!(begin(&mut looks, left(100 * 80, 100)), None);
    assert_eq!(looks, SecondLooks::default());
}

#[test]
fn looks_that_save_no_time_end_when_patience_does() {
    let mut looks = SecondLooks::default();
    let begun = (0..1000).filter(|_| begin(&mut looks, left(4096, 1)).is_some());
    assert_eq!(begun.count() as u64, PATIENCE_NS / 30_200_000);
    // One that saves time needs none.
    assert!(begin(&mut looks, left(10 << 20, 100)).is_some());
}

#[test]
fn looks_in_vain_one_after_the_other_are_the_last_ones() {
    let mut looks = SecondLooks::default();
    let look = |looks: &mut SecondLooks, found_bytes| {
        let left = left(10 << 20, 100);
        let begun = begin(looks, left).is_some();
        looks.end(Round {
            way: Way::Blocks(1024),
            left,
            found_bytes,
        });
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

#[test]
fn sums_of_a_whole_version_are_a_part_of_the_literals() {
    let (mib, image_len) = (1 << 20, 100 << 20);
    assert_eq!(whole_version_block_len(mib, image_len, true), Some(4096));
    assert_eq!(whole_version_block_len(mib, image_len, false), Some(16 << 10));
    for literal_bytes in [64 << 10, 200 << 10, 1 << 20, 100 << 20] {
        for base_len in [1 << 20, 100 << 20, 10 << 30] {
            let Some(block_len) = whole_version_block_len(literal_bytes, base_len, true) else {
                continue;
            };
            let sums_len = base_len / u64::from(block_len) * EXCERPT_ENTRY_LEN;
            assert!(sums_len <= literal_bytes / 4, "{literal_bytes} {base_len}");
        }
    }
    // A file of few literals, and one that is very long beside them.
    assert_eq!(whole_version_block_len(LOOKED_UP_LEN_MIN - 1, mib, true), None);
    assert_eq!(whole_version_block_len(mib, 1 << 40, true), None);
}
