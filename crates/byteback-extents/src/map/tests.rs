//! The map against an array with one value per byte.
//!
//! Leaves hold at most eight entries under test, so that a small universe already splits, joins and
//! drops leaves.

use proptest::prelude::*;

use super::*;

const UNIVERSE: u64 = 160;

/// A value with a position, like a place in a segment: byte `i` of the extent is byte `at + i` of
/// stream `stream`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct At {
    stream: u8,
    at: u64,
}

impl ExtentValue for At {
    fn advance(&self, by_bytes: u64) -> Self {
        Self {
            stream: self.stream,
            at: self.at + by_bytes,
        }
    }

    fn continues(&self, len_bytes: u64, next: &Self) -> bool {
        self.stream == next.stream && self.at + len_bytes == next.at
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u64, u64, At),
    /// Continues the previous insert, forwards or backwards.
    Sequential {
        len: u64,
        backwards: bool,
        overlap: u64,
    },
    Remove(u64, u64),
    Truncate(u64),
    Overlay(Vec<(u64, u64, At)>),
    Clear,
}

fn value() -> impl Strategy<Value = At> {
    // Few streams and aligned positions, so that values often continue each other by chance, even
    // across other extents.
    prop_oneof![
        (0..2_u8).prop_map(|stream| At { stream, at: 1000 }),
        (0..2_u8, 0..4_u64).prop_map(|(stream, at)| At { stream, at: 1000 + at }),
    ]
}

/// Values that depend on the offset alone: all neighbours of one stream continue each other.
fn placed(start: u64, value: At) -> At {
    At {
        stream: value.stream,
        at: value.at + start,
    }
}

fn span() -> impl Strategy<Value = (u64, u64)> {
    prop_oneof![
        8 => (0..UNIVERSE, 1..9_u64),
        2 => (0..UNIVERSE, 1..80_u64),
    ]
    .prop_map(|(start, len)| (start, (start + len).min(UNIVERSE)))
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (span(), value()).prop_map(|((start, end), value)| Op::Insert(start, end, placed(start, value))),
        3 => (span(), value()).prop_map(|((start, end), value)| Op::Insert(start, end, value)),
        6 => (1..6_u64, any::<bool>(), 0..3_u64)
            .prop_map(|(len, backwards, overlap)| Op::Sequential { len, backwards, overlap }),
        6 => span().prop_map(|(start, end)| Op::Remove(start, end)),
        1 => (UNIVERSE / 2..UNIVERSE + 5).prop_map(Op::Truncate),
        1 => prop::collection::vec((span(), value()), 0..12).prop_map(|spans| {
            Op::Overlay(spans.into_iter().map(|((start, end), value)| (start, end, placed(start, value))).collect())
        }),
        1 => Just(Op::Clear),
    ]
}

fn r(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end).unwrap()
}

/// The naive map: a value for each byte.
struct Model([Option<At>; UNIVERSE as usize]);

impl Model {
    fn insert(&mut self, start: u64, end: u64, value: At) {
        for offset in start..end {
            self.0[offset as usize] = Some(value.advance(offset - start));
        }
    }

    fn remove(&mut self, start: u64, end: u64) {
        self.0[start as usize..end as usize].fill(None);
    }

    /// The fewest extents that describe the same values within a range.
    fn extents(&self, start: u64, end: u64) -> Vec<(ByteRange, At)> {
        let mut extents: Vec<(ByteRange, At)> = Vec::new();
        for offset in start..end {
            let Some(value) = self.0[offset as usize] else { continue };
            match extents.last_mut() {
                Some((range, first)) if range.end() == offset && first.continues(range.len_bytes(), &value) => {
                    *range = range.hull(r(offset, offset + 1));
                }
                _ => extents.push((r(offset, offset + 1), value)),
            }
        }
        extents
    }
}

