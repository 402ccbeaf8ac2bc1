use super::*;
use proptest::prelude::*;

fn node() -> NodeRecord {
    NodeRecord {
        id: FileId(u128::MAX),
        attributes: Attributes {
            kind: NodeKind::Symlink,
            mode: 0o7777,
            uid: u32::MAX,
            gid: 0,
            size: u64::MAX,
            mtime_ns: i64::MIN.into(),
            rdev: 9,
            inode_flags: 0,
            target: Some(b"\xff/x".to_vec().into()),
            xattrs: vec![Xattr::new(b"user.a", vec![0; 300]), Xattr::new(b"user.b", vec![])],
            user: Some(b"me".to_vec().into()),
            group: None,
        },
        content: Some(ContentChange {
            deltas: 3,
            base: ContentBase::Previous,
        }),
    }
}

fn records() -> Vec<StagedRecord> {
    vec![
        StagedRecord::Manifest(Manifest {
            device: 1,
            counter: u64::MAX,
            base_seq: None,
            replaces: None,
            follows: None,
            root: FileId(1),
            created_ns: -1,
            host: b"h".to_vec().into(),
            path: b"/".to_vec().into(),
            snapshot: Some(SnapshotLabel {
                tags: vec!["a".into(), String::new()],
                ..SnapshotLabel::default()
            }),
        }),
        StagedRecord::Manifest(Manifest {
            device: 1,
            counter: 2,
            base_seq: None,
            replaces: Some(u64::MAX),
            follows: None,
            root: FileId(1),
            created_ns: 0,
            host: vec![].into(),
            path: vec![].into(),
            snapshot: None,
        }),
        StagedRecord::Manifest(Manifest {
            device: 1,
            counter: 2,
            base_seq: Some(0),
            replaces: Some(3),
            follows: Some(u64::MAX),
            root: FileId(1),
            created_ns: 0,
            host: vec![].into(),
            path: vec![].into(),
            snapshot: None,
        }),
        StagedRecord::Node(NodeRecord {
            content: Some(ContentChange {
                deltas: 1,
                base: ContentBase::At {
                    file: FileId(3),
                    seq: u64::MAX,
                },
            }),
            ..node()
        }),
        StagedRecord::Node(node()),
        StagedRecord::Node(NodeRecord {
            attributes: Attributes {
                inode_flags: u32::MAX,
                ..node().attributes
            },
            ..node()
        }),
        StagedRecord::Node(NodeRecord {
            content: Some(ContentChange {
                deltas: u32::MAX,
                base: ContentBase::Of(FileId(3)),
            }),
            ..node()
        }),
        StagedRecord::Entry(NameChange {
            parent: FileId(1),
            name: b"n".to_vec().into(),
            child: Some(FileId(2)),
        }),
        StagedRecord::Entry(NameChange {
            parent: FileId(1),
            name: b"n".to_vec().into(),
            child: None,
        }),
        StagedRecord::Delta(StagedDelta {
            file: 5,
            base_len: 1,
            new_len: 2,
            extents: 3,
            copies: true,
            covered_to: 7,
            stored_bytes: 4,
            pages: vec![(0, vec![1, 2]), (9, vec![])],
            segments: vec![SegmentNumber(1), SegmentNumber(300)],
        }),
        StagedRecord::End(Totals {
            nodes: 1,
            entries: 2,
            deltas: 3,
            ..Totals::default()
        }),
        StagedRecord::End(Totals {
            nodes: 1,
            entries: 2,
            deltas: 3,
            proofs: 4,
            ..Totals::default()
        }),
        StagedRecord::End(Totals {
            nodes: 1,
            directory_times: 2,
            ..Totals::default()
        }),
        StagedRecord::DirectoryTime(FileId(5), -1),
        StagedRecord::DirectoryTime(FileId(5), i128::from(i64::MAX) + 1),
        StagedRecord::Proof(FileId(5), [7; DIGEST_LEN].into()),
        StagedRecord::Proof(
            FileId(5),
            Proof {
                digest: [7; DIGEST_LEN],
                of: ProofOf::Leaves(LeafKind::Blake2b256),
            },
        ),
        StagedRecord::Proof(
            FileId(5),
            Proof {
                digest: [7; DIGEST_LEN],
                of: ProofOf::Ranges(vec![
                    ByteRange::new(0, 1).unwrap(),
                    ByteRange::new(1 << 40, u64::MAX).unwrap(),
                ]),
            },
        ),
    ]
}

#[test]
fn staged_records_round_trip_and_every_flip_is_noticed() {
    for record in records() {
        let blob = record.encode();
        assert_eq!(StagedRecord::decode(&blob).unwrap(), record);
        for at in 0..blob.len() {
            let mut flipped = blob.clone();
            flipped[at] ^= 0x10;
            assert!(StagedRecord::decode(&flipped).is_err(), "{record:?} byte {at}");
            assert!(StagedRecord::decode(&blob[..at]).is_err());
        }
    }
}

fn attributes_without_rare(attributes: &Attributes) -> Attributes {
    Attributes {
        target: None,
        xattrs: vec![],
        user: None,
        group: None,
        ..attributes.clone()
    }
}

#[test]
fn rare_attributes_round_trip() {
    let full = node().attributes;
    let mut read = attributes_without_rare(&full);
    assert!(encode_rare_attributes(&read).is_empty(), "the usual file needs no blob");
    decode_rare_attributes(&encode_rare_attributes(&full), &mut read).unwrap();
    assert_eq!(read, full);
    let flagged = |inode_flags, attributes: &Attributes| Attributes {
        inode_flags,
        ..attributes.clone()
    };
    let immutable = flagged(16, &attributes_without_rare(&full));
    let mut read = flagged(0, &immutable);
    decode_rare_attributes(&encode_rare_attributes(&immutable), &mut read).unwrap();
    assert_eq!(read, immutable);
}

proptest! {
    #[test]
    fn numbers_round_trip(unsigned: u64, signed: i64, wide: i128) {
        let mut out = Writer::default();
        out.varint(unsigned);
        out.signed(signed);
        let at = out.bytes.len();
        out.wide(signed.into());
        let mut short = Writer::default();
        short.signed(signed);
        prop_assert_eq!(&out.bytes[at..], &short.bytes, "as always where 64 bits are enough");
        out.wide(wide);
        let mut reader = Reader::new(&out.bytes, "numbers");
        prop_assert_eq!(reader.varint().unwrap(), unsigned);
        prop_assert_eq!(reader.signed().unwrap(), signed);
        prop_assert_eq!(reader.wide().unwrap(), signed.into());
        prop_assert_eq!(reader.wide().unwrap(), wide);
        prop_assert!(reader.is_empty());
    }

    #[test]
    fn arbitrary_blobs_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let _ = StagedRecord::decode(&bytes);
        let crc = crc32c::crc32c(&bytes).to_le_bytes();
        bytes.extend(crc);
        let _ = StagedRecord::decode(&bytes);
    }
}
