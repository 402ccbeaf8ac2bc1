//! Streams that were damaged, forged or made up.

use proptest::prelude::*;

use super::*;
use crate::apply::{ApplyError, EmptyBase, apply_in_place, apply_to_new};
use crate::frame::FRAME_RAW_LEN_MAX;
use crate::model::noise;
use crate::source::Source;
use crate::varint;
use crate::write::{DeltaWriter, WriterOptions};
use byteback_extents::ByteRange;

fn r(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end).unwrap()
}

/// Streams that together cover all parts and kinds.
fn samples() -> Vec<Vec<u8>> {
    let finish = |writer: DeltaWriter<Vec<u8>>| writer.finish().unwrap().0;
    let begin = |options| DeltaWriter::new(Vec::new(), 5000, 6000, options).unwrap();
    let plain = WriterOptions {
        copies: false,
        compress: false,
    };

    let empty = finish(begin(plain));

    let mut all_kinds = begin(WriterOptions {
        copies: true,
        compress: true,
    });
    all_kinds.literal_bytes(3, &noise(1, 40)).unwrap();
    all_kinds.copy(r(100, 300), 4000).unwrap();
    all_kinds.zero(r(300, 1000)).unwrap();
    all_kinds.literal_bytes(5990, &noise(2, 10)).unwrap();

    let mut compressed = begin(WriterOptions::default());
    compressed.literal_bytes(0, &b"abcdefgh".repeat(100)).unwrap();

    // Several blocks, small enough to damage every byte: a block also ends at its limit of extents.
    let mut blocks = DeltaWriter::new(Vec::new(), 0, 20_000, plain).unwrap();
    for index in 0..u64::from(BLOCK_EXTENTS_MAX) + 5 {
        if index % 1000 == 0 {
            blocks.literal_bytes(index * 4, &noise(index, 3)).unwrap();
        } else {
            blocks.zero(r(index * 4, index * 4 + 1)).unwrap();
        }
    }
    vec![empty, finish(all_kinds), finish(compressed), finish(blocks)]
}

#[test]
fn every_damaged_byte_is_an_error() {
    for stream in samples() {
        verify(&stream[..]).unwrap();
        let mut damaged = stream.clone();
        for position in 0..stream.len() {
            // All single bits, and the whole byte.
            let flips: &[u8] = if stream.len() < 1000 {
                &[1, 2, 4, 8, 16, 32, 64, 128, 255]
            } else {
                &[1, 255]
            };
            for flip in flips {
                damaged[position] ^= flip;
                assert!(
                    validate(&damaged[..]).is_err(),
                    "flip {flip:#x} at {position} of {} passed",
                    stream.len()
                );
                damaged[position] = stream[position];
            }
        }
    }
}

#[test]
fn every_truncation_is_told_as_such() {
    for stream in samples() {
        for len in 0..stream.len() {
            let error = validate(&stream[..len]).unwrap_err();
            assert!(
                matches!(error, ReadError::CutOff { position, .. } if position <= len as u64),
                "{len}: {error}"
            );
        }
    }
}

#[test]
fn every_missing_or_doubled_byte_is_an_error() {
    for stream in samples() {
        for position in 0..stream.len() {
            let mut shorter = stream.clone();
            shorter.remove(position);
            assert!(validate(&shorter[..]).is_err(), "byte {position} missing");
            let mut longer = stream.clone();
            longer.insert(position, stream[position]);
            // A doubled last byte lies beyond the trailer, where the reader does not look.
            let doubled = validate(&longer[..]);
            assert!(
                doubled.is_err() || longer[..stream.len()] == stream[..],
                "byte {position} doubled"
            );
        }
    }
}

/// The positions of a stream's blocks and its trailer.
fn block_positions(stream: &[u8]) -> Vec<usize> {
    let mut reader = DeltaReader::new(stream).unwrap();
    let mut positions = vec![reader.position_bytes() as usize];
    let mut block = Block::default();
    while reader.read_block(&mut block).unwrap() {
        positions.push(reader.position_bytes() as usize);
    }
    positions
}