fn check(map: &ExtentMap<At>, model: &Model, (start, end): (u64, u64)) -> Result<(), TestCaseError> {
    if let Err(error) = map.check_invariants() {
        return Err(TestCaseError::fail(format!("{error} in {map:?}")));
    }
    let all = model.extents(0, UNIVERSE);
    prop_assert_eq!(
        map.iter().map(|(range, value)| (range, *value)).collect::<Vec<_>>(),
        all.clone()
    );
    prop_assert_eq!(map.len(), all.len());
    prop_assert_eq!(map.is_empty(), all.is_empty());
    prop_assert_eq!(map.covered_bytes(), model.0.iter().flatten().count() as u64);
    prop_assert_eq!(
        map.hull(),
        all.first().map(|(first, _)| first.hull(all[all.len() - 1].0))
    );

    let within = r(start, end);
    prop_assert_eq!(map.pieces(within).collect::<Vec<_>>(), model.extents(start, end));
    let after: Vec<_> = all.iter().copied().filter(|(range, _)| range.end() > start).collect();
    prop_assert_eq!(
        map.iter_from(start)
            .map(|(range, value)| (range, *value))
            .collect::<Vec<_>>(),
        after
    );
    let gap_bytes: Vec<u64> = map.gaps(within).flat_map(|gap| gap.start()..gap.end()).collect();
    let expected: Vec<u64> = (start..end)
        .filter(|&offset| model.0[offset as usize].is_none())
        .collect();
    prop_assert_eq!(gap_bytes, expected);
    let mut position = start;
    for (range, value) in map.tiles(within) {
        prop_assert_eq!(range.start(), position);
        position = range.end();
        for offset in range.start()..range.end() {
            prop_assert_eq!(
                value.map(|value| value.advance(offset - range.start())),
                model.0[offset as usize]
            );
        }
    }
    prop_assert_eq!(position, end);
    let got = map.get(start);
    prop_assert_eq!(
        got.map(|(range, value)| value.advance(start - range.start())),
        model.0[start as usize]
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6000, ..ProptestConfig::default() })]

    #[test]
    fn equals_the_naive_map_after_every_step(
        ops in prop::collection::vec((op(), span()), 1..80),
    ) {
        let mut map = ExtentMap::new();
        let mut model = Model([None; UNIVERSE as usize]);
        let mut last = (UNIVERSE / 2, UNIVERSE / 2 + 1, At { stream: 0, at: 1000 + UNIVERSE / 2 });
        for (op, probe) in ops {
            match op {
                Op::Insert(start, end, value) => {
                    map.insert(r(start, end), value);
                    model.insert(start, end, value);
                    last = (start, end, value);
                }
                Op::Sequential { len, backwards, overlap } => {
                    let (start, end, value) = last;
                    let (start, end, value) = if backwards {
                        let new_start = start.saturating_sub(len);
                        let value = At { at: value.at.saturating_sub(start - new_start), ..value };
                        (new_start, (start + overlap).min(end), value)
                    } else {
                        let new_start = end.saturating_sub(overlap).max(start);
                        (new_start, (end + len).min(UNIVERSE), value.advance(new_start - start))
                    };
                    if let Some(range) = ByteRange::new(start, end) {
                        map.insert(range, value);
                        model.insert(start, end, value);
                        last = (start, end, value);
                    }
                }
                Op::Remove(start, end) => {
                    map.remove(r(start, end));
                    model.remove(start, end);
                }
                Op::Truncate(at) => {
                    map.truncate(at);
                    model.remove(at.min(UNIVERSE), UNIVERSE);
                }
                Op::Overlay(extents) => {
                    let newer: ExtentMap<At> = extents.iter().map(|&(start, end, value)| (r(start, end), value)).collect();
                    newer.check_invariants().unwrap();
                    map.overlay(&newer);
                    for (start, end, value) in extents {
                        model.insert(start, end, value);
                    }
                }
                Op::Clear => {
                    map.clear();
                    model.remove(0, UNIVERSE);
                }
            }
            check(&map, &model, probe)?;
        }
    }

    #[test]
    fn equality_and_shrinking_do_not_depend_on_history(
        spans in prop::collection::vec((span(), value()), 1..60),
    ) {
        let mut map = ExtentMap::new();
        for ((start, end), value) in spans {
            map.insert(r(start, end), placed(start, value));
        }
        let mut rebuilt: ExtentMap<At> = map.iter().map(|(range, value)| (range, *value)).collect();
        prop_assert_eq!(&rebuilt, &map);
        rebuilt.shrink_to_fit();
        prop_assert!(rebuilt.check_invariants().is_ok());
        prop_assert_eq!(&rebuilt, &map);
        rebuilt.remove(map.hull().unwrap());
        prop_assert!(rebuilt.is_empty() && rebuilt.check_invariants().is_ok());
    }
}

