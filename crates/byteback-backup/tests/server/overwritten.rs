//! Writes are compared with the bytes that they overwrote, where the tree knows these.

use super::examining::decided;
use super::random_lives::{RandomLife, punch};
use byteback_backup::SnapshotSpec;
use byteback_backup::decisions::DeltaMethod;
use byteback_host::random::noise;
use byteback_model::NodeId;
use byteback_testkit::rig::Rig;
use byteback_testkit::scripted_tree::{KnownBefore, State};
use byteback_testkit::seed::seed;

const PAGE_LEN: usize = 4096;

/// Overwrites pages of a file, from each of which one row is gone, so that the others move.
fn remove_rows(state: &mut State, file: NodeId, content: &mut [u8], pages: impl Iterator<Item = usize>) {
    for number in pages {
        let start = number * PAGE_LEN;
        let page = &mut content[start..start + PAGE_LEN];
        page.copy_within(300..PAGE_LEN, 200);
        page[PAGE_LEN - 100..].fill(7);
        state.write(file, start as u64, page);
    }
}

#[test]
fn rows_that_moved_in_their_pages_are_not_sent() {
    let mut rig = Rig::new(1);
    let decisions = rig.keep_decisions();
    rig.tree.lock().known_before = KnownBefore::All;
    let mut content = noise(1, 4 << 20);
    let file = rig.with_file(&content);
    remove_rows(&mut rig.tree.lock(), file, &mut content, (3..900).step_by(17));
    let asked_before = rig.signature_read_bytes();
    let report = rig.backup().unwrap();
    let pages = (3..900).step_by(17).count() as u64;
    assert!(
        report.literal_bytes <= pages * 110,
        "{} literal bytes",
        report.literal_bytes
    );
    assert_eq!(report.examined_files, 1);
    // Nothing was asked of the server.
    assert_eq!(rig.signature_read_bytes(), asked_before);
    let decision = decided(&rig, &decisions, file);
    assert_eq!((decision.method, decision.fallback), (DeltaMethod::LogCompared, None));
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn new_bytes_are_sent_as_they_are_after_a_comparison() {
    let mut rig = Rig::new(1);
    let decisions = rig.keep_decisions();
    rig.tree.lock().known_before = KnownBefore::All;
    let file = rig.with_file(&noise(1, 4 << 20));
    rig.tree.lock().write(file, 10_000, &noise(2, 1000));
    let report = rig.backup().unwrap();
    assert_eq!((report.literal_bytes, report.examined_files), (1000, 0));
    assert_eq!(decided(&rig, &decisions, file).method, DeltaMethod::Log);
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn comparison_with_something_else_costs_bytes_alone() {
    let rig = Rig::new(1);
    let mut content = noise(1, 4 << 20);
    let file = rig.with_file(&content);
    rig.tree.lock().known_before = KnownBefore::Wrong;
    remove_rows(&mut rig.tree.lock(), file, &mut content, [5, 6, 700].into_iter());
    let report = rig.backup().unwrap();
    assert!(report.is_complete());
    assert!(
        report.literal_bytes > 3 * 3000,
        "{} literal bytes",
        report.literal_bytes
    );
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    // The next one is compared again.
    rig.tree.lock().known_before = KnownBefore::All;
    remove_rows(&mut rig.tree.lock(), file, &mut content, [9, 10].into_iter());
    let report = rig.backup().unwrap();
    assert!(report.literal_bytes < 300, "{} literal bytes", report.literal_bytes);
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn file_that_was_never_that_long_is_sent_without_a_comparison() {
    let mut rig = Rig::new(1);
    let decisions = rig.keep_decisions();
    let file = rig.with_file(&noise(1, 4 << 20));
    rig.tree.lock().known_before = KnownBefore::Longer;
    // Blocks of which little is found are looked up, and what is left is compared at last.
    rig.tree.lock().write(file, 1 << 20, &noise(2, 900_000));
    let report = rig.backup().unwrap();
    assert!(report.is_complete(), "{:?}", report.unsaved);
    assert_eq!(report.literal_bytes, 900_000);
    assert_eq!(decided(&rig, &decisions, file).method, DeltaMethod::LogLookedUp);
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn random_changes_come_back_whatever_is_known_of_before() {
    let seed = seed(67);
    for round in 0..30 {
        let mut life = RandomLife::new(seed.wrapping_add(round), 300_000);
        life.save();
        for _ in 0..6 {
            let known = [
                KnownBefore::All,
                KnownBefore::Half,
                KnownBefore::Wrong,
                KnownBefore::Nothing,
            ];
            life.rig.tree.lock().known_before = known[life.random.below(4) as usize];
            life.change(20_000, |state, random, file, bytes| {
                let from = random.below(bytes.len() as u64 + 1);
                state.write(file, from, &bytes[from as usize..]);
                state.write(file, 0, &bytes[..from as usize]);
                state.truncate(file, bytes.len() as u64);
                if random.below(4) == 0 {
                    punch(state, random, file, bytes);
                }
            });
            life.save();
        }
        life.check();
    }
}
