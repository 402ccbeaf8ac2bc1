//! The durable forms, byte by byte, as docs/formats/store.md describes them. Changing a line here
//! changes the meaning of older stores: it needs a new version, and a reader of the old one.

use std::sync::Arc;

use byteback_delta::{Codec, DeltaWriter, Source, WriterOptions};
use byteback_extents::ByteRange;
use byteback_host::durable::{DurableDir, OpenMode};
use byteback_host::sim::SimDisk;

use crate::codec::{
    StagedDelta, StagedRecord, decode_tags, encode_rare_attributes, encode_tags, kind_of_number, number_of_kind,
};
use crate::layer::{Literal, Page, PageBuilder};
use crate::numbers::SegmentNumber;
use crate::segments::{FrameRef, SegmentFiles, Segments};
use crate::{Store, StoreError, StoreLimits};
use byteback_model::{
    Attributes, ContentBase, ContentChange, FileId, Manifest, NameChange, NodeKind, NodeRecord, SnapshotLabel, Totals,
    Xattr,
};

/// `body` followed by its CRC-32C.
fn with_crc(body: &[u8]) -> Vec<u8> {
    [body, &crc32c::crc32c(body).to_le_bytes()].concat()
}

fn id(last: u8) -> Vec<u8> {
    let mut id = vec![0; 16];
    id[15] = last;
    id
}

/// A store whose folder `f` has one file, number 2, with this content.
pub(crate) fn store_with(content: &[u8]) -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), StoreLimits::default()).unwrap();
    store.create_folder("f").unwrap();
    let device = store
        .roster()
        .join(&store.create_join_token(i64::MAX / 2).unwrap(), "d", None)
        .unwrap()
        .device;
    let mut part = store.begin_part("f", device, 1).unwrap();
    part.manifest(Manifest {
        device,
        counter: 1,
        base_seq: None,
        replaces: None,
        follows: None,
        root: FileId(1),
        created_ns: 0,
        host: vec![].into(),
        path: vec![].into(),
        snapshot: None,
    })
    .unwrap();
    for (id, kind, size, content) in [
        (1, NodeKind::Directory, 0, None),
        (
            2,
            NodeKind::File,
            content.len() as u64,
            Some(ContentChange {
                deltas: 1,
                base: ContentBase::Empty,
            }),
        ),
    ] {
        part.node(NodeRecord {
            id: FileId(id),
            attributes: Attributes {
                kind,
                mode: 0o600,
                uid: 0,
                gid: 0,
                size,
                mtime_ns: 0,
                rdev: 0,
                inode_flags: 0,
                target: None,
                xattrs: vec![],
                user: None,
                group: None,
            },
            content,
        })
        .unwrap();
    }
    part.entry(NameChange {
        parent: FileId(1),
        name: b"file".to_vec().into(),
        child: Some(FileId(2)),
    })
    .unwrap();
    let len = content.len() as u64;
    let mut writer = DeltaWriter::new(Vec::new(), 0, len, WriterOptions::default()).unwrap();
    writer.literal(ByteRange::new(0, len).unwrap(), content).unwrap();
    part.delta(FileId(2), &writer.finish().unwrap().0[..]).unwrap();
    part.end(Totals {
        nodes: 2,
        entries: 1,
        deltas: 1,
        proofs: 0,
        directory_times: 0,
    })
    .unwrap();
    store.commit(part, 0).unwrap();
    (dir, store)
}

/// A segment with one frame, its bytes and the frame's place.
fn segment() -> (SimDisk, Vec<u8>, FrameRef) {
    let disk = SimDisk::new(1);
    let files = SegmentFiles::open(Arc::new(disk.clone()), SegmentNumber(41)).unwrap();
    let mut writer = files.writer();
    let frame = writer.append(Codec::Raw, 5, b"hello").unwrap();
    writer.sync().unwrap();
    let file = disk.open("000000000000002a.seg", OpenMode::Existing).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    file.read_exact_at(0, &mut bytes).unwrap();
    (disk, bytes, frame)
}

