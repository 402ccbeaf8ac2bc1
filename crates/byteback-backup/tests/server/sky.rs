//! SkySync: backups by checksums that exist already.

use super::random_lives::{RandomLife, punch};
use byteback_backup::decisions::{Cause, Decision, DeltaMethod, Fallback, last_decision};
use byteback_backup::{DeltaChoice, SnapshotSpec};
use byteback_control::{LeafKind, LeafSource, TreeService};
use byteback_extents::ByteRange;
use byteback_host::durable::DurableDir;
use byteback_host::random::noise;
use byteback_model::NodeId;
use byteback_oplog::WholeReason;
use byteback_testkit::rig::Rig;
use byteback_testkit::scripted_tree::Leaves;
use byteback_testkit::seed::seed;
use std::sync::Arc;

const KINDS: [LeafKind; 3] = [LeafKind::Sha256, LeafKind::Blake2b256, LeafKind::Blake3];
const WAYS: [(DeltaChoice, DeltaMethod); 2] = [
    (DeltaChoice::SkyF, DeltaMethod::SkyF),
    (DeltaChoice::SkyC, DeltaMethod::SkyC),
];

fn known(kind: LeafKind) -> Leaves {
    Leaves {
        kind,
        source: LeafSource::Btrfs,
        has_crcs: false,
        ..Leaves::default()
    }
}

fn decided(rig: &Rig, dir: &Arc<dyn DurableDir>, file: NodeId) -> Decision {
    let tree = rig.tree.status().unwrap().tree;
    last_decision(dir.as_ref(), tree, file).unwrap().unwrap().decision
}

#[test]
fn an_unmodified_file_is_not_read_where_strong_checksums_exist() {
    let mut rig = Rig::new(1);
    let decisions = rig.keep_decisions();
    let file = rig.with_file(&noise(1, 5_000_001));
    for kind in KINDS {
        rig.tree.lock().leaves = known(kind);
        // The planner's own choice is the same.
        let auto = (DeltaChoice::Auto, DeltaMethod::SkyF);
        for (choice, method) in WAYS.into_iter().chain([auto]) {
            rig.options.delta = choice;
            rig.tree.lock().mark_whole(file, WholeReason::Interrupted);
            let before = rig.client.wire_bytes();
            let report = rig.backup().unwrap();
            assert_eq!(
                (report.examined_files, report.read_bytes, report.hashed_bytes),
                (1, 0, 0)
            );
            assert_eq!((report.literal_bytes, report.found_bytes), (0, 5_000_001));
            let wire = rig.client.wire_bytes().since(before);
            assert!(wire.total() < 5_000, "{wire:?}: no signature");
            let decision = decided(&rig, &decisions, file);
            assert_eq!((decision.method, decision.fallback), (method, None));
            rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
        }
    }
}

