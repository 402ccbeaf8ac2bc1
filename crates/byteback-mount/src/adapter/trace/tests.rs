//! Which errors leave a trace, and how many lines at most.

use super::*;

#[test]
fn trace_limit_counts_what_it_leaves_out() {
    let mut limit = Limit::default();
    let (write, read) = (("write", libc::EIO), ("read", libc::EIO));
    for _ in 0..LINES_MAX {
        assert_eq!(limit.admit(write, 7), Some(0));
    }
    for now_ns in 8..108 {
        assert_eq!(limit.admit(write, now_ns), None);
    }
    // Each operation, and each error, by itself.
    assert_eq!(limit.admit(read, 108), Some(0));
    assert_eq!(limit.admit(("write", libc::ENOSPC), 108), Some(0));
    assert_eq!(limit.admit(write, PERIOD_NS + 6), None);
    assert_eq!(limit.admit(write, PERIOD_NS + 7), Some(101));
    for _ in 1..LINES_MAX {
        assert_eq!(limit.admit(write, PERIOD_NS + 8), Some(0));
    }
    assert_eq!(limit.admit(write, PERIOD_NS + 9), None);
}

#[test]
fn trace_says_nothing_of_everyday_answers() {
    for errno in [
        libc::ENOENT,
        libc::EEXIST,
        libc::ENOTEMPTY,
        libc::EACCES,
        libc::EPERM,
        libc::EXDEV,
        libc::ENODATA,
        libc::EOPNOTSUPP,
        libc::ENXIO,
        libc::ESTALE,
    ] {
        assert!(!is_failure(errno), "{errno}");
    }
    assert!(is_failure(libc::EIO));
    assert!(is_failure(libc::ENOSPC));
}
