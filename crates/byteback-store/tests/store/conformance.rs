//! Requirements on every implementation of the two traits. Each suite takes the trait, and runs
//! against each existing implementation.

use crate::memory::MemoryCatalog;
use byteback_delta::Codec;
use byteback_delta::leaves::LeafKind;
use byteback_host::durable::{DurableDir, RealDir};
use byteback_host::random::noise;
use byteback_host::sim::SimDisk;
use byteback_model::{DeviceId, FileId, SnapshotLabel};
use byteback_store::StoreError;
use byteback_store::catalog::{
    BatchKey, Catalog, CatalogWrite, DeviceRow, EntryRow, InvitationRow, LayerRow, OPEN, SqliteCatalog,
};
use byteback_store::numbers::{ChunkNumber, LayerNumber, LayerRowNumber, NodeNumber, SegmentNumber};
use byteback_store::segments::{SegmentFiles, Segments};
use std::collections::BTreeSet;
use std::sync::Arc;

fn segments_suite(open: &dyn Fn(SegmentNumber) -> Box<dyn Segments>) {
    let segments = open(SegmentNumber::NONE);
    let mut stored = Vec::new();
    let mut written = Vec::new();
    {
        let mut writer = segments.writer();
        for n in 0..10u64 {
            let bytes = noise(n, 700);
            let frame = writer.append(Codec::Raw, 700, &bytes).unwrap();
            segments.read(&frame, &mut stored).unwrap();
            assert_eq!(stored, bytes, "readable at once");
            written.push((frame, bytes));
        }
        writer.sync().unwrap();
        let ids: BTreeSet<SegmentNumber> = written.iter().map(|(frame, _)| frame.segment).collect();
        assert!(ids.len() > 1, "segments fill up");
        assert_eq!(writer.segments(), ids);
        assert!(
            ids.iter().all(|id| segments.is_in_use(*id)),
            "pinned while the writer lives"
        );
        assert_eq!(
            segments
                .list()
                .unwrap()
                .iter()
                .map(|info| info.id)
                .collect::<BTreeSet<_>>(),
            ids
        );
    }
    let last = written.last().unwrap().0.segment;
    let first = written[0].0.segment;
    assert!(
        !segments.is_in_use(first) && segments.is_in_use(last),
        "only the active one is in use"
    );
    let (frame, _) = written[0];
    for wrong in [
        byteback_store::segments::FrameRef {
            offset: frame.offset + 1,
            ..frame
        },
        byteback_store::segments::FrameRef {
            stored_len: 699,
            raw_len: 699,
            ..frame
        },
        byteback_store::segments::FrameRef {
            raw_len: u32::MAX,
            stored_len: u32::MAX,
            ..frame
        },
        byteback_store::segments::FrameRef {
            offset: u64::MAX - 3,
            ..frame
        },
        byteback_store::segments::FrameRef {
            segment: SegmentNumber(4711),
            ..frame
        },
    ] {
        let error = segments.read(&wrong, &mut stored).unwrap_err();
        assert!(
            matches!(error, StoreError::Damaged { .. } | StoreError::Segment { .. }),
            "{error}"
        );
    }
    drop(segments);

    let segments = open(SegmentNumber(last.0 + 5));
    for (frame, bytes) in &written {
        segments.read(frame, &mut stored).unwrap();
        assert_eq!(&stored, bytes);
    }
    assert!(
        !segments.is_in_use(last),
        "an old active segment is never appended to again"
    );
    let frame = segments.writer().append(Codec::Zstd, 10, b"short").unwrap();
    assert_eq!(
        frame.segment,
        SegmentNumber(last.0 + 6),
        "numbers that the catalog knows are not used again"
    );
    segments.remove(first).unwrap();
    segments.remove(first).unwrap();
    assert!(matches!(
        segments.read(&written[0].0, &mut stored),
        Err(StoreError::Damaged { .. })
    ));
}

#[test]
fn segments_in_a_real_and_in_a_simulated_directory() {
    let disk = SimDisk::new(3);
    segments_suite(&|used| Box::new(SegmentFiles::with_len_max(Arc::new(disk.clone()), used, 2000).unwrap()));
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("notes.txt"), "not ours").unwrap();
    segments_suite(&|used| {
        let dir: Arc<dyn DurableDir> = Arc::new(RealDir::open(dir.path()).unwrap());
        Box::new(SegmentFiles::with_len_max(dir, used, 2000).unwrap())
    });
    assert!(dir.path().join("notes.txt").exists());
}

