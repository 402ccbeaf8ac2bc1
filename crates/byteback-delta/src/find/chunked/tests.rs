//! Random edits through lists, answers and their bytes; proof of matches; crafted lists; bounds on
//! literals.

use byteback_extents::ExtentSet;
use proptest::prelude::*;

use super::super::edits::{Found, Part, base, compose, content_with_holes, edit, edited, through_a_delta};
use super::*;
use crate::apply::Base;
use crate::chunks::{ChunkLister, ChunkParams, MatchParams, list_chunks, list_chunks_with_crcs, with_slack};
use crate::crc::{CrcKind, CrcList, LastBlock, RangeCrcs};
use crate::find::FoundExtents;
use crate::model::noise;

fn small() -> ChunkParams {
    ChunkParams::new(64, 256, 400).unwrap()
}

fn list_of(content: &[u8], params: ChunkParams) -> ChunkList {
    list_chunks(content, None, params, CrcKind::Crc32c).unwrap().0
}

/// The list as it arrives from the wire.
fn sent_list(list: &ChunkList) -> ChunkList {
    let mut bytes = Vec::new();
    list.write_to(&mut bytes).unwrap();
    ChunkList::read(&bytes[..], u64::MAX).unwrap()
}

fn sent_answer(answer: &MatchAnswer, list: &ChunkList) -> MatchAnswer {
    let mut bytes = Vec::new();
    answer.write_to(list, &mut bytes).unwrap();
    MatchAnswer::read(&bytes[..], list).unwrap()
}

fn answer_to(list: &ChunkList, base: &[u8], base_list: &ChunkList) -> MatchAnswer {
    let list = sent_list(list);
    let runs = match_chunks(&list, base_list);
    let (answer, _) = prove_matches(&list, &runs, base, MatchParams::new(7)).unwrap();
    sent_answer(&answer, &list)
}

