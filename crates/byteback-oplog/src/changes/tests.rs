//! Lists of changes, read in pages of every size, also while the tree goes on changing. The random
//! worlds of `log/tests` check what is in them: they read through [`all`].

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::Arc;

use byteback_extents::ByteRange;
use byteback_host::clock::{Clock, SimClock};
use byteback_host::durable::DurableDir;
use byteback_host::random::{SimRandomness, SplitMix64};
use byteback_host::sim::SimDisk;
use byteback_host::tree::Identity;

use super::*;
use crate::keeper::tests::{as_keeper, beside, keeper};
use crate::{Log, LogOptions, RemainingLinks};

/// A whole list in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) is_everything: bool,
    pub(crate) nodes: Vec<NodeChange>,
    pub(crate) names: Vec<NameChange<NodeId>>,
}

pub(crate) fn limits(items: usize, ranges: usize) -> PageLimits {
    PageLimits {
        items: NonZeroUsize::new(items).unwrap(),
        ranges: NonZeroUsize::new(ranges).unwrap(),
    }
}

fn read(list: &ChangeList, limits: PageLimits) -> Result<Changes> {
    let mut all = Changes {
        is_everything: list.is_everything(),
        ..Changes::default()
    };
    let mut cursor = ChangesCursor::default();
    loop {
        let page = list.page(&cursor, limits)?;
        let is_empty = page.nodes.is_empty() && page.names.is_empty();
        assert!(page.nodes.len() + page.names.len() <= limits.items.get());
        all.nodes.extend(page.nodes);
        all.names.extend(page.names);
        match page.next {
            Some(next) => {
                assert!(!is_empty && next != cursor, "the pages do not end: {next:?}");
                cursor = next;
            }
            None => return Ok(all),
        }
    }
}

/// All of a list, which is the same in pages of any size, in order, and of the size that it says.
pub(crate) fn all(list: &ChangeList) -> Result<Changes> {
    let all = read(list, limits(1_000_000, 1_000_000))?;
    for (items, ranges) in [(1, 9), (2, 1), (3, 2)] {
        assert_eq!(
            read(list, limits(items, ranges))?,
            all,
            "in pages of {items} items and {ranges} ranges"
        );
    }
    assert!(all.nodes.is_sorted_by_key(|change| change.node));
    assert!(
        all.names
            .is_sorted_by(|one, other| (one.parent, &one.name) < (other.parent, &other.name))
    );
    let page = list.page(&ChangesCursor::default(), limits(1_000_000, 1_000_000))?;
    assert_eq!((list.totals()?, page.next.is_none()), (page.totals(), true));
    Ok(all)
}

#[test]
fn lists_that_are_merged_say_what_their_sum_says() {
    for seed in 0..2000 {
        let mut random = SplitMix64::new(seed);
        let mut model: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let mut lists = Vec::new();
        for list in 0..random.below(5) {
            let items: BTreeMap<u64, u64> = (0..random.below(8)).map(|_| (random.below(10), list)).collect();
            for (key, list) in &items {
                model.entry(*key).or_default().push(*list);
            }
            lists.push(items.into_iter().map(|(key, list)| Ok((key, vec![list]))));
        }
        let mut merged = Merged::new(lists).unwrap();
        let mut found = BTreeMap::new();
        while let Some((key, sum)) = merged.next_sum(|sum: &mut Vec<u64>, newer| sum.extend(newer)).unwrap() {
            assert!(found.insert(key, sum).is_none(), "seed {seed}: {key} comes twice");
            assert_eq!(found.keys().next_back(), Some(&key), "seed {seed}: out of order");
        }
        assert_eq!(found, model, "seed {seed}");
    }
}

struct Rig {
    log: Log,
    names: BTreeMap<String, NodeId>,
    random: SplitMix64,
    inodes: u64,
}

impl Rig {
    fn new(seed: u64) -> Self {
        let dir: Arc<dyn DurableDir> = Arc::new(SimDisk::new(seed));
        let clock: Arc<dyn Clock> = Arc::new(SimClock::new(1_700_000_000_000_000_000));
        Self {
            log: Log::open_kept(
                &dir,
                as_keeper(&keeper()),
                clock,
                &SimRandomness::new(seed),
                LogOptions::default(),
            )
            .unwrap(),
            names: BTreeMap::new(),
            random: SplitMix64::new(seed),
            inodes: 10,
        }
    }

    fn change(&mut self) {
        let name = format!("name{}", self.random.below(30));
        match self.names.get(&name).copied() {
            None => {
                self.inodes += 1;
                let identity = Identity {
                    dev: 0,
                    ino: self.inodes,
                    birth_ns: Some(1),
                };
                let operation = self.log.begin();
                let node = operation.created(NodeId::ROOT, OsStr::new(&name), &identity, NodeKind::File);
                self.names.insert(name, node);
            }
            Some(node) if self.random.below(3) == 0 => {
                let operation = self.log.begin();
                operation.unlinked(NodeId::ROOT, OsStr::new(&name), node, RemainingLinks::Gone);
                self.names.remove(&name);
            }
            Some(node) => {
                let at = self.random.below(100) * 10;
                let operation = self.log.begin_write(node, || None).unwrap();
                operation.wrote(node, ByteRange::new(at, at + 5).unwrap());
            }
        }
    }
}

