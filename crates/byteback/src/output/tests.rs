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
