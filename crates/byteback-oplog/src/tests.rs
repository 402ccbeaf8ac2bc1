//! The durable forms, byte by byte, as docs/formats/oplog.md describes them. Changing a line here
//! changes the meaning of logs that exist: that needs a new version.

use std::sync::Arc;

use byteback_extents::ByteRange;
use byteback_host::clock::SimClock;
use byteback_host::durable::DurableDir;
use byteback_host::random::SimRandomness;
use byteback_host::sim::SimDisk;
use redb::{ReadableTable, TableDefinition, TableHandle};

use crate::codec::seal;
use crate::database::decode_layer;
use crate::database::rows::{KeyRow, NameRow, NodeRow, PlaceRow};
use crate::layer::Layer;
use crate::ledger::{LedgerEntry, LedgerEvent};
use crate::marks::{ConsumerState, FileMark, PendingCut};
use crate::packed::{self, Row};
use crate::record::{DiskKey, NodeRecord};
use crate::{DropReason, Dropped, Epoch, Fence, Log, LogError, Unit, WholeReason};
use byteback_model::{NodeId, NodeKind};

/// `record` and its CRC-32C.
fn sealed(record: &[u8]) -> Vec<u8> {
    seal(record.to_vec())
}

#[test]
fn records_end_in_a_checksum_that_notices_every_flipped_bit() {
    // The check value of CRC-32C.
    assert_eq!(sealed(b"123456789")[9..], [0x83, 0x92, 0x06, 0xe3]);
    let mut layer = Layer::default();
    layer.ranges.insert(ByteRange::new(4096, 8192).unwrap());
    let bytes = layer.encode();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            assert!(decode_layer(&flipped).is_err(), "byte {at} bit {bit}");
        }
    }
}

/// A pack of two rows, and its bytes after the version and before the checksum.
fn assert_pack<R: Row + Clone + std::fmt::Debug + PartialEq>(rows: [R; 2], [first, second]: [&[u8]; 2]) {
    let bytes = sealed(&[&[0x01], first, second].concat());
    assert_eq!(packed::encode(&rows), bytes);
    assert_eq!(packed::decode::<R>(&bytes), Ok(rows.to_vec()));
}

const KEY: DiskKey = DiskKey {
    device: 5,
    inode: 300,
    birth_ns: 1_000,
};

#[test]
fn a_pack_of_records_of_version_1() {
    let fence = Fence {
        size_bytes: 4096,
        mtime_ns: 990,
        ctime_ns: 1_002,
        mode: 0o644,
        uid: 1000,
        gid: 0,
    };
    let row = |node, kind, key, fence| NodeRow {
        node: NodeId(node),
        record: NodeRecord {
            kind,
            key,
            born: Epoch(128),
            fence,
        },
    };
    let (node, kind, born) = (300, NodeKind::File, [0x80, 0x02]);
    let first = [
        &[0xac, 0x02][..], // node 300
        &[0x28],           // a file with a fence, and the number of its device
        &[0x05],           // device 5
        &[0xd8, 0x04],     // inode 300
        &[0xd0, 0x0f],     // born at 1,000 ns
        &born,             // in epoch 128
        &[0x80, 0x20],     // size 4096
        &[0x04],           // ctime: 2 ns after its birth
        &[0x17],           // mtime: 12 ns before that
        &[0xa4, 0x03],     // mode 0644
        &[0xe8, 0x07],     // uid 1000
        &[0x00],           // gid 0
    ]
    .concat();
    let alike = [
        0x02, // two further
        0x18, // a file with a fence; mode and owner as before
        0x02, // the next inode
        0x01, // born 1 ns before
        0x00, // in the same epoch
        0x00, // empty
        0x06, // ctime: 3 ns after its birth
        0x00, // mtime: the same
    ];
    let key = DiskKey {
        inode: 301,
        birth_ns: 999,
        ..KEY
    };
    let other_fence = Fence {
        size_bytes: 0,
        mtime_ns: 1_002,
        ..fence
    };
    assert_pack(
        [
            row(node, kind, KEY, Some(fence)),
            row(302, kind, key, Some(other_fence)),
        ],
        [&first, &alike],
    );

    // Without a time of birth, that of the change is told from the one before.
    let without_birth = DiskKey { birth_ns: 0, ..key };
    let later = Fence {
        ctime_ns: 1_003,
        mtime_ns: 1_003,
        ..fence
    };
    let second = [0x01, 0x18, 0x02, 0xcf, 0x0f, 0x00, 0x80, 0x20, 0x02, 0x00];
    assert_pack(
        [
            row(node, kind, KEY, Some(fence)),
            row(301, kind, without_birth, Some(later)),
        ],
        [&first, &second],
    );

    let kinds = [
        NodeKind::File,
        NodeKind::Directory,
        NodeKind::Symlink,
        NodeKind::Fifo,
        NodeKind::Socket,
        NodeKind::CharDevice,
        NodeKind::BlockDevice,
    ];
    for (code, kind) in (0..).zip(kinds) {
        let second = [0x01, code, 0x00, 0x00, 0x00];
        assert_pack(
            [row(node, NodeKind::File, KEY, Some(fence)), row(301, kind, KEY, None)],
            [&first, &second],
        );
    }
}

