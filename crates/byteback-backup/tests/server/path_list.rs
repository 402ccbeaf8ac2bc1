//! A program that knows only paths and follows the lists has the tree; and one that has an older
//! copy of a file and renews the reported ranges has the file.

use byteback_backup::{FileContent, PathChange, Silent, WholeFileReason, changed_paths, file_change};
use byteback_control::{CutRequest, Outcome, TreeService};
use byteback_extents::ByteRange;
use byteback_host::random::SplitMix64;
use byteback_model::{NodeId, NodeKind};
use byteback_oplog::Epoch;
use byteback_testkit::scripted_tree::{Picture, ScriptedTree};
use byteback_testkit::seed::seed;
use std::collections::BTreeMap;

/// The state of each path: the node and its state, as a copying program would have it.
type Copy = BTreeMap<Vec<u8>, String>;

fn state(picture: &Picture, node: NodeId) -> String {
    let there = &picture.nodes[&node];
    // Names and times of directories are not compared: programs handle them differently.
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

/// Lists the changes, and makes them. Returns the number of reported paths.
fn follow(tree: &ScriptedTree, since: Option<Epoch>, copy: &mut Copy) -> (Epoch, usize) {
    let info = tree
        .cut(&CutRequest {
            everything: since.is_none(),
            look_only: true,
            since,
            ..CutRequest::of("copy")
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
    for (at, path) in gone.iter().enumerate() {
        // Otherwise removing it goes through what the directory above it was before: perhaps a
        // symlink that leads elsewhere.
        let below = [&path[..], b"/"].concat();
        let is_early = gone[..at].iter().any(|other| other.starts_with(&below));
        assert!(
            !is_early,
            "what lies below {:?} is removed before it",
            String::from_utf8_lossy(path)
        );
    }
    let reported = gone.len() + present.len();
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
        let is_directory = kind == byteback_model::NodeKind::Directory;
        assert_eq!(is_directory, state.starts_with("directory"), "{path:?} is no {kind:?}");
        let below = [&path[..], b"/"].concat();
        let is_in_the_way = !is_directory && copy.keys().any(|other| other.starts_with(&below));
        assert!(!is_in_the_way, "{path:?} is a directory that is not empty");
        copy.insert(path, state);
    }
    (info.epoch, reported)
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
fn path_list_reports_only_changes() {
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
    let (mark, reported) = follow(&tree, None, &mut copy);
    assert_eq!(reported, 54);
    let (mark, reported) = follow(&tree, Some(mark), &mut copy);
    assert_eq!(reported, 0);
    // Both names of the file, and no other.
    tree.lock().write(file, 0, b"x");
    let (mark, reported) = follow(&tree, Some(mark), &mut copy);
    assert_eq!(reported, 2);
    // The directory, not its entries.
    tree.lock().set_mode(directory, 0o700);
    let (mark, reported) = follow(&tree, Some(mark), &mut copy);
    assert_eq!(reported, 1);
    // All below it, under both names of the file, the root, and that the old name is gone (the new
    // one did not exist).
    let (from, to) = ((NodeId::ROOT, b"directory".to_vec()), (NodeId::ROOT, b"moved".to_vec()));
    tree.lock().rename(&from, &to);
    let (_, reported) = follow(&tree, Some(mark), &mut copy);
    assert_eq!(reported, 1 + 1 + 51 + 1 + 2);
    assert_eq!(copy, whole(&tree.picture()));
}

fn look(tree: &ScriptedTree, since: Option<Epoch>) -> byteback_control::CutInfo {
    let consumer = "copy".to_owned();
    tree.cut(&CutRequest {
        everything: since.is_none(),
        look_only: true,
        since,
        ..CutRequest::of(&consumer)
    })
    .unwrap()
}

#[test]
fn path_list_leaves_unreported_parts_as_they_were() {
    let seed = seed(43);
    let (mut compared, mut renamed) = (0, 0);
    for round in 0..30 {
        let mut random = SplitMix64::new(seed + round);
        let tree = ScriptedTree::new(seed + round);
        for _ in 0..60 {
            tree.lock().change(&mut random);
        }
        for _ in 0..6 {
            let (mark, before) = (look(&tree, None).epoch, tree.picture());
            for _ in 0..1 + random.below(15) {
                tree.lock().change(&mut random);
            }
            let (cut, after) = (look(&tree, Some(mark)), tree.picture());
            let before_paths = paths(&before);
            for (path, node) in paths(&after) {
                let reported = file_change(&tree, &cut, &path.clone().into()).unwrap();
                if after.nodes[&node].attributes.kind != NodeKind::File {
                    assert_eq!(reported, None);
                    continue;
                }
                let reported = reported.unwrap();
                assert_eq!(reported.node, node);
                let changed = match reported.content {
                    FileContent::Ranges(changed) => changed,
                    FileContent::Whole(reason) => {
                        renamed += u64::from(reason == WholeFileReason::Renamed);
                        continue;
                    }
                };
                let after = &after.nodes[&node].content;
                let Some(all) = ByteRange::new(0, after.len()) else {
                    continue;
                };
                for same in changed.gaps_within(all) {
                    // A file of 5 GB and more is nearly all hole.
                    let start = same.end() - same.len_bytes().min(20_000);
                    let before = before_paths.get(&path).map(|node| &before.nodes[node].content);
                    let before = before.unwrap_or_else(|| panic!("seed {}: {path:?} is new", seed + round));
                    assert!(
                        same.end() <= before.len(),
                        "seed {}: {path:?} was shorter",
                        seed + round
                    );
                    let (mut old, mut new) = (vec![1; (same.end() - start) as usize], Vec::new());
                    new.resize(old.len(), 2);
                    before.read(start, &mut old);
                    after.read(start, &mut new);
                    assert!(old == new, "seed {}: {path:?} differs in {same}", seed + round);
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 500 && renamed > 50, "{compared} ranges, {renamed} renamed");
}

#[test]
fn a_path_that_leads_to_another_file_or_to_none_is_told_so() {
    let tree = ScriptedTree::new(1);
    {
        let mut state = tree.lock();
        let directory = state.create(NodeId::ROOT, b"directory", NodeKind::Directory);
        for (parent, name) in [
            (directory, &b"image"[..]),
            (directory, b"other"),
            (NodeId::ROOT, b"alone"),
        ] {
            let file = state.create(parent, name, NodeKind::File);
            state.write(file, 0, name);
        }
    }
    let mark = look(&tree, None).epoch;
    let reported = |path: &str, since| {
        let cut = look(&tree, since);
        file_change(&tree, &cut, &path.into())
            .unwrap()
            .map(|change| change.content)
    };
    let nothing = Some(FileContent::Ranges(byteback_extents::ExtentSet::new()));
    assert_eq!(reported("directory/image", Some(mark)), nothing);
    assert_eq!(
        reported("alone", None),
        Some(FileContent::Whole(WholeFileReason::Log(
            byteback_oplog::WholeReason::NoMark
        )))
    );
    for path in [
        "nowhere",
        "directory",
        "",
        "alone/below",
        "directory/",
        "directory//image",
    ] {
        assert_eq!(reported(path, Some(mark)), None, "{path}");
    }
    let directory = tree.picture().names[&(NodeId::ROOT, b"directory".to_vec())];
    // Over it: not one byte of it was written.
    tree.lock()
        .rename(&(directory, b"other".to_vec()), &(directory, b"image".to_vec()));
    let renamed = Some(FileContent::Whole(WholeFileReason::Renamed));
    assert_eq!(reported("directory/image", Some(mark)), renamed);
    assert_eq!(reported("alone", Some(mark)), nothing);
    // And above it.
    let mark = look(&tree, Some(mark)).epoch;
    assert_eq!(reported("directory/image", Some(mark)), nothing);
    tree.lock().rename(
        &(NodeId::ROOT, b"directory".to_vec()),
        &(NodeId::ROOT, b"moved".to_vec()),
    );
    assert_eq!(reported("moved/image", Some(mark)), renamed);
}
