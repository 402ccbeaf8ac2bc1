//! Long ranges that the log reports: they are searched in what the server has there.

use super::examining::{decided, scripted_proxy, signature_of};
use super::random_lives::{RandomLife, punch};
use byteback_api::MEDIA_SIGNATURE;
use byteback_backup::SnapshotSpec;
use byteback_backup::decisions::{Cause, DeltaMethod, Fallback};
use byteback_host::random::noise;
use byteback_model::NodeId;
use byteback_testkit::clients::patient;
use byteback_testkit::rig::Rig;
use byteback_testkit::scripted_server::Answer;
use byteback_testkit::scripted_tree::State;
use byteback_testkit::seed::seed;

/// Writes a content in place from an offset on, as a program does that inserted or removed
/// something there.
fn rewrite_from(state: &mut State, file: NodeId, at: usize, bytes: &[u8]) {
    state.write(file, at as u64, &bytes[at..]);
    state.truncate(file, bytes.len() as u64);
}

#[test]
fn insertion_in_place_costs_about_itself() {
    for part_len in [8 * 1024, 1 << 24] {
        let mut rig = Rig::new(1);
        rig.options.part_len_bytes = part_len;
        let mut bytes = noise(1, 5 << 20);
        let file = rig.with_file(&bytes);
        bytes.splice(1_000_001..1_000_001, noise(2, 50_000));
        rewrite_from(&mut rig.tree.lock(), file, 1_000_001, &bytes);
        // Sent beside it.
        rig.tree.lock().write(file, 500, b"a short range");
        let before = rig.client.wire_bytes();
        let report = rig.backup().unwrap();
        assert_eq!(report.examined_files, 1);
        // Blocks are 2,300 bytes at most.
        assert!(report.literal_bytes < 50_013 + 2 * 2300, "{}", report.literal_bytes);
        let wire = rig.client.wire_bytes().since(before);
        assert!(wire.total() < 110_000, "{wire:?}: the insertion and a signature");
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
        // The next changes build on it.
        rig.tree.lock().write(file, 1_000_100, b"more");
        let report = rig.backup().unwrap();
        assert_eq!((report.literal_bytes, report.examined_files), (4, 0));
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    }
}

