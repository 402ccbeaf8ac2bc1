use super::*;
use crate::model::noise;
use proptest::prelude::*;

/// Contents with scattered data, and their bytes; some are left out.
fn contents() -> impl Strategy<Value = Vec<Option<(ShortContent, Vec<u8>)>>> {
    let len = prop_oneof![8 => 0..500_u64, 1 => Just(CONTENT_LEN_MAX)];
    let pieces = proptest::collection::vec((0..100_u64, 1..300_usize), 0..8);
    let content = (len, pieces, any::<u64>()).prop_map(|(len, pieces, seed)| {
        let mut content = ShortContent::zeros(len);
        let mut bytes = vec![0; len as usize];
        let mut at = 0;
        for (gap, count) in pieces {
            // Some runs touch.
            at += gap.saturating_sub(50);
            let some = noise(seed ^ at, count);
            content.push(at, &some);
            for (index, byte) in some.into_iter().enumerate() {
                if let Some(place) = bytes.get_mut(at as usize + index) {
                    *place = byte;
                }
            }
            at += count as u64;
        }
        (content, bytes)
    });
    proptest::collection::vec(proptest::option::weighted(0.8, content), 0..40)
}

proptest! {
    #[test]
    fn contents_come_back_from_their_bundle(contents in contents(), before in 0..1000_usize, at in any::<prop::sample::Index>()) {
        let reported: Vec<Option<ShortContent>> = contents.iter().map(|reported| reported.as_ref().map(|(content, _)| content.clone())).collect();
        let mut stream = Vec::new();
        write(&reported, &mut stream).unwrap();
        let found = read(&stream[..], reported.len()).unwrap();
        prop_assert_eq!(found.len(), contents.len());
        for (found, content) in found.iter().zip(&contents) {
            prop_assert_eq!(found.is_some(), content.is_some());
            let (Some(found), Some((_, bytes))) = (found, content) else { continue };
            prop_assert!(found.to_bytes() == *bytes);
            let mut target = noise(7, before);
            found.write_into(&mut target).unwrap();
            prop_assert!(target == *bytes, "over {} bytes", before);
        }
        // Neither a prefix nor a bundle with a changed byte in its head is accepted.
        prop_assert!(read(&stream[..at.index(stream.len())], reported.len()).is_err());
        let changed = at.index(12 + 4 * reported.len() + 4);
        stream[changed] ^= 1 << (before % 8);
        prop_assert!(read(&stream[..], CONTENTS_MAX).is_err(), "changed at {}", changed);
    }
}

#[test]
fn golden_bytes_of_a_bundle_of_version_1() {
    let mut two = ShortContent::zeros(5);
    two.push(1, b"ab");
    let mut stream = Vec::new();
    write(&[Some(two), None, Some(ShortContent::zeros(0))], &mut stream).unwrap();
    let head = [
        0x89, b'B', b'B', b'B', b'U', b'N', b'\r', b'\n', 1, 0, 3, 0, 5, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0,
    ];
    assert_eq!(stream[..24], head);
    assert_eq!(stream[24..28], crc32c::crc32c(&head).to_le_bytes());
    let mut delta = DeltaReader::new(&stream[28..]).unwrap();
    assert_eq!((delta.header().base_len_bytes, delta.header().new_len_bytes), (0, 5));
    let mut block = Block::default();
    assert!(delta.read_block(&mut block).unwrap());
    assert!(!delta.read_block(&mut block).unwrap());
}

#[test]
fn bundle_refuses_contents_that_do_not_fit() {
    let many = vec![None; CONTENTS_MAX + 1];
    assert_eq!(write(&many, io::sink()).unwrap_err().kind(), ErrorKind::InvalidInput);
    let long = [Some(ShortContent::zeros(CONTENT_LEN_MAX + 1))];
    assert_eq!(write(&long, io::sink()).unwrap_err().kind(), ErrorKind::InvalidInput);
    let mut stream = Vec::new();
    write(&vec![None; 3], &mut stream).unwrap();
    assert!(matches!(read(&stream[..], 2), Err(BundleError::Impossible(_))));
    let mut newer = stream.clone();
    newer[8] = 2;
    assert!(matches!(read(&newer[..], 3), Err(BundleError::Version(2))));
    assert!(matches!(read(&noise(1, 100)[..], 3), Err(BundleError::NotBundle)));
}

#[test]
fn lengths_that_do_not_fit_the_contents_are_refused() {
    let mut content = ShortContent::zeros(10);
    content.push(0, b"0123456789");
    let mut stream = Vec::new();
    write(&[Some(content)], &mut stream).unwrap();
    for len in [9_u32, 11, 0, OMITTED_LEN, 70_000] {
        let mut other = stream.clone();
        other[12..16].copy_from_slice(&len.to_le_bytes());
        let crc = crc32c::crc32c(&other[..16]);
        other[16..20].copy_from_slice(&crc.to_le_bytes());
        assert!(
            matches!(read(&other[..], 1), Err(BundleError::Impossible(_))),
            "{len} bytes"
        );
    }
}
