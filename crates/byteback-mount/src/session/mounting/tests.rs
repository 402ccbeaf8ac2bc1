//! Parsing what the system tells about mounts.

use super::*;

#[test]
fn octal_escapes_of_mountinfo() {
    assert_eq!(unescape(br"/a\040b\134c"), b"/a b\\c");
    assert_eq!(unescape(br"/a\04"), br"/a\04");
    assert_eq!(unescape(br"\\"), br"\\");
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
