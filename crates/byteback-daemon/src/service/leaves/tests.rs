//! Leaves of bytes that come in pieces of any length, against each leaf summed by itself.

use byteback_host::random::SplitMix64;

use super::*;

/// The leaves that the maker reports: the entry of each, or `None` for zeros.
fn reported(request: LeafRequest, pieces: &[(u64, Option<Vec<u8>>)]) -> Vec<Option<Vec<u8>>> {
    let mut leaves = Vec::new();
    let mut sink = |piece: LeafPiece<'_>| {
        let at = leaves.len() as u64 * LEAF_LEN_BYTES;
        match piece {
            LeafPiece::Zeros(range) => {
                assert_eq!((range.start(), range.len_bytes() % LEAF_LEN_BYTES), (at, 0));
                leaves.extend((0..range.len_bytes() / LEAF_LEN_BYTES).map(|_| None));
            }
            LeafPiece::Sums { offset, entries } => {
                assert_eq!(offset, at);
                leaves.extend(entries.chunks(request.entry_len()).map(|entry| Some(entry.to_vec())));
            }
        }
        Ok(())
    };
    let mut maker = LeafMaker::new(request, 0, &mut sink);
    for (len, bytes) in pieces {
        match bytes {
            Some(bytes) => maker.data(bytes).unwrap(),
            None => maker.zeros(*len).unwrap(),
        }
    }
    maker.finish().unwrap();
    leaves
}

#[test]
fn leaves_do_not_depend_on_how_their_bytes_come() {
    for seed in 1..60 {
        let mut random = SplitMix64::new(seed);
        let mut content = Vec::new();
        let mut pieces = Vec::new();
        for _ in 0..random.below(12) {
            let len = [1, 100, 4095, 4096, 4097, 8192, 70_000][random.below(7) as usize] + random.below(3);
            if random.below(2) == 0 {
                content.resize(content.len() + len as usize, 0);
                pieces.push((len, None));
            } else {
                let bytes: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
                content.extend_from_slice(&bytes);
                pieces.push((len, Some(bytes)));
            }
        }
        let kind = [LeafKind::Sha256, LeafKind::Blake2b256, LeafKind::Blake3][random.below(3) as usize];
        let with_crcs = random.below(2) == 0;
        let request = LeafRequest { kind, with_crcs };
        let reported = reported(request, &pieces);
        assert_eq!(reported.len(), content.len().div_ceil(4096), "seed {seed}");
        for (reported, leaf) in reported.iter().zip(content.chunks(4096)) {
            let Some(entry) = reported else {
                assert!(leaf.iter().all(|byte| *byte == 0), "seed {seed}");
                continue;
            };
            let layout = Layout {
                kind: kind_of(kind),
                salt: Vec::new(),
                block_len: 4096,
                tail: Tail::AsIs,
            };
            let mut expected = Vec::new();
            if with_crcs {
                let crcs = Layout {
                    kind: Kind::Crc32c,
                    ..layout.clone()
                };
                crcs.append_sum(leaf, &mut expected);
            }
            layout.append_sum(leaf, &mut expected);
            assert_eq!(*entry, expected, "seed {seed}");
        }
    }
}