#[test]
fn removal_in_place_costs_next_to_nothing() {
    let rig = Rig::new(1);
    let mut bytes = noise(1, 5 << 20);
    let file = rig.with_file(&bytes);
    bytes.drain(2_000_000..2_200_000);
    rewrite_from(&mut rig.tree.lock(), file, 2_000_000, &bytes);
    let report = rig.backup().unwrap();
    assert_eq!(report.examined_files, 1);
    assert!(report.literal_bytes < 2 * 2300, "{}", report.literal_bytes);
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn appended_bytes_are_sent_without_a_signature() {
    let mut rig = Rig::new(1);
    let decisions = rig.keep_decisions();
    let mut bytes = noise(1, 3 << 20);
    let file = rig.with_file(&bytes);
    bytes.extend(noise(2, 2 << 20));
    rewrite_from(&mut rig.tree.lock(), file, 3 << 20, &bytes);
    let read_before = rig.signature_read_bytes();
    let report = rig.backup().unwrap();
    assert_eq!((report.literal_bytes, report.examined_files), (2 << 20, 0));
    assert_eq!(rig.signature_read_bytes(), read_before);
    let decision = decided(&rig, &decisions, file);
    assert_eq!(
        (decision.method, decision.fallback),
        (DeltaMethod::Log, Some(Fallback::Appended))
    );
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn search_that_found_nothing_is_left_out_the_next_time() {
    let mut rig = Rig::new(1);
    let decisions = rig.keep_decisions();
    let file = rig.with_file(&noise(1, 3 << 20));
    let searched = DeltaMethod::LogSearched;
    for (round, expected) in [searched, DeltaMethod::Log, searched].into_iter().enumerate() {
        rig.tree.lock().write(file, 1 << 20, &noise(7 + round as u64, 1 << 20));
        let report = rig.backup().unwrap();
        assert_eq!(report.literal_bytes, 1 << 20);
        let decision = decided(&rig, &decisions, file);
        assert_eq!(
            (decision.method, decision.cause),
            (expected, Cause::LogKnew),
            "round {round}"
        );
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    }
}

#[test]
fn search_reads_at_the_server_only_what_is_around() {
    let rig = Rig::new(1);
    let file = rig.with_file(&noise(1, 40 << 20));
    rig.tree.lock().write(file, 20 << 20, &noise(2, 1 << 20));
    let read_before = rig.signature_read_bytes();
    let report = rig.backup().unwrap();
    assert_eq!((report.examined_files, report.literal_bytes), (1, 1 << 20));
    assert_eq!(rig.signature_read_bytes() - read_before, 3 << 20);
    assert_eq!(report.hashed_bytes, 1 << 20);
}

#[test]
fn search_with_a_wrong_signature_counts_for_nothing() {
    let mut new = noise(1, 3 << 20);
    new.splice(1_000_001..1_000_001, noise(2, 50_000));
    // It claims to have the client's bytes, in a part of the length that was asked for; or in one
    // of another length, which is noticed at once.
    let part = 0..3 << 20;
    for (content, is_noticed) in [(new[part].to_vec(), false), (new[..1000].to_vec(), true)] {
        let answer: Answer = (200, MEDIA_SIGNATURE, signature_of(&content));
        let rig = Rig::through(1, patient(), scripted_proxy(move |_| Some(answer.clone())));
        let file = rig.with_file(&noise(1, 3 << 20));
        rewrite_from(&mut rig.tree.lock(), file, 1_000_001, &new);
        let report = rig.backup().unwrap();
        assert_eq!(
            report.literal_bytes,
            new.len() as u64 - 1_000_001,
            "noticed: {is_noticed}"
        );
        assert_eq!(report.examined_files, 0);
        assert_eq!(rig.seq(), 2, "what was refused left no trace");
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    }
}

/// In place, with insertions and removals that move all that follows, short ranges beside, holes,
/// lengths that change, and backups that fail midway.
#[test]
fn random_changes_in_place_come_back() {
    let seed = seed(31);
    for round in 0..10 {
        let mut life = RandomLife::new(seed + round, 700_000);
        for save in 0..6 {
            life.rig.options.limits.extents_max = [40, 400, 1 << 18][(save % 3) as usize];
            life.save();
            life.change(40_000, |state, random, file, bytes| {
                let mut content = vec![0; state.now.nodes[&file].content.len() as usize];
                state.now.nodes[&file].content.read(0, &mut content);
                let equal = content.iter().zip(bytes.iter()).take_while(|(old, new)| old == new);
                let at = equal.count();
                match random.below(4) {
                    0 => {
                        // Only what differs at the same offset.
                        let mut offset = at;
                        while offset < bytes.len() {
                            let end = (offset + 1 + random.below(100_000) as usize).min(bytes.len());
                            if content.get(offset..end) != Some(&bytes[offset..end]) {
                                state.write(file, offset as u64, &bytes[offset..end]);
                            }
                            offset = end;
                        }
                        state.truncate(file, bytes.len() as u64);
                    }
                    1 => {
                        rewrite_from(state, file, at, bytes);
                        punch(state, random, file, bytes);
                    }
                    _ => rewrite_from(state, file, at, bytes),
                }
                if random.below(4) == 0 {
                    // A sparse end.
                    for _ in 0..random.below(40) {
                        bytes.resize(bytes.len() + 4096 * (1 + random.below(8) as usize), 0);
                        let at = bytes.len();
                        bytes.extend_from_slice(b"behind a hole");
                        state.write(file, at as u64, b"behind a hole");
                    }
                }
            });
        }
        life.check();
    }
}
