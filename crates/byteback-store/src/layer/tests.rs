use super::*;
use proptest::prelude::*;

fn frame(n: u64) -> FrameRef {
    FrameRef {
        segment: SegmentNumber(n),
        offset: n * 1000,
        stored_len: 100,
        raw_len: 10_000,
        codec: 1,
    }
}

proptest! {
    #[test]
    fn pages_round_trip_and_flips_are_noticed(
        parts in proptest::collection::vec((0u64..50, 1u64..40, 0u8..3, 0u64..4, 0u32..9000), 1..60),
        flip in any::<proptest::sample::Index>(),
    ) {
        let mut builder = PageBuilder::default();
        let mut expected: Vec<LayerExtent> = Vec::new();
        let mut end = 0;
        for (gap, len, kind, n, skip) in parts {
            let range = ByteRange::from_offset_len(end + gap, len).unwrap();
            end = range.end();
            let source = match kind {
                0 => Source::Literal(Literal { frame: frame(n), skip }),
                1 => Source::Copy { base_offset: n * 77 },
                _ => Source::Zero,
            };
            builder.push(range, source);
            match expected.last_mut() {
                Some(last) if last.range.end() == range.start()
                    && last.source.continues(last.range.len_bytes(), &source) => last.range = last.range.hull(range),
                _ => expected.push(LayerExtent { range, source }),
            }
        }
        builder.finish();
        prop_assert_eq!(builder.pages.len(), 1);
        let (start, blob) = &builder.pages[0];
        prop_assert_eq!(*start, expected[0].range.start());
        prop_assert_eq!(Page::decode(blob).unwrap().extents, expected);
        let mut flipped = blob.clone();
        let at = flip.index(flipped.len());
        flipped[at] ^= 4;
        prop_assert!(Page::decode(&flipped).is_err());
    }
}

#[test]
fn a_page_ends_at_its_limit() {
    let mut builder = PageBuilder::default();
    let count = PAGE_EXTENTS_MAX + 1;
    for n in 0..count {
        builder.push(ByteRange::from_offset_len(usize_u64(n) * 10, 1).unwrap(), Source::Zero);
    }
    builder.finish();
    assert_eq!(builder.pages.len(), 2);
    assert_eq!(builder.pages[1].0, usize_u64(PAGE_EXTENTS_MAX) * 10);
    assert_eq!(builder.extents_total, usize_u64(count));
}
