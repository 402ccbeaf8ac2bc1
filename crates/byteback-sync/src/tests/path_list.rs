//! Whoever knows only paths and does what the lists say has the tree.

use super::rig::seed;
use super::scripted_tree::{Picture, ScriptedTree};
use crate::{PathChange, Silent, changed_paths};
use byteback_api::NodeKind;
use byteback_control::{CutRequest, Outcome, TreeService};
use byteback_host::random::SplitMix64;
use byteback_oplog::{Epoch, NodeId};
use std::collections::BTreeMap;

/// What a path holds: the node, and its state, as a copying program would have it.
type Copy = BTreeMap<Vec<u8>, String>;

fn state(picture: &Picture, node: NodeId) -> String {
    let there = &picture.nodes[&node];
    // Names and times of directories are not what is compared: programs differ in what they do with them.
    match there.attributes.kind {
        NodeKind::Directory => format!("directory {:o}", there.attributes.mode),
        _ => format!("{node} {there:?}"),
    }
}

fn paths(picture: &Picture) -> BTreeMap<Vec<u8>, NodeId> {
    let mut paths = BTreeMap::from([(Vec::new(), NodeId::ROOT)]);
    for ((parent, name), child) in &picture.names {
        let mut path = picture.path_of(*parent).unwrap();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        paths.insert(path, *child);
    }
    paths
}

fn remove(copy: &mut Copy, path: &[u8]) {
    let below = [path, b"/"].concat();
    copy.retain(|other, _| other != path && !other.starts_with(&below));
}

/// Lists what changed, and does it. Answers how many paths were told.
fn follow(tree: &ScriptedTree, since: Option<Epoch>, copy: &mut Copy) -> (Epoch, usize) {
    let info = tree
        .cut(&CutRequest {
            consumer: "copy".to_owned(),
            everything: since.is_none(),
            look_only: true,
            since,
        })
        .unwrap();
    let (mut gone, mut present) = (Vec::new(), Vec::new());
    changed_paths(tree, &info, &Silent, |change| {
        match change {
            PathChange::Gone { path } => gone.push(path.as_bytes().to_vec()),
            PathChange::Present { path, kind } => present.push((path.as_bytes().to_vec(), kind)),
        }
        Ok(())
    })
    .unwrap();
    tree.finish(info.cut, &Outcome::Abandoned).unwrap();
    for list in [&gone, &present.iter().map(|(path, _)| path.clone()).collect()] {
        let mut once = list.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), list.len(), "a path was told twice");
    }
    let told = gone.len() + present.len();
    let picture = tree.picture();
    let paths = paths(&picture);
    for path in gone {
        remove(copy, &path);
    }
    // Parents first, as programs make them.
    present.sort();
    for (path, kind) in present {
        let node = paths
            .get(&path)
            .unwrap_or_else(|| panic!("{path:?} is told and not there"));
        let state = state(&picture, *node);
        let is_directory = kind == byteback_oplog::NodeKind::Directory;
        assert_eq!(is_directory, state.starts_with("directory"), "{path:?} is no {kind:?}");
        if !is_directory {
            remove(copy, &path);
        }
        copy.insert(path, state);
    }
    (info.epoch, told)
}

fn whole(picture: &Picture) -> Copy {
    let paths = paths(picture).into_iter();
    paths.map(|(path, node)| (path, state(picture, node))).collect()
}

#[test]
fn a_copy_that_follows_the_lists_is_the_tree() {
    let seed = seed(41);
    for round in 0..40 {
        let mut random = SplitMix64::new(seed + round);
        let tree = ScriptedTree::new(seed + round);
        for _ in 0..random.below(60) {
            tree.lock().change(&mut random);
        }
        let mut copy = Copy::new();
        let (mut mark, _) = follow(&tree, None, &mut copy);
        assert_eq!(copy, whole(&tree.picture()), "seed {}", seed + round);
        for step in 0..12 {
            for _ in 0..1 + random.below(25) {
                tree.lock().change(&mut random);
            }
            (mark, _) = follow(&tree, Some(mark), &mut copy);
            let picture = tree.picture();
            let expected = whole(&picture);
            if copy != expected {
                let differing = expected.iter().filter(|(path, state)| copy.get(*path) != Some(*state));
                let much = copy.keys().filter(|path| !expected.contains_key(*path));
                let show = |path: &Vec<u8>| String::from_utf8_lossy(path).into_owned();
                panic!(
                    "seed {} step {step}: differ {:?}, too much {:?}",
                    seed + round,
                    differing.map(|(path, _)| show(path)).collect::<Vec<_>>(),
                    much.map(show).collect::<Vec<_>>()
                );
            }
        }
    }
}

#[test]
fn nothing_is_told_that_did_not_change() {
    let tree = ScriptedTree::new(1);
    let (directory, file) = {
        let mut state = tree.lock();
        let directory = state.create(NodeId::ROOT, b"directory", NodeKind::Directory);
        for number in 0..50 {
            state.create(directory, format!("file {number}").as_bytes(), NodeKind::File);
        }
        let file = state.create(NodeId::ROOT, b"file", NodeKind::File);
        state.link(file, directory, b"the same");
        (directory, file)
    };
    let mut copy = Copy::new();
    let (mark, told) = follow(&tree, None, &mut copy);
    assert_eq!(told, 54);
    let (mark, told) = follow(&tree, Some(mark), &mut copy);
    assert_eq!(told, 0);
    // Both names of the file, and no other.
    tree.lock().write(file, 0, b"x");
    let (mark, told) = follow(&tree, Some(mark), &mut copy);
    assert_eq!(told, 2);
    // The directory, not what is in it.
    tree.lock().set_mode(directory, 0o700);
    let (mark, told) = follow(&tree, Some(mark), &mut copy);
    assert_eq!(told, 1);
    // All below it, under both names of the file, the root, and that the old name is gone (the new one was none).
    let (from, to) = ((NodeId::ROOT, b"directory".to_vec()), (NodeId::ROOT, b"moved".to_vec()));
    tree.lock().rename(&from, &to);
    let (_, told) = follow(&tree, Some(mark), &mut copy);
    assert_eq!(told, 1 + 1 + 51 + 1 + 2);
    assert_eq!(copy, whole(&tree.picture()));
}
