//! The wording of numbers, at the borders.

use super::*;

#[test]
fn sizes_change_their_unit_where_people_expect_it() {
    for (bytes, text) in [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1024 * 1024 - 1, "1.0 MiB"),
        (1024 * 1024, "1.0 MiB"),
        (1_572_864, "1.5 MiB"),
        (4 << 30, "4.0 GiB"),
        (u64::MAX, "16.0 EiB"),
    ] {
        assert_eq!(size(bytes), text, "{bytes}");
    }
    assert_eq!(size_exact(2048, true), "2.0 KiB (2048 bytes)");
    assert_eq!(size_exact(12, true), "12 B");
}

#[test]
fn counts_durations_and_ages() {
    assert_eq!(counted(1, "file", "files"), "1 file");
    assert_eq!(counted(0, "file", "files"), "0 files");
    assert_eq!(counted(1_234_567, "file", "files"), "1,234,567 files");
    let three = [(1, "name", "names"), (0, "link", "links"), (2, "file", "files")];
    assert_eq!(counts(&three), ["1 name", "2 files"]);
    assert_eq!(nodes(1), "1 file or directory");
    assert_eq!(duration(0), "0.00 s");
    assert_eq!(duration(1_239_999_999), "1.23 s");
    assert_eq!(duration(59_999_999_999), "59 s");
    assert_eq!(duration(185_000_000_000), "3 min 5 s");
    assert_eq!(duration(7_800_000_000_000), "2 h 10 min");
    assert_eq!(age(0, 90_000_000_000), "1 minute");
    assert_eq!(age(10, 0), "a moment", "a clock that went back");
    assert_eq!(age(0, 3 * 86_400_000_000_000), "3 days");
}

#[test]
fn lists_and_permissions() {
    let parts = |count: usize| (0..count).map(|i| i.to_string()).collect::<Vec<_>>();
    assert_eq!(listed(&parts(0)), "");
    assert_eq!(listed(&parts(2)), "0 and 1");
    assert_eq!(listed(&parts(3)), "0, 1 and 2");
    assert_eq!(permissions(0o755), "rwxr-xr-x");
    assert_eq!(permissions(0o6644), "rwSr-Sr--");
    assert_eq!(permissions(0o1777), "rwxrwxrwt");
}
