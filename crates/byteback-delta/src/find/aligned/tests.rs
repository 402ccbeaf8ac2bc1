//! Verdicts against the bytes: ranges called equal are equal, and unchanged ranges with known
//! checksums need not be read.

use proptest::prelude::*;

use super::*;
use crate::crc::CrcList;
use crate::model::noise;
use crate::signature::SignatureParams;
use crate::strong::StrongHasher;
use crate::weak::WeakKind;

fn sha256(content: &[u8], block_len: u32, last: LastBlock) -> SumList {
    let kind = match last {
        LastBlock::AsItIs => StrongKind::Sha256,
        LastBlock::ZeroPadded => StrongKind::Sha256Padded,
    };
    let hasher = StrongHasher::for_blocks(kind, 0, block_len as usize);
    let mut list = SumList::new(SumLayout {
        kind: SumKind::Sha256,
        sum_len_bytes: 32,
        block_len_bytes: block_len,
        content_len_bytes: content.len() as u64,
        last,
    });
    for block in content.chunks(block_len as usize) {
        list.push(Some(&hasher.of(block)));
    }
    list
}

fn crc32c(content: &[u8], block_len: u32, last: LastBlock) -> CrcSums<CrcList> {
    CrcSums(CrcList::of(content, CrcKind::Crc32c, block_len, last))
}

fn range(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end).unwrap()
}

#[test]
fn a_crc_alone_never_says_equal() {
    let base = noise(1, 1050);
    let mut new = base.clone();
    new[333] ^= 1;
    let ranges = |verdict| {
        [
            (range(0, 300), verdict),
            (range(300, 400), Verdict::Read),
            (range(400, 1050), verdict),
        ]
    };
    let strong: Vec<_> = Aligned::new(
        sha256(&base, 100, LastBlock::AsItIs),
        sha256(&new, 100, LastBlock::AsItIs),
    )
    .unwrap()
    .collect();
    assert_eq!(strong, ranges(Verdict::Equal));
    let weak: Vec<_> = Aligned::new(
        crc32c(&base, 100, LastBlock::AsItIs),
        crc32c(&new, 100, LastBlock::AsItIs),
    )
    .unwrap()
    .collect();
    assert_eq!(weak, ranges(Verdict::Candidate));
    // Nor does a cryptographic one that is cut too short.
    let mut short = sha256(&base, 100, LastBlock::AsItIs);
    short.layout.sum_len_bytes = 19;
    let mut cut = SumList::new(short.layout);
    for block in 0..11 {
        let sum = sha256(&base, 100, LastBlock::AsItIs).sum(block).unwrap();
        cut.push(Some(&sum));
    }
    let verdicts: Vec<_> = Aligned::new(cut, sha256(&new, 100, LastBlock::AsItIs))
        .unwrap()
        .collect();
    assert_eq!(verdicts, ranges(Verdict::Candidate));
    assert!(!SumKind::Xxh64.is_proof(8) && !SumKind::Crc(CrcKind::Crc64Nvme).is_proof(8));
}

#[test]
fn aligned_finder_reports_what_it_cannot_compare() {
    let content = noise(1, 1000);
    let of = |len| sha256(&content, len, LastBlock::AsItIs);
    assert_eq!(
        Aligned::new(of(100), crc32c(&content, 100, LastBlock::AsItIs)).err(),
        Some(Incomparable::Kinds {
            base: SumKind::Sha256,
            new: SumKind::Crc(CrcKind::Crc32c)
        })
    );
    assert_eq!(
        Aligned::new(of(100), of(200)).err(),
        Some(Incomparable::BlockLengths { base: 100, new: 200 })
    );
    let crc = |len| crc32c(&content, len, LastBlock::AsItIs);
    assert!(Aligned::new(crc(100), crc(200)).is_ok());
    assert!(Aligned::new(crc(100), crc(250)).is_err());
}

