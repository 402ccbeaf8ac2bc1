use proptest::prelude::*;

use super::*;
use crate::chunks::{ChunkParams, list_chunks};
use crate::crc::CrcKind;
use crate::find::{match_chunks, prove_matches};
use crate::model::noise;

fn list_of(content: &[u8]) -> ChunkList {
    let params = ChunkParams::new(64, 256, 400).unwrap();
    list_chunks(content, None, params, CrcKind::Crc32c).unwrap().0
}

fn answer_to(list: &ChunkList, base: &[u8]) -> MatchAnswer {
    let runs = match_chunks(list, &list_of(base));
    prove_matches(list, &runs, base, MatchParams::new(42)).unwrap().0
}

fn bytes_of(answer: &MatchAnswer, list: &ChunkList) -> Vec<u8> {
    let mut bytes = Vec::new();
    answer.write_to(list, &mut bytes).unwrap();
    bytes
}

/// The list of a content that has parts of a base in another order, and the answer to it.
fn example(len: usize) -> (ChunkList, MatchAnswer) {
    let base = noise(1, len);
    let mut new = base[len / 2..].to_vec();
    new.extend(noise(2, 3000));
    for start in (0..len / 2).step_by(4000) {
        new.extend(&base[start..start + 3000]);
    }
    let list = list_of(&new);
    let answer = answer_to(&list, &base);
    assert!(answer.segments().len() > len / 10_000);
    (list, answer)
}

#[test]
fn what_is_written_is_read() {
    for len in [10_000, 200_000, 10_000_000] {
        let (list, answer) = example(len);
        assert_eq!(MatchAnswer::read(&bytes_of(&answer, &list)[..], &list).unwrap(), answer);
    }
    let list = list_of(&[]);
    let answer = answer_to(&list, &[]);
    assert_eq!(MatchAnswer::read(&bytes_of(&answer, &list)[..], &list).unwrap(), answer);
}

#[test]
fn long_runs_are_unproven_where_that_is_asked_for() {
    let base = noise(1, 1_000_000);
    let mut new = base.clone();
    for start in [100_000, 100_900, 500_000] {
        new[start] ^= 1;
    }
    let list = list_of(&new);
    let runs = match_chunks(&list, &list_of(&base));
    let (answer, read_bytes) = prove_matches(&list, &runs, &base[..], MatchParams::for_whole_proof(1)).unwrap();
    assert!(read_bytes < 2000, "{read_bytes}");
    for segment in answer.segments() {
        assert_eq!(segment.is_proven(), segment.chunks < 4, "{segment:?}");
    }
    assert!(answer.segments().iter().any(Segment::is_proven));
    let bytes = bytes_of(&answer, &list);
    assert_eq!(MatchAnswer::read(&bytes[..], &list).unwrap(), answer);
    // Short runs may not claim that they need no proof.
    for (chunks, is_fine) in [(3, false), (4, true)] {
        let bytes = crafted(&list, |bytes| bytes[12] = 1, &[]);
        let mut out = Vec::new();
        let mut header = bytes[..HEADER_LEN - 4].to_vec();
        header[38] = 1;
        let mut groups = GroupWriter::begin(&mut out, header).unwrap();
        groups.entry().unwrap().extend_from_slice(&[0, 1 + 2 * (chunks - 1), 0]);
        groups.finish().unwrap();
        assert_eq!(MatchAnswer::read(&out[..], &list).is_ok(), is_fine, "{chunks} chunks");
    }
}

#[test]
fn segments_are_long_and_not_too_long() {
    let content = noise(1, 3_000_000);
    let list = list_of(&content);
    let answer = answer_to(&list, &content);
    assert_eq!(answer.segments().len() as u64, 3_000_000_u64.div_ceil(SEGMENT_LEN));
    for segment in answer.segments() {
        let range = range_of(&list, segment.first_chunk, segment.chunks).unwrap();
        assert!(range.len_bytes() < SEGMENT_LEN + 400);
        assert_eq!(segment.base_offset, range.start());
    }
}

#[test]
fn golden_bytes_of_version_1() {
    let content = b"The quick brown fox.";
    let list = list_of(content);
    let mut answer = answer_to(&list, content);
    answer.segments[0].base_offset = 1000;
    answer.base_len_bytes = 1020;
    let hex: Vec<String> = bytes_of(&answer, &list)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let expected = "89 42 42 43 48 41 0d 0a 01 00 01 10 00 00 2a 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 \
                    fc 03 00 00 00 00 00 00 01 00 00 00 00 00 00 00 68 bf c3 d0 14 00 00 00 00 00 d0 0f 35 fc f3 bd \
                    9a 11 9c c0 7e 85 29 70 f9 2c 57 b7 02 ed 2e aa";
    assert_eq!(hex.join(" "), expected);
}

#[test]
fn every_flipped_bit_and_every_truncation_is_noticed() {
    let (list, answer) = example(20_000);
    let bytes = bytes_of(&answer, &list);
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            assert!(MatchAnswer::read(&damaged[..], &list).is_err(), "byte {at} bit {bit}");
        }
        let error = MatchAnswer::read(&bytes[..at], &list).unwrap_err();
        assert!(matches!(error, ChunkStreamError::Truncated { .. }), "{at}: {error}");
    }
}

