//! Random edits, checked by applying the delta to the base; the cost of edits; holes; crafted
//! contents; contents that cannot be read.

use std::cell::Cell;

use proptest::prelude::*;

use super::*;
use crate::find::FoundExtents;
use crate::find::edits::{Found, Place, base, compose, content_with_holes, edit, edited, through_a_delta};
use crate::model::noise;
use crate::source::Source;

/// A content that knows its holes and counts the bytes read.
struct Sparse<'a> {
    bytes: &'a [u8],
    places: &'a [Place],
    read_bytes: Cell<u64>,
}

impl<'a> Sparse<'a> {
    fn new(bytes: &'a [u8], places: &'a [Place]) -> Self {
        Self {
            bytes,
            places,
            read_bytes: Cell::new(0),
        }
    }
}

impl Base for Sparse<'_> {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.bytes.len() as u64)
    }

    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read_bytes.set(self.read_bytes.get() + buffer.len() as u64);
        self.bytes.read_range(offset, buffer)
    }

    fn next_data(&self, range: ByteRange) -> io::Result<Option<ByteRange>> {
        let mut data = self.places.iter().filter(|place| !place.is_hole);
        Ok(data.find_map(|place| place.range.intersect(range)))
    }
}

fn find(base: &(impl Base + ?Sized), new: &(impl Base + ?Sized)) -> (Vec<Found>, FindStats) {
    let (found, stats) = find_local(base, new, FoundExtents::default()).unwrap();
    let new_len = new.len_bytes().unwrap();
    assert_eq!(stats.literal_bytes + stats.copied_bytes + stats.zero_bytes, new_len);
    assert_eq!(stats.strong_bytes, 0);
    (found.extents, stats)
}

/// Runs the finder, checks that the extents make exactly the new content, directly and through a
/// delta.
fn check(base: &[u8], new: &[u8]) -> (Vec<Found>, FindStats) {
    let (extents, stats) = find(base, new);
    assert!(compose(base, &extents) == new);
    assert_eq!(stats.examined_bytes, new.len() as u64);
    for pair in extents.windows(2) {
        // Adjacent copies are merged into one extent.
        if let (Source::Copy { base_offset: from }, Source::Copy { base_offset: next }) = (&pair[0].1, &pair[1].1) {
            assert_ne!(from + pair[0].0.len_bytes(), *next);
        }
    }
    through_a_delta(base, new, |sink| {
        find_local(base, new, sink).unwrap();
    });
    (extents, stats)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 800, ..ProptestConfig::default() })]

    #[test]
    fn base_and_what_is_found_make_the_new_content(
        base in base(),
        edits in prop::collection::vec(edit(), 0..8),
    ) {
        let new = edited(&base, &edits);
        check(&base, &new);
        check(&new, &base);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn contents_of_many_pieces(
        seed in any::<u64>(),
        len in 200_000..3_000_000_usize,
        values in prop_oneof![Just(255_u8), Just(1)],
        edits in prop::collection::vec((any::<u32>(), 0..400_000_usize, 0..4_u8), 0..6),
    ) {
        let base: Vec<u8> = noise(seed, len).iter().map(|byte| byte & values).collect();
        let mut new = base.clone();
        for (at, len, kind) in edits {
            let at = at as usize % (new.len() + 1);
            let end = (at + len).min(new.len());
            match kind {
                0 => drop(new.splice(at..at, noise(seed ^ 5, len / 100))),
                1 => drop(new.drain(at..end)),
                2 => new[at..end].fill(9),
                _ => new[..end].rotate_left(at.min(end)),
            }
        }
        check(&base, &new);
    }

    #[test]
    fn holes_anywhere_stay_right(
        seed in any::<u64>(),
        lens in prop::collection::vec((any::<bool>(), 0..200_000_u64), 1..8),
        base_lens in prop::collection::vec((any::<bool>(), 0..200_000_u64), 1..8),
        is_related in any::<bool>(),
    ) {
        let (new, places) = content_with_holes(seed, &lens);
        let base_seed = if is_related { seed } else { !seed };
        let (base, base_places) = content_with_holes(base_seed, &base_lens);
        let (extents, stats) = find(&Sparse::new(&base, &base_places), &Sparse::new(&new, &places));
        prop_assert!(compose(&base, &extents) == new);
        let long_hole_bytes: u64 = places
            .iter()
            .filter(|place| place.is_hole)
            .map(|place| place.range.len_bytes())
            .filter(|len| *len >= HOLE_LEN_MIN)
            .sum();
        prop_assert!(stats.examined_bytes <= new.len() as u64 - long_hole_bytes);
        for place in places.iter().filter(|place| place.is_hole) {
            for (range, source) in &extents {
                prop_assert!(!matches!(source, Source::Literal(_)) || range.intersect(place.range).is_none());
            }
        }
    }
}

