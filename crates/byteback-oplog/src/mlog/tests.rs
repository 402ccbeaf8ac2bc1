use proptest::prelude::*;

use super::*;

fn set(ranges: &[(u64, u64)]) -> ExtentSet {
    ranges
        .iter()
        .filter_map(|(start, len)| ByteRange::from_offset_len(*start, *len))
        .collect()
}

#[test]
fn golden_bytes() {
    // Figure 5: the indicator, 15 bits of length, 16 bits of offset; otherwise length, then offset.
    let ranges = set(&[(0x1234, 0x1fff), (0x1_0000, 1), (0xffff_ffff, 1)]);
    let bytes = [
        0x34, 0x12, 0xff, 0x9f, // compact: offset 0x1234, length 0x1fff
        1, 0, 0, 0, 0, 0, 1, 0, // normal: length 1, offset 0x10000
        1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, // normal: the largest offset
    ];
    assert_eq!(encode(&ranges, Unit::Byte).unwrap(), bytes);
    assert_eq!(decode(&bytes, Unit::Byte).unwrap(), ranges);
    let long = set(&[(0, 0x7fff), (0x8000, 0x8000)]);
    let bytes = [0, 0, 0xff, 0xff, 0, 0x80, 0, 0, 0, 0x80, 0, 0];
    assert_eq!(encode(&long, Unit::Byte).unwrap(), bytes);
    assert_eq!(decode(&bytes, Unit::Byte).unwrap(), long);
}

#[test]
fn what_it_cannot_say_is_an_error() {
    for (start, len) in [(1 << 32, 1), (u64::MAX - 1, 1), (0, 1 << 31)] {
        let refused = encode(&set(&[(5, 1), (start, len)]), Unit::Byte);
        assert!(matches!(refused, Err(MlogError::NotRepresentable(_))), "{refused:?}");
    }
    // In pages it reaches further.
    let far = set(&[(1 << 40, 5), ((1 << 44) - 1, 1)]);
    let back = decode(&encode(&far, Unit::Page).unwrap(), Unit::Page).unwrap();
    assert_eq!(back, set(&[(1 << 40, 4096), ((1 << 44) - 4096, 4096)]));
    assert!(encode(&set(&[(1 << 44, 1)]), Unit::Page).is_err());
    for bad in [
        &[0][..],
        &[0, 0, 0, 0x80],
        &[1, 0, 0, 0],
        &[1, 0, 0, 0, 9, 0, 0],
        &[9, 0, 1, 0x80, 10, 0, 1, 0x80],
    ] {
        assert_eq!(decode(bad, Unit::Byte), Err(MlogError::Malformed), "{bad:?}");
    }
}

proptest! {
    #[test]
    fn mlogs_give_the_ranges_back(ranges in prop::collection::vec((0_u64..1 << 20, 1_u64..1 << 17), 0..60)) {
        let ranges = set(&ranges);
        let bytes = encode(&ranges, Unit::Byte).unwrap();
        prop_assert!(bytes.len() <= ranges.len() * 8);
        prop_assert_eq!(decode(&bytes, Unit::Byte).unwrap(), ranges);
    }

    #[test]
    fn any_bytes_are_refused_or_read_but_never_panic(bytes in any::<Vec<u8>>()) {
        let _ = decode(&bytes, Unit::Byte);
        let _ = decode(&bytes, Unit::Page);
    }
}
