use std::process::Command;

use super::*;

/// Names that are hard to escape.
const PATHS: [&str; 9] = [
    "/",
    "/data/mail",
    "/srv//backup/./x/",
    "/home/me/My files",
    "/.hidden/a.b",
    "/a-b/c_d:e",
    "/100%/$HOME/\\x2d",
    "/a\"b'c/\u{e9}",
    "/tab\there",
];

#[test]
fn names_are_escaped_as_systemd_does() {
    for path in PATHS {
        // systemd-escape prints the unit name, and refuses a path that it cannot name.
        let reported = Command::new("systemd-escape")
            .args(["--path", "--", path])
            .output()
            .unwrap();
        assert!(
            reported.status.success(),
            "{path}: {}",
            String::from_utf8_lossy(&reported.stderr)
        );
        let reported = String::from_utf8(reported.stdout).unwrap();
        assert_eq!(escape_path(Path::new(path)), reported.trim_end(), "{path}");
        let name = Kind::Sync.unit_name(Path::new(path)).unwrap();
        let (kind, parsed) = parse_name(&name).unwrap();
        assert_eq!(kind, Kind::Sync);
        assert_eq!(escape_path(&parsed), reported.trim_end(), "{path}");
    }
    assert_eq!(
        parse_name("byteback-mount-a-b.service"),
        Some((Kind::Mount, PathBuf::from("/a/b")))
    );
    for other in [
        "ssh.service",
        "byteback-mount-a.timer",
        "byteback-other-a.service",
        "byteback-sync-\\x2.service",
    ] {
        assert_eq!(parse_name(other), None, "{other}");
    }
    assert_eq!(Kind::Mount.unit_name(Path::new(&format!("/{}", "x".repeat(300)))), None);
}

#[test]
fn words_are_quoted_so_that_nothing_is_expanded() {
    let quoted = |word: &str, is_of_command| quoted(OsStr::new(word), is_of_command);
    assert_eq!(quoted("/data/mail", true), "/data/mail");
    assert_eq!(quoted("", true), "\"\"");
    assert_eq!(quoted("a b", true), "\"a b\"");
    assert_eq!(quoted("50%$X;\"\\", true), "\"50%%$$X;\\\"\\\\\"");
    assert_eq!(quoted("$X", false), "\"$X\"");
    assert_eq!(quoted("\n\u{e9}", true), "\"\\x0a\\xc3\\xa9\"");
}
