//! How much memory it takes to read what a cut reports must not depend on how much that is. Counted where memory is handed out; a test
//! binary of its own, so that nothing else is counted.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{OsStr, OsString};
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use byteback_extents::ByteRange;
use byteback_host::clock::{Clock, RealClock};
use byteback_host::durable::{DurableDir, RealDir};
use byteback_host::random::RealRandomness;
use byteback_host::tree::{FileKind, Stat};
use byteback_oplog::{ChangeList, ChangesCursor, ChangesTotals, Log, NodeId, PageLimits, TreeView, WholeReason};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call is handed on to the system's allocator as it came; only numbers are kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's promise is handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is handed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most memory that was in use during `work`, beyond what was before, in bytes.
fn peak_of(work: impl FnOnce()) -> usize {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    work();
    PEAK.load(Ordering::Relaxed).saturating_sub(before)
}

const PER_DIRECTORY: u64 = 1000;

/// Directories of a thousand files each, none of which exists.
struct Imagined {
    files: u64,
}

fn stat(inode: u64, kind: FileKind) -> Stat {
    Stat {
        kind,
        mode: 0o644,
        nlink: 1,
        uid: 1000,
        gid: 1000,
        rdev: 0,
        size: 10,
        blocks: 8,
        block_size: 4096,
        mount_id: None,
        atime_ns: 0,
        mtime_ns: 0,
        ctime_ns: 0,
        btime_ns: Some(0),
        dev: 7,
        ino: inode,
    }
}

impl TreeView for Imagined {
    type Dir = Option<u64>;

    fn root(&self) -> io::Result<(Self::Dir, Stat)> {
        Ok((None, stat(2, FileKind::Dir)))
    }

    fn enter(&self, _: &Self::Dir, name: &OsStr) -> io::Result<Self::Dir> {
        Ok(Some(name.to_str().unwrap().parse().unwrap()))
    }

    fn entries(&self, dir: &Self::Dir) -> io::Result<Vec<(OsString, Stat)>> {
        Ok(match dir {
            None => (0..self.files / PER_DIRECTORY)
                .map(|number| (OsString::from(number.to_string()), stat(10 + number, FileKind::Dir)))
                .collect(),
            Some(dir) => (0..PER_DIRECTORY)
                .map(|number| {
                    let name = OsString::from(format!("a file with a name {number}.dat"));
                    (name, stat(1_000_000 + dir * PER_DIRECTORY + number, FileKind::File))
                })
                .collect(),
        })
    }
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

/// The peaks while everything there is is read and counted, and while the changes of two epochs are in which every file was written.
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
        // What the database keeps in memory of its pages is bounded by itself: it has what it wants before it is measured.
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
