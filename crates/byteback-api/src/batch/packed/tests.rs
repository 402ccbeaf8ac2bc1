use super::*;
use crate::batch::{BatchReader, BatchWriter, Record};
use byteback_model::{
    Attributes, ContentBase, ContentChange, FileId, Manifest, NameChange, NodeKind, NodeRecord, Totals,
};
use proptest::prelude::*;

/// The batch that continuous sync sends for a write of `content`.
pub(super) fn small_batch(content: &[u8]) -> Vec<u8> {
    let root = FileId(0x3034_52bb_27b4_cec1_0000_0000_0000_0001);
    let id = FileId(root.0 + 1);
    let mut writer = BatchWriter::new(Vec::new()).unwrap();
    let counter = 6_578_892_709_145_083_907;
    writer
        .manifest(&Manifest {
            device: 1,
            counter,
            base_seq: Some(2),
            replaces: None,
            follows: Some(counter - 1),
            root,
            created_ns: 1_795_380_805_455_913_815,
            host: "desk".into(),
            path: "/home/ada/letters".into(),
            snapshot: None,
        })
        .unwrap();
    writer
        .node(&NodeRecord {
            id,
            attributes: Attributes {
                kind: NodeKind::File,
                mode: 0o644,
                uid: 1000,
                gid: 1000,
                size: 20_000_000,
                mtime_ns: 1_795_380_805_333_491_027,
                rdev: 0,
                inode_flags: 0,
                target: None,
                xattrs: Vec::new(),
                user: None,
                group: None,
            },
            content: Some(ContentChange {
                deltas: 1,
                base: ContentBase::Previous,
            }),
        })
        .unwrap();
    writer.delta(id, &delta(content)).unwrap();
    writer.end().unwrap()
}

fn delta(content: &[u8]) -> Vec<u8> {
    let mut writer = byteback_delta::DeltaWriter::new(
        Vec::new(),
        20_000_000,
        20_000_000,
        byteback_delta::WriterOptions::default(),
    )
    .unwrap();
    writer.literal_bytes(1_234_567, content).unwrap();
    writer.finish().unwrap().0
}

/// Bytes that do not compress.
pub(super) fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut bytes = Vec::new();
    for _ in 0..len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.push((state >> 32) as u8);
    }
    bytes
}

/// All records and deltas, or the first error.
pub(super) fn read_all(bytes: &[u8]) -> Result<Vec<(Record, Vec<u8>)>, BatchError> {
    let mut reader = BatchReader::new(bytes);
    let mut records = Vec::new();
    while let Some(record) = reader.next_record()? {
        let mut stream = Vec::new();
        if matches!(record, Record::Delta { .. }) {
            reader.delta().read_to_end(&mut stream)?;
            reader.finish_delta()?;
        }
        records.push((record, stream));
    }
    Ok(records)
}

#[test]
fn a_small_batch_costs_little_beside_its_content() {
    let content = noise(1010);
    let plain = small_batch(&content);
    let packed = packed(&plain).unwrap();
    assert_eq!(read_all(&packed).unwrap(), read_all(&plain).unwrap());
    let (before, after) = (plain.len() - content.len(), packed.len() - content.len());
    assert!(
        before > 550 && after < 270,
        "{before} became {after} bytes beside the content"
    );
}

#[test]
fn packed_piece_notices_every_flipped_bit_and_truncation() {
    let plain = small_batch(b"content");
    let packed = packed(&plain).unwrap();
    let whole = read_all(&plain).unwrap();
    for at in 0..packed.len() {
        for bit in 0..8 {
            let mut damaged = packed.clone();
            damaged[at] ^= 1 << bit;
            // Flipping a meaningless bit of the frame may leave the records as they are, but never
            // yield others.
            if let Ok(read) = read_all(&damaged) {
                assert_eq!(read, whole, "bit {bit} of byte {at}");
            }
        }
        assert!(read_all(&packed[..at]).is_err(), "cut at {at}");
    }
}

#[test]
fn a_packed_piece_gives_no_more_than_it_may() {
    let piece = |raw: &[u8]| {
        let mut piece = MAGIC.to_vec();
        piece.push(VERSION_PACKED);
        piece.extend(
            zstd::bulk::Compressor::with_dictionary(19, DICTIONARY)
                .unwrap()
                .compress(raw)
                .unwrap(),
        );
        piece
    };
    let bomb = piece(&vec![0; 1 << 30]);
    assert!(bomb.len() < UNPACKED_LEN_MAX * 4);
    assert!(matches!(read_all(&bomb), Err(BatchError::Packed(_))));
    let just_too_much = piece(&vec![0; UNPACKED_LEN_MAX + 1]);
    assert!(matches!(read_all(&just_too_much), Err(BatchError::Packed(_))));
    let mut behind = piece(&[]);
    behind.extend(noise(UNPACKED_LEN_MAX));
    assert!(matches!(read_all(&behind), Err(BatchError::Packed(_))));
    assert!(read_all(&piece(&[])).unwrap().is_empty());
    assert!(matches!(read_all(b"BYBATCH\x02"), Err(BatchError::Packed(_))));
}

#[test]
fn packed_batch_leaves_incompressible_bytes_alone() {
    assert!(packed(b"").is_none());
    assert!(packed(b"BYBATCH").is_none());
    let mut long = b"BYBATCH\x01".to_vec();
    long.extend(noise(PACKED_UP_TO));
    assert!(packed(&long).is_none());
    let mut noisy = b"BYBATCH\x01".to_vec();
    noisy.extend(noise(500));
    assert!(packed(&noisy).is_none());
    let mut other = small_batch(b"x");
    other[7] = 3;
    assert!(packed(&other).is_none());
}

/// Frames made by other versions of the library, with this dictionary, stay readable forever.
#[test]
fn golden_bytes_of_a_packed_piece() {
    assert_eq!(DICTIONARY.len(), DICTIONARY_LEN);
    assert_eq!(crc32c::crc32c(DICTIONARY), DICTIONARY_CRC);
    let bytes = GOLDEN.as_bytes().chunks(2);
    let bytes: Vec<u8> = bytes
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect();
    let mut expected = BatchWriter::new(Vec::new()).unwrap();
    expected
        .entry(&NameChange {
            parent: FileId(1),
            name: "a".into(),
            child: None,
        })
        .unwrap();
    let expected = expected.end().unwrap();
    assert_eq!(read_all(&bytes).unwrap(), read_all(&expected).unwrap());
    assert!(matches!(
        read_all(&bytes).unwrap().last(),
        Some((Record::End(Totals { entries: 1, .. }), _))
    ));
}

const DICTIONARY_LEN: usize = 1447;
const DICTIONARY_CRC: u32 = 2_253_166_847;
const GOLDEN: &str =
    "425942415443480228b52ffd20732501007003456127b57b3031307dca15dbbd0800600b18570e3c26450370021e880388202527b0";

proptest! {
    #[test]
    fn packed_batch_reads_back_as_it_was_packed(content in prop::collection::vec(any::<u8>(), 0..4000)) {
        let plain = small_batch(&content);
        let packed = packed(&plain).unwrap();
        prop_assert!(packed.len() < plain.len());
        prop_assert_eq!(read_all(&packed).unwrap(), read_all(&plain).unwrap());
    }
}
