//! The bytes that programs wrote to a file since its last backup, as an [`ExtentSet`]: writes that
//! touch are merged, and the set answers what is to be sent and what stayed as it was.
//!
//! `cargo run -p byteback-extents --example written_ranges`

#![allow(clippy::expect_used, clippy::print_stdout, reason = "an example")]

use byteback_extents::{ByteRange, ExtentSet};

fn range(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end).expect("the start is below the end")
}

pub(crate) fn main() {
    // A file of 10 000 bytes. An append in two steps, a page overwritten twice, and one field.
    let file = range(0, 10_000);
    let mut written = ExtentSet::new();
    for write in [
        range(9_000, 9_500),
        range(9_500, 10_000),
        range(4_096, 6_000),
        range(5_000, 8_192),
        range(100, 108),
    ] {
        written.insert(write);
    }
    println!("written:   {written:?}, {} bytes", written.total_len_bytes());
    assert_eq!(written.len(), 3, "the five writes are three extents");
    assert_eq!(written.total_len_bytes(), 8 + 4_096 + 1_000);

    // The gaps are the bytes that a copy made at the last backup still has.
    let unchanged: Vec<ByteRange> = written.gaps_within(file).collect();
    println!("unchanged: {unchanged:?}");
    assert_eq!(unchanged, [range(0, 100), range(108, 4_096), range(8_192, 9_000)]);

    // A reader asks for one page: only the written part of it is to be fetched anew.
    let page: Vec<ByteRange> = written.iter_within(range(0, 4_096)).collect();
    assert_eq!(page, [range(100, 108)]);

    // A second log of the same file, of the time after a cut, is merged into the first.
    let later: ExtentSet = [range(0, 100), range(8_192, 8_200)].into_iter().collect();
    written.union_with(&later);
    println!("merged:    {written:?}");
    assert_eq!(
        written.iter().collect::<Vec<_>>(),
        [range(0, 108), range(4_096, 8_200), range(9_000, 10_000)]
    );

    // Truncation to 5 000 bytes: there is nothing to send beyond.
    written.truncate(5_000);
    println!("truncated: {written:?}");
    assert_eq!(written.hull(), Some(range(0, 5_000)));
    assert!(written.covers(range(4_096, 5_000)));
    assert!(!written.contains(200));
}