#[test]
fn blocks_of_another_stream_do_not_pass() {
    // Two streams of the same shape whose second blocks differ in the frame alone: every CRC
    // agrees, the digest must not.
    let stream = |seed: u64| {
        let options = WriterOptions {
            copies: false,
            compress: false,
        };
        let mut writer = DeltaWriter::new(Vec::new(), 0, 1 << 20, options).unwrap();
        let mut bytes = noise(1, FRAME_RAW_LEN_MAX as usize);
        bytes.extend_from_slice(&noise(seed, 1000));
        writer.literal_bytes(0, &bytes).unwrap();
        writer.finish().unwrap().0
    };
    let (one, other) = (stream(2), stream(3));
    let positions = block_positions(&one);
    assert_eq!(positions.len(), 3);
    let mut mixed = one.clone();
    mixed[positions[1]..positions[2]].copy_from_slice(&other[positions[1]..positions[2]]);
    let error = validate(&mixed[..]).unwrap_err();
    assert!(matches!(error, ReadError::Checksum { part: "whole", .. }), "{error}");

    // A block is left out, doubled, or moved.
    let without = [&one[..positions[0]], &one[positions[1]..]].concat();
    assert!(validate(&without[..]).is_err());
    let doubled = [&one[..positions[1]], &one[positions[0]..]].concat();
    assert!(validate(&doubled[..]).is_err());
    let swapped = [
        &one[..positions[0]],
        &one[positions[1]..positions[2]],
        &one[positions[0]..positions[1]],
        &one[positions[2]..],
    ]
    .concat();
    assert!(validate(&swapped[..]).is_err());
}

/// A stream with valid checksums and totals, whatever its parts say.
#[derive(Clone, Debug)]
struct Forged {
    version: u16,
    flags: u16,
    base_len: u64,
    new_len: u64,
    blocks: Vec<ForgedBlock>,
}

#[derive(Clone, Debug)]
struct ForgedBlock {
    tag: u8,
    codec: u8,
    extent_count: u16,
    extents: Vec<u8>,
    raw_len: u32,
    stored_len: u32,
    frame: Vec<u8>,
}

impl Default for Forged {
    fn default() -> Self {
        Self {
            version: VERSION,
            flags: FLAG_COPIES,
            base_len: 1000,
            new_len: 1000,
            blocks: Vec::new(),
        }
    }
}

impl Forged {
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.flags.to_le_bytes());
        out.extend_from_slice(&self.base_len.to_le_bytes());
        out.extend_from_slice(&self.new_len.to_le_bytes());
        out.extend_from_slice(&crc32c::crc32c(&out).to_le_bytes());
        let mut digested = out.clone();
        let mut stats = DeltaStats::default();
        for block in &self.blocks {
            let mut head = vec![block.tag, block.codec];
            head.extend_from_slice(&block.extent_count.to_le_bytes());
            head.extend_from_slice(&(block.extents.len() as u32).to_le_bytes());
            head.extend_from_slice(&block.raw_len.to_le_bytes());
            head.extend_from_slice(&block.stored_len.to_le_bytes());
            head.extend_from_slice(&block.extents);
            head.extend_from_slice(&crc32c::crc32c(&head).to_le_bytes());
            let frame_crc = crc32c::crc32c(&block.frame).to_le_bytes();
            digested.extend_from_slice(&head);
            digested.extend_from_slice(&frame_crc);
            out.extend_from_slice(&head);
            out.extend_from_slice(&block.frame);
            out.extend_from_slice(&frame_crc);
            stats.blocks += 1;
            stats.extents += u64::from(block.extent_count);
            stats.literal_bytes += u64::from(block.raw_len);
            stats.literal_stored_bytes += block.frame.len() as u64;
        }
        let totals = trailer_totals(&stats);
        digested.extend_from_slice(&totals);
        out.extend_from_slice(&totals);
        out.extend_from_slice(&xxhash_rust::xxh3::xxh3_64(&digested).to_le_bytes());
        out
    }
}

