use super::*;

#[test]
fn names_that_need_no_escaping_are_valid() {
    for text in ["a", "Photos-2026", "db.main_1", &"x".repeat(64)] {
        assert_eq!(text.parse::<FolderName>().unwrap().as_str(), text);
    }
    for text in ["", ".", "..", ".x", "-x", "a/b", "a b", "\u{e9}", &"x".repeat(65)] {
        assert!(text.parse::<FolderName>().is_err(), "{text}");
    }
}
