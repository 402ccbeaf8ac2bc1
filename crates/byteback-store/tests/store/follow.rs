//! Contents that follow those of another file: their cost, what is refused, and the fate of both.

use crate::cost::{depth, fragmented};
use crate::lab::{Batch, Lab, ROOT, patch};
use crate::sums::{by_sums, cost_of, is_right, sql};
use byteback_delta::leaves::LeafKind;
use byteback_host::random::{SplitMix64, noise};
use byteback_model::{ContentBase, FileId, Manifest, NodeKind};
use byteback_store::{StoreError, StoreLimits};
use std::ops::ControlFlow;

const MIB: u64 = 1024 * 1024;
const GIB: u64 = 1024 * MIB;

fn root() -> Batch {
    Batch::default().node(ROOT, NodeKind::Directory, 0, None)
}

#[test]
fn copy_of_four_gibibytes_costs_few_rows_and_a_change_itself() {
    let lab = Lab::new(64 * MIB);
    fragmented(&lab);
    for (counter, id, of, change) in [(2, 20, 2, None), (3, 30, 20, Some(noise(5, MIB as usize)))] {
        let (disk, work) = (lab.disk.counters(), lab.catalog.work());
        let places: Vec<(u64, &[u8])> = change.iter().map(|bytes| (GIB + 3, &bytes[..])).collect();
        let batch = root().following(id, b"image", of, 4 * GIB, &places);
        let applied = lab.replace(counter, counter - 1, &batch).unwrap();
        let (disk_after, work_after) = (lab.disk.counters(), lab.catalog.work());
        let sent = change.as_ref().map_or(0, Vec::len) as u64;
        assert!(applied.stored_bytes <= sent + sent / 100);
        let written = disk_after.bytes_written - disk.bytes_written;
        assert!(written <= sent + sent / 100, "{written} bytes of segments");
        assert_eq!(disk_after.bytes_read, disk.bytes_read, "no literal is read");
        let pages = work_after.page_bytes_written - work.page_bytes_written;
        assert!(pages < 1000, "{pages} bytes of pages");
        let rows = work_after.rows_written - work.rows_written;
        assert!(rows < 20, "{rows} rows");
    }
    let piece = |id, seq, at| {
        let range = byteback_extents::ByteRange::from_offset_len(at, 64).unwrap();
        lab.read_range(id, seq, Some(range)).unwrap()
    };
    for (id, seq) in [(2, 1), (20, 2), (30, 3)] {
        assert_eq!(piece(id, seq, 77_000 * 40_000), noise(1, 64));
    }
    assert_eq!(piece(30, 3, GIB + 3), noise(5, 64));
    assert_eq!(piece(20, 2, GIB + 3), piece(2, 1, GIB + 3));
}

#[test]
fn folder_remade_a_hundred_times_is_read_from_few_rows() {
    let lab = Lab::new(64 * MIB);
    let mut expected = noise(1, 100_000);
    lab.first(&[(10, &expected)]);
    let mut rng = SplitMix64::new(4);
    let mut deepest = 0;
    let mut moments = vec![expected.clone()];
    for seq in 1..100u64 {
        let at = rng.below(90_000);
        let bytes = noise(seq, 1 + rng.below(500) as usize);
        expected[at as usize..][..bytes.len()].copy_from_slice(&bytes);
        let (id, of) = (u128::from(seq) + 10, u128::from(seq) + 9);
        let batch = root().following(id, b"file10", of, 100_000, &[(at, &bytes)]);
        lab.replace(seq + 1, seq, &batch).unwrap();
        deepest = deepest.max(depth(&lab, id));
        moments.push(expected.clone());
    }
    // A hundred layers of some extents: tiers 0 to 2.
    assert!((2..=7 * 3).contains(&deepest), "{deepest} rows");
    for (seq, expected) in (0..).zip(&moments) {
        assert!(lab.read(seq + 10, seq as u64 + 1).unwrap() == *expected);
    }
}

