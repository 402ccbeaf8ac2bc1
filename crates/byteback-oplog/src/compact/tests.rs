//! Which layers are kept for which border: consumers of the tree and of files, held cuts, consumers
//! that vanish.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use byteback_extents::ByteRange;
use byteback_host::clock::{Clock, SimClock};
use byteback_host::durable::DurableDir;
use byteback_host::random::SimRandomness;
use byteback_host::sim::SimDisk;
use byteback_host::tree::Identity;

use super::*;
use crate::keeper::tests::{as_keeper, beside, keeper};
use crate::{ContentChange, Cut, DropReason, LedgerEvent, LogError, LogOptions, RemainingLinks, WholeReason};
use byteback_model::NodeKind;

const DAY: Duration = Duration::from_secs(86_400);

struct Rig {
    dir: Arc<dyn DurableDir>,
    clock: Arc<SimClock>,
    log: Option<Log>,
}

impl Rig {
    fn new() -> Self {
        let mut rig = Self {
            dir: Arc::new(SimDisk::new(3)),
            clock: Arc::new(SimClock::new(1_700_000_000_000_000_000)),
            log: None,
        };
        rig.restart();
        rig
    }

    fn restart(&mut self) {
        self.log = None;
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        let keeper = as_keeper(&keeper());
        let log = Log::open_kept(&self.dir, keeper, clock, &SimRandomness::new(1), LogOptions::default());
        self.log = Some(log.unwrap());
    }

    fn log(&self) -> &Log {
        self.log.as_ref().unwrap()
    }

    fn create(&self, name: &str, inode: u64) -> NodeId {
        let identity = Identity {
            dev: 0,
            ino: inode,
            birth_ns: Some(5),
        };
        let operation = self.log().begin();
        operation.created(NodeId::ROOT, OsStr::new(name), &identity, NodeKind::File)
    }

    fn write(&self, node: NodeId, start: u64, end: u64) {
        let operation = self.log().begin_write(node, || None).unwrap();
        operation.wrote(node, ByteRange::new(start, end).unwrap());
    }

    /// A cut of `consumer` that is saved at once.
    fn save(&self, consumer: &str) -> Epoch {
        let cut = self.log().cut(consumer, || ()).unwrap();
        self.log().advance(consumer, Some(cut.epoch()), b"").unwrap();
        cut.epoch()
    }

    /// All layers: epoch and node.
    fn layers(&self) -> Vec<(u64, u64)> {
        let snapshot = self.log().database.snapshot().unwrap();
        let table = snapshot.transaction().open_table(LAYERS).unwrap();
        let layers = redb::ReadableTable::iter(&table).unwrap();
        layers.map(|layer| layer.unwrap().0.value()).collect()
    }
}

fn ranges(cut: &Cut, node: NodeId, since: Epoch) -> Vec<(u64, u64)> {
    match cut.change_of(node, Some(since)).unwrap().unwrap().content {
        ContentChange::Ranges(ranges) => ranges.iter().map(|range| (range.start(), range.end())).collect(),
        ContentChange::Unchanged => Vec::new(),
        ContentChange::Whole(reason) => panic!("whole: {reason:?}"),
    }
}

#[test]
fn figure_8_of_the_paper() {
    let rig = Rig::new();
    let file = rig.create("a", 2);
    let one = rig.save("app 1");
    rig.write(file, 20, 32);
    let two = rig.save("app 2");
    rig.write(file, 50, 58);
    let three = rig.save("app 2");
    rig.write(file, 60, 63);
    let four = rig.save("app 2");
    let look = rig.log().look().unwrap();
    assert_eq!(ranges(&look, file, one), [(20, 32), (50, 58), (60, 63)]);
    // Versions 2 and 3 are nobody's: they are merged into version 1. Four is the head.
    let touched: Vec<u64> = rig
        .layers()
        .into_iter()
        .filter(|(_, node)| *node == file.0)
        .map(|(epoch, _)| epoch)
        .collect();
    assert_eq!(touched, [one.0 - 1, one.0, two.0, three.0]);
    rig.log().compact_all().unwrap();
    let touched: Vec<u64> = rig
        .layers()
        .into_iter()
        .filter(|(_, node)| *node == file.0)
        .map(|(epoch, _)| epoch)
        .collect();
    assert_eq!(
        touched,
        [one.0],
        "merged into the version that app 1 has; what is elder is gone"
    );
    let look = rig.log().look().unwrap();
    assert_eq!(ranges(&look, file, one), [(20, 32), (50, 58), (60, 63)]);
    assert_eq!(ranges(&look, file, four), []);
    // A version that was merged is answered as of the one it was merged into.
    assert_eq!(ranges(&look, file, three), [(20, 32), (50, 58), (60, 63)]);
    // App 1's second backup reaches version 4, as nothing was written since: no version is added,
    // and none is left.
    assert_eq!(rig.save("app 1"), four);
    rig.log().compact_all().unwrap();
    assert_eq!(rig.layers(), []);
    let report = rig.log().compact(1).unwrap();
    assert_eq!(
        report,
        Compaction {
            is_done: true,
            ..Compaction::default()
        }
    );
}

