//! Snapshots with and without a path.

use super::*;

#[test]
fn snapshot_path_follows_the_first_colon_and_holds_any_bytes() {
    let parsed = |text: &[u8]| SnapshotPath::parse(OsStr::from_bytes(text)).unwrap();
    assert_eq!(
        parsed(b"latest"),
        SnapshotPath {
            snapshot: SnapshotSpec::Latest(0),
            path: Vec::new()
        }
    );
    assert_eq!(
        parsed(b"latest~2:a:b"),
        SnapshotPath {
            snapshot: SnapshotSpec::Latest(2),
            path: b"a:b".to_vec()
        }
    );
    assert_eq!(parsed(b"7:\xff").path, b"\xff");
    assert!(
        SnapshotPath::parse(OsStr::new("etc/passwd"))
            .unwrap_err()
            .contains("latest~1")
    );
}