fn catalog_suite(catalog: &dyn Catalog) {
    {
        let write = catalog.write().unwrap();
        write.insert_folder("dropped", 0).unwrap();
    }
    assert!(
        catalog.read().unwrap().folder("dropped").unwrap().is_none(),
        "what is dropped did not happen"
    );

    let reader = catalog.read().unwrap();
    assert!(reader.folders().unwrap().is_empty());
    let write = catalog.write().unwrap();
    write.insert_folder("f", 5).unwrap();
    let folder = write.folder("f").unwrap().unwrap().id;
    let nodes: Vec<NodeNumber> = (0..3).map(|n| write.insert_node(folder, FileId(n)).unwrap()).collect();
    let entry = |name: &[u8], child: NodeNumber, from_seq, to_seq| EntryRow {
        parent: nodes[0],
        name: name.to_vec(),
        child,
        from_seq,
        to_seq,
    };
    write.insert_entry(folder, &entry(b"a", nodes[1], 1, OPEN)).unwrap();
    write.insert_entry(folder, &entry(b"b\xff", nodes[2], 1, OPEN)).unwrap();
    write.close_entry(nodes[0], b"a", 3).unwrap();
    write.insert_entry(folder, &entry(b"a", nodes[2], 3, OPEN)).unwrap();
    let [seven, eight, nine] = [7, 8, 9].map(SegmentNumber);
    for segment in [seven, seven, eight, nine] {
        write.add_segment(segment).unwrap();
    }
    let layer = |first, last, resets| LayerRow {
        id: LayerRowNumber::UNASSIGNED,
        first: LayerNumber(first),
        last: LayerNumber(last),
        base_len: 0,
        new_len: 9,
        extents: 1,
        resets,
        barrier: false,
        shared: None,
    };
    let pages = [(10, b"ten".to_vec()), (20, b"twenty".to_vec())];
    let id = write
        .insert_layer(nodes[1], &layer(1, 1, true), &pages, &[seven])
        .unwrap();
    write.insert_layer(nodes[1], &layer(2, 2, false), &[], &[]).unwrap();
    let merged = write.insert_layer(nodes[1], &layer(1, 2, true), &[], &[seven]).unwrap();
    let shared = LayerRow {
        shared: Some(id),
        ..layer(1, 1, true)
    };
    write.insert_layer(nodes[2], &shared, &[], &[]).unwrap();
    assert!(
        catalog.read().unwrap().folders().unwrap().is_empty(),
        "nothing is seen before the commit"
    );
    write.commit().unwrap();

    // A change that failed ends its transaction.
    let failing = catalog.write().unwrap();
    assert!(failing.close_entry(nodes[0], b"missing", 3).is_err());
    drop(failing);

    assert!(reader.folders().unwrap().is_empty(), "a reader keeps its state");
    drop(reader);
    let read = catalog.read().unwrap();
    let at = |seq| {
        read.entries(nodes[0], seq, None, 10)
            .unwrap()
            .into_iter()
            .map(|row| row.child)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (at(0), at(1), at(2), at(3)),
        (vec![], nodes[1..].to_vec(), nodes[1..].to_vec(), vec![nodes[2]; 2])
    );
    assert_eq!(read.entries(nodes[0], 3, Some(b"a"), 10).unwrap()[0].name, b"b\xff");
    assert_eq!(read.entry(nodes[0], b"a", 2).unwrap().unwrap().child, nodes[1]);
    assert_eq!(read.newest_entry_at(nodes[0], b"a", OPEN).unwrap().unwrap().from_seq, 3);
    assert_eq!(read.parents(nodes[2], 3, 9).unwrap().len(), 2);
    assert_eq!(read.parents(nodes[1], 3, 9).unwrap().len(), 0);
    assert_eq!(
        read.changed_names(folder, 1, 3, None, 9).unwrap(),
        [(nodes[0], b"a".to_vec())]
    );
    assert_eq!(
        read.changed_names(folder, 0, 3, Some((nodes[0], b"a")), 9)
            .unwrap()
            .len(),
        1
    );
    let [first, second] = [1, 2].map(LayerNumber);
    assert_eq!(read.longest_layer(nodes[1], second, first).unwrap().unwrap().id, merged);
    assert_eq!(
        read.longest_layer(nodes[1], second, second).unwrap().unwrap().first,
        second
    );
    let shared = read.longest_layer(nodes[2], first, first).unwrap().unwrap();
    assert!(shared.id != id && shared.pages() == id);
    assert_eq!(read.longest_layer(nodes[1], first, first).unwrap().unwrap().pages(), id);
    assert_eq!(read.page(id, 9).unwrap(), (None, Some(10)));
    assert_eq!(read.page(id, 19).unwrap(), (Some(b"ten".to_vec()), Some(20)));
    assert_eq!(read.page(id, u64::MAX).unwrap(), (Some(b"twenty".to_vec()), None));
    assert_eq!(read.file_id(nodes[2]).unwrap(), FileId(2));
    drop(read);

    let write = catalog.write().unwrap();
    let device = write.insert_device("d", &[1; 32], true, 0).unwrap();
    let key = BatchKey {
        folder,
        device,
        counter: u64::MAX,
    };
    write
        .replace_staged_part(key, 1, (10, None), &[vec![1], vec![2]], &[nine])
        .unwrap();
    write
        .replace_staged_part(key, 1, (20, Some(&[7; 32])), &[vec![3]], &[nine])
        .unwrap();
    let part = write.staged_parts(key).unwrap();
    assert_eq!((part.len(), part[0].created_ns), (1, 20));
    assert_eq!(write.staged_sheet(part[0].id, 0).unwrap(), Some(vec![3]));
    assert_eq!(write.staged_sheet(part[0].id, 1).unwrap(), None);
    assert!(!write.forget_segment(seven).unwrap(), "a layer refers to it");
    assert!(!write.forget_segment(nine).unwrap(), "a staged part refers to it");
    assert_eq!(
        (
            write.delete_expired_parts(20).unwrap(),
            write.delete_expired_parts(21).unwrap()
        ),
        (0, 1)
    );
    assert!(write.forget_segment(nine).unwrap() && write.forget_segment(eight).unwrap());
    assert_eq!(write.segment_id_max().unwrap(), nine, "the highest number stays known");
    devices(&*write, device);
    let first = write.insert_snapshot(folder, 1, &SnapshotLabel::default()).unwrap();
    assert!(write.delete_snapshot(folder, first).unwrap() && !write.delete_snapshot(folder, first).unwrap());
    assert!(
        write.insert_snapshot(folder, 1, &SnapshotLabel::default()).unwrap() > first,
        "numbers are not used twice"
    );
    let used = used_invitation(&*write, device);
    write.commit().unwrap();

    let failing = catalog.write().unwrap();
    assert!(
        failing.use_invitation(used, device).is_err(),
        "an invitation works once"
    );
    drop(failing);

    let write = catalog.write().unwrap();
    let (sha256, blake3, chunk) = (LeafKind::Sha256, LeafKind::Blake3, ChunkNumber);
    assert!(write.sums(nodes[1]).unwrap().is_empty() && write.sum_chunk(nodes[1], sha256, chunk(0)).unwrap().is_none());
    let row = |number: u64, len: usize| (chunk(number), vec![7; len]);
    write
        .put_sums(nodes[1], sha256, 50, &[row(0, 10), row(5, 20), row(9, 30)])
        .unwrap();
    write.put_sums(nodes[1], sha256, 40, &[row(5, 25)]).unwrap();
    write.put_sums(nodes[2], blake3, 60, &[row(1, 100)]).unwrap();
    let of = |node: NodeNumber| {
        let rows = write.sums(node).unwrap();
        rows.iter()
            .map(|row| (row.kind, row.used_ns, row.len_bytes, row.last_chunk))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        of(nodes[1]),
        [(sha256, 50, 65, Some(chunk(9)))],
        "replaced rows count once, and use does not go back"
    );
    assert_eq!(write.sum_chunk(nodes[1], sha256, chunk(5)).unwrap(), Some(vec![7; 25]));
    assert_eq!(write.sums_len().unwrap(), 165);
    write.delete_sums(nodes[1], sha256, chunk(6)).unwrap();
    assert_eq!(of(nodes[1]), [(sha256, 50, 35, Some(chunk(5)))]);
    // The oldest goes first, its last rows first, and never the excepted one.
    assert_eq!(write.evict_sums((nodes[2], blake3), 1).unwrap(), 25);
    assert_eq!(of(nodes[1]), [(sha256, 50, 10, Some(chunk(0)))]);
    assert_eq!(write.evict_sums((nodes[1], sha256), 9).unwrap(), 100);
    assert!(of(nodes[2]).is_empty());
    assert_eq!(write.evict_sums((nodes[1], sha256), 9).unwrap(), 0);
    write.delete_sums(nodes[1], sha256, chunk(0)).unwrap();
    assert_eq!((of(nodes[1]).len(), write.sums_len().unwrap()), (0, 0));
    assert_eq!(write.sum_chunk(nodes[1], sha256, chunk(0)).unwrap(), None);
    write.commit().unwrap();
}