/// Lists that are half read stand still while files come, change and go, epochs end, and what
/// nobody needs is compacted.
#[test]
fn changes_between_two_pages_are_in_neither() {
    for seed in 0..60 {
        let mut rig = Rig::new(seed);
        let mut held = Vec::new();
        for _ in 0..rig.random.below(6) {
            (0..rig.random.below(30)).for_each(|_| rig.change());
            held.push(rig.log.cut_held(|| ()).unwrap());
        }
        (0..rig.random.below(30)).for_each(|_| rig.change());
        let cut = rig.log.cut_held(|| ()).unwrap();
        let mut lists = vec![cut.everything(WholeReason::NoMark)];
        lists.extend(held.iter().map(|held| cut.changes(Some(held.epoch())).unwrap()));
        for (number, list) in lists.iter().enumerate() {
            assert_eq!(list.is_everything(), number == 0, "seed {seed}");
            let expected = all(list).unwrap();
            let (mut nodes, mut names) = (Vec::new(), Vec::new());
            let mut cursor = Some(ChangesCursor::default());
            while let Some(at) = cursor {
                for _ in 0..rig.random.below(8) {
                    rig.change();
                }
                match rig.random.below(6) {
                    0 => drop(rig.log.cut("ann", || ()).unwrap()),
                    1 => rig.log.advance("ann", None, b"").unwrap(),
                    2 => rig.log.compact_all().unwrap(),
                    3 => drop(rig.log.look().unwrap()),
                    _ => {}
                }
                let items = 1 + rig.random.below(3) as usize;
                let page = list.page(&at, limits(items, 1 + rig.random.below(5) as usize)).unwrap();
                nodes.extend(page.nodes);
                names.extend(page.names);
                cursor = page.next;
            }
            assert_eq!(nodes, expected.nodes, "seed {seed}, list {number}");
            assert_eq!(names, expected.names, "seed {seed}, list {number}");
        }
    }
}

/// Any cursor from outside is a place in the list, and most places are between two items.
#[test]
fn a_cursor_need_not_name_what_there_is() {
    let mut rig = Rig::new(1);
    let first = rig.log.cut_held(|| ()).unwrap();
    (0..60).for_each(|_| rig.change());
    let cut = rig.log.cut_held(|| ()).unwrap();
    for list in [
        cut.everything(WholeReason::NoMark),
        cut.changes(Some(first.epoch())).unwrap(),
    ] {
        let all = all(&list).unwrap();
        assert!(all.nodes.len() > 5 && all.names.len() > 5);
        for node in [0, 1, 7, 8, 1 << 40, u64::MAX - 1, u64::MAX] {
            let at = ChangesCursor {
                node: Some(NodeId(node)),
                name: None,
            };
            let page = list.page(&at, limits(1000, 1000)).unwrap();
            assert!(page.nodes.iter().all(|change| change.node.0 > node));
            let behind = all.nodes.iter().filter(|change| change.node.0 > node).count();
            assert_eq!((page.nodes.len(), page.names.len()), (behind, all.names.len()));
        }
        for (parent, name) in [
            (0, "x"),
            (1, ""),
            (1, "name15"),
            (1, "name15\u{1}"),
            (2, ""),
            (u64::MAX, "x"),
        ] {
            let at = ChangesCursor {
                node: None,
                name: Some((NodeId(parent), name.into())),
            };
            let page = list.page(&at, limits(1000, 1000)).unwrap();
            let behind =
                |change: &&NameChange<NodeId>| (change.parent.0, change.name.as_bytes()) > (parent, name.as_bytes());
            assert!(page.nodes.is_empty());
            assert_eq!(page.names.len(), all.names.iter().filter(behind).count());
        }
    }
}

#[test]
fn all_of_that_holds_with_layers_beside_the_files() {
    beside(changes_between_two_pages_are_in_neither);
    beside(a_cursor_need_not_name_what_there_is);
}

#[test]
fn content_change_in_json_refuses_ranges_out_of_order() {
    let change = ContentChange::Ranges(
        [(2, 5), (8, 9)]
            .map(|(start, end)| ByteRange::new(start, end).unwrap())
            .into_iter()
            .collect(),
    );
    let json = r#"{"ranges":[[2,3],[8,1]]}"#;
    assert_eq!(serde_json::to_string(&change).unwrap(), json);
    assert_eq!(serde_json::from_str::<ContentChange>(json).unwrap(), change);
    for ranges in [
        "[8,1],[2,3]",
        "[2,3],[4,1]",
        "[2,3],[5,1]",
        "[2,0]",
        "[18446744073709551615,2]",
    ] {
        let read = serde_json::from_str::<ContentChange>(&format!(r#"{{"ranges":[{ranges}]}}"#));
        assert!(read.is_err(), "{ranges}");
    }
}
