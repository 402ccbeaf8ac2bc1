//! Files that a program replaced when it saved them: each is sent as its difference from the file
//! for which its name stood at the mark.

use super::examining::decided;
use super::random_lives::edit;
use byteback_api::{Code, Problem};
use byteback_backup::SnapshotSpec;
use byteback_backup::decisions::{Cause, DeltaMethod};
use byteback_host::random::{SplitMix64, noise};
use byteback_model::{NodeId, NodeKind};
use byteback_oplog::WholeReason;
use byteback_testkit::clients::patient;
use byteback_testkit::proxy::hearing;
use byteback_testkit::rig::Rig;
use byteback_testkit::scripted_tree::{Picture, State};
use byteback_testkit::seed::seed;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The ways in which programs replace a file.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// A new file is renamed over the old one.
    RenameOver,
    /// The old file is renamed to a backup, and a new one gets its name.
    RenameAway,
    /// The old file is removed, and a new one gets its name.
    Remove,
    /// The old file gets a second name for a backup, and a new one is renamed over the first.
    LinkAway,
}

impl Way {
    const ALL: [Self; 4] = [Self::RenameOver, Self::RenameAway, Self::Remove, Self::LinkAway];
}

/// Replaces the file `old` of this name; returns the new file.
fn replace(state: &mut State, way: Way, old: NodeId, name: &[u8], bytes: &[u8]) -> NodeId {
    let place = (NodeId::ROOT, name.to_vec());
    let backup = [name, b"~"].concat();
    let temporary = [name, b".tmp"].concat();
    match way {
        Way::RenameAway => state.rename(&place, &(NodeId::ROOT, backup)),
        Way::Remove => state.unlink(NodeId::ROOT, name),
        Way::LinkAway => state.link(old, NodeId::ROOT, &backup),
        Way::RenameOver => {}
    }
    let is_free = matches!(way, Way::RenameAway | Way::Remove);
    let first_name = if is_free { name } else { &temporary };
    let new = state.create(NodeId::ROOT, first_name, NodeKind::File);
    state.write(new, 0, bytes);
    if !is_free {
        state.rename(&(NodeId::ROOT, temporary), &place);
    }
    new
}

#[test]
fn replaced_file_costs_its_insertion_in_every_way() {
    for way in Way::ALL {
        let rig = Rig::new(1);
        let mut bytes = noise(1, 3 << 20);
        let old = rig.with_file(&bytes);
        bytes.splice(1_000_001..1_000_001, noise(2, 50_000));
        let new = replace(&mut rig.tree.lock(), way, old, b"image", &bytes);
        let report = rig.backup().unwrap();
        assert_eq!((report.examined_files, report.followed_files), (1, 1), "{way:?}");
        // Blocks are 1768 bytes here.
        assert!(
            report.literal_bytes < 50_000 + 2 * 1768,
            "{way:?}: {}",
            report.literal_bytes
        );
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
        // The next changes build on it.
        rig.tree.lock().write(new, 1_000_100, b"more");
        let report = rig.backup().unwrap();
        assert_eq!((report.literal_bytes, report.examined_files), (4, 0));
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    }
}

