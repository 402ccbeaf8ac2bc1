//! The part of the watcher that can be tried without dying.

use super::*;

#[test]
fn mount_ids_are_parsed_without_allocation() {
    assert_eq!(
        parse_mount_id(b"pos:\t0\nflags:\t012\nmnt_id:\t417\nino:\t2\n"),
        Some(417)
    );
    assert_eq!(parse_mount_id(b"mnt_id:\t\n"), None);
    assert_eq!(parse_mount_id(b"mnt_id:\t99999999999999999999999"), None);
    assert_eq!(parse_mount_id(b""), None);
}

#[test]
fn abort_path_of_a_connection_is_made_without_allocation() {
    for connection in [0, 7, 10, 54, 1_048_575, u32::MAX] {
        let path = abort_path(connection);
        let path = CStr::from_bytes_until_nul(&path).unwrap().to_str().unwrap();
        assert_eq!(path, format!("/sys/fs/fuse/connections/{connection}/abort"));
    }
}