#[test]
fn a_pack_of_keys_of_version_1() {
    let row = |key, node| KeyRow {
        key,
        node: NodeId(node),
    };
    let first = [
        0xb1, 0x09, // inode 300 of another device than 0
        0x05, // device 5
        0xd0, 0x0f, // born at 1,000 ns
        0x0e, // node 7
    ];
    let second = [
        0x04, // inode 301
        0x02, // born 1 ns later
        0x01, // node 6
    ];
    let key = DiskKey {
        inode: 301,
        birth_ns: 1_001,
        ..KEY
    };
    assert_pack([row(KEY, 7), row(key, 6)], [&first, &second]);
}

#[test]
fn a_pack_of_names_of_version_1() {
    let row = |parent, name: &[u8], child| NameRow {
        parent: NodeId(parent),
        name: name.to_vec(),
        child: NodeId(child),
    };
    // In another directory than 0, with nothing in common: 3; a name of 5 bytes; node 300.
    let first = b"\x01\x03\x05a.txt\xd8\x04";
    // In the same directory, 5 bytes in common; a byte more; the node before.
    let second = b"\x0a\x01~\x01";
    assert_pack([row(3, b"a.txt", 300), row(3, b"a.txt~", 299)], [first, second]);
    // Five directories further, one byte in common.
    let second = b"\x03\x05\x00\x00";
    assert_pack([row(3, b"a.txt", 300), row(8, b"a", 300)], [first, second]);
}

#[test]
fn a_pack_of_places_of_version_1() {
    let row = |node, parent, name: &[u8]| PlaceRow {
        node: NodeId(node),
        parent: NodeId(parent),
        name: name.to_vec(),
    };
    // Node 300; in another directory than 0, with nothing in common: 3; a name of 5 bytes.
    let first = b"\xac\x02\x01\x06\x05a.txt";
    // The same node in the same directory, 5 bytes in common; a byte more.
    let second = b"\x00\x0a\x01~";
    assert_pack([row(300, 3, b"a.txt"), row(300, 3, b"a.txt~")], [first, second]);
    // The next node in the directory before.
    let second = b"\x01\x01\x01\x01b";
    assert_pack([row(300, 3, b"a.txt"), row(301, 2, b"b")], [first, second]);
}

fn layer_of(ranges: &[(u64, u64)]) -> Layer {
    let mut layer = Layer::default();
    for (start, end) in ranges {
        layer.ranges.insert(ByteRange::new(*start, *end).unwrap());
    }
    layer
}

