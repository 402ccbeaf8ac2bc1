use std::os::unix::fs::symlink;

use super::*;

#[test]
fn files_are_found_in_order_within_limits() {
    let root = tempfile::tempdir().unwrap();
    for (name, len) in [("b", 10), ("a/x", 10), ("c", 100), ("d", 10)] {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, vec![0; len]).unwrap();
    }
    symlink("b", root.path().join("link")).unwrap();
    let names = |bytes, count| -> Vec<String> {
        let files = readable_files(&[root.path()], bytes, count).unwrap();
        files
            .iter()
            .map(|file| file.path.strip_prefix(root.path()).unwrap().display().to_string())
            .collect()
    };
    assert_eq!(names(1000, 10), ["a/x", "b", "c", "d"]);
    assert_eq!(names(30, 10), ["a/x", "b", "d"]);
    assert_eq!(names(1000, 2), ["a/x", "b"]);
}
