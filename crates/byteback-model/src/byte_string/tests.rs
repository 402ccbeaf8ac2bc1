use super::*;
use proptest::prelude::*;

#[test]
fn text_is_a_plain_string_and_other_bytes_are_base64() {
    let text = serde_json::to_string(&ByteString::from("na\u{ef}ve")).unwrap();
    assert_eq!(text, "\"na\u{ef}ve\"");
    let bytes = serde_json::to_string(&ByteString(vec![0xff, 0x00])).unwrap();
    assert_eq!(bytes, "{\"base64\":\"/wA=\"}");
}

#[test]
fn malformed_forms_are_errors() {
    for json in [
        "1",
        "null",
        "{}",
        "{\"base64\":\"!\"}",
        "{\"hex\":\"00\"}",
        "{\"base64\":\"\",\"x\":\"\"}",
        "{\"base64\":1}",
    ] {
        assert!(serde_json::from_str::<ByteString>(json).is_err(), "{json}");
    }
}

#[test]
fn display_escapes_what_a_terminal_would_obey() {
    assert_eq!(
        ByteString(b"a\x1b[0m\xffz\n".to_vec()).to_string(),
        "a\\u{1b}[0m\\xffz\\n"
    );
}

proptest! {
    #[test]
    fn every_byte_string_survives(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let json = serde_json::to_string(&ByteString(bytes.clone())).unwrap();
        prop_assert_eq!(serde_json::from_str::<ByteString>(&json).unwrap().0, bytes);
    }
}
