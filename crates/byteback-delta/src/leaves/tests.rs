//! Checksums and digests from leaves against those computed from the bytes.

use proptest::prelude::*;

use super::*;
use crate::crc::CrcKind;
use crate::digest::DIGEST_LEN;
use crate::find::{BlockSums, FoundExtents, Known, find_sky};
use crate::model::noise;
use crate::signature::{Signature, SignatureParams, SignatureRequest};
use crate::strong::StrongKind;
use crate::weak::WeakKind;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn params(kind: LeafKind, block_len: u32) -> SignatureParams {
    let request = SignatureRequest {
        block_len_bytes: Some(block_len),
        weak: vec![WeakKind::Crc32c],
        strong: vec![StrongKind::Tree(kind)],
        strong_len_bytes: None,
        part: None,
    };
    request.params(1 << 20, 42)
}

fn leaves(kind: LeafKind, content: &[u8]) -> Vec<(u32, Leaf)> {
    let of = |block| (CrcKind::Crc32c.of(block) as u32, kind.leaf(block));
    content.chunks(LEAF_LEN_BYTES as usize).map(of).collect()
}

fn sums(kind: LeafKind, content: &[u8], params: &SignatureParams, known: impl Fn(usize) -> bool) -> TreeSums {
    let mut sums = TreeSums::new(params, content.len() as u64).unwrap();
    for (index, (crc, leaf)) in leaves(kind, content).iter().enumerate() {
        sums.push(Some(*crc), Some(leaf).filter(|_| known(index)));
    }
    sums
}

/// The digest by its definition.
fn naive_digest(kind: LeafKind, content: &[u8]) -> [u8; DIGEST_LEN] {
    let leaves: Vec<Leaf> = leaves(kind, content).into_iter().map(|(_, leaf)| leaf).collect();
    let mut root = vec![kind.code()];
    root.extend((content.len() as u64).to_le_bytes());
    for group in leaves.chunks(256) {
        root.extend(blake3::hash(&group.concat()).as_bytes());
    }
    blake3::derive_key("byteback 2026-11 digest of a content's block sums", &root)
}

#[test]
fn golden_leaves_and_digests() {
    let of = |kind: LeafKind| hex(&kind.leaf(b"abc"));
    // FIPS 180-4, RFC 7693 (for 256 bits) and BLAKE3's test vectors' method.
    assert_eq!(
        of(LeafKind::Sha256),
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    );
    assert_eq!(
        of(LeafKind::Blake2b256),
        "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319"
    );
    assert_eq!(
        of(LeafKind::Blake3),
        "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"
    );
    for kind in LeafKind::ALL {
        assert_eq!(LeafKind::from_code(kind.code()), Some(kind));
        assert_eq!(LeafKind::from_name(kind.name()), Some(kind));
        assert_eq!(StrongKind::from_code(kind.code()), Some(StrongKind::Tree(kind)));
    }
    let mut digests = Vec::new();
    for (kind, content) in [
        (LeafKind::Sha256, &b""[..]),
        (LeafKind::Sha256, b"byteback"),
        (LeafKind::Blake3, b"byteback"),
    ] {
        let mut digest = LeafDigest::new(kind, content.len() as u64);
        digest.push(content);
        digests.push(hex(&digest.finish().unwrap()));
    }
    assert_eq!(
        digests,
        [
            "d62f57440ab7684eb25936b66b842514893851c799dac97167bc068ed845cf71",
            "5b1d2c8056dd9620d03e429a7df6f2e82d2ae97df30530373ee2b0cddbe98325",
            "b54a2170dde068b9f083ba2dbfcbbab4c3e73b81f74882ce35df3e214aa93dbb",
        ]
    );
}

