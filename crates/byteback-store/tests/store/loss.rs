//! Two devices that change one tree, each without knowing the other's last changes: no node that
//! one of them wrote or named may leave the tree through a change of the other elsewhere in it.

use crate::lab::{Batch, Lab, ROOT, patch};
use byteback_host::random::SplitMix64;
use byteback_model::{ContentBase, FileId, Manifest, NodeKind};
use byteback_store::StoreError;
use std::collections::{BTreeMap, BTreeSet};

type Name = (u128, Vec<u8>);

/// A change: its moment and its device.
type When = (u64, u64);

#[derive(Clone, Default)]
struct Tree {
    names: BTreeMap<Name, u128>,
    directories: BTreeSet<u128>,
    /// Number of writes of each file.
    written: BTreeMap<u128, u32>,
}

impl Tree {
    /// The nodes that a path from the root reaches.
    fn placed(&self) -> BTreeSet<u128> {
        let mut placed = BTreeSet::from([ROOT.0]);
        loop {
            let more = self
                .names
                .iter()
                .filter(|((parent, _), child)| placed.contains(parent) && !placed.contains(child));
            let more: Vec<u128> = more.map(|(_, child)| *child).collect();
            if more.is_empty() {
                return placed;
            }
            placed.extend(more);
        }
    }

    fn remove_below(&mut self, directory: u128) {
        let inside: Vec<(Name, u128)> = self
            .names
            .iter()
            .filter(|(name, _)| name.0 == directory)
            .map(|(name, child)| (name.clone(), *child))
            .collect();
        for (name, child) in inside {
            self.names.remove(&name);
            self.remove_below(child);
        }
    }

    fn act(&mut self, random: &mut SplitMix64, next: &mut u128) {
        let placed = self.placed();
        let pick = |random: &mut SplitMix64, of: Vec<u128>| of[random.below(of.len() as u64) as usize];
        let directories: Vec<u128> = placed
            .iter()
            .copied()
            .filter(|node| self.directories.contains(node))
            .collect();
        let parent = pick(random, directories.clone());
        let place = (parent, vec![b'a' + random.below(5) as u8]);
        let names: Vec<(Name, u128)> = self
            .names
            .iter()
            .filter(|(name, _)| placed.contains(&name.0))
            .map(|(name, child)| (name.clone(), *child))
            .collect();
        let some = (!names.is_empty()).then(|| names[random.below(names.len() as u64) as usize].clone());
        match (random.below(8), some) {
            (0 | 1, _) if !self.names.contains_key(&place) => {
                *next += 1;
                self.names.insert(place, *next);
                self.written.insert(*next, 0);
            }
            (2, _) if !self.names.contains_key(&place) => {
                *next += 1;
                self.names.insert(place, *next);
                self.directories.insert(*next);
            }
            (3 | 4, Some((_, child))) if !self.directories.contains(&child) => {
                *self.written.get_mut(&child).unwrap() += 1;
            }
            (5, Some((name, child))) => {
                self.names.remove(&name);
                self.remove_below(child);
            }
            (6 | 7, Some((name, child))) if !self.names.contains_key(&place) => {
                let mut moved = self.clone();
                moved.names.remove(&name);
                moved.names.insert(place, child);
                if moved.placed().contains(&child) {
                    *self = moved;
                }
            }
            _ => {}
        }
    }
}

struct Device {
    id: u64,
    counter: u64,
    base_seq: u64,
    follows: Option<u64>,
    tree: Tree,
}

#[derive(Clone, Default)]
struct Folder {
    tree: Tree,
    /// The last change of each name.
    named: BTreeMap<Name, When>,
    /// The last removal of a name of each node.
    lost: BTreeMap<u128, When>,
    wrote: BTreeMap<u128, When>,
}

/// A batch, the names that it gives and takes, and the files that it writes.
type Made = (Batch, Vec<(Name, Option<u128>)>, Vec<u128>);

