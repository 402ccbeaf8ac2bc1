//! Random edits, checked by applying the delta to the base; bounds on literals; crafted contents.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::find::FoundExtents;
use crate::find::edits::{Found, Part, base, compose, content_with_holes, edit, edited, params, through_a_delta};
use crate::model::noise;
use crate::signature::Signature;
use crate::source::Source;

fn find(base: &[u8], block_len: u32, parts: &[Part<'_>]) -> (Vec<Found>, FindStats) {
    let index = BlockIndex::new(Signature::of(base, params(block_len)));
    let mut finder = RollingFinder::new(&index, FoundExtents::default());
    for part in parts {
        match part {
            Part::Bytes(bytes) => finder.push(bytes).unwrap(),
            Part::Hole(len) => finder.push_hole(*len).unwrap(),
        }
    }
    let (found, stats) = finder.finish().unwrap();
    (found.extents, stats)
}

/// Runs the finder, checks that the extents make exactly the new content, and returns the
/// statistics.
fn check(base: &[u8], block_len: u32, new: &[u8], piece_len: usize) -> FindStats {
    let parts: Vec<_> = new.chunks(piece_len).map(Part::Bytes).collect();
    let (extents, stats) = find(base, block_len, &parts);
    assert_eq!(compose(base, &extents), new, "block {block_len}, piece {piece_len}");
    assert_eq!(
        stats.literal_bytes + stats.copied_bytes + stats.zero_bytes,
        new.len() as u64
    );
    // And through the stream, which leaves out bytes that stay in place.
    let index = BlockIndex::new(Signature::of(base, params(block_len)));
    through_a_delta(base, new, |sink| {
        let mut finder = RollingFinder::new(&index, sink);
        finder.push(new).unwrap();
        let (_, in_one) = finder.finish().unwrap();
        assert_eq!(in_one.literal_bytes, stats.literal_bytes, "pieces change nothing");
    });
    stats
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn base_and_what_is_found_make_the_new_content(
        base in base(),
        edits in prop::collection::vec(edit(), 0..8),
        block_len in prop_oneof![Just(1_u32), Just(7), Just(64), Just(700), Just(4096)],
        piece_len in prop_oneof![Just(1_usize), Just(63), Just(1000), Just(100_000)],
    ) {
        let new = edited(&base, &edits);
        check(&base, block_len, &new, piece_len);
    }

    #[test]
    fn holes_anywhere_stay_right(
        seed in any::<u64>(),
        lens in prop::collection::vec((any::<bool>(), 0..200_000_u64), 1..8),
        shift in 0..3000_usize,
        block_len in prop_oneof![Just(700_u32), Just(4096), Just(65_536)],
    ) {
        let (new, parts) = content_with_holes(seed, &lens);
        // The base is the same content after some other bytes, with zeros for holes.
        let mut base = noise(!seed, shift);
        base.extend_from_slice(&new);
        let parts: Vec<_> = parts.iter().map(|part| part.of(&new)).collect();
        let (extents, _) = find(&base, block_len, &parts);
        prop_assert_eq!(compose(&base, &extents), new);
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
            // Whole blocks of the shorter one, and the last one if the base ends where the new
            // content does or goes on.
            let common = if new >= base { base } else { new / B * B };
            assert_eq!(stats.copied_bytes, common as u64, "{base} to {new}");
        }
    }
}

#[test]
fn an_insertion_a_deletion_and_a_move_cost_about_themselves() {
    const B: u32 = 2048;
    let base = noise(1, 4 << 20);
    let slack = 2 * u64::from(B);
    let mut inserted = base.clone();
    inserted.splice(1_234_567..1_234_567, noise(2, 5000));
    let stats = check(&base, B, &inserted, 65_536);
    assert!(stats.literal_bytes <= 5000 + slack, "{stats:?}");
    // Unchanged blocks are hashed once; the window only rolls over new bytes.
    assert!(stats.strong_bytes <= base.len() as u64 + 4 * slack, "{stats:?}");

    let mut deleted = base.clone();
    deleted.drain(1_000_001..1_500_002);
    assert!(check(&base, B, &deleted, 65_536).literal_bytes <= slack);

    let mut moved = base.clone();
    let part: Vec<u8> = moved.drain(100_003..300_007).collect();
    moved.splice(3_000_000..3_000_000, part);
    assert!(check(&base, B, &moved, 65_536).literal_bytes <= 3 * slack);

    let mut overwritten = base.clone();
    overwritten[2_000_000..2_000_100].copy_from_slice(&noise(3, 100));
    let (extents, stats) = find(&base, B, &[Part::Bytes(&overwritten)]);
    assert!(stats.literal_bytes <= slack);
    assert_eq!(extents.len(), 3, "copy, literal, copy: all in place");

    let mut appended = base[..base.len() - 100].to_vec();
    let base = appended.clone();
    appended.extend(noise(4, 10_000));
    assert_eq!(
        check(&base, B, &appended, 65_536).literal_bytes,
        10_000,
        "the last, short block is found in the middle too"
    );
}