#[test]
fn the_sqlite_catalog() {
    let dir = tempfile::tempdir().unwrap();
    catalog_suite(&SqliteCatalog::open(dir.path().join("c")).unwrap());
}

#[test]
fn memory_catalog_meets_the_requirements() {
    catalog_suite(&MemoryCatalog::new(SimDisk::new(1)));
}

#[test]
fn files_of_others_and_of_newer_programs_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c");
    drop(SqliteCatalog::open(&path).unwrap());
    rusqlite::Connection::open(&path)
        .unwrap()
        .pragma_update(None, "user_version", 2)
        .unwrap();
    assert!(matches!(
        SqliteCatalog::open(&path),
        Err(StoreError::CatalogVersion { found: 2, known: 1 })
    ));
    let path = dir.path().join("other");
    rusqlite::Connection::open(&path)
        .unwrap()
        .execute_batch("CREATE TABLE x (y)")
        .unwrap();
    assert!(matches!(SqliteCatalog::open(&path), Err(StoreError::CatalogDamaged(_))));
    let path = dir.path().join("text");
    std::fs::write(
        &path,
        "this is no database, but long enough to be looked at as one".repeat(20),
    )
    .unwrap();
    assert!(SqliteCatalog::open(&path).is_err());
}

fn used_invitation(write: &dyn CatalogWrite, device: DeviceId) -> u64 {
    let row = InvitationRow {
        id: 0,
        hash: [6; 32],
        created_ns: 1,
        expires_ns: 100,
        folder: None,
        writes: false,
        name: String::new(),
        device: None,
        withdrawn_ns: None,
    };
    let id = write.insert_invitation(&row).unwrap();
    write.use_invitation(id, device).unwrap();
    id
}

