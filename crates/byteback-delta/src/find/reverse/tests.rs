//! The whole path: signature of the new content, search in the base, matches over the wire,
//! literals, delta, application.

use proptest::prelude::*;

use super::*;
use crate::find::FoundExtents;
use crate::find::edits::{Part, base, compose, content_with_holes, edit, edited, params, through_a_delta};
use crate::model::noise;
use crate::signature::Signature;

/// The server's answer, sent through the stream.
fn search(new: &[u8], block_len: u32, base: &[Part<'_>]) -> (MatchList, FindStats) {
    let index = BlockIndex::new(Signature::of(new, params(block_len)));
    let mut finder = ReverseFinder::new(&index);
    for part in base {
        match part {
            Part::Bytes(bytes) => finder.push(bytes),
            Part::Hole(len) => finder.push_hole(*len),
        }
    }
    let (list, stats) = finder.finish();
    let mut stream = Vec::new();
    list.write(&mut stream).unwrap();
    let read = MatchList::read(&stream[..], new.len() as u64, block_len).unwrap();
    assert_eq!(read, list);
    (list, stats)
}

/// Checks the matches, the delta, and that the client sends only the missing ranges.
fn check(base: &[u8], block_len: u32, new: &[u8], piece_len: usize) -> (MatchList, FindStats) {
    let pieces: Vec<_> = base.chunks(piece_len).map(Part::Bytes).collect();
    let (list, searched) = search(new, block_len, &pieces);
    assert_eq!(
        (list.new_len_bytes(), list.base_len_bytes()),
        (new.len() as u64, base.len() as u64)
    );
    for run in list.runs() {
        let (start, end) = (run.range.start() as usize, run.range.end() as usize);
        assert!(new[start..end] == base[run.base_offset as usize..][..end - start]);
    }
    // Only the missing ranges are read.
    let mut content = MatchedContent::new(&list, FoundExtents::default());
    for range in list.missing() {
        content
            .push(range.start(), &new[range.start() as usize..range.end() as usize])
            .unwrap();
    }
    let (found, stats) = content.finish().unwrap();
    assert!(compose(base, &found.extents) == new);
    assert_eq!(stats.examined_bytes, stats.literal_bytes);
    // The whole content is read, and passed on as a delta.
    through_a_delta(base, new, |sink| {
        let mut content = MatchedContent::new(&list, sink);
        for (index, piece) in new.chunks(piece_len).enumerate() {
            content.push((index * piece_len) as u64, piece).unwrap();
        }
        let (_, from_all) = content.finish().unwrap();
        assert_eq!(
            (from_all.literal_bytes, from_all.copied_bytes),
            (stats.literal_bytes, stats.copied_bytes)
        );
    });
    (
        list,
        FindStats {
            literal_bytes: stats.literal_bytes,
            ..searched
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn base_and_what_is_found_make_the_new_content(
        base in base(),
        edits in prop::collection::vec(edit(), 0..8),
        block_len in prop_oneof![Just(1_u32), Just(7), Just(64), Just(700), Just(4096)],
        piece_len in prop_oneof![Just(13_usize), Just(1000), Just(100_000)],
    ) {
        let new = edited(&base, &edits);
        check(&base, block_len, &new, piece_len);
    }

    #[test]
    fn holes_on_either_side_stay_right(
        seed in any::<u64>(),
        lens in prop::collection::vec((any::<bool>(), 0..200_000_u64), 1..8),
        shift in 0..3000_usize,
        block_len in prop_oneof![Just(700_u32), Just(4096), Just(65_536)],
    ) {
        let (content, places) = content_with_holes(seed, &lens);
        let parts: Vec<_> = places.iter().map(|place| place.of(&content)).collect();
        // The base has the holes; the new content is a suffix of it.
        let new = &content[shift.min(content.len())..];
        let (list, _) = search(new, block_len, &parts);
        for run in list.runs() {
            let (start, end) = (run.range.start() as usize, run.range.end() as usize);
            prop_assert!(new[start..end] == content[run.base_offset as usize..][..end - start]);
        }
        // The new content has the holes; the base has extra bytes before it.
        let mut base = noise(!seed, shift);
        base.extend_from_slice(&content);
        let (list, _) = search(&content, block_len, &[Part::Bytes(&base)]);
        let mut reported = MatchedContent::new(&list, FoundExtents::default());
        for place in &places {
            match place.of(&content) {
                Part::Bytes(bytes) => reported.push(place.range.start(), bytes).unwrap(),
                Part::Hole(_) => reported.push_hole(place.range).unwrap(),
            }
        }
        let (found, stats) = reported.finish().unwrap();
        prop_assert!(compose(&base, &found.extents) == content);
        let long: u64 = places.iter().filter(|place| place.is_hole).map(|place| place.range.len_bytes()).filter(|len| *len >= HOLE_LEN_MIN).sum();
        prop_assert!(stats.zero_bytes >= long, "long holes stay holes: {:?}", stats);
    }
}

#[test]
fn sizes_around_a_block() {
    const B: usize = 700;
    let content = noise(9, 4 * B + 2);
    let sizes = [0, 1, B - 1, B, B + 1, 2 * B - 1, 2 * B, 2 * B + 1, 4 * B + 2];
    for base in sizes {
        for new in sizes {
            let (list, _) = check(&content[..base], B as u32, &content[..new], 4096);
            // Whole blocks, and the last, shorter one where the base ends there or goes on.
            let common = if base >= new { new } else { base / B * B };
            let missing: u64 = list.missing().map(ByteRange::len_bytes).sum();
            assert_eq!(missing, (new - common) as u64, "{base} to {new}");
        }
    }
}

#[test]
fn reverse_search_costs_the_edit_and_hashes_the_base_about_once() {
    const B: u32 = 2048;
    let base = noise(1, 4 << 20);
    let slack = 2 * u64::from(B);
    let mut new = base.clone();
    new.splice(1_234_567..1_234_567, noise(2, 5000));
    let (list, stats) = check(&base, B, &new, 65_536);
    assert!(stats.literal_bytes <= 5000 + slack, "{stats:?}");
    // After the insertion the new content's blocks are at other offsets of the base: found once,
    // then followed.
    assert!(stats.strong_bytes <= base.len() as u64 + 8 * slack, "{stats:?}");
    assert_eq!(list.runs().len(), 2);
    let mut stream = Vec::new();
    list.write(&mut stream).unwrap();
    assert!(stream.len() < 80, "{}", stream.len());
    let mut new = base.clone();
    new.drain(1_000_001..1_500_002);
    assert!(check(&base, B, &new, 65_536).1.literal_bytes <= slack);
    let mut new = base.clone();
    new.rotate_left(1_000_003);
    assert!(check(&base, B, &new, 65_536).1.literal_bytes <= 2 * slack);
}

#[test]
fn blocks_that_are_equal_are_found_by_one_place() {
    const B: usize = 1000;
    let (a, b, c) = (noise(1, B), noise(2, B), noise(3, B));
    // The base has `b` only after `a`, and `c` twice, nowhere in place.
    let base = [&noise(9, 333)[..], &a, &b, &c].concat();
    let new = [&b[..], &b, &c, &c, &a, &b, &b].concat();
    let (list, stats) = check(&base, B as u32, &new, 100);
    assert_eq!(stats.literal_bytes, 0, "{list:?}");
    // The place at the same offset is kept, even if it comes later.
    let base = [&b[..], &a, &b, &b].concat();
    let new = [&c[..], &c, &c, &b].concat();
    let (list, _) = check(&base, B as u32, &new, 100);
    assert_eq!(list.runs()[0].base_offset, 3 * B as u64);
}

#[test]
fn reverse_search_of_a_hole_does_not_multiply_base_zeros() {
    let base = [noise(1, 100_000), vec![0; 100_000]].concat();
    let new = [noise(1, 100_000), vec![0; 4 << 20]].concat();
    let (list, _) = search(&new, 4096, &[Part::Bytes(&base)]);
    assert_eq!(list.missing().count(), 0, "zeros are in the base");
    let mut reported = MatchedContent::new(&list, FoundExtents::default());
    let hole = ByteRange::new(100_000, new.len() as u64).unwrap();
    reported.push_hole(hole).unwrap();
    let (found, stats) = reported.finish().unwrap();
    assert_eq!(stats.zero_bytes, hole.len_bytes());
    assert!(compose(&base, &found.extents) == new);
}

#[test]
fn crafted_signatures_cost_little_more_than_the_base() {
    const B: usize = 4096;
    let crafted = |seed: usize| {
        let mut block = vec![100; B];
        let at = (seed * 4) % (B - 4);
        for (index, change) in [1_i8, -1, -1, 1].into_iter().enumerate() {
            block[at + index] = 100_u8.wrapping_add_signed(change);
        }
        block
    };
    // Each window of the base has the weak checksum of all blocks, and equals none.
    let new: Vec<u8> = (0..512).flat_map(crafted).collect();
    let base = vec![100; 4 << 20];
    let (list, stats) = search(&new, B as u32, &[Part::Bytes(&base)]);
    assert!(list.runs().is_empty());
    assert!(stats.strong_bytes <= 2 * base.len() as u64, "{stats:?}");
}

#[test]
fn bytes_that_are_missing_or_out_of_order_are_refused() {
    let base = noise(1, 10_000);
    let mut new = base.clone();
    new[5000] ^= 1;
    new[9000] ^= 1;
    let (list, _) = search(&new, 1000, &[Part::Bytes(&base)]);
    let missing: Vec<_> = list.missing().map(|range| (range.start(), range.end())).collect();
    assert_eq!(missing, [(5000, 6000), (9000, 10_000)]);
    let begin = || MatchedContent::new(&list, FoundExtents::default());
    let missing = |range: (u64, u64), error| {
        let expected = ByteRange::new(range.0, range.1).unwrap();
        assert!(
            matches!(error, Some(MatchedError::Missing { range }) if range == expected),
            "{error:?}"
        );
    };
    missing((5000, 6000), begin().finish().err());
    let mut content = begin();
    content.push(5000, &new[5000..5500]).unwrap();
    missing((5500, 6000), content.push(9000, &new[9000..]).err());
    let mut content = begin();
    content.push(0, &new[..9500]).unwrap();
    assert!(matches!(
        content.push(9400, &new[9400..]),
        Err(MatchedError::OutOfOrder {
            offset: 9400,
            expected: 9500
        })
    ));
    // A file that grew or shrank meanwhile.
    assert!(matches!(
        begin().push(9000, &[0; 1001]),
        Err(MatchedError::OutOfOrder { .. })
    ));
    assert!(matches!(
        begin().push(u64::MAX, &[0; 2]),
        Err(MatchedError::OutOfOrder { .. })
    ));
    missing((9500, 10_000), content.finish().err());
}

#[test]
fn a_last_block_of_unknown_length_is_no_match_of_a_whole_one() {
    let new = noise(1, 3 * 4096 + 1000);
    let params = crate::librsync_params(4096 * 4096);
    let mut writer = crate::LibrsyncSignatureWriter::new(Vec::new(), params).unwrap();
    writer.push(&new).unwrap();
    let signature = writer.finish().unwrap();
    let index = BlockIndex::new(crate::read_librsync_signature(&signature[..], None, 10).unwrap());
    let mut finder = ReverseFinder::new(&index);
    finder.push(&new);
    let (list, _) = finder.finish();
    assert_eq!(list.runs().len(), 1);
    assert_eq!(list.runs()[0].range.end(), 3 * 4096);
}
