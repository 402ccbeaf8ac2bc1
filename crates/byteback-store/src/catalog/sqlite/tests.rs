use super::SqliteCatalog;
use crate::catalog::schema::INLINE_PAGE_LEN_MAX;
use crate::catalog::sqlite_read::{CHANGED_NAMES, NEXT_FRAGMENTED, NODE_OF_LENGTH, NODES_OF_SEGMENT};
use crate::catalog::{AttributeRow, Catalog as _, EntryRow, FragmentationRow, LayerRow, OPEN};
use crate::numbers::{LayerNumber, LayerRowNumber, NodeNumber, SegmentNumber};
use byteback_model::{Attributes, FileId, NodeKind, Seq, SnapshotLabel};
use rusqlite::StatementStatus;

#[test]
fn a_statement_is_prepared_once_whatever_is_bound_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = SqliteCatalog::open(folder.path().join("catalog")).unwrap();
    let connection = catalog.writer.lock().unwrap();
    for count in [1, 2, 3_i64] {
        let mut statement = connection.prepare_cached("SELECT seq FROM batch LIMIT ?1").unwrap();
        assert!(!statement.exists([count]).unwrap());
        assert_eq!(statement.get_status(StatementStatus::RePrepare), 0);
    }
}

#[test]
fn snapshots_are_numbered_within_their_folder() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = SqliteCatalog::open(dir.path().join("catalog")).unwrap();
    let write = catalog.write().unwrap();
    write.insert_folder("mail", 1).unwrap();
    write.insert_folder("music", 1).unwrap();
    let [mail, music] = ["mail", "music"].map(|name| write.folder(name).unwrap().unwrap().id);
    let label = SnapshotLabel::default();
    let numbers = [mail, music, mail].map(|folder| write.insert_snapshot(folder, 1, &label).unwrap());
    assert_eq!(numbers, [1, 1, 2]);
    assert!(write.delete_snapshot(mail, 2).unwrap());
    assert_eq!(
        write.insert_snapshot(mail, 1, &label).unwrap(),
        3,
        "no number is given twice"
    );
    assert_eq!(write.insert_snapshot(music, 1, &label).unwrap(), 2);
}

/// The first and only layer of a file of `len_bytes`.
fn only_layer(len_bytes: u64) -> LayerRow {
    LayerRow {
        id: LayerRowNumber::UNASSIGNED,
        first: LayerNumber::FIRST,
        last: LayerNumber::FIRST,
        base_len: 0,
        new_len: len_bytes,
        extents: 1,
        resets: true,
        barrier: false,
        shared: None,
    }
}

#[test]
fn a_page_is_found_in_its_layer_or_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = SqliteCatalog::open(dir.path().join("catalog")).unwrap();
    let write = catalog.write().unwrap();
    let folder = write.insert_folder("mail", 1).unwrap().id;
    let lens = [INLINE_PAGE_LEN_MAX - 1, INLINE_PAGE_LEN_MAX, INLINE_PAGE_LEN_MAX + 1];
    let mut layers = Vec::new();
    for (id, len) in (1..).zip(lens) {
        let node = write.insert_node(folder, FileId(id)).unwrap();
        let pages = vec![(7, vec![id as u8; len])];
        layers.push((write.insert_layer(node, &only_layer(10), &pages, &[]).unwrap(), pages));
    }
    let check = |read: &dyn crate::catalog::CatalogRead| {
        for (layer, pages) in &layers {
            assert_eq!(read.page(*layer, 7).unwrap(), (Some(pages[0].1.clone()), None));
            assert_eq!(read.page(*layer, 6).unwrap(), (None, Some(7)));
        }
    };
    check(&*write);
    write.commit().unwrap();
    check(&*catalog.read().unwrap());
    assert_eq!(rows_of(&dir, "layer_page"), 1, "the longest is beside its layer");
}

fn rows_of(dir: &tempfile::TempDir, table: &str) -> i64 {
    let connection = rusqlite::Connection::open(dir.path().join("catalog")).unwrap();
    let query = format!("SELECT count(*) FROM {table}");
    connection.query_row(&query, [], |row| row.get(0)).unwrap()
}

#[test]
fn files_of_a_segment_are_found_without_looking_at_all_files() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = SqliteCatalog::open(dir.path().join("catalog")).unwrap();
    let write = catalog.write().unwrap();
    let folder = write.insert_folder("mail", 1).unwrap().id;
    let (common, rare) = (SegmentNumber(1), SegmentNumber(2));
    for segment in [common, rare] {
        write.add_segment(segment).unwrap();
    }
    let mut last = None;
    for id in 1..=3000 {
        let node = write.insert_node(folder, FileId(id)).unwrap();
        let segment = if id == 3000 { rare } else { common };
        write.insert_layer(node, &only_layer(10), &[], &[segment]).unwrap();
        last = Some(node);
    }
    write.commit().unwrap();
    let found = catalog.read().unwrap().nodes_of_segment(folder, rare, 10).unwrap();
    assert_eq!(found, [last.unwrap()]);
    let connection = catalog.writer.lock().unwrap();
    let mut statement = connection.prepare(NODES_OF_SEGMENT).unwrap();
    let nodes: Vec<i64> = statement
        .query_map((folder, rare, 10), |row| row.get(0))
        .unwrap()
        .collect::<rusqlite::Result<_>>()
        .unwrap();
    assert_eq!(nodes.len(), 1);
    let steps = statement.get_status(StatementStatus::VmStep);
    assert!(steps < 500, "{steps} steps for one file of 3,000");
}