#[test]
fn a_layer_of_version_1() {
    let layer = layer_of(&[(0, 4096), (5000, 5001), (1 << 40, (1 << 40) + 300)]);
    let bytes = [
        0x01, // version
        0x00, // ranges count, in bytes
        0x00, // in units of 2^0 bytes
        0x00, 0x80, 0x20, // gap 0, another length: 4096
        0x90, 0x0e, 0x01, // gap 904, another length: 1
        0xee, 0xb1, 0xff, 0xff, 0xff, 0x3f, 0xac, 0x02, // gap 2^40 - 5001, another length: 300
    ];
    assert_eq!(layer.encode(), sealed(&bytes));
    assert_eq!(decode_layer(&sealed(&bytes)).unwrap().encode(), sealed(&bytes));

    let mut pages = layer_of(&[(4096, 8192), (16384, 20480), (1 << 20, (1 << 20) + 8192)]);
    pages.unit = Unit::Page;
    let bytes = [
        0x01, // version
        0x80, // ranges count, the unit is pages
        0x0c, // in units of 2^12 bytes
        0x02, 0x01, // gap 1, another length: 1
        0x05, // gap 2, the same length
        0xf6, 0x03, 0x02, // gap 251, another length: 2
    ];
    assert_eq!(pages.encode(), sealed(&bytes));
    let back = decode_layer(&sealed(&bytes)).unwrap();
    assert_eq!((back.ranges, back.unit), (pages.ranges, Unit::Page));

    // Kept beside the files.
    assert_eq!(Layer::elsewhere(), sealed(&[0x01, 0x7f]));
    assert!(!Layer::is_encoded_unknown(&Layer::elsewhere()));
    // Nothing but attributes.
    assert_eq!(Layer::default().encode(), sealed(&[0x01, 0x00]));
    let reasons = [
        WholeReason::Created,
        WholeReason::NoMark,
        WholeReason::Untracked,
        WholeReason::Interrupted,
        WholeReason::Unsaved,
        WholeReason::Dropped,
        WholeReason::LogLost,
    ];
    for (code, reason) in (1..).zip(reasons) {
        let mut whole = Layer::default();
        whole.mark_whole(reason);
        assert_eq!(whole.encode(), sealed(&[0x01, code]));
        assert_eq!(decode_layer(&whole.encode()).unwrap().whole, Some(reason));
        assert!(Layer::is_encoded_unknown(&whole.encode()) != (reason == WholeReason::Created));
    }
    // Two ranges that touch would be one, none is empty, nothing follows the last, no unit or
    // number is too large.
    for bad in [
        &[0x01, 0x00, 0x00, 0x00, 0x01, 0x00, 0x01][..],
        &[0x01, 0x00, 0x00, 0x00, 0x00],
        &[0x01, 0x00, 0x00, 0x01],
        &[0x01, 0x00, 0x00],
        &[0x01, 0x00, 0x40, 0x02, 0x01],
        &[0x01, 0x00, 0x3f, 0x04, 0x01],
        &[0x01, 0x04, 0x00],
        &[0x01, 0x08],
        &[0x01, 0x7f],
        &[0x02, 0x00],
    ] {
        assert!(
            matches!(decode_layer(&sealed(bad)), Err(LogError::Damaged { what: "layer" })),
            "{bad:?}"
        );
    }
}

