use super::*;
use crate::crc::CrcKind;
use crate::model::noise;
use crate::signature::Signature;
use proptest::prelude::*;

const LEAF_LEN: usize = LEAF_LEN_BYTES as usize;

fn params(kind: LeafKind, len: usize) -> SignatureParams {
    SignatureParams {
        weak: WeakKind::Crc32c,
        strong: StrongKind::Tree(kind),
        ..SignatureParams::with_block_len(len as u64, LEAF_LEN_BYTES, 77)
    }
}

fn search(kind: LeafKind, new: &[u8], base: &[u8]) -> MatchList {
    let index = BlockIndex::new(Signature::of(new, params(kind, new.len().max(base.len()))));
    assert_eq!(LeafLookup::kind_of(index.signature().params()), Some(kind));
    let mut lookup = LeafLookup::new(&index, base.len() as u64);
    for leaf in base.chunks(LEAF_LEN) {
        match leaf.iter().all(|byte| *byte == 0) {
            true => lookup.push_zeros(leaf.len() as u64),
            false => lookup.push(CrcKind::Crc32c.of(leaf) as u32, &kind.leaf(leaf)),
        }
    }
    lookup.finish()
}

/// Few different blocks, so that many are equal; 0 stands for zeros.
fn content(blocks: &[u64]) -> Vec<u8> {
    let block = |number: &u64| match number {
        0 => vec![0; LEAF_LEN],
        number => noise(*number, LEAF_LEN),
    };
    blocks.iter().flat_map(block).collect()
}

proptest! {
    /// Exactly the blocks that the base has, wherever they lie, are found.
    #[test]
    fn lookup_finds_the_blocks_of_the_base(
        base in prop::collection::vec(0u64..12, 0..40),
        new in prop::collection::vec(0u64..20, 0..40),
        kind in prop::sample::select(LeafKind::ALL.to_vec()),
        last_len in 0..LEAF_LEN,
    ) {
        let mut base_content = content(&base);
        // A last leaf that is no block.
        base_content.extend_from_slice(&content(&[19])[..last_len]);
        let new_content = content(&new);
        let list = search(kind, &new_content, &base_content);
        prop_assert_eq!(list.base_len_bytes(), base_content.len() as u64);
        let mut found = vec![false; new.len()];
        for run in list.runs() {
            let (start, end) = (run.range.start() as usize, run.range.end() as usize);
            let at = run.base_offset as usize;
            prop_assert!(at.is_multiple_of(LEAF_LEN));
            prop_assert!(new_content[start..end] == base_content[at..][..end - start]);
            found[start / LEAF_LEN..end / LEAF_LEN].fill(true);
        }
        for (block, is_found) in new.iter().zip(found) {
            prop_assert_eq!(is_found, *block != 0 && base.contains(block));
        }
    }
}

#[test]
fn lookup_needs_leaves_that_are_blocks() {
    let fitting = params(LeafKind::Blake3, 1 << 20);
    assert_eq!(LeafLookup::kind_of(&fitting), Some(LeafKind::Blake3));
    for other in [
        SignatureParams::for_content(1 << 20, 1),
        SignatureParams {
            block_len_bytes: 8192,
            ..fitting
        },
        SignatureParams {
            weak: WeakKind::Rsync,
            ..fitting
        },
    ] {
        assert_eq!(LeafLookup::kind_of(&other), None);
    }
}

/// Leaves beyond the length that a base claims count for nothing.
#[test]
fn lookup_ignores_leaves_beyond_the_base() {
    let block = noise(1, LEAF_LEN);
    let index = BlockIndex::new(Signature::of(&block, params(LeafKind::Blake3, LEAF_LEN)));
    let (crc, leaf) = (CrcKind::Crc32c.of(&block) as u32, LeafKind::Blake3.leaf(&block));
    for (base_len, finds) in [(LEAF_LEN, true), (LEAF_LEN - 1, false), (0, false)] {
        let mut lookup = LeafLookup::new(&index, base_len as u64);
        lookup.push(crc, &leaf);
        assert_eq!(lookup.finish().runs().len() == 1, finds, "{base_len}");
    }
    let mut lookup = LeafLookup::new(&index, u64::MAX);
    lookup.push_zeros(u64::MAX);
    lookup.push(crc, &leaf);
    assert!(lookup.finish().runs().is_empty());
}