/// The batch that leads from `old` to `new`.
fn batch(old: &Tree, new: &Tree) -> Made {
    let mut batch = Batch::default();
    let mut written = Vec::new();
    for node in new.directories.difference(&old.directories) {
        batch = batch.node(FileId(*node), NodeKind::Directory, 0, None);
    }
    for (node, times) in &new.written {
        let was = old.written.get(node);
        if was != Some(times) {
            let base = if was.is_some() {
                ContentBase::Previous
            } else {
                ContentBase::Empty
            };
            let len = if was.is_some() { 8 } else { 0 };
            batch = batch
                .file(*node, 8, 1, base)
                .delta(*node, patch(len, 8, &[(0, &[*times as u8; 8])]));
            written.push(*node);
        }
    }
    let all: BTreeSet<&Name> = old.names.keys().chain(new.names.keys()).collect();
    let mut names = Vec::new();
    for name in all {
        if old.names.get(name) != new.names.get(name) {
            let child = new.names.get(name).copied();
            batch = batch.entry(FileId(name.0), &name.1, child);
            names.push((name.clone(), child));
        }
    }
    (batch, names, written)
}

/// Whether another device came first, found by looking at everything.
fn is_conflict(
    before: &Folder,
    after: &Tree,
    device: &Device,
    names: &[(Name, Option<u128>)],
    written: &[u128],
) -> bool {
    let is_others = |when: Option<&When>| {
        when.is_some_and(|(at, by)| *at > device.base_seq && (*by != device.id || device.follows.is_none()))
    };
    let direct = names.iter().any(|(name, _)| is_others(before.named.get(name)))
        || written.iter().any(|node| is_others(before.wrote.get(node)));
    let placed = after.placed();
    // Changes by others inside what the batch takes out of the tree.
    let mut vanished: BTreeSet<u128> = names
        .iter()
        .filter_map(|(name, _)| before.tree.names.get(name))
        .filter(|node| !placed.contains(node))
        .copied()
        .collect();
    loop {
        let below = after.names.iter().filter(|((parent, _), child)| {
            vanished.contains(parent) && !placed.contains(child) && !vanished.contains(child)
        });
        let below: Vec<u128> = below.map(|(_, child)| *child).collect();
        if below.is_empty() {
            break;
        }
        vanished.extend(below);
    }
    let unseen = vanished.iter().any(|node| is_others(before.wrote.get(node)))
        || after
            .names
            .keys()
            .any(|name| vanished.contains(&name.0) && is_others(before.named.get(name)));
    // Changes by the batch inside what others took out of the tree.
    let touched = names
        .iter()
        .filter(|(_, child)| child.is_some())
        .map(|(name, _)| name.0);
    let mut lost = touched.chain(written.iter().copied());
    let late = lost.any(|node| {
        let mut current = node;
        while !placed.contains(&current) {
            match after.names.iter().find(|(_, child)| **child == current) {
                Some((name, _)) if name.0 == node => return false,
                Some((name, _)) => current = name.0,
                None => return is_others(before.lost.get(&current)),
            }
        }
        false
    });
    direct || unseen || late
}

/// Numbers of batches that were applied and that were refused.
fn one_life(seed: u64) -> (u32, u32) {
    #[allow(clippy::print_stdout, reason = "shown only when the test fails")]
    {
        println!("BYTEBACK_SEED={seed}");
    }
    let mut random = SplitMix64::new(seed);
    let lab = Lab::new(1 << 20);
    lab.first(&[]);
    let token = lab.store.create_join_token(i64::MAX / 2).unwrap();
    let other = lab.store.roster().join(&token, "other", None).unwrap().device;
    let mut folder = Folder::default();
    folder.tree.directories.insert(ROOT.0);
    let mut devices = [lab.device, other].map(|id| Device {
        id,
        counter: 1,
        base_seq: 1,
        follows: None,
        tree: folder.tree.clone(),
    });
    let mut next = 100;
    let mut seq = 1;
    let (mut applied, mut refused) = (0, 0);
    for _ in 0..150 {
        let device = &mut devices[random.below(2) as usize];
        let mut tree = device.tree.clone();
        for _ in 0..1 + random.below(3) {
            tree.act(&mut random, &mut next);
        }
        let (batch, names, written) = batch(&device.tree, &tree);
        let mut after = folder.tree.clone();
        after.directories.extend(&tree.directories);
        for node in &written {
            after.written.insert(*node, tree.written[node]);
        }
        for (name, child) in &names {
            match child {
                Some(child) => after.names.insert(name.clone(), *child),
                None => after.names.remove(name),
            };
        }
        device.counter += 1;
        let manifest = Manifest {
            device: device.id,
            follows: device.follows,
            ..lab.manifest(device.counter, Some(device.base_seq))
        };
        let mut part = lab.store.begin_part("f", device.id, device.counter).unwrap();
        part.manifest(manifest).unwrap();
        batch.feed(&mut part).unwrap();
        let result = lab.store.commit(part, 0);
        let is_refused = is_conflict(&folder, &after, device, &names, &written) || has_cycle(&after);
        match result {
            Ok(done) if !is_refused => {
                applied += 1;
                seq += 1;
                assert_eq!(done.seq, seq, "seed {seed}");
                for (name, child) in names {
                    let had = folder.tree.names.get(&name).copied();
                    if had != child {
                        folder.named.insert(name, (seq, device.id));
                    }
                    if let Some(had) = had.filter(|had| child != Some(*had)) {
                        folder.lost.insert(had, (seq, device.id));
                    }
                }
                folder
                    .wrote
                    .extend(written.iter().map(|node| (*node, (seq, device.id))));
                folder.tree = after;
                (device.tree, device.follows) = (tree, Some(device.counter));
                if random.coin() {
                    (device.tree, device.base_seq, device.follows) = (folder.tree.clone(), seq, None);
                }
            }
            Err(StoreError::Conflict { conflicts }) if is_refused => {
                refused += 1;
                assert!(!conflicts.is_empty() && conflicts.iter().all(|conflict| conflict.seq > device.base_seq));
                (device.tree, device.base_seq, device.follows) = (folder.tree.clone(), seq, None);
            }
            other => {
                panic!("seed {seed}, after {seq}: conflict expected: {is_refused}; {names:?} {written:?}: {other:?}")
            }
        }
    }
    (applied, refused)
}