#[test]
fn contents_that_end_differently_are_not_equal_at_their_ends() {
    // Padded with zeros, both last blocks have the same checksum.
    let base = b"0123456789abc".to_vec();
    let mut new = base.clone();
    new.extend([0; 5]);
    for last in [LastBlock::AsItIs, LastBlock::ZeroPadded] {
        for (base, new) in [(&base, &new), (&new, &base)] {
            let verdicts: Vec<_> = Aligned::new(sha256(base, 10, last), sha256(new, 10, last))
                .unwrap()
                .collect();
            let end = new.len() as u64;
            assert_eq!(
                verdicts,
                [(range(0, 10), Verdict::Equal), (range(10, end), Verdict::Read)]
            );
        }
    }
    // Summed in two ways: CRCs are translated, other checksums are not comparable.
    let (one, other) = (LastBlock::AsItIs, LastBlock::ZeroPadded);
    let verdicts: Vec<_> = Aligned::new(sha256(&base, 10, one), sha256(&base, 10, other))
        .unwrap()
        .collect();
    assert_eq!(
        verdicts,
        [(range(0, 10), Verdict::Equal), (range(10, 13), Verdict::Read)]
    );
    let verdicts: Vec<_> = Aligned::new(crc32c(&base, 10, one), crc32c(&base, 10, other))
        .unwrap()
        .collect();
    assert_eq!(verdicts, [(range(0, 13), Verdict::Candidate)]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn verdicts_are_those_of_the_bytes(
        seed in any::<u64>(),
        len in 0..3000_usize,
        other_len in prop_oneof![Just(None), (0..3000_usize).prop_map(Some)],
        changes in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        base_unknown in prop_oneof![Just(0_u64), any::<u64>()],
        new_unknown in prop_oneof![Just(0_u64), any::<u64>()],
        lens in prop::sample::select(vec![(64_u32, 64_u32), (64, 128), (192, 64), (1, 1), (4992, 64), (5000, 5000)]),
        padded in any::<(bool, bool)>(),
    ) {
        let last = |padded| if padded { LastBlock::ZeroPadded } else { LastBlock::AsItIs };
        let base = noise(seed, len);
        let mut new = base.clone();
        for change in changes {
            if !new.is_empty() {
                let at = change.index(new.len());
                new[at] ^= 0x40;
            }
        }
        new.resize(other_len.unwrap_or(len), 0);
        let partly = |content: &[u8], block_len: u32, padded, unknown: u64| {
            let mut all = CrcList::of(content, CrcKind::Crc32c, block_len, last(padded));
            let mut list = CrcList::new(all.layout());
            for block in 0..all.layout().blocks() {
                list.push(all.crc(block).filter(|_| unknown & (1 << (block % 64)) == 0));
            }
            CrcSums(list)
        };
        let aligned = Aligned::new(
            partly(&base, lens.0, padded.0, base_unknown),
            partly(&new, lens.1, padded.1, new_unknown),
        ).unwrap();
        let step = aligned.step_len_bytes() as usize;
        let mut end = 0;
        let mut before = None;
        for (range, verdict) in aligned {
            prop_assert_eq!(range.start(), end);
            prop_assert_ne!(before, Some(verdict), "neighbours are one");
            end = range.end();
            before = Some(verdict);
            let (from, to) = (range.start() as usize, range.end() as usize);
            prop_assert!(from.is_multiple_of(step));
            match verdict {
                Verdict::Equal => prop_assert!(false, "a CRC proves nothing"),
                Verdict::Candidate => prop_assert_eq!(base.get(from..to), Some(&new[from..to])),
                Verdict::Read if base_unknown | new_unknown == 0 => {
                    for (start, block) in (from..to).step_by(step).zip(new[from..to].chunks(step)) {
                        let of_base = base.get(start..base.len().min(start + step));
                        prop_assert_ne!(of_base, Some(block));
                    }
                }
                Verdict::Read => {}
            }
        }
        prop_assert_eq!(end, new.len() as u64);
        // And the signature's own checksums, which are all known.
        let params = SignatureParams {
            block_len_bytes: lens.1,
            weak: if padded.0 { WeakKind::Crc32cPadded } else { WeakKind::Crc32c },
            strong: if padded.1 { StrongKind::Sha256Padded } else { StrongKind::Sha256 },
            strong_len_bytes: 20,
            seed,
        };
        let (of_base, of_new) = (Signature::of(&base, params), Signature::of(&new, params));
        let weak: Vec<_> = Aligned::new(WeakOf::new(&of_base).unwrap(), WeakOf::new(&of_new).unwrap()).unwrap().collect();
        let strong: Vec<_> = Aligned::new(StrongOf::new(&of_base).unwrap(), StrongOf::new(&of_new).unwrap()).unwrap().collect();
        prop_assert_eq!(weak.len(), strong.len());
        for (weak, strong) in weak.iter().zip(&strong) {
            prop_assert_eq!(weak.0, strong.0);
            prop_assert_eq!(weak.1 == Verdict::Candidate, strong.1 == Verdict::Equal);
            prop_assert!(weak.1 != Verdict::Equal && strong.1 != Verdict::Candidate);
        }
    }
}
