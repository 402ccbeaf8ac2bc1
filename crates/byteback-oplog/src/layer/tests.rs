use proptest::prelude::*;

use super::*;

fn layer_of(ranges: &[(u64, u64)]) -> Layer {
    let mut layer = Layer::default();
    for &(start, len) in ranges {
        layer.ranges.insert(ByteRange::new(start, start + len).unwrap());
    }
    layer
}

fn listed(layer: &Layer) -> Vec<(u64, u64)> {
    layer.ranges.iter().map(|range| (range.start(), range.end())).collect()
}

proptest! {
    #[test]
    fn the_persisted_form_gives_the_layer_back(ranges in prop::collection::vec((0_u64..1 << 40, 1_u64..1 << 20), 0..200)) {
        let layer = layer_of(&ranges);
        let bytes = layer.encode();
        prop_assert_eq!(listed(&Layer::decode(&bytes).unwrap()), listed(&layer));
        for cut in 0..bytes.len() {
            prop_assert!(Layer::decode(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn laying_adds_every_byte_of_both(
        elder in prop::collection::vec((0_u64..200, 1_u64..20), 0..10),
        younger in prop::collection::vec((0_u64..200, 1_u64..20), 0..10),
    ) {
        let mut sum = layer_of(&elder);
        sum.lay(&layer_of(&younger));
        for byte in 0..256_u64 {
            let expected = elder.iter().chain(&younger).any(|&(start, len)| (start..start + len).contains(&byte));
            let found = listed(&sum).iter().any(|&(start, end)| (start..end).contains(&byte));
            prop_assert_eq!(found, expected, "byte {}", byte);
        }
    }

    #[test]
    fn any_bytes_are_refused_or_read_but_never_panic(bytes in any::<Vec<u8>>()) {
        let _ = Layer::decode(&bytes);
        let mut framed = vec![VERSION, 0];
        framed.extend_from_slice(&bytes);
        let _ = Layer::decode(&seal(bytes));
        let _ = Layer::decode(&seal(framed));
    }
}

#[test]
fn once_whole_stays_whole_with_the_first_reason() {
    let mut layer = layer_of(&[(5, 5)]);
    layer.mark_whole(WholeReason::Interrupted);
    let mut younger = Layer::default();
    younger.mark_whole(WholeReason::Untracked);
    layer.lay(&younger);
    layer.lay(&layer_of(&[(1, 1)]));
    let back = Layer::decode(&layer.encode()).unwrap();
    assert_eq!((back.whole, back.ranges.len()), (Some(WholeReason::Interrupted), 0));
}
