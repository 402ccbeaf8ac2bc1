//! Inserting ranges into extent sets and maps, beside `RangeSet` and `RangeMap` of the crate
//! rangemap.
//!
//! All contenders insert the same ranges, which are generated before, in the same order into an
//! empty structure. Before anything is timed, both results are compared extent by extent. The time
//! is the thread's CPU time, which other activity on the machine affects less. Memory is counted in
//! a run of its own.

use std::hint::black_box;

use byteback_extents::{ByteRange, ExtentMap, ExtentSet, ExtentValue};
use byteback_heap::used_by;
use rangemap::{RangeMap, RangeSet};

use crate::alternate::{Contender, Measures, alternate};
use crate::random::Random;
use crate::report::{Goal, Metric, OURS, Record, record};
use crate::{Options, SuiteError};

const PEER: &str = "rangemap";

const METRICS: [Metric; 2] = [
    Metric {
        name: "insert",
        unit: "ns",
        goal: Some(Goal::TimesPeer(1.0, PEER)),
    },
    Metric {
        name: "memory",
        unit: "B/extent",
        goal: Some(Goal::TimesPeer(1.0, PEER)),
    },
];

/// The number of inserts in each case.
const INSERTS: u64 = 1_000_000;
const INSERTS_QUICK: u64 = 200_000;

/// A case: its name, the number of structures that it inserts into in turn, and the range of each
/// insert.
struct Case {
    name: &'static str,
    structures: usize,
    ranges: Vec<ByteRange>,
}

/// A value without a position, as in rangemap: equal values continue each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tag(u32);

impl ExtentValue for Tag {
    fn advance(&self, _by_bytes: u64) -> Self {
        *self
    }

    fn continues(&self, _len_bytes: u64, next: &Self) -> bool {
        self == next
    }
}

/// Generates the range of an insert, as offset and length, from the insert's number.
type MakeRange = Box<dyn FnMut(u64, &mut Random) -> (u64, u64)>;

fn cases(inserts: u64) -> Vec<Case> {
    let mut random = Random::new(1);
    let mut made = |name, structures, mut range: MakeRange| Case {
        name,
        structures,
        ranges: (0..inserts)
            .filter_map(|index| {
                let (offset, len) = range(index, &mut random);
                ByteRange::from_offset_len(offset, len)
            })
            .collect(),
    };
    let file = inserts * 16 * 1024;
    vec![
        made("sequential", 1, Box::new(|index, _| (index * 4096, 4096))),
        made(
            "backwards",
            1,
            Box::new(move |index, _| ((inserts - index) * 4096, 4096)),
        ),
        made("ascending, apart", 1, Box::new(|index, _| (index * 8192, 4096))),
        made(
            "random, apart",
            1,
            Box::new(move |_, random| (random.below(file / 4096) * 4096, 1024)),
        ),
        made(
            "random, overlapping",
            1,
            Box::new(move |_, random| (random.below(file), 1 + random.below(16 * 1024))),
        ),
        made(
            "random, merging to few",
            1,
            Box::new(move |_, random| (random.below(file), 1 + random.below(256 * 1024))),
        ),
        // Most logs are small (SolFS section 4.5: mostly fewer than 100): a thousand files written
        // to in turn.
        made(
            "random, small logs",
            2000,
            Box::new(|_, random| (random.below(1 << 20), 1 + random.below(1024))),
        ),
    ]
}