#[test]
fn an_answer_to_another_list_is_refused() {
    let (list, answer) = example(20_000);
    let other = list_of(&noise(9, 5000));
    let error = MatchAnswer::read(&bytes_of(&answer, &list)[..], &other).unwrap_err();
    assert!(matches!(error, ChunkStreamError::Impossible { .. }));
    assert!(answer.write_to(&other, Vec::new()).is_err());
}

/// An answer with valid checksums, whatever its contents.
fn crafted(list: &ChunkList, header: impl FnOnce(&mut [u8]), entries: &[&[u64]]) -> Vec<u8> {
    let mut bytes = bytes_of(&MatchAnswer::new(MatchParams::new(1), list.len(), 10_000), list);
    bytes[38..46].copy_from_slice(&(entries.len() as u64).to_le_bytes());
    header(&mut bytes);
    bytes.truncate(HEADER_LEN - 4);
    let mut out = Vec::new();
    let mut groups = GroupWriter::begin(&mut out, bytes).unwrap();
    for numbers in entries {
        let entry = groups.entry().unwrap();
        numbers.iter().for_each(|&number| varint::put(entry, number));
        entry.extend_from_slice(&[7; 16]);
    }
    groups.finish().unwrap();
    out
}

#[test]
fn hostile_answers_are_refused() {
    let mut look_at = byteback_extents::ExtentSet::new();
    look_at.insert(ByteRange::new(0, 3000).unwrap());
    look_at.insert(ByteRange::new(5000, 9000).unwrap());
    let content = noise(4, 9000);
    let params = ChunkParams::new(64, 256, 400).unwrap();
    let (list, _) = list_chunks(&content[..], Some(&look_at), params, CrcKind::Crc32c).unwrap();
    let chunks = list.len() as u64;
    let before_gap = list.iter().take_while(|chunk| chunk.range.end() <= 3000).count() as u64;
    let read = |bytes: Vec<u8>| MatchAnswer::read(&bytes[..], &list);
    assert!(
        read(crafted(
            &list,
            |_| (),
            &[&[0, 2 * (before_gap - 1), 0], &[0, 2 * (chunks - before_gap - 1), 0]]
        ))
        .is_ok()
    );
    assert!(read(crafted(&list, |_| (), &[&[0, 0, 0], &[chunks - 2, 0, 0]])).is_ok());
    let too_far = varint::zigzag(10_000);
    for (what, entries) in [
        ("across a gap", vec![&[0, 2 * before_gap, 0][..]]),
        ("behind the last chunk", vec![&[chunks, 0, 0]]),
        ("more chunks than there are", vec![&[0, 2 * chunks, 0]]),
        ("numbers that overflow", vec![&[u64::MAX, u64::MAX, 0]]),
        ("an end that overflows", vec![&[1, u64::MAX, 0]]),
        ("past the base's end", vec![&[0, 0, too_far]]),
        ("before the base's beginning", vec![&[0, 0, varint::zigzag(-1)]]),
        ("not proven, and it should be", vec![&[0, 1 + 2 * 10, 0]]),
        ("more segments than chunks", vec![&[0, 0, 0]; list.len() + 1]),
    ] {
        let error = read(crafted(&list, |_| (), &entries)).unwrap_err();
        assert!(matches!(error, ChunkStreamError::Impossible { .. }), "{what}: {error}");
    }
    for (at, value) in [(11, 7), (11, 33), (12, 2), (13, 1), (22, 0), (37, 0x80), (45, 1)] {
        let error = read(crafted(&list, |bytes| bytes[at] = value, &[])).unwrap_err();
        assert!(matches!(error, ChunkStreamError::Impossible { .. }), "{at}: {error}");
    }
    for code in [0, 2, 3, 0xf0, 0xf1, 255] {
        let error = read(crafted(&list, |bytes| bytes[10] = code, &[])).unwrap_err();
        assert!(matches!(error, ChunkStreamError::Kind { .. }), "{code}: {error}");
    }
}

#[test]
fn a_segment_that_is_too_long_to_hold_is_refused() {
    let content = noise(4, 400_000);
    let list = list_of(&content);
    let up_to = |len: u64| list.iter().take_while(|chunk| chunk.range.start() < len).count() as u64;
    let header = |bytes: &mut [u8]| bytes[30..38].copy_from_slice(&400_000_u64.to_le_bytes());
    let read = |chunks: u64| MatchAnswer::read(&crafted(&list, header, &[&[0, 2 * (chunks - 1), 0]])[..], &list);
    assert!(read(up_to(SEGMENT_LEN)).is_ok());
    assert!(read(up_to(SEGMENT_LEN) + 1).is_err());
}

proptest! {
    #[test]
    fn nothing_makes_the_reader_panic(entries in prop::collection::vec([any::<u64>(), any::<u64>(), any::<u64>()], 0..6)) {
        let list = list_of(&noise(4, 3000));
        let entries: Vec<&[u64]> = entries.iter().map(|entry| &entry[..]).collect();
        let _ = MatchAnswer::read(&crafted(&list, |_| (), &entries)[..], &list);
    }
}
