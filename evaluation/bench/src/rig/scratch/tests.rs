use super::*;

#[test]
fn mount_points_are_found_innermost_first_and_unescaped() {
    let table = b"22 1 0:20 / / rw - ext4 a rw\n\
        30 22 0:31 / /t/bb-1/data rw - fuse a rw\n\
        31 22 0:32 / /t/bb-1/data/a\\040b rw - fuse b rw\n\
        32 22 0:33 / /t/bb-10/data rw - fuse c rw\n";
    let found = parse_mounts(table, Path::new("/t/bb-1"));
    assert_eq!(
        found,
        [PathBuf::from("/t/bb-1/data/a b"), PathBuf::from("/t/bb-1/data")]
    );
    assert_eq!(parse_mounts(table, Path::new("/t/none")), Vec::<PathBuf>::new());
    assert_eq!(unescape(b"a\\134b\\01"), b"a\\b\\01");
}

#[test]
fn the_parent_of_a_process_is_known() {
    assert_eq!(parent(getpid()), rustix::process::getppid());
}

#[test]
fn a_folder_that_must_not_be_written_to_is_removed_all_the_same() {
    use std::os::unix::fs::PermissionsExt;
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("closed");
    fs::create_dir_all(path.join("deeper")).unwrap();
    fs::write(path.join("deeper/file"), b"x").unwrap();
    fs::set_permissions(path.join("deeper"), fs::Permissions::from_mode(0o500)).unwrap();
    remove(&path).unwrap();
    assert!(!path.exists());
}

#[test]
fn a_full_place_is_refused_before_anything_is_made() {
    let parent = tempfile::tempdir().unwrap();
    let error = Scratch::create(parent.path(), u64::MAX).unwrap_err().to_string();
    assert!(error.contains("TMPDIR"), "{error}");
    assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
}