#[test]
fn extent_map_keeps_unrelated_values_apart_and_tails_in_place() {
    let mut map = ExtentMap::new();
    map.insert(r(0, 100), At { stream: 0, at: 0 });
    map.insert(r(40, 60), At { stream: 1, at: 500 });
    let extents: Vec<_> = map.iter().map(|(range, value)| (range, *value)).collect();
    assert_eq!(
        extents,
        [
            (r(0, 40), At { stream: 0, at: 0 }),
            (r(40, 60), At { stream: 1, at: 500 }),
            (r(60, 100), At { stream: 0, at: 60 }),
        ]
    );
    // The same bytes as before in the middle: the map is one extent again.
    map.insert(r(40, 60), At { stream: 0, at: 40 });
    assert_eq!(map.len(), 1);
}

#[test]
fn extent_replaced_at_a_leaf_border_joins_the_leaf_before() {
    for count in 4..40_u64 {
        for replaced in 1..count {
            // Neighbours that touch but do not continue each other.
            let mut map: ExtentMap<At> = (0..count)
                .map(|i| {
                    (
                        r(i * 10, i * 10 + 10),
                        At {
                            stream: (i % 2) as u8,
                            at: i * 1000,
                        },
                    )
                })
                .collect();
            let before = At {
                stream: ((replaced - 1) % 2) as u8,
                at: (replaced - 1) * 1000,
            };
            map.insert(r(replaced * 10, replaced * 10 + 5), before.advance(10));
            map.check_invariants().unwrap();
            assert_eq!(map.len() as u64, count);
            assert_eq!(
                map.get(replaced * 10),
                Some((r(replaced * 10 - 10, replaced * 10 + 5), &before))
            );
        }
    }
}

#[test]
fn the_ends_of_the_offset_space_are_ordinary() {
    let mut map = ExtentMap::new();
    map.insert(r(0, u64::MAX), ());
    assert_eq!(map.covered_bytes(), u64::MAX);
    map.insert(r(u64::MAX - 1, u64::MAX), ());
    map.remove(r(5, u64::MAX - 5));
    map.check_invariants().unwrap();
    assert_eq!(map.len(), 2);
    map.truncate(u64::MAX);
    assert_eq!(map.len(), 2);
    map.truncate(0);
    assert!(map.is_empty());
    assert_eq!(map.get(0), None);
    assert_eq!(map.iter_from(u64::MAX).next(), None);
}

#[test]
fn ascending_and_descending_extents_fill_their_leaves() {
    const COUNT: u64 = 1000;
    let ascending: ExtentMap<()> = (0..COUNT).map(|i| (r(i * 10, i * 10 + 1), ())).collect();
    let descending: ExtentMap<()> = (0..COUNT).rev().map(|i| (r(i * 10, i * 10 + 1), ())).collect();
    for map in [&ascending, &descending] {
        map.check_invariants().unwrap();
        assert_eq!(
            map.leaves.len() as u64,
            COUNT.div_ceil(ExtentMap::<()>::LEAF_ENTRIES_MAX as u64)
        );
    }
    assert_eq!(ascending, descending);
}

#[test]
fn removing_most_entries_gives_their_leaves_back() {
    let mut map: ExtentMap<()> = (0..1000).map(|i| (r(i * 10, i * 10 + 1), ())).collect();
    for i in (0..1000).filter(|i| i % 50 != 0) {
        map.remove(r(i * 10, i * 10 + 1));
        map.check_invariants().unwrap();
    }
    assert_eq!(map.len(), 20);
    assert!(map.leaves.len() <= 10, "{} leaves for 20 entries", map.leaves.len());
}

#[test]
fn an_empty_map_allocates_nothing_and_one_extent_little() {
    let mut map = ExtentMap::new();
    assert_eq!(map.heap_bytes(), 0);
    map.insert(r(0, 4096), ());
    for i in 1..1000 {
        map.insert(r(i * 4096, (i + 1) * 4096), ());
    }
    assert_eq!(map.len(), 1);
    assert!(map.heap_bytes() <= 128, "{} bytes for one extent", map.heap_bytes());
}
