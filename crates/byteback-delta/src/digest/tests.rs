use super::*;
use crate::model::noise;

fn whole(bytes: &[u8]) -> [u8; DIGEST_LEN] {
    let mut digest = ContentDigest::new(bytes.len() as u64);
    digest.push(bytes);
    digest.finish().unwrap()
}

#[test]
fn the_digest_does_not_depend_on_how_the_content_comes() {
    let mut bytes = noise(3, 2_500_000);
    bytes.resize(9_000_000, 0);
    bytes.extend(noise(4, 700_001));
    let expected = whole(&bytes);
    for piece in [1000, 65536, 1 << 20, 3_333_333] {
        let mut digest = ContentDigest::new(bytes.len() as u64);
        for piece in bytes.chunks(piece) {
            digest.push(piece);
        }
        assert_eq!(digest.finish().unwrap(), expected, "{piece}");
    }
    for (start, end) in [(2_500_000, 9_000_000), (3_000_000, 8_999_999), (2_600_000, 2_600_001)] {
        let mut digest = ContentDigest::new(bytes.len() as u64);
        digest.push(&bytes[..start]);
        digest.push_zeros((end - start) as u64);
        digest.push(&bytes[end..]);
        assert_eq!(digest.finish().unwrap(), expected, "{start}");
    }
}

#[test]
fn every_difference_shows() {
    let bytes = noise(5, 100_000);
    let expected = whole(&bytes);
    for at in [0, 50_000, 99_999] {
        let mut other = bytes.clone();
        other[at] ^= 1;
        assert_ne!(whole(&other), expected);
    }
    assert_ne!(whole(&bytes[1..]), expected);
    let mut longer = bytes;
    longer.push(0);
    assert_ne!(whole(&longer), expected);
    assert_ne!(whole(&[0; 10]), whole(&[0; 11]));
}

#[test]
fn digest_is_cheap_for_zeros_and_none_for_a_wrong_length() {
    let mut digest = ContentDigest::new(1 << 40);
    digest.push_zeros(1 << 40);
    assert!(digest.finish().is_some());
    let mut digest = ContentDigest::new(10);
    digest.push(&[1; 9]);
    assert_eq!(digest.finish(), None);
}

#[test]
fn golden_digests_of_version_1() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(
        hex(&whole(b"")),
        "0f91937c1350596aed48fcf442e7521b5fbdaf50f87d6d1286e92628ee3f281b"
    );
    assert_eq!(
        hex(&whole(b"byteback")),
        "d7feb322b519bd3beb3ceac888e3ba079c7fa40b646f9523a2eb869734c4f609"
    );
    assert_eq!(
        hex(&whole(&vec![0; (1 << 20) + 1])),
        "0a43cf3a16d04136322acb3854cae1907f288c8a1058f4827cfe81d30d9c7ccf"
    );
}