#[test]
fn sky_sends_kilobytes_if_unmodified_or_only_changed_leaves() {
    let mut rig = Rig::new(6);
    let len = 10_000_000;
    let mut bytes = noise(1, len);
    let file = rig.with_file(&bytes);
    rig.tree.lock().leaves = known(LeafKind::Sha256);
    rig.options.delta = DeltaChoice::SkyF;
    // The server sums its content once.
    for read in [len as u64, 0] {
        rig.tree.lock().mark_whole(file, WholeReason::Interrupted);
        let (before, read_before) = (rig.client.wire_bytes(), rig.signature_read_bytes());
        let report = rig.backup().unwrap();
        assert_eq!((report.read_bytes, report.literal_bytes), (0, 0));
        assert_eq!(report.found_bytes, len as u64);
        let wire = rig.client.wire_bytes().since(before);
        // Ten sums of 32 bytes, an answer of 79 bytes; the rest are heads of requests and the
        // batch.
        assert!(wire.total() < 5_000, "{wire:?}");
        assert_eq!(rig.signature_read_bytes() - read_before, read);
    }
    // Four leaves in three groups: their signature is of 650 leaves, and only the four are read and
    // sent.
    for at in [500_000, 5_000_000, 5_100_000, 9_999_999] {
        bytes[at] ^= 1;
        rig.tree.lock().write(file, at as u64, &bytes[at..=at]);
    }
    rig.tree.lock().mark_whole(file, WholeReason::Interrupted);
    let before = rig.client.wire_bytes();
    let report = rig.backup().unwrap();
    assert_eq!(report.read_bytes, 3 * 4096 + 10_000_000 % 4096);
    assert_eq!(report.literal_bytes, report.read_bytes);
    let wire = rig.client.wire_bytes().since(before);
    assert!(wire.total() < 30_000, "{wire:?}");
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn sky_reads_little_more_than_what_differs() {
    let mut rig = Rig::new(2);
    let decisions = rig.keep_decisions();
    let len = 4_000_000;
    let mut bytes = noise(1, len);
    let file = rig.with_file(&bytes);
    for (choice, method) in WAYS {
        rig.options.delta = choice;
        for kind in KINDS {
            rig.tree.lock().leaves = known(kind);
            // In place.
            let at = 1_000_000 + kind as usize * 500_000;
            bytes[at..at + 3000].copy_from_slice(&noise(kind as u64 + 5, 3000));
            rig.tree.lock().write(file, at as u64, &bytes[at..at + 3000]);
            let report = rig.backup().unwrap();
            // Blocks have 4 KiB. The range that is cut into chunks begins a hundred KiB before, and
            // is read again as far as it is not found.
            let read_max = if choice == DeltaChoice::SkyF { 8192 } else { 250_000 };
            assert!(
                (3000..=read_max).contains(&report.read_bytes),
                "{choice:?}: {}",
                report.read_bytes
            );
            let literal_max = if choice == DeltaChoice::SkyF {
                8192
            } else {
                3000 + 3 * 12 * 1024
            };
            assert!(
                (3000..=literal_max).contains(&report.literal_bytes),
                "{}",
                report.literal_bytes
            );
            let decision = decided(&rig, &decisions, file);
            assert_eq!(
                (decision.method, decision.cause, decision.fallback),
                (method, Cause::Asked, None)
            );
            assert_eq!(decision.hashed_bytes, report.read_bytes);
            rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
        }
        // Behind an insertion, all blocks are found elsewhere, or none, but their bytes are.
        bytes.splice(2_500_000..2_500_000, noise(9, 1000));
        rig.tree.lock().write(file, 0, &bytes);
        let report = rig.backup().unwrap();
        let rest = (bytes.len() - 2_500_000) as u64;
        assert!(
            report.literal_bytes < 1000 + 3 * 12 * 1024,
            "{choice:?}: {}",
            report.literal_bytes
        );
        assert!(
            (rest..2 * rest).contains(&report.read_bytes),
            "{choice:?}: {}",
            report.read_bytes
        );
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
        // Shorter, and a hole.
        bytes.truncate(3_600_001);
        bytes[1 << 20..3 << 20].fill(0);
        {
            let mut state = rig.tree.lock();
            state.truncate(file, 3_600_001);
            state.punch(file, ByteRange::new(1 << 20, 3 << 20).unwrap());
        }
        let report = rig.backup().unwrap();
        assert!(report.literal_bytes < 10_000, "{choice:?}: {}", report.literal_bytes);
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
        bytes = noise(10, len);
        rig.tree.lock().write(file, 0, &bytes);
        rig.backup().unwrap();
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    }
}

#[test]
fn sky_sums_an_unsummed_file_in_place_and_records_it() {
    let mut rig = Rig::new(3);
    let decisions = rig.keep_decisions();
    let file = rig.with_file(&noise(1, 2_000_000));
    for (choice, method) in WAYS {
        rig.options.delta = choice;
        rig.tree.lock().write(file, 700_000, &noise(choice as u64, 3000));
        let report = rig.backup().unwrap();
        let decision = decided(&rig, &decisions, file);
        assert_eq!(
            (decision.method, decision.fallback),
            (method, Some(Fallback::NotSummed))
        );
        assert!(
            (2_000_000..2_300_000).contains(&report.read_bytes),
            "{}",
            report.read_bytes
        );
        assert!(report.literal_bytes < 3000 + 3 * 12 * 1024, "{}", report.literal_bytes);
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    }
    // By itself the planner asks for that, too, as the server reads nothing for it.
    rig.options.delta = DeltaChoice::Auto;
    rig.tree.lock().mark_whole(file, WholeReason::Untracked);
    rig.backup().unwrap();
    assert_eq!(decided(&rig, &decisions, file).method, DeltaMethod::SkyF);
}

/// Holes shorter than a finder looks for, in what changed and in what did not.
#[test]
fn sky_keeps_short_holes_in_parts_that_changed() {
    for (choice, _) in WAYS {
        let mut rig = Rig::new(4);
        rig.options.delta = choice;
        let file = rig.with_file(&noise(1, 3_000_000));
        let mut state = rig.tree.lock();
        state.write(file, 1_000_000, &noise(2, 1_000_000));
        for place in [100_000, 1_100_000, 1_500_000, 2_700_000] {
            state.punch(file, ByteRange::new(place, place + 20_000).unwrap());
        }
        state.mark_whole(file, WholeReason::Untracked);
        drop(state);
        let report = rig.backup().unwrap();
        assert_eq!(report.examined_files, 1, "{choice:?}");
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    }
}

#[test]
fn leaves_that_make_no_content_cost_the_file_and_not_the_backup() {
    let mut rig = Rig::new(4);
    let file = rig.with_file(&noise(1, 300_000));
    rig.options.delta = DeltaChoice::SkyF;
    rig.tree.lock().write(file, 5000, b"changed");
    rig.tree.lock().leaves.goes_on = true;
    let report = rig.backup().unwrap();
    assert_eq!(report.unsaved.len(), 1);
    assert!(
        report.unsaved[0].reason.contains("read inconsistently"),
        "{:?}",
        report.unsaved
    );
    rig.tree.lock().leaves.goes_on = false;
    let report = rig.backup().unwrap();
    assert!(report.is_complete());
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn random_changes_come_back_whoever_has_the_checksums() {
    let seed = seed(21);
    for round in 0..10 {
        let mut life = RandomLife::new(seed + round, 400_000);
        for _ in 0..6 {
            let RandomLife { rig, random, .. } = &mut life;
            rig.options.delta = [
                DeltaChoice::SkyF,
                DeltaChoice::SkyC,
                DeltaChoice::SkyF,
                DeltaChoice::SkyC,
                DeltaChoice::Auto,
                DeltaChoice::Rsync,
            ][random.below(6) as usize];
            rig.tree.lock().leaves = Leaves {
                kind: KINDS[random.below(3) as usize],
                source: [LeafSource::Btrfs, LeafSource::Kept, LeafSource::Read][random.below(3) as usize],
                has_crcs: random.below(2) == 0,
                restarts: random.below(2) == 0,
                is_silent: random.below(4) == 0,
                goes_on: false,
            };
            life.save();
            life.change(60_000, |state, random, file, bytes| {
                state.write(file, 0, bytes);
                state.truncate(file, bytes.len() as u64);
                match random.below(3) {
                    0 => state.mark_whole(file, WholeReason::Interrupted),
                    1 => punch(state, random, file, bytes),
                    _ => {}
                }
            });
        }
        life.check();
    }
}
