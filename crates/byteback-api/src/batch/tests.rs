use byteback_model::{
    Attributes, ByteString, ContentBase, ContentChange, Manifest, NameChange, NodeRecord, SnapshotLabel, Totals,
};

use super::*;
use byteback_delta::leaves::LeafKind;
use byteback_model::{NodeKind, Xattr};
use proptest::prelude::*;
use std::io::Read;

fn manifest() -> Manifest {
    Manifest {
        device: 7,
        counter: 3,
        base_seq: Some(2),
        replaces: None,
        follows: None,
        root: FileId(1),
        created_ns: -5,
        host: "h".into(),
        path: ByteString(vec![b'/', 0xff]),
        snapshot: Some(SnapshotLabel {
            tags: vec!["t".into()],
            ..SnapshotLabel::default()
        }),
    }
}

fn node() -> NodeRecord {
    NodeRecord {
        id: FileId(2),
        attributes: Attributes {
            kind: NodeKind::File,
            mode: 0o644,
            uid: 1,
            gid: 2,
            size: 3,
            mtime_ns: i64::MIN.into(),
            rdev: 0,
            inode_flags: 0,
            target: None,
            xattrs: vec![Xattr {
                name: "user.x".into(),
                value: ByteString(vec![0xfe]),
            }],
            user: Some("me".into()),
            group: None,
        },
        content: Some(ContentChange {
            deltas: 1,
            base: ContentBase::Empty,
        }),
    }
}

fn entry() -> NameChange<FileId> {
    NameChange {
        parent: FileId(1),
        name: ByteString(vec![0x80]),
        child: None,
    }
}

fn whole(delta: &[u8]) -> Vec<u8> {
    let mut writer = BatchWriter::new(Vec::new()).unwrap();
    writer.manifest(&manifest()).unwrap();
    writer.node(&node()).unwrap();
    writer.delta(FileId(2), delta).unwrap();
    writer.entry(&entry()).unwrap();
    let written = writer.written_bytes();
    let bytes = writer.end().unwrap();
    assert!(written < u64::try_from(bytes.len()).unwrap());
    bytes
}

/// Everything a stream holds; deltas are read in full.
fn read_all(input: impl Read) -> Result<Vec<(Record, Vec<u8>)>, BatchError> {
    let mut reader = BatchReader::new(input);
    let mut records = Vec::new();
    while let Some(record) = reader.next_record()? {
        let mut delta = Vec::new();
        if matches!(record, Record::Delta { .. }) {
            reader.delta().read_to_end(&mut delta)?;
            reader.finish_delta()?;
        }
        records.push((record, delta));
    }
    Ok(records)
}

/// Yields one byte at a time, as a slow network may.
struct Drip<'a>(&'a [u8]);

impl Read for Drip<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let Some((first, rest)) = self.0.split_first() else {
            return Ok(0);
        };
        let Some(slot) = buffer.first_mut() else { return Ok(0) };
        *slot = *first;
        self.0 = rest;
        Ok(1)
    }
}

#[test]
fn a_batch_survives_however_it_arrives() {
    let bytes = whole(b"delta bytes");
    for records in [read_all(&bytes[..]).unwrap(), read_all(Drip(&bytes)).unwrap()] {
        let expected = vec![
            (Record::Manifest(Box::new(manifest())), vec![]),
            (Record::Node(Box::new(node())), vec![]),
            (
                Record::Delta {
                    file: FileId(2),
                    len: 11,
                },
                b"delta bytes".to_vec(),
            ),
            (Record::Entry(entry()), vec![]),
            (
                Record::End(Totals {
                    nodes: 1,
                    entries: 1,
                    deltas: 1,
                    ..Totals::default()
                }),
                vec![],
            ),
        ];
        assert_eq!(records, expected);
    }
}

#[test]
fn totals_go_on_over_pieces() {
    let mut first = BatchWriter::new(Vec::new()).unwrap();
    first.node(&node()).unwrap();
    let (_, totals) = first.into_parts().unwrap();
    let mut second = BatchWriter::resume(Vec::new(), totals).unwrap();
    second.node(&node()).unwrap();
    let records = read_all(&second.end().unwrap()[..]).unwrap();
    assert_eq!(
        records.last().unwrap().0,
        Record::End(Totals {
            nodes: 2,
            entries: 0,
            deltas: 0,
            ..Totals::default()
        })
    );
}

