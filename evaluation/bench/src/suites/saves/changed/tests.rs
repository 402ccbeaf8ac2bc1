use super::*;

#[test]
fn changed_files_are_named_by_kind_of_change() {
    let [old, new] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    for (name, before, after) in [
        ("same", Some("bytes"), Some("bytes")),
        ("other", Some("bytes"), Some("Bytes")),
        ("longer", Some("bytes"), Some("bytes and more")),
        ("deep/new", None, Some("bytes")),
        ("deep/gone", Some("bytes"), None),
    ] {
        for (folder, content) in [(&old, before), (&new, after)] {
            fs::create_dir_all(folder.path().join("deep")).unwrap();
            if let Some(content) = content {
                fs::write(folder.path().join(name), content).unwrap();
            }
        }
    }
    let all = between(old.path(), new.path()).unwrap();
    let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
    let expected = Changed {
        changed: paths(&["longer", "other"]),
        added: paths(&["deep/new"]),
        removed: paths(&["deep/gone"]),
    };
    assert_eq!(all, expected);
    assert_eq!(all.files(), 3);
    assert!(between(new.path(), new.path()).unwrap().is_empty());
}

#[test]
fn changed_files_do_not_include_links_and_directories() {
    let [old, new] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    fs::create_dir(new.path().join("empty")).unwrap();
    std::os::unix::fs::symlink("nowhere", new.path().join("link")).unwrap();
    assert!(between(old.path(), new.path()).unwrap().is_empty());
}

#[test]
fn changed_bytes_behind_the_first_block_are_seen() {
    let folder = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
    let mut bytes = vec![7; BLOCK_BYTES as usize + 10];
    fs::write(&one, &bytes).unwrap();
    fs::write(&other, &bytes).unwrap();
    assert!(are_equal(&one, &other).unwrap());
    bytes[BLOCK_BYTES as usize + 3] = 8;
    fs::write(&other, &bytes).unwrap();
    assert!(!are_equal(&one, &other).unwrap());
}
