//! The ranges that are proven, and their bytes.

use super::*;

fn range(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end).unwrap()
}

/// Some ranges of a content.
fn known(content: &[u8], ranges: &[ByteRange]) -> Known {
    let bytes = ranges
        .iter()
        .map(|range| &content[range.start() as usize..range.end() as usize]);
    Known::new(ranges.to_vec(), bytes.collect::<Vec<_>>().concat())
}

#[test]
fn ranges_are_proven_together_where_the_bytes_between_are_known() {
    let before: Vec<u8> = (0..200).collect();
    let old = known(&before, &[range(10, 60), range(100, 120)]);
    let reported = [
        range(15, 20),
        range(30, 40),
        range(58, 62),
        range(105, 110),
        range(115, 130),
    ];
    let mut now = before.clone();
    for range in reported {
        now[range.start() as usize..range.end() as usize].fill(255);
    }
    let (proven, digest) = proof(&known(&now, &reported), &old).unwrap_or_else(|_| panic!("no proof"));
    // Between 62 and 105 nothing is known.
    assert_eq!(proven, [range(15, 62), range(105, 130)]);
    let mut expected = ContentDigest::new(47 + 25);
    expected.push(&now[15..62]);
    expected.push(&now[105..130]);
    assert_eq!(digest, Digest(expected.finish().unwrap()));
}

#[test]
fn bytes_of_a_range_are_known_within_one_range_alone() {
    let before: Vec<u8> = (0..200).collect();
    let old = known(&before, &[range(10, 60), range(100, 120)]);
    assert_eq!(old.packed.len_bytes(), 70);
    assert_eq!(old.bytes_of(range(100, 120)), Some(&before[100..120]));
    assert_eq!(old.bytes_of(range(12, 13)), Some(&[12][..]));
    for unknown in [
        range(0, 5),
        range(9, 11),
        range(59, 61),
        range(60, 100),
        range(119, 121),
        range(150, 151),
    ] {
        assert_eq!(old.bytes_of(unknown), None, "{unknown}");
    }
}

#[test]
fn blocks_of_which_little_is_found_are_looked_up_if_many() {
    let len = 40 * BLOCK_LEN;
    let content = vec![1; len as usize];
    // Of each block but the first three half is found, in two parts; of those, less.
    let copies = (0..80).map(|half| {
        let start = half * BLOCK_LEN / 2 + 100;
        let len = if half < 6 { BLOCK_LEN / 4 - 1 } else { BLOCK_LEN / 4 };
        (range(start, start + len), Source::Copy { base_offset: 0 })
    });
    let found = |count| FoundExtents {
        extents: copies.clone().take(count).collect(),
    };
    let all = known(&content, &[range(0, len)]);
    assert!(hardly_found(&all, &found(80)).is_empty());
    let few = hardly_found(&all, &found(80 - 2 * 13));
    assert_eq!(
        few.iter().collect::<Vec<_>>(),
        [range(0, 3 * BLOCK_LEN), range(27 * BLOCK_LEN, len)]
    );
    let in_parts = parts(range(BLOCK_LEN, 28 * BLOCK_LEN), &few).collect::<Vec<_>>();
    let expected = [
        (range(BLOCK_LEN, 3 * BLOCK_LEN), true),
        (range(3 * BLOCK_LEN, 27 * BLOCK_LEN), false),
        (range(27 * BLOCK_LEN, 28 * BLOCK_LEN), true),
    ];
    assert_eq!(in_parts, expected);
    // Blocks that were not written as a whole do not count.
    let some = known(&content, &[range(1, 17 * BLOCK_LEN - 1)]);
    assert!(hardly_found(&some, &found(0)).is_empty());
}