#[test]
fn golden_bytes_of_version_1() {
    let mut writer = BatchWriter::new(Vec::new()).unwrap();
    writer
        .entry(&NameChange {
            parent: FileId(1),
            name: "a".into(),
            child: Some(FileId(2)),
        })
        .unwrap();
    writer.delta(FileId(2), &[0xaa, 0xbb]).unwrap();
    let bytes = writer.end().unwrap();
    let json =
        br#"{"parent":"00000000000000000000000000000001","name":"a","child":"00000000000000000000000000000002"}"#;
    let mut expected = b"BYBATCH\x01".to_vec();
    expected.extend([3, u8::try_from(json.len()).unwrap()]);
    expected.extend(json);
    expected.extend(crc32c::crc32c(&expected[8..]).to_le_bytes());
    let at = expected.len();
    expected.extend([4, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0xaa, 0xbb]);
    expected.extend(crc32c::crc32c(&expected[at..]).to_le_bytes());
    assert_eq!(bytes[..expected.len()], expected);
}

#[test]
fn golden_bytes_of_a_proof() {
    let mut writer = BatchWriter::new(Vec::new()).unwrap();
    let proof = ProofRecord {
        id: FileId(2),
        digest: crate::Digest([0xa5; 32]),
        sums: None,
        ranges: Vec::new(),
    };
    writer.proof(&proof).unwrap();
    let bytes = writer.end().unwrap();
    let json = format!(
        r#"{{"id":"00000000000000000000000000000002","digest":"{}"}}"#,
        "a5".repeat(32)
    );
    let mut expected = b"BYBATCH\x01".to_vec();
    expected.extend([6, u8::try_from(json.len()).unwrap()]);
    expected.extend(json.as_bytes());
    expected.extend(crc32c::crc32c(&expected[8..]).to_le_bytes());
    assert_eq!(bytes[..expected.len()], expected);
    let records = read_all(&bytes[..]).unwrap();
    assert_eq!(records[0].0, Record::Proof(proof));
    assert!(matches!(&records[1].0, Record::End(totals) if totals.proofs == 1));
}

#[test]
fn golden_json_of_a_proof_of_ranges() {
    let proof = ProofRecord {
        id: FileId(2),
        digest: crate::Digest([0xa5; 32]),
        sums: None,
        ranges: vec![(0, 4096), (1 << 40, 1)],
    };
    let json = format!(
        r#"{{"id":"00000000000000000000000000000002","digest":"{}","ranges":[[0,4096],[1099511627776,1]]}}"#,
        "a5".repeat(32)
    );
    assert_eq!(serde_json::to_string(&proof).unwrap(), json);
    assert_eq!(serde_json::from_str::<ProofRecord>(&json).unwrap(), proof);
}

#[test]
fn golden_json_of_a_proof_by_sums() {
    for kind in LeafKind::ALL {
        let proof = ProofRecord {
            id: FileId(2),
            digest: crate::Digest([0xa5; 32]),
            sums: Some(kind),
            ranges: Vec::new(),
        };
        let json = format!(
            r#"{{"id":"00000000000000000000000000000002","digest":"{}","sums":"{}"}}"#,
            "a5".repeat(32),
            kind.name()
        );
        assert_eq!(serde_json::to_string(&proof).unwrap(), json);
        assert_eq!(serde_json::from_str::<ProofRecord>(&json).unwrap(), proof);
        assert!(serde_json::from_str::<ProofRecord>(&json.replace(kind.name(), "md4")).is_err());
    }
}