fn find_parts(list: &ChunkList, answer: &MatchAnswer, parts: &[Part<'_>]) -> (Vec<Found>, FindStats) {
    let mut finder = ChunkFinder::new(list, answer, FoundExtents::default());
    for part in parts {
        match part {
            Part::Bytes(bytes) => finder.push(bytes).unwrap(),
            Part::Hole(len) => finder.push_hole(*len).unwrap(),
        }
    }
    let (found, stats) = finder.finish().unwrap();
    (found.extents, stats)
}

/// Runs the whole exchange, checks that the extents make exactly the new content, and returns the
/// statistics.
fn check(base: &[u8], new: &[u8], params: ChunkParams, piece_len: usize) -> FindStats {
    let mut lister = ChunkLister::new(params, CrcKind::Crc32c);
    new.chunks(piece_len).for_each(|piece| lister.push(piece));
    let (list, _) = lister.finish();
    let answer = answer_to(&list, base, &list_of(base, params));
    let parts: Vec<_> = new.chunks(piece_len).map(Part::Bytes).collect();
    let (extents, stats) = find_parts(&list, &answer, &parts);
    assert_eq!(compose(base, &extents), new);
    assert_eq!(stats.literal_bytes + stats.copied_bytes, new.len() as u64);
    assert_eq!(stats.examined_bytes, new.len() as u64);
    // No byte is hashed twice, however the answer looks.
    assert!(stats.strong_bytes <= new.len() as u64);
    through_a_delta(base, new, |sink| {
        let mut finder = ChunkFinder::new(&list, &answer, sink);
        finder.push(new).unwrap();
        let (_, in_one) = finder.finish().unwrap();
        assert_eq!(in_one, stats, "pieces change nothing");
    });
    stats
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn base_and_what_is_found_make_the_new_content(
        base in base(),
        edits in prop::collection::vec(edit(), 0..8),
        inverse in any::<Option<(u16, u16)>>(),
        piece_len in prop_oneof![Just(1_usize), Just(63), Just(1000), Just(100_000)],
        large in any::<bool>(),
    ) {
        let mut new = edited(&base, &edits);
        if let Some((start, len)) = inverse {
            new.iter_mut().skip(usize::from(start)).take(usize::from(len)).for_each(|byte| *byte = !*byte);
        }
        check(&base, &new, if large { ChunkParams::for_content(0) } else { small() }, piece_len);
    }

    #[test]
    fn holes_anywhere_stay_right(
        seed in any::<u64>(),
        lens in prop::collection::vec((any::<bool>(), 0..200_000_u64), 1..8),
        shift in 0..3000_usize,
        has_hole_in_list in any::<bool>(),
    ) {
        let (new, places) = content_with_holes(seed, &lens);
        let mut base = noise(!seed, shift);
        base.extend(&new);
        let params = ChunkParams::for_content(0);
        let mut lister = ChunkLister::new(params, CrcKind::Crc32c);
        for place in &places {
            match place.of(&new) {
                Part::Hole(len) if has_hole_in_list => lister.push_hole(len),
                _ => lister.push(&new[place.range.start() as usize..place.range.end() as usize]),
            }
        }
        let (list, _) = lister.finish();
        let answer = answer_to(&list, &base, &list_of(&base, params));
        let parts: Vec<_> = places.iter().map(|place| place.of(&new)).collect();
        let (extents, stats) = find_parts(&list, &answer, &parts);
        prop_assert_eq!(compose(&base, &extents), new);
        prop_assert_eq!(stats.literal_bytes + stats.copied_bytes + stats.zero_bytes, base.len() as u64 - shift as u64);
    }

    #[test]
    fn chunk_finder_yields_the_content_for_any_list_and_answer(
        seed in any::<u64>(),
        edits in prop::collection::vec(edit(), 1..5),
        known in prop::collection::vec((0..30_000_u64, 1..3000_u64), 0..4),
    ) {
        // The new content changed after its list was made; parts of it are passed as known by other
        // means.
        let base = noise(seed, 30_000);
        let list = list_of(&base, small());
        let answer = answer_to(&list, &base, &list);
        let new = edited(&base, &edits);
        let mut equal = ExtentSet::new();
        for (start, len) in known {
            let end = (start + len).min(new.len() as u64).min(base.len() as u64);
            let same = |range: &ByteRange| {
                let range = range.start() as usize..range.end() as usize;
                base[range.clone()] == new[range]
            };
            if let Some(range) = ByteRange::new(start, end).filter(same) {
                equal.insert(range);
            }
        }
        let mut finder = ChunkFinder::new(&list, &answer, FoundExtents::default());
        let mut at = 0;
        for range in equal.iter() {
            finder.push(&new[at..range.start() as usize]).unwrap();
            finder.push_known(range.len_bytes(), range.start()).unwrap();
            at = range.end() as usize;
        }
        finder.push(&new[at..]).unwrap();
        let (found, stats) = finder.finish().unwrap();
        prop_assert_eq!(compose(&base, &found.extents), new);
        prop_assert!(stats.copied_bytes >= equal.total_len_bytes());
    }

    #[test]
    fn unproven_segments_are_right_where_lists_are(
        seed in any::<u64>(),
        lens in prop::collection::vec((any::<bool>(), 0..100_000_u64), 1..6),
        edits in prop::collection::vec(edit(), 0..5),
        is_unread in any::<bool>(),
    ) {
        let (new, places) = content_with_holes(seed, &lens);
        let list = list_of(&new, small());
        let base = edited(&new, &edits);
        let runs = match_chunks(&list, &list_of(&base, small()));
        let (answer, _) = prove_matches(&list, &runs, &base[..], MatchParams::for_whole_proof(7)).unwrap();
        let answer = sent_answer(&answer, &list);
        let mut finder = ChunkFinder::new(&list, &answer, FoundExtents::default());
        let mut at = 0;
        while is_unread && at < new.len() {
            match finder.pass_unproven().unwrap() {
                0 => {
                    let len = (at % 500 + 1).min(new.len() - at);
                    finder.push(&new[at..at + len]).unwrap();
                    at += len;
                }
                passed => at += passed as usize,
            }
            prop_assert_eq!(finder.position(), at as u64);
        }
        if !is_unread {
            for place in &places {
                match place.of(&new) {
                    Part::Hole(len) => finder.push_hole(len).unwrap(),
                    Part::Bytes(bytes) => finder.push(bytes).unwrap(),
                }
            }
        }
        let (found, _) = finder.finish().unwrap();
        prop_assert_eq!(compose(&base, &found.extents), new);
    }

    #[test]
    fn known_checksums_change_nothing_and_stale_ones_only_the_cost(
        seed in any::<u64>(),
        edits in prop::collection::vec(edit(), 0..5),
        stale in prop::collection::vec(0..100_usize, 0..4),
    ) {
        let base = noise(seed, 60_000);
        let new = edited(&base, &edits);
        let params = ChunkParams::new(256, 1024, 3000).unwrap();
        let with_crcs = |content: &[u8], stale: &[usize]| {
            let mut of = content.to_vec();
            for &block in stale {
                if let Some(byte) = of.get_mut(block * 512) {
                    *byte ^= 1;
                }
            }
            let crcs = CrcList::of(&of, CrcKind::Crc32c, 512, LastBlock::ZeroPadded);
            list_chunks_with_crcs(content, None, params, &mut RangeCrcs::new(crcs)).unwrap().0
        };
        prop_assert_eq!(with_crcs(&new, &[]), list_of(&new, params));
        // Blocks that changed without their checksums: in the new content, and in the base.
        for (list, base_list) in [
            (with_crcs(&new, &stale), list_of(&base, params)),
            (list_of(&new, params), with_crcs(&base, &stale)),
            (with_crcs(&new, &stale), with_crcs(&base, &stale)),
        ] {
            let answer = answer_to(&list, &base, &base_list);
            let (extents, _) = find_parts(&list, &answer, &[Part::Bytes(&new)]);
            prop_assert_eq!(compose(&base, &extents), new.clone());
        }
    }
}

#[test]
fn sizes_around_the_limits_of_chunks() {
    for len in [0, 1, 63, 64, 65, 255, 256, 399, 400, 401, 800, 801] {
        let base = noise(len as u64, len);
        let stats = check(&base, &base, small(), 100);
        assert_eq!(stats.copied_bytes, len as u64, "all of it is found");
        let mut longer = base.clone();
        longer.push(1);
        check(&base, &longer, small(), 7);
        check(&longer, &base, small(), 7);
    }
}

#[test]
fn chunk_finder_finds_unchanged_content_in_one_extent() {
    let base = noise(1, 3_000_000);
    let list = list_of(&base, ChunkParams::for_content(0));
    let answer = answer_to(&list, &base, &list);
    let (extents, stats) = find_parts(&list, &answer, &[Part::Bytes(&base)]);
    assert_eq!(extents.len(), 1);
    assert_eq!(stats.copied_bytes, 3_000_000);
    assert!(answer.segments().len() < 25);
}

#[test]
fn an_edit_costs_a_few_chunks_wherever_it_is() {
    let params = ChunkParams::for_content(0);
    let base = noise(2, 4_000_000);
    for at in [0, 1, 5000, 1_234_567, 3_999_999, 4_000_000] {
        let mut new = base.clone();
        new.splice(at..at, noise(3, 256));
        let stats = check(&base, &new, params, 1 << 20);
        assert!(stats.literal_bytes < 5 * 12_288, "insertion at {at}: {stats:?}");
        let mut new = base.clone();
        new.drain(at.min(3_999_000)..(at + 256).min(4_000_000));
        let stats = check(&base, &new, params, 1 << 20);
        assert!(stats.literal_bytes < 5 * 12_288, "cut at {at}: {stats:?}");
    }
    // The halves exchanged.
    let mut new = base[2_000_000..].to_vec();
    new.extend(&base[..2_000_000]);
    let stats = check(&base, &new, params, 1 << 20);
    assert!(stats.literal_bytes < 8 * 12_288, "{stats:?}");
}

#[test]
fn chunk_finder_finds_repetitions_each_time() {
    let params = ChunkParams::for_content(0);
    let base = noise(5, 300_000);
    let new = base.repeat(20);
    let list = list_of(&new, params);
    let runs = match_chunks(&list, &list_of(&base, params));
    let (answer, read_bytes) = prove_matches(&list, &runs, &base[..], MatchParams::new(1)).unwrap();
    assert!(read_bytes <= READS_PER_BASE * 300_000);
    assert!(read_bytes < 700_000, "the same is hashed once: {read_bytes}");
    let (extents, stats) = find_parts(&list, &answer, &[Part::Bytes(&new)]);
    assert_eq!(compose(&base, &extents), new);
    assert!(stats.literal_bytes < 20 * 2 * 12_288, "{stats:?}");
}

#[test]
fn equal_weak_checksums_of_different_bytes_are_no_copy() {
    // The list of a content is believed; the content is another one of the same length.
    let base = noise(1, 100_000);
    let list = list_of(&base, small());
    let answer = answer_to(&list, &base, &list);
    let mut new = base.clone();
    new[50_000] ^= 1;
    let (extents, stats) = find_parts(&list, &answer, &[Part::Bytes(&new)]);
    assert_eq!(compose(&base, &extents), new);
    assert_eq!(stats.literal_bytes, 100_000, "one segment, and it is wrong");
}

#[test]
fn ranges_known_to_be_equal_are_neither_read_nor_listed() {
    // An overwrite in the middle and an insertion after it; storage reports everything before as
    // equal.
    let base = noise(1, 3_000_000);
    let mut new = base.clone();
    new[1_500_000..1_500_100].fill(7);
    new.splice(2_000_000..2_000_000, noise(2, 1000));
    let params = ChunkParams::for_content(0);
    let range = |start, end| ByteRange::new(start, end).unwrap();
    let unequal = |len| {
        let mut unequal = ExtentSet::new();
        unequal.insert(range(1_499_136, 1_503_232));
        unequal.insert(range(1_998_848, len));
        unequal
    };
    let (new_len, base_len) = (new.len() as u64, base.len() as u64);
    let look_at = with_slack(&unequal(new_len), params, new_len);
    let base_look_at = with_slack(&unequal(base_len), params, base_len);
    let (list, stats) = list_chunks(&new[..], Some(&look_at), params, CrcKind::Crc32c).unwrap();
    assert!(stats.examined_bytes < 1_350_000);
    let (base_list, _) = list_chunks(&base[..], Some(&base_look_at), params, CrcKind::Crc32c).unwrap();
    let answer = answer_to(&list, &base, &base_list);
    let mut finder = ChunkFinder::new(&list, &answer, FoundExtents::default());
    let mut at = 0;
    for part in look_at.iter() {
        finder.push_known(part.start() - at, at).unwrap();
        finder.push(&new[part.start() as usize..part.end() as usize]).unwrap();
        at = part.end();
    }
    assert_eq!(at, new_len);
    let (found, stats) = finder.finish().unwrap();
    assert_eq!(compose(&base, &found.extents), new);
    assert!(stats.literal_bytes < 8 * 12_288, "{stats:?}");
    assert!(stats.examined_bytes < 1_350_000);
}

#[test]
fn a_gap_of_the_base_is_in_no_run() {
    // The base has a hole between two chunks that are adjacent in the new content.
    let new = noise(6, 50_000);
    let list = list_of(&new, small());
    let cut = list.get(100).unwrap().range.start();
    let hole = small().hole_len_min();
    let (before, behind) = new.split_at(cut as usize);
    let mut lister = ChunkLister::new(small(), CrcKind::Crc32c);
    lister.push(before);
    lister.push_hole(hole);
    lister.push(behind);
    let (base_list, _) = lister.finish();
    let base = [before, &vec![0; hole as usize], behind].concat();
    let runs = match_chunks(&list, &base_list);
    assert_eq!(runs.len(), 2);
    assert_eq!((runs[1].first_chunk, runs[1].base_offset), (100, cut + hole));
    for params in [MatchParams::new(1), MatchParams::for_whole_proof(1)] {
        let (answer, _) = prove_matches(&list, &runs, &base[..], params).unwrap();
        let (extents, stats) = find_parts(&list, &answer, &[Part::Bytes(&new)]);
        assert_eq!(compose(&base, &extents), new);
        assert_eq!(stats.copied_bytes, 50_000);
    }
    // And the other way round: a hole of the new content.
    let runs = match_chunks(&base_list, &list);
    assert_eq!(runs.len(), 2);
    for params in [MatchParams::new(1), MatchParams::for_whole_proof(1)] {
        let (answer, _) = prove_matches(&base_list, &runs, &new[..], params).unwrap();
        let parts = [Part::Bytes(before), Part::Hole(hole), Part::Bytes(behind)];
        let (extents, stats) = find_parts(&base_list, &answer, &parts);
        assert_eq!(compose(&new, &extents), base);
        assert_eq!(stats.copied_bytes, 50_000);
    }
}

#[test]
fn lists_cut_by_other_rules_have_nothing_in_common() {
    let content = noise(1, 50_000);
    let list = list_of(&content, small());
    let other = list_of(&content, ChunkParams::new(64, 256, 401).unwrap());
    assert_eq!(match_chunks(&list, &other), []);
    let (other, _) = list_chunks(&content[..], None, small(), CrcKind::Crc32).unwrap();
    assert_eq!(match_chunks(&list, &other), []);
    assert_eq!(match_chunks(&list, &list).len(), 1);
}

/// A base that counts the bytes read.
struct Counted(Vec<u8>, std::cell::Cell<u64>);

impl Base for Counted {
    fn len_bytes(&self) -> std::io::Result<u64> {
        Base::len_bytes(&self.0[..])
    }

    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        self.1.set(self.1.get() + buffer.len() as u64);
        self.0[..].read_range(offset, buffer)
    }
}