/// Devices and invitations, beside a device that exists.
fn devices(write: &dyn CatalogWrite, device: DeviceId) {
    let mut expected = DeviceRow {
        id: device,
        name: "d".to_owned(),
        token_hash: [1; 32],
        created_ns: 0,
        manages: true,
        seen_ns: Some(0),
        revoked_ns: None,
    };
    assert_eq!(write.device_by_token(&[1; 32]).unwrap().as_ref(), Some(&expected));
    assert!(write.device_by_token(&[3; 32]).unwrap().is_none() && write.device(device + 1).unwrap().is_none());
    (expected.name, expected.seen_ns, expected.revoked_ns) = ("e".to_owned(), Some(7), Some(8));
    write.update_device(&expected).unwrap();
    assert_eq!(write.devices().unwrap(), [expected]);
    let other = write.insert_device("f", &[4; 32], false, 0).unwrap();
    write.give_folder(other, "b", false).unwrap();
    write.give_folder(other, "a", true).unwrap();
    write.give_folder(other, "a", false).unwrap();
    let given = [("a".to_owned(), true), ("b".to_owned(), false)];
    assert_eq!(write.device_folders(other).unwrap(), given);
    assert_eq!(write.device_folder(other, "b").unwrap(), Some(false));
    assert_eq!(write.device_folder(other, "c").unwrap(), None);
    let mut manager = write.device(other).unwrap().unwrap();
    manager.manages = true;
    write.update_device(&manager).unwrap();
    assert!(write.device(other).unwrap().unwrap().manages);

    let mut row = InvitationRow {
        id: 0,
        hash: [2; 32],
        created_ns: 1,
        expires_ns: 100,
        folder: Some("a".to_owned()),
        writes: false,
        name: "n".to_owned(),
        device: None,
        withdrawn_ns: None,
    };
    row.id = write.insert_invitation(&row).unwrap();
    assert_eq!(write.open_invitations(99).unwrap(), [row.clone()]);
    assert!(write.open_invitations(100).unwrap().is_empty());
    write.use_invitation(row.id, other).unwrap();
    assert!(!write.withdraw_invitation(row.id, 5).unwrap());
    row.device = Some(other);
    assert_eq!(write.invitation_by_token(&[2; 32]).unwrap(), Some(row.clone()));
    assert!(write.open_invitations(0).unwrap().is_empty());
    row.hash = [5; 32];
    let second = write.insert_invitation(&row).unwrap();
    assert!(write.withdraw_invitation(second, 5).unwrap());
    let found = write.invitation_by_token(&[5; 32]).unwrap().unwrap();
    assert_eq!((found.device, found.withdrawn_ns), (None, Some(5)));
    write.forget_invitations(100).unwrap();
    assert!(write.invitation_by_token(&[5; 32]).unwrap().is_some());
    write.forget_invitations(101).unwrap();
    assert!(write.invitation_by_token(&[5; 32]).unwrap().is_none());
}