#[test]
fn moving_a_mark_moves_nothing_else() {
    let rig = Rig::new();
    let files: Vec<NodeId> = (0..50)
        .map(|index| rig.create(&format!("f{index}"), index + 2))
        .collect();
    rig.save("app");
    for file in &files {
        rig.write(*file, 0, 10);
    }
    let before = rig.log().cut("app", || ()).unwrap();
    let layers = rig.layers();
    rig.log().advance("app", Some(before.epoch()), b"").unwrap();
    assert_eq!(rig.layers(), layers);
    // In small steps, each of which can be the last before a crash.
    let mut steps = 0;
    while !rig.log().compact(7).unwrap().is_done {
        steps += 1;
        let look = rig.log().look().unwrap();
        assert_eq!(ranges(&look, files[0], before.epoch()), []);
    }
    assert!(steps > 5, "{steps}");
    assert_eq!(rig.layers(), []);
}

#[test]
fn a_file_has_marks_of_its_own() {
    let mut rig = Rig::new();
    let (one, other) = (rig.create("a", 2), rig.create("b", 3));
    let cut = rig.log().cut_held(|| ()).unwrap();
    let first = cut.epoch();
    assert!(rig.log().set_file_mark("dropbox", one, first).unwrap());
    drop(cut);
    rig.write(one, 0, 10);
    rig.write(other, 0, 10);
    let cut = rig.log().cut_held(|| ()).unwrap();
    let second = cut.epoch();
    rig.write(one, 100, 110);
    assert_eq!(ranges(&cut, one, first), [(0, 10)]);
    assert!(rig.log().set_file_mark("onedrive", one, second).unwrap());
    drop(cut);
    rig.log().cut_held(|| ()).unwrap();
    rig.log().compact_all().unwrap();
    // Only the marked file has layers, one for each mark.
    assert_eq!(rig.layers(), [(first.0, one.0), (second.0, one.0)]);
    let look = rig.log().look().unwrap();
    assert_eq!(ranges(&look, one, first), [(0, 10), (100, 110)]);
    assert_eq!(ranges(&look, one, second), [(100, 110)]);
    let unknown = look.change_of(other, Some(first)).unwrap().unwrap();
    assert_eq!(unknown.content, ContentChange::Whole(WholeReason::NoMark));
    let before_all = look.change_of(one, Some(Epoch(first.0 - 1))).unwrap().unwrap();
    assert_eq!(before_all.content, ContentChange::Whole(WholeReason::NoMark));
    let never = look.change_of(one, Some(Epoch(u64::MAX))).unwrap().unwrap();
    assert_eq!(never.content, ContentChange::Whole(WholeReason::NoMark));
    assert!(
        look.changes(Some(first)).unwrap().is_everything(),
        "a mark of a file is none of the tree"
    );

    // They are there after a start, are listed, and move on.
    rig.restart();
    assert_eq!(rig.log().file_mark("dropbox", one).unwrap(), Some(first));
    assert_eq!(rig.log().file_mark("dropbox", other).unwrap(), None);
    let consumers = rig.log().consumers().unwrap();
    let listed: Vec<(&str, u64)> = consumers
        .iter()
        .map(|(name, state)| (name.as_str(), state.file_marks))
        .collect();
    assert_eq!(listed, [("dropbox", 1), ("onedrive", 1)]);
    let cut = rig.log().cut_held(|| ()).unwrap();
    assert!(rig.log().set_file_mark("dropbox", one, cut.epoch()).unwrap());
    assert_eq!(rig.log().consumer("dropbox").unwrap().file_marks, 1);

    // They go with the node.
    let operation = rig.log().begin();
    operation.unlinked(NodeId::ROOT, OsStr::new("a"), one, RemainingLinks::Gone);
    drop(operation);
    let late = rig.log().cut_held(|| ()).unwrap();
    assert_eq!(rig.log().file_mark("dropbox", one).unwrap(), None);
    assert_eq!(rig.log().consumer("onedrive").unwrap().file_marks, 0);
    assert!(!rig.log().set_file_mark("dropbox", one, late.epoch()).unwrap());
    assert!(late.change_of(one, None).unwrap().is_none());
}