/// A block with extents given as numbers, and a raw frame.
fn forged_block(extent_count: u16, numbers: &[u64], frame: &[u8]) -> ForgedBlock {
    let mut extents = Vec::new();
    for &number in numbers {
        varint::put(&mut extents, number);
    }
    let len = frame.len() as u32;
    ForgedBlock {
        tag: TAG_BLOCK,
        codec: 0,
        extent_count,
        extents,
        raw_len: len,
        stored_len: len,
        frame: frame.to_vec(),
    }
}

const fn literal(len: u64) -> u64 {
    (len - 1) << 2
}

const fn copy(len: u64) -> u64 {
    (len - 1) << 2 | 1
}

const fn zero(len: u64) -> u64 {
    (len - 1) << 2 | 2
}

fn forged(block: ForgedBlock) -> Result<(DeltaHeader, DeltaStats), ReadError> {
    validate(
        &Forged {
            blocks: vec![block],
            ..Forged::default()
        }
        .to_bytes()[..],
    )
}

#[test]
fn forged_streams_are_right_where_nothing_is_wrong() {
    validate(&Forged::default().to_bytes()[..]).unwrap();
    forged(forged_block(
        3,
        &[10, literal(5), 0, copy(100), varint::zigzag(20), 7, zero(3)],
        b"hello",
    ))
    .unwrap();
}

#[test]
fn header_fields_outside_the_format_are_refused() {
    let refused = |forged: Forged| validate(&forged.to_bytes()[..]).unwrap_err();
    assert!(matches!(
        refused(Forged {
            version: 2,
            ..Forged::default()
        }),
        ReadError::Version { found: 2 }
    ));
    assert!(matches!(
        refused(Forged {
            version: 0,
            ..Forged::default()
        }),
        ReadError::Version { found: 0 }
    ));
    assert!(matches!(
        refused(Forged {
            flags: 2,
            ..Forged::default()
        }),
        ReadError::Malformed { .. }
    ));
    assert!(matches!(
        refused(Forged {
            base_len: 1 << 63,
            ..Forged::default()
        }),
        ReadError::Malformed { .. }
    ));
    assert!(matches!(
        refused(Forged {
            new_len: u64::MAX,
            ..Forged::default()
        }),
        ReadError::Malformed { .. }
    ));
    assert!(matches!(
        validate(&b"PK\x03\x04 something else"[..]).unwrap_err(),
        ReadError::NotADelta
    ));
}

#[test]
fn extents_outside_the_format_are_refused() {
    let max = u64::MAX;
    let cases: [(&str, u16, &[u64], &[u8]); 20] = [
        ("past the end", 1, &[990, zero(11)], b""),
        ("gap past the end", 1, &[1001, zero(1)], b""),
        ("overflowing gap", 1, &[max, zero(1)], b""),
        ("overflowing gap later", 2, &[0, zero(1), max, zero(1)], b""),
        ("overflowing length", 1, &[1, max & !3 | 2], b""),
        ("too long", 1, &[0, zero((1 << 60) + 1)], b""),
        ("unknown kind", 1, &[0, 3], b""),
        ("fewer extents than said", 2, &[0, zero(1)], b""),
        ("more extents than said", 1, &[0, zero(1), 0, zero(1)], b""),
        ("no extents", 0, &[], b""),
        ("a frame without literals", 1, &[0, zero(1)], b"x"),
        ("literals without a frame", 1, &[0, literal(5)], b""),
        (
            "literals longer than the frame",
            2,
            &[0, literal(5), 0, literal(1)],
            b"hello",
        ),
        ("literals shorter than the frame", 1, &[0, literal(4)], b"hello"),
        ("a huge literal", 1, &[0, literal(1 << 40)], b"hello"),
        ("copy past the base", 1, &[0, copy(10), varint::zigzag(991)], b""),
        (
            "copy far past the base",
            1,
            &[0, copy(10), varint::zigzag(i64::MAX)],
            b"",
        ),
        ("copy before the base", 1, &[5, copy(10), varint::zigzag(-6)], b""),
        (
            "copy far before the base",
            1,
            &[5, copy(10), varint::zigzag(i64::MIN)],
            b"",
        ),
        ("copy without an offset", 1, &[5, copy(10)], b""),
    ];
    for (what, extent_count, numbers, frame) in cases {
        let error = forged(forged_block(extent_count, numbers, frame)).expect_err(what);
        assert!(matches!(error, ReadError::Malformed { .. }), "{what}: {error}");
    }
    // Copies need their flag.
    let block = forged_block(1, &[5, copy(10), varint::zigzag(3)], b"");
    forged(block.clone()).unwrap();
    let stream = Forged {
        flags: 0,
        blocks: vec![block],
        ..Forged::default()
    };
    assert!(matches!(
        validate(&stream.to_bytes()[..]),
        Err(ReadError::Malformed { .. })
    ));
    // Extents go on ascending in the next block.
    let blocks = vec![
        forged_block(1, &[0, zero(600)], b""),
        forged_block(1, &[0, zero(401)], b""),
    ];
    let stream = Forged {
        blocks,
        ..Forged::default()
    };
    assert!(matches!(
        validate(&stream.to_bytes()[..]),
        Err(ReadError::Malformed { .. })
    ));
    // More literal bytes than 32 bits can count.
    let numbers: Vec<u64> = std::iter::repeat_n([0, literal(1 << 31)], 3).flatten().collect();
    let stream = Forged {
        new_len: 1 << 40,
        blocks: vec![forged_block(3, &numbers, b"")],
        ..Forged::default()
    };
    assert!(matches!(
        validate(&stream.to_bytes()[..]),
        Err(ReadError::Malformed { .. })
    ));
}

