//! Valid and invalid names of snapshots.

use super::*;

#[test]
fn texts_name_snapshots_and_come_back() {
    for (text, spec) in [
        ("latest", SnapshotSpec::Latest(0)),
        ("latest~3", SnapshotSpec::Latest(3)),
        ("17", SnapshotSpec::Id(17)),
    ] {
        assert_eq!(text.parse(), Ok(spec));
        assert_eq!(spec.to_string(), text);
    }
    for text in [
        "",
        "latest~",
        "latest~-1",
        "latest~+1",
        "newest",
        "+7",
        "-7",
        "7 ",
        "99999999999999999999",
    ] {
        assert!(text.parse::<SnapshotSpec>().is_err(), "{text:?} names a snapshot");
    }
}