#[test]
fn a_list_that_takes_the_base_to_pieces_is_bounded_work() {
    // Runs that begin at every chunk of the base, each as long as a segment: all are different.
    let base = Counted(noise(1, 200_000), std::cell::Cell::new(0));
    let base_list = list_of(&base.0, small());
    let mut new = Vec::new();
    for start in (0..100_000).step_by(300) {
        new.extend(&base.0[start..start + 90_000]);
    }
    let list = list_of(&new, small());
    let runs = match_chunks(&list, &base_list);
    let paired: u64 = runs
        .iter()
        .filter_map(|run| range_of(&list, run.first_chunk, run.chunks))
        .map(ByteRange::len_bytes)
        .sum();
    assert!(paired > 20_000_000, "{paired}");
    let (answer, read_bytes) = prove_matches(&list, &runs, &base, MatchParams::new(1)).unwrap();
    assert_eq!(read_bytes, base.1.get());
    assert!(read_bytes <= READS_PER_BASE * 200_000);
    let (extents, _) = find_parts(&list, &answer, &[Part::Bytes(&new)]);
    assert_eq!(compose(&base.0, &extents), new);
}

#[test]
fn a_million_equal_chunks_are_no_more_work_than_others() {
    // Zeros at both ends: all chunks but the last have one key.
    let params = ChunkParams::new(64, 256, 256).unwrap();
    let zeros = vec![0; 64 << 20];
    let list = list_of(&zeros, params);
    assert_eq!(list.len(), 1 << 18);
    let shifted = list_of(&zeros[..(32 << 20) - 1], params);
    for (new, base) in [(&list, &list), (&list, &shifted), (&shifted, &list)] {
        let runs = match_chunks(new, base);
        let paired: usize = runs.iter().map(|run| run.chunks).sum();
        assert!(paired >= new.len().min(base.len()) - 1);
    }
}

