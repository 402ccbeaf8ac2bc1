//! Ranges and their words.

use super::*;

fn range(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end).unwrap()
}

#[test]
fn damage_leaves_the_ranges_between_as_the_rest() {
    assert_eq!(between(&[], 10), [range(0, 10)]);
    assert_eq!(between(&[range(0, 4), range(6, 10)], 10), [range(4, 6)]);
    assert_eq!(between(&[range(2, 4)], 10), [range(0, 2), range(4, 10)]);
    assert!(between(&[range(0, 10)], 10).is_empty() && between(&[], 0).is_empty());
}

#[test]
fn a_message_names_the_first_ranges_and_counts_the_rest() {
    assert_eq!(named(&[range(0, 4)]), "bytes 0 to 4 (4 in all)");
    let many: Vec<ByteRange> = (0..5).map(|index| range(index * 10, index * 10 + 2)).collect();
    assert_eq!(
        named(&many),
        "bytes 0 to 2, 10 to 12, 20 to 22 and 2 more ranges (10 in all)"
    );
}