#[test]
fn file_replaced_again_and_again_follows_the_saved_one() {
    let rig = Rig::new(2);
    let mut bytes = noise(1, 1 << 20);
    let mut file = rig.with_file(&bytes);
    for (round, way) in (2..).zip([Way::RenameOver, Way::Remove, Way::RenameOver]) {
        bytes.splice(500_000..500_000, noise(round, 1000));
        file = replace(&mut rig.tree.lock(), way, file, b"image", &bytes);
    }
    let report = rig.backup().unwrap();
    assert_eq!((report.examined_files, report.followed_files), (1, 1));
    assert!(report.literal_bytes < 20_000, "{}", report.literal_bytes);
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

/// A busy machine leaves the search to the server, unless it knows that little of the file has to
/// be searched: from the file that this one replaced.
#[test]
fn replaced_file_inherits_the_record_of_how_it_was_saved() {
    let mut rig = Rig::new(5);
    let decisions = rig.keep_decisions();
    rig.options.processor_share = 0.1;
    let mut bytes = noise(1, 1 << 20);
    let mut file = rig.with_file(&bytes);
    for (round, is_known) in (2..).zip([false, true, true]) {
        bytes.splice(500_000..500_000, noise(round, 1000));
        file = replace(&mut rig.tree.lock(), Way::RenameOver, file, b"image", &bytes);
        rig.backup().unwrap();
        let decision = decided(&rig, &decisions, file);
        let is_left_to_server = decision.method == DeltaMethod::Webr;
        assert_eq!(
            (is_left_to_server, decision.cause),
            (!is_known, Cause::Replaced),
            "round {round}"
        );
    }
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn copy_costs_what_differs_from_its_source() {
    let rig = Rig::new(4);
    let mut bytes = noise(1, 1 << 20);
    let file = rig.with_file(&bytes);
    for (name, change, literal_bytes_max) in [("copy", 0, 0), ("changed copy", 3000, 3000 + 3 * 1024)] {
        bytes.splice(500_000..500_000, noise(2, change));
        let mut state = rig.tree.lock();
        let copy = state.create(NodeId::ROOT, name.as_bytes(), NodeKind::File);
        state.write(copy, 0, &bytes);
        state.copied_from.insert(copy, file);
        drop(state);
        let report = rig.backup().unwrap();
        assert_eq!((report.examined_files, report.followed_files), (1, 1), "{name}");
        assert!(
            report.literal_bytes <= literal_bytes_max as u64,
            "{name}: {}",
            report.literal_bytes
        );
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    }
    // Its source is as new as it is, or gone: it is sent.
    let mut state = rig.tree.lock();
    let [source, copy] = ["new", "copy of it"].map(|name| state.create(NodeId::ROOT, name.as_bytes(), NodeKind::File));
    for node in [source, copy] {
        state.write(node, 0, &noise(3, 200_000));
    }
    state.copied_from.insert(copy, source);
    drop(state);
    let report = rig.backup().unwrap();
    assert_eq!((report.examined_files, report.literal_bytes), (0, 400_000));
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn file_that_replaced_an_unsaved_one_is_sent_whole() {
    let rig = Rig::new(3);
    rig.with_file(&noise(1, 1000));
    let bytes = noise(2, 200_000);
    let old = rig.tree.lock().create(NodeId::ROOT, b"new", NodeKind::File);
    rig.tree.lock().write(old, 0, &bytes);
    rig.tree.lock().failing.insert(old, 0);
    assert_eq!(rig.backup().unwrap().unsaved.len(), 1);
    rig.tree.lock().failing.clear();
    replace(&mut rig.tree.lock(), Way::RenameOver, old, b"new", &bytes);
    let report = rig.backup().unwrap();
    assert_eq!((report.examined_files, report.literal_bytes), (0, 200_000));
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

const SHORT_FILES: u64 = 100;

/// A saved tree of short files, and their contents.
fn with_short_files(rig: &Rig) -> Vec<(NodeId, Vec<u8>)> {
    let mut files = Vec::new();
    for number in 0..SHORT_FILES {
        let bytes = noise(number, 40_000 + 200 * number as usize);
        let mut state = rig.tree.lock();
        let file = state.create(NodeId::ROOT, format!("f{number}").as_bytes(), NodeKind::File);
        state.write(file, 0, &bytes);
        files.push((file, bytes));
    }
    rig.backup().unwrap();
    files
}

#[test]
fn short_files_that_replaced_equal_ones_cost_no_bytes() {
    for way in Way::ALL {
        let rig = Rig::new(11);
        let mut files = with_short_files(&rig);
        files[7].1[3000] ^= 1;
        for (number, (file, bytes)) in files.iter_mut().enumerate() {
            *file = replace(&mut rig.tree.lock(), way, *file, format!("f{number}").as_bytes(), bytes);
        }
        let report = rig.backup().unwrap();
        // Far servers are asked only for many bytes at once: this one may seem far for a moment.
        assert!(report.followed_files > SHORT_FILES / 2, "{way:?}: {report:?}");
        let all = files.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
        assert!((1..all / 2).contains(&report.literal_bytes), "{way:?}: {report:?}");
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
        // Later changes build on it.
        rig.tree.lock().write(files[8].0, 100, b"more");
        assert_eq!(rig.backup().unwrap().literal_bytes, 4);
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    }
}

#[test]
fn short_files_written_again_as_they_were_cost_no_bytes() {
    for is_untracked in [false, true] {
        let rig = Rig::new(12);
        let mut files = with_short_files(&rig);
        files[7].1[3000] ^= 1;
        for (file, bytes) in &files {
            let mut state = rig.tree.lock();
            state.truncate(*file, 0);
            state.write(*file, 0, bytes);
            if is_untracked {
                state.mark_whole(*file, WholeReason::Untracked);
            }
        }
        let report = rig.backup().unwrap();
        assert!(report.examined_files > SHORT_FILES / 2, "{is_untracked}: {report:?}");
        let all = files.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
        assert!((1..all / 2).contains(&report.literal_bytes), "{report:?}");
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    }
}

/// A server that does not know the call is asked once in a backup; the files are sent.
#[test]
fn short_files_are_sent_to_a_server_that_compares_none() {
    let asked = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&asked);
    let refuse = move |head: &str, _: &[u8]| {
        let is_question = head.split(' ').nth(1).is_some_and(|path| path.ends_with("/digests"));
        counter.fetch_add(u64::from(is_question), Ordering::SeqCst);
        is_question.then(|| Problem::new(Code::RouteNotFound, "no such route"))
    };
    let mut rig = Rig::through(13, patient(), |to, _| hearing(to, refuse));
    rig.options.part_len_bytes = 1 << 20;
    let files = with_short_files(&rig);
    for (number, (file, bytes)) in files.iter().enumerate() {
        let name = format!("f{number}");
        replace(&mut rig.tree.lock(), Way::RenameOver, *file, name.as_bytes(), bytes);
    }
    rig.backup().unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

/// Files that are edited in place, replaced, or given each other's names, between backups that may
/// fail midway.
#[test]
fn random_replacements_come_back() {
    let first_seed = seed(31);
    let mut followed = 0;
    for seed in first_seed..first_seed + 8 {
        let mut random = SplitMix64::new(seed);
        let mut rig = Rig::new(seed);
        let mut files: Vec<(NodeId, Vec<u8>)> = Vec::new();
        for name in NAMES {
            let len = [random.below(70_000), 70_000 + random.below(300_000)][random.below(2) as usize];
            let bytes = noise(random.next_u64(), len as usize);
            let file = rig.tree.lock().create(NodeId::ROOT, name, NodeKind::File);
            rig.tree.lock().write(file, 0, &bytes);
            files.push((file, bytes));
        }
        let mut pictures: Vec<(u64, Picture)> = Vec::new();
        for _ in 0..8 {
            rig.options.part_len_bytes = [4 * 1024, 32 * 1024, 1 << 24][random.below(3) as usize];
            let report = rig.backup().unwrap();
            followed += report.followed_files;
            if report.is_complete() {
                pictures.push((report.snapshot_id.unwrap(), rig.tree.picture()));
            }
            let mut state = rig.tree.lock();
            state.failing.clear();
            for index in 0..NAMES.len() {
                change(&mut state, &mut random, &mut files, index);
            }
        }
        for (id, picture) in &pictures {
            rig.assert_snapshot(SnapshotSpec::Id(*id), picture);
        }
    }
    assert!(followed > 40, "seed {first_seed}: {followed}");
}

const NAMES: [&[u8]; 3] = [b"a", b"b", b"c"];

fn change(state: &mut State, random: &mut SplitMix64, files: &mut [(NodeId, Vec<u8>)], index: usize) {
    let name = NAMES[index];
    let (mut file, mut bytes) = files[index].clone();
    for _ in 0..random.below(3) {
        edit(random, &mut bytes, 20_000);
    }
    match random.below(7) {
        0 => return,
        1 => {
            state.truncate(file, 0);
            state.write(file, 0, &bytes);
        }
        2 => {
            let other = random.below(NAMES.len() as u64) as usize;
            if other != index {
                let places = [name, NAMES[other]].map(|name| (NodeId::ROOT, name.to_vec()));
                state.exchange(&places[0], &places[1]);
                files.swap(index, other);
            }
            return;
        }
        _ => {
            let way = Way::ALL[random.below(4) as usize];
            file = replace(state, way, file, name, &bytes);
        }
    }
    if random.below(3) == 0 {
        // A guess that is mostly wrong.
        let source = files[random.below(files.len() as u64) as usize].0;
        state.copied_from.insert(file, source);
    }
    if random.below(6) == 0 {
        state
            .failing
            .insert(file, random.below(bytes.len().max(1) as u64) as usize);
    }
    files[index] = (file, bytes);
}