#[test]
fn a_digest_does_not_depend_on_how_the_content_comes() {
    let mut content = noise(3, 2_500_000);
    content.resize(9_000_000, 0);
    content.extend(noise(4, 700_001));
    for kind in LeafKind::ALL {
        let expected = naive_digest(kind, &content);
        for piece in [1000, 4096, 65536, 3_333_333] {
            let mut digest = LeafDigest::new(kind, content.len() as u64);
            content.chunks(piece).for_each(|piece| digest.push(piece));
            assert_eq!(digest.finish(), Some(expected), "{piece}");
        }
        for (start, end) in [
            (2_500_000, 9_000_000),
            (3_000_000, 8_999_999),
            (2_600_000, 2_600_001),
            (2_502_656, 8_999_936),
        ] {
            let mut digest = LeafDigest::new(kind, content.len() as u64);
            digest.push(&content[..start]);
            digest.push_zeros((end - start) as u64);
            digest.push(&content[end..]);
            assert_eq!(digest.finish(), Some(expected), "{start}");
        }
        // Leaves, groups and bytes mixed.
        let all = leaves(kind, &content);
        let mut digest = LeafDigest::new(kind, content.len() as u64);
        for (index, group) in all.chunks(GROUP_LEAVES as usize).enumerate() {
            let from = index * (1 << 20);
            match index % 4 {
                0 => digest.push_group(&group_sum(group.iter().map(|(_, leaf)| leaf))),
                3 => digest.push_leaves(&group.iter().map(|(_, leaf)| *leaf).collect::<Vec<Leaf>>()),
                1 => group.iter().for_each(|(_, leaf)| digest.push_leaf(leaf)),
                _ => digest.push(&content[from..content.len().min(from + (1 << 20))]),
            }
        }
        assert_eq!(digest.len_bytes(), content.len() as u64);
        assert_eq!(digest.finish(), Some(expected));
        // Several at once, in pieces other than groups; a surplus leaf is detected.
        let leaves: Vec<Leaf> = all.into_iter().map(|(_, leaf)| leaf).collect();
        for piece in [1, 255, 256, 700, leaves.len()] {
            let mut digest = LeafDigest::new(kind, content.len() as u64);
            leaves.chunks(piece).for_each(|leaves| digest.push_leaves(leaves));
            let mut longer = digest.clone();
            assert_eq!(digest.finish(), Some(expected), "{piece}");
            longer.push_leaves(&leaves[..1]);
            assert_eq!(longer.finish(), None);
        }
    }
}

#[test]
fn a_digest_differs_for_other_contents_lengths_and_kinds() {
    let content = noise(5, 100_000);
    let expected = naive_digest(LeafKind::Sha256, &content);
    let mut other = content.clone();
    other[99_999] ^= 1;
    assert_ne!(naive_digest(LeafKind::Sha256, &other), expected);
    assert_ne!(naive_digest(LeafKind::Blake3, &content), expected);
    assert_ne!(naive_digest(LeafKind::Sha256, &content[..99_999]), expected);
}

#[test]
fn leaves_that_do_not_fit_have_no_digest() {
    let kind = LeafKind::Blake3;
    let mut short = LeafDigest::new(kind, 10);
    short.push(&[1; 9]);
    assert_eq!(short.finish(), None);
    let mut inside = LeafDigest::new(kind, 8192);
    inside.push(&[1; 9]);
    inside.push_leaf(&[0; 32]);
    inside.push(&[1; 8183]);
    assert_eq!(inside.finish(), None);
    let mut beyond = LeafDigest::new(kind, 4096);
    beyond.push_leaf(&[0; 32]);
    beyond.push_leaf(&[0; 32]);
    assert_eq!(beyond.finish(), None);
    let mut in_group = LeafDigest::new(kind, 1 << 21);
    in_group.push_leaf(&[0; 32]);
    in_group.push_group(&[0; 32]);
    assert_eq!(in_group.finish(), None);
    let mut terabyte = LeafDigest::new(kind, (1 << 40) + 1);
    terabyte.push_zeros((1 << 40) + 1);
    assert!(terabyte.finish().is_some(), "and was cheap");
}

#[test]
fn a_terabyte_of_zeros_has_blocks_for_the_price_of_one_each() {
    let kind = LeafKind::Sha256;
    let params = params(kind, 1 << 20);
    let len = (1 << 40) + 5;
    let mut blocks = LeafBlocks::new(&params, len).unwrap();
    let mut made: Vec<LeafBlock> = Vec::new();
    let done: Result<(), ()> = blocks.push_zeros(u64::MAX, |block| {
        made.push(block);
        Ok(())
    });
    done.unwrap();
    assert_eq!(made.len() as u64, params.blocks(len));
    let expected = Signature::of(&vec![0; (1 << 20) + 5], params);
    for (index, block) in [(0, made[0]), (0, made[777_777]), (1, *made.last().unwrap())] {
        assert_eq!(block.weak, Some(expected.weak()[index]));
        assert_eq!(
            block
                .strong
                .map(|strong| strong[..usize::from(params.strong_len_bytes)].to_vec()),
            expected.strong(index).map(<[u8]>::to_vec)
        );
    }
    assert!(blocks.push(None, None).is_none(), "beyond the end");
}

