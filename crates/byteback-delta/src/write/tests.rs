//! Streams that are written, read back and applied.

use proptest::prelude::*;

use super::*;
use crate::FILE_LEN_MAX;
use crate::apply::{EmptyBase, apply_in_place, apply_to_new};
use crate::model::{LEN_MAX, Lit, Op, build, content, noise, op};
use crate::read::{DeltaReader, validate, verify};

fn r(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end).unwrap()
}

fn encode(map: &DeltaMap<Lit>, options: WriterOptions) -> (Vec<u8>, DeltaStats) {
    let mut writer = DeltaWriter::new(Vec::new(), map.base_len_bytes(), map.new_len_bytes(), options).unwrap();
    writer
        .map(map, |lit, buffer| {
            lit.fill(buffer);
            Ok(())
        })
        .unwrap();
    writer.finish().unwrap()
}

/// A stream decoded into a map whose literals are places among all its literal bytes, and these
/// bytes.
fn decode(stream: &[u8]) -> (DeltaMap<Lit>, Vec<u8>) {
    let mut reader = DeltaReader::new(stream).unwrap();
    let header = *reader.header();
    let mut map = DeltaMap::new(header.base_len_bytes, header.new_len_bytes);
    let mut literals = Vec::new();
    let mut decoder = crate::FrameDecoder::new().unwrap();
    let mut raw = Vec::new();
    for block in &mut reader {
        let block = block.unwrap();
        let stored = &stream[block.frame.stream_offset as usize..][..block.frame.stored.len()];
        assert_eq!(stored, block.frame.stored, "the frame is where it says");
        for extent in block.extents {
            let at = literals.len() as u64;
            map.put(
                extent.range,
                extent.source.map_literal(|slice| Lit {
                    stream: 0,
                    at: at + u64::from(slice.skip_bytes),
                }),
            );
        }
        block.frame.decode(&mut decoder, &mut raw).unwrap();
        literals.extend_from_slice(&raw);
    }
    assert_eq!(reader.position_bytes(), stream.len() as u64);
    assert!(reader.stats().is_some());
    (map, literals)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn a_delta_survives_the_wire_and_makes_the_new_content(
        base in content(),
        new_len in 0..LEN_MAX,
        copies in any::<bool>(),
        compress in any::<bool>(),
        ops in prop::collection::vec(op(true), 0..12),
    ) {
        let ops: Vec<Op> = ops.into_iter().filter(|op| copies || !matches!(op, Op::Copy(..))).collect();
        let (map, new) = build(&base, new_len, &ops);
        let (stream, stats) = encode(&map, WriterOptions { copies, compress });
        prop_assert_eq!(stats.wire_bytes, stream.len() as u64);
        prop_assert_eq!(stats.literal_bytes, map.literal_bytes());

        let (header, read_stats) = verify(&stream[..]).unwrap();
        prop_assert_eq!(read_stats, stats);
        prop_assert_eq!(validate(&stream[..]).unwrap(), (header, stats));
        prop_assert_eq!(header.has_copies, copies);

        let mut target = Vec::new();
        apply_to_new(&base[..], &mut DeltaReader::new(&stream[..]).unwrap(), &mut target).unwrap();
        prop_assert_eq!(&target, &new);

        let mut in_place = base.clone();
        let result = apply_in_place(&mut DeltaReader::new(&stream[..]).unwrap(), &mut in_place);
        if copies {
            prop_assert!(matches!(result, Err(crate::ApplyError::HasCopies)));
            prop_assert_eq!(&in_place, &base);
        } else {
            result.unwrap();
            prop_assert_eq!(&in_place, &new);
        }

        // Block by block, the extents are those of the map, and bytes after the trailer are not
        // touched.
        let (decoded, literals) = decode(&stream);
        prop_assert_eq!(decoded.literal_bytes(), literals.len() as u64);
        let again = decoded.try_map_literals(|range, lit| {
            let Some(Source::Literal(original)) = map.resolve(range).next().map(|(_, source)| source) else { return Err(range) };
            let bytes: Vec<u8> = (0..range.len_bytes()).map(|index| original.byte(index)).collect();
            // One extent of the decoded map may be several of the original whose literals happened
            // to be adjacent.
            let first_len = map.resolve(range).next().map_or(0, |(range, _)| range.len_bytes() as usize);
            let start = lit.at as usize;
            if literals[start..start + first_len] == bytes[..first_len] { Ok(original) } else { Err(range) }
        });
        prop_assert!(again.is_ok(), "{again:?}");
        let mut followed = stream.clone();
        followed.extend_from_slice(b"next");
        let mut reader = DeltaReader::new(&followed[..]).unwrap();
        prop_assert!(reader.by_ref().all(|block| block.is_ok()));
        prop_assert_eq!(reader.into_inner(), b"next");
    }
}

