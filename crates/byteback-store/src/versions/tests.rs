use std::collections::BTreeMap;

use byteback_host::random::SplitMix64;

use super::*;
use crate::StoreLimits;
use byteback_model::{Attributes, FileId, Manifest, NameChange, NodeKind, NodeRecord, Totals};

const ROOT: FileId = FileId(1);

/// A store with one folder, and a record of each of its moments.
struct World {
    _dir: tempfile::TempDir,
    store: Store,
    device: u64,
    /// Names of each moment by directory and name; the first moment is before all batches.
    names: Vec<BTreeMap<(FileId, String), FileId>>,
    modes: Vec<BTreeMap<FileId, u32>>,
    seq: Seq,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), StoreLimits::default()).unwrap();
        store.create_folder("f").unwrap();
        let token = store.create_join_token(i64::MAX / 2).unwrap();
        let device = store.roster().join(&token, "d", None).unwrap().device;
        let mut world = Self {
            _dir: dir,
            store,
            device,
            names: vec![BTreeMap::new()],
            modes: vec![BTreeMap::new()],
            seq: 0,
        };
        world.apply(&[(ROOT, NodeKind::Directory, 0o700)], &[]);
        world
    }

    /// Applies one batch: nodes with their modes, and names.
    fn apply(&mut self, nodes: &[(FileId, NodeKind, u32)], names: &[(FileId, &str, Option<FileId>)]) {
        self.seq += 1;
        let mut part = self.store.begin_part("f", self.device, self.seq).unwrap();
        part.manifest(Manifest {
            device: self.device,
            counter: self.seq,
            base_seq: (self.seq > 1).then_some(self.seq - 1),
            replaces: None,
            follows: None,
            root: ROOT,
            created_ns: 10 * self.seq.cast_signed(),
            host: b"h".to_vec().into(),
            path: vec![].into(),
            snapshot: None,
        })
        .unwrap();
        let mut all = self.names.last().unwrap().clone();
        let mut modes = self.modes.last().unwrap().clone();
        for (id, kind, mode) in nodes {
            modes.insert(*id, *mode);
            let attributes = Attributes {
                kind: *kind,
                mode: *mode,
                uid: 0,
                gid: 0,
                size: 0,
                mtime_ns: 0,
                rdev: 0,
                inode_flags: 0,
                target: None,
                xattrs: vec![],
                user: None,
                group: None,
            };
            part.node(NodeRecord {
                id: *id,
                attributes,
                content: None,
            })
            .unwrap();
        }
        for (parent, name, child) in names {
            match child {
                Some(child) => all.insert((*parent, (*name).to_owned()), *child),
                None => all.remove(&(*parent, (*name).to_owned())),
            };
            part.entry(NameChange {
                parent: *parent,
                name: name.as_bytes().to_vec().into(),
                child: *child,
            })
            .unwrap();
        }
        part.end(Totals {
            nodes: nodes.len() as u64,
            entries: names.len() as u64,
            deltas: 0,
            proofs: 0,
            directory_times: 0,
        })
        .unwrap();
        self.store.commit(part, 0).unwrap();
        self.names.push(all);
        self.modes.push(modes);
    }

    fn at(&self, path: &[&str], seq: Seq) -> Option<(FileId, u32)> {
        let at = usize::try_from(seq).unwrap();
        let id = path.iter().try_fold(ROOT, |dir, name| {
            self.names[at].get(&(dir, (*name).to_owned())).copied()
        })?;
        Some((id, self.modes[at][&id]))
    }

    /// Versions from the oldest: first and last moment, node and mode, by looking at every moment.
    fn reported(&self, path: &[&str]) -> Vec<(Seq, Option<Seq>, FileId, u32)> {
        let mut reported: Vec<(Seq, Option<Seq>, FileId, u32)> = Vec::new();
        for seq in 1..=self.seq {
            let now = self.at(path, seq);
            let before = self.at(path, seq - 1).filter(|_| seq > 1);
            // A batch that repeats an unchanged node makes a version, too.
            if now != before {
                if before.is_some() {
                    reported.last_mut().unwrap().1 = Some(seq);
                }
                if let Some((id, mode)) = now {
                    reported.push((seq, None, id, mode));
                }
            }
        }
        reported
    }

    fn versions(&self, path: &str, limit: u32) -> Vec<(Seq, Option<Seq>, FileId, u32)> {
        let mut reported = Vec::new();
        let mut before = None;
        loop {
            let page = self.store.versions("f", path.as_bytes(), before, limit).unwrap();
            assert!(page.versions.len() <= limit as usize);
            for version in page.versions {
                assert_eq!(version.since.created_ns, 10 * version.since.seq.cast_signed());
                let until = version.until.map(|until| until.seq);
                reported.push((version.since.seq, until, version.node.id, version.node.attributes.mode));
            }
            before = page.next;
            if before.is_none() {
                reported.reverse();
                return reported;
            }
        }
    }
}

#[test]
fn versions_of_a_path_are_those_of_every_moment() {
    let seed = std::env::var("BYTEBACK_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in seed.map_or(0..30_u64, |seed| seed..seed + 1) {
        println!("BYTEBACK_SEED={seed}");
        let mut random = SplitMix64::new(seed);
        let mut world = World::new();
        let mut mode = 0;
        let (mut next, dirs) = (10, [FileId(2), FileId(3)]);
        world.apply(
            &[
                (dirs[0], NodeKind::Directory, 0o700),
                (dirs[1], NodeKind::Directory, 0o700),
            ],
            &[(ROOT, "d", Some(dirs[0])), (ROOT, "e", Some(dirs[1]))],
        );
        for _ in 0..60 {
            mode = (mode + 1) % 0o1000;
            let dir = [dirs[0], dirs[1], ROOT][random.below(3) as usize];
            let name = ["x", "y"][random.below(2) as usize];
            let there = world.names.last().unwrap().get(&(dir, name.to_owned())).copied();
            match (random.below(6), there) {
                // The two directories swap places.
                (0, _) => {
                    let names = world.names.last().unwrap();
                    let of = |name: &str| names.get(&(ROOT, name.to_owned())).copied();
                    let (one, other) = (of("d"), of("e"));
                    world.apply(&[], &[(ROOT, "d", other), (ROOT, "e", one)]);
                }
                (1, Some(_)) => world.apply(&[], &[(dir, name, None)]),
                (2 | 3, Some(file)) => world.apply(&[(file, NodeKind::File, mode)], &[]),
                _ => {
                    next += 1;
                    let file = FileId(next);
                    world.apply(&[(file, NodeKind::File, mode)], &[(dir, name, Some(file))]);
                }
            }
        }
        for path in [
            &["x"][..],
            &["y"],
            &["d", "x"],
            &["d", "y"],
            &["e", "x"],
            &["e", "y"],
            &["z"],
            &["x", "y"],
        ] {
            for limit in [1, 3, 1000] {
                assert_eq!(world.versions(&path.join("/"), limit), world.reported(path), "{path:?}");
            }
        }
    }
}

#[test]
fn moment_is_the_newest_batch_made_until_then() {
    let mut world = World::new();
    world.apply(&[(FileId(5), NodeKind::File, 1)], &[(ROOT, "a", Some(FileId(5)))]);
    let moment = |time_ns| world.store.moment("f", time_ns).unwrap().map(|batch| batch.seq);
    assert_eq!(
        [9, 10, 19, 20, 1000].map(moment),
        [None, Some(1), Some(1), Some(2), Some(2)]
    );
    assert!(world.store.moment("g", 0).is_err());
}
