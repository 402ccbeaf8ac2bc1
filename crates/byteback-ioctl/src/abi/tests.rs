//! The bytes are those of the C structures, and only complete ones are accepted.

use std::mem::offset_of;

use super::*;

fn open() -> DeltaOpen {
    DeltaOpen {
        size: 1,
        version: 2,
        since: 3,
        flags: 4,
        reserved0: 5,
        consumer: [6; CONSUMER_BYTES],
        context: 7,
        tree: 8,
        node: 9,
        version_since: 10,
        version_now: 11,
        size_bytes: 12,
        range_count: 13,
        changed_bytes: 14,
        state: 15,
        reason: 16,
        reserved: [17; 4],
    }
}

#[test]
fn what_is_encoded_is_the_structure() {
    let bytes = open().encode();
    assert_eq!(bytes.len(), size_of::<DeltaOpen>());
    let at = |offset: usize| u64::from_ne_bytes(bytes[offset..offset + 8].try_into().unwrap());
    assert_eq!(at(offset_of!(DeltaOpen, since)), 3);
    assert_eq!(bytes[offset_of!(DeltaOpen, consumer)], 6);
    assert_eq!(at(offset_of!(DeltaOpen, context)), 7);
    assert_eq!(at(offset_of!(DeltaOpen, changed_bytes)), 14);
    assert_eq!(at(offset_of!(DeltaOpen, reserved) + 24), 17);
    assert_eq!(DeltaOpen::decode(&bytes), Some(open()));
    for len in [0, 1, bytes.len() - 1] {
        assert_eq!(DeltaOpen::decode(&bytes[..len]), None);
    }
    assert_eq!(DeltaOpen::decode(&[&bytes[..], &[0]].concat()), None);
}

#[test]
fn structures_have_no_padding() {
    // Every byte belongs to a field; padding would leak bytes of the caller's memory.
    assert_eq!(size_of::<DeltaOpen>(), open().encode().len());
    let close = DeltaClose {
        size: 0,
        version: 0,
        context: 0,
        flags: 0,
        reserved: 0,
    };
    assert_eq!(size_of::<DeltaClose>(), close.encode().len());
    assert_eq!(size_of::<DeltaGetdiff>(), 4 + 4 + 8 + 8 + 8 + 4 + 4 + 16 * RANGES_MAX);
    assert_eq!(size_of::<DeltaRead>(), 4 + 4 + 8 + 8 + 4 + 4 + READ_BYTES_MAX);
}

#[test]
fn the_numbers_stay() {
    assert_eq!(DELTA_OPEN, 0xc0c0_b701);
    assert_eq!(DELTA_GETDIFF, 0xfea8_b702);
    assert_eq!(DELTA_READ, 0xfea0_b703);
    assert_eq!(DELTA_CLOSE, 0x4018_b704);
}

#[test]
fn names_of_consumers() {
    let named = |bytes: &[u8]| {
        let mut consumer = [0; CONSUMER_BYTES];
        consumer[..bytes.len()].copy_from_slice(bytes);
        DeltaOpen { consumer, ..open() }
    };
    assert_eq!(named(b"one").consumer_name(), Some("one"));
    assert_eq!(named(&[b'x'; 63]).consumer_name().map(str::len), Some(63));
    for bad in [&b""[..], &[b'x'; 64], b"a\nb", b"a\xff", b"a\0b", "a\u{85}".as_bytes()] {
        assert_eq!(named(bad).consumer_name(), None, "{bad:?}");
    }
}
