use super::*;

#[test]
fn text_and_bytes_round_trip() {
    let id = FileId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
    assert_eq!(id.to_string(), "0102030405060708090a0b0c0d0e0f10");
    assert_eq!(id.to_string().parse(), Ok(id));
    assert_eq!(FileId::from_bytes(id.to_bytes()), id);
    assert_eq!(
        serde_json::from_str::<FileId>(&serde_json::to_string(&id).unwrap()).unwrap(),
        id
    );
}

#[test]
fn only_32_digits_are_an_id() {
    for text in [
        "",
        "1",
        "+102030405060708090a0b0c0d0e0f10",
        "g102030405060708090a0b0c0d0e0f10",
    ] {
        assert_eq!(text.parse::<FileId>(), Err(ParseFileIdError), "{text}");
    }
}
