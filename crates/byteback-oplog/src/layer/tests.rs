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
        older in prop::collection::vec((0_u64..200, 1_u64..20), 0..10),
        newer in prop::collection::vec((0_u64..200, 1_u64..20), 0..10),
    ) {
        let mut sum = layer_of(&older);
        sum.overlay(&layer_of(&newer));
        for byte in 0..256_u64 {
            let expected = older.iter().chain(&newer).any(|&(start, len)| (start..start + len).contains(&byte));
            let found = listed(&sum).iter().any(|&(start, end)| (start..end).contains(&byte));
            prop_assert_eq!(found, expected, "byte {}", byte);
        }
    }

    #[test]
    fn any_bytes_are_refused_or_read_but_never_panic(bytes in any::<Vec<u8>>()) {
        let _ = Layer::decode(&bytes);
        let mut framed = vec![VERSION, 0];
        framed.extend_from_slice(&bytes);
        let _ = Layer::decode(&seal(framed));
        let _ = Layer::decode(&seal(bytes));
    }

    #[test]
    fn ranges_of_any_alignment_come_back(
        shift in 0..20_u32,
        ranges in prop::collection::vec((0_u64..1 << 30, 1_u64..40), 0..200),
        is_paged in any::<bool>(),
    ) {
        let ranges: Vec<(u64, u64)> = ranges.iter().map(|(start, len)| (start << shift, len << shift)).collect();
        let mut layer = layer_of(&ranges);
        layer.unit = if is_paged { Unit::Page } else { Unit::Byte };
        let back = Layer::decode(&layer.encode()).unwrap();
        prop_assert_eq!((listed(&back), back.unit, back.whole), (listed(&layer), layer.unit, None));
    }

    /// The reported ranges cover every touched byte, within the bound, in every granularity; if the
    /// bound was never passed they are exact.
    #[test]
    fn bounded_layers_cover_what_was_touched(
        writes in prop::collection::vec((0_u64..200_000, 1_u64..3000), 0..150),
        extents_max in 1..60_usize,
        granularity in prop::sample::select(vec![Granularity::Byte, Granularity::Page, Granularity::Adaptive]),
        split in 0..150_usize,
    ) {
        let bounds = Bounds { extents_max, granularity };
        let exact = layer_of(&writes);
        let split = split.min(writes.len());
        let mut layer = Layer::default();
        let mut newer = Layer::default();
        for (index, (start, len)) in writes.iter().enumerate() {
            let layer = if index < split { &mut layer } else { &mut newer };
            layer.touched(ByteRange::new(*start, start + len).unwrap(), bounds);
            prop_assert!(layer.ranges.len() <= extents_max);
        }
        // Across a checkpoint, with another granularity than before in the database.
        let mut layer = Layer::decode(&layer.encode()).unwrap();
        layer.overlay(&newer);
        layer.keep_within(bounds);
        prop_assert!(layer.ranges.len() <= extents_max);
        prop_assert!(exact.ranges.iter().all(|range| layer.ranges.covers(range)));
        if granularity == Granularity::Page {
            prop_assert!(listed(&layer).iter().all(|(start, end)| start % 4096 == 0 && end % 4096 == 0));
        }
        if granularity == Granularity::Byte && exact.ranges.len() * 16 < extents_max {
            prop_assert_eq!(listed(&layer), listed(&exact));
        }
    }
}

#[test]
fn the_largest_offsets_have_a_form() {
    for (start, len) in [
        (u64::MAX - 1, 1),
        (0, u64::MAX),
        (1 << 63, (1 << 63) - 1),
        (1 << 63, 1 << 62),
    ] {
        let layer = layer_of(&[(start, len)]);
        assert_eq!(listed(&Layer::decode(&layer.encode()).unwrap()), listed(&layer));
    }
}

#[test]
fn once_whole_stays_whole_with_the_first_reason() {
    let mut layer = layer_of(&[(5, 5)]);
    layer.mark_whole(WholeReason::Interrupted);
    let mut newer = Layer::default();
    newer.mark_whole(WholeReason::Untracked);
    layer.overlay(&newer);
    layer.overlay(&layer_of(&[(1, 1)]));
    let back = Layer::decode(&layer.encode()).unwrap();
    assert_eq!((back.whole, back.ranges.len()), (Some(WholeReason::Interrupted), 0));
}

/// Writes by three kinds of programs, each (offset, length), to a file of 64 MiB.
fn patterns() -> [(&'static str, Vec<(u64, u64)>); 3] {
    use byteback_host::random::SplitMix64;
    const FILE_BYTES: u64 = 64 << 20;
    let mut random = SplitMix64::new(11);
    let mut of = |write: &mut dyn FnMut(&mut SplitMix64, u64) -> (u64, u64)| -> Vec<(u64, u64)> {
        (0..8000).map(|index| write(&mut random, index)).collect()
    };
    let hot: Vec<u64> = (0..40).map(|index| index * (FILE_BYTES / 40) + index * 777).collect();
    [
        (
            "random",
            of(&mut |random, _| (random.below(FILE_BYTES - 1024), 1 + random.below(1024))),
        ),
        (
            "clustered",
            of(&mut |random, _| {
                (
                    hot[random.below(40) as usize] + random.below(200_000),
                    16 + random.below(300),
                )
            }),
        ),
        // Pages of a database, and now and then the change counter in its head.
        (
            "SQLite-like",
            of(&mut |random, index| match index % 8 {
                0 => (24, 16),
                _ => (random.below(FILE_BYTES / 4096) * 4096, 4096),
            }),
        ),
    ]
}

#[test]
fn joining_reports_no_more_than_pages_for_as_many_extents() {
    for (name, writes) in patterns() {
        let exact = layer_of(&writes);
        for extents_max in [100, 500, 2000, 5000] {
            let written = |granularity, extents_max| {
                let mut layer = Layer::default();
                for (start, len) in &writes {
                    let range = ByteRange::new(*start, start + len).unwrap();
                    layer.touched(
                        range,
                        Bounds {
                            extents_max,
                            granularity,
                        },
                    );
                    assert!(layer.ranges.len() <= extents_max);
                }
                assert!(exact.ranges.iter().all(|range| layer.ranges.covers(range)));
                layer.ranges
            };
            let extra = |ranges: &ExtentSet| ranges.total_len_bytes() - exact.ranges.total_len_bytes();
            for granularity in [Granularity::Page, Granularity::Adaptive] {
                let pages = written(granularity, extents_max);
                // As many as these have in the end, and no more at any time before.
                let joined = written(Granularity::Byte, pages.len().max(1));
                // Joining as they come knows nothing of what will come: what it joined in vain
                // stays joined. If all were known before, it would be no byte more
                // (`joining_adds_no_more_than_aligning_to_as_many_extents`).
                let known = {
                    let mut known = exact.ranges.clone();
                    known.join_closest(pages.len());
                    known
                };
                println!(
                    "{name:<12} at most {extents_max:>5} {granularity:?}: {:>5} extents, {:>9} bytes too many; joined {:>9}, \
                     joined knowing all {:>9}",
                    pages.len(),
                    extra(&pages),
                    extra(&joined),
                    extra(&known)
                );
                assert!(extra(&known) <= extra(&pages), "{name}");
                // At equal memory, that is at the same bound.
                let joined = written(Granularity::Byte, extents_max);
                assert!(extra(&joined) <= extra(&pages), "{name} {extents_max} {granularity:?}");
            }
        }
    }
}
