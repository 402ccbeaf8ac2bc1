//! A log that the server does not know (the old one is lost, or another tree made the folder):
//! everything is sent, as the difference from the server's files at the same paths.

use super::examining::{scripted_proxy, signature_of};
use byteback_api::MEDIA_SIGNATURE;
use byteback_backup::decisions::{Cause, Decision, DeltaMethod, Fallback, last_decision};
use byteback_backup::{BackupOptions, DeltaChoice, SnapshotSpec};
use byteback_backup::{Event, Phase, Silent};
use byteback_control::{LeafSource, TreeService};
use byteback_extents::ByteRange;
use byteback_host::durable::DurableDir;
use byteback_host::random::{SplitMix64, noise};
use byteback_model::{NodeId, NodeKind};
use byteback_testkit::clients::patient;
use byteback_testkit::listener::RecordingMonitor;
use byteback_testkit::proxy::hearing;
use byteback_testkit::rig::Rig;
use byteback_testkit::scripted_tree::{Leaves, ScriptedTree};
use byteback_testkit::seed::seed;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const MIB: usize = 1 << 20;

fn decided(rig: &Rig, dir: &Arc<dyn DurableDir>, file: NodeId) -> Decision {
    let tree = rig.tree.status().unwrap().tree;
    let decided = last_decision(dir.as_ref(), tree, file).unwrap().unwrap();
    assert_eq!(decided.seq, rig.seq());
    decided.decision
}

fn lose_log(rig: &Rig, number: u64) -> impl Fn(NodeId) -> NodeId + use<> {
    let renamed = rig.tree.lock().lose_log(&mut SplitMix64::new(number));
    move |node| renamed[&node]
}

fn file(rig: &Rig, dir: NodeId, name: &str, bytes: &[u8]) -> NodeId {
    let mut state = rig.tree.lock();
    let file = state.create(dir, name.as_bytes(), NodeKind::File);
    state.write(file, 0, bytes);
    file
}

