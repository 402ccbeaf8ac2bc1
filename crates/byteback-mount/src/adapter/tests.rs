//! Translations that a wrong bit would spoil silently.

use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::makedev;

use super::answer::errno;
use super::values::{encode_device, system_time, timespec_of};
use super::*;
use crate::tracked::TrackedError;

#[test]
fn device_numbers_survive() {
    for (major, minor) in [(0, 0), (1, 3), (8, 17), (259, 0x1_2345), (0xfff, 0xf_ffff)] {
        assert_eq!(
            decode_device(encode_device(makedev(major, minor))),
            makedev(major, minor)
        );
    }
}

#[test]
fn times_before_1970_are_what_the_program_gave() {
    // 0.2 seconds before 1970 is (-1 s, +800 ms); the library delivers it as 1.8 seconds before.
    let delivered = UNIX_EPOCH - Duration::new(1, 800_000_000);
    let meant = timespec_of(delivered);
    assert_eq!((meant.tv_sec, meant.tv_nsec), (-1, 800_000_000));
    let after = timespec_of(UNIX_EPOCH + Duration::new(5, 7));
    assert_eq!((after.tv_sec, after.tv_nsec), (5, 7));
}

#[test]
fn times_are_told_exactly() {
    assert_eq!(system_time(-200_000_000), UNIX_EPOCH - Duration::from_millis(200));
    assert_eq!(system_time(i64::MIN.into()), UNIX_EPOCH - Duration::from_nanos(1 << 63));
}

#[test]
fn errors_without_a_number_are_input_output_errors() {
    assert_eq!(errno(&io::Error::other("ours")).code(), libc::EIO);
    assert_eq!(
        errno(&io::Error::from_raw_os_error(libc::ENOSYS)).code(),
        libc::EOPNOTSUPP
    );
    assert_eq!(errno(&io::Error::from_raw_os_error(libc::ENOSPC)).code(), libc::ENOSPC);
}

#[test]
fn gate_error_is_an_io_error_that_keeps_its_cause() {
    let error = io::Error::from(TrackedError::Overtaken("a reason".to_owned()));
    assert_eq!(errno(&error).code(), libc::EIO);
    assert!(error.to_string().ends_with("a reason"), "{error}");
}