#[test]
fn store_refuses_impossible_follows_and_changes_nothing() {
    let lab = Lab::new(1 << 20);
    let bytes = noise(1, 5000);
    lab.first(&[(2, &bytes), (3, b"")]);
    lab.send(2, Some(1), &Batch::default().new_file(4, b"later", b"later"))
        .unwrap();
    let following = |of: u128| root().following(9, b"n", of, 5000, &[]);
    let invalid = |what: &str, result: Result<_, StoreError>| {
        assert!(matches!(result, Err(StoreError::InvalidBatch(_))), "{what}: {result:?}");
        assert_eq!(lab.store.folder("f").unwrap().seq, 2);
    };
    invalid("without what is replaced", lab.send(3, None, &following(2)));
    invalid("a file that nobody knows", lab.replace(3, 2, &following(77)));
    invalid("a file of the same batch", lab.replace(3, 2, &following(9)));
    invalid("a directory", lab.replace(3, 2, &following(1)));
    invalid(
        "of another length",
        lab.replace(3, 2, &root().following(9, b"n", 4, 5000, &[])),
    );
    invalid("an empty one", lab.replace(3, 2, &following(3)));
    invalid("a moment to come", lab.replace(3, 3, &following(2)));
    let mut part = lab.part(3);
    let both = Manifest {
        replaces: Some(2),
        ..lab.manifest(3, Some(2))
    };
    part.manifest(both).unwrap();
    Batch::default().feed(&mut part).unwrap();
    invalid("both", lab.store.commit(part, 0));
    // With copies, the length has to be right; without, the base is cut or zero-filled.
    for (from, expected) in [(4000_u64, &bytes[..4000]), (5000, &bytes[..])] {
        let mut content = expected.to_vec();
        content.resize(6000, 0);
        content[5500] = b'x';
        let (id, seq) = (u128::from(from), lab.store.folder("f").unwrap().seq);
        let batch = root()
            .file(id, 6000, 1, ContentBase::Of(FileId(2)))
            .entry(ROOT, b"n", Some(id))
            .delta(id, patch(from, 6000, &[(5500, b"x")]));
        let applied = lab.replace(from, seq, &batch).unwrap();
        assert_eq!(lab.read(id, applied.seq).unwrap(), content);
    }
}

