//! Round trips, the way back to the base, and hostile bytes.

use proptest::prelude::*;

use super::*;
use crate::model::noise;
use crate::signature::{SignatureParams, SignatureWriter};
use crate::write::{DeltaWriter, WriterOptions};

fn range(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end).unwrap()
}

fn excerpt(ranges: &[(u64, u64)]) -> Excerpt {
    Excerpt::new(&ranges.iter().map(|(start, end)| range(*start, *end)).collect())
}

fn answer(base: &[u8], excerpt: &Excerpt, block_len: u32) -> Vec<u8> {
    let here = excerpt.within(base.len() as u64);
    let params = SignatureParams::for_excerpt(block_len, 5);
    let mut stream = Vec::new();
    ExcerptAnswer::write_head(base.len() as u64, &mut stream).unwrap();
    let mut writer = SignatureWriter::new(stream, params, here.len_bytes()).unwrap();
    for part in here.ranges() {
        writer.push(&base[part.start() as usize..part.end() as usize]).unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn golden_bytes_of_version_1() {
    let excerpt = excerpt(&[(4096, 8192), (12_288, 12_352)]);
    let expected: &[u8] = &[
        0x89, b'B', b'B', b'E', b'X', b'C', b'\r', b'\n', // magic
        1, 0, 0, 0, // version 1
        2, 0, 0, 0, // two ranges
        0x80, 0x20, 0x80, 0x20, // 4096 bytes from 4096 on
        0x80, 0x20, 0x40, // 64 bytes, 4096 behind
    ];
    let bytes = excerpt.encode();
    assert_eq!(&bytes[..bytes.len() - 4], expected);
    assert_eq!(bytes[bytes.len() - 4..], crc32c::crc32c(expected).to_le_bytes());
    assert_eq!(Excerpt::decode(&bytes).unwrap(), excerpt);

    let mut head = Vec::new();
    ExcerptAnswer::write_head(0x0102, &mut head).unwrap();
    let expected: &[u8] = &[
        0x89, b'B', b'B', b'E', b'X', b'A', b'\r', b'\n', // magic
        1, 0, 0, 0, // version 1
        2, 1, 0, 0, 0, 0, 0, 0, // length of the base
    ];
    assert_eq!(head[..20], *expected);
    assert_eq!(head[20..], crc32c::crc32c(expected).to_le_bytes());
    assert_eq!(head.len(), 24);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn what_is_encoded_is_decoded(ranges in prop::collection::vec((0..1_u64 << 50, 1..1_u64 << 20), 0..50)) {
        let set: ExtentSet = ranges.iter().filter_map(|(start, len)| ByteRange::from_offset_len(*start, *len)).collect();
        let excerpt = Excerpt::new(&set);
        prop_assert_eq!(Excerpt::decode(&excerpt.encode()).unwrap(), excerpt);
    }

    #[test]
    fn ranges_of_an_excerpt_are_those_of_the_base(
        ranges in prop::collection::vec((0..500_u64, 1..60_u64), 0..20),
        base_len in 0..600_u64,
        sought in (0..600_u64, 1..200_u64),
    ) {
        let set: ExtentSet = ranges.iter().filter_map(|(start, len)| ByteRange::from_offset_len(*start, *len)).collect();
        let here = Excerpt::new(&set).within(base_len);
        // Byte by byte.
        let model: Vec<u64> = (0..base_len).filter(|at| set.contains(*at)).collect();
        prop_assert_eq!(here.len_bytes(), model.len() as u64);
        let sought = ByteRange::from_offset_len(sought.0, sought.1).unwrap();
        let found: Vec<u64> = here.in_base(sought).flat_map(|part| part.start()..part.end()).collect();
        let expected: Vec<u64> = model.iter().copied().skip(sought.start() as usize)
            .take(sought.len_bytes() as usize).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn bytes_of_anybody_do_no_harm(mut bytes in prop::collection::vec(any::<u8>(), 0..100), count in 0..12_u32) {
        let _ = Excerpt::decode(&bytes);
        // With a valid head and checksum, only the rules are left to break.
        let mut valid = excerpt(&[]).encode();
        valid.truncate(12);
        valid.extend_from_slice(&count.to_le_bytes());
        valid.append(&mut bytes);
        let crc = crc32c::crc32c(&valid);
        valid.extend_from_slice(&crc.to_le_bytes());
        if let Ok(decoded) = Excerpt::decode(&valid) {
            prop_assert_eq!(decoded.encode(), valid);
        }
    }
}

#[test]
fn every_flipped_bit_and_every_truncation_is_noticed() {
    let base = noise(3, 5000);
    let sought = excerpt(&[(0, 1000), (2000, 2300), (4900, 6000)]);
    let encoded = sought.encode();
    let answer = answer(&base, &sought, 64);
    let read = ExcerptAnswer::read(&answer[..], &sought, 1000).unwrap();
    assert_eq!((read.base_len_bytes, read.excerpt.len_bytes()), (5000, 1400));
    for (bytes, is_read) in [
        (
            &encoded,
            &(|bytes: &[u8]| Excerpt::decode(bytes).is_ok()) as &dyn Fn(&[u8]) -> bool,
        ),
        (&answer, &|bytes| ExcerptAnswer::read(bytes, &sought, 1000).is_ok()),
    ] {
        assert!(is_read(bytes));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_read(&flipped), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(!is_read(&bytes[..len]), "{len} bytes");
        }
    }
}

#[test]
fn answers_about_another_excerpt_are_refused() {
    let base = noise(3, 5000);
    let (sought, other) = (excerpt(&[(0, 1000)]), excerpt(&[(0, 1001)]));
    let answer = answer(&base, &other, 64);
    let refused = ExcerptAnswer::read(&answer[..], &sought, 1000);
    assert!(matches!(refused, Err(ExcerptError::Impossible(_))));
    let refused = ExcerptAnswer::read(&answer[..], &other, 15);
    assert!(matches!(
        refused,
        Err(ExcerptError::Signature(SignatureError::TooManyBlocks { .. }))
    ));
}

#[test]
fn too_many_ranges_are_refused_before_anything_is_reserved() {
    let mut bytes = excerpt(&[]).encode();
    bytes.truncate(12);
    bytes.extend_from_slice(&(RANGES_MAX + 1).to_le_bytes());
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    assert!(matches!(Excerpt::decode(&bytes), Err(ExcerptError::TooMany(count)) if count == RANGES_MAX + 1));
}

/// The bytes of an excerpt as a server sends them: all that lies in `sent`.
fn bytes_of(base: &[u8], sent: &Excerpt) -> Vec<u8> {
    let mut writer = DeltaWriter::new(Vec::new(), 0, base.len() as u64, WriterOptions::default()).unwrap();
    for part in sent.within(base.len() as u64).ranges() {
        let bytes = &base[part.start() as usize..part.end() as usize];
        match bytes.iter().all(|byte| *byte == 0) {
            true => writer.zero(*part).unwrap(),
            false => writer.literal_bytes(part.start(), bytes).unwrap(),
        }
    }
    writer.finish().unwrap().0
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn bytes_of_an_excerpt_are_those_of_the_base(
        ranges in prop::collection::vec((0..900_000_u64, 1..60_000_u64), 0..8),
        zeros in (0..900_000_usize, 0..300_000_usize),
        base_len in 0..900_000_usize,
    ) {
        let mut base = noise(4, base_len);
        let zeros_end = (zeros.0 + zeros.1).min(base_len);
        base[zeros.0.min(zeros_end)..zeros_end].fill(0);
        let set: ExtentSet = ranges.iter().filter_map(|(start, len)| ByteRange::from_offset_len(*start, *len)).collect();
        let sought = Excerpt::new(&set);
        let read = ExcerptBytes::read(&bytes_of(&base, &sought)[..], &sought).unwrap();
        let expected: Vec<u8> = (0..base_len).filter(|at| set.contains(*at as u64)).map(|at| base[at]).collect();
        prop_assert_eq!(read.base_len_bytes, base_len as u64);
        prop_assert_eq!(read.excerpt, sought.within(base_len as u64));
        prop_assert!(read.bytes == expected);
    }
}

#[test]
fn damaged_and_cut_bytes_of_an_excerpt_are_refused() {
    let base = noise(5, 3000);
    let sought = excerpt(&[(0, 100), (2000, 2300), (2900, 4000)]);
    let stream = bytes_of(&base, &sought);
    assert!(ExcerptBytes::read(&stream[..], &sought).is_ok());
    for bit in 0..stream.len() * 8 {
        let mut flipped = stream.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(ExcerptBytes::read(&flipped[..], &sought).is_err(), "bit {bit}");
    }
    for len in 0..stream.len() {
        assert!(ExcerptBytes::read(&stream[..len], &sought).is_err(), "{len} bytes");
    }
}

#[test]
fn bytes_of_another_excerpt_are_refused() {
    let base = noise(5, 3000);
    let sought = excerpt(&[(100, 200), (2000, 2300)]);
    for other in [[(100, 201)], [(99, 200)], [(1000, 1001)], [(150, 2100)]] {
        let refused = ExcerptBytes::read(&bytes_of(&base, &excerpt(&other))[..], &sought);
        assert!(matches!(refused, Err(ExcerptError::Impossible(_))), "{other:?}");
    }
    // Zeros are bytes as well: they would go on for as long as a server likes.
    let mut zeros = DeltaWriter::new(Vec::new(), 0, 1 << 40, WriterOptions::default()).unwrap();
    zeros.zero(range(5000, 1 << 40)).unwrap();
    let refused = ExcerptBytes::read(&zeros.finish().unwrap().0[..], &sought);
    assert!(matches!(refused, Err(ExcerptError::Impossible(_))));
    // A delta of copies has no bytes.
    let options = WriterOptions {
        copies: true,
        ..WriterOptions::default()
    };
    let mut copies = DeltaWriter::new(Vec::new(), 3000, 3000, options).unwrap();
    copies.copy(range(100, 200), 0).unwrap();
    let refused = ExcerptBytes::read(&copies.finish().unwrap().0[..], &sought);
    assert!(matches!(refused, Err(ExcerptError::Impossible(_))));
}