#[test]
fn hostile_lengths_reserve_no_memory() {
    let hello = forged_block(1, &[0, literal(5)], b"hello");
    let hostile = [
        ForgedBlock {
            raw_len: u32::MAX,
            ..hello.clone()
        },
        ForgedBlock {
            stored_len: u32::MAX,
            ..hello.clone()
        },
        ForgedBlock {
            raw_len: u32::MAX,
            stored_len: u32::MAX,
            ..hello.clone()
        },
        ForgedBlock {
            codec: 1,
            raw_len: u32::MAX,
            stored_len: u32::MAX - 1,
            ..hello.clone()
        },
        ForgedBlock {
            codec: 1,
            ..hello.clone()
        },
        ForgedBlock {
            raw_len: FRAME_RAW_LEN_MAX + 1,
            stored_len: FRAME_RAW_LEN_MAX + 1,
            ..hello.clone()
        },
    ];
    for block in hostile {
        let stream = Forged {
            blocks: vec![block],
            ..Forged::default()
        }
        .to_bytes();
        let mut reader = DeltaReader::new(&stream[..]).unwrap();
        let mut read = Block::default();
        let error = reader.read_block(&mut read).unwrap_err();
        assert!(matches!(error, ReadError::Frame { .. }), "{error}");
        assert_eq!(read.frame.stored.capacity(), 0);
        assert!(matches!(reader.read_block(&mut read), Err(ReadError::Failed)));
        assert!(reader.stats().is_none());
    }
    let error = forged(ForgedBlock {
        codec: 9,
        ..hello.clone()
    })
    .unwrap_err();
    assert!(matches!(error, ReadError::Malformed { .. }), "{error}");
    let error = forged(ForgedBlock {
        tag: 3,
        ..hello.clone()
    })
    .unwrap_err();
    assert!(matches!(error, ReadError::Malformed { .. }), "{error}");
    let error = forged(ForgedBlock {
        extent_count: u16::MAX,
        ..hello.clone()
    })
    .unwrap_err();
    assert!(matches!(error, ReadError::Malformed { .. }), "{error}");
    let error = forged(ForgedBlock {
        extents: vec![0; BLOCK_EXTENTS_LEN_MAX + 1],
        ..hello
    })
    .unwrap_err();
    assert!(matches!(error, ReadError::Malformed { .. }), "{error}");
}

