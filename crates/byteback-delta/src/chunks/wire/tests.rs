use byteback_extents::ExtentSet;
use proptest::prelude::*;

use super::*;
use crate::chunks::list_chunks;
use crate::model::noise;

fn small() -> ChunkParams {
    ChunkParams::new(64, 256, 400).unwrap()
}

fn list_of(content: &[u8], kind: CrcKind) -> ChunkList {
    list_chunks(content, None, small(), kind).unwrap().0
}

fn bytes_of(list: &ChunkList) -> Vec<u8> {
    let mut bytes = Vec::new();
    list.write_to(&mut bytes).unwrap();
    bytes
}

fn read(bytes: &[u8]) -> Result<ChunkList, ChunkStreamError> {
    ChunkList::read(bytes, 1 << 20)
}

#[test]
fn what_is_written_is_read() {
    for kind in CrcKind::ALL {
        for len in [0, 1, 400, 401, 100_000, 600_000] {
            let content = noise(len as u64, len);
            let list = list_of(&content, kind);
            assert_eq!(read(&bytes_of(&list)).unwrap(), list);
            let mut look_at = ExtentSet::new();
            for start in (10_000..500_000).step_by(50_000) {
                look_at.insert(ByteRange::new(start, start + 9000).unwrap());
            }
            let (list, _) = list_chunks(&content[..], Some(&look_at), small(), kind).unwrap();
            assert_eq!(read(&bytes_of(&list)).unwrap(), list);
        }
    }
}

#[test]
fn six_bytes_for_each_chunk_of_usual_length() {
    let content = noise(1, 2_000_000);
    let (list, _) = list_chunks(&content[..], None, ChunkParams::for_content(0), CrcKind::Crc32c).unwrap();
    assert_eq!(bytes_of(&list).len(), HEADER_LEN + 6 * list.len() + 8);
}

#[test]
fn golden_bytes_of_version_1() {
    let mut list = ChunkList::new(ChunkParams::for_content(0), CrcKind::Crc32c);
    list.push(ByteRange::new(0, 9).unwrap(), CrcKind::Crc32c.of(b"123456789"));
    list.push(ByteRange::new(100_009, 108_209).unwrap(), 0x0403_0201);
    list.set_content_len(110_000);
    let hex: Vec<String> = bytes_of(&list).iter().map(|byte| format!("{byte:02x}")).collect();
    let expected = "89 42 42 43 48 4c 0d 0a 01 00 01 00 00 10 00 00 00 20 00 00 00 30 00 00 b0 ad 01 00 00 00 00 00 \
                    02 00 00 00 00 00 00 00 a4 7f 7b 72 0f 00 00 00 09 83 92 06 e3 00 a0 8d 06 88 40 01 02 03 04 \
                    f5 c1 81 95";
    assert_eq!(hex.join(" "), expected);
}

#[test]
fn every_flipped_bit_is_noticed() {
    let bytes = bytes_of(&list_of(&noise(1, 5000), CrcKind::Crc32c));
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            assert!(read(&damaged).is_err(), "byte {at} bit {bit}");
        }
    }
}

#[test]
fn stream_truncation_is_noticed_and_nothing_read_beyond_the_end() {
    let bytes = bytes_of(&list_of(&noise(1, 400_000), CrcKind::Crc32c));
    for len in (0..bytes.len()).step_by(11) {
        let error = read(&bytes[..len]).unwrap_err();
        assert!(matches!(error, ChunkStreamError::Truncated { .. }), "{len}: {error}");
    }
    let mut longer = bytes.clone();
    longer.extend_from_slice(b"rest");
    let mut rest = &longer[..];
    ChunkList::read(&mut rest, 1 << 20).unwrap();
    assert_eq!(rest, b"rest");
}

#[test]
fn exchanged_groups_are_noticed() {
    let list = list_of(&noise(1, 900_000), CrcKind::Crc32c);
    assert!(list.len() > 2 * GROUP as usize);
    let bytes = bytes_of(&list);
    let len_at = |at: usize| u32::from_le_bytes(array(&bytes, at)) as usize + 8;
    let first = HEADER_LEN..HEADER_LEN + len_at(HEADER_LEN);
    let second = first.end..first.end + len_at(first.end);
    let mut exchanged = bytes[..HEADER_LEN].to_vec();
    for part in [second.clone(), first, second.end..bytes.len()] {
        exchanged.extend_from_slice(&bytes[part]);
    }
    assert!(matches!(
        read(&exchanged),
        Err(ChunkStreamError::Checksum { entry: 0, .. })
    ));
}