/// Whether a directory is below itself.
fn has_cycle(tree: &Tree) -> bool {
    let parent = |node: u128| {
        tree.names
            .iter()
            .find(|(_, child)| **child == node)
            .map(|(name, _)| name.0)
    };
    tree.directories.iter().any(|directory| {
        let ways = std::iter::successors(parent(*directory), |node| parent(*node));
        ways.take(200).any(|above| above == *directory)
    })
}

#[test]
fn removal_takes_nothing_its_remover_did_not_know() {
    let (mut applied, mut refused) = (0, 0);
    let lives = match std::env::var("BYTEBACK_SEED") {
        Ok(seed) => seed.parse().unwrap()..=seed.parse().unwrap(),
        Err(_) => 0..=11,
    };
    for seed in lives {
        let life = one_life(seed);
        (applied, refused) = (applied + life.0, refused + life.1);
    }
    assert!(applied > 50 && refused > 5, "{applied} applied, {refused} refused");
}

#[test]
fn directory_removal_reports_what_others_put_into_it() {
    let lab = Lab::new(1 << 20);
    lab.first(&[]);
    let made = Batch::default()
        .node(FileId(10), NodeKind::Directory, 0, None)
        .node(FileId(11), NodeKind::Directory, 0, None)
        .entry(ROOT, b"dir", Some(10))
        .entry(FileId(10), b"sub", Some(11));
    lab.send(2, Some(1), &made).unwrap();
    let filled = Batch::default()
        .file(12, 1, 1, ContentBase::Empty)
        .entry(FileId(11), b"new", Some(12))
        .delta(12, patch(0, 1, &[(0, b"x")]));
    lab.send(3, Some(2), &filled).unwrap();
    for batch in [
        Batch::default().entry(FileId(10), b"sub", None),
        Batch::default()
            .entry(FileId(10), b"sub", None)
            .entry(ROOT, b"dir", None),
        // Also if the batch names only the topmost directory.
        Batch::default().entry(ROOT, b"dir", None),
    ] {
        match lab.send(4, Some(2), &batch) {
            Err(StoreError::Conflict { conflicts }) => {
                assert_eq!((conflicts.len(), conflicts[0].id, conflicts[0].seq), (1, FileId(12), 3));
            }
            other => panic!("{other:?}"),
        }
    }
    // A device that knows of the new file may remove it.
    lab.send(5, Some(3), &Batch::default().entry(ROOT, b"dir", None))
        .unwrap();
    // A device that does not know of the removal gets a conflict.
    let late = Batch::default()
        .file(13, 1, 1, ContentBase::Empty)
        .entry(FileId(11), b"late", Some(13))
        .delta(13, patch(0, 1, &[(0, b"x")]));
    for batch in [late, Batch::default().patch(12, 1, &[(0, b"y")])] {
        match lab.send(6, Some(3), &batch) {
            Err(StoreError::Conflict { conflicts }) => assert_eq!(conflicts[0].seq, 4),
            other => panic!("{other:?}"),
        }
    }
}