#[test]
fn mark_needs_a_moment_that_is_held() {
    let rig = Rig::new();
    let file = rig.create("a", 2);
    let cut = rig.log().cut_held(|| ()).unwrap();
    let epoch = cut.epoch();
    let same = cut.clone();
    rig.write(file, 0, 10);
    drop(cut);
    let _newer = rig.log().cut_held(|| ()).unwrap();
    // The clone still holds it.
    assert!(rig.log().set_file_mark("app", file, epoch).unwrap());
    assert!(rig.log().drop_consumer("app").unwrap());
    drop(same);
    let refused = rig.log().set_file_mark("app", file, epoch);
    assert!(
        matches!(refused, Err(LogError::NotHeld { epoch: of }) if of == epoch),
        "{refused:?}"
    );
    assert_eq!(rig.log().file_mark("app", file).unwrap(), None);
    assert!(rig.log().consumer("app").unwrap().is_tombstone());
}

#[test]
fn a_dropped_consumer_is_noted_keeps_nothing_and_may_return() {
    let rig = Rig::new();
    let file = rig.create("a", 2);
    rig.save("app");
    rig.write(file, 0, 10);
    let cut = rig.log().cut_held(|| ()).unwrap();
    rig.log().set_file_mark("app", file, cut.epoch()).unwrap();
    drop(cut);
    assert!(!rig.log().drop_consumer("nobody").unwrap());
    assert!(rig.log().drop_consumer("app").unwrap());
    let state = rig.log().consumer("app").unwrap();
    assert_eq!(state.dropped.unwrap().reason, DropReason::Ordered);
    assert_eq!(rig.log().full_changes_reason(&state).unwrap(), WholeReason::Dropped);
    let last = rig.log().ledger().unwrap().pop().unwrap().event;
    let expected = LedgerEvent::ConsumerDropped {
        consumer: "app".to_owned(),
        reason: DropReason::Ordered,
    };
    assert_eq!(last, expected);
    rig.log().compact_all().unwrap();
    assert_eq!(rig.layers(), []);
    // It returns, and is a consumer like any other.
    rig.save("app");
    let state = rig.log().consumer("app").unwrap();
    assert!(state.dropped.is_none() && state.mark.is_some());
    // Twice dropped is forgotten.
    assert!(rig.log().drop_consumer("app").unwrap());
    assert!(rig.log().drop_consumer("app").unwrap());
    assert!(!rig.log().drop_consumer("app").unwrap());
    assert_eq!(rig.log().consumers().unwrap(), []);
}

#[test]
fn a_consumer_that_nobody_hears_of_is_warned_of_and_dropped() {
    let rig = Rig::new();
    rig.create("a", 2);
    rig.save("quiet");
    rig.save("alive");
    let heard_at_ns = rig.clock.now_ns();
    let drop_after = rig.log().options().expiry.drop_after;
    let expires = |name: &str| rig.log().expires_at_ns(&rig.log().consumer(name).unwrap());
    assert_eq!(drop_after, DAY * 180);
    rig.clock.advance(DAY * 90);
    assert_eq!(expires("quiet"), None);
    rig.clock.advance(DAY);
    assert_eq!(
        expires("quiet"),
        Some(heard_at_ns + i64::try_from(drop_after.as_nanos()).unwrap())
    );
    // A cut that is not saved is a sign of life too.
    rig.log().cut("alive", || ()).unwrap();
    assert_eq!(expires("alive"), None);
    rig.clock.advance(DAY * 89);
    assert_eq!(rig.log().expire_consumers(drop_after).unwrap(), [] as [String; 0]);
    rig.clock.advance(DAY);
    assert_eq!(rig.log().expire_consumers(drop_after).unwrap(), ["quiet"]);
    assert_eq!(rig.log().expire_consumers(drop_after).unwrap(), [] as [String; 0]);
    let state = rig.log().consumer("quiet").unwrap();
    assert_eq!(state.dropped.unwrap().reason, DropReason::Expired);
    assert_eq!(rig.log().expires_at_ns(&state), None);
    let reported = rig.log().ledger().unwrap().pop().unwrap().event;
    assert!(matches!(reported, LedgerEvent::ConsumerDropped { consumer, .. } if consumer == "quiet"));
    assert!(rig.log().consumer("alive").unwrap().mark.is_some());
}