#[test]
fn undecodable_frame_passes_validation_but_not_verification() {
    let numbers = [0, literal(500)];
    for frame in [&b"no zstd frame at all"[..], b""] {
        let block = ForgedBlock {
            codec: 1,
            raw_len: 500,
            ..forged_block(1, &numbers, frame)
        };
        let stream = Forged {
            base_len: 0,
            blocks: vec![block],
            ..Forged::default()
        }
        .to_bytes();
        if frame.is_empty() {
            assert!(matches!(validate(&stream[..]), Err(ReadError::Frame { .. })));
            continue;
        }
        validate(&stream[..]).unwrap();
        assert!(matches!(verify(&stream[..]), Err(ReadError::Frame { .. })));
        let mut target = Vec::new();
        let result = apply_to_new(&EmptyBase, &mut DeltaReader::new(&stream[..]).unwrap(), &mut target);
        assert!(matches!(result, Err(ApplyError::Frame { .. })), "{result:?}");
    }
}

#[test]
fn totals_must_be_those_of_the_blocks() {
    let stream = samples().remove(1);
    let positions = block_positions(&stream);
    let trailer = positions[positions.len() - 1];
    for field in 0..4 {
        let mut wrong = stream.clone();
        wrong[trailer + 1 + field * 8] ^= 1;
        // Even with a valid digest.
        let mut digested = wrong[..HEADER_LEN].to_vec();
        let mut reader = DeltaReader::new(&stream[..]).unwrap();
        for position in positions.windows(2) {
            let block = reader.next().unwrap().unwrap();
            let frame_start = block.frame.stream_offset as usize;
            digested.extend_from_slice(&wrong[position[0]..frame_start]);
            digested.extend_from_slice(&wrong[frame_start + block.frame.stored.len()..position[1]]);
        }
        digested.extend_from_slice(&wrong[trailer..trailer + TRAILER_LEN - 8]);
        let digest = xxhash_rust::xxh3::xxh3_64(&digested);
        wrong[trailer + TRAILER_LEN - 8..].copy_from_slice(&digest.to_le_bytes());
        let error = validate(&wrong[..]).unwrap_err();
        assert!(matches!(error, ReadError::Malformed { .. }), "{error}");
    }
}

/// A source that fails once and yields one byte at a time.
struct Slow<'a> {
    bytes: &'a [u8],
    fail_after: usize,
}

impl Read for Slow<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.fail_after == 0 {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        self.fail_after -= 1;
        let Some((first, rest)) = self.bytes.split_first() else {
            return Ok(0);
        };
        buffer[0] = *first;
        self.bytes = rest;
        Ok(1)
    }
}

#[test]
fn delta_reader_takes_short_reads_and_tells_errors_with_source() {
    for stream in samples().into_iter().take(3) {
        validate(Slow {
            bytes: &stream,
            fail_after: usize::MAX,
        })
        .unwrap();
        for fail_after in 0..stream.len() {
            let error = validate(Slow {
                bytes: &stream,
                fail_after,
            })
            .unwrap_err();
            let ReadError::Read { source, .. } = error else {
                panic!("{error}")
            };
            assert_eq!(source.kind(), io::ErrorKind::ConnectionReset);
        }
    }
}

/// A stream of version 1 with a compressed frame, as first written: it must stay readable, even if
/// later versions of zstd compress the same bytes differently.
#[test]
fn golden_compressed_stream_of_version_1() {
    let hex = "894242444c540d0a01000000000000000000000034030000000000004f7fab20 \
               0101010003000000340300003c00000000cc192d3665e928b52ffd6034029501 \
               009402616c6c20776f726b20616e64206e6f20706c6179206d616b6573206120 \
               64756c6c2064656c74613b20010041c82a5506821462b8020100000000000000 \
               34030000000000003c0000000000000001000000000000007c944bee9269054d";
    let stream: Vec<u8> = hex
        .split_whitespace()
        .flat_map(|row| (0..row.len() / 2).map(|i| u8::from_str_radix(&row[2 * i..2 * i + 2], 16).unwrap()))
        .collect();
    let mut new = Vec::new();
    apply_to_new(&EmptyBase, &mut DeltaReader::new(&stream[..]).unwrap(), &mut new).unwrap();
    assert_eq!(new, b"all work and no play makes a dull delta; ".repeat(20));
}

