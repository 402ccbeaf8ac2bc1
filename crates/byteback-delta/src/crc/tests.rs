//! Known values, and the algebra against direct computation.

use proptest::prelude::*;

use super::*;
use crate::model::noise;

/// The CRC bit by bit, by the definition.
fn naive(kind: CrcKind, bytes: &[u8]) -> u64 {
    let polynomial = match kind {
        CrcKind::Crc32c => 0x82f6_3b78,
        CrcKind::Crc32 => 0xedb8_8320,
        CrcKind::Crc64Nvme => 0x9a6c_9329_ac4b_c9b5,
    };
    let mut crc = kind.ones();
    for byte in bytes {
        crc ^= u64::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ if crc & 1 == 0 { 0 } else { polynomial };
        }
    }
    crc ^ kind.ones()
}

#[test]
fn check_values_of_the_catalogue_of_crcs() {
    assert_eq!(CrcKind::Crc32c.of(b"123456789"), 0xe306_9283);
    assert_eq!(CrcKind::Crc32.of(b"123456789"), 0xcbf4_3926);
    assert_eq!(CrcKind::Crc64Nvme.of(b"123456789"), 0xae8b_1486_0a79_9888);
    // Ceph's convention: its CRC-32C of 4096 zeros, started with ones, is the complement of the
    // ordinary one.
    let zeros = CrcKind::Crc32c.of_zeros(4096);
    assert_eq!(zeros, 0x98f9_4189);
    assert_eq!(zeros ^ 0xffff_ffff, 0x6706_be76);
    // A chunk of MooseFS that was never written: 64 KiB of zeros.
    assert_eq!(CrcKind::Crc32.of_zeros(65_536), 0xd797_8eeb);
    for kind in CrcKind::ALL {
        assert_eq!(kind.of(b""), 0);
        assert_eq!(kind.of_zeros(0), 0);
    }
}

#[test]
fn more_than_4_gib_of_zeros_are_summed_as_their_parts() {
    for kind in CrcKind::ALL {
        // Doubled from one MiB that was actually summed, so that each step is a combination of
        // parts.
        let mut len = 1_u64 << 20;
        let mut crc = kind.of(&vec![0; 1 << 20]);
        while len < 1 << 45 {
            assert_eq!(kind.of_zeros(len), crc, "{kind:?} {len}");
            crc = kind.combine(crc, crc, len);
            len *= 2;
        }
        // Lengths whose bytes are all in use, against parts of them.
        let (a, b) = (0x0123_4567_89ab_cdef_u64, 0xfedc_ba98_7654_u64);
        let whole = kind.of_zeros(a + b);
        assert_eq!(kind.combine(kind.of_zeros(a), kind.of_zeros(b), b), whole);
        assert_eq!(kind.without_prefix(whole, kind.of_zeros(a), b), kind.of_zeros(b));
        assert_eq!(kind.without_suffix(whole, kind.of_zeros(b), b), kind.of_zeros(a));
        let text = kind.of(b"text");
        assert_eq!(kind.without_zeros(kind.combine(text, kind.of_zeros(a), a), a), text);
        assert_eq!(kind.without_suffix(kind.combine(text, 5, u64::MAX), 5, u64::MAX), text);
    }
}

#[test]
fn contents_of_several_mib_agree_whatever_their_parts() {
    let content = noise(3, (5 << 20) + 123);
    for kind in CrcKind::ALL {
        let whole = kind.of(&content);
        for at in [0, 1, 4095, 4096, 1 << 20, (3 << 20) + 77, content.len()] {
            let (a, b) = content.split_at(at);
            let (crc_a, crc_b, len_b) = (kind.of(a), kind.of(b), b.len() as u64);
            assert_eq!(kind.combine(crc_a, crc_b, len_b), whole);
            assert_eq!(kind.without_prefix(whole, crc_a, len_b), crc_b);
            assert_eq!(kind.without_suffix(whole, crc_b, len_b), crc_a);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn the_algebra_is_that_of_the_bytes(
        content in prop::collection::vec(any::<u8>(), 0..3000),
        at in any::<prop::sample::Index>(),
        zeros in 0..5000_usize,
    ) {
        let at = at.index(content.len() + 1);
        let (a, b) = content.split_at(at);
        let len_b = b.len() as u64;
        for kind in CrcKind::ALL {
            let whole = kind.of(&content);
            prop_assert_eq!(whole, naive(kind, &content));
            let (crc_a, crc_b) = (kind.of(a), kind.of(b));
            prop_assert_eq!(kind.append(crc_a, b), whole);
            prop_assert_eq!(kind.combine(crc_a, crc_b, len_b), whole);
            prop_assert_eq!(kind.without_prefix(whole, crc_a, len_b), crc_b);
            prop_assert_eq!(kind.without_suffix(whole, crc_b, len_b), crc_a);
            let combiner = Combiner::new(kind, len_b);
            prop_assert_eq!(combiner.combine(crc_a, crc_b), whole);
            prop_assert_eq!(combiner.without_prefix(whole, crc_a), crc_b);
            let mut padded = content.clone();
            padded.resize(content.len() + zeros, 0);
            prop_assert_eq!(kind.without_zeros(kind.of(&padded), zeros as u64), whole);
            prop_assert!(kind.len_bytes() == 8 || whole >> 32 == 0);
        }
    }
}
