//! Parsing what the system tells about mounts.

use super::*;

#[test]
fn a_number_that_another_mount_got_is_not_the_mounts() {
    let table = b"36 35 0:31 / /a\\040b rw - fuse.byteback byteback:/a rw\n361 35 0:32 / /c rw - tmpfs tmpfs rw\n";
    let is_at = |id: u64, point: &str| is_listed(table, MountId(id), Some(Path::new(point)));
    assert!(is_at(36, "/a b") && is_at(361, "/c"));
    assert!(!is_at(36, "/c") && !is_at(3, "/a b"));
    assert!(is_listed(table, MountId(36), None) && !is_listed(table, MountId(3), None));
}

#[test]
fn commas_cannot_begin_an_option() {
    assert_eq!(escape_option(OsStr::new(r"/a,b\c")), OsStr::new(r"/a\,b\\c"));
}

#[test]
fn a_mount_id_is_told_for_any_directory() {
    let root = mount_id(Path::new("/proc")).unwrap();
    assert_ne!(root, mount_id(Path::new("/dev")).unwrap());
    assert_eq!(type_at(Path::new("/proc")).as_deref(), Some("proc"));
    assert_eq!(type_at(Path::new("/proc/self")), None);
}