#[test]
fn usage_counts_what_is_there() {
    let rig = Rig::new();
    let file = rig.create("a", 2);
    rig.save("app");
    for index in 0..100 {
        rig.write(file, index * 10, index * 10 + 5);
    }
    let usage = rig.log().usage().unwrap();
    assert_eq!(
        (usage.pending_extents, usage.pending_nodes, usage.unknown_files),
        (100, 1, 0)
    );
    assert!((1600..8000).contains(&usage.extent_bytes), "{usage:?}");
    assert!(usage.database_bytes > 0 && usage.intents_bytes == 512 + 2 * 2048 * 512);
    rig.log().report_again(&[file]).unwrap();
    let usage = rig.log().usage().unwrap();
    assert_eq!((usage.pending_extents, usage.unknown_files), (0, 1));
    rig.save("app");
    rig.log().compact_all().unwrap();
    assert_eq!(rig.log().usage().unwrap().unknown_files, 0);
}

#[test]
fn changes_of_one_file_are_found_among_a_thousand_layers() {
    let rig = Rig::new();
    let (file, other) = (rig.create("a", 2), rig.create("b", 3));
    let first = rig.save("app");
    let mut marks = Vec::new();
    for index in 0..1000 {
        rig.write(if index % 10 == 0 { file } else { other }, index * 10, index * 10 + 5);
        // Everybody keeps a mark: nothing can be merged.
        let cut = rig.log().cut_held(|| ()).unwrap();
        marks.push(cut);
    }
    rig.log().compact_all().unwrap();
    let look = rig.log().look().unwrap();
    assert!(rig.layers().len() >= 1000);
    assert_eq!(ranges(&look, file, first).len(), 100);
    assert_eq!(ranges(&look, file, marks[899].epoch()).len(), 10);
    // Walked one by one, each is told the rest.
    assert_eq!(ranges(&look, other, marks[989].epoch()).len(), 9);
}

#[test]
fn all_of_that_holds_with_layers_beside_the_files() {
    beside(figure_8_of_the_paper);
    beside(moving_a_mark_moves_nothing_else);
    beside(a_file_has_marks_of_its_own);
    beside(mark_needs_a_moment_that_is_held);
    beside(a_dropped_consumer_is_noted_keeps_nothing_and_may_return);
    beside(a_consumer_that_nobody_hears_of_is_warned_of_and_dropped);
    beside(changes_of_one_file_are_found_among_a_thousand_layers);
}

#[test]
fn layers_beside_the_files_go_once_given_up_and_unread() {
    let keeper = beside(|| {
        let rig = Rig::new();
        let node = rig.create("a", 7);
        let since = rig.save("ann");
        rig.write(node, 0, 10);
        let between = rig.save("bob");
        rig.write(node, 20, 30);
        let cut = rig.log().cut_held(|| {}).unwrap();
        rig.write(node, 40, 50);
        rig.save("bob");
        assert_eq!(ranges(&cut, node, since), [(0, 10), (20, 30)]);
        rig.log().compact_all().unwrap();
        // Merged layers are reported once, to every reader.
        assert_eq!(ranges(&cut, node, since), [(0, 10), (20, 30)]);
        assert_eq!(ranges(&cut, node, between), [(20, 30)]);
        let before = keeper().unwrap().count();
        drop(cut);
        rig.log().compact_all().unwrap();
        let look = rig.log().look().unwrap();
        assert_eq!(ranges(&look, node, since), [(0, 10), (20, 30), (40, 50)]);
        drop(look);
        rig.save("ann");
        rig.log().compact_all().unwrap();
        rig.write(node, 60, 70);
        drop(rig.log().look().unwrap());
        rig.save("ann");
        assert!(keeper().unwrap().count() < before);
    });
    drop(keeper);
}