#[test]
fn sizes_around_a_cell_a_block_and_a_piece() {
    let content = noise(9, 2 * PIECE_LEN + 200);
    let sizes = [
        0,
        1,
        63,
        64,
        65,
        127,
        128,
        129,
        4096,
        PIECE_LEN - 1,
        PIECE_LEN,
        PIECE_LEN + 1,
        PIECE_LEN + 64,
        2 * PIECE_LEN,
        content.len(),
    ];
    for base in sizes {
        for new in sizes {
            let (_, stats) = check(&content[..base], &content[..new]);
            assert_eq!(stats.copied_bytes, base.min(new) as u64, "{base} to {new}");
            // Bytes removed or added at the beginning: the common end is found.
            let at = |len: usize| &content[content.len() - len..];
            let (_, stats) = check(at(base), at(new));
            // Another byte may be equal by chance.
            let copied = stats.copied_bytes as usize;
            assert!(
                (base.min(new)..base.min(new) + 4).contains(&copied),
                "{base} to {new} at the end"
            );
        }
    }
}

#[test]
fn edits_cost_themselves_to_the_byte() {
    let base = noise(1, 4 << 20);
    let mut overwritten = base.clone();
    for at in (10_000..base.len()).step_by(30_000) {
        overwritten[at] ^= 1;
    }
    let (extents, stats) = check(&base, &overwritten);
    assert_eq!(stats.literal_bytes, (base.len() as u64 - 10_000).div_ceil(30_000));
    assert_eq!(extents.len() as u64, 2 * stats.literal_bytes + 1);

    let mut inserted = base.clone();
    inserted.splice(1_234_567..1_234_567, noise(2, 5000));
    // On either side, an inserted byte may equal the adjacent one by chance.
    assert!((4990..=5000).contains(&check(&base, &inserted).1.literal_bytes));

    let mut in_front = noise(3, 100);
    in_front.extend_from_slice(&base);
    assert!((95..=100).contains(&check(&base, &in_front).1.literal_bytes));

    let mut deleted = base.clone();
    deleted.drain(1_000_001..1_500_002);
    assert_eq!(check(&base, &deleted).1.literal_bytes, 0);

    // Two insertions, so that the part between them is at neither end.
    let mut twice = base.clone();
    twice.splice(3_000_000..3_000_000, noise(4, 77));
    twice.splice(1_000_000..1_000_000, noise(5, 99));
    let (extents, stats) = check(&base, &twice);
    assert!((166..=176).contains(&stats.literal_bytes), "{stats:?}");
    assert_eq!(extents.len(), 5);

    let mut moved = base.clone();
    let part: Vec<u8> = moved.drain(100_003..300_007).collect();
    moved.splice(3_000_000..3_000_000, part);
    let (extents, stats) = check(&base, &moved);
    assert_eq!((extents.len(), stats.literal_bytes), (4, 0), "{stats:?}");

    let mut appended = base.clone();
    appended.extend(noise(6, 300_000));
    let (_, stats) = check(&base, &appended);
    assert_eq!(stats.literal_bytes, 300_000);
}

#[test]
fn local_search_shifts_zeros_and_scattered_data_past_insertions() {
    // Half of it is zeros, which are equal at any shift. In place, half of the cells agree;
    // shifted, all do.
    let mut base = vec![0; 2 << 20];
    for at in (0..base.len()).step_by(8192) {
        base[at..at + 4096].copy_from_slice(&noise(at as u64, 4096));
    }
    let mut new = base.clone();
    new.insert(100_000, 7);
    new.insert(1_900_000, 7);
    let (_, stats) = check(&base, &new);
    assert!(stats.literal_bytes < 20_000, "{stats:?}");
}

#[test]
fn equal_blocks_stay_where_they_are() {
    let base = vec![5; 1 << 20];
    let mut new = base.clone();
    new[500_000] = 1;
    let (extents, stats) = check(&base, &new);
    assert_eq!((extents.len(), stats.literal_bytes), (3, 1));
}

