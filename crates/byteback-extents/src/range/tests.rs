use super::*;

fn r(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end).unwrap()
}

#[test]
fn no_empty_reversed_or_overflowing_range_can_be_built() {
    assert_eq!(ByteRange::new(5, 5), None);
    assert_eq!(ByteRange::new(6, 5), None);
    assert_eq!(ByteRange::from_offset_len(5, 0), None);
    assert_eq!(ByteRange::from_offset_len(u64::MAX, 1), None);
    assert_eq!(ByteRange::from_offset_len(2, u64::MAX), None);
    assert_eq!(ByteRange::from_offset_len(1, u64::MAX - 1), Some(r(1, u64::MAX)));
    assert_eq!(ByteRange::from_start(u64::MAX), None);
    assert_eq!(ByteRange::from_start(7), Some(r(7, u64::MAX)));
}

#[test]
fn relations_between_all_small_ranges_agree_with_their_bytes() {
    let all: Vec<ByteRange> = (0..7).flat_map(|s| (s + 1..8).map(move |e| r(s, e))).collect();
    for &a in &all {
        for &b in &all {
            let common: Vec<u64> = (0..8).filter(|&x| a.contains(x) && b.contains(x)).collect();
            assert_eq!(a.intersects(b), !common.is_empty());
            let expected = common.first().map(|&first| r(first, common[common.len() - 1] + 1));
            assert_eq!(a.intersect(b), expected);
            assert_eq!(a.covers(b), (b.start()..b.end()).all(|x| a.contains(x)));
            let (before, after) = a.subtract(b);
            let left: Vec<u64> = [before, after].into_iter().flatten().flat_map(Range::from).collect();
            assert_eq!(
                left,
                (a.start()..a.end()).filter(|&x| !b.contains(x)).collect::<Vec<_>>(),
                "{a} - {b}"
            );
            let hull = a.hull(b);
            assert!(hull.covers(a) && hull.covers(b));
            assert_eq!(hull.start(), a.start().min(b.start()));
            assert_eq!(hull.end(), a.end().max(b.end()));
        }
        for at in 0..9 {
            let (head, tail) = a.split_at(at);
            let joined: Vec<u64> = [head, tail].into_iter().flatten().flat_map(Range::from).collect();
            assert_eq!(joined, Range::from(a).collect::<Vec<_>>());
            assert!(head.is_none_or(|h| h.end() <= at) && tail.is_none_or(|t| t.start() >= at));
        }
    }
}

#[test]
fn align_out_covers_the_range_and_saturates_at_the_end() {
    let page = NonZeroU64::new(4096).unwrap();
    assert_eq!(r(1, 2).align_out(page), r(0, 4096));
    assert_eq!(r(4096, 8192).align_out(page), r(4096, 8192));
    assert_eq!(r(4095, 4097).align_out(page), r(0, 8192));
    let last = r(u64::MAX - 1, u64::MAX).align_out(page);
    assert_eq!(last, r(u64::MAX - 4095, u64::MAX));
}
