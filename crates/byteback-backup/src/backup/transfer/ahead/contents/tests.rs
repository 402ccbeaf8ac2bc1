//! Pieces of many files that arrive in any division.

use super::*;
use byteback_host::random::SplitMix64;

#[test]
fn only_files_whose_pieces_cover_them_in_order_count() {
    let places = [0..5, 5..6, 6..10];
    let (mut filled, mut bytes) = ([0; 3], [0; 10]);
    let mut give = |offset, piece: &[u8]| take(offset, piece, &places, &mut filled, &mut bytes);
    give(0, b"hel");
    give(3, b"lo");
    // It would be of two files.
    give(5, b"xy");
    // Its beginning is a hole.
    give(8, b"zz");
    give(u64::MAX, b"beyond");
    give(10, b"beyond");
    give(4, b"o");
    assert_eq!(filled, [5, 0, 0]);
    assert_eq!(&bytes[..5], b"hello");
}

#[test]
fn random_pieces_of_files_end_to_end_come_back() {
    let mut random = SplitMix64::new(7);
    for _ in 0..200 {
        let mut places: Vec<Range<usize>> = Vec::new();
        for _ in 0..=random.below(8) {
            let start = places.last().map_or(0, |place| place.end);
            places.push(start..start + 1 + random.below(50) as usize);
        }
        let all = random.bytes(places.last().unwrap().end);
        let (mut filled, mut bytes) = (vec![0; places.len()], vec![0; all.len()]);
        let mut lost = vec![false; places.len()];
        for (file, place) in places.iter().enumerate() {
            let mut at = place.start;
            while at < place.end {
                let end = place.end.min(at + 1 + random.below(20) as usize);
                match random.below(10) {
                    0 => lost[file] = true,
                    _ => take(at as u64, &all[at..end], &places, &mut filled, &mut bytes),
                }
                at = end;
            }
        }
        for ((place, filled), lost) in places.into_iter().zip(filled).zip(lost) {
            assert_eq!(filled == place.len(), !lost);
            assert!(lost || bytes[place.clone()] == all[place]);
        }
    }
}
