use std::os::unix::fs::FileExt;

use super::*;

fn set(ranges: &[(u64, u64)]) -> ExtentSet {
    ranges
        .iter()
        .filter_map(|(start, end)| ByteRange::new(*start, *end))
        .collect()
}

#[test]
fn a_map_tells_each_byte_once() {
    let map = map(100, &set(&[(10, 30), (60, 200)]), &set(&[(0, 15), (20, 25), (90, 100)]));
    let reported: Vec<_> = map
        .iter()
        .map(|(range, state)| (range.start(), range.end(), *state))
        .collect();
    assert_eq!(
        reported,
        [
            (0, 10, "same"),
            (10, 15, "zero"),
            (15, 20, "data"),
            (20, 25, "zero"),
            (25, 30, "data"),
            (30, 60, "same"),
            (60, 90, "data"),
            (90, 100, "zero"),
        ]
    );
    assert!(super::map(0, &set(&[(0, 5)]), &set(&[])).is_empty());
    assert_eq!(
        super::map(5, &set(&[]), &set(&[(0, 5)])).len(),
        1,
        "a hole that did not change is the same"
    );
}

#[test]
fn holes_are_where_nothing_was_written() {
    // A tmpfs may have another block size.
    let file = tempfile::tempfile_in("/var/tmp").unwrap();
    file.set_len(1 << 20).unwrap();
    assert_eq!(holes(&file, 1 << 20).unwrap(), set(&[(0, 1 << 20)]));
    file.write_all_at(&[1; 4096], 0).unwrap();
    file.write_all_at(&[1; 4096], 512 << 10).unwrap();
    assert_eq!(
        holes(&file, 1 << 20).unwrap(),
        set(&[(4096, 512 << 10), ((512 << 10) + 4096, 1 << 20)])
    );
    assert_eq!(holes(&file, 0).unwrap(), set(&[]));
    assert_eq!(holes(&file, 100).unwrap(), set(&[]));
}
