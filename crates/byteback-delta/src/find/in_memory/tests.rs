//! Random edits, put together again from the base; short moves; contents that repeat.

use proptest::prelude::*;

use super::*;
use crate::find::FoundExtents;
use crate::find::edits::{Found, base, compose, edit, edited, through_a_delta};
use crate::model::noise;

/// Runs the finder, and checks that the extents make exactly the new content, directly and through
/// a delta.
fn check(base: &[u8], new: &[u8]) -> (Vec<Found>, FindStats) {
    let (found, stats) = InMemoryFinder::new(base).find(new, FoundExtents::default()).unwrap();
    assert_eq!(stats.literal_bytes + stats.copied_bytes, new.len() as u64);
    assert_eq!(stats.examined_bytes, new.len() as u64);
    assert!(compose(base, &found.extents) == new);
    through_a_delta(base, new, |sink| {
        InMemoryFinder::new(base).find(new, sink).unwrap();
    });
    (found.extents, stats)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 800, ..ProptestConfig::default() })]

    #[test]
    fn in_memory_finder_makes_the_new_content(base in base(), edits in prop::collection::vec(edit(), 0..8)) {
        let new = edited(&base, &edits);
        check(&base, &new);
        check(&new, &base);
    }
}

#[test]
fn in_memory_finder_finds_rows_that_moved_in_their_pages() {
    // Cells of 100 bytes in pages of 4 KiB, of which each page loses one; the others move up.
    let base = noise(1, 64 << 12);
    let mut new = Vec::new();
    for (number, page) in base.chunks(1 << 12).enumerate() {
        let at = 100 * (number % 30);
        new.extend_from_slice(&page[..at]);
        new.extend_from_slice(&page[at + 100..]);
        new.extend_from_slice(&[number as u8; 100]);
    }
    let (_, stats) = check(&base, &new);
    // New are the 100 bytes at the end of each page.
    assert!(stats.literal_bytes <= 64 * 100, "{stats:?}");
}

#[test]
fn in_memory_finder_finds_what_is_32_bytes_long_anywhere() {
    let base = noise(2, 10_000);
    for at in (0..9_000).step_by(97) {
        let new = [noise(3, 50), base[at..at + MATCH_LEN_MIN].to_vec(), noise(4, 50)].concat();
        let (_, stats) = check(&base, &new);
        // A byte beside it may be equal by chance.
        assert!(stats.copied_bytes >= MATCH_LEN_MIN as u64, "at {at}");
    }
}

#[test]
fn in_memory_finder_takes_contents_of_any_length() {
    for len in [0, 1, 15, 16, 23, 24, 31, 32, 33, 40, 100] {
        let content = noise(5, len);
        check(&content, &content);
        check(&content, &[]);
        check(&[], &content);
        let (_, stats) = check(&content, &[content.clone(), content.clone()].concat());
        let is_found = if len >= MATCH_LEN_MIN { 2 * len } else { 0 };
        assert_eq!(stats.copied_bytes, is_found as u64, "of {len}");
    }
}

#[test]
fn in_memory_finder_copes_with_contents_that_repeat() {
    let line = noise(6, 50);
    let base: Vec<u8> = line.iter().copied().cycle().take(1 << 20).collect();
    let mut new = base.clone();
    new.splice(500_000..500_000, noise(7, 10));
    let (extents, stats) = check(&base, &new);
    assert!(stats.literal_bytes < 100, "{stats:?}");
    assert!(extents.len() < 10, "{} extents", extents.len());
    let zeros = vec![0; 1 << 20];
    let (_, stats) = check(&zeros, &zeros[1..]);
    assert_eq!(stats.literal_bytes, 0);
}