#[test]
fn errors_of_the_base_are_told() {
    let content = noise(1, 100_000);
    let list = list_of(&content, small());
    let runs = match_chunks(&list, &list);
    assert!(prove_matches(&list, &runs, &content[..50_000], MatchParams::new(1)).is_err());
}

/// A base that records the offsets read.
struct Noted(Vec<u8>, std::cell::RefCell<Vec<u64>>);

impl Base for Noted {
    fn len_bytes(&self) -> std::io::Result<u64> {
        Base::len_bytes(&self.0[..])
    }

    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        self.1.borrow_mut().push(offset);
        self.0[..].read_range(offset, buffer)
    }
}

#[test]
fn a_base_is_read_from_front_to_back_whatever_the_list() {
    // The base's pieces in reverse order, and some of them twice.
    let base = Noted(noise(1, 2_000_000), std::cell::RefCell::default());
    let mut new: Vec<u8> = base.0.chunks(40_000).rev().flatten().copied().collect();
    new.extend(&base.0[500_000..900_000]);
    let list = list_of(&new, small());
    let runs = match_chunks(&list, &list_of(&base.0, small()));
    let (answer, _) = prove_matches(&list, &runs, &base, MatchParams::new(1)).unwrap();
    let reads = base.1.borrow();
    assert!(reads.len() > 50 && reads.is_sorted(), "{reads:?}");
    let (extents, stats) = find_parts(&list, &answer, &[Part::Bytes(&new)]);
    assert_eq!(compose(&base.0, &extents), new);
    assert!(stats.literal_bytes < 100_000, "{stats:?}");
}