fn read(disk: &SimDisk, frame: &FrameRef) -> Result<Vec<u8>, StoreError> {
    let mut stored = Vec::new();
    SegmentFiles::open(Arc::new(disk.clone()), SegmentNumber(41))?.read(frame, &mut stored)?;
    Ok(stored)
}

#[test]
fn a_segment_of_version_1() {
    let (disk, bytes, frame) = segment();
    let mut expected = b"BYBSEGM".to_vec();
    expected.push(0x01); // version
    expected.extend([0x2a, 0, 0, 0, 0, 0, 0, 0]); // number
    expected.extend([0x91, 0xec, 0x91, 0x55]); // crc of what is before
    expected.extend(b"FRAM");
    expected.extend([0x00, 0, 0, 0]); // codec raw
    expected.extend([0x05, 0, 0, 0]); // raw length
    expected.extend([0x05, 0, 0, 0]); // stored length
    expected.extend([0x4c, 0xbb, 0x71, 0x9a]); // crc of the stored bytes
    expected.extend([0x1c, 0xe7, 0xf5, 0x74]); // crc of the frame's header before it
    expected.extend(b"hello");
    assert_eq!(bytes, expected);
    assert_eq!((frame.segment, frame.offset, frame.codec), (SegmentNumber(0x2a), 20, 0));
    assert_eq!(read(&disk, &frame).unwrap(), b"hello");
    assert_eq!((Codec::Raw.code(), Codec::Zstd.code()), (0, 1));
}

#[test]
fn segment_with_a_foreign_header_is_refused_a_damaged_one_read() {
    let (disk, bytes, frame) = segment();
    let file = disk.open("000000000000002a.seg", OpenMode::Existing).unwrap();
    for (at, what) in [(7, "version"), (8, "another segment")] {
        let mut header = bytes[..16].to_vec();
        header[at] += 1;
        file.write_all_at(0, &with_crc(&header)).unwrap();
        let refused = read(&disk, &frame).unwrap_err();
        assert!(
            matches!(
                refused,
                StoreError::Damaged {
                    segment: SegmentNumber(0x2a),
                    offset: 0,
                    ..
                }
            ),
            "{refused}"
        );
        assert!(refused.to_string().contains(what), "{refused}");
    }
    for at in 0..20 {
        let mut header = bytes[..20].to_vec();
        header[at] ^= 0x40;
        file.write_all_at(0, &header).unwrap();
        assert_eq!(read(&disk, &frame).unwrap(), b"hello", "byte {at}");
    }
}

#[test]
fn a_page_of_version_1() {
    let mut builder = PageBuilder::default();
    let range = |start, len| ByteRange::from_offset_len(start, len).unwrap();
    let frame = FrameRef {
        segment: SegmentNumber(300),
        offset: 20,
        stored_len: 100,
        raw_len: 200,
        codec: 1,
    };
    builder.push(range(16, 5), Source::Literal(Literal { frame, skip: 0 }));
    builder.push(range(100, 100), Source::Copy { base_offset: 50 });
    builder.push(range(200, 50), Source::Zero);
    builder.push(range(300, 1), Source::Literal(Literal { frame, skip: 199 }));
    builder.finish();
    let bytes = with_crc(&[
        0x01, // version
        0x01, // one frame:
        0xac, 0x02, 0x14, 0x64, 0xc8, 0x01, 0x01, // segment 300, offset 20, stored 100, raw 200, zstd
        0x04, // four extents:
        0x10, 0x14, 0x00, 0x00, // gap 16; length 5, literal; frame 0, skip 0
        0x4f, 0x91, 0x03, 0x63, // gap 79; length 100, copy; zigzag of -50
        0x00, 0xca, 0x01, // gap 0; length 50, zero
        0x32, 0x04, 0x00, 0xc7, 0x01, // gap 50; length 1, literal; frame 0, skip 199
    ]);
    assert_eq!(builder.pages, [(16, bytes.clone())]);
    assert_eq!(Page::decode(&bytes).unwrap().extents.len(), 4);
    let mut version_2 = bytes[..bytes.len() - 4].to_vec();
    version_2[0] = 2;
    assert!(matches!(
        Page::decode(&with_crc(&version_2)),
        Err(StoreError::CatalogDamaged(_))
    ));
}

