use super::*;

fn range(text: &str, size: u64) -> Result<Option<(u64, u64)>, ()> {
    let mut headers = HeaderMap::new();
    headers.insert(header::RANGE, HeaderValue::from_str(text).unwrap());
    requested_range(&headers, size)
}

#[test]
fn ranges_are_cut_ignored_or_refused_as_rfc_9110_says() {
    assert_eq!(requested_range(&HeaderMap::new(), 10), Ok(None));
    assert_eq!(range("bytes=0-0", 10), Ok(Some((0, 1))));
    assert_eq!(range("bytes=3-", 10), Ok(Some((3, 10))));
    assert_eq!(range("bytes=3-99999999999999999999999", 10), Ok(Some((3, 10))));
    assert_eq!(range("bytes=-4", 10), Ok(Some((6, 10))));
    assert_eq!(range("bytes=-40", 10), Ok(Some((0, 10))));
    for ignored in [
        "bytes=-",
        "bytes=4-3",
        "bytes=0-1,3-4",
        "lines=1-2",
        "bytes=a-b",
        "bytes=1",
    ] {
        assert_eq!(range(ignored, 10), Ok(None), "{ignored}");
    }
    for outside in ["bytes=10-", "bytes=10-20", "bytes=-0"] {
        assert_eq!(range(outside, 10), Err(()), "{outside}");
    }
    assert_eq!(range("bytes=0-", 0), Err(()));
}