proptest! {
    #[test]
    fn what_an_answer_needs_is_all_but_what_is_unproven(
        seed in any::<u64>(),
        edits in prop::collection::vec(edit(), 0..8),
        len in 0..60_000_usize,
    ) {
        let base = noise(seed, len);
        let new = edited(&base, &edits);
        let list = list_of(&new, small());
        let runs = match_chunks(&list, &list_of(&base, small()));
        for params in [MatchParams::new(1), MatchParams::for_whole_proof(1)] {
            let (answer, _) = prove_matches(&list, &runs, &base[..], params).unwrap();
            let needed: ExtentSet = answer.needed(&list).collect();
            let mut finder = ChunkFinder::new(&list, &answer, FoundExtents::default());
            for range in needed.iter() {
                while finder.position() < range.start() {
                    prop_assert!(finder.pass_unproven().unwrap() > 0);
                }
                finder.push(&new[range.start() as usize..range.end() as usize]).unwrap();
            }
            while finder.position() < new.len() as u64 {
                prop_assert!(finder.pass_unproven().unwrap() > 0);
            }
            let (found, stats) = finder.finish().unwrap();
            prop_assert_eq!(compose(&base, &found.extents), &new[..]);
            prop_assert_eq!(stats.examined_bytes, needed.total_len_bytes());
            let proven = answer.segments().iter().all(Segment::is_proven);
            prop_assert!(!proven || needed.total_len_bytes() == new.len() as u64);
        }
    }
}
