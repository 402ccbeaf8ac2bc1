//! Rows survive a round trip, and damaged rows decode to nothing.

use byteback_host::random::SplitMix64;

use super::*;

fn record() -> Record {
    let identity = Identity {
        dev: 9,
        ino: 0x0507,
        birth_ns: Some(-3),
    };
    let stamp = super::super::stamp_of(identity, 5000, 17, 18);
    let zeros = [ByteRange::new(2, 4), ByteRange::new(9, u64::MAX)];
    Record {
        stamp: Some(Seen::of(&stamp, [0xbb; 16])),
        zeros: zeros.into_iter().flatten().collect(),
    }
}

#[test]
fn golden_values_of_version_1() {
    let mut expected = vec![1];
    expected.extend(0x0507_u64.to_le_bytes());
    expected.push(1);
    expected.extend((-3_i64).to_le_bytes());
    for number in [5000_u64, 17, 18] {
        expected.extend(number.to_le_bytes());
    }
    expected.extend([0xbb; 16]);
    for number in [2, 4, 9, u64::MAX] {
        expected.extend(number.to_le_bytes());
    }
    let keyed = |file: u64, second: u64, body: &[u8]| {
        crc32c::crc32c(&[&file.to_le_bytes(), &second.to_le_bytes(), body].concat()).to_le_bytes()
    };
    expected.extend(keyed(7, 0, &expected));
    assert_eq!(record().encode(7), expected);

    let mut chunk = Chunk::unknown();
    chunk.put(0, Some(0x0403_0201));
    chunk.put(9, Some(5));
    // No zeros at the end; two bytes of the bitmap; the sums of blocks 0 and 9.
    let mut expected = vec![0, 1, 2, 1, 2, 1, 2, 3, 4, 5, 0, 0, 0];
    expected.extend(keyed(7, 3, &expected));
    assert_eq!(encode_chunk(7, 3, &chunk), expected);
    for index in 10..CHUNK_BLOCKS as usize {
        chunk.put(index, Some(zero_sum()));
    }
    let mut expected = vec![10, 0, 2, 1, 2, 1, 2, 3, 4, 5, 0, 0, 0];
    expected.extend(keyed(7, 3, &expected));
    assert_eq!(encode_chunk(7, 3, &chunk), expected);
    assert_eq!(decode_chunk(7, 3, &expected), chunk);
    for (at, too_much) in [(1, 2), (2, 33)] {
        let mut bad = expected[..expected.len() - 4].to_vec();
        bad[at] = too_much;
        bad.resize(100, 0);
        bad.extend(keyed(7, 3, &bad));
        assert!(decode_chunk(7, 3, &bad).is_unknown());
    }

    let flagged = Flagged {
        reason: Reason::Crash,
        found_at_ns: 12,
        blocks: ByteRange::new(3, 5).into_iter().collect(),
    };
    let mut expected = vec![2];
    for number in [12_u64, 3, 5] {
        expected.extend(number.to_le_bytes());
    }
    expected.extend(keyed(7, 1, &expected));
    assert_eq!(encode_flagged(7, &flagged), expected);
    assert_eq!(decode_flagged(7, &expected), Some(flagged));
}

#[test]
fn written_rows_read_back_as_written_or_not_at_all() {
    let mut random = SplitMix64::new(3);
    for _ in 0..200 {
        let mut chunk = Chunk::unknown();
        for _ in 0..random.below(300) {
            let sum = random.coin().then(|| random.next_u64() as u32);
            chunk.put(random.below(CHUNK_BLOCKS) as usize, sum);
        }
        for index in CHUNK_BLOCKS - random.below(9)..CHUNK_BLOCKS {
            chunk.put(index as usize, Some(zero_sum()));
        }
        let mut bytes = encode_chunk(3, 4, &chunk);
        assert_eq!(decode_chunk(3, 4, &bytes), chunk);
        assert!(decode_chunk(3, 5, &bytes).is_unknown());
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << random.below(8);
        assert!(decode_chunk(3, 4, &bytes).is_unknown());
    }
    let bytes = record().encode(7);
    assert_eq!(Record::decode(7, &bytes), Some(record()));
    assert_eq!(Record::decode(8, &bytes), None);
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 0x10;
        assert_eq!(Record::decode(7, &bad), None);
        assert_eq!(Record::decode(7, &bytes[..at]), None);
    }
    // Too many ranges are dropped, without losing the record.
    let mut many = record();
    (0..5000).for_each(|at| many.zeros.insert(ByteRange::new(20 + 2 * at, 21 + 2 * at).unwrap()));
    let fewer = Record::decode(7, &many.encode(7)).unwrap();
    assert!(fewer.zeros.len() <= ZEROS_MAX && fewer.zeros.contains(u64::MAX - 1));
}
