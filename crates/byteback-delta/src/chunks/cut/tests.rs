use proptest::prelude::*;

use super::*;
use crate::model::noise;

fn small() -> ChunkParams {
    ChunkParams::new(64, 256, 400).unwrap()
}

/// The lengths of the chunks of a content pushed in pieces of these lengths, again and again; the
/// last chunk is the rest.
fn cut(content: &[u8], params: ChunkParams, pieces: &[usize]) -> Vec<usize> {
    let mut chunker = Chunker::new(params);
    let mut lens = Vec::new();
    let mut begun = 0;
    let mut rest = content;
    for &piece in pieces.iter().cycle() {
        let (mut piece, later) = rest.split_at(piece.min(rest.len()));
        rest = later;
        while let Some(len) = chunker.next_cut(piece) {
            lens.push(begun + len);
            begun = 0;
            piece = &piece[len..];
        }
        begun += piece.len();
        assert_eq!(begun, chunker.len_bytes());
        if rest.is_empty() {
            break;
        }
    }
    if begun > 0 {
        lens.push(begun);
    }
    assert_eq!(lens.iter().sum::<usize>(), content.len());
    lens
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn pieces_change_no_border(
        seed in any::<u64>(),
        len in 0..6000_usize,
        few_values in any::<bool>(),
        pieces in prop::collection::vec(1..700_usize, 1..6),
    ) {
        let mut content = noise(seed, len);
        if few_values {
            content.iter_mut().for_each(|byte| *byte &= 3);
        }
        prop_assert_eq!(cut(&content, small(), &[len.max(1)]), cut(&content, small(), &pieces));
    }
}

#[test]
fn single_bytes_change_no_border() {
    let content = noise(3, 300_000);
    let params = ChunkParams::for_content(0);
    assert_eq!(cut(&content, params, &[1]), cut(&content, params, &[300_000]));
}

#[test]
fn lengths_keep_to_their_limits_and_are_the_average_on_average() {
    let narrow = ChunkParams::new(512, 1024, 1536).unwrap();
    for params in [ChunkParams::for_content(0), ChunkParams::for_content(1 << 35), narrow] {
        let content = noise(1, 3000 * params.avg_len() as usize);
        let lens = cut(&content, params, &[1 << 20]);
        let (last, whole) = lens.split_last().unwrap();
        assert!(*last <= params.max_len() as usize);
        let allowed = params.min_len() as usize..=params.max_len() as usize;
        assert!(whole.iter().all(|len| allowed.contains(len)));
        let mean = content.len() as f64 / lens.len() as f64 / f64::from(params.avg_len());
        assert!((0.9..1.1).contains(&mean), "{params:?}: {mean}");
        let longest = whole.iter().filter(|&&len| len == params.max_len() as usize).count();
        assert!(
            longest * 5 < lens.len(),
            "{params:?}: {longest} of {} at the longest length",
            lens.len()
        );
    }
}

#[test]
fn golden_borders_of_version_1() {
    // Both ends cut by the same rules, whatever their versions: these values never change.
    let lens = cut(&noise(1, 100_000), ChunkParams::for_content(0), &[100_000]);
    let expected = [
        4343, 8465, 4117, 9317, 5811, 7236, 9478, 5840, 9795, 9743, 4170, 11_126, 8368, 2191,
    ];
    assert_eq!(lens, expected);
    let lens = cut(&noise(2, 3000), small(), &[3000]);
    assert_eq!(lens, [400, 266, 297, 181, 156, 376, 322, 335, 356, 214, 97]);
    let long = ChunkParams::new(16_384, 32_768, 65_536).unwrap();
    let expected = [54_093, 37_943, 38_761, 56_365, 16_394, 43_915, 16_930, 31_990, 3609];
    assert_eq!(cut(&noise(3, 300_000), long, &[300_000]), expected);
}

#[test]
fn an_insertion_moves_few_borders() {
    let params = ChunkParams::for_content(0);
    let content = noise(9, 2_000_000);
    for at in [0, 1, 5000, 777_777, 1_999_999] {
        let mut longer = content.clone();
        longer.splice(at..at, noise(at as u64, 100));
        let ends = |content: &[u8]| {
            let mut end = 0;
            let lens = cut(content, params, &[content.len()]);
            lens.iter()
                .map(|len| (end += len, content.len() - end).1)
                .collect::<std::collections::BTreeSet<_>>()
        };
        // Counted from the content's end: borders after the insertion stay.
        let (before, after) = (ends(&content), ends(&longer));
        let moved = before
            .iter()
            .filter(|&&end| end + 1 < content.len() - at && !after.contains(&end))
            .count();
        assert!(moved <= 12, "insertion at {at}: {moved} of {} moved", before.len());
    }
}
