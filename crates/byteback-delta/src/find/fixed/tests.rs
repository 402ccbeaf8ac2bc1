//! Random edits, checked by applying the delta to the base; the reach and the limits of fixed
//! blocks; crafted signatures.

use proptest::prelude::*;

use super::*;
use crate::find::edits::{Found, Part, base, compose, content_with_holes, edit, edited, params, through_a_delta};
use crate::find::{FoundExtents, RollingFinder};
use crate::model::noise;
use crate::signature::Signature;
use crate::source::Source;

fn find(base: &[u8], block_len: u32, parts: &[Part<'_>]) -> (Vec<Found>, FindStats) {
    let index = BlockIndex::new(Signature::of(base, params(block_len)));
    let mut finder = FixedFinder::new(&index, FoundExtents::default());
    for part in parts {
        match part {
            Part::Bytes(bytes) => finder.push(bytes).unwrap(),
            Part::Hole(len) => finder.push_hole(*len).unwrap(),
        }
    }
    let (found, stats) = finder.finish().unwrap();
    (found.extents, stats)
}

/// Runs the finder, checks that the extents make exactly the new content, directly and through a
/// delta.
fn check(base: &[u8], block_len: u32, new: &[u8], piece_len: usize) -> FindStats {
    let parts: Vec<_> = new.chunks(piece_len).map(Part::Bytes).collect();
    let (extents, stats) = find(base, block_len, &parts);
    assert_eq!(compose(base, &extents), new, "block {block_len}, piece {piece_len}");
    assert_eq!(stats.literal_bytes + stats.copied_bytes, new.len() as u64);
    assert_eq!(
        (stats.strong_bytes, stats.examined_bytes),
        (new.len() as u64, new.len() as u64)
    );
    let index = BlockIndex::new(Signature::of(base, params(block_len)));
    through_a_delta(base, new, |sink| {
        let mut finder = FixedFinder::new(&index, sink);
        finder.push(new).unwrap();
        assert_eq!(finder.finish().unwrap().1, stats, "pieces change nothing");
    });
    stats
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn base_and_what_is_found_make_the_new_content(
        base in base(),
        edits in prop::collection::vec(edit(), 0..8),
        block_len in prop_oneof![Just(1_u32), Just(7), Just(64), Just(700), Just(4096)],
        piece_len in prop_oneof![Just(1_usize), Just(63), Just(1000), Just(100_000)],
    ) {
        let new = edited(&base, &edits);
        let stats = check(&base, block_len, &new, piece_len);
        // Each block of the new content that equals some block of the base is found, as in a
        // one-line reference.
        let blocks: std::collections::HashSet<&[u8]> = base.chunks(block_len as usize).collect();
        let equal: usize = new.chunks(block_len as usize).filter(|block| blocks.contains(block)).map(<[u8]>::len).sum();
        prop_assert_eq!(stats.copied_bytes, equal as u64);
    }

    #[test]
    fn holes_anywhere_stay_right(
        seed in any::<u64>(),
        lens in prop::collection::vec((any::<bool>(), 0..200_000_u64), 1..8),
        block_len in prop_oneof![Just(700_u32), Just(4096), Just(65_536)],
        cut in 0..3000_usize,
    ) {
        let (new, places) = content_with_holes(seed, &lens);
        let parts: Vec<_> = places.iter().map(|place| place.of(&new)).collect();
        let base = &new[cut.min(new.len())..];
        let (extents, stats) = find(base, block_len, &parts);
        prop_assert!(compose(base, &extents) == new);
        prop_assert_eq!(stats.literal_bytes + stats.copied_bytes + stats.zero_bytes, new.len() as u64);
        // No byte of a hole is sent as a literal.
        for place in places.iter().filter(|place| place.is_hole) {
            for (range, source) in &extents {
                prop_assert!(!matches!(source, Source::Literal(_)) || range.intersect(place.range).is_none());
            }
        }
    }
}

#[test]
fn sizes_around_a_block() {
    const B: usize = 700;
    let content = noise(9, 4 * B + 2);
    let sizes = [0, 1, B - 1, B, B + 1, 2 * B - 1, 2 * B, 2 * B + 1, 4 * B + 2];
    for base in sizes {
        for new in sizes {
            let stats = check(&content[..base], B as u32, &content[..new], 4096);
            // The last, shorter block equals only one of the same length.
            let common = if new == base { base } else { new.min(base) / B * B };
            assert_eq!(stats.copied_bytes, common as u64, "{base} to {new}");
        }
    }
}

#[test]
fn fixed_search_costs_overwrites_alone_or_all_past_an_insertion() {
    const B: u32 = 2048;
    let base = noise(1, 1 << 20);
    let mut overwritten = base.clone();
    overwritten[100_000..100_010].copy_from_slice(&noise(2, 10));
    overwritten[500_000] ^= 1;
    let (extents, stats) = find(&base, B, &[Part::Bytes(&overwritten)]);
    assert_eq!(stats.literal_bytes, 2 * u64::from(B));
    assert_eq!(extents.len(), 5);
    let mut inserted = base.clone();
    inserted.insert(300_000, 1);
    let before = 300_000 / u64::from(B) * u64::from(B);
    assert_eq!(
        check(&base, B, &inserted, 65_536).literal_bytes,
        inserted.len() as u64 - before
    );
    // An insertion of whole blocks is found, as one copy.
    let mut inserted = base.clone();
    let at = 100 * B as usize;
    inserted.splice(at..at, noise(3, 3 * B as usize));
    let (extents, stats) = find(&base, B, &[Part::Bytes(&inserted)]);
    assert_eq!(
        (extents.len(), stats.literal_bytes),
        (3, 3 * u64::from(B)),
        "one copy on each side"
    );
}

#[test]
fn equal_blocks_stay_where_they_are() {
    let base = vec![0; 1 << 20];
    let mut new = base.clone();
    new[500_000] = 1;
    let (extents, stats) = find(&base, 1000, &[Part::Bytes(&new)]);
    assert_eq!((extents.len(), stats.literal_bytes), (3, 1000));
    for (range, source) in &extents {
        if let Source::Copy { base_offset } = source {
            assert_eq!(*base_offset, range.start());
        }
    }
}

#[test]
fn a_hole_of_a_tebibyte_is_not_looked_at() {
    let base = noise(5, 100_000);
    let parts = [Part::Bytes(&base), Part::Hole(1 << 40), Part::Bytes(&base[1..])];
    let (extents, stats) = find(&base, 4096, &parts);
    assert!(stats.strong_bytes < 300_000, "{stats:?}");
    assert!(stats.zero_bytes > (1 << 40) - 4096, "{stats:?}");
    // A literal per block after the hole, which is shifted.
    assert!(extents.len() < 40, "{}", extents.len());
}

#[test]
fn a_signature_of_one_weak_checksum_costs_no_more_than_another() {
    // All blocks have the same weak checksum and different bytes: +1 -1 -1 +1 changes neither sum.
    const B: usize = 1024;
    let crafted = |seed: usize| {
        let mut block = vec![100; B];
        let at = (seed * 4) % (B - 4);
        for (index, change) in [1_i8, -1, -1, 1].into_iter().enumerate() {
            block[at + index] = 100_u8.wrapping_add_signed(change);
        }
        block
    };
    let base: Vec<u8> = (0..200).flat_map(crafted).collect();
    let new: Vec<u8> = (100..254).flat_map(crafted).collect();
    let weak: std::collections::HashSet<_> = Signature::of(&base, params(B as u32)).weak().iter().copied().collect();
    assert_eq!(weak.len(), 1);
    let stats = check(&base, B as u32, &new, 65_536);
    assert_eq!(stats.strong_bytes, new.len() as u64);
}

#[test]
fn fixed_blocks_never_find_more_than_rolling_ones() {
    let base = noise(11, 300_000);
    let mut new = base.clone();
    new.splice(70_000..70_100, noise(12, 333));
    let fixed = check(&base, 1000, &new, 65_536);
    let index = BlockIndex::new(Signature::of(&base, params(1000)));
    let mut rolling = RollingFinder::new(&index, FoundExtents::default());
    rolling.push(&new).unwrap();
    let (_, rolling) = rolling.finish().unwrap();
    assert!(fixed.copied_bytes < rolling.copied_bytes);
}
