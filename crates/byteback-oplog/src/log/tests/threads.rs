//! Writers, cuts and checkpoints at the same time, as in a mount under load.
//!
//! Each writer owns a file and keeps a count of the writes that returned. At a cut nothing is under
//! way, so the bytes that a consumer is told must make its last copy of each file equal to what the
//! writer had written at the cut.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use byteback_extents::ByteRange;
use byteback_host::random::SplitMix64;
use byteback_host::tree::Identity;

use super::*;
use crate::changes::tests::all;
use crate::{Close, ContentChange, Fence, Settler, TIME_TICK_NS};
use byteback_model::NodeKind;

const FILES: usize = 4;
const FILE_BYTES: usize = 512;

struct File {
    node: NodeId,
    bytes: parking_lot::Mutex<Vec<u8>>,
    /// Its change time; moves with each write, as that of a real file does.
    ctime_ns: AtomicU64,
}

impl File {
    fn look(&self) -> Fence {
        let ctime_ns = i64::try_from(self.ctime_ns.load(Ordering::SeqCst)).unwrap();
        Fence {
            size_bytes: FILE_BYTES as u64,
            mtime_ns: ctime_ns,
            ctime_ns,
            mode: 0o600,
            uid: 0,
            gid: 0,
        }
    }
}

struct Files<'a> {
    files: &'a [File],
    clock: &'a SimClock,
}

impl Settler for Files<'_> {
    fn settle(&self, nodes: &[NodeId]) -> Vec<Option<Fence>> {
        let settle_one = |node: &NodeId| {
            let file = self.files.iter().find(|file| file.node == *node)?;
            let fence = file.look();
            (self.clock.now_ns() - fence.ctime_ns > TIME_TICK_NS).then_some(fence)
        };
        nodes.iter().map(settle_one).collect()
    }
}

#[test]
fn cuts_and_checkpoints_miss_no_write_that_runs_beside_them() {
    let clock = Arc::new(SimClock::new(START_NS));
    // So small an intent file that generations change all the time.
    let log = open(&SimDisk::new(3), &clock, 4).unwrap();
    let mut identities = (0..=FILES as u64).map(|ino| Identity {
        dev: 1,
        ino: ino + 2,
        birth_ns: Some(5),
    });
    let tree = super::tree::FakeTree::new(true, START_NS - 1_000_000_000);
    log.scan(&tree, &mut |_| {}).unwrap();
    let files: Vec<File> = identities
        .by_ref()
        .skip(1)
        .enumerate()
        .map(|(index, identity)| File {
            node: log
                .begin()
                .created(NodeId::ROOT, OsStr::new(&index.to_string()), &identity, NodeKind::File),
            bytes: parking_lot::Mutex::new(vec![0; FILE_BYTES]),
            ctime_ns: AtomicU64::new(START_NS as u64),
        })
        .collect();
    let stop = AtomicBool::new(false);
    let writes = AtomicU64::new(0);
    let (mut saves, mut narrow) = (0, 0);
    thread::scope(|scope| {
        for (index, file) in files.iter().enumerate() {
            let (log, clock, stop, writes) = (&log, &clock, &stop, &writes);
            scope.spawn(move || {
                let mut random = SplitMix64::new(index as u64);
                while !stop.load(Ordering::Relaxed) {
                    let at = random.below(FILE_BYTES as u64 - 8);
                    let operation = log.begin_write(file.node, || Some(file.look())).unwrap();
                    let value = random.next_u64().to_le_bytes();
                    file.bytes.lock()[at as usize..at as usize + 8].copy_from_slice(&value);
                    file.ctime_ns.store(clock.now_ns() as u64, Ordering::SeqCst);
                    operation.wrote(file.node, ByteRange::new(at, at + 8).unwrap());
                    drop(operation);
                    writes.fetch_add(1, Ordering::Relaxed);
                    if random.below(16) == 0 {
                        clock.advance(Duration::from_millis(30));
                        thread::sleep(Duration::from_micros(300));
                    }
                }
            });
        }
        scope.spawn(|| {
            let settler = Files {
                files: &files,
                clock: &clock,
            };
            while !stop.load(Ordering::Relaxed) {
                log.checkpoint(&settler, Close::QuietFor { ns: 10_000_000 }).unwrap();
            }
        });
        // Also if an assertion fails: the scope waits for the others.
        scopeguard::defer! { stop.store(true, Ordering::Relaxed) }
        let mut saved: Vec<Vec<u8>> = vec![vec![0xee; FILE_BYTES]; FILES];
        for _ in 0..150 {
            let enough = writes.load(Ordering::Relaxed) + 10;
            while writes.load(Ordering::Relaxed) < enough {
                thread::yield_now();
            }
            let mut now = Vec::new();
            let cut = log
                .cut("one", || {
                    now = files.iter().map(|file| file.bytes.lock().clone()).collect()
                })
                .unwrap();
            let changes = cut.changes(log.consumer("one").unwrap().mark).unwrap();
            let changes = all(&changes).unwrap();
            for ((file, saved), now) in files.iter().zip(&mut saved).zip(&now) {
                match changes
                    .nodes
                    .iter()
                    .find(|change| change.node == file.node)
                    .map(|change| &change.content)
                {
                    Some(ContentChange::Whole(_)) => saved.clone_from(now),
                    Some(ContentChange::Ranges(ranges)) => {
                        narrow += 1;
                        for range in ranges.iter() {
                            let range = range.start() as usize..range.end() as usize;
                            saved[range.clone()].copy_from_slice(&now[range]);
                        }
                    }
                    Some(ContentChange::Unchanged) | None => {}
                }
                assert_eq!(saved, now, "save {saves}, {:?}", file.node);
            }
            log.advance("one", None, b"").unwrap();
            saves += 1;
        }
    });
    assert!(
        narrow > saves,
        "only {narrow} of {saves} saves were told ranges: nothing was shown"
    );
}

