//! Random changes, backups in between, and every snapshot restored at the end.

use byteback_backup::{BackupError, DeltaChoice, SnapshotSpec, WholeFiles};
use byteback_extents::ByteRange;
use byteback_host::random::SplitMix64;
use byteback_model::{NodeId, NodeKind};
use byteback_testkit::rig::Rig;
use byteback_testkit::scripted_tree::Picture;
use byteback_testkit::seed::seed;

#[test]
fn every_snapshot_of_a_changing_tree_comes_back() {
    let seed = seed(7);
    for round in 0..6 {
        let mut random = SplitMix64::new(seed + round);
        let mut rig = Rig::new(seed + round);
        if round % 2 == 1 {
            rig.keep_checksums();
        }
        let mut pictures: Vec<(u64, Picture)> = Vec::new();
        let auto = DeltaChoice::Auto;
        let ways = [
            auto,
            auto,
            auto,
            DeltaChoice::Rsync,
            DeltaChoice::Hash,
            DeltaChoice::Full,
            DeltaChoice::SkyF,
            DeltaChoice::SkyC,
        ];
        for _ in 0..8 {
            let times = 1 + random.below(40);
            rig.change(&mut random, times);
            // From one delta and one part for all to many of each for one file.
            rig.options.part_len_bytes = [4 * 1024, 16 * 1024, 1 << 24][random.below(3) as usize];
            rig.options.force_full = random.below(8) == 0;
            rig.options.delta = ways[random.below(ways.len() as u64) as usize];
            let report = rig.backup().unwrap();
            assert!(report.is_complete());
            if round % 2 == 0 {
                assert_eq!(report.hashed_bytes > 0, report.examined_files > 0);
            }
            let is_full = pictures.is_empty() || rig.options.force_full;
            let why = report.everything_because;
            assert_eq!(why.is_some(), is_full, "round {round}: {why:?}");
            pictures.push((report.snapshot_id.unwrap(), rig.tree.picture()));
        }
        for (id, picture) in &pictures {
            rig.assert_snapshot(SnapshotSpec::Id(*id), picture);
        }
        rig.assert_snapshot(SnapshotSpec::Latest(0), &pictures[7].1);
        rig.assert_snapshot(SnapshotSpec::Latest(3), &pictures[4].1);
    }
}