#[test]
fn a_mark_of_version_1() {
    let state = ConsumerState {
        mark: Some(Epoch(7)),
        pending: Some(PendingCut {
            epoch: Epoch(9),
            batch: 200,
        }),
        saved_at_ns: 64,
        note: b"{}".to_vec(),
        heard_at_ns: 65,
        file_marks: 300,
        dropped: Some(Dropped {
            at_ns: -1,
            reason: DropReason::Expired,
        }),
    };
    let bytes = [
        0x01, // version
        0x07, // mark
        0x09, // epoch of the pending cut
        0xc8, 0x01, // its batch
        0x80, 0x01, // saved at: zigzag of 64
        0x02, b'{', b'}', // note
        0x82, 0x01, // heard at: zigzag of 65
        0xac, 0x02, // 300 marks of files
        0x02, // dropped because it expired
        0x01, // at: zigzag of -1
    ];
    assert_eq!(state.encode(), sealed(&bytes));
    assert_eq!(ConsumerState::decode(&sealed(&bytes)).unwrap(), state);
    let empty = ConsumerState::default();
    assert_eq!(empty.encode(), sealed(&[0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    for bad in [
        &[0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0][..],
        &[0x01, 0, 0, 0, 0, 0, 0, 0, 3, 0],
        &[0x01, 0, 0, 0, 0, 0],
    ] {
        assert!(ConsumerState::decode(&sealed(bad)).is_err());
    }
}

#[test]
fn a_mark_of_a_file() {
    let bytes = sealed(&[0x01, 0xac, 0x02]);
    assert_eq!(FileMark(Epoch(300)).encode(), bytes);
    assert_eq!(FileMark::decode(&bytes).unwrap(), FileMark(Epoch(300)));
    for bad in [&[0x02, 0x01][..], &[0x01, 0x00], &[0x01, 0x01, 0x00]] {
        assert!(FileMark::decode(&sealed(bad)).is_err());
    }
}

#[test]
fn ledger_entries_with_texts_of_version_1() {
    let dropped = |reason| LedgerEvent::ConsumerDropped {
        consumer: "ann".to_owned(),
        reason,
    };
    let lost = LedgerEvent::LogLost {
        reason: "torn".to_owned(),
        set_aside: "x".to_owned(),
    };
    for (event, bytes) in [
        (dropped(DropReason::Ordered), &b"\x01\x05\x7f\x03ann\x07ordered"[..]),
        (dropped(DropReason::Expired), b"\x01\x05\x7f\x03ann\x07expired"),
        (lost, b"\x01\x06\x7f\x04torn\x01x"),
    ] {
        let entry = LedgerEntry { at_ns: -64, event };
        assert_eq!(entry.encode(), sealed(bytes));
        assert_eq!(LedgerEntry::decode(&sealed(bytes)).unwrap(), entry);
    }
    for bad in [
        &b"\x01\x05\x7f\x03ann\x04gone"[..],
        b"\x01\x07\x7f\x00\x00",
        b"\x01\x06\x7f\x01\xff\x00",
        b"\x02\x06\x7f\x00\x00",
    ] {
        assert!(LedgerEntry::decode(&sealed(bad)).is_err());
    }
}

#[test]
fn ledger_entries_with_numbers_of_version_1() {
    let event = |event| LedgerEntry { at_ns: -64, event };
    for (entry, bytes) in [
        (event(LedgerEvent::Created), [0x01, 0, 0x7f, 0, 0]),
        (event(LedgerEvent::TrackingBegan), [0x01, 1, 0x7f, 0, 0]),
        (event(LedgerEvent::TrackingEnded), [0x01, 2, 0x7f, 0, 0]),
        (event(LedgerEvent::Interrupted { open_files: 3 }), [0x01, 3, 0x7f, 3, 0]),
        (
            event(LedgerEvent::UntrackedChanges { files: 4, names: 5 }),
            [0x01, 4, 0x7f, 4, 5],
        ),
    ] {
        assert_eq!(entry.encode(), sealed(&bytes));
        assert_eq!(LedgerEntry::decode(&sealed(&bytes)).unwrap(), entry);
    }
    for bad in [[0x02, 0, 0x7f, 0, 0], [0x01, 7, 0x7f, 0, 0]] {
        assert!(LedgerEntry::decode(&sealed(&bad)).is_err());
    }
}

const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");

/// A log on a simulated disk, then its database as redb alone sees it.
fn database_of_a_new_log(act: impl FnOnce(&Log)) -> redb::Database {
    let disk = SimDisk::new(1);
    let dir: Arc<dyn DurableDir> = Arc::new(disk);
    let clock = Arc::new(SimClock::new(1_000));
    let log = Log::open(&dir, clock, &SimRandomness::new(7)).unwrap();
    act(&log);
    drop(log);
    let file = dir
        .open("log.redb", byteback_host::durable::OpenMode::Existing)
        .unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    file.read_exact_at(0, &mut bytes).unwrap();
    let backend = redb::backends::InMemoryBackend::new();
    redb::StorageBackend::set_len(&backend, bytes.len() as u64).unwrap();
    redb::StorageBackend::write(&backend, 0, &bytes).unwrap();
    redb::Builder::new().create_with_backend(backend).unwrap()
}

#[test]
fn the_tables_of_format_1() {
    let database = database_of_a_new_log(|log| {
        drop(log.cut("mail", || {}).unwrap());
        log.advance("mail", None, b"note").unwrap();
    });
    let txn = database.begin_write().unwrap();
    let mut names: Vec<String> = txn
        .list_tables()
        .unwrap()
        .map(|table| table.name().to_owned())
        .collect();
    names.sort();
    let expected = [
        "file_marks",
        "keys",
        "layers",
        "ledger",
        "marks",
        "meta",
        "name_layers",
        "names",
        "nodes",
        "places",
    ];
    assert_eq!(names, expected);

    // Opening a table says which types its keys and values have; another type is an error.
    let meta = txn.open_table(META).unwrap();
    let mut numbers: Vec<(String, u64)> = meta
        .iter()
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|(name, value)| (name.value().to_owned(), value.value()))
        .collect();
    numbers.retain(|(name, _)| name != "tree");
    let expected = [
        ("epoch", 2),
        ("format", 1),
        ("intent_generation", 1),
        ("last_node", 1),
        ("layers_beside", 0),
        ("names", 0),
        ("nodes", 0),
        ("tracking", 0),
        ("unknown_layers", 0),
    ];
    assert_eq!(numbers, expected.map(|(name, value)| (name.to_owned(), value)));
    assert!(meta.get("tree").unwrap().is_some());
    txn.open_table(TableDefinition::<u64, &[u8]>::new("nodes")).unwrap();
    txn.open_table(TableDefinition::<(u64, u64, i64), &[u8]>::new("keys"))
        .unwrap();
    txn.open_table(TableDefinition::<(u64, &[u8]), &[u8]>::new("names"))
        .unwrap();
    txn.open_table(TableDefinition::<(u64, u64, &[u8]), &[u8]>::new("places"))
        .unwrap();
    txn.open_table(TableDefinition::<(u64, u64), &[u8]>::new("layers"))
        .unwrap();
    txn.open_table(TableDefinition::<(u64, u64, &[u8]), (u64, u64)>::new("name_layers"))
        .unwrap();
    let marks = txn.open_table(TableDefinition::<&str, &[u8]>::new("marks")).unwrap();
    let mark = marks.get("mail").unwrap().unwrap().value().to_vec();
    assert_eq!(mark, sealed(b"\x01\x02\x00\x00\xd0\x0f\x04note\xd0\x0f\x00\x00\x00"));
    txn.open_table(TableDefinition::<(u64, &str), &[u8]>::new("file_marks"))
        .unwrap();
    let ledger = txn.open_table(TableDefinition::<u64, &[u8]>::new("ledger")).unwrap();
    let (number, entry) = ledger.first().unwrap().unwrap();
    assert_eq!(
        (number.value(), entry.value()),
        (0, &sealed(&[0x01, 0x00, 0xd0, 0x0f, 0x00, 0x00])[..])
    );
}

#[test]
fn a_log_of_another_format_is_refused_and_left_alone() {
    let disk = SimDisk::new(1);
    let dir: Arc<dyn DurableDir> = Arc::new(disk);
    let open = || Log::open(&dir, Arc::new(SimClock::new(1_000)), &SimRandomness::new(7));
    let log = open().unwrap();
    log.database
        .write(|txn| crate::database::set_number(txn, "format", 2))
        .unwrap();
    drop(log);
    for _ in 0..2 {
        let refused = open().map(drop).unwrap_err();
        assert!(matches!(refused, LogError::Version { found: 2, known: 1 }), "{refused}");
    }
}