#[test]
fn scattered_small_literals_cost_far_below_two_percent() {
    const FILE: u64 = 4 << 30;
    let mut writer = DeltaWriter::new(Vec::new(), FILE, FILE, WriterOptions::default()).unwrap();
    for index in 0..1024_u64 {
        // One in each 4 MiB, at an unaligned offset.
        let offset = (index << 22) + (index * 7919) % ((1 << 22) - 1024);
        writer.literal_bytes(offset, &noise(index, 1024)).unwrap();
    }
    let (stream, stats) = writer.finish().unwrap();
    assert_eq!(
        (stats.extents, stats.literal_bytes, stats.literal_stored_bytes),
        (1024, 1 << 20, 1 << 20)
    );
    let overhead = stream.len() as u64 - stats.literal_bytes;
    assert!(
        overhead * 1000 < stats.literal_bytes * 7,
        "{overhead} bytes of overhead"
    );
}

#[test]
fn a_long_literal_is_split_and_short_ones_share_a_block() {
    let long = noise(1, 1_000_000);
    let mut writer = DeltaWriter::new(Vec::new(), 0, 3_000_000, WriterOptions::default()).unwrap();
    writer.literal_bytes(0, &long).unwrap();
    for index in 0..100_u64 {
        writer.literal_bytes(1_500_000 + index * 1000, &long[..10]).unwrap();
    }
    let (stream, stats) = writer.finish().unwrap();
    assert_eq!((stats.blocks, stats.extents, stats.literal_bytes), (4, 104, 1_001_000));
    let mut new = Vec::new();
    apply_to_new(&EmptyBase, &mut DeltaReader::new(&stream[..]).unwrap(), &mut new).unwrap();
    let mut expected = long.clone();
    expected.resize(3_000_000, 0);
    for index in 0..100 {
        expected[1_500_000 + index * 1000..][..10].copy_from_slice(&long[..10]);
    }
    assert!(new == expected);
}

#[test]
fn more_extents_than_a_block_holds_make_more_blocks() {
    const COUNT: u64 = 3 * BLOCK_EXTENTS_MAX as u64 + 1;
    let mut writer = DeltaWriter::new(
        Vec::new(),
        COUNT * 100,
        COUNT * 100,
        WriterOptions {
            copies: true,
            compress: true,
        },
    )
    .unwrap();
    for index in 0..COUNT {
        match index % 3 {
            0 => writer.literal_bytes(index * 100, &[1, 2, 3]).unwrap(),
            1 => writer.zero(r(index * 100, index * 100 + 50)).unwrap(),
            _ => writer
                .copy(r(index * 100, index * 100 + 99), (COUNT - index) * 100)
                .unwrap(),
        }
    }
    let (stream, stats) = writer.finish().unwrap();
    assert_eq!((stats.blocks, stats.extents), (4, COUNT));
    assert_eq!(verify(&stream[..]).unwrap().1, stats);
}

#[test]
fn neighbouring_literals_are_one_extent() {
    let mut writer = DeltaWriter::new(
        Vec::new(),
        100,
        100,
        WriterOptions {
            copies: true,
            compress: false,
        },
    )
    .unwrap();
    writer.literal_bytes(0, b"ab").unwrap();
    writer.literal_bytes(2, b"cd").unwrap();
    writer.copy(r(4, 6), 10).unwrap();
    writer.copy(r(6, 8), 12).unwrap();
    writer.copy(r(8, 9), 50).unwrap();
    writer.zero(r(9, 10)).unwrap();
    writer.zero(r(10, 11)).unwrap();
    assert_eq!(writer.finish().unwrap().1.extents, 4);
}

#[test]
fn the_largest_files_are_written_and_read() {
    let last = FILE_LEN_MAX;
    let mut writer = DeltaWriter::new(
        Vec::new(),
        last,
        last,
        WriterOptions {
            copies: true,
            compress: true,
        },
    )
    .unwrap();
    writer.zero(r(0, last - 20)).unwrap();
    writer.copy(r(last - 20, last - 10), 0).unwrap();
    writer.copy(r(last - 10, last - 9), last - 1).unwrap();
    writer.literal_bytes(last - 1, b"x").unwrap();
    let (stream, stats) = writer.finish().unwrap();
    assert_eq!(stats.extents, (last - 20).div_ceil(EXTENT_LEN_MAX) + 3);
    verify(&stream[..]).unwrap();
    let mut map: DeltaMap<Lit> = DeltaMap::new(last, last);
    for block in DeltaReader::new(&stream[..]).unwrap() {
        for extent in block.unwrap().extents {
            map.put(extent.range, extent.source.map_literal(|_| Lit { stream: 0, at: 0 }));
        }
    }
    let sources: Vec<_> = map.iter().map(|(range, source)| (range, *source)).collect();
    assert_eq!(
        sources,
        [
            (r(0, last - 20), Source::Zero),
            (r(last - 20, last - 10), Source::Copy { base_offset: 0 }),
            (r(last - 10, last - 9), Source::Copy { base_offset: last - 1 }),
            (r(last - 1, last), Source::Literal(Lit { stream: 0, at: 0 })),
        ]
    );
    let error = DeltaWriter::new(Vec::new(), 0, last + 1, WriterOptions::default())
        .err()
        .unwrap();
    assert!(matches!(error, WriteError::FileTooLong { .. }));
}