#[test]
fn golden_json_of_a_batch_that_replaces() {
    let manifest = Manifest {
        base_seq: None,
        replaces: Some(9),
        snapshot: None,
        ..manifest()
    };
    let json = concat!(
        r#"{"device":7,"counter":3,"base_seq":null,"replaces":9,"root":"00000000000000000000000000000001","#,
        r#""created_ns":-5,"host":"h","path":{"base64":"L/8="}}"#
    );
    assert_eq!(serde_json::to_string(&manifest).unwrap(), json);
    assert_eq!(serde_json::from_str::<Manifest>(json).unwrap(), manifest);
    // The form without the field replaces the folder in any state.
    let whatever = serde_json::from_str::<Manifest>(&json.replace(r#""replaces":9,"#, "")).unwrap();
    assert_eq!(whatever.replaces, None);
    let content = ContentChange {
        deltas: 0,
        base: ContentBase::Of(FileId(0xab)),
    };
    let json = r#"{"deltas":0,"base":{"of":"000000000000000000000000000000ab"}}"#;
    assert_eq!(serde_json::to_string(&content).unwrap(), json);
    assert_eq!(serde_json::from_str::<ContentChange>(json).unwrap(), content);
    // A reader that does not know the variant must fail, not assume another base.
    assert!(serde_json::from_str::<ContentChange>(&json.replace("of", "from")).is_err());
}

#[test]
fn golden_json_of_a_batch_that_follows_another_one() {
    let manifest = Manifest {
        follows: Some(8),
        snapshot: None,
        ..manifest()
    };
    let json = concat!(
        r#"{"device":7,"counter":3,"base_seq":2,"follows":8,"root":"00000000000000000000000000000001","#,
        r#""created_ns":-5,"host":"h","path":{"base64":"L/8="}}"#
    );
    assert_eq!(serde_json::to_string(&manifest).unwrap(), json);
    let mut writer = BatchWriter::new(Vec::new()).unwrap();
    writer.manifest(&manifest).unwrap();
    let (stream, _) = writer.into_parts().unwrap();
    assert_eq!(stream[8], 7, "a kind of its own");
    let mut reader = BatchReader::new(&stream[..]);
    assert_eq!(
        reader.next_record().unwrap(),
        Some(Record::Manifest(Box::new(manifest)))
    );
    let content = ContentChange {
        deltas: 1,
        base: ContentBase::At {
            file: FileId(0xab),
            seq: 5,
        },
    };
    let json = r#"{"deltas":1,"base":{"at":{"file":"000000000000000000000000000000ab","seq":5}}}"#;
    assert_eq!(serde_json::to_string(&content).unwrap(), json);
    assert_eq!(serde_json::from_str::<ContentChange>(json).unwrap(), content);
}

#[test]
fn manifest_whose_kind_contradicts_its_content_is_refused() {
    for follows in [None, Some(8)] {
        let manifest = Manifest { follows, ..manifest() };
        let mut writer = BatchWriter::new(Vec::new()).unwrap();
        writer.manifest(&manifest).unwrap();
        let (mut stream, _) = writer.into_parts().unwrap();
        stream[8] = if follows.is_some() { 1 } else { 7 };
        let end = stream.len() - 4;
        let crc = crc32c::crc32c(&stream[8..end]).to_le_bytes();
        stream[end..].copy_from_slice(&crc);
        let result = BatchReader::new(&stream[..]).next_record();
        assert!(
            matches!(result, Err(BatchError::FollowsTag { record: 0 })),
            "{result:?}"
        );
    }
}

#[test]
fn golden_json_of_version_1() {
    let json = |value: &dyn Fn() -> serde_json::Result<String>| value().unwrap();
    assert_eq!(
        json(&|| serde_json::to_string(&manifest())),
        concat!(
            r#"{"device":7,"counter":3,"base_seq":2,"root":"00000000000000000000000000000001","created_ns":-5,"host":"h","#,
            r#""path":{"base64":"L/8="},"snapshot":{"time_ns":0,"host":"","path":"","tags":["t"]}}"#
        )
    );
    assert_eq!(
        json(&|| serde_json::to_string(&node())),
        concat!(
            r#"{"id":"00000000000000000000000000000002","attributes":{"kind":"file","mode":420,"uid":1,"gid":2,"size":3,"#,
            r#""mtime_ns":-9223372036854775808,"xattrs":[{"name":"user.x","value":{"base64":"/g=="}}],"user":"me"},"#,
            r#""content":{"deltas":1,"base":"empty"}}"#
        )
    );
    assert_eq!(
        json(&|| serde_json::to_string(&entry())),
        r#"{"parent":"00000000000000000000000000000001","name":{"base64":"gA=="},"child":null}"#
    );
    assert_eq!(
        json(&|| serde_json::to_string(&Totals::default())),
        r#"{"nodes":0,"entries":0,"deltas":0}"#
    );
    let kinds = [
        (NodeKind::File, "file"),
        (NodeKind::Directory, "directory"),
        (NodeKind::Symlink, "symlink"),
        (NodeKind::Fifo, "fifo"),
        (NodeKind::Socket, "socket"),
        (NodeKind::CharDevice, "char_device"),
        (NodeKind::BlockDevice, "block_device"),
    ];
    for (kind, name) in kinds {
        assert_eq!(json(&|| serde_json::to_string(&kind)), format!("{name:?}"));
    }
}

#[test]
fn every_truncation_is_an_error_or_a_record_border() {
    let bytes = whole(b"0123456789");
    let full = read_all(&bytes[..]).unwrap().len();
    let mut borders = 0;
    for cut in 0..bytes.len() {
        match read_all(&bytes[..cut]) {
            Ok(records) => {
                assert!(records.len() < full);
                borders += 1;
            }
            Err(BatchError::Truncated { .. }) => {}
            Err(BatchError::Io(e)) => assert_eq!(e.kind(), std::io::ErrorKind::UnexpectedEof),
            Err(e) => panic!("cut at {cut}: {e}"),
        }
    }
    // After the header and after each of the records but the last.
    assert_eq!(borders, full);
}

#[test]
fn every_flipped_bit_is_noticed() {
    let bytes = whole(b"0123456789");
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            assert!(read_all(&flipped[..]).is_err(), "byte {at} bit {bit}");
        }
    }
}