fn attributes() -> Attributes {
    Attributes {
        kind: NodeKind::Symlink,
        mode: 0o777,
        uid: 1000,
        gid: 0,
        size: 0,
        mtime_ns: -1,
        rdev: 0,
        inode_flags: 0,
        target: Some(b"to".to_vec().into()),
        xattrs: vec![Xattr::new(b"user.a", b"v".to_vec())],
        user: None,
        group: Some(b"g".to_vec().into()),
    }
}

/// Target, no user, group, one xattr.
const RARE: &[u8] = b"\x01\x02to\x00\x01\x01g\x01\x06user.a\x01v";

#[test]
fn rare_attributes_and_tags() {
    assert_eq!(encode_rare_attributes(&attributes()), with_crc(RARE));
    let flagged = Attributes {
        inode_flags: 48,
        ..attributes()
    };
    assert_eq!(encode_rare_attributes(&flagged), with_crc(&[RARE, b"\x30"].concat()));
    let tags = ["a".to_owned(), String::new(), "\u{20ac}".to_owned()];
    assert_eq!(encode_tags(&tags), b"\x01a\x00\x03\xe2\x82\xac");
    assert_eq!(decode_tags(b"\x01a\x00\x03\xe2\x82\xac").unwrap(), tags);
    let kinds = [
        NodeKind::File,
        NodeKind::Directory,
        NodeKind::Symlink,
        NodeKind::Fifo,
        NodeKind::Socket,
        NodeKind::CharDevice,
        NodeKind::BlockDevice,
    ];
    for (number, kind) in (1..).zip(kinds) {
        assert_eq!((number_of_kind(kind), kind_of_number(number)), (number, Some(kind)));
    }
}

