use super::*;
use byteback_host::durable::OpenMode;
use byteback_host::random::SplitMix64;
use byteback_host::sim::{CrashPhase, SimDisk};
use std::collections::{BTreeMap, BTreeSet};

const TREE: TreeId = TreeId(0xabcd);
const NODES: u64 = 12;

/// Records from which on a map is written anew.
const STALE_RECORDS_MIN: usize = FORMAT.rewrite_from_bytes as usize / (RECORD_LEN + 20);

/// A naive model: the bound nodes, and the gone ones; any other node has its own ID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    bound: BTreeMap<u64, (FileId, Option<Origin>)>,
    gone: BTreeSet<u64>,
}

fn own(node: u64) -> FileId {
    file_id(TREE, NodeId(node))
}

impl Model {
    fn file_of(&self, node: u64) -> Option<FileId> {
        match (self.gone.contains(&node), self.bound.get(&node)) {
            (true, _) => None,
            (false, Some((file, _))) => Some(*file),
            (false, None) => Some(own(node)),
        }
    }

    fn holder(&self, file: FileId) -> Option<u64> {
        (1..=NODES).find(|node| self.file_of(*node) == Some(file))
    }

    fn apply(&mut self, change: &IdentityChange) {
        match *change {
            IdentityChange::Bound { node, file, origin } => {
                self.gone.remove(&node.0);
                self.bound.insert(node.0, (file, origin));
            }
            IdentityChange::Arrived(node) => {
                if let Some((_, origin)) = self.bound.get_mut(&node.0) {
                    *origin = None;
                }
            }
            IdentityChange::Forgotten(node) => {
                self.bound.remove(&node.0);
                self.gone.insert(node.0);
            }
        }
    }

    /// The difference of the map from this model, if there is one.
    fn difference(&self, map: &Identities) -> Option<String> {
        for node in 1..=NODES {
            let (expected, reported) = (self.file_of(node), map.file_of(NodeId(node)));
            // A gone node need not be remembered, but if the map reports it, no other node has that
            // ID.
            if expected != reported && !(expected.is_none() && reported == Some(own(node))) {
                return Some(format!("node {node} is {reported:?}, not {expected:?}"));
            }
            if let Some(file) = reported.filter(|file| map.node_of(*file) != Some(NodeId(node))) {
                return Some(format!("node {node} is {file}, which is {:?}", map.node_of(file)));
            }
            let origin = self.bound.get(&node).and_then(|(_, origin)| *origin);
            if map.origin_of(NodeId(node)) != origin {
                return Some(format!("node {node} grew from {:?}", map.origin_of(NodeId(node))));
            }
        }
        for file in (1..=NODES).map(own).chain((1..20).map(FileId)) {
            let (expected, reported) = (self.holder(file), map.node_of(file).map(|node| node.0));
            let is_forgotten = reported.is_some_and(|node| self.gone.contains(&node) && own(node) == file);
            if expected != reported && !(expected.is_none() && is_forgotten) {
                return Some(format!("file {file} is {reported:?}, not {expected:?}"));
            }
        }
        None
    }
}

/// A random change that is allowed.
fn random_change(random: &mut SplitMix64, model: &Model) -> IdentityChange {
    let node = 1 + random.below(NODES);
    let file = match random.below(3) {
        0 => own(1 + random.below(NODES)),
        _ => FileId(u128::from(1 + random.below(19))),
    };
    let holder = model.holder(file).filter(|holder| *holder != node);
    let node = NodeId(node);
    match (random.below(6), holder) {
        (0, _) => IdentityChange::Forgotten(node),
        (1, _) => IdentityChange::Arrived(node),
        (_, Some(holder)) => IdentityChange::Forgotten(NodeId(holder)),
        (kind, None) => {
            let origin = (kind == 2).then(|| Origin {
                file: FileId(u128::from(random.next_u64())),
                seq: random.below(100),
            });
            IdentityChange::Bound { node, file, origin }
        }
    }
}