#[test]
fn a_small_change_costs_little_and_one_request_after_the_cut() {
    let rig = Rig::new(1);
    let file = {
        let mut state = rig.tree.lock();
        let file = state.create(NodeId::ROOT, b"image", NodeKind::File);
        let bytes: Vec<u8> = (0..4 << 20)
            .map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        state.write(file, 0, &bytes);
        file
    };
    let first = rig.backup().unwrap();
    assert!(first.parts > 0);
    assert!(first.everything_because.is_some());
    assert_eq!(first.whole.no_mark, 1);

    rig.tree.lock().write(file, 1_000_000, &[7; 1024]);
    let second = rig.backup().unwrap();
    assert_eq!(second.everything_because, None);
    assert_eq!((second.files_changed, second.files_new), (1, 0));
    assert_eq!(
        (second.changed_bytes, second.read_bytes, second.literal_bytes),
        (1024, 1024, 1024)
    );
    assert_eq!(second.parts, 0);
    assert_eq!(second.seq, Some(2));
    assert!(second.stored_bytes < 200, "{} bytes stored", second.stored_bytes);
    assert!(second.wire.total() < 4096, "{:?} on the wire", second.wire);
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn backup_of_a_thousand_changes_costs_little_beyond_their_bytes() {
    let mut rig = Rig::new(8);
    rig.options.part_len_bytes = byteback_backup::PART_LEN_BYTES_DEFAULT;
    let mut random = SplitMix64::new(8);
    let file = {
        let mut state = rig.tree.lock();
        let file = state.create(NodeId::ROOT, b"image", NodeKind::File);
        state.truncate(file, 4 << 30);
        file
    };
    rig.backup().unwrap();
    for round in 0..2 {
        let mut changed = std::collections::BTreeSet::new();
        while changed.len() < 1024 {
            changed.insert(random.below(4 << 20));
        }
        for place in changed {
            let bytes: Vec<u8> = (0..1024).map(|_| random.next_u64() as u8).collect();
            rig.tree.lock().write(file, place * 1024, &bytes);
        }
        let report = rig.backup().unwrap();
        assert_eq!((report.everything_because, report.read_bytes), (None, 1 << 20));
        let goal = (1 << 20) * 102 / 100 + 2048;
        assert!(report.wire.total() <= goal, "{:?}, goal {goal}", report.wire);
        // The goal's two kibibytes for the requests, and the map in its hundredths.
        assert!(report.wire.sent < (1 << 20) + 8000, "round {round}: {:?}", report.wire);
    }
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn backup_without_changes_makes_a_snapshot_and_no_batch() {
    let mut rig = Rig::new(2);
    let file = rig.tree.lock().create(NodeId::ROOT, b"a", NodeKind::File);
    rig.tree.lock().write(file, 0, b"hello");
    let first = rig.backup().unwrap();
    let second = rig.backup().unwrap();
    assert!(!second.has_changes());
    assert_eq!(second.seq, first.seq);
    assert_ne!(second.snapshot_id, first.snapshot_id);
    assert_eq!(rig.seq(), 1);
    rig.options.snapshot_if_unchanged = false;
    assert_eq!(rig.backup().unwrap().snapshot_id, None);
    // And the next change still builds on the first batch.
    rig.tree.lock().write(file, 2, b"LL");
    let third = rig.backup().unwrap();
    assert_eq!((third.everything_because, third.literal_bytes), (None, 2));
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn a_dry_run_changes_nothing() {
    let mut rig = Rig::new(3);
    let file = rig.tree.lock().create(NodeId::ROOT, b"a", NodeKind::File);
    rig.tree.lock().write(file, 0, b"hello");
    rig.options.dry_run = true;
    // A file that is read whole counts no bytes: its size is not looked at.
    let report = rig.backup().unwrap();
    let found = (report.files_new, report.whole.no_mark, report.changed_bytes);
    assert_eq!((found, rig.seq()), ((1, 1, 0), 0));
    rig.options.dry_run = false;
    assert_eq!(rig.backup().unwrap().files_new, 1);
    rig.tree.lock().write(file, 2, b"LL");
    rig.options.dry_run = true;
    let report = rig.backup().unwrap();
    let found = (report.files_changed, report.whole, report.changed_bytes);
    assert_eq!((found, rig.seq()), ((1, WholeFiles::default(), 2), 1));
}

#[test]
fn a_grown_a_shrunk_and_a_hollow_file_come_back() {
    let rig = Rig::new(4);
    let mut pictures = Vec::new();
    let file = rig.tree.lock().create(NodeId::ROOT, b"f", NodeKind::File);
    type Step = fn(&mut byteback_testkit::scripted_tree::State, NodeId);
    let steps: [Step; 7] = [
        |state, file| state.write(file, 0, &[1; 100_000]),
        |state, file| state.truncate(file, 10),
        |state, file| state.truncate(file, 100_000),
        |state, file| state.write(file, 300_000, &[2; 10]),
        |state, file| state.punch(file, ByteRange::new(0, 50_000).unwrap()),
        |state, file| {
            state.truncate(file, 5);
            state.truncate(file, 300_010);
        },
        |state, file| state.truncate(file, 0),
    ];
    for step in steps {
        step(&mut rig.tree.lock(), file);
        let report = rig.backup().unwrap();
        assert!(report.snapshot_id.is_some());
        pictures.push((report, rig.tree.picture()));
    }
    for (report, picture) in &pictures {
        rig.assert_snapshot(SnapshotSpec::Id(report.snapshot_id.unwrap()), picture);
    }
    assert!(
        pictures[1..]
            .iter()
            .all(|(report, _)| report.everything_because.is_none())
    );
}

#[test]
fn backup_resends_what_log_or_server_forgot_with_the_reason() {
    let mut rig = Rig::new(5);
    let mut random = SplitMix64::new(5);
    rig.change(&mut random, 40);
    rig.backup().unwrap();

    // Another folder with the same consumer.
    let home = rig.folder.clone();
    rig.folder = "other".parse().unwrap();
    rig.client.create_folder(&rig.folder).unwrap();
    let report = rig.backup().unwrap();
    assert!(report.everything_because.unwrap().contains("another place"));
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());

    // Back again: the note is about the other folder.
    rig.folder = home;
    rig.change(&mut random, 10);
    assert!(rig.backup().unwrap().everything_because.is_some());
    rig.change(&mut random, 10);
    assert_eq!(rig.backup().unwrap().everything_because, None);
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn two_trees_in_one_folder_fight_without_losing_anything() {
    let rig = Rig::new(6);
    let mut random = SplitMix64::new(6);
    rig.change(&mut random, 30);
    let first = rig.backup().unwrap();
    let first_picture = rig.tree.picture();
    // A copy of the machine goes on from the same log.
    let other = byteback_testkit::scripted_tree::ScriptedTree::new(60);
    let state = rig.tree.state.lock().unwrap().duplicate();
    *other.lock() = state;
    {
        let mut state = other.lock();
        let names: Vec<_> = state.now.names.keys().cloned().collect();
        for (parent, name) in names.into_iter().take(3) {
            if state.now.names.contains_key(&(parent, name.clone())) {
                state.unlink(parent, &name);
            }
        }
        let file = state.create(NodeId::ROOT, b"from the copy", NodeKind::File);
        state.write(file, 0, b"copy");
    }
    let copied =
        byteback_backup::backup(&other, &rig.client, &rig.folder, &rig.options, &byteback_backup::Silent).unwrap();
    let copied_picture = other.picture();
    rig.change(&mut random, 30);
    let second = rig.backup();
    let second = match second {
        Ok(report) => report,
        Err(BackupError::Server(error)) => panic!("{error}"),
        Err(error) => panic!("{error}"),
    };
    rig.assert_snapshot(SnapshotSpec::Id(first.snapshot_id.unwrap()), &first_picture);
    rig.assert_snapshot(SnapshotSpec::Id(copied.snapshot_id.unwrap()), &copied_picture);
    rig.assert_snapshot(SnapshotSpec::Id(second.snapshot_id.unwrap()), &rig.tree.picture());
}