#[test]
fn equal_blocks_stay_where_they_are() {
    let base = vec![0; 1 << 20];
    let mut new = base.clone();
    new[500_000] = 1;
    let (extents, stats) = find(&base, 1000, &[Part::Bytes(&new)]);
    assert!(stats.literal_bytes <= 2000, "{stats:?}");
    assert!(matches!(extents[0], (range, Source::Copy { base_offset: 0 }) if range.start() == 0));
    assert!(extents.len() <= 4, "{}", extents.len());
}

#[test]
fn a_hole_of_a_tebibyte_is_not_looked_at() {
    let base = noise(5, 100_000);
    let (extents, stats) = find(
        &base,
        4096,
        &[Part::Bytes(&base), Part::Hole(1 << 40), Part::Bytes(&base[1..])],
    );
    assert!(stats.examined_bytes + stats.strong_bytes < 1_000_000, "{stats:?}");
    assert!(stats.literal_bytes < 10_000, "{stats:?}");
    let zeros: u64 = extents
        .iter()
        .filter(|(_, source)| *source == Source::Zero)
        .map(|(range, _)| range.len_bytes())
        .sum();
    assert!(zeros > (1 << 40) - 10_000);
    assert!(extents.len() < 10);
}

/// A block with the weak checksum of a block of 100s, but other bytes: two bytes up, two down.
fn of_equal_weak(seed: u64, len: usize) -> Vec<u8> {
    let mut block = vec![100; len];
    // +1 -1 -1 +1 at equal distances changes neither sum.
    let at = (seed as usize * 4) % (len - 4);
    for (index, change) in [1_i8, -1, -1, 1].into_iter().enumerate() {
        block[at + index] = 100_u8.wrapping_add_signed(change);
    }
    block
}

#[test]
fn crafted_weak_checksums_cost_little_more_than_the_content() {
    const B: usize = 4096;
    // All blocks have the same weak checksum, and so has every window of the new content, which
    // equals none of them.
    let base: Vec<u8> = (0..512).flat_map(|seed| of_equal_weak(seed, B)).collect();
    let new = vec![100; 4 << 20];
    let weak = RollingSum::of(&new[..B]).value();
    assert!(
        Signature::of(&base, params(B as u32))
            .weak()
            .iter()
            .all(|&sum| sum == weak)
    );
    let (_, stats) = find(&base, B as u32, &[Part::Bytes(&new)]);
    assert_eq!(stats.literal_bytes, new.len() as u64);
    assert!(
        stats.strong_bytes <= 2 * new.len() as u64,
        "{} bytes hashed for {}",
        stats.strong_bytes,
        new.len()
    );
}

#[test]
fn a_wrong_signature_gives_a_delta_that_its_digest_convicts() {
    let base = noise(1, 100_000);
    let mut lying = base.clone();
    lying[50_000] ^= 1;
    // The signature belongs to another content than the base.
    let index = BlockIndex::new(Signature::of(&lying, params(1000)));
    let mut finder = RollingFinder::new(&index, FoundExtents::default());
    finder.push(&lying).unwrap();
    let (found, _) = finder.finish().unwrap();
    let made = compose(&base, &found.extents);
    let digest = |bytes: &[u8]| {
        let mut digest = crate::ContentDigest::new(bytes.len() as u64);
        digest.push(bytes);
        digest.finish().unwrap()
    };
    assert_ne!(digest(&made), digest(&lying));
}

/// Another program on the same pair of files, where it is installed: `rdiff`, which sends literals
/// and copies as we do.
#[test]
fn literals_are_as_few_as_those_of_rdiff() {
    if std::process::Command::new("rdiff").arg("--version").output().is_err() {
        eprintln!("rdiff is not installed: not compared");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let base = noise(77, 3 << 20);
    let mut cases = BTreeMap::new();
    let mut new = base.clone();
    new.splice(1_000_000..1_000_000, noise(78, 1000));
    cases.insert("inserted", new);
    let mut new = base.clone();
    for index in 0..40 {
        let at = index * 70_001;
        new.splice(at..at + 10, noise(index as u64, 25));
    }
    cases.insert("scattered", new);
    let mut new = base.clone();
    new.rotate_left(1_000_003);
    cases.insert("rotated", new);
    std::fs::write(path("base"), &base).unwrap();
    for (name, new) in cases {
        std::fs::write(path("new"), &new).unwrap();
        let run = |arguments: &[&str]| {
            let status = std::process::Command::new("rdiff")
                .current_dir(dir.path())
                .args(arguments)
                .status()
                .unwrap();
            assert!(status.success(), "rdiff {arguments:?}");
        };
        run(&["-f", "-b", "2048", "signature", "base", "signature"]);
        run(&["-f", "delta", "signature", "new", "delta"]);
        let theirs = std::fs::metadata(path("delta")).unwrap().len();
        let ours = check(&base, 2048, &new, 65_536);
        println!(
            "{name}: {} literal bytes, rdiff's delta has {theirs}",
            ours.literal_bytes
        );
        assert!(
            ours.literal_bytes as f64 <= theirs as f64 * 1.02,
            "{name}: {} against {theirs}",
            ours.literal_bytes
        );
    }
}