fn seed() -> u64 {
    let seed = std::env::var("BYTEBACK_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(31);
    eprintln!("BYTEBACK_SEED={seed}");
    seed
}

fn open(disk: &SimDisk) -> Result<Identities, IdentityError> {
    Identities::open(Arc::new(disk.clone()), TREE)
}

/// Life of a map on a disk: the model after the last step that succeeded; and all states that the
/// next step may have led to.
struct Life {
    reached: Model,
    possible: Vec<Model>,
}

impl Life {
    /// Runs until the disk fails, or the steps are done.
    fn run(&mut self, disk: &SimDisk, random: &mut SplitMix64) -> Result<(), IdentityError> {
        let mut map = open(disk)?;
        for _ in 0..12 {
            if random.below(5) == 0 {
                map = open(disk)?;
            }
            let mut changes = Vec::new();
            let mut model = self.reached.clone();
            self.possible = vec![model.clone()];
            for _ in 0..1 + random.below(5) {
                let change = random_change(random, &model);
                // Tombstones are not kept for ever: giving the gone node's ID away forgets it
                // again.
                if let IdentityChange::Bound { node, file, .. } = change
                    && let Some(gone) = model
                        .gone
                        .iter()
                        .copied()
                        .find(|gone| own(*gone) == file && *gone != node.0)
                {
                    changes.push(IdentityChange::Forgotten(NodeId(gone)));
                    self.possible.push(model.clone());
                }
                model.apply(&change);
                changes.push(change);
                self.possible.push(model.clone());
            }
            map.change(&changes)?;
            self.reached = model;
            self.possible = vec![self.reached.clone()];
            assert_eq!(self.reached.difference(&map), None);
        }
        Ok(())
    }
}

#[test]
fn identity_map_neither_invents_nor_loses_pairs_in_power_cuts() {
    let first = seed();
    let mut torn = 0;
    for seed in first..first + 12 {
        let run = |disk: &SimDisk| {
            let mut life = Life {
                reached: Model::default(),
                possible: vec![Model::default()],
            };
            let done = life.run(disk, &mut SplitMix64::new(seed));
            (life, done)
        };
        let trial = SimDisk::new(seed);
        run(&trial).1.unwrap();
        let phases = [CrashPhase::Before, CrashPhase::Middle, CrashPhase::After];
        let crashes = (1..=trial.counters().syncs).flat_map(|nth| phases.map(|phase| (nth, phase)));
        for (nth, phase) in crashes {
            let disk = SimDisk::new(seed);
            disk.crash_at_sync(nth, phase);
            let (life, done) = run(&disk);
            assert!(done.is_err());
            for survivor in 0..4 {
                let what = format!("seed {seed}, sync {nth} {phase:?}, survivor {survivor}");
                let disk = disk.recover(survivor);
                let map = open(&disk).unwrap_or_else(|error| panic!("{what}: {error}"));
                let differences: Vec<_> = life.possible.iter().map(|model| model.difference(&map)).collect();
                let reached = differences.iter().position(Option::is_none);
                let reached = reached.unwrap_or_else(|| panic!("{what}: {differences:?}"));
                torn += u32::from(0 < reached && reached + 1 < differences.len());
                // The map works on from there.
                let mut next = Life {
                    reached: life.possible[reached].clone(),
                    possible: Vec::new(),
                };
                next.run(&disk, &mut SplitMix64::new(seed + survivor)).unwrap();
                assert_eq!(next.reached.difference(&open(&disk).unwrap()), None, "{what}");
            }
        }
    }
    assert!(torn > 20, "only {torn} times a part of the changes was kept");
}

#[test]
fn a_long_life_is_written_anew_and_stays_short() {
    let disk = SimDisk::new(1);
    let mut map = open(&disk).unwrap();
    let (mut random, mut model) = (SplitMix64::new(2), Model::default());
    for _ in 0..3 * STALE_RECORDS_MIN {
        let change = random_change(&mut random, &model);
        model.apply(&change);
        // The first attempt is refused if the map has dropped the tombstone of the node with this
        // ID.
        if map.change(&[change]).is_err()
            && let IdentityChange::Bound { file, .. } = change
        {
            let gone = map.node_of(file).unwrap();
            map.change(&[IdentityChange::Forgotten(gone), change]).unwrap();
        }
    }
    assert_eq!(model.difference(&map), None);
    let len = disk.open(FORMAT.name, OpenMode::Existing).unwrap().len().unwrap();
    assert!(len < FORMAT.rewrite_from_bytes + 6_000, "{len} bytes");
    assert_eq!(model.difference(&open(&disk).unwrap()), None);
}

#[test]
fn identity_map_refuses_a_taken_name_and_changes_nothing() {
    let disk = SimDisk::new(1);
    let mut map = open(&disk).unwrap();
    let bound = |node, file| IdentityChange::Bound {
        node: NodeId(node),
        file,
        origin: None,
    };
    map.change(&[bound(1, FileId(9))]).unwrap();
    for file in [FileId(9), own(3)] {
        let refused = map.change(&[IdentityChange::Forgotten(NodeId(7)), bound(2, file)]);
        assert!(matches!(refused, Err(IdentityError::Taken { .. })), "{refused:?}");
        assert_eq!(map.file_of(NodeId(7)), Some(own(7)));
        assert_eq!(map.node_of(own(7)), Some(NodeId(7)));
    }
    // A conflict of two contents: the node here becomes a file apart, and another node takes the
    // ID.
    let origin = Some(Origin { file: own(5), seq: 17 });
    let (node, file) = (NodeId(5), FileId(77));
    map.change(&[IdentityChange::Bound { node, file, origin }, bound(6, own(5))])
        .unwrap();
    assert_eq!((map.node_of(own(5)), map.node_of(own(6))), (Some(NodeId(6)), None));
    assert_eq!(map.origin_of(node), origin);
    let mut map = open(&disk).unwrap();
    assert_eq!(map.origin_of(node), origin);
    map.change(&[IdentityChange::Arrived(node)]).unwrap();
    assert_eq!((map.origin_of(node), map.file_of(node)), (None, Some(file)));
}

#[test]
fn identity_map_tells_nothing_undurable_after_a_failed_write() {
    let disk = SimDisk::new(1);
    let mut map = open(&disk).unwrap();
    let change = IdentityChange::Bound {
        node: NodeId::ROOT,
        file: FileId(1),
        origin: None,
    };
    disk.crash_at_sync(disk.counters().syncs + 1, CrashPhase::Before);
    assert!(matches!(map.change(&[change]), Err(IdentityError::Io { .. })));
    assert_eq!(map.file_of(NodeId::ROOT), Some(own(NodeId::ROOT.0)));
}

fn bound(node: u64) -> IdentityChange {
    IdentityChange::Bound {
        node: NodeId(node),
        file: FileId(100 + u128::from(node)),
        origin: None,
    }
}

/// A change that failed, at its write or at its sync, leaves nothing to be found, not even behind a
/// shorter one that succeeded.
#[test]
fn failed_change_leaves_nothing_behind_the_next() {
    for (seed, failing) in (0..20).flat_map(|seed| [1, 2].map(|failing| (seed, failing))) {
        let disk = SimDisk::new(seed);
        let mut map = open(&disk).unwrap();
        map.change(&[bound(2)]).unwrap();
        disk.fail_op(disk.counters().ops + failing, 28);
        let error = map.change(&[bound(3), bound(4), bound(5)]).unwrap_err();
        assert!(matches!(error, IdentityError::Io { .. }), "{error}");
        assert_eq!(map.node_of(FileId(103)), None);
        map.change(&[bound(6)]).unwrap();
        let found = open(&disk.crash(seed)).unwrap();
        let known: Vec<u64> = (2..=6).filter(|node| found.is_bound(NodeId(*node))).collect();
        assert_eq!(known, [2, 6], "seed {seed}, operation {failing}");
    }
}

#[test]
fn failed_change_is_made_once_there_is_room() {
    for failing in 1..8 {
        let disk = SimDisk::new(failing);
        let mut map = open(&disk).unwrap();
        // Enough that the next change rewrites the file.
        let own = [bound(2), IdentityChange::Forgotten(NodeId(2))];
        let many: Vec<IdentityChange> = (0..=STALE_RECORDS_MIN / 2).flat_map(|_| own).collect();
        map.change(&many).unwrap();
        for operation in 1..=failing {
            disk.fail_op(disk.counters().ops + operation, 28);
        }
        let mut attempts = 0;
        while map.change(&[bound(3), bound(4)]).is_err() {
            assert_eq!(map.node_of(FileId(103)), None);
            attempts += 1;
            assert!(attempts <= failing);
        }
        assert!(attempts > 0);
        map.change(&[bound(5)]).unwrap();
        let found = open(&disk.crash(failing)).unwrap();
        assert!((3..=5).all(|node| found.is_bound(NodeId(node))));
    }
}

#[test]
fn a_map_of_another_tree_or_version_is_refused() {
    let disk = SimDisk::new(1);
    open(&disk).unwrap();
    let other = Identities::open(Arc::new(disk.clone()), TreeId(5));
    assert!(matches!(
        other,
        Err(IdentityError::OtherTree {
            found: 0xabcd,
            expected: 5
        })
    ));
    Identities::remove(&disk).unwrap();
    Identities::open(Arc::new(disk.clone()), TreeId(5)).unwrap();
    let file = disk.open(FORMAT.name, OpenMode::Existing).unwrap();
    for (at, byte) in [(7, 2), (9, 1), (17, 3)] {
        let mut before = [0];
        file.read_exact_at(at, &mut before).unwrap();
        file.write_all_at(at, &[byte]).unwrap();
        let damaged = Identities::open(Arc::new(disk.clone()), TreeId(5));
        assert!(matches!(damaged, Err(IdentityError::Damaged(_))), "{damaged:?}");
        file.write_all_at(at, &before).unwrap();
    }
    Identities::open(Arc::new(disk.clone()), TreeId(5)).unwrap();
}

/// Pairs that were durable and cannot be read any more are no torn end: without them files would
/// get other identities.
#[test]
fn identity_map_with_a_damaged_record_is_refused() {
    let disk = SimDisk::new(1);
    let mut map = open(&disk).unwrap();
    for node in 2..6 {
        map.change(&[bound(node)]).unwrap();
    }
    let file = disk.open(FORMAT.name, OpenMode::Existing).unwrap();
    let len = file.len().unwrap();
    file.write_all_at(len - 3 * (RECORD_LEN as u64 + 20) + 30, b"?")
        .unwrap();
    let damaged = open(&disk);
    assert!(matches!(damaged, Err(IdentityError::Damaged(_))), "{damaged:?}");
    // A map of another log is told as such, also a damaged one: starting over removes it.
    let other = Identities::open(Arc::new(disk), TreeId(5));
    assert!(matches!(other, Err(IdentityError::OtherTree { .. })), "{other:?}");
}

#[test]
fn golden_bytes_of_version_1() {
    let disk = SimDisk::new(1);
    Identities::open(Arc::new(disk.clone()), TreeId(5)).unwrap();
    let contents = FORMAT.read(&disk).unwrap().unwrap();
    assert_eq!(contents.head, b"\x05\0\0\0\0\0\0\0");
    let change = IdentityChange::Bound {
        node: NodeId(0x0102),
        file: FileId(0x0304),
        origin: Some(Origin {
            file: FileId(0x0506),
            seq: 0x0708,
        }),
    };
    let mut expected = b"\x02\x02\x01\0\0\0\0\0\0".to_vec();
    expected.extend(b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x03\x04");
    expected.extend(b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x05\x06");
    expected.extend(b"\x08\x07\0\0\0\0\0\0");
    let bytes = change.to_bytes();
    assert_eq!(bytes[..], expected);
    assert_eq!(IdentityChange::from_bytes(&bytes), Some(change));
}

#[test]
fn what_the_fuzzer_begins_with_is_understood() {
    let seed = fuzzing::identities_seed();
    assert!(FORMAT.contents_of(&seed).unwrap().records.len() > 2);
    fuzzing::identities(&seed);
    for len in 0..seed.len() {
        fuzzing::identities(&seed[..len]);
    }
}
