//! The meaning of operands, in any order.

use super::*;

/// Calls `choose` with the snapshots as texts.
fn chosen(
    operands: &[&str],
    dir: Option<&str>,
    snapshots_max: usize,
) -> Result<(Vec<String>, Option<PathBuf>), String> {
    let operands: Vec<OsString> = operands.iter().map(OsString::from).collect();
    let chosen = choose(operands.iter(), dir.map(PathBuf::from), snapshots_max)?;
    let text = |snapshot: &SnapshotPath| format!("{}:{}", snapshot.snapshot, snapshot.path_text());
    Ok((chosen.snapshots.iter().map(text).collect(), chosen.dir))
}

#[test]
fn snapshots_and_the_folder_come_in_any_order() {
    let dir = tempfile::tempdir().unwrap();
    let name = dir.path().to_str().unwrap();
    let folder = Some(dir.path().to_owned());
    let latest = vec!["latest:etc".to_owned()];
    assert_eq!(
        chosen(&["latest:etc", name], None, 1),
        Ok((latest.clone(), folder.clone()))
    );
    assert_eq!(
        chosen(&[name, "latest:etc"], None, 1),
        Ok((latest.clone(), folder.clone()))
    );
    assert_eq!(chosen(&["latest:etc"], Some(name), 1), Ok((latest, folder.clone())));
    assert_eq!(chosen(&[name], None, 1), Ok((Vec::new(), folder.clone())));
    let two = vec!["3:".to_owned(), "latest~1:".to_owned()];
    assert_eq!(chosen(&["3", name, "latest~1"], None, 2), Ok((two, folder)));
    assert_eq!(chosen(&[], None, 1), Ok((Vec::new(), None)));
}

#[test]
fn operands_that_are_nothing_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let name = dir.path().to_str().unwrap();
    let neither = chosen(&["lates"], None, 1).unwrap_err();
    assert!(neither.contains("'lates' is neither a snapshot"), "{neither}");
    let two = chosen(&["1", "2"], None, 1).unwrap_err();
    assert!(two.contains("too many snapshots: '2'"), "{two}");
    for (operands, named) in [(vec![name, name], None), (vec![name], Some(name))] {
        let folders = chosen(&operands, named, 1).unwrap_err();
        assert!(folders.contains("too many folders"), "{folders}");
    }
}
