//! The second search makes the same content, whatever the first one left, and leaves little.

use proptest::prelude::*;

use super::*;
use crate::find::FoundExtents;
use crate::find::edits::compose;
use crate::model::noise;
use crate::signature::{Signature, SignatureParams};
use crate::source::Source;

/// The bytes of an excerpt, and their index.
fn index(base: &[u8], excerpt: &Excerpt, block_len: u32) -> BlockIndex {
    let bytes: Vec<u8> = excerpt
        .ranges()
        .iter()
        .flat_map(|range| &base[range.start() as usize..range.end() as usize])
        .copied()
        .collect();
    let params = SignatureParams::for_excerpt(block_len, 5);
    BlockIndex::new(Signature::of(&bytes, params))
}

/// The ranges of a base of this length that no copy is from.
fn unused(base_len: u64, found: &FoundExtents) -> ExtentSet {
    let mut unused: ExtentSet = ByteRange::new(0, base_len).into_iter().collect();
    for (range, source) in &found.extents {
        if let Source::Copy { base_offset } = source {
            unused.remove(ByteRange::from_offset_len(*base_offset, range.len_bytes()).unwrap());
        }
    }
    unused
}

/// All of a base of this length.
fn all_of(base_len: u64) -> ExtentSet {
    ByteRange::new(0, base_len).into_iter().collect()
}

/// The findings of two searches, in long blocks and then in short ones.
fn found(base: &[u8], new: &[u8], [long, short]: [u32; 2]) -> FoundExtents {
    let params = SignatureParams::with_block_len(base.len() as u64, long, 3);
    let first = BlockIndex::new(Signature::of(base, params));
    let mut finder = RollingFinder::new(&first, FoundExtents::default());
    finder.push(new).unwrap();
    let (first, _) = finder.finish().unwrap();
    let mut gaps = Vec::new();
    let mut before = 0;
    let behind = |index: usize| match first.extents.get(index + 1) {
        Some((_, Source::Copy { base_offset })) => *base_offset,
        _ => base.len() as u64,
    };
    for (at, (range, source)) in first.extents.iter().enumerate() {
        match source {
            Source::Copy { base_offset } => before = base_offset + range.len_bytes(),
            _ => gaps.push(Gap {
                range: *range,
                base_before: before,
                base_behind: behind(at),
            }),
        }
    }
    let excerpt = excerpt_for(&gaps, &unused(base.len() as u64, &first), base.len() as u64, short);
    for range in excerpt.ranges() {
        assert!(range.len_bytes().is_multiple_of(u64::from(short)) || range.end() == base.len() as u64);
    }
    let index = index(base, &excerpt, short);
    let mut all = FoundExtents::default();
    for (range, source) in first.extents {
        match source {
            Source::Literal(bytes) => {
                (all, _) = find_in_excerpt(&index, &excerpt, (range.start(), &bytes), all).unwrap();
            }
            source => all.extents.push((range, source)),
        }
    }
    all
}

fn literal_bytes(found: &FoundExtents) -> u64 {
    let literals = found
        .extents
        .iter()
        .filter(|(_, source)| matches!(source, Source::Literal(_)));
    literals.map(|(range, _)| range.len_bytes()).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_changes_come_back_and_cost_less(
        len in 0..60_000_usize,
        changes in prop::collection::vec((0..60_000_usize, 0..80_usize, 0..80_usize), 0..12),
        short in prop_oneof![Just(32_u32), Just(64), Just(100)],
    ) {
        let base = noise(1, len);
        let mut new = base.clone();
        for (index, (at, removed, inserted)) in changes.iter().enumerate() {
            let at = at % (new.len() + 1);
            let end = (at + removed).min(new.len());
            new.splice(at..end, noise(100 + index as u64, *inserted));
        }
        let all = found(&base, &new, [2048, short]);
        prop_assert_eq!(&compose(&base, &all.extents), &new);
        let inserted: usize = changes.iter().map(|(_, _, inserted)| inserted).sum();
        // For each change: short blocks on both sides of it, and the rest of a block at the end.
        let expected = inserted as u64 + (changes.len() as u64 + 1) * 4 * u64::from(short);
        // Changes that meet in one gap may hide a neighbour.
        if changes.len() <= 2 {
            prop_assert!(literal_bytes(&all) <= expected, "{} > {}", literal_bytes(&all), expected);
        }
    }
}

#[test]
fn one_byte_in_a_long_block_costs_a_short_one() {
    let base = noise(9, 1 << 20);
    let mut new = base.clone();
    new[500_000] ^= 1;
    let all = found(&base, &new, [4096, 64]);
    assert_eq!(compose(&base, &all.extents), new);
    assert_eq!(literal_bytes(&all), 64);
}

