use super::*;

#[test]
fn points_of_a_device_are_read_from_a_table() {
    let table = b"36 35 0:58 / /a\\040b rw - fuse.byteback /d rw\n\
        37 35 0:5 / /other rw - tmpfs t rw\n\
        38 35 0:58 /sub /mnt rw,noatime master:1 - fuse.byteback /d rw\nbroken 0:58\n";
    assert_eq!(points_in(table, "0:58"), [PathBuf::from("/a b"), PathBuf::from("/mnt")]);
    assert!(points_in(table, "0:580").is_empty());
}
