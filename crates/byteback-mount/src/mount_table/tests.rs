//! Lines of the kernel's table.

use super::*;

#[test]
fn our_mounts_are_found_among_others() {
    let table = b"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n\
        40 22 0:50 / /mnt/with\\040space rw,nosuid shared:2 master:3 - fuse.byteback byteback:/srv/a\\040b rw\n\
        41 22 0:51 / /mnt/other rw - fuse.sshfs host: rw\n\
        42 22 0:52 / /mnt/back\\134slash rw - fuse.byteback byteback:/srv/a\\040b rw\n";
    let mounts = parse(table);
    assert!(
        mounts.iter().all(|mount| mount.directory == Path::new("/srv/a b")),
        "{mounts:?}"
    );
    let points: Vec<_> = mounts.into_iter().map(|mount| mount.point).collect();
    assert_eq!(points, [Path::new("/mnt/with space"), Path::new("/mnt/back\\slash")]);
}

#[test]
fn damaged_lines_are_passed_by() {
    for line in [
        "",
        "1 2 3",
        "1 2 3 / /x rw",
        "1 2 3 / /x rw -",
        "\\",
        "1 2 3 / \\04 rw - fuse.byteback",
    ] {
        let _ = parse(line.as_bytes());
    }
    for text in [&b"a\\0"[..], b"\\777", b"/a\\04", b"\\\\"] {
        assert_eq!(unescape(text), text);
    }
    assert_eq!(unescape(br"/a\040b\134c"), b"/a b\\c");
}

#[test]
fn what_hides_a_part_of_a_folder_is_found() {
    let table = b"\
1 0 8:1 / / rw - ext4 /dev/sda rw
2 1 0:5 / /a rw - fuse.byteback byteback:/a rw
3 1 0:6 / /a/tmp rw - tmpfs tmpfs rw
4 3 0:7 / /a/tmp/deeper rw - tmpfs tmpfs rw
5 2 0:8 / /a/later rw - fuse.byteback byteback:/a/later rw
6 1 0:9 / /a/earlier rw - fuse.byteback byteback:/a/earlier rw
7 2 0:10 / /a/shown rw - fuse.byteback byteback:/elsewhere rw
8 1 0:11 / /ab rw - tmpfs tmpfs rw
";
    let found = parse_hiding(table, Path::new("/a"));
    assert_eq!(found, ["/a/earlier", "/a/shown", "/a/tmp"].map(PathBuf::from));
    assert_eq!(parse_hiding(table, Path::new("/b")), Vec::<PathBuf>::new());
}