#[test]
fn cells_that_moved_to_another_gap_are_found() {
    let base = noise(9, 1 << 20);
    let mut new = base.clone();
    // Two pages exchange 1,000 bytes, at odd offsets.
    let (one, other) = (40_960 + 77, 409_600 + 1501);
    new[one..one + 1000].copy_from_slice(&base[other..other + 1000]);
    new[other..other + 1000].copy_from_slice(&base[one..one + 1000]);
    let all = found(&base, &new, [4096, 64]);
    assert_eq!(compose(&base, &all.extents), new);
    assert!(literal_bytes(&all) <= 2 * 4 * 64, "{}", literal_bytes(&all));
}

#[test]
fn appended_bytes_are_looked_for_nowhere() {
    let gap = Gap {
        range: ByteRange::new(1000, 9000).unwrap(),
        base_before: 1000,
        base_behind: 1000,
    };
    assert_eq!(excerpt_for(&[gap], &ExtentSet::new(), 1000, 64).len_bytes(), 0);
}

#[test]
fn gaps_of_a_long_base_are_looked_for_beside_their_neighbours() {
    let gap = Gap {
        range: ByteRange::new(1000, 2000).unwrap(),
        base_before: 50_000,
        base_behind: 20_000,
    };
    let mut unused = all_of(1 << 20);
    let excerpt = excerpt_for(&[gap], &unused, 1 << 20, 50);
    let expected = [(19_000, 20_000), (50_000, 51_000)].map(|(start, end)| ByteRange::new(start, end).unwrap());
    assert_eq!(excerpt.ranges(), expected);
    // A copy is from a part of it.
    unused.remove(ByteRange::new(19_500, 50_000).unwrap());
    let excerpt = excerpt_for(&[gap], &unused, 1 << 20, 50);
    let expected = [(19_000, 19_500), (50_000, 51_000)].map(|(start, end)| ByteRange::new(start, end).unwrap());
    assert_eq!(excerpt.ranges(), expected);
}

/// Rows move anywhere when a database is packed.
#[test]
fn bytes_that_moved_far_are_found_in_what_is_unused() {
    let base = noise(3, 1 << 20);
    let mut new = base.clone();
    // Two parts of 100 KiB exchange their rows of 300 bytes, in reverse order.
    let rows = 340;
    for row in 0..rows {
        let (one, other) = (row * 300, 800_000 + (rows - 1 - row) * 300);
        new[one..one + 300].copy_from_slice(&base[other..other + 300]);
        new[other..other + 300].copy_from_slice(&base[one..one + 300]);
    }
    let all = found(&base, &new, [4096, 64]);
    assert_eq!(compose(&base, &all.extents), new);
    assert!(
        literal_bytes(&all) <= 2 * 340 * 2 * 64 + 4 * 4096,
        "{}",
        literal_bytes(&all)
    );
}

/// Copies of a block of zeros would take more room than zeros, compressed.
#[test]
fn runs_of_one_byte_are_literals() {
    let mut base = noise(3, 64 << 10);
    base[8192..9216].fill(0);
    let mut new = base.clone();
    new[8192..16384].fill(0);
    new[12_000] = 1;
    let all = found(&base, &new, [4096, 64]);
    assert_eq!(compose(&base, &all.extents), new);
    assert_eq!(
        all.extents
            .iter()
            .filter(|(range, _)| range.start() >= 8192 && range.start() < 16384)
            .count(),
        1
    );
}

/// In each page the bytes behind a border moved on by forty.
#[test]
fn cells_that_moved_within_their_pages_are_found() {
    let base = noise(1, 2 << 20);
    let mut all = FoundExtents::default();
    let pages: Vec<usize> = (0..500).step_by(10).map(|page| page * 4096).collect();
    let gaps: Vec<Gap> = pages
        .iter()
        .map(|&at| Gap {
            range: ByteRange::from_offset_len(at as u64, 4096).unwrap(),
            base_before: at as u64,
            base_behind: at as u64 + 4096,
        })
        .collect();
    let excerpt = excerpt_for(&gaps, &all_of(base.len() as u64), base.len() as u64, 128);
    assert_eq!(excerpt.len_bytes(), 50 * 4096);
    let index = index(&base, &excerpt, 128);
    for &at in &pages {
        let mut page = base[at..at + 4096].to_vec();
        page[1000..].rotate_right(40);
        page[1000..1040].copy_from_slice(&noise(at as u64, 40));
        (all, _) = find_in_excerpt(&index, &excerpt, (at as u64, &page), all).unwrap();
    }
    assert!(literal_bytes(&all) <= 50 * (40 + 3 * 128), "{}", literal_bytes(&all));
}
