//! The set against an array with one flag per byte.

use proptest::prelude::*;

use super::*;

const UNIVERSE: u64 = 200;

#[derive(Clone, Debug)]
enum Op {
    Insert(ByteRange),
    Remove(ByteRange),
    Truncate(u64),
    Union(Vec<ByteRange>),
    Subtract(Vec<ByteRange>),
    Intersect(Vec<ByteRange>),
}

fn range() -> impl Strategy<Value = ByteRange> {
    prop_oneof![9 => (0..UNIVERSE, 1..7_u64), 1 => (0..UNIVERSE, 1..90_u64)]
        .prop_map(|(start, len)| ByteRange::new(start, (start + len).min(UNIVERSE)).unwrap())
}

fn ranges() -> impl Strategy<Value = Vec<ByteRange>> {
    prop::collection::vec(range(), 0..40)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => range().prop_map(Op::Insert),
        6 => range().prop_map(Op::Remove),
        1 => (0..UNIVERSE + 5).prop_map(Op::Truncate),
        1 => ranges().prop_map(Op::Union),
        1 => ranges().prop_map(Op::Subtract),
        1 => ranges().prop_map(Op::Intersect),
    ]
}

fn flags(ranges: &[ByteRange]) -> Vec<bool> {
    (0..UNIVERSE)
        .map(|offset| ranges.iter().any(|range| range.contains(offset)))
        .collect()
}

/// The maximal runs of bytes with the flag `kind` within a range.
fn runs(model: &[bool], within: ByteRange, kind: bool) -> Vec<ByteRange> {
    let mut runs: Vec<ByteRange> = Vec::new();
    for offset in (within.start()..within.end()).filter(|&offset| model[offset as usize] == kind) {
        let byte = ByteRange::new(offset, offset + 1).unwrap();
        match runs.last_mut() {
            Some(run) if run.end() == offset => *run = run.hull(byte),
            _ => runs.push(byte),
        }
    }
    runs
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn equals_the_naive_set_after_every_step(ops in prop::collection::vec((op(), range()), 1..80)) {
        let all = ByteRange::new(0, UNIVERSE).unwrap();
        let mut set = ExtentSet::new();
        let mut model = vec![false; UNIVERSE as usize];
        for (op, probe) in ops {
            match op {
                Op::Insert(range) => {
                    set.insert(range);
                    model[range.start() as usize..range.end() as usize].fill(true);
                }
                Op::Remove(range) => {
                    set.remove(range);
                    model[range.start() as usize..range.end() as usize].fill(false);
                }
                Op::Truncate(at) => {
                    set.truncate(at);
                    model[at.min(UNIVERSE) as usize..].fill(false);
                }
                Op::Union(ranges) => {
                    set.union_with(&ranges.iter().copied().collect());
                    model.iter_mut().zip(flags(&ranges)).for_each(|(mine, theirs)| *mine |= theirs);
                }
                Op::Subtract(ranges) => {
                    set.subtract(&ranges.iter().copied().collect());
                    model.iter_mut().zip(flags(&ranges)).for_each(|(mine, theirs)| *mine &= !theirs);
                }
                Op::Intersect(ranges) => {
                    set = set.intersection(&ranges.iter().copied().collect());
                    model.iter_mut().zip(flags(&ranges)).for_each(|(mine, theirs)| *mine &= theirs);
                }
            }
            if let Err(error) = set.check_invariants() {
                return Err(TestCaseError::fail(format!("{error} in {set:?}")));
            }
            let extents = runs(&model, all, true);
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), extents.clone());
            prop_assert_eq!(set.len(), extents.len());
            prop_assert_eq!(set.total_len_bytes(), model.iter().filter(|&&flag| flag).count() as u64);
            prop_assert_eq!(set.iter_within(probe).collect::<Vec<_>>(), runs(&model, probe, true));
            prop_assert_eq!(set.gaps_within(probe).collect::<Vec<_>>(), runs(&model, probe, false));
            let flags = &model[probe.start() as usize..probe.end() as usize];
            prop_assert_eq!(set.covers(probe), flags.iter().all(|&flag| flag));
            prop_assert_eq!(set.intersects(probe), flags.iter().any(|&flag| flag));
            prop_assert_eq!(set.contains(probe.start()), flags[0]);
        }
    }

    #[test]
    fn a_walk_can_be_resumed_while_the_set_changes_behind_it(before in ranges(), behind in ranges()) {
        let mut set: ExtentSet = before.iter().copied().collect();
        let whole: Vec<ByteRange> = set.iter().collect();
        let mut walked = Vec::new();
        let mut position = 0;
        let mut changes = behind.into_iter();
        while let Some(extent) = set.iter_from(position).next() {
            walked.push(extent);
            position = extent.end();
            if let Some(change) = changes.next().and_then(|change| change.split_at(position.saturating_sub(1)).0) {
                set.insert(change);
            }
        }
        prop_assert_eq!(walked, whole);
    }
}

/// The example of SolFS, section 3.2.1: a request (25, 10) meets the extent (20, 7).
#[test]
fn the_papers_example_merges() {
    let mut set = ExtentSet::new();
    set.insert(ByteRange::from_offset_len(20, 7).unwrap());
    set.insert(ByteRange::from_offset_len(25, 10).unwrap());
    assert_eq!(
        set.iter().collect::<Vec<_>>(),
        [ByteRange::from_offset_len(20, 15).unwrap()]
    );
}
