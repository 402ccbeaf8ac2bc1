//! Trimming by the client's own block checksums: no block that the server lacks is taken for known.

use byteback_backup::SnapshotSpec;
use byteback_host::random::{SplitMix64, noise};
use byteback_model::{NodeId, NodeKind};
use byteback_oplog::WholeReason;
use byteback_testkit::clients::impatient;
use byteback_testkit::listener::RecordingMonitor;
use byteback_testkit::rig::Rig;
use byteback_testkit::seed::seed;
use std::sync::Mutex;

#[test]
fn trimming_makes_rewriting_the_same_bytes_cost_nothing() {
    let mut rig = Rig::new(1);
    rig.keep_checksums();
    let bytes = noise(1, 1_000_001);
    let file = rig.with_file(&bytes);
    // All of it, from the first byte to the last, with one byte in it that differs.
    let mut again = bytes.clone();
    again[700_000] ^= 1;
    {
        let mut state = rig.tree.lock();
        state.write(file, 10_000, &bytes[10_000..500_000]);
        state.write(file, 600_001, &again[600_001..]);
    }
    let report = rig.backup().unwrap();
    assert_eq!((report.literal_bytes, report.examined_files), (4096, 0));
    assert_eq!(report.changed_bytes, 490_000 + 400_000);
    assert_eq!(report.found_bytes, report.changed_bytes - 4096);
    // Ranges to read are widened to blocks, ranges to send are not.
    assert_eq!(report.read_bytes, report.hashed_bytes);
    assert!(report.hashed_bytes < report.changed_bytes + 4 * 4096);
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    rig.tree.lock().write(file, 5000, b"ten bytes.");
    let report = rig.backup().unwrap();
    assert_eq!((report.literal_bytes, report.read_bytes), (10, 4096));
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn backup_narrows_a_file_open_in_a_crash_without_the_server() {
    let mut rig = Rig::new(2);
    rig.keep_checksums();
    let file = rig.with_file(&noise(1, 3 << 20));
    for round in 0..3 {
        {
            let mut state = rig.tree.lock();
            state.write(file, 1_000_000 + round * 100_000, &noise(round, 5000));
            state.mark_whole(file, WholeReason::Interrupted);
        }
        let before = rig.client.wire_bytes();
        let report = rig.backup().unwrap();
        assert_eq!(report.examined_files, 1);
        assert!(report.literal_bytes <= 5000 + 2 * 4096, "{}", report.literal_bytes);
        let wire = rig.client.wire_bytes().since(before);
        assert!(wire.received < 3000, "{wire:?}: no signature");
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    }
}

#[test]
fn a_backup_that_knows_no_store_makes_it_forget() {
    let mut rig = Rig::new(3);
    rig.keep_checksums();
    let old = noise(1, 500_000);
    let file = rig.with_file(&old);
    let store = rig.options.block_checksums.take();
    rig.tree.lock().write(file, 100_000, &noise(2, 50_000));
    rig.backup().unwrap();
    rig.options.block_checksums = store;
    // As it was when the store was last updated, which is not the server's content.
    rig.tree.lock().write(file, 100_000, &old[100_000..150_000]);
    let report = rig.backup().unwrap();
    assert_eq!(report.literal_bytes, 50_000);
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn a_store_that_cannot_be_opened_is_warned_of_and_done_without() {
    let mut rig = Rig::new(4);
    rig.keep_checksums();
    let file = rig.with_file(&noise(1, 500_000));
    let dir = rig.temp.path().join("checksums");
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
    }
    rig.tree.lock().write(file, 7, b"something");
    let warnings = Mutex::new(Vec::new());
    let reported = RecordingMonitor::new(|event, _| {
        if let byteback_backup::Event::Warning(text) = event {
            warnings.lock().unwrap().push((*text).to_owned());
        }
    });
    let report = rig.backup_with_monitor(&reported).unwrap();
    assert_eq!((report.literal_bytes, report.hashed_bytes), (9, 0));
    assert!(warnings.lock().unwrap()[0].contains("block checksums"));
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn random_lives_with_broken_backups_come_back() {
    let seed = seed(21);
    for round in 0..10 {
        let mut random = SplitMix64::new(seed + round);
        let mut rig = Rig::with(seed + round, impatient());
        rig.keep_checksums();
        let store = rig.options.block_checksums.clone();
        let mut files = Vec::new();
        for index in 0..3_u64 {
            let name = format!("f{index}");
            let mut state = rig.tree.lock();
            let file = state.create(NodeId::ROOT, name.as_bytes(), NodeKind::File);
            let len = 1 + random.below(150_000) as usize;
            state.write(file, 0, &vec![1; len]);
            files.push(file);
        }
        let mut pictures = Vec::new();
        for _ in 0..14 {
            for file in &files {
                let mut state = rig.tree.lock();
                let len = state.now.nodes[file].attributes.size;
                let start = random.below(len + 1);
                match random.below(7) {
                    0 => state.truncate(*file, start),
                    1 => state.truncate(*file, len + random.below(30_000)),
                    2 => {
                        let end = (start + random.below(60_000)).min(len);
                        if let Some(hole) = byteback_extents::ByteRange::new(start, end) {
                            state.punch(*file, hole);
                        }
                    }
                    3 => state.mark_whole(*file, WholeReason::Interrupted),
                    _ => {
                        // Few values, so that blocks return to former contents.
                        let written = vec![1 + random.below(2) as u8; 1 + random.below(40_000) as usize];
                        state.write(*file, start, &written);
                    }
                }
                state.failing.clear();
                if random.below(8) == 0 {
                    let after = random.below(50_000) as usize;
                    state.failing.insert(*file, after);
                }
            }
            rig.options.part_len_bytes = [4 * 1024, 1 << 24][random.below(2) as usize];
            rig.options.force_full = random.below(10) == 0;
            rig.options.block_checksums = store.clone().filter(|_| random.below(6) > 0);
            if random.below(3) == 0 {
                rig.cutter.cut_after(random.below(120_000) as i64, false);
            }
            match rig.backup() {
                Ok(report) if report.is_complete() => {
                    pictures.push((report.snapshot_id.unwrap(), rig.tree.picture()));
                }
                _ => {}
            }
            rig.cutter.heal();
        }
        rig.tree.lock().failing.clear();
        let last = rig.backup().unwrap();
        pictures.push((last.snapshot_id.unwrap(), rig.tree.picture()));
        for (id, picture) in &pictures {
            rig.assert_snapshot(SnapshotSpec::Id(*id), picture);
        }
    }
}