#[test]
fn replacement_of_a_missing_name_undoes_no_other_change() {
    let lab = Lab::new(1 << 20);
    lab.first(&[(2, &noise(1, 5000))]);
    lab.send(2, Some(1), &Batch::default().new_file(4, b"later", b"later"))
        .unwrap();
    let batch = root().following(9, b"n", 2, 5000, &[]);
    match lab.replace(3, 1, &batch) {
        Err(StoreError::Conflict { conflicts }) => {
            assert_eq!((conflicts.len(), conflicts[0].id, conflicts[0].seq), (1, ROOT, 2));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(lab.read(4, 2).unwrap(), b"later");
    assert_eq!(lab.replace(3, 2, &batch).unwrap().seq, 3);
    // A repeated batch gets the same result.
    let again = lab.replace(3, 2, &batch).unwrap();
    assert!(again.repeated && again.seq == 3);
}

#[test]
fn shared_rows_count_as_records() {
    let limits = StoreLimits {
        records_max: 50,
        ..StoreLimits::default()
    };
    let lab = Lab::with(byteback_host::sim::SimDisk::new(1), 1 << 20, limits);
    lab.first(&[(2, &noise(1, 5000))]);
    for counter in 2..8 {
        let place = noise(counter, 3);
        lab.send(
            counter,
            Some(counter - 1),
            &Batch::default().patch(2, 5000, &[(counter * 9, &place)]),
        )
        .unwrap();
    }
    let rows = depth(&lab, 2);
    assert!(rows > 5, "{rows}");
    // Manifest, root, end, and for each file its node, its entry and the rows.
    let fit = (50 - 3) / (2 + rows);
    let with = |files: u64| {
        (0..files).fold(root(), |batch, file| {
            let name = format!("n{file}");
            batch.following(u128::from(file) + 10, name.as_bytes(), 2, 5000, &[])
        })
    };
    assert!(matches!(
        lab.replace(8, 7, &with(fit + 1)),
        Err(StoreError::TooLarge(_))
    ));
    assert_eq!(lab.replace(8, 7, &with(fit)).unwrap().seq, 8);
}

#[test]
fn shared_extents_outlive_the_file_they_came_from() {
    // Nothing removes history yet. Code that will must leave the rows whose pages others share, or
    // the engine refuses.
    let lab = Lab::new(2000);
    let bytes = noise(1, 9000);
    lab.first(&[(2, &bytes), (3, &noise(2, 9000))]);
    lab.replace(2, 1, &root().following(20, b"file2", 2, 9000, &[(7, b"x")]))
        .unwrap();
    let dir = lab.dir.clone();
    let of = |id: u128| {
        let lowest = lab.read(id, 2).unwrap();
        assert_eq!(lowest.len(), 9000);
        let query = "SELECT min(l.id) FROM layer l JOIN node n ON n.id = l.node WHERE n.file = ?1";
        let row: i64 = sql(dir.path())
            .query_row(query, [id.to_be_bytes()], |row| row.get(0))
            .unwrap();
        row
    };
    let (shared, alone) = (of(2), of(3));
    let catalog = sql(dir.path());
    catalog.execute_batch("PRAGMA foreign_keys=ON").unwrap();
    let forget = |catalog: &rusqlite::Connection, layer: i64| {
        let forget = format!(
            "BEGIN; DELETE FROM layer_page WHERE layer = {layer}; DELETE FROM layer_segment WHERE layer = {layer}; \
             DELETE FROM layer WHERE id = {layer}; COMMIT;"
        );
        let done = catalog.execute_batch(&forget);
        if done.is_err() {
            catalog.execute_batch("ROLLBACK").unwrap();
        }
        done
    };
    forget(&catalog, shared).unwrap_err();
    forget(&catalog, alone).unwrap();
    drop(catalog);
    assert_eq!(lab.store.collect().unwrap().segments, 1, "the other file's");
    let mut expected = bytes.clone();
    expected[7] = b'x';
    assert_eq!(lab.read(20, 2).unwrap(), expected);
    assert_eq!(lab.read(2, 1).unwrap(), bytes);
    // Merged rows have pages of their own, which refer to the same segments: then nothing is shared
    // any more.
    for seq in 2..10u64 {
        expected[seq as usize * 100] = seq as u8;
        let batch = Batch::default().patch(20, 9000, &[(seq * 100, &[seq as u8])]);
        lab.send(seq + 1, Some(seq), &batch).unwrap();
    }
    assert!(depth(&lab, 20) < 8);
    let catalog = sql(dir.path());
    catalog.execute_batch("PRAGMA foreign_keys=ON").unwrap();
    let shares = "DELETE FROM layer WHERE pages IS NOT NULL";
    assert_eq!(catalog.execute(shares, []).unwrap(), 1);
    forget(&catalog, shared).unwrap();
    drop(catalog);
    lab.store.collect().unwrap();
    assert_eq!(lab.read(20, 10).unwrap(), expected);
    let verified = lab.store.verify("f", None, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((verified.files, verified.damaged_files), (1, 0));
}

#[test]
fn proof_uses_sums_of_the_followed_file_and_both_stay_right() {
    let lab = Lab::new(64 * MIB);
    let kind = LeafKind::Blake3;
    let len = 6 * MIB as usize;
    let mut content = noise(1, len);
    lab.first(&[(2, &content)]);
    assert!(is_right(&lab, FileId(2), 1, kind, &content), "sums are kept now");
    let old = content.clone();
    content[5_000_000] ^= 1;
    let change = [content[5_000_000]];
    let batch = |proof| {
        let mut part = lab.part(2);
        part.manifest(Manifest {
            replaces: Some(1),
            ..lab.manifest(2, None)
        })
        .unwrap();
        let mut batch = root().following(20, b"file2", 2, len as u64, &[(5_000_000, &change)]);
        batch.totals = Some(byteback_model::Totals {
            nodes: 2,
            entries: 1,
            deltas: 1,
            proofs: 1,
            directory_times: 0,
        });
        part.proof(FileId(20), by_sums(kind, proof)).unwrap();
        batch.feed(&mut part).unwrap();
        lab.store.commit(part, 0)
    };
    match batch(&old) {
        Err(StoreError::ContentMismatch { files }) => assert_eq!(files, [FileId(20)]),
        other => panic!("{other:?}"),
    }
    assert!(
        is_right(&lab, FileId(2), 1, kind, &old),
        "made anew: they might have been the reason"
    );
    let cost = cost_of(&lab, || assert_eq!(batch(&content).unwrap().seq, 2));
    assert_eq!(cost.proof_read_bytes, 4096, "the leaf that changed");
    assert!(is_right(&lab, FileId(20), 2, kind, &content));
    assert!(is_right(&lab, FileId(2), 1, kind, &old));
    assert!(lab.read(20, 2).unwrap() == content && lab.read(2, 1).unwrap() == old);
    // From the second time on the sums are the file's own.
    let again = cost_of(&lab, || assert!(is_right(&lab, FileId(20), 2, kind, &content)));
    assert_eq!(again.signature_read_bytes, 0);
}

#[test]
fn file_without_contents_or_the_file_itself_can_be_followed() {
    let lab = Lab::new(1 << 20);
    let bytes = noise(1, 5000);
    let batch = root()
        .node(FileId(3), NodeKind::File, 0, None)
        .entry(ROOT, b"untouched", Some(3))
        .new_file(4, b"four", &bytes)
        .new_file(5, b"five", b"five");
    lab.send(1, None, &batch).unwrap();
    let batch = root()
        .following(3, b"untouched", 3, 0, &[])
        .following(10, b"ten", 3, 0, &[])
        .file(11, 4, 1, ContentBase::Of(FileId(3)))
        .entry(ROOT, b"eleven", Some(11))
        .delta(11, patch(0, 4, &[(0, b"some")]))
        // A file's own former contents count only if it follows them.
        .following(4, b"four", 4, 5000, &[(1, b"x")])
        .file(5, 4, 1, ContentBase::Of(FileId(3)))
        .entry(ROOT, b"five", Some(5))
        .delta(5, patch(4, 4, &[(0, b"w")]));
    assert_eq!(lab.replace(2, 1, &batch).unwrap().seq, 2);
    let mut changed = bytes.clone();
    changed[1] = b'x';
    for (id, expected) in [(3, &b""[..]), (10, b""), (11, b"some"), (4, &changed), (5, b"w\0\0\0")] {
        assert_eq!(lab.read(id, 2).unwrap(), expected, "file {id}");
    }
    // Two files take each other's contents, and one keeps its own.
    let batch = root()
        .following(4, b"four", 11, 4, &[])
        .following(11, b"eleven", 4, 5000, &[])
        .following(5, b"five", 5, 4, &[]);
    assert_eq!(lab.replace(3, 2, &batch).unwrap().seq, 3);
    assert_eq!(lab.read(4, 3).unwrap(), b"some");
    assert_eq!(lab.read(11, 3).unwrap(), changed);
    assert_eq!(lab.read(5, 3).unwrap(), b"w\0\0\0");
    assert_eq!(lab.read(4, 2).unwrap(), changed);
    assert_eq!(lab.read(4, 1).unwrap(), bytes);
}