#[test]
fn an_unchanged_or_empty_file_is_header_and_trailer() {
    for (base, new) in [(0, 0), (5, 5), (5, 9), (9, 5)] {
        let writer = DeltaWriter::new(Vec::new(), base, new, WriterOptions::default()).unwrap();
        let (stream, stats) = writer.finish().unwrap();
        assert_eq!(stream.len(), HEADER_LEN + TRAILER_LEN);
        assert_eq!(verify(&stream[..]).unwrap().1, stats);
    }
}

#[test]
fn mistakes_of_the_caller_are_told_and_end_the_stream() {
    type Call = fn(&mut DeltaWriter<Vec<u8>>) -> Result<(), WriteError>;
    type Expected = fn(&WriteError) -> bool;
    let wrong: [(Call, Expected); 7] = [
        (|w| w.zero(r(9, 12)), |e| matches!(e, WriteError::OutOfOrder { .. })),
        (|w| w.zero(r(95, 101)), |e| matches!(e, WriteError::PastNewLen { .. })),
        (
            |w| w.copy(r(20, 30), 45),
            |e| matches!(e, WriteError::PastBaseLen { .. }),
        ),
        (
            |w| w.copy(r(20, 30), u64::MAX),
            |e| matches!(e, WriteError::PastBaseLen { .. }),
        ),
        (
            |w| w.literal(r(20, 30), &b"too few"[..]),
            |e| matches!(e, WriteError::ReadLiteral { .. }),
        ),
        (
            |w| w.literal_bytes(u64::MAX, b"xy"),
            |e| matches!(e, WriteError::FileTooLong { .. }),
        ),
        (
            |w| w.literal_bytes(99, b"xy"),
            |e| matches!(e, WriteError::PastNewLen { .. }),
        ),
    ];
    for (call, expected) in wrong {
        let options = WriterOptions {
            copies: true,
            compress: true,
        };
        let mut writer = DeltaWriter::new(Vec::new(), 50, 100, options).unwrap();
        writer.zero(r(0, 10)).unwrap();
        let error = call(&mut writer).unwrap_err();
        assert!(expected(&error), "{error:?}");
        if !matches!(error, WriteError::FileTooLong { .. }) {
            assert!(matches!(writer.zero(r(50, 60)), Err(WriteError::Incomplete)));
            assert!(matches!(writer.finish(), Err(WriteError::Incomplete)));
        }
    }
    let mut writer = DeltaWriter::new(Vec::new(), 50, 100, WriterOptions::default()).unwrap();
    assert!(matches!(
        writer.copy(r(20, 30), 0),
        Err(WriteError::CopiesNotDeclared { .. })
    ));
    let mut writer = DeltaWriter::new(Vec::new(), 50, 100, WriterOptions::default()).unwrap();
    writer.literal_bytes(3, b"").unwrap();
    writer.zero(r(2, 3)).unwrap();
}

/// A destination that takes some bytes and then fails, as a full disk does.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.0);
        self.0 -= taken;
        if taken == 0 {
            Err(io::ErrorKind::StorageFull.into())
        } else {
            Ok(taken)
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_destination_is_an_error_at_every_byte() {
    let write = |room: usize| -> Result<(), WriteError> {
        let mut writer = DeltaWriter::new(
            Full(room),
            0,
            10_000,
            WriterOptions {
                copies: false,
                compress: false,
            },
        )?;
        writer.literal_bytes(0, &noise(3, 300))?;
        writer.zero(r(400, 500))?;
        writer.finish().map(|_| ())
    };
    let whole = (0..1000).find(|&room| write(room).is_ok()).unwrap();
    assert!(whole > 300 + HEADER_LEN + TRAILER_LEN && whole < 500);
    for room in 0..whole {
        assert!(matches!(write(room), Err(WriteError::Write(_))));
    }
}

/// The format of version 1, byte by byte: docs/formats/delta.md explains this very stream.
#[test]
fn golden_bytes_of_version_1() {
    let mut writer = DeltaWriter::new(
        Vec::new(),
        1000,
        1200,
        WriterOptions {
            copies: true,
            compress: true,
        },
    )
    .unwrap();
    writer.literal_bytes(16, b"hello").unwrap();
    writer.copy(r(100, 200), 300).unwrap();
    writer.zero(r(200, 250)).unwrap();
    writer.copy(r(300, 310), 500).unwrap();
    writer.literal_bytes(1197, b"end").unwrap();
    let (stream, stats) = writer.finish().unwrap();
    let hex: Vec<String> = stream
        .chunks(16)
        .map(|row| row.iter().map(|byte| format!("{byte:02x}")).collect())
        .collect();
    assert_eq!(
        hex,
        [
            "894242444c540d0a01000100e8030000",
            "00000000b004000000000000ba47a8c3",
            "01000500100000000800000008000000",
            "10104f8d03900300c601322500f70608",
            "4cb21c8868656c6c6f656e64eb13a65f",
            "02050000000000000008000000000000",
            "00080000000000000001000000000000",
            "00cf0743168e278d68"
        ]
    );
    assert_eq!(
        stats,
        DeltaStats {
            extents: 5,
            literal_bytes: 8,
            literal_stored_bytes: 8,
            blocks: 1,
            wire_bytes: 121
        }
    );
}
