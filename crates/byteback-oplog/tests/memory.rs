//! How much memory it takes to read what a cut reports must not depend on how much that is. Counted
//! where memory is handed out; a test binary of its own, so that nothing else is counted.

#![allow(clippy::unwrap_used, reason = "a test")]

mod imagined;

use std::num::NonZeroUsize;
use std::sync::Arc;

use byteback_extents::ByteRange;
use byteback_heap::{CountingHeap, used_by};
use byteback_host::clock::{Clock, RealClock};
use byteback_host::durable::{DurableDir, RealDir};
use byteback_host::random::RealRandomness;
use byteback_model::NodeId;
use byteback_oplog::{ChangeList, ChangesCursor, ChangesTotals, Log, PageLimits, WholeReason};

use imagined::{Imagined, PER_DIRECTORY};

#[global_allocator]
static HEAP: CountingHeap = CountingHeap;

/// The most memory that was in use during `work`, beyond what was before, in bytes.
fn peak_of(work: impl FnOnce()) -> usize {
    usize::try_from(used_by(work).1.peak_bytes).unwrap()
}

fn read_all(list: &ChangeList) -> ChangesTotals {
    let limits = PageLimits {
        items: NonZeroUsize::new(1000).unwrap(),
        ranges: NonZeroUsize::new(1000).unwrap(),
    };
    let mut totals = ChangesTotals::default();
    let mut cursor = Some(ChangesCursor::default());
    while let Some(at) = cursor {
        let page = list.page(&at, limits).unwrap();
        let more = page.totals();
        totals.nodes += more.nodes;
        totals.names += more.names;
        totals.content_bytes += more.content_bytes;
        cursor = page.next;
    }
    totals
}

/// The peaks while everything there is is read and counted, and while the changes of two epochs are
/// in which every file was written.
fn peaks(files: u64) -> [usize; 2] {
    let temp = tempfile::tempdir().unwrap();
    let dir: Arc<dyn DurableDir> = Arc::new(RealDir::open(temp.path()).unwrap());
    let clock: Arc<dyn Clock> = Arc::new(RealClock);
    let log = Log::open(&dir, clock, &RealRandomness).unwrap();
    log.scan(&Imagined { files }, &mut |_| {}).unwrap();
    let first_file = files / PER_DIRECTORY + 2;
    let nodes = files + first_file - 1;
    let first = log.cut_held(|| ()).unwrap();
    let mut held = Vec::new();
    for offset in [0, 100] {
        for node in first_file..=nodes {
            let operation = log.begin_write(NodeId(node), || None).unwrap();
            operation.wrote(NodeId(node), ByteRange::new(offset, offset + 10).unwrap());
        }
        held.push(log.cut_held(|| ()).unwrap());
    }
    let cut = log.look().unwrap();
    let expected = |content_bytes| ChangesTotals {
        nodes,
        names: nodes - 1,
        content_bytes,
    };
    let everything = cut.everything(WholeReason::NoMark);
    let since = cut.changes(Some(first.epoch())).unwrap();
    assert!(!since.is_everything());
    let of = |list: &ChangeList, expected: ChangesTotals| {
        // The database bounds the memory of its pages itself: the reading fills it before the
        // measurement.
        read_all(list);
        peak_of(|| {
            assert_eq!(list.totals().unwrap(), expected);
            assert_eq!(read_all(list), expected);
        })
    };
    let changed = ChangesTotals {
        nodes: files,
        names: 0,
        content_bytes: files * 20,
    };
    [of(&everything, expected(0)), of(&since, changed)]
}

#[test]
fn memory_does_not_grow_with_the_number_of_changes() {
    const MIB: usize = 1 << 20;
    let few = peaks(20_000);
    let many = peaks(120_000);
    eprintln!("peaks in bytes: {few:?} for 20,000 files, {many:?} for 120,000");
    for (what, (few, many)) in ["everything", "since a mark"].iter().zip(few.iter().zip(many)) {
        assert!(many < few + 2 * MIB, "{what}: {few} bytes grew to {many}");
    }
}