#[test]
fn a_folder_whose_log_is_lost_costs_what_differs() {
    let mut rig = Rig::new(1);
    let decisions = rig.keep_decisions();
    rig.options.part_len_bytes = 256 * 1024;
    let dir = rig.tree.lock().create(NodeId::ROOT, b"dir", NodeKind::Directory);
    let image = file(&rig, NodeId::ROOT, "image", &noise(1, 3 * MIB));
    let same = file(&rig, dir, "same", &noise(2, 2 * MIB));
    let moved = file(&rig, dir, "moved", &noise(3, 200_000));
    let small = file(&rig, dir, "small", &noise(4, 10_000));
    let first = rig.backup().unwrap();
    assert_eq!(first.followed_files, 0);
    let old = rig.tree.picture();

    rig.tree.lock().write(image, 1_000_000, &noise(5, 50_000));
    rig.tree
        .lock()
        .rename(&(dir, b"moved".to_vec()), &(NodeId::ROOT, b"elsewhere".to_vec()));
    let now = lose_log(&rig, 1);
    let reported = RecordingMonitor::new(|_, _| {});
    let before = rig.client.wire_bytes();
    let report = rig.backup_with_monitor(&reported).unwrap();
    assert!(
        reported.warned("the folder's log was recreated"),
        "{:?}",
        reported.warnings
    );
    assert!(report.everything_because.is_some());
    assert_eq!(
        (report.examined_files, report.followed_files, report.files_new),
        (3, 3, 4)
    );
    // Blocks of the image have 1,773 bytes.
    let most = 50_000 + 2 * 1773 + 200_000;
    assert!(
        (250_000..most).contains(&report.literal_bytes),
        "{}",
        report.literal_bytes
    );
    let wire = rig.client.wire_bytes().since(before);
    assert!(wire.sent < most + 20_000, "{wire:?}");
    assert!(report.stored_bytes < most + 5_000, "{}", report.stored_bytes);
    for (node, method, cause) in [
        (image, DeltaMethod::SkyF, Cause::SamePath),
        (same, DeltaMethod::SkyF, Cause::SamePath),
        (moved, DeltaMethod::Full, Cause::New),
        (small, DeltaMethod::Hash, Cause::SamePath),
    ] {
        let decision = decided(&rig, &decisions, now(node));
        assert_eq!(
            (decision.method, decision.cause, decision.fallback),
            (method, cause, None)
        );
        assert_eq!(decision.changed_bytes, decision.size_bytes);
    }
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    rig.assert_snapshot(SnapshotSpec::Id(first.snapshot_id.unwrap()), &old);

    // From now on it is a folder like others.
    rig.tree.lock().write(now(image), 7, b"once");
    let report = rig.backup().unwrap();
    assert_eq!((report.everything_because, report.literal_bytes), (None, 4));
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn short_files_that_the_server_has_at_their_paths_are_not_sent() {
    let rig = Rig::new(9);
    let dirs: Vec<NodeId> = (0..4)
        .map(|index| {
            rig.tree
                .lock()
                .create(NodeId::ROOT, format!("d{index}").as_bytes(), NodeKind::Directory)
        })
        .collect();
    let mut files = Vec::new();
    for index in 0..400u64 {
        let dir = dirs[index as usize % dirs.len()];
        files.push(file(
            &rig,
            dir,
            &format!("f{index}"),
            &noise(index, 500 + index as usize),
        ));
    }
    // More names than a page has.
    let vast = rig.tree.lock().create(NodeId::ROOT, b"vast", NodeKind::Directory);
    for index in 0..1200u64 {
        file(&rig, vast, &format!("v{index:05}"), &noise(index, 50));
    }
    rig.backup().unwrap();
    // Of the same length and of another; gone; new; empty.
    rig.tree.lock().write(files[0], 100, b"changed");
    rig.tree.lock().write(files[1], 501, b"longer");
    file(&rig, dirs[0], "new", &noise(999, 3000));
    file(&rig, dirs[0], "empty", b"");
    let _ = lose_log(&rig, 9);
    let before = rig.client.wire_bytes();
    let report = rig.backup().unwrap();
    assert!(report.everything_because.is_some());
    assert_eq!(
        (report.followed_files, report.literal_bytes),
        (398 + 1200, 500 + 507 + 3000)
    );
    // Names and attributes of all files; their contents would be 340,000 bytes more.
    let wire = rig.client.wire_bytes().since(before);
    assert!(wire.sent < 750_000, "{wire:?}");
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn backup_follows_moves_after_log_loss_by_time_or_name() {
    let mut rig = Rig::new(31);
    let decisions = rig.keep_decisions();
    let [one, other] = ["one", "other"].map(|name| {
        rig.tree
            .lock()
            .create(NodeId::ROOT, name.as_bytes(), NodeKind::Directory)
    });
    // Renamed and untouched; moved under its name and changed; as before, but two files of the name
    // are gone; copied.
    let by_time = file(&rig, one, "by-time", &noise(1, MIB));
    let by_name = file(&rig, one, "by-name", &noise(2, MIB));
    let twins = [one, other].map(|dir| file(&rig, dir, "twin", &noise(u64::from(dir == one) + 3, MIB)));
    // Of the same name as one that stays at its place.
    let stays = file(&rig, one, "stays", &noise(5, MIB));
    rig.backup().unwrap();
    let third = rig.tree.lock().create(NodeId::ROOT, b"third", NodeKind::Directory);
    let rename = |from: (NodeId, &str), to: (NodeId, &str)| {
        let place = |(dir, name): (NodeId, &str)| (dir, name.as_bytes().to_vec());
        rig.tree.lock().rename(&place(from), &place(to));
    };
    rename((one, "by-time"), (third, "renamed"));
    rename((one, "by-name"), (third, "by-name"));
    rig.tree.lock().write(by_name, 1000, b"changed");
    rename((one, "twin"), (third, "twin"));
    rename((other, "twin"), (NodeId::ROOT, "twin"));
    let _ = twins.map(|twin| rig.tree.lock().write(twin, 1000, b"changed"));
    let new = file(&rig, third, "stays", &noise(6, MIB));
    let now = lose_log(&rig, 31);
    let report = rig.backup().unwrap();
    assert_eq!(report.followed_files, 3);
    for (node, cause) in [
        (by_time, Cause::Moved),
        (by_name, Cause::Moved),
        (stays, Cause::SamePath),
        (twins[0], Cause::New),
        (twins[1], Cause::New),
        (new, Cause::New),
    ] {
        assert_eq!(decided(&rig, &decisions, now(node)).cause, cause);
    }
    let whole = 3 * MIB as u64;
    assert!(
        (whole..whole + 20_000).contains(&report.literal_bytes),
        "{}",
        report.literal_bytes
    );
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn backup_lists_a_vast_tree_once_and_only_partly_for_moves() {
    let rig = Rig::new(32);
    let mut dirs = Vec::new();
    for number in 0..100 {
        let name = format!("dir{number:03}");
        let dir = rig
            .tree
            .lock()
            .create(NodeId::ROOT, name.as_bytes(), NodeKind::Directory);
        dirs.push(dir);
        if number == 99 || number < 5 {
            file(&rig, dir, "file", &noise(number, MIB / 2));
        }
    }
    rig.backup().unwrap();
    // None of them is where it was.
    for number in (0..5).chain([99]) {
        let name = format!("moved{number}");
        let from = (dirs[number], b"file".to_vec());
        rig.tree.lock().rename(&from, &(NodeId::ROOT, name.into_bytes()));
    }
    let _ = lose_log(&rig, 32);
    let before = rig.client.wire_bytes();
    let report = rig.backup().unwrap();
    // All that were among the first pages.
    assert_eq!(report.followed_files, 5);
    let wire = rig.client.wire_bytes().since(before);
    assert!(wire.received < 300_000, "{wire:?}");
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn backup_skips_content_that_checksums_prove_equal() {
    let rig = Rig::new(2);
    let image = rig.with_file(&noise(1, 5 * MIB));
    rig.tree.lock().leaves = Leaves {
        source: LeafSource::Btrfs,
        ..Leaves::default()
    };
    rig.tree.lock().write(image, 4_096_000, &noise(2, 4096));
    let _ = lose_log(&rig, 2);
    let report = rig.backup().unwrap();
    assert_eq!((report.followed_files, report.literal_bytes), (1, 4096));
    assert!(report.read_bytes < 20_000, "{}", report.read_bytes);
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn backup_sends_everything_on_request() {
    for is_forced in [false, true] {
        let mut rig = Rig::new(3);
        rig.with_file(&noise(1, MIB));
        if is_forced {
            rig.options.force_full = true;
        } else {
            rig.options.delta = DeltaChoice::Full;
            let _ = lose_log(&rig, 3);
        }
        let report = rig.backup().unwrap();
        assert_eq!((report.followed_files, report.literal_bytes), (0, MIB as u64));
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    }
}

#[test]
fn backup_follows_a_path_only_to_a_file_with_contents() {
    let mut rig = Rig::new(4);
    let decisions = rig.keep_decisions();
    // Independent of the round trip here.
    rig.options.delta = DeltaChoice::Rsync;
    let bytes = noise(1, 100_000);
    let root = NodeId::ROOT;
    for (name, kind) in [
        ("was-dir", NodeKind::Directory),
        ("was-link", NodeKind::Symlink),
        ("was-empty", NodeKind::File),
        ("Was-Other", NodeKind::File),
    ] {
        rig.tree.lock().create(root, name.as_bytes(), kind);
    }
    let linked = file(&rig, root, "one", &bytes);
    rig.tree.lock().link(linked, root, b"two");
    let becomes_dir = file(&rig, root, "becomes-dir", &bytes);
    file(&rig, root, "becomes-empty", &bytes);
    rig.backup().unwrap();
    {
        let mut state = rig.tree.lock();
        for name in ["was-dir", "was-link", "was-empty", "Was-Other", "becomes-dir"] {
            state.unlink(root, name.as_bytes());
        }
        assert!(!state.now.nodes.contains_key(&becomes_dir));
        let dir = state.create(root, b"becomes-dir", NodeKind::Directory);
        for (dir, name) in [
            (root, "was-dir"),
            (root, "was-link"),
            (root, "was-empty"),
            (root, "was-other"),
            (dir, "below-what-was-a-file"),
        ] {
            let file = state.create(dir, name.as_bytes(), NodeKind::File);
            state.write(file, 0, &bytes);
        }
        let empty = state.now.names[&(root, b"becomes-empty".to_vec())];
        state.truncate(empty, 0);
        // The first of its names is a new one.
        state.link(linked, root, b"a-new-name");
        state.unlink(root, b"one");
    }
    let now = lose_log(&rig, 4);
    let report = rig.backup().unwrap();
    // Only the one with several names is found, under one of them.
    assert_eq!((report.followed_files, report.literal_bytes), (1, 500_000));
    let decision = decided(&rig, &decisions, now(linked));
    assert_eq!(
        (decision.method, decision.cause, decision.literal_bytes),
        (DeltaMethod::Rsync, Cause::Asked, 0)
    );
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

const WAYS: [DeltaChoice; 8] = [
    DeltaChoice::Auto,
    DeltaChoice::Rsync,
    DeltaChoice::Hash,
    DeltaChoice::Webr,
    DeltaChoice::Cdc,
    DeltaChoice::SkyF,
    DeltaChoice::SkyC,
    DeltaChoice::Full,
];

/// Changes large files at random.
fn change_large(rig: &Rig, random: &mut SplitMix64) {
    let mut state = rig.tree.lock();
    let large: Vec<(NodeId, Vec<u8>)> = (0..6)
        .map(|number| (NodeId::ROOT, format!("large-{number}").into_bytes()))
        .collect();
    for _ in 0..1 + random.below(4) {
        let place = &large[random.below(6) as usize];
        let Some(&file) = state.now.names.get(place) else {
            let file = state.create(place.0, &place.1, NodeKind::File);
            state.write(
                file,
                0,
                &noise(random.next_u64(), 65_000 + random.below(200_000) as usize),
            );
            continue;
        };
        let node = &state.now.nodes[&file];
        // Another node may have moved here.
        if node.attributes.kind != NodeKind::File {
            continue;
        }
        let len = node.content.len();
        match random.below(8) {
            0 => state.unlink(place.0, &place.1),
            1 => {
                let other = &large[random.below(6) as usize];
                if other != place && state.now.names.contains_key(other) {
                    state.exchange(place, other);
                }
            }
            2 => {
                let other = &large[random.below(6) as usize];
                if state.now.names.get(other) != Some(&file) {
                    state.link(file, other.0, &other.1);
                }
            }
            3 => state.truncate(file, random.below(2 * len + 1)),
            4 => {
                if let Some(range) = ByteRange::from_offset_len(random.below(len + 1), 1 + random.below(50_000)) {
                    state.punch(file, range);
                }
            }
            _ => {
                let bytes = noise(random.next_u64(), 1 + random.below(20_000) as usize);
                state.write(file, random.below(len + 1), &bytes);
            }
        }
    }
}

#[test]
fn random_trees_whose_log_is_lost_again_and_again_come_back() {
    let seed = seed(31);
    let (mut followed, mut losses) = (0, 0);
    for round in 0..6 {
        let mut random = SplitMix64::new(seed + round);
        let mut rig = Rig::new(seed + round);
        if random.coin() {
            rig.keep_checksums();
        }
        let mut pictures = Vec::new();
        for _ in 0..9 {
            rig.change(&mut random, 12);
            change_large(&rig, &mut random);
            if random.below(3) == 0 && !pictures.is_empty() {
                rig.tree.lock().lose_log(&mut random);
                losses += 1;
            }
            rig.options.part_len_bytes = [4 * 1024, 32 * 1024, 1 << 24][random.below(3) as usize];
            rig.options.delta = match random.coin() {
                true => DeltaChoice::Auto,
                false => WAYS[random.below(8) as usize],
            };
            rig.tree.lock().leaves = Leaves {
                source: [LeafSource::Read, LeafSource::Btrfs][random.below(2) as usize],
                is_silent: random.below(4) == 0,
                ..Leaves::default()
            };
            if random.below(6) == 0 {
                let files: Vec<NodeId> = {
                    let state = rig.tree.lock();
                    let files = state.now.nodes.iter().filter(|(_, node)| node.content.len() > 60_000);
                    files.map(|(id, _)| *id).collect()
                };
                if let Some(file) = files.get(random.below(files.len() as u64 + 1) as usize) {
                    // Fails midway; the next backup brings it.
                    let fails_at = random.below(100_000) as usize;
                    rig.tree.lock().failing.insert(*file, fails_at);
                    let report = rig.backup().unwrap();
                    followed += report.followed_files;
                    rig.tree.lock().failing.clear();
                }
            }
            if random.below(5) == 0 {
                rig.cutter.cut_after(random.below(60_000) as i64, false);
            }
            let report = rig.backup().unwrap_or_else(|error| panic!("round {round}: {error:?}"));
            rig.cutter.heal();
            assert!(report.is_complete());
            followed += report.followed_files;
            let mut picture = rig.tree.picture();
            picture.may_lose_holes = true;
            pictures.push((report.snapshot_id.unwrap(), picture));
        }
        for (id, picture) in &pictures {
            rig.assert_snapshot(SnapshotSpec::Id(*id), picture);
        }
    }
    assert!(losses > 5 && followed > 5, "{losses} losses, {followed} files followed");
}

#[test]
fn backup_sends_everything_in_full_on_a_foreign_signature() {
    // It claims to have the client's content.
    let mut new = noise(1, MIB);
    new[500_000..600_000].copy_from_slice(&noise(2, 100_000));
    let answer = (200, MEDIA_SIGNATURE, signature_of(&new));
    let mut rig = Rig::through(5, patient(), scripted_proxy(move |_| Some(answer.clone())));
    rig.options.delta = DeltaChoice::Rsync;
    let decisions = rig.keep_decisions();
    let image = rig.with_file(&noise(1, MIB));
    rig.tree.lock().write(image, 500_000, &noise(2, 100_000));
    let now = lose_log(&rig, 5);
    let reported = RecordingMonitor::new(|_, _| {});
    let report = rig.backup_with_monitor(&reported).unwrap();
    assert!(reported.warned("sending such files in full"), "{:?}", reported.warnings);
    assert_eq!((report.followed_files, report.literal_bytes), (0, MIB as u64));
    assert_eq!(rig.seq(), 2, "what was refused left no trace");
    assert_eq!(
        decided(&rig, &decisions, now(image)).fallback,
        Some(Fallback::ProofRefused)
    );
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn backup_overtaken_by_another_sends_everything_in_full() {
    let mut rig = Rig::new(6);
    rig.options.delta = DeltaChoice::Rsync;
    let image = rig.with_file(&noise(1, MIB));
    rig.tree.lock().write(image, 5, b"x");
    let _ = lose_log(&rig, 6);
    // Another tree takes the folder, just before the batch is applied.
    let other = ScriptedTree::new(9);
    other.lock().lose_log(&mut SplitMix64::new(77));
    other.lock().create(NodeId::ROOT, b"theirs", NodeKind::File);
    let times = AtomicU64::new(0);
    let reported = RecordingMonitor::new(|event, _| {
        if let Event::Phase(Phase::Committing) = event
            && times.fetch_add(1, Ordering::SeqCst) == 0
        {
            let options = BackupOptions::new("other", rig.options.device);
            byteback_backup::backup(&other, &rig.client, &rig.folder, &options, &Silent).unwrap();
        }
    });
    let report = rig.backup_with_monitor(&reported).unwrap();
    assert!(reported.warned("sending everything in full"), "{:?}", reported.warnings);
    assert_eq!((report.followed_files, report.literal_bytes), (0, MIB as u64));
    assert_eq!(rig.seq(), 3);
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn backup_names_the_tree_that_backed_up_in_between() {
    let rig = Rig::new(33);
    rig.with_file(b"mine");
    let (client, device) = rig.another_device();
    let take = |number: u64, host: &str, path: &str| {
        let other = ScriptedTree::new(number);
        // Otherwise all scripted trees are one.
        other.lock().lose_log(&mut SplitMix64::new(number));
        other.lock().create(NodeId::ROOT, b"theirs", NodeKind::File);
        let options = BackupOptions {
            host: host.into(),
            path: path.into(),
            ..BackupOptions::new("other", device)
        };
        byteback_backup::backup(&other, &client, &rig.folder, &options, &Silent).unwrap()
    };
    let assert_told = |why: &str| {
        let reported = RecordingMonitor::new(|_, _| {});
        let report = rig.backup_with_monitor(&reported).unwrap();
        assert_eq!(report.everything_because.as_deref(), Some(why));
        let warning = format!("{why}; sending everything");
        assert!(reported.warned(&warning), "{:?}", reported.warnings);
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    };
    // The newest one of several counts.
    take(71, "srv0", "/data/old");
    take(72, "srv1", "/data/mail");
    assert_told("machine srv1 has backed up /data/mail into this folder since");
    // Without a snapshot of the other, nothing is known of it; the own one from before does not
    // count.
    let report = take(73, "srv2", "/data/www");
    rig.forget_snapshot(report.snapshot_id.unwrap());
    assert_told("another machine or directory has saved into this folder since");
}

/// The answer of a server that is older than batches which follow what they replace, and than
/// packed pieces: it cannot read them.
fn as_before(_: &str, body: &[u8]) -> Option<byteback_api::Problem> {
    let is_packed = body.starts_with(b"BYBATCH") && !body.starts_with(b"BYBATCH\x01");
    let is_new = body.windows(6).any(|some| some == b"{\"of\":".as_slice());
    (is_packed || is_new).then(|| byteback_api::Problem::new(byteback_api::Code::InvalidBody, "unknown variant `of`"))
}

/// Counts requests for directories and files of the tree.
fn count_lookups(counter: &Arc<AtomicU64>) -> impl Fn(&str, &[u8]) -> Option<byteback_api::Problem> + use<> {
    let counter = Arc::clone(counter);
    move |head, _| {
        let is_lookup = head.starts_with("GET ") && head.split('?').next().is_some_and(|path| path.ends_with("/tree"));
        counter.fetch_add(u64::from(is_lookup), Ordering::SeqCst);
        None
    }
}

#[test]
fn backup_lists_one_page_per_directory_then_asks_by_paths() {
    let lookups = Arc::new(AtomicU64::new(0));
    let count = count_lookups(&lookups);
    let mut rig = Rig::through(8, patient(), |to, _| hearing(to, count));
    rig.options.part_len_bytes = 1 << 20;
    let (few, vast) = {
        let mut state = rig.tree.lock();
        let few = state.create(NodeId::ROOT, b"few", NodeKind::Directory);
        let vast = state.create(NodeId::ROOT, b"vast", NodeKind::Directory);
        for number in 0..1200 {
            state.create(vast, format!("m{number}").as_bytes(), NodeKind::File);
        }
        (few, vast)
    };
    for number in 0..20 {
        file(&rig, few, &format!("f{number}"), &noise(number, 70_000));
    }
    for number in 0..4 {
        file(&rig, vast, &format!("a{number}"), &noise(100 + number, 70_000));
        file(&rig, vast, &format!("z{number}"), &noise(200 + number, 70_000));
    }
    rig.backup().unwrap();
    assert_eq!(
        lookups.load(Ordering::SeqCst),
        0,
        "the first time there is nothing to look for"
    );
    // By itself the planner may find files as short as these not worth a question.
    rig.options.delta = DeltaChoice::Rsync;
    let _ = lose_log(&rig, 8);
    let report = rig.backup().unwrap();
    assert_eq!((report.followed_files, report.literal_bytes), (28, 0));
    // Two files by their paths and the page; of the vast one also files behind its first page, by
    // paths.
    let asked = lookups.load(Ordering::SeqCst);
    assert!((6..=3 + 3 + 4).contains(&asked), "{asked} requests");
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn a_server_that_cannot_tell_what_it_has_gets_everything() {
    for code in [byteback_api::Code::Internal, byteback_api::Code::StorageDamaged] {
        let hear = move |head: &str, _: &[u8]| {
            let is_lookup = head.starts_with("GET ") && head.contains("/tree?");
            // Restores ask by number.
            (is_lookup && head.contains("path=")).then(|| byteback_api::Problem::new(code, "no"))
        };
        let mut rig = Rig::through(9, patient(), |to, _| hearing(to, hear));
        rig.options.delta = DeltaChoice::Rsync;
        rig.with_file(&noise(1, MIB));
        let _ = lose_log(&rig, 9);
        let reported = RecordingMonitor::new(|_, _| {});
        let report = rig.backup_with_monitor(&reported).unwrap();
        assert!(reported.warned("cannot report what it has"), "{:?}", reported.warnings);
        assert_eq!((report.followed_files, report.literal_bytes), (0, MIB as u64));
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    }
}

/// Another consumer of the same tree sends everything anew, under the identities that the server
/// knows.
#[test]
fn short_files_of_the_same_identity_are_not_sent_again() {
    let mut rig = Rig::new(34);
    rig.with_file(b"text");
    rig.options.consumer = "backup:other".into();
    let reported = RecordingMonitor::new(|_, _| {});
    let report = rig.backup_with_monitor(&reported).unwrap();
    assert!(!reported.warned("in full"), "{:?}", reported.warnings);
    assert_eq!((report.examined_files, report.literal_bytes), (1, 0));
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn a_server_from_before_such_batches_gets_everything_in_full() {
    for part_len in [8 * 1024, 1 << 24] {
        let mut rig = Rig::through(7, patient(), |to, _| hearing(to, as_before));
        rig.options.part_len_bytes = part_len;
        rig.options.delta = DeltaChoice::Rsync;
        let image = rig.with_file(&noise(1, MIB));
        rig.tree.lock().write(image, 5, &noise(4, 30_000));
        let _ = lose_log(&rig, 7);
        let reported = RecordingMonitor::new(|_, _| {});
        let report = rig.backup_with_monitor(&reported).unwrap();
        assert!(reported.warned("sending everything in full"), "{:?}", reported.warnings);
        assert_eq!((report.followed_files, report.literal_bytes), (0, MIB as u64));
        assert_eq!(rig.seq(), 2);
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    }
}
