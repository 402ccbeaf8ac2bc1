use super::chunk::{ChunkKey, KeptChunk, LeafSum, Sources};
use super::*;
use crate::layer::Literal;
use crate::numbers::{ChunkNumber, FolderNumber, NodeNumber, SegmentNumber};
use crate::segments::FrameRef;
use crate::signature::SignatureRequest;
use crate::tests::store_with;
use byteback_delta::Source;
use byteback_delta::leaves::LeafKind;
use byteback_delta::signature::Signature;
use byteback_delta::strong::StrongKind;
use byteback_delta::weak::WeakKind;
use byteback_extents::ByteRange;
use byteback_host::random::{SplitMix64, noise};
use byteback_model::FileId;
use std::ops::ControlFlow;

const KEY: ChunkKey = ChunkKey {
    node: NodeNumber(7),
    kind: LeafKind::Sha256,
    chunk: ChunkNumber(3),
};

fn literal(offset: u64, skip: u32) -> Source<Literal> {
    Source::Literal(Literal {
        frame: FrameRef {
            segment: SegmentNumber(5),
            offset,
            stored_len: 900_000,
            raw_len: 1_000_000,
            codec: 1,
        },
        skip,
    })
}

fn sources(parts: &[(u64, Source<Literal>)]) -> Sources {
    let mut sources = Sources::default();
    for (len, source) in parts {
        let at = sources.len_bytes();
        sources.push(ByteRange::from_offset_len(at, *len).unwrap(), *source);
    }
    sources
}

fn sums(count: u8) -> Vec<LeafSum> {
    let sum = |n| LeafSum {
        crc: 0x0102_0300 + u32::from(n),
        leaf: [n; 32],
    };
    (0..count).map(sum).collect()
}

#[test]
fn golden_bytes_of_a_row() {
    let sources = sources(&[(4096, literal(300, 16)), (100, Source::Zero)]);
    let row = KeptChunk::encode(&sources, &sums(2), KEY);
    let page = "01 01 05 ac 02 a0 f7 36 c0 84 3d 01 02 00 80 80 01 00 10 00 92 03";
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<Vec<_>>()
            .join(" ")
    };
    let (page_len, page_crc) = (row[1], 4);
    assert_eq!(row[0], 1);
    let page_end = 2 + usize::from(page_len);
    assert_eq!(hex(&row[2..page_end - page_crc]), page);
    assert_eq!(row[page_end..][..5], [0, 3, 2, 1, 0]);
    assert_eq!(row[page_end + 36..][..5], [1, 3, 2, 1, 1]);
    assert_eq!(row.len(), page_end + 2 * 36 + 4);
    let whose = [7, 0, 0, 0, 0, 0, 0, 0, 6, 3, 0, 0, 0, 0, 0, 0, 0];
    let crc = crc32c::crc32c_append(crc32c::crc32c(&whose), &row[..row.len() - 4]);
    assert_eq!(row[row.len() - 4..], crc.to_le_bytes());
    let kept = KeptChunk::decode(&row, KEY).unwrap();
    assert_eq!((kept.sources, kept.sums), (sources, sums(2)));
}

#[test]
fn sums_row_is_valid_in_its_own_place_only_and_notices_flips() {
    let row = KeptChunk::encode(&sources(&[(5000, literal(0, 0))]), &sums(2), KEY);
    for other in [
        ChunkKey {
            node: NodeNumber(8),
            ..KEY
        },
        ChunkKey {
            chunk: ChunkNumber(4),
            ..KEY
        },
        ChunkKey {
            kind: LeafKind::Blake3,
            ..KEY
        },
    ] {
        assert!(KeptChunk::decode(&row, other).is_err());
    }
    for at in 0..row.len() {
        for bit in 0..8 {
            let mut damaged = row.clone();
            damaged[at] ^= 1 << bit;
            assert!(KeptChunk::decode(&damaged, KEY).is_err(), "{at} {bit}");
        }
        assert!(KeptChunk::decode(&row[..at], KEY).is_err());
    }
}

#[test]
fn sums_rows_that_cannot_be_are_refused_despite_right_checksums() {
    for (wrong, count) in [
        (sources(&[(5000, literal(0, 0))]), 1),
        (sources(&[(5000, literal(0, 0))]), 3),
        (sources(&[(5000, Source::Copy { base_offset: 1 })]), 2),
        (sources(&[(CHUNK_LEN + 1, Source::Zero)]), 0),
        (Sources::default(), 0),
    ] {
        assert!(KeptChunk::decode(&KeptChunk::encode(&wrong, &sums(count), KEY), KEY).is_err());
    }
    let mut gap = Sources::default();
    gap.push(ByteRange::new(100, 4096).unwrap(), literal(0, 0));
    assert!(KeptChunk::decode(&KeptChunk::encode(&gap, &sums(1), KEY), KEY).is_err());
}

