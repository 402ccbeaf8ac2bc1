//! A million nodes on a real disk: what asking about few of them costs. Takes ten seconds and some
//! hundred megabytes, hence only on request: `cargo test --release -p byteback-oplog --test scale
//! -- --ignored --nocapture`. `BYTEBACK_NODES` asks for another number.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a measurement, for people"
)]

mod imagined;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use byteback_extents::ByteRange;
use byteback_host::clock::{Clock, RealClock};
use byteback_host::durable::{DurableDir, RealDir};
use byteback_host::random::{RealRandomness, SplitMix64};
use byteback_model::{NodeId, NodeKind};
use byteback_oplog::{ChangesCursor, Close, Fence, Log, PageLimits, Settler};

use imagined::{Imagined, PER_DIRECTORY, stat};

/// Knows in which order the scan gives numbers: the root, the directories, then the files of the
/// last directory first.
struct Settled {
    directories: u64,
}

impl Settler for Settled {
    fn settle(&self, nodes: &[NodeId]) -> Vec<Option<Fence>> {
        let fence = |node: &NodeId| {
            let file = node.0.checked_sub(self.directories + 2)?;
            let directory = self.directories - 1 - file / PER_DIRECTORY;
            let inode = 1_000_000 + directory * PER_DIRECTORY + file % PER_DIRECTORY;
            Some(Fence::of(&stat(inode, NodeKind::File)))
        };
        nodes.iter().map(fence).collect()
    }
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn timed<T>(what: &str, act: impl FnOnce() -> T) -> (T, Duration) {
    let before = Instant::now();
    let value = act();
    let took = before.elapsed();
    println!("{what:<60} {took:>12.3?}   resident {:>4} MB", resident_bytes() >> 20);
    (value, took)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|number| number.parse().ok())
        .unwrap_or(default)
}

#[test]
#[ignore = "a measurement; takes hundreds of megabytes"]
fn a_hundred_of_a_million_files() {
    let files = number("BYTEBACK_NODES", 1_000_000);
    let view = Imagined { files };
    let folder = tempfile::tempdir().unwrap();
    let dir: Arc<dyn DurableDir> = Arc::new(RealDir::open(folder.path()).unwrap());
    let clock = || Arc::new(RealClock) as Arc<dyn Clock>;
    let (log, _) = timed("a new log", || Log::open(&dir, clock(), &RealRandomness).unwrap());
    timed("first scan", || log.scan(&view, &mut |_| {}).unwrap());
    let file = |number: u64| {
        let stat = stat(1_000_000 + number, NodeKind::File);
        log.node_of(&stat.identity()).unwrap().unwrap()
    };
    let save = |name: &str| {
        let cut = log.cut(name, || ()).unwrap();
        log.advance(name, Some(cut.epoch()), b"").unwrap();
        cut.epoch()
    };
    let settled = Settled {
        directories: files / PER_DIRECTORY,
    };
    let (report, _) = timed("everything is closed", || log.checkpoint(&settled, Close::All).unwrap());
    assert!(report.closed >= files);
    timed("first cut and mark", || save("app"));
    timed("what nobody needs is compacted", || log.compact_all().unwrap());
    println!("database: {} MB", log.usage().unwrap().database_bytes >> 20);

    let mut random = SplitMix64::new(1);
    let limits = PageLimits {
        items: NonZeroUsize::new(10_000).unwrap(),
        ranges: NonZeroUsize::new(10_000).unwrap(),
    };
    let mut times = Vec::new();
    let mut since = save("app");
    for round in 0..20 {
        for _ in 0..100 {
            let node = file(random.below(files));
            let operation = log.begin_write(node, || None).unwrap();
            operation.wrote(node, ByteRange::new(round * 100, round * 100 + 50).unwrap());
        }
        let before = Instant::now();
        let cut = log.cut("app", || ()).unwrap();
        let changes = cut.changes(Some(since)).unwrap();
        let changes = changes.page(&ChangesCursor::default(), limits).unwrap();
        let took = before.elapsed();
        assert!((90..=100).contains(&changes.nodes.len()));
        assert!(changes.nodes.iter().all(|change| change.kind == NodeKind::File));
        times.push(took);
        log.advance("app", Some(cut.epoch()), b"").unwrap();
        since = cut.epoch();
        log.compact_all().unwrap();
    }
    log.checkpoint(&settled, Close::All).unwrap();
    println!("cut and changes after 100 writes, median of 20: {:?}", median(times));
    timed("usage", || log.usage().unwrap());
    drop(log);
    let (log, _) = timed("opened again, every page compared", || {
        Log::open(&dir, clock(), &RealRandomness).unwrap()
    });
    let (report, _) = timed("scan of a tree that did not change", || {
        log.scan(&view, &mut |_| {}).unwrap()
    });
    assert_eq!((report.changed_files, report.changed_names), (0, 0));
    assert!(number("BYTEBACK_NODES", 0) > 0 || resident_bytes() < 150 << 20);
}
