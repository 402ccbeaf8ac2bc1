use super::{SqliteCatalog, schema};
use crate::catalog::Catalog as _;
use crate::devices::FolderAccess;
use crate::error::StoreError;
use crate::tests::store_with;
use crate::{Store, StoreLimits};
use byteback_host::random::noise;
use byteback_model::{FileId, SnapshotLabel};
use rusqlite::{Connection, StatementStatus};
use std::path::Path;

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

/// A catalog as a program of version 1 made it, with the rows of a present catalog.
fn of_version_1(path: &Path, rows_of: &Path) {
    let old = Connection::open(path).unwrap();
    old.execute_batch(&format!(
        "PRAGMA journal_mode=WAL; BEGIN; {} {} PRAGMA application_id={}; PRAGMA user_version=1; COMMIT;",
        schema::CREATE,
        schema::CACHE,
        schema::APPLICATION_ID
    ))
    .unwrap();
    old.execute_batch("PRAGMA foreign_keys=OFF").unwrap();
    old.execute("ATTACH ?1 AS new", [rows_of.to_str().unwrap()]).unwrap();
    let mut statement = old
        .prepare(
            "SELECT name FROM main.sqlite_schema WHERE type = 'table' AND name NOT IN ('layer', 'device', 'join_token') AND name NOT LIKE 'sqlite_%'",
        )
        .unwrap();
    let tables: Vec<String> = statement
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    for table in tables {
        // Newer versions may have columns that version 1 lacks, in another order.
        let mut statement = old.prepare("SELECT name FROM pragma_table_info(?1, 'main')").unwrap();
        let columns: Vec<String> = statement
            .query_map([&table], |row| row.get(0))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        let columns = columns.join(", ");
        old.execute_batch(&format!(
            "INSERT INTO main.{table} ({columns}) SELECT {columns} FROM new.{table}"
        ))
        .unwrap();
    }
    old.execute_batch(
        "INSERT INTO main.layer SELECT id, node, last, first, base_len, new_len, extents, resets, barrier FROM new.layer",
    )
    .unwrap();
    old.execute_batch("INSERT INTO main.device SELECT id, name, token_hash, created_ns FROM new.device")
        .unwrap();
    old.execute(
        "INSERT INTO main.join_token VALUES (?1, 1, ?2)",
        (crate::token::hash(JOIN_TOKEN), i64::MAX),
    )
    .unwrap();
}

/// An unused join token from a program of version 1 or 2.
const JOIN_TOKEN: &str = "bbj_0123456789012345678901234567890123456789012";

fn schema_of(path: &Path) -> (i64, Vec<String>) {
    let catalog = Connection::open(path).unwrap();
    let version = catalog.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    let mut statement = catalog
        .prepare("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name")
        .unwrap();
    let rows = statement.query_map([], |row| row.get(0)).unwrap();
    (version, rows.map(Result::unwrap).collect())
}

#[test]
fn catalog_of_version_1_is_upgraded_with_all_that_it_has() {
    let content = noise(1, 300_000);
    let (present, store) = store_with(&content);
    drop(store);

    let old = tempfile::tempdir().unwrap();
    let segments = old.path().join("segments");
    std::fs::create_dir(&segments).unwrap();
    for entry in std::fs::read_dir(present.path().join("segments")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), segments.join(entry.file_name())).unwrap();
    }
    let catalogs = [old.path(), present.path()].map(|dir| dir.join("catalog.sqlite"));
    of_version_1(&catalogs[0], &catalogs[1]);
    assert_eq!(schema_of(&catalogs[0]).0, 1);
    for _ in 0..2 {
        let store = Store::open(old.path(), StoreLimits::default()).unwrap();
        let mut reader = store.content("f", FileId(2), None, None).unwrap();
        let mut read = Vec::new();
        reader.next_chunk(&mut read, content.len() + 1).unwrap();
        assert!(read == content);
        assert!(store.roster().device(1).unwrap().manages, "as it could before");
        drop(store);
        assert_eq!(schema_of(&catalogs[0]), schema_of(&catalogs[1]));
    }
}

#[test]
fn devices_and_join_tokens_of_version_2_go_on_working() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog.sqlite");
    let device = "bbd_0123456789012345678901234567890123456789012";
    let old = Connection::open(&path).unwrap();
    old.execute_batch(&format!(
        "PRAGMA journal_mode=WAL; BEGIN; {} {} {} PRAGMA application_id={}; PRAGMA user_version=2; COMMIT;",
        schema::CREATE,
        schema::SINCE_2,
        schema::CACHE,
        schema::APPLICATION_ID
    ))
    .unwrap();
    old.execute(
        "INSERT INTO device (name, token_hash, created_ns) VALUES ('laptop', ?1, 5)",
        [crate::token::hash(device)],
    )
    .unwrap();
    for (token, expires_ns) in [(JOIN_TOKEN, i64::MAX), ("bbj_late", 7)] {
        old.execute(
            "INSERT INTO join_token VALUES (?1, 1, ?2)",
            (crate::token::hash(token), expires_ns),
        )
        .unwrap();
    }
    drop(old);
    let store = Store::open(dir.path(), StoreLimits::default()).unwrap();
    let pass = store.roster().authenticate(device, Some("any")).unwrap().unwrap();
    assert!(pass.manages && pass.folder == FolderAccess::Writes && pass.is_to_be_noted);
    let late = store.roster().join("bbj_late", "x", None);
    assert!(matches!(late, Err(StoreError::JoinTokenExpired)));
    let joined = store.roster().join(JOIN_TOKEN, "desktop", None).unwrap();
    assert_eq!(joined.folder, None);
    let again = store.roster().join(JOIN_TOKEN, "x", None);
    assert!(matches!(again, Err(StoreError::JoinTokenUsed)));
    assert!(
        Connection::open(&path)
            .unwrap()
            .prepare("SELECT * FROM join_token")
            .is_err(),
        "what is nobody's any more"
    );
}

#[test]
fn snapshots_of_version_3_keep_their_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog.sqlite");
    let old = Connection::open(&path).unwrap();
    old.execute_batch(&format!(
        "PRAGMA journal_mode=WAL; BEGIN; {} {} {} {} PRAGMA application_id={}; PRAGMA user_version=3;
         INSERT INTO folder (name, seq, entries, snapshots, stored_bytes, created_ns)
           VALUES ('mail', 9, 0, 1, 0, 1), ('music', 9, 0, 2, 0, 1), ('empty', 9, 0, 0, 0, 1);
         INSERT INTO snapshot (folder, seq, time_ns, host, path, tags)
           VALUES (2, 4, 44, x'', x'', x''), (1, 5, 55, x'', x'', x''), (2, 6, 66, x'', x'', x'');
         COMMIT;",
        schema::CREATE,
        schema::SINCE_2,
        schema::SINCE_3,
        schema::CACHE,
        schema::APPLICATION_ID
    ))
    .unwrap();
    drop(old);
    let store = Store::open(dir.path(), StoreLimits::default()).unwrap();
    let numbers = |folder: &str| -> Vec<(u64, i64)> {
        let found = store.snapshots(folder, 0, 10).unwrap();
        found
            .iter()
            .map(|snapshot| (snapshot.id, snapshot.label.time_ns))
            .collect()
    };
    assert_eq!(numbers("mail"), [(2, 55)]);
    assert_eq!(numbers("music"), [(1, 44), (3, 66)]);
    for (folder, next) in [("mail", 3), ("music", 4), ("empty", 1)] {
        let made = store.create_snapshot(folder, None, SnapshotLabel::default()).unwrap();
        assert_eq!(made.id, next, "{folder}");
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
