//! Sums made from leaves, and leaves that are refused.

use byteback_delta::find::BlockSums;
use byteback_delta::groups::EqualGroups;
use byteback_delta::signature::SignatureWriter;
use byteback_host::random::{SplitMix64, noise};

use super::*;

const TOLD: LeavesSummary = LeavesSummary {
    source: LeafSource::Kept,
    read_bytes: 0,
};

fn making(len: u64, with_crcs: bool) -> Making {
    let kind = WireLeafKind::Blake3;
    Making::begin(len, LeafRequest { kind, with_crcs }, true, true, None)
        .ok()
        .unwrap()
}

fn entries(content: &[u8]) -> Vec<u8> {
    let mut entries = Vec::new();
    for leaf in content.chunks(4096) {
        entries.extend((CrcKind::Crc32c.of(leaf) as u32).to_le_bytes());
        entries.extend(LeafKind::Blake3.leaf(leaf));
    }
    entries
}

fn sums(offset: u64, entries: &[u8]) -> LeafPiece<'_> {
    LeafPiece::Sums { offset, entries }
}

fn zeros(start: u64, end: u64) -> LeafPiece<'static> {
    LeafPiece::Zeros(ByteRange::new(start, end).unwrap())
}

#[test]
fn the_digest_is_that_of_the_content_however_it_is_told() {
    let mut content = vec![9; 500_001];
    content[8192..409_600].fill(0);
    let mut digest = LeafDigest::new(LeafKind::Blake3, content.len() as u64);
    digest.push(&content);
    let expected = Digest(digest.finish().unwrap());
    let mut whole = making(500_001, true);
    assert!(whole.add(0, sums(0, &entries(&content))).is_ok());
    let whole = whole.end(TOLD).ok().unwrap();
    assert_eq!((whole.digest, whole.holes.len()), (expected, 0));
    let mut parts = making(500_001, true);
    for piece in [
        (sums(0, &entries(&content[..8192]))),
        zeros(8192, 12_288),
        zeros(12_288, 409_600),
        sums(409_600, &entries(&content[409_600..])),
    ] {
        let start = parts.position;
        assert!(parts.add(start, piece).is_ok());
    }
    let parts = parts.end(TOLD).ok().unwrap();
    assert_eq!(parts.digest, expected);
    assert_eq!(parts.holes, [ByteRange::new(8192, 409_600).unwrap()]);
    // The CRCs of the leaves are the same, too.
    let (mut one, mut other) = (whole.crcs.unwrap(), parts.crcs.unwrap());
    use byteback_delta::crc::BlockCrcs;
    for leaf in 0..=500_001 / 4096 {
        assert!(one.crc(leaf).is_some());
        assert_eq!(one.crc(leaf), other.crc(leaf));
    }
}

#[test]
fn leaves_with_gaps_beyond_the_end_or_too_few_are_refused() {
    let entry = entries(&[1; 4096]);
    assert!(making(10_000, true).add(4096, sums(4096, &entry)).is_err());
    assert!(making(4096, true).add(0, sums(0, &entry.repeat(2))).is_err());
    assert!(making(10_000, true).add(0, zeros(0, 10_001)).is_err());
    assert!(making(10_000, true).add(0, zeros(0, 5000)).is_err());
    let mut short = making(10_000, true);
    assert!(short.add(0, sums(0, &entry)).is_ok());
    assert!(short.end(TOLD).is_err());
    let mut whole = making(10_000, false);
    assert!(whole.add(0, zeros(0, 8192)).is_ok());
    assert!(whole.add(8192, sums(8192, &[3; 32])).is_ok());
    assert!(whole.end(TOLD).is_ok());
}

/// An answer by which these groups are equal, about contents of this length.
fn answer(list: &GroupList, equal: &[u64]) -> GroupAnswer {
    let len = list.content_len_bytes();
    let mut groups = EqualGroups::new(&list.listed(), len);
    equal.iter().for_each(|group| groups.set(*group));
    let mut stream = Vec::new();
    groups.write(&mut stream).unwrap();
    let left = groups.gathering().left_len_bytes(len);
    let mut writer = SignatureWriter::new(stream, groups.params(3), left).unwrap();
    writer.push_zeros(left).unwrap();
    GroupAnswer::read(&writer.finish().unwrap()[..], list.kind(), len, 1 << 20).unwrap()
}

#[test]
fn the_leaves_of_what_is_left_are_the_same_kept_or_told_again() {
    for seed in 0..40 {
        let mut random = SplitMix64::new(seed);
        let len = 1 + random.below(1 << 21) as usize;
        let mut content = noise(seed, len);
        let zero = (random.below(len as u64) / 4096 * 4096) as usize;
        let zero_end = (zero + (1 + random.below(300) as usize) * 4096).min(len);
        content[zero..zero_end].fill(0);
        let all = entries(&content);
        let entries_of = |from: usize, to: usize| &all[from / 4096 * 36..to.div_ceil(4096) * 36];
        let tell = |making: &mut Making, random: &mut SplitMix64| {
            let mut at = 0;
            while at < len {
                let mut end = (at + (1 + random.below(200) as usize) * 4096).min(len);
                let piece = if at == zero {
                    end = zero_end;
                    zeros(zero as u64, zero_end as u64)
                } else {
                    if at < zero {
                        end = end.min(zero);
                    }
                    sums(at as u64, entries_of(at, end))
                };
                assert!(making.add(at as u64, piece).is_ok());
                at = end;
            }
        };
        let mut first = making(len as u64, true);
        tell(&mut first, &mut random);
        let first = first.end(TOLD).ok().unwrap();
        let equal: Vec<u64> = (0..3).filter(|_| random.below(2) == 0).collect();
        let answer = answer(&first.groups, &equal);
        let request = LeafRequest {
            kind: WireLeafKind::Blake3,
            with_crcs: true,
        };
        let mut again = Making::begin(len as u64, request, false, false, Some(&answer))
            .ok()
            .unwrap();
        tell(&mut again, &mut random);
        let again = again.end(TOLD).ok().unwrap();
        assert_eq!((again.digest, again.groups == first.groups), (first.digest, true));
        let mut kept = LeftSums::new(&answer).ok().unwrap();
        first.kept.unwrap().tell(&mut kept);
        // By the bytes of the blocks that are left.
        let mut expected = TreeSums::new(answer.signature().params(), answer.left_len_bytes()).unwrap();
        for (group, bytes) in (0..).zip(content.chunks(1 << 20)) {
            for leaf in bytes.chunks(4096).filter(|_| !equal.contains(&group)) {
                expected.push(
                    Some(CrcKind::Crc32c.of(leaf) as u32),
                    Some(&LeafKind::Blake3.leaf(leaf)),
                );
            }
        }
        assert_eq!(kept.sums.leaves(), expected.leaves());
        let mut all = [expected, kept.sums, again.sums.unwrap()].map(TreeSums::finish);
        for block in 0..=answer.left_len_bytes() / 4096 {
            let [one, two, three] = all.each_mut().map(|known| {
                let (crcs, strong) = (known.crcs.as_mut().unwrap(), known.strong.as_mut().unwrap());
                (crcs.sum(block), strong.sum(block))
            });
            assert_eq!((one, one), (two, three), "seed {seed} block {block}");
        }
    }
}