#[test]
fn due_files_are_found_without_looking_at_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = SqliteCatalog::open(dir.path().join("catalog")).unwrap();
    let write = catalog.write().unwrap();
    let folder = write.insert_folder("mail", 1).unwrap().id;
    let mut last = None;
    for id in 1..=3000 {
        let node = write.insert_node(folder, FileId(id)).unwrap();
        let row = FragmentationRow {
            is_due: id == 3000,
            ..FragmentationRow::default()
        };
        write.put_fragmentation(node, &row).unwrap();
        last = Some(node);
    }
    write.commit().unwrap();
    let read = catalog.read().unwrap();
    let found = read.next_fragmented(NodeNumber::START).unwrap();
    assert_eq!(found, last.map(|node| (node, "mail".to_owned())));
    assert_eq!(read.next_fragmented(last.unwrap()).unwrap(), None);
    drop(read);
    let connection = catalog.writer.lock().unwrap();
    let mut statement = connection.prepare(NEXT_FRAGMENTED).unwrap();
    assert!(statement.exists([0]).unwrap());
    let steps = statement.get_status(StatementStatus::VmStep);
    assert!(steps < 100, "{steps} steps for one due file of 3,000");
}

fn row_of_size(seq: Seq, size: u64) -> AttributeRow {
    let attributes = Attributes {
        kind: NodeKind::File,
        mode: 0o600,
        uid: 0,
        gid: 0,
        size,
        mtime_ns: 0,
        rdev: 0,
        inode_flags: 0,
        target: None,
        xattrs: Vec::new(),
        user: None,
        group: None,
    };
    AttributeRow {
        seq,
        attributes,
        layer: LayerNumber::NONE,
        content_seq: 0,
    }
}

#[test]
fn file_of_a_length_is_found_without_looking_at_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = SqliteCatalog::open(dir.path().join("catalog")).unwrap();
    let write = catalog.write().unwrap();
    let folder = write.insert_folder("mail", 1).unwrap().id;
    let mut nodes = Vec::new();
    for id in 1..=1000 {
        let node = write.insert_node(folder, FileId(id)).unwrap();
        // Each was written a few times, mostly at one length.
        for seq in 1..=3 {
            let size = if id % 100 == 0 { 90_000 } else { 80_000 };
            write.insert_attributes(folder, node, &row_of_size(seq, size)).unwrap();
        }
        nodes.push(node);
    }
    write.commit().unwrap();
    let read = catalog.read().unwrap();
    let found = read.node_of_length(folder, 90_000, NodeNumber::END).unwrap();
    assert_eq!(found, Some(nodes[999]));
    assert_eq!(
        read.node_of_length(folder, 90_000, nodes[999]).unwrap(),
        Some(nodes[899])
    );
    assert_eq!(read.node_of_length(folder, 90_000, nodes[99]).unwrap(), None);
    assert_eq!(read.node_of_length(folder, 90_001, NodeNumber::END).unwrap(), None);
    drop(read);
    let connection = catalog.writer.lock().unwrap();
    let mut statement = connection.prepare(NODE_OF_LENGTH).unwrap();
    assert!(statement.exists((folder, 80_000, NodeNumber::END)).unwrap());
    let steps = statement.get_status(StatementStatus::VmStep);
    assert!(steps < 50, "{steps} steps for one file of 990");
}

#[test]
fn changed_names_are_found_without_looking_at_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = SqliteCatalog::open(dir.path().join("catalog")).unwrap();
    let write = catalog.write().unwrap();
    let folder = write.insert_folder("mail", 1).unwrap().id;
    let top = write.insert_node(folder, FileId(0)).unwrap();
    for id in 1..=2000_u64 {
        let node = write.insert_node(folder, FileId(id.into())).unwrap();
        let name = format!("{id:05}").into_bytes();
        let row = EntryRow {
            parent: top,
            name: name.clone(),
            child: node,
            from_seq: 1,
            to_seq: OPEN,
        };
        write.insert_entry(folder, &row).unwrap();
        if id % 500 == 0 {
            write.close_entry(top, &name, id).unwrap();
        }
    }
    write.commit().unwrap();
    let found = |from, to| {
        let read = catalog.read().unwrap();
        let names = read.changed_names(folder, from, to, None, 9).unwrap();
        let names = names.into_iter().map(|(_, name)| String::from_utf8(name).unwrap());
        names.collect::<Vec<_>>()
    };
    assert_eq!(found(1, 1500), ["00500", "01000", "01500"]);
    assert_eq!(found(1500, OPEN - 1), ["02000"]);
    let connection = catalog.writer.lock().unwrap();
    let mut statement = connection.prepare(CHANGED_NAMES).unwrap();
    let mut rows = statement.query((folder, 1, 1500, 0, b"", 9)).unwrap();
    while rows.next().unwrap().is_some() {}
    drop(rows);
    let steps = statement.get_status(StatementStatus::VmStep);
    assert!(steps < 300, "{steps} steps for three names of 2,000");
}