#[test]
fn staged_records() {
    let golden = |record: &StagedRecord, body: &[&[u8]]| {
        let blob = with_crc(&body.concat());
        assert_eq!(record.encode(), blob);
        assert_eq!(&StagedRecord::decode(&blob).unwrap(), record);
    };
    let mut manifest = Manifest {
        device: 7,
        counter: 300,
        base_seq: Some(2),
        replaces: None,
        follows: None,
        root: FileId(1),
        created_ns: 1,
        host: b"h".to_vec().into(),
        path: b"/p".to_vec().into(),
        snapshot: None,
    };
    let head = b"\x01\x07\xac\x02\x01\x02";
    golden(
        &StagedRecord::Manifest(manifest.clone()),
        &[head, &id(1), b"\x02\x01h\x02/p\x00"],
    );
    manifest.base_seq = None;
    manifest.snapshot = Some(SnapshotLabel {
        time_ns: -1,
        host: b"H".to_vec().into(),
        path: b"/".to_vec().into(),
        tags: vec!["t".to_owned()],
    });
    let head = b"\x01\x07\xac\x02\x00\x00";
    let label = b"\x01\x01\x01H\x01/\x02\x01t";
    golden(
        &StagedRecord::Manifest(manifest.clone()),
        &[head, &id(1), b"\x02\x01h\x02/p", label],
    );

    let replacing = Manifest {
        base_seq: None,
        replaces: Some(300),
        follows: None,
        snapshot: None,
        ..manifest.clone()
    };
    let head = b"\x08\x07\xac\x02\x00\x00\xac\x02";
    golden(
        &StagedRecord::Manifest(replacing),
        &[head, &id(1), b"\x02\x01h\x02/p\x00"],
    );

    let following = Manifest {
        base_seq: Some(2),
        follows: Some(300),
        snapshot: None,
        ..manifest.clone()
    };
    let head = b"\x09\x07\xac\x02\x01\x02\xac\x02";
    golden(
        &StagedRecord::Manifest(following),
        &[head, &id(1), b"\x02\x01h\x02/p\x00"],
    );

    let node = |content| {
        StagedRecord::Node(NodeRecord {
            id: FileId(2),
            attributes: attributes(),
            content,
        })
    };
    // Kind, mode, uid, gid, size, mtime, rdev.
    let fixed = b"\x03\xff\x03\xe8\x07\x00\x00\x01\x00";
    golden(&node(None), &[b"\x02", &id(2), fixed, RARE, b"\x00"]);
    for (base, code) in [(ContentBase::Previous, 1), (ContentBase::Empty, 2)] {
        let content = Some(ContentChange { deltas: 3, base });
        golden(&node(content), &[b"\x02", &id(2), fixed, RARE, &[code, 3]]);
    }

    let flagged = NodeRecord {
        id: FileId(2),
        attributes: Attributes {
            inode_flags: 48,
            ..attributes()
        },
        content: None,
    };
    golden(
        &StagedRecord::Node(flagged),
        &[b"\x0c", &id(2), fixed, RARE, b"\x30\x00"],
    );

    let content = Some(ContentChange {
        deltas: 3,
        base: ContentBase::Of(FileId(9)),
    });
    golden(&node(content), &[b"\x02", &id(2), fixed, RARE, b"\x03\x03", &id(9)]);
    let content = Some(ContentChange {
        deltas: 3,
        base: ContentBase::At {
            file: FileId(9),
            seq: 300,
        },
    });
    golden(
        &node(content),
        &[b"\x02", &id(2), fixed, RARE, b"\x04\x03", &id(9), b"\xac\x02"],
    );

    let entry = |child| {
        StagedRecord::Entry(NameChange {
            parent: FileId(1),
            name: b"n".to_vec().into(),
            child,
        })
    };
    golden(&entry(Some(FileId(2))), &[b"\x03", &id(1), b"\x01n\x01", &id(2)]);
    golden(&entry(None), &[b"\x03", &id(1), b"\x01n\x00"]);

    let delta = StagedDelta {
        file: 5,
        base_len: 1,
        new_len: 200,
        extents: 3,
        copies: true,
        covered_to: 7,
        stored_bytes: 4,
        pages: vec![(9, b"pg".to_vec())],
        segments: vec![SegmentNumber(1), SegmentNumber(300)],
    };
    golden(
        &StagedRecord::Delta(delta),
        &[
            b"\x04",
            &id(5),
            b"\x01\xc8\x01\x03\x01\x07\x04\x02\x01\xac\x02\x01\x09\x02pg",
        ],
    );
    let totals = Totals {
        nodes: 1,
        entries: 2,
        deltas: 300,
        ..Totals::default()
    };
    golden(&StagedRecord::End(totals), &[b"\x05\x01\x02\xac\x02"]);
}

#[test]
fn the_data_folder_and_the_schema_of_version_1() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), StoreLimits::default()).unwrap();
    let mut names: Vec<String> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with("catalog.sqlite-"))
        .collect();
    names.sort();
    assert_eq!(names, ["catalog.sqlite", "lock", "segments"]);
    let lock = std::fs::read_to_string(dir.path().join("lock")).unwrap();
    assert_eq!(lock, format!("{}\n", std::process::id()));
    drop(store);

    let catalog = rusqlite::Connection::open(dir.path().join("catalog.sqlite")).unwrap();
    let number = |pragma: &str| catalog.query_row(pragma, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(number("PRAGMA application_id"), 0x4259_4243);
    assert_eq!(number("PRAGMA user_version"), 1);
    let mut statement = catalog
        .prepare("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY name")
        .unwrap();
    let schema: Vec<String> = statement
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(schema.len(), 21 + 12, "tables and indexes");
    let schema = schema.join("\n");
    let crc = crc32c::crc32c(schema.as_bytes());
    assert_eq!(crc, 3_483_570_230, "the schema changed without its version:\n{schema}");
}
