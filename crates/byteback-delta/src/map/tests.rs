//! Deltas against arrays of bytes.

use proptest::prelude::*;

use super::*;
use crate::model::{LEN_MAX, Lit, Op, build, content, materialize, op};

fn ops() -> impl Strategy<Value = Vec<Op>> {
    prop_oneof![
        prop::collection::vec(op(true), 0..12),
        prop::collection::vec(op(false), 0..12)
    ]
}

fn r(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn tells_the_bytes_that_were_put(base in content(), new_len in 0..LEN_MAX, ops in ops(), probe in (0..LEN_MAX, 1..40_u64)) {
        let (map, new) = build(&base, new_len, &ops);
        prop_assert_eq!(materialize(&map, &base), new);
        // A part of the content resolves to the same pieces, clipped.
        let within = r(probe.0, probe.0 + probe.1);
        let all: Vec<_> = map.resolve(r(0, u64::MAX)).filter_map(|(range, source)| {
            let part = range.intersect(within)?;
            Some((part, source.advance(part.start() - range.start())))
        }).collect();
        prop_assert_eq!(map.resolve(within).collect::<Vec<_>>(), all);
        let literals = map.iter().filter(|(_, source)| matches!(source, Source::Literal(_)));
        prop_assert_eq!(map.literal_bytes(), literals.map(|(range, _)| range.len_bytes()).sum::<u64>());
    }

    #[test]
    fn composition_is_exact_and_associative(
        base in content(),
        first_len in 0..LEN_MAX, first in ops(),
        second_len in 0..LEN_MAX, second in ops(),
        third_len in 0..LEN_MAX, third in ops(),
    ) {
        let (first, content_1) = build(&base, first_len, &first);
        let (second, content_2) = build(&content_1, second_len, &second);
        let (third, content_3) = build(&content_2, third_len, &third);

        let both = compose(&first, &second).unwrap();
        prop_assert!(both.check_invariants().is_ok(), "{:?}", both.check_invariants());
        prop_assert_eq!(materialize(&both, &base), content_2);
        prop_assert_eq!(&first.clone().then(&second).unwrap(), &both);

        let left = compose(&both, &third).unwrap();
        let right = compose(&first, &compose(&second, &third).unwrap()).unwrap();
        prop_assert!(right.check_invariants().is_ok());
        prop_assert_eq!(materialize(&left, &base), &content_3[..]);
        prop_assert_eq!(materialize(&right, &base), content_3);
    }

    #[test]
    fn the_identity_changes_nothing(base in content(), new_len in 0..LEN_MAX, ops in ops()) {
        let (map, _) = build(&base, new_len, &ops);
        let before = DeltaMap::new(map.base_len_bytes(), map.base_len_bytes());
        let after = DeltaMap::new(map.new_len_bytes(), map.new_len_bytes());
        prop_assert!(before.is_identity());
        prop_assert_eq!(&compose(&before, &map).unwrap(), &map);
        prop_assert_eq!(&compose(&map, &after).unwrap(), &map);
    }
}

#[test]
fn delta_map_reads_zeros_after_truncation_and_growth() {
    let base = [7; 10];
    let mut map: DeltaMap<Lit> = DeltaMap::new(10, 10);
    map.set_new_len(4);
    map.set_new_len(12);
    assert_eq!(materialize(&map, &base), [7, 7, 7, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(map.iter().collect::<Vec<_>>(), [(r(4, 10), &Source::Zero)]);

    // The same through two deltas.
    let shrink: DeltaMap<Lit> = DeltaMap::new(10, 4);
    let grow = DeltaMap::new(4, 12);
    assert_eq!(compose(&shrink, &grow).unwrap(), map);
    assert_eq!(shrink.then(&grow).unwrap(), map);
}

#[test]
fn deltas_that_do_not_follow_each_other_are_refused() {
    let older: DeltaMap<Lit> = DeltaMap::new(10, 20);
    let newer = DeltaMap::new(21, 5);
    let error = compose(&older, &newer).unwrap_err();
    assert_eq!((error.older_new_len_bytes, error.newer_base_len_bytes), (20, 21));
    assert!(older.then(&newer).is_err());
}

#[test]
fn copies_and_holes_that_say_nothing_new_are_not_kept() {
    let mut map: DeltaMap<Lit> = DeltaMap::new(100, 200);
    map.copy(r(10, 20), 10);
    map.zero(r(100, 200));
    map.copy(r(150, 160), 100);
    map.copy(r(190, 250), u64::MAX);
    assert!(map.is_empty() && !map.is_identity() && !map.has_copies());
    map.copy(r(150, 170), 90);
    assert_eq!(
        map.iter().collect::<Vec<_>>(),
        [(r(150, 160), &Source::Copy { base_offset: 90 })]
    );
    map.literal(r(500, 600), Lit { stream: 0, at: 0 });
    assert_eq!(map.len(), 1, "what lies past the new length has no effect");
}

#[test]
fn literals_can_be_renamed() {
    let mut map = DeltaMap::new(0, 100);
    map.literal(r(0, 10), Lit { stream: 0, at: 5 });
    map.literal(r(20, 30), Lit { stream: 1, at: 5 });
    let mapped = map
        .try_map_literals(|_, lit| {
            Ok::<_, ()>(Lit {
                stream: 0,
                at: lit.at + 100,
            })
        })
        .unwrap();
    assert_eq!(mapped.literal_bytes(), 20);
    assert_eq!(
        map.try_map_literals::<Lit, _>(|range, _| if range.start() == 20 {
            Err(1)
        } else {
            Ok(Lit { stream: 0, at: 0 })
        }),
        Err(1)
    );
}