#[test]
fn local_finder_sums_nothing_and_reads_little_in_place() {
    let base = noise(1, 4 << 20);
    let mut new = base.clone();
    new[2_000_000..2_000_100].fill(0);
    let places = [Place {
        is_hole: false,
        range: ByteRange::new(0, base.len() as u64).unwrap(),
    }];
    let (old, changed) = (Sparse::new(&base, &places), Sparse::new(&new, &places));
    find(&old, &changed);
    assert_eq!(
        (old.read_bytes.get(), changed.read_bytes.get()),
        (base.len() as u64, new.len() as u64)
    );
    // An insertion: the bytes after it are compared once more, from the end.
    new = base.clone();
    new.splice(1_000_000..1_000_000, noise(2, 1000));
    let places = [Place {
        is_hole: false,
        range: ByteRange::new(0, new.len() as u64).unwrap(),
    }];
    let changed = Sparse::new(&new, &places);
    old.read_bytes.set(0);
    find(&old, &changed);
    assert!(changed.read_bytes.get() < new.len() as u64 + 4 * PIECE_LEN as u64);
    assert!(old.read_bytes.get() < base.len() as u64 + 4 * PIECE_LEN as u64);
}

#[test]
fn local_search_finds_moves_despite_an_updated_list_at_the_end() {
    // Like an office document: text between pictures, and an index of their offsets at the end.
    let pictures = [noise(1, 3 << 20), noise(2, 5 << 20)];
    let document = |text: &[u8]| {
        let mut bytes = [&pictures[0], text, &pictures[1]].concat();
        for number in 0..30_u64 {
            bytes.extend_from_slice(&(text.len() as u64 + number).to_le_bytes());
            bytes.extend_from_slice(&noise(number, 90));
        }
        bytes
    };
    let (base, new) = (document(&noise(3, 100_000)), document(&noise(4, 100_321)));
    let (extents, stats) = check(&base, &new);
    assert!((100_300..105_000).contains(&stats.literal_bytes), "{stats:?}");
    assert!(extents.len() > 30);
    let place = |bytes: &[u8]| {
        let range = ByteRange::new(0, bytes.len() as u64).unwrap();
        [Place { is_hole: false, range }]
    };
    let (base_places, new_places) = (place(&base), place(&new));
    let (old, changed) = (Sparse::new(&base, &base_places), Sparse::new(&new, &new_places));
    find(&old, &changed);
    // Only the part between the equal ends was summed.
    assert!(old.read_bytes.get() < base.len() as u64 + 8 * PIECE_LEN as u64);
    assert!(changed.read_bytes.get() < new.len() as u64 + 8 * PIECE_LEN as u64);
}

#[test]
fn ends_that_differ_anyhow_are_told_as_they_are() {
    for seed in 0..200 {
        let mut random = noise(1000 + seed, 64).into_iter().map(usize::from);
        let mut number = |below: usize| {
            let (low, high) = (random.next().unwrap(), random.next().unwrap());
            (low | high << 8) % below
        };
        let base = noise(seed, 300_000 + number(60_000));
        let mut new = base.clone();
        let at = number(base.len().min(60_000));
        new.splice(at..at + number(300), noise(seed + 1, number(3000)));
        for _ in 0..number(12) {
            let at = new.len() - 1 - number(40_000);
            new[at] ^= 0x55;
        }
        new.truncate(new.len() - number(3) * number(70));
        check(&base, &new);
    }
}

#[test]
fn a_hole_of_a_tebibyte_is_not_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, parts: &[(u64, &[u8])], len: u64| {
        let path = dir.path().join(name);
        let file = std::fs::File::options()
            .create(true)
            .read(true)
            .write(true)
            .truncate(true)
            .open(path)
            .unwrap();
        for (at, bytes) in parts {
            std::os::unix::fs::FileExt::write_all_at(&file, bytes, *at).unwrap();
        }
        file.set_len(len).unwrap();
        file
    };
    let bytes = noise(5, 100_000);
    let base = file("base", &[(0, &bytes)], 1 << 40);
    let new = file("new", &[(0, &bytes[1..]), (1 << 39, &bytes)], 1 << 40);
    let (extents, stats) = find(&base, &new);
    assert!(stats.examined_bytes < 1 << 20, "{stats:?}");
    assert!(stats.literal_bytes < 100, "{stats:?}");
    assert!(extents.len() < 10, "{}", extents.len());
    // Equal contents: holes in place cost no extent.
    let same = file("same", &[(0, &bytes)], 1 << 40);
    let (extents, stats) = find(&base, &same);
    assert_eq!((extents.len(), stats.copied_bytes), (1, 1 << 40));
}

