//! Batches that contradict themselves, the folder or POSIX: refused as a whole, and nothing
//! changes.

use crate::lab::{Batch, Lab, ROOT, patch};
use byteback_model::{ContentBase, FileId, NodeKind, Totals, Xattr};
use byteback_store::StoreError;

const DIR: NodeKind = NodeKind::Directory;

#[track_caller]
fn refused(lab: &Lab, what: &str, base: Option<u64>, batch: &Batch) {
    let before = lab.store.folder("f").unwrap();
    match lab.send(99, base, batch) {
        Err(StoreError::InvalidBatch(_) | StoreError::InvalidDelta { .. }) => {}
        other => panic!("{what}: {other:?}"),
    }
    assert_eq!(lab.store.folder("f").unwrap(), before, "{what}");
    assert_eq!(lab.read(2, 1).unwrap(), b"0123456789");
}

#[test]
fn contradictions_are_refused() {
    let lab = Lab::new(1 << 20);
    lab.first(&[(2, b"0123456789")]);
    let new = Batch::default;
    let delta = |base, new, at| patch(base, new, &[(at, b"x")]);
    let copying = |base: u64, new: u64| {
        let options = byteback_delta::WriterOptions {
            copies: true,
            compress: false,
        };
        let mut writer = byteback_delta::DeltaWriter::new(Vec::new(), base, new, options).unwrap();
        writer
            .copy(byteback_extents::ByteRange::from_offset_len(0, 4).unwrap(), 4)
            .unwrap();
        writer.finish().unwrap().0
    };
    let grown = |size| new().file(2, size, 1, ContentBase::Previous);
    let cases: Vec<(&str, Batch)> = vec![
        (
            "unknown parent",
            new().new_file(3, b"n", b"").entry(FileId(77), b"n", Some(3)),
        ),
        ("unknown child", new().entry(ROOT, b"n", Some(77))),
        (
            "parent is a file",
            new().new_file(3, b"n", b"").entry(FileId(2), b"n", Some(3)),
        ),
        ("root as a child", new().entry(ROOT, b"n", Some(1))),
        ("kind changes", new().node(FileId(2), DIR, 0, None)),
        (
            "described twice",
            new().node(ROOT, DIR, 0, None).node(ROOT, DIR, 0, None),
        ),
        ("entry twice", new().entry(ROOT, b"a", Some(2)).entry(ROOT, b"a", None)),
        (
            "directory with two names",
            new()
                .node(FileId(5), DIR, 0, None)
                .entry(ROOT, b"a", Some(5))
                .entry(ROOT, b"b", Some(5)),
        ),
        (
            "directory in itself",
            new().node(FileId(5), DIR, 0, None).entry(FileId(5), b"a", Some(5)),
        ),
        (
            "cycle of two",
            new()
                .node(FileId(5), DIR, 0, None)
                .node(FileId(6), DIR, 0, None)
                .entry(FileId(5), b"a", Some(6))
                .entry(FileId(6), b"b", Some(5)),
        ),
        ("size without contents", new().node(FileId(2), NodeKind::File, 11, None)),
        ("size of a directory", new().node(FileId(5), DIR, 1, None)),
        ("copy from another length", grown(10).delta(2, copying(9, 10))),
        ("delta to another length", grown(10).delta(2, delta(10, 11, 0))),
        ("delta not announced", new().delta(2, delta(10, 10, 0))),
        (
            "delta too many",
            grown(10).delta(2, delta(10, 10, 0)).delta(2, delta(10, 10, 0)),
        ),
        ("delta missing", grown(10)),
        ("no delta announced", new().file(2, 10, 0, ContentBase::Previous)),
        ("empty with a size", new().file(2, 10, 0, ContentBase::Empty)),
        ("delta of nobody", new().delta(88, delta(0, 1, 0))),
        (
            "contents of a directory",
            new().node(
                FileId(5),
                DIR,
                0,
                Some(byteback_model::ContentChange {
                    deltas: 1,
                    base: ContentBase::Empty,
                }),
            ),
        ),
        ("garbage for a delta", grown(10).delta(2, b"garbage".to_vec())),
        ("half a delta", grown(10).delta(2, delta(10, 10, 0)[..60].to_vec())),
        (
            "wrong totals",
            Batch {
                totals: Some(Totals {
                    nodes: 9,
                    entries: 0,
                    deltas: 0,
                    ..Totals::default()
                }),
                ..new()
            },
        ),
    ];
    for (what, batch) in &cases {
        refused(&lab, what, Some(1), batch);
    }
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'n'; 256]] {
        refused(&lab, "name", Some(1), &new().entry(ROOT, name, Some(2)));
    }
    let node = |change: &dyn Fn(&mut byteback_model::Attributes)| {
        let mut batch = new().node(FileId(5), NodeKind::Fifo, 0, None);
        change(&mut batch.nodes[0].attributes);
        batch
    };
    refused(&lab, "mode", Some(1), &node(&|a| a.mode = 0o10_000));
    refused(
        &lab,
        "target",
        Some(1),
        &node(&|a| a.target = Some(b"x".to_vec().into())),
    );
    refused(&lab, "no target", Some(1), &node(&|a| a.kind = NodeKind::Symlink));
    refused(
        &lab,
        "xattr order",
        Some(1),
        &node(&|a| a.xattrs = vec![Xattr::new(b"b", vec![]), Xattr::new(b"a", vec![])]),
    );
    refused(
        &lab,
        "xattr length",
        Some(1),
        &node(&|a| a.xattrs = vec![Xattr::new(b"b", vec![0; 65_537])]),
    );
    refused(&lab, "base_seq of the future", Some(2), &new());
    refused(
        &lab,
        "first contact without a root",
        None,
        &Batch {
            totals: Some(Totals {
                nodes: 1,
                ..Totals::default()
            }),
            ..new()
        },
    );
    // The longest allowed name is allowed, and none of the above left anything behind.
    lab.send(2, Some(1), &new().entry(ROOT, &[b'n'; 255], Some(2))).unwrap();
}