#[test]
fn leaves_known_to_storage_leave_an_unmodified_file_unread() {
    for kind in LeafKind::ALL {
        let base = noise(9, 300_001);
        let params = params(kind, 8192);
        assert!(params.strong_len_bytes < 20, "as short as chance allows");
        let signature = Signature::of(&base, params);
        let known = || sums(kind, &base, &params, |_| true).finish();
        let (found, stats) = find_sky(
            &signature,
            known(),
            &base[..],
            base.len() as u64,
            FoundExtents::default(),
        )
        .unwrap();
        assert_eq!((stats.read_bytes, stats.literal_bytes), (0, 0));
        assert!(crate::find::edits::compose(&base, &found.extents) == base);
        // A changed byte: its block is read, and no other.
        let mut new = base.clone();
        new[123_456] ^= 1;
        let known = sums(kind, &new, &params, |_| true).finish();
        let (found, stats) = find_sky(&signature, known, &new[..], new.len() as u64, FoundExtents::default()).unwrap();
        assert_eq!(stats.read_bytes, 8192);
        assert!(crate::find::edits::compose(&base, &found.extents) == new);
    }
}

#[test]
fn only_signatures_of_tree_kinds_follow_from_leaves() {
    let plain = SignatureParams::with_block_len(1 << 20, 8192, 0);
    assert!(LeafBlocks::new(&plain, 1 << 20).is_none());
    let odd = SignatureParams {
        block_len_bytes: 5000,
        ..params(LeafKind::Sha256, 4096)
    };
    assert!(LeafBlocks::new(&odd, 1 << 20).is_none());
    assert!(crate::signature::SignatureWriter::new(Vec::new(), odd, 1 << 20).is_err());
    let rolling = SignatureParams {
        weak: WeakKind::Rsync,
        ..params(LeafKind::Sha256, 4096)
    };
    assert!(TreeSums::new(&rolling, 1 << 20).is_none());
}

fn known_of(mut known: Known<impl BlockSums, impl BlockSums>, block: u64) -> (Option<[u8; 32]>, Option<[u8; 32]>) {
    let crc = known.crcs.as_mut().and_then(|crcs| crcs.sum(block));
    (crc, known.strong.as_mut().and_then(|strong| strong.sum(block)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Noise, holes at leaf borders, unknown leaves: the known checksums of a block are those in
    /// the signature of the bytes.
    #[test]
    fn blocks_from_leaves_are_those_of_the_bytes(
        kind in prop::sample::select(LeafKind::ALL.to_vec()),
        len in 0_usize..200_000,
        leaves_per_block in 1_u32..6,
        holes in prop::collection::vec((0_usize..50, 1_usize..12), 0..4),
        unknown in prop::option::of(0_usize..50),
        seed in any::<u64>(),
    ) {
        let mut content = noise(seed, len);
        for &(from, count) in &holes {
            let (from, to) = (len.min(from * 4096), len.min((from + count) * 4096));
            content[from..to].fill(0);
        }
        let params = params(kind, leaves_per_block * 4096);
        let signature = Signature::of(&content, params);
        let all = leaves(kind, &content);
        let mut sums = TreeSums::new(&params, len as u64).unwrap();
        let mut index = 0;
        while index < all.len() {
            let zeros = content.chunks(4096).skip(index).take_while(|block| block.iter().all(|&byte| byte == 0)).count();
            if zeros > 0 && unknown.is_none_or(|unknown| !(index..index + zeros).contains(&unknown)) {
                sums.push_zeros(zeros as u64);
                index += zeros;
                continue;
            }
            let (crc, leaf) = &all[index];
            sums.push(Some(*crc), Some(leaf).filter(|_| unknown != Some(index)));
            index += 1;
        }
        prop_assert_eq!(sums.leaves(), all.len() as u64);
        let known = sums.finish();
        let strong_len = params.strong_len_bytes as usize;
        let (mut crcs, mut strong) = (known.crcs.unwrap(), known.strong.unwrap());
        for block in 0..signature.blocks() {
            prop_assert_eq!(crcs.sum(block as u64).map(|sum| sum[..4].to_vec()), Some(signature.weak()[block].to_le_bytes().to_vec()));
            let is_unknown = unknown.is_some_and(|unknown| unknown < all.len() && unknown / leaves_per_block as usize == block);
            let expected = signature.strong(block).filter(|_| !is_unknown).map(<[u8]>::to_vec);
            prop_assert_eq!(strong.sum(block as u64).map(|sum| sum[..strong_len].to_vec()), expected);
        }
    }
}

#[test]
fn leaves_that_did_not_arrive_are_unknown() {
    let kind = LeafKind::Blake3;
    let params = params(kind, 8192);
    let content = noise(1, 20_000);
    let mut sums = TreeSums::new(&params, content.len() as u64).unwrap();
    let all = leaves(kind, &content);
    for (crc, leaf) in &all[..3] {
        sums.push(Some(*crc), Some(leaf));
    }
    assert_eq!(known_of(sums.finish(), 1), (None, None), "half a block");
}
