use super::*;

#[test]
fn edges_round_trip_and_have_the_expected_length() {
    for (value, len) in [
        (0, 1),
        (127, 1),
        (128, 2),
        (16_383, 2),
        (16_384, 3),
        (u64::MAX >> 1, 9),
        (u64::MAX, 10),
    ] {
        let mut bytes = Vec::new();
        put(&mut bytes, value);
        assert_eq!(bytes.len(), len);
        let mut rest = &bytes[..];
        assert_eq!(take(&mut rest), Some(value));
        assert!(rest.is_empty());
        assert_eq!(take(&mut &bytes[..len - 1]), None, "cut off");
    }
    for value in [0, -1, 1, i64::MAX, i64::MIN] {
        assert_eq!(unzigzag(zigzag(value)), value);
    }
    assert_eq!([0, -1, 1, -2].map(zigzag), [0, 1, 2, 3]);
}

#[test]
fn longer_than_needed_and_larger_than_u64_are_refused() {
    assert_eq!(take(&mut &[0x80, 0x00][..]), None);
    assert_eq!(take(&mut &[0xff, 0x80, 0x00][..]), None);
    let mut too_large = [0xff; 10];
    too_large[9] = 0x02;
    assert_eq!(take(&mut &too_large[..]), None);
    assert_eq!(take(&mut &[0xff; 11][..]), None);
    assert_eq!(take(&mut &[][..]), None);
}
