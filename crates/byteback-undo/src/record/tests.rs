//! The bytes of `docs/formats/undo.md`, and what damage does to them.

use super::*;

fn all() -> Vec<(Record, &'static [u8])> {
    vec![
        (
            Record::Moment {
                node: 7,
                size: 4096,
                how: ContentHow::Truncated,
                quantum_ns: 3_000_000_000,
            },
            b"",
        ),
        (
            Record::Old {
                node: 7,
                offset: 10,
                len: 5,
                is_zeros: false,
            },
            b"hello",
        ),
        (
            Record::Old {
                node: 7,
                offset: 100,
                len: 1 << 40,
                is_zeros: true,
            },
            b"",
        ),
        (
            Record::Name {
                parent: 1,
                before: 7,
                after: 0,
                how: 2,
                name: b"a name".to_vec(),
            },
            b"",
        ),
        (Record::NodeBarrier { node: 7, why: 3 }, b""),
        (
            Record::NameBarrier {
                parent: 1,
                why: 7,
                name: vec![0xff; 255],
            },
            b"",
        ),
        (
            Record::Rights {
                node: 7,
                rights: Rights {
                    mode: 0o4711,
                    uid: 1000,
                    gid: u32::MAX - 1,
                },
            },
            b"",
        ),
        (
            Record::Session {
                tree: 0x1234,
                step: Step::Ended,
            },
            b"",
        ),
    ]
}

#[test]
fn undo_record_is_read_back_and_each_head_bit_flip_is_noticed() {
    for (record, data) in all() {
        let bytes = record.encode(-5, data);
        let framed = decode(&bytes).unwrap();
        assert_eq!((&framed.record, framed.time_ns), (&record, -5));
        assert_eq!((framed.data_len, framed.len), (data.len() as u64, bytes.len() as u64));
        let data_at = usize::try_from(framed.data_at).unwrap();
        assert_eq!(&bytes[data_at..data_at + data.len()], data);
        assert_eq!(framed.data_crc, crc32c::crc32c(data));
        for bit in 0..data_at * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bytes), None, "{record:?}, bit {bit}");
        }
        for len in 0..data_at {
            assert_eq!(decode(&bytes[..len]), None, "{record:?}, cut at {len}");
        }
    }
}

/// If this fails, the format has changed: give it a new version.
#[test]
fn the_bytes_are_those_of_the_document() {
    let bytes = Record::Old {
        node: 7,
        offset: 10,
        len: 5,
        is_zeros: false,
    }
    .encode(0x0102_0304_0506_0708, b"hello");
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        hex,
        "29d4271ab7020000000000004cbb719a080706050403020107000000000000000a0000000000000005000000000000000000000000000000050000000000000068656c6c6f000000"
    );
}

/// Found by fuzzing: a session with a name was read as a session.
#[test]
fn a_tail_where_the_kind_has_none_is_damage() {
    for (record, data) in all() {
        let has_name = matches!(record, Record::Name { .. } | Record::NameBarrier { .. });
        let mut bytes = record.encode(1, data);
        bytes.splice(HEADER_LEN_BYTES.., *b"a name\0\0");
        bytes[8..12].copy_from_slice(&6_u32.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[4..]).to_le_bytes();
        bytes[..4].copy_from_slice(&crc);
        assert_eq!(decode(&bytes).is_some(), has_name, "{record:?}");
    }
}
