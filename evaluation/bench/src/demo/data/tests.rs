use super::*;

#[test]
fn packages_are_read_from_their_first_lines() {
    let text = "Package: one\nStatus: install ok\nVersion: 1:2.0\nDescription: a tool\n with more: of it\n .\n\n\
        Package: two\nDepends: one (>= 1), x\n\nNo: package\n\n";
    let found: Vec<_> = packages(text).collect();
    assert_eq!(found.len(), 2);
    assert_eq!((found[0][0], found[0][1], found[0][7]), ("one", "1:2.0", "a tool"));
    assert_eq!((found[1][0], found[1][6], found[1][1]), ("two", "one (>= 1), x", ""));
}

#[test]
fn text_is_quoted_for_sql() {
    assert_eq!(quoted("it's"), "'it''s'");
    assert_eq!(quoted("a\0b"), "'ab'");
}

#[test]
fn a_message_cannot_begin_another() {
    let message = mbox(Path::new("/usr/share/doc/tool/copyright"), b"a\nFrom here\nFrom\nlast");
    let text = String::from_utf8(message).unwrap();
    assert!(text.starts_with("From tool@localhost "), "{text}");
    assert!(text.ends_with("\n\na\n>From here\nFrom\nlast\n\n"), "{text}");
}
