use super::SqliteCatalog;
use crate::catalog::Catalog as _;
use byteback_model::SnapshotLabel;
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
