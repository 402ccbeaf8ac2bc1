use proptest::prelude::*;

use super::*;
use crate::model::noise;

fn small() -> ChunkParams {
    ChunkParams::new(64, 256, 400).unwrap()
}

fn list_of(content: &[u8], params: ChunkParams) -> ChunkList {
    list_chunks(content, None, params, CrcKind::Crc32c).unwrap().0
}

/// Pushes a content in parts of bytes and holes.
fn push_parts(content: &[u8], parts: &[(bool, usize)], params: ChunkParams) -> (ChunkList, ListStats) {
    let mut lister = ChunkLister::new(params, CrcKind::Crc32c);
    let mut at = 0;
    for &(is_hole, len) in parts {
        match is_hole {
            true => lister.push_hole(len as u64),
            false => lister.push(&content[at..at + len]),
        }
        at += len;
        assert_eq!(lister.position(), at as u64);
    }
    lister.finish()
}

#[test]
fn a_list_covers_the_content_with_the_checksums_of_its_chunks() {
    for len in [0, 1, 63, 64, 65, 399, 400, 401, 5000, 300_000, 600_000] {
        let content = noise(len as u64, len);
        for kind in CrcKind::ALL {
            let (list, stats) = list_chunks(&content[..], None, small(), kind).unwrap();
            assert_eq!(list.content_len_bytes(), len as u64);
            let mut end = 0;
            for chunk in list.iter() {
                assert_eq!(chunk.range.start(), end);
                end = chunk.range.end();
                assert_eq!(
                    chunk.weak,
                    kind.of(&content[chunk.range.start() as usize..end as usize])
                );
            }
            assert_eq!(end, len as u64);
            assert_eq!(
                (stats.examined_bytes, stats.summed_bytes, stats.gap_bytes),
                (end, end, 0)
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn pieces_and_short_holes_change_nothing(
        seed in any::<u64>(),
        parts in prop::collection::vec((any::<bool>(), 0..3000_usize), 0..12),
    ) {
        let mut content = Vec::new();
        for (index, &(is_hole, len)) in parts.iter().enumerate() {
            match is_hole {
                true => content.resize(content.len() + len, 0),
                false => content.extend(noise(seed ^ index as u64, len)),
            }
        }
        let (list, stats) = push_parts(&content, &parts, small());
        prop_assert_eq!(&list, &list_of(&content, small()));
        prop_assert_eq!(stats.gap_bytes, 0);
    }
}

#[test]
fn a_long_hole_is_a_gap_however_it_comes() {
    let hole = small().hole_len_min() as usize;
    let (before, behind) = (noise(1, 1000), noise(2, 1000));
    let mut content = before.clone();
    content.resize(1000 + hole, 0);
    content.extend(&behind);
    let (list, stats) = push_parts(&content, &[(false, 1000), (true, hole), (false, 1000)], small());
    let split = [
        (false, 1000),
        (true, 1),
        (true, hole - 2),
        (true, 1),
        (false, 0),
        (false, 1000),
    ];
    assert_eq!(push_parts(&content, &split, small()), (list.clone(), stats));
    assert_eq!(stats.gap_bytes, hole as u64);
    assert_eq!(stats.examined_bytes, 2000);
    // The content after the hole is cut as if it began there.
    let shifted: Vec<u64> = list_of(&behind, small()).iter().map(|chunk| chunk.weak).collect();
    let found: Vec<u64> = list
        .iter()
        .filter(|chunk| chunk.range.start() >= 1000 + hole as u64)
        .map(|chunk| chunk.weak)
        .collect();
    assert_eq!(found, shifted);
    // A byte less is no gap.
    let (list, stats) = push_parts(&content, &[(false, 1000), (true, hole - 1), (false, 1001)], small());
    assert_eq!(stats.gap_bytes, 0);
    assert_eq!(list, list_of(&content, small()));
}

#[test]
fn an_endless_hole_costs_nothing() {
    let mut lister = ChunkLister::new(small(), CrcKind::Crc32c);
    lister.push(&[1; 10]);
    lister.push_hole(1 << 62);
    lister.push(&[2; 10]);
    lister.push_hole(1 << 40);
    let (list, stats) = lister.finish();
    assert_eq!(list.len(), 2);
    assert_eq!(list.content_len_bytes(), (1 << 62) + (1 << 40) + 20);
    assert_eq!(stats.examined_bytes, 20);
}

#[test]
fn chunk_list_reads_only_the_wanted_ranges() {
    let content = noise(5, 2_000_000);
    let params = ChunkParams::for_content(0);
    let whole = list_of(&content, params);
    let mut look_at = ExtentSet::new();
    for (start, end) in [(300_000, 500_000), (1_000_000, 1_400_000), (1_900_000, 2_000_000)] {
        look_at.insert(ByteRange::new(start, end).unwrap());
    }
    let wider = super::super::with_slack(&look_at, params, 2_000_000);
    let (list, stats) = list_chunks(&content[..], Some(&wider), params, CrcKind::Crc32c).unwrap();
    assert_eq!(stats.examined_bytes, wider.total_len_bytes());
    assert_eq!(stats.gap_bytes, 2_000_000 - wider.total_len_bytes());
    assert_eq!(list.content_len_bytes(), 2_000_000);
    // Inside the ranges, the chunks are those of the whole.
    for range in look_at.iter() {
        let inside = |list: &ChunkList| {
            list.iter()
                .filter(|chunk| range.covers(chunk.range))
                .collect::<Vec<_>>()
        };
        assert_eq!(inside(&list), inside(&whole), "{range}");
    }
}

#[test]
fn holes_of_files_are_not_read() {
    use std::os::unix::fs::FileExt;
    let file = tempfile::tempfile().unwrap();
    file.set_len(50_000_000).unwrap();
    file.write_all_at(&noise(1, 100_000), 20_000_000).unwrap();
    let (list, stats) = list_chunks(&file, None, ChunkParams::for_content(0), CrcKind::Crc32c).unwrap();
    assert!(stats.examined_bytes <= 200_000, "{stats:?}");
    assert_eq!(list.content_len_bytes(), 50_000_000);
    assert_eq!(stats.examined_bytes + stats.gap_bytes, 50_000_000);
}