#[test]
fn claimed_lengths_allocate_nothing() {
    let mut bytes = b"BYBATCH\x01\x02".to_vec();
    bytes.extend([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]);
    assert!(matches!(
        read_all(&bytes[..]),
        Err(BatchError::BadLength { len: u64::MAX, .. })
    ));
    let overlong = b"BYBATCH\x01\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02";
    assert!(matches!(read_all(&overlong[..]), Err(BatchError::BadVarint { .. })));
    let padded = b"BYBATCH\x01\x02\x81\x00";
    assert!(matches!(read_all(&padded[..]), Err(BatchError::BadVarint { .. })));
    let short_delta = b"BYBATCH\x01\x04\x0f";
    assert!(matches!(
        read_all(&short_delta[..]),
        Err(BatchError::BadLength { len: 15, .. })
    ));
    let version_4 = b"BYBATCH\x04";
    assert!(matches!(read_all(&version_4[..]), Err(BatchError::Version(4))));
    assert!(matches!(read_all(&b"GET / HT"[..]), Err(BatchError::NotABatch)));
}

#[test]
fn batch_reader_refuses_trailing_bytes_and_skipped_deltas() {
    let mut bytes = whole(b"x");
    bytes.extend_from_slice(&whole(b"x")[8..]);
    assert!(matches!(read_all(&bytes[..]), Err(BatchError::AfterEnd { .. })));

    let bytes = whole(b"unread");
    let mut reader = BatchReader::new(&bytes[..]);
    loop {
        match reader.next_record() {
            Ok(Some(_)) => {}
            Err(BatchError::TrailingDelta { len: 6, .. }) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(
        matches!(reader.next_record(), Ok(None)),
        "a failed reader is at its end"
    );
}

#[test]
fn a_delta_of_another_length_than_announced_is_refused() {
    let mut writer = BatchWriter::new(Vec::new()).unwrap();
    for len in [2, 4] {
        let result = writer.delta_from(FileId(1), len, &[1u8, 2, 3][..]);
        assert!(matches!(result, Err(BatchError::DeltaLength { .. })), "{len}");
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), tag in 0u8..7) {
        let _ = read_all(&bytes[..]);
        let mut piece = b"BYBATCH\x01".to_vec();
        piece.push(tag);
        piece.append(&mut bytes);
        let _ = read_all(&piece[..]);
    }
}
