//! Error numbers of refused changes.

use std::io;

use byteback_host::errno_of;
use byteback_oplog::LogError;

use super::TrackedError;

#[test]
fn log_without_room_is_a_full_disk_to_a_program() {
    for (number, expected) in [
        (libc::ENOSPC, libc::ENOSPC),
        (libc::EDQUOT, libc::EDQUOT),
        (libc::EROFS, libc::EIO),
        (libc::EACCES, libc::EIO),
    ] {
        let refused = || {
            TrackedError::Log(LogError::File {
                file: "intents",
                source: io::Error::from_raw_os_error(number),
            })
        };
        assert_eq!(refused().errno(), expected);
        let error = io::Error::from(refused());
        assert_eq!(errno_of(&error), Some(expected));
        assert!(error.to_string().contains("intents"), "{error}");
    }
}
