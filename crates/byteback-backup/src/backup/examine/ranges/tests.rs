use super::*;

fn range(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end).unwrap()
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn found(ranges: &[ByteRange], len: u64, base_len: u64) -> Vec<(ByteRange, usize)> {
    let found = searches(ranges.iter().copied(), len, base_len);
    found.iter().map(|search| (search.part, search.ranges.len())).collect()
}

#[test]
fn part_reaches_to_both_sides_and_to_the_end() {
    // An insertion: all that follows was written anew.
    let inserted = range(4 * MIB, 10 * MIB + 64 * KIB);
    assert_eq!(
        found(&[inserted], 10 * MIB + 64 * KIB, 10 * MIB),
        [(range(3 * MIB, 10 * MIB), 1)]
    );
    // A removal: what the server has behind the end here is searched, too.
    let removed = range(4 * MIB, 9 * MIB);
    assert_eq!(found(&[removed], 9 * MIB, 10 * MIB), [(range(3 * MIB, 10 * MIB), 1)]);
    // In the middle.
    let moved = range(4 * MIB, 4 * MIB + 128 * KIB);
    let around = range(4 * MIB - 128 * KIB, 4 * MIB + 256 * KIB);
    assert_eq!(found(&[moved], 10 * MIB, 10 * MIB), [(around, 1)]);
    // A version that is much longer is not summed to its end.
    assert_eq!(
        found(&[moved], 5 * MIB, 5 << 40),
        [(range(4 * MIB - 128 * KIB, 5 * MIB + 256 * KIB), 1)]
    );
}

#[test]
fn appended_and_short_ranges_are_not_searched() {
    assert_eq!(found(&[range(10 * MIB, 20 * MIB)], 20 * MIB, 10 * MIB), []);
    assert_eq!(found(&[range(10 * MIB - 4 * KIB, 20 * MIB)], 20 * MIB, 10 * MIB), []);
    assert_eq!(found(&[range(0, 63 * KIB)], 20 * MIB, 20 * MIB), []);
    assert_eq!(found(&[range(0, 20 * MIB)], 20 * MIB, 0), []);
    let set: ExtentSet = [range(0, 63 * KIB), range(MIB, 3 * MIB)].into_iter().collect();
    assert_eq!(searchable_bytes(&set, 10 * MIB), 2 * MIB);
    assert_eq!(searchable_bytes(&set, 2 * MIB), MIB);
    assert_eq!(searchable_bytes(&set, MIB), 0);
}

#[test]
fn searches_share_parts_that_meet_and_take_the_longest() {
    let near = [range(MIB, 2 * MIB), range(3 * MIB, 4 * MIB), range(20 * MIB, 21 * MIB)];
    assert_eq!(
        found(&near, 30 * MIB, 30 * MIB),
        [(range(0, 5 * MIB), 2), (range(19 * MIB, 22 * MIB), 1)]
    );
    let many: Vec<ByteRange> = (0..200)
        .map(|at| range(at * 10 * MIB, at * 10 * MIB + 100 * KIB + at))
        .collect();
    let searched = searches(many.iter().copied(), 2000 * MIB, 2000 * MIB);
    let all: Vec<ByteRange> = searched.iter().flat_map(|search| search.ranges.clone()).collect();
    assert_eq!(all, many[200 - SEARCHED_MAX..]);
}