/// A list with valid checksums, whatever its contents.
fn crafted(header: impl FnOnce(&mut [u8]), chunks: u64, entries: &[u8]) -> Vec<u8> {
    let mut list = ChunkList::new(small(), CrcKind::Crc32c);
    list.set_content_len(10_000);
    let mut bytes = bytes_of(&list);
    bytes[32..40].copy_from_slice(&chunks.to_le_bytes());
    header(&mut bytes);
    bytes.truncate(HEADER_LEN - 4);
    let mut out = Vec::new();
    let mut groups = GroupWriter::begin(&mut out, bytes).unwrap();
    if !entries.is_empty() {
        groups.entry().unwrap().extend_from_slice(entries);
        groups.entries = chunks.min(GROUP);
    }
    groups.finish().unwrap();
    out
}

#[test]
fn hostile_headers_reserve_nothing_and_are_refused() {
    let with = |change: &dyn Fn(&mut [u8])| read(&crafted(change, 0, &[])).unwrap_err();
    let impossible = |error| matches!(error, ChunkStreamError::Impossible { .. });
    assert!(matches!(with(&|bytes| bytes[0] = 0), ChunkStreamError::Foreign { .. }));
    assert!(matches!(
        with(&|bytes| bytes[8] = 2),
        ChunkStreamError::Version { version: 2, .. }
    ));
    assert!(matches!(
        with(&|bytes| bytes[10] = 9),
        ChunkStreamError::Kind { code: 9, .. }
    ));
    assert!(impossible(with(&|bytes| bytes[11] = 1)));
    // Lengths of chunks: no minimum, an average that is no power of two, a maximum that is too
    // long.
    assert!(impossible(with(&|bytes| bytes[12] = 0)));
    assert!(impossible(with(&|bytes| bytes[16] = 1)));
    assert!(impossible(with(&|bytes| bytes[23] = 1)));
    assert!(impossible(with(&|bytes| bytes[31] = 0x80)));
    assert!(matches!(
        with(&|bytes| bytes[39] = 1),
        ChunkStreamError::TooManyChunks { .. }
    ));
    // As many announced chunks as allowed, none of which comes.
    let error = with(&|bytes| bytes[32..40].copy_from_slice(&(1_u64 << 20).to_le_bytes()));
    assert!(matches!(error, ChunkStreamError::Truncated { entries: 0, .. }));
    let error = with(&|bytes| bytes[32..40].copy_from_slice(&((1_u64 << 20) + 1).to_le_bytes()));
    assert!(matches!(error, ChunkStreamError::TooManyChunks { .. }));
}

#[test]
fn hostile_entries_are_refused() {
    let entry = |parts: &[u64], weak: &[u8]| {
        let mut bytes = Vec::new();
        parts.iter().for_each(|&part| varint::put(&mut bytes, part));
        bytes.extend_from_slice(weak);
        bytes
    };
    let weak = [1, 2, 3, 4];
    assert!(read(&crafted(|_| (), 1, &entry(&[400], &weak))).is_ok());
    assert!(read(&crafted(|_| (), 1, &entry(&[0, 9600, 400], &weak))).is_ok());
    for (what, bytes) in [
        ("longer than the longest", entry(&[401], &weak)),
        ("past the content's end", entry(&[0, 9601, 400], &weak)),
        ("an empty gap", entry(&[0, 0, 400], &weak)),
        ("an empty chunk", entry(&[0, 1, 0], &weak)),
        ("a gap that overflows", entry(&[0, u64::MAX, 1], &weak)),
        ("no checksum", entry(&[400], &weak[..3])),
        ("bytes behind the last entry", entry(&[400], &[1, 2, 3, 4, 5])),
        ("no entry", vec![0x80]),
        ("a length that is too long to be one", vec![0xff; 30]),
    ] {
        let error = read(&crafted(|_| (), 1, &bytes)).unwrap_err();
        assert!(matches!(error, ChunkStreamError::Impossible { .. }), "{what}: {error}");
    }
    // A group longer than its entries can be is refused before it is read.
    let mut bytes = crafted(|_| (), 1, &[]);
    bytes.extend_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(read(&bytes), Err(ChunkStreamError::Impossible { .. })));
}

proptest! {
    #[test]
    fn nothing_makes_the_reader_panic(
        chunks in 0..5_u64,
        entries in prop::collection::vec(any::<u8>(), 0..60),
        rest in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut bytes = crafted(|_| (), chunks, &entries);
        bytes.extend(&rest);
        let _ = read(&bytes);
        let _ = read(&rest);
    }
}