/// The place of each byte.
fn places(sources: &Sources) -> Vec<Option<(u64, u64)>> {
    let mut places = Vec::new();
    for extent in sources.extents() {
        for n in 0..extent.range.len_bytes() {
            places.push(match extent.source {
                Source::Literal(literal) => Some((literal.frame.offset, u64::from(literal.skip) + n)),
                _ => None,
            });
        }
    }
    places
}

#[test]
fn sums_leaf_holds_only_if_every_byte_lies_where_it_lay() {
    for seed in 0..300 {
        let mut rng = SplitMix64::new(seed);
        let mut random = |len: u64, like: Option<&Sources>| {
            let mut made = Sources::default();
            while made.len_bytes() < len {
                let at = made.len_bytes();
                let part = (1 + rng.below(9000)).min(len - at);
                let range = ByteRange::from_offset_len(at, part).unwrap();
                match like.filter(|like| at < like.len_bytes() && rng.below(3) > 0) {
                    Some(like) => {
                        let range = ByteRange::new(at, range.end().min(like.len_bytes())).unwrap();
                        like.within(range)
                            .for_each(|extent| made.push(extent.range, extent.source));
                    }
                    None if rng.below(3) == 0 => made.push(range, Source::Zero),
                    None => made.push(range, literal(rng.below(3), rng.below(20) as u32)),
                }
            }
            made
        };
        let before = random(1 + seed * 177 % 50_000, None);
        let now = random(1 + seed * 91 % 50_000, Some(&before));
        let kept = KeptChunk {
            sources: before.clone(),
            sums: Vec::new(),
        };
        let (old, new) = (places(&before), places(&now));
        for (leaf, equal) in kept.unchanged(&now).into_iter().enumerate() {
            let of = |places: &[Option<(u64, u64)>]| {
                let from = places.len().min(leaf * 4096);
                places[from..places.len().min(from + 4096)].to_vec()
            };
            let expected = !of(&new).is_empty() && of(&old) == of(&new);
            assert_eq!(equal, expected, "seed {seed} leaf {leaf}");
        }
    }
}

#[test]
fn sum_that_was_always_wrong_is_found_by_verification() {
    let content = noise(1, 2 << 20);
    let (_dir, store) = store_with(&content);
    let is_right = || {
        let request = SignatureRequest {
            weak: vec![WeakKind::Crc32c],
            strong: vec![StrongKind::Tree(LeafKind::Blake3)],
            ..SignatureRequest::default()
        };
        let mut stream = Vec::new();
        let reader = store.signature("f", FileId(2), None, &request).unwrap();
        reader.write(&mut stream).unwrap().unwrap();
        let reported = Signature::read(&stream[..], 10_000).unwrap();
        let made = Signature::of(&content, *reported.params());
        (0..made.blocks()).all(|block| reported.strong(block) == made.strong(block))
    };
    let verify = || {
        let totals = store.verify("f", None, |_| ControlFlow::Continue(())).unwrap();
        assert_eq!((totals.files, totals.damaged_files), (1, 0), "the bytes are whole");
        totals.wrong_sums
    };
    assert!(is_right() && verify() == 0);
    // As if memory failed while the sum was made: the row is intact, and wrong.
    let node = store
        .catalog()
        .read()
        .unwrap()
        .node_number(FolderNumber(1), FileId(2))
        .unwrap()
        .unwrap();
    let key = ChunkKey {
        node,
        kind: LeafKind::Blake3,
        chunk: ChunkNumber(1),
    };
    let blob = store
        .catalog()
        .read()
        .unwrap()
        .sum_chunk(node, key.kind, key.chunk)
        .unwrap()
        .unwrap();
    let mut kept = KeptChunk::decode(&blob, key).unwrap();
    kept.sums[100].leaf[5] ^= 4;
    let row = KeptChunk::encode(&kept.sources, &kept.sums, key);
    let catalog = store.catalog().write().unwrap();
    catalog.put_sums(node, key.kind, 0, &[(key.chunk, row)]).unwrap();
    catalog.commit().unwrap();
    assert!(!is_right(), "nobody can see that");
    assert_eq!(verify(), 1);
    assert!(is_right() && verify() == 0);
}
