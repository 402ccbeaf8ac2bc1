use super::*;

#[test]
fn a_message_names_an_item_only_as_a_word() {
    for (message, item, is_named) in [
        ("cannot read s: Permission denied", "s", true),
        ("segment 1 is damaged at offset 7", "b", false),
        ("segment 1 is damaged at offset 7", "damaged", true),
        ("cannot read the directory 'a b'", "a b", true),
        ("cannot read a/b: no", "b", false),
        ("b", "b", true),
        ("ab b", "b", true),
        ("", "b", false),
    ] {
        assert_eq!(names(message, item), is_named, "{message} {item}");
    }
}

#[test]
fn numbers_of_system_errors_are_not_shown_to_people() {
    for (message, words) in [
        (
            "cannot read a: Permission denied (os error 13)",
            "cannot read a: Permission denied",
        ),
        (
            "b: No space left on device (os error 28): c: Input/output error (os error 5)",
            "b: No space left on device: c: Input/output error",
        ),
        ("the file 'x (os error y)'", "the file 'x (os error y)'"),
        ("cut off (os error 2", "cut off (os error 2"),
        ("", ""),
    ] {
        assert_eq!(in_words(message), words);
    }
}