#[test]
fn order_and_completeness_of_the_stream_matter() {
    let lab = Lab::new(1 << 20);
    lab.first(&[(2, b"0123456789")]);
    let invalid = |result: Result<_, StoreError>| assert!(matches!(result, Err(StoreError::InvalidBatch(_))));
    let part = lab.part(2);
    invalid(lab.store.commit(part, 0).map(|_| ()));
    let mut part = lab.part(2);
    part.end(Totals::default()).unwrap();
    invalid(lab.store.commit(part, 0).map(|_| ()));
    let mut part = lab.part(2);
    part.manifest(lab.manifest(2, Some(1))).unwrap();
    invalid(lab.store.commit(part, 0).map(|_| ()));
    for twice in [true, false] {
        let mut part = lab.part(2);
        part.manifest(lab.manifest(2, Some(1))).unwrap();
        part.end(Totals::default()).unwrap();
        if twice {
            part.manifest(lab.manifest(2, Some(1))).unwrap();
        } else {
            part.end(Totals::default()).unwrap();
        }
        invalid(lab.store.commit(part, 0).map(|_| ()));
    }
    let mut part = lab.part(2);
    invalid(part.manifest(lab.manifest(3, Some(1))));
    assert_eq!(lab.store.folder("f").unwrap().seq, 1);
}

#[test]
fn a_cycle_through_a_rename_is_refused_and_the_way_back_is_not() {
    let lab = Lab::new(1 << 20);
    let tree = Batch::default()
        .node(ROOT, DIR, 0, None)
        .node(FileId(5), DIR, 0, None)
        .node(FileId(6), DIR, 0, None)
        .node(FileId(7), DIR, 0, None)
        .entry(ROOT, b"a", Some(5))
        .entry(FileId(5), b"b", Some(6))
        .entry(FileId(6), b"c", Some(7));
    lab.send(1, None, &tree).unwrap();
    let into_itself = Batch::default().entry(ROOT, b"a", None).entry(FileId(7), b"d", Some(5));
    assert!(matches!(
        lab.send(2, Some(1), &into_itself),
        Err(StoreError::InvalidBatch(_))
    ));
    // Turned upside down in one batch: /c/b/a.
    let turned = Batch::default()
        .entry(ROOT, b"a", None)
        .entry(FileId(5), b"b", None)
        .entry(FileId(6), b"c", None)
        .entry(ROOT, b"c", Some(7))
        .entry(FileId(7), b"b", Some(6))
        .entry(FileId(6), b"a", Some(5));
    lab.send(2, Some(1), &turned).unwrap();
}

#[test]
fn names_ending_in_a_directory_never_sent_are_no_contradiction() {
    let lab = Lab::new(1 << 20);
    lab.first(&[(2, b"0123456789")]);
    // Made, filled and removed again between two batches.
    let came_and_went = Batch::default()
        .entry(ROOT, b"tmp", None)
        .entry(FileId(77), b"a", None)
        .patch(2, 10, &[(0, b"X")]);
    lab.send(2, Some(1), &came_and_went).unwrap();
    assert_eq!(lab.read(2, 2).unwrap(), b"X123456789");
    let found = lab.store.node("f", FileId(77), Some(2));
    assert!(matches!(found, Err(StoreError::NodeNotFound(_))), "{found:?}");
}

#[test]
fn first_contact_replaces_the_tree_and_keeps_its_history() {
    let lab = Lab::new(1 << 20);
    lab.first(&[(2, b"old"), (3, b"gone")]);
    let again = Batch::default()
        .node(ROOT, DIR, 0, None)
        .new_file(2, b"renamed", b"newer");
    lab.send(2, None, &again).unwrap();
    let target = byteback_store::read::TreeTarget::Root;
    let names = |seq| {
        let page = lab.store.tree("f", Some(seq), &target, None, 10).unwrap();
        page.entries
            .into_iter()
            .map(|(name, _)| String::from_utf8(name).unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (names(1), names(2)),
        (vec!["file2".to_owned(), "file3".to_owned()], vec!["renamed".to_owned()])
    );
    assert_eq!(
        (lab.read(2, 1).unwrap(), lab.read(2, 2).unwrap()),
        (b"old".to_vec(), b"newer".to_vec())
    );
    assert_eq!(lab.store.folder("f").unwrap().entries, 1);
    // Another root, and a file whose old contents no longer count.
    let other_root = Batch::default().node(FileId(9), DIR, 0, None);
    let mut part = lab.part(3);
    let mut manifest = lab.manifest(3, None);
    manifest.root = FileId(9);
    part.manifest(manifest).unwrap();
    other_root
        .node(FileId(2), NodeKind::File, 0, None)
        .entry(FileId(9), b"x", Some(2))
        .feed(&mut part)
        .unwrap();
    lab.store.commit(part, 0).unwrap();
    assert_eq!(
        (lab.read(2, 2).unwrap(), lab.read(2, 3).unwrap()),
        (b"newer".to_vec(), Vec::new())
    );
    assert_eq!(names(1).len(), 2);
    assert_eq!(names(3), ["x"]);
}
