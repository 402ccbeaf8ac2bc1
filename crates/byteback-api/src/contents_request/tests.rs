use super::*;

fn request(count: u32) -> ContentsRequest {
    ContentsRequest {
        at: 0x0102_0304,
        files: (0..u128::from(count)).map(|number| FileId(number << 64 | 5)).collect(),
    }
}

#[test]
fn contents_request_comes_back_from_its_bytes() {
    for count in [0, 1, 2, 1000, CONTENTS_MAX] {
        let request = request(count);
        let bytes = request.encode();
        assert!(bytes.len() as u64 <= REQUEST_LEN_MAX);
        assert_eq!(ContentsRequest::decode(&bytes), Ok(request));
    }
}

#[test]
fn golden_bytes_of_a_contents_request_of_version_1() {
    let bytes = ContentsRequest {
        at: 258,
        files: vec![FileId(1), FileId(0xa0 << 120)],
    }
    .encode();
    let mut golden = b"\x89BBCRQ\r\n".to_vec();
    golden.extend_from_slice(&[1, 0, 2, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
    golden.extend_from_slice(&[0; 15]);
    golden.extend_from_slice(&[1, 0xa0]);
    golden.extend_from_slice(&[0; 15]);
    golden.extend_from_slice(&crc32c::crc32c(&golden).to_le_bytes());
    assert_eq!(bytes, golden);
}

#[test]
fn contents_request_with_any_change_is_refused() {
    let bytes = request(3).encode();
    for at in 0..bytes.len() {
        assert!(ContentsRequest::decode(&bytes[..at]).is_err(), "cut at {at}");
        let mut changed = bytes.clone();
        changed[at] ^= 4;
        assert!(ContentsRequest::decode(&changed).is_err(), "changed at {at}");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(ContentsRequest::decode(&longer), Err(ContentsRequestError::Length(3)));
    let many = request(CONTENTS_MAX + 1).encode();
    let error = ContentsRequestError::TooMany(CONTENTS_MAX + 1);
    assert_eq!(ContentsRequest::decode(&many), Err(error));
    let mut huge = bytes.clone();
    huge[18..22].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(
        ContentsRequest::decode(&huge),
        Err(ContentsRequestError::TooMany(u32::MAX))
    );
    let mut newer = bytes;
    newer[8] = 2;
    assert_eq!(ContentsRequest::decode(&newer), Err(ContentsRequestError::Version(2)));
    assert_eq!(ContentsRequest::decode(b"{}"), Err(ContentsRequestError::NotRequest));
}