/// A content whose windows all have the weak checksum of some block of the base, but differ from it
/// in their last bytes.
#[test]
fn crafted_weak_checksums_cost_little_more_than_the_content() {
    let len = 4 << 20;
    let block = block_len(len as u64) as usize;
    // +1 -1 -1 +1 at the end of each block changes neither sum.
    let mut base = vec![100; len];
    for at in (block..=len).step_by(block) {
        let shift = (at / block) % 8;
        for (index, change) in [1_i8, -1, -1, 1].into_iter().enumerate() {
            base[at - 20 + shift + index] = 100_u8.wrapping_add_signed(change);
        }
    }
    let new = vec![100; len + 1];
    let places = [Place {
        is_hole: false,
        range: ByteRange::new(0, len as u64).unwrap(),
    }];
    let base = Sparse::new(&base, &places);
    let (_, stats) = find(&base, &new[..]);
    let read = base.read_bytes.get() as f64 / len as f64;
    assert!(read <= 8.0, "{read} bytes of the base read for one");
    assert_eq!(stats.examined_bytes, new.len() as u64);
}

/// A content that becomes shorter, or fails, after a number of bytes.
struct Failing<'a>(&'a [u8], usize);

impl Base for Failing<'_> {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0[..self.1].read_range(offset, buffer)
    }
}

#[test]
fn contents_that_cannot_be_read_are_named() {
    let content = noise(3, 1 << 20);
    let error = find_local(&content[..], &Failing(&content, 700_000), FoundExtents::default()).err();
    assert!(matches!(error, Some(LocalError::ReadNew { .. })), "{error:?}");
    let error = find_local(&Failing(&content, 700_000), &content[..], FoundExtents::default()).err();
    assert!(matches!(error, Some(LocalError::ReadBase { .. })), "{error:?}");
}

struct Full;

impl ExtentSink for Full {
    type Error = &'static str;

    fn literal(&mut self, _: u64, _: &[u8]) -> Result<(), Self::Error> {
        Err("full")
    }

    fn copy(&mut self, _: ByteRange, _: u64) -> Result<(), Self::Error> {
        Err("full")
    }

    fn zero(&mut self, _: ByteRange) -> Result<(), Self::Error> {
        Err("full")
    }
}

#[test]
fn a_sink_that_refuses_ends_it() {
    for (base, new) in [(&b"abc"[..], &b"abc"[..]), (b"", b"abc")] {
        assert!(matches!(find_local(base, new, Full), Err(LocalError::Sink("full"))));
    }
    assert!(
        find_local(&b"abc"[..], &b""[..], Full).is_ok(),
        "nothing is told of nothing"
    );
}

#[test]
fn differences_are_exact_to_the_byte() {
    let a = noise(1, 1000);
    let mut b = a.clone();
    for at in [0, 5, 300, 301, 999] {
        b[at] ^= 1;
    }
    let mut found = Vec::new();
    let mut from = 0;
    while let Some((start, end)) = next_difference(&a, &b, from) {
        found.push((start, end));
        from = end;
    }
    assert_eq!(found, [(0, 6), (300, 302), (999, 1000)]);
    assert_eq!(common_suffix(&a, &b), 0);
    assert_eq!(common_suffix(&a[..999], &b[..999]), 999 - 302);
    assert_eq!(common_prefix(&a[6..], &b[6..]), 294);
}

#[test]
fn local_search_rejects_windows_differing_at_their_end_cheaply() {
    // In place there is noise. After it come blocks that have the weak checksum of every window of
    // the new content and differ from it only at their ends.
    let len = 4 << 20;
    let block = block_len(len as u64) as usize;
    assert!(block > FIRST_LOOK_LEN);
    let mut base = noise(1, len / 2);
    base.resize(len, 100);
    for at in (len / 2 + block..=len).step_by(block) {
        let shift = (at / block) % 8;
        for (index, change) in [1_i8, -1, -1, 1].into_iter().enumerate() {
            base[at - 20 + shift + index] = 100_u8.wrapping_add_signed(change);
        }
    }
    // Once beside the noise, once past the base's end, where nothing is compared in place before
    // the blocks.
    for before in [0, len] {
        let mut new = noise(2, before);
        new.resize(before + len / 2, 100);
        let places = [Place {
            is_hole: false,
            range: ByteRange::new(0, len as u64).unwrap(),
        }];
        let counted = Sparse::new(&base, &places);
        let (extents, _) = find(&counted, &new[..]);
        assert!(compose(&base, &extents) == new);
        let read = counted.read_bytes.get() as f64 / len as f64;
        assert!(read <= 6.0, "{read} bytes of the base read for one, behind {before}");
    }
}