/// Runs the suite.
///
/// # Errors
/// If the contenders' results differ.
pub(crate) fn run(options: Options) -> Result<Vec<Record>, SuiteError> {
    let mut records = Vec::new();
    for case in cases(if options.quick { INSERTS_QUICK } else { INSERTS }) {
        let structures = case.structures;
        same_extents(
            &case,
            build(&case.ranges, structures, ExtentSet::new, |set, range| set.insert(range))
                .iter()
                .flatten()
                .map(|range| (range, 0)),
            build(&case.ranges, structures, RangeSet::new, |set, range| {
                set.insert(range.into())
            })
            .iter()
            .flat_map(RangeSet::iter)
            .map(|range| (range, 0)),
        )?;
        let mut contenders = [
            Contender::new(OURS, || {
                Ok(measure(
                    &case.ranges,
                    structures,
                    ExtentSet::new,
                    |set, range| set.insert(range),
                    ExtentSet::len,
                ))
            }),
            Contender::new(PEER, || {
                Ok(measure(
                    &case.ranges,
                    structures,
                    RangeSet::new,
                    |set, range| set.insert(range.into()),
                    |set: &RangeSet<u64>| set.iter().count(),
                ))
            }),
        ];
        let results = alternate(options.runs, &mut contenders)?;
        let name = format!("set: {}", case.name);
        records.extend(
            METRICS
                .iter()
                .filter_map(|&metric| record("extents", &name, metric, &results)),
        );

        // Few values, so that neighbours are sometimes joined. The value depends on the offset
        // alone.
        let tag = |range: ByteRange| Tag((range.start() >> 14 & 3) as u32);
        same_extents(
            &case,
            build(&case.ranges, structures, ExtentMap::new, |map, range| {
                map.insert(range, tag(range))
            })
            .iter()
            .flatten()
            .map(|(range, tag)| (range, tag.0)),
            build(&case.ranges, structures, RangeMap::new, |map, range| {
                map.insert(range.into(), tag(range))
            })
            .iter()
            .flat_map(RangeMap::iter)
            .map(|(range, tag)| (range, tag.0)),
        )?;
        let mut contenders = [
            Contender::new(OURS, || {
                Ok(measure(
                    &case.ranges,
                    structures,
                    ExtentMap::new,
                    |map, range| map.insert(range, tag(range)),
                    ExtentMap::len,
                ))
            }),
            Contender::new(PEER, || {
                Ok(measure(
                    &case.ranges,
                    structures,
                    RangeMap::new,
                    |map, range| map.insert(range.into(), tag(range)),
                    |map: &RangeMap<u64, Tag>| map.iter().count(),
                ))
            }),
        ];
        let results = alternate(options.runs, &mut contenders)?;
        let name = format!("map: {}", case.name);
        records.extend(
            METRICS
                .iter()
                .filter_map(|&metric| record("extents", &name, metric, &results)),
        );
    }
    Ok(records)
}

fn build<S>(
    ranges: &[ByteRange],
    structures: usize,
    new: impl Fn() -> S,
    insert: impl Fn(&mut S, ByteRange),
) -> Vec<S> {
    let mut built: Vec<S> = (0..structures).map(|_| new()).collect();
    insert_all(&mut built, ranges, insert);
    built
}

/// Inserts the ranges into the structures in turn.
fn insert_all<S>(structures: &mut [S], ranges: &[ByteRange], insert: impl Fn(&mut S, ByteRange)) {
    for chunk in ranges.chunks(structures.len()) {
        for (structure, &range) in structures.iter_mut().zip(chunk) {
            insert(structure, range);
        }
    }
}

/// Times the inserts, then counts the memory of the same in a second pass.
fn measure<S>(
    ranges: &[ByteRange],
    structures: usize,
    new: impl Fn() -> S,
    insert: impl Fn(&mut S, ByteRange),
    len: impl Fn(&S) -> usize,
) -> Measures {
    let start_s = thread_cpu_s();
    let built = black_box(build(ranges, structures, &new, &insert));
    let elapsed_s = thread_cpu_s() - start_s;
    drop(built);
    let mut built: Vec<S> = (0..structures).map(|_| new()).collect();
    let ((), used) = used_by(|| insert_all(&mut built, ranges, insert));
    let extents: usize = built.iter().map(len).sum();
    Measures::from([
        ("insert", elapsed_s * 1e9 / ranges.len() as f64),
        ("memory", used.live_bytes as f64 / extents as f64),
    ])
}

fn same_extents<'a, R: Into<std::ops::Range<u64>>, Q: 'a + Clone + Into<std::ops::Range<u64>>>(
    case: &Case,
    ours: impl Iterator<Item = (R, u32)>,
    theirs: impl Iterator<Item = (&'a Q, u32)>,
) -> Result<(), SuiteError> {
    let ours = ours.map(|(range, tag)| (range.into(), tag));
    if ours.eq(theirs.map(|(range, tag)| (range.clone().into(), tag))) {
        Ok(())
    } else {
        Err(format!("the results of {OURS} and {PEER} differ in the case \"{}\"", case.name).into())
    }
}

/// CPU time of this thread so far, seconds.
fn thread_cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    // Far below 2^52.
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