fn forged_number() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 0..40_u64,
        2 => (0..9_u64).prop_map(|len| literal(len + 1)),
        2 => (0..9_u64).prop_map(|len| copy(len + 1)),
        2 => (0..9_u64).prop_map(|len| zero(len + 1)),
        1 => any::<u64>(),
    ]
}

fn any_block() -> impl Strategy<Value = ForgedBlock> {
    let fields = (
        0..6_u16,
        prop::collection::vec(forged_number(), 0..10),
        prop::collection::vec(any::<u8>(), 0..12),
    );
    (fields, 0..3_u8, prop::option::weighted(0.2, 0..20_u32)).prop_map(|((count, numbers, frame), codec, raw_len)| {
        let mut block = forged_block(count, &numbers, &frame);
        block.codec = u8::from(codec == 2);
        block.raw_len = raw_len.unwrap_or(block.raw_len);
        block
    })
}

/// Blocks that are often valid: literals and frame agree.
fn good_block() -> impl Strategy<Value = ForgedBlock> {
    let extent = (0..4_u64, 1..6_u64, 0..3_u64, -20..20_i64);
    prop::collection::vec(extent, 1..6).prop_map(|extents| {
        let (mut numbers, mut frame) = (Vec::new(), Vec::new());
        for &(gap, len, kind, change) in &extents {
            numbers.push(gap);
            numbers.push(literal(len) | kind);
            match kind {
                0 => frame.resize(frame.len() + len as usize, 0xaa),
                1 => numbers.push(varint::zigzag(change)),
                _ => {}
            }
        }
        forged_block(extents.len() as u16, &numbers, &frame)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8000, ..ProptestConfig::default() })]

    #[test]
    fn delta_that_passes_the_reader_can_be_applied(
        flags in 0..2_u16,
        base_len in 0..60_u64,
        new_len in 0..200_u64,
        blocks in prop::collection::vec(prop_oneof![1 => any_block(), 3 => good_block()], 0..4),
    ) {
        let stream = Forged { flags, base_len, new_len, blocks, ..Forged::default() }.to_bytes();
        let Ok((header, stats)) = verify(&stream[..]) else { return Ok(()) };
        // Accepted: then every extent is in place, and the new content comes out.
        let mut previous_end = 0;
        let mut extents = 0;
        for block in DeltaReader::new(&stream[..]).unwrap() {
            let block = block.unwrap();
            let mut raw_len = 0;
            for extent in block.extents {
                prop_assert!(extent.range.start() >= previous_end && extent.range.end() <= new_len);
                previous_end = extent.range.end();
                match extent.source {
                    Source::Literal(slice) => {
                        prop_assert_eq!(slice.skip_bytes, raw_len);
                        raw_len += extent.range.len_bytes() as u32;
                    }
                    Source::Copy { base_offset } => prop_assert!(base_offset + extent.range.len_bytes() <= base_len),
                    Source::Zero => {}
                }
                extents += 1;
            }
            prop_assert_eq!(raw_len, block.frame.raw_len);
        }
        prop_assert_eq!(extents, stats.extents);
        prop_assert_eq!(header.has_copies, flags == 1);
        let base = vec![0x55; base_len as usize];
        let mut new = Vec::new();
        apply_to_new(&base[..], &mut DeltaReader::new(&stream[..]).unwrap(), &mut new).unwrap();
        prop_assert_eq!(new.len() as u64, new_len);
        if flags == 0 {
            let mut in_place = base;
            apply_in_place(&mut DeltaReader::new(&stream[..]).unwrap(), &mut in_place).unwrap();
            prop_assert_eq!(in_place, new);
        }
    }

    #[test]
    fn garbage_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..300), with_header in any::<bool>()) {
        let mut stream = if with_header { Forged::default().to_bytes()[..HEADER_LEN].to_vec() } else { Vec::new() };
        stream.extend_from_slice(&bytes);
        prop_assert!(verify(&stream[..]).is_err());
    }
}