/// A checkpoint makes it durable that a node is gone, or that another one has its number, between
/// the look into the database and the one into memory: what was read is outdated, and nothing in
/// memory says so any more.
#[test]
fn node_that_is_gone_is_not_found_during_its_checkpoint() {
    let clock = Arc::new(SimClock::new(START_NS));
    let log = open(&SimDisk::new(4), &clock, 64).unwrap();
    let tree = super::tree::FakeTree::new(true, START_NS - 1_000_000_000);
    log.scan(&tree, &mut |_| {}).unwrap();
    let identity = Identity {
        dev: 1,
        ino: 9,
        birth_ns: Some(5),
    };
    let flush = || {
        let _one = log.checkpointing.lock();
        log.flush().unwrap();
    };
    let (name, key) = (OsStr::new("a"), log.key(&identity));
    let create = || log.begin().created(NodeId::ROOT, name, &identity, NodeKind::File);
    for is_followed in [false, true] {
        let node = create();
        flush();
        log.begin()
            .unlinked(NodeId::ROOT, name, node, crate::RemainingLinks::Gone);
        // The same inode number again, within the same tick.
        let expected = is_followed.then(create);
        let mut looks = 0;
        let found = log.node_of_key(key, || {
            let snapshot = log.database.snapshot();
            looks += 1;
            if looks == 1 {
                flush();
            }
            snapshot
        });
        assert_eq!(found.unwrap(), expected);
        assert_eq!(log.node_of(&identity).unwrap(), expected);
        let begun = log.begin_content(&identity, ByteRange::new(0, 1), || None).unwrap();
        assert_eq!(begun.map(|(_, node)| node), expected);
    }
}

/// Looks, while a checkpoint closes a file, whether the log still explains it.
struct Asking<'a> {
    log: &'a Log,
    fence: Fence,
    explained: std::cell::RefCell<Vec<bool>>,
}

impl Settler for Asking<'_> {
    fn settle(&self, nodes: &[NodeId]) -> Vec<Option<Fence>> {
        let later = Fence {
            ctime_ns: i64::MAX,
            ..self.fence
        };
        let asked = nodes.iter().filter(|node| **node != NodeId::ROOT);
        for node in asked {
            let mut explained = self.explained.borrow_mut();
            explained.push(self.log.explains(*node, &self.fence).unwrap());
            explained.push(self.log.explains(*node, &later).unwrap());
        }
        nodes.iter().map(|_| Some(self.fence)).collect()
    }
}

/// A reader that finds a file different from what was written asks whether the log explains it, and
/// takes an unexplained state for a change past the mount. A checkpoint syncs the file while it
/// closes it, which takes long.
#[test]
fn a_file_that_is_being_closed_is_explained_as_before_and_after() {
    let clock = Arc::new(SimClock::new(START_NS));
    let log = open(&SimDisk::new(5), &clock, 64).unwrap();
    let tree = super::tree::FakeTree::new(true, START_NS - 1_000_000_000);
    log.scan(&tree, &mut |_| {}).unwrap();
    let identity = Identity {
        dev: 1,
        ino: 9,
        birth_ns: Some(5),
    };
    let node = log
        .begin()
        .created(NodeId::ROOT, OsStr::new("a"), &identity, NodeKind::File);
    let fence = Fence {
        size_bytes: 1,
        mtime_ns: START_NS,
        ctime_ns: START_NS,
        mode: 0o600,
        uid: 0,
        gid: 0,
    };
    for is_written in [false, true, true] {
        if is_written {
            drop(
                log.begin_content(&identity, ByteRange::new(0, 1), || Some(fence))
                    .unwrap(),
            );
        }
        assert!(log.explains(node, &fence).unwrap());
        let explained = std::cell::RefCell::default();
        let log = &log;
        let settler = Asking { log, fence, explained };
        log.checkpoint(&settler, Close::All).unwrap();
        assert_eq!(*settler.explained.borrow(), [true, false]);
        assert!(log.explains(node, &fence).unwrap());
        assert!(log.state.lock().closing.is_empty());
    }
}
