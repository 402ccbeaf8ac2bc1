//! Long ranges that the log reports: they are searched in what the server has there.

use super::examining::{decided, scripted_proxy, signature_of};
use super::random_lives::{RandomLife, punch};
use byteback_api::{Code, MEDIA_MATCHES, MEDIA_SIGNATURE, Problem};
use byteback_backup::SnapshotSpec;
use byteback_backup::decisions::{Cause, DeltaMethod, Fallback};
use byteback_delta::crc::CrcKind;
use byteback_delta::find::{BlockIndex, LeafLookup};
use byteback_delta::leaves::LeafKind;
use byteback_delta::signature::{Signature, SignatureParams};
use byteback_delta::strong::StrongKind;
use byteback_delta::weak::WeakKind;
use byteback_host::random::{SplitMix64, noise};
use byteback_model::{NodeId, NodeKind};
use byteback_testkit::clients::patient;
use byteback_testkit::proxy::hearing;
use byteback_testkit::rig::Rig;
use byteback_testkit::scripted_server::Answer;
use byteback_testkit::scripted_tree::State;
use byteback_testkit::seed::seed;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
    let [searched, looked_up] = [DeltaMethod::LogSearched, DeltaMethod::LogLookedUp];
    for (round, expected) in [searched, looked_up, searched].into_iter().enumerate() {
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
    let mut rig = Rig::new(1);
    rig.options.limits.looked_for_len_min_bytes = 1 << 20;
    let file = rig.with_file(&noise(1, 40 << 20));
    rig.tree.lock().write(file, 20 << 20, &noise(2, 11 << 20));
    let read_before = rig.signature_read_bytes();
    let report = rig.backup().unwrap();
    assert_eq!((report.examined_files, report.literal_bytes), (1, 11 << 20));
    let read = rig.signature_read_bytes() - read_before;
    // Second looks read samples of what is left.
    assert!((13 << 20..16 << 20).contains(&read), "{read}");
    assert_eq!(report.hashed_bytes, 11 << 20);
}

const BLOCK_LEN: usize = 4096;

/// Writes blocks that lie elsewhere in the file, as a file system in a disk image does when a
/// program saves a file anew; and some new ones.
fn write_blocks(state: &mut State, file: NodeId, bytes: &mut [u8], random: &mut SplitMix64, number: usize) -> usize {
    let blocks = (bytes.len() / BLOCK_LEN) as u64;
    let mut new_bytes = 0;
    for _ in 0..number {
        let [from, to] = [random.below(blocks), random.below(blocks)].map(|block| block as usize * BLOCK_LEN);
        let block = match random.below(10) {
            0 => {
                new_bytes += BLOCK_LEN;
                noise(random.next_u64(), BLOCK_LEN)
            }
            _ => bytes[from..from + BLOCK_LEN].to_vec(),
        };
        bytes[to..to + BLOCK_LEN].copy_from_slice(&block);
        state.write(file, to as u64, &block);
    }
    new_bytes
}

#[test]
fn blocks_that_lie_elsewhere_cost_next_to_nothing() {
    let mut rig = Rig::new(1);
    let decisions = rig.keep_decisions();
    let mut random = SplitMix64::new(7);
    let mut bytes = noise(1, 20 << 20);
    let file = rig.with_file(&bytes);
    for round in 0..3 {
        let new_bytes = write_blocks(&mut rig.tree.lock(), file, &mut bytes, &mut random, 200);
        let read_before = rig.signature_read_bytes();
        let before = rig.client.wire_bytes();
        let report = rig.backup().unwrap();
        assert_eq!(report.examined_files, 1, "round {round}");
        assert!(
            report.literal_bytes <= new_bytes as u64,
            "{} of {new_bytes}",
            report.literal_bytes
        );
        let wire = rig.client.wire_bytes().since(before);
        // New blocks are looked for in blocks of 128 bytes, and in the sums of the whole.
        let looked_for = new_bytes as u64 / 128 * 13 + new_bytes as u64 / 4;
        assert!(
            wire.total() < new_bytes as u64 + looked_for + 200 * 40 + 16_384,
            "{wire:?} {new_bytes}"
        );
        assert_eq!(decided(&rig, &decisions, file).method, DeltaMethod::LogLookedUp);
        // The server reads all of it once, and then what changed; for new blocks what lies beside
        // their neighbours.
        let read = rig.signature_read_bytes() - read_before;
        let read_max = if round == 0 { bytes.len() } else { 200 * BLOCK_LEN };
        assert!(read <= (read_max + 3 * new_bytes) as u64, "round {round}: {read}");
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    }
}

#[test]
fn blocks_that_are_nowhere_are_looked_up_ever_less_often() {
    let mut rig = Rig::new(1);
    let decisions = rig.keep_decisions();
    let file = rig.with_file(&noise(1, 8 << 20));
    let mut looked_up = Vec::new();
    for round in 0..8 {
        let mut state = rig.tree.lock();
        for block in 0..64 {
            // Apart from each other.
            state.write(file, block << 15, &noise(1000 * (round + 1) + block, BLOCK_LEN));
        }
        drop(state);
        let report = rig.backup().unwrap();
        assert_eq!(report.literal_bytes, 64 * BLOCK_LEN as u64);
        let decision = decided(&rig, &decisions, file);
        let is_looked_up = decision.method == DeltaMethod::LogLookedUp;
        assert_eq!(is_looked_up, decision.fallback == Some(Fallback::FoundNothing));
        assert!(
            is_looked_up || decision.method == DeltaMethod::Log,
            "{:?}",
            decision.method
        );
        assert_eq!(decision.cause, Cause::LogKnew);
        if is_looked_up {
            looked_up.push(round);
        }
    }
    assert_eq!(looked_up, [0, 2, 6]);
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

/// Blocks apart from each other, which the file lacks.
fn write_new_blocks(state: &mut State, file: NodeId) {
    for number in 0..64 {
        state.write(file, number << 15, &noise(1000 + number, BLOCK_LEN));
    }
}

#[test]
fn lookup_with_a_wrong_answer_counts_for_nothing() {
    let params = SignatureParams {
        weak: WeakKind::Crc32c,
        strong: StrongKind::Tree(LeafKind::Blake3),
        ..SignatureParams::with_block_len(4 << 20, BLOCK_LEN as u32, 1)
    };
    // It claims to have the new blocks, one after the other at the beginning.
    let blocks: Vec<u8> = (0..64).flat_map(|number| noise(1000 + number, BLOCK_LEN)).collect();
    let index = BlockIndex::new(Signature::of(&blocks, params));
    let mut lookup = LeafLookup::new(&index, 4 << 20);
    for block in blocks.chunks(BLOCK_LEN) {
        lookup.push(CrcKind::Crc32c.of(block) as u32, &LeafKind::Blake3.leaf(block));
    }
    let mut list = Vec::new();
    lookup.finish().write(&mut list).unwrap();
    let answer: Answer = (200, MEDIA_MATCHES, list);
    let rig = Rig::through(1, patient(), scripted_proxy(move |_| Some(answer.clone())));
    let file = rig.with_file(&noise(1, 4 << 20));
    write_new_blocks(&mut rig.tree.lock(), file);
    let report = rig.backup().unwrap();
    assert_eq!((report.examined_files, report.literal_bytes), (0, blocks.len() as u64));
    assert_eq!(rig.seq(), 2, "what was refused left no trace");
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

/// Servers from before lookups refuse the list as one of unknown checksums.
#[test]
fn older_servers_are_asked_for_one_lookup() {
    let asked = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&asked);
    let refuse = move |head: &str, _: &[u8]| {
        let is_lookup = head.split(' ').nth(1).is_some_and(|path| path.contains("/matches"));
        counter.fetch_add(u64::from(is_lookup), Ordering::SeqCst);
        is_lookup.then(|| Problem::new(Code::InvalidBody, "the search for blocks needs rolling checksums"))
    };
    let mut rig = Rig::through(1, patient(), |to, _| hearing(to, refuse));
    rig.options.part_len_bytes = 1 << 20;
    let files: Vec<NodeId> = (0..3)
        .map(|number| {
            let mut state = rig.tree.lock();
            let file = state.create(NodeId::ROOT, format!("f{number}").as_bytes(), NodeKind::File);
            state.write(file, 0, &noise(number, 4 << 20));
            file
        })
        .collect();
    rig.backup().unwrap();
    for file in files {
        write_new_blocks(&mut rig.tree.lock(), file);
    }
    assert_eq!(rig.backup().unwrap().literal_bytes, 3 * 64 * BLOCK_LEN as u64);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

/// Blocks that come from elsewhere in the file, moved ranges, holes, new bytes and new lengths,
/// between backups that may fail midway.
#[test]
fn random_moves_of_blocks_come_back() {
    let seed = seed(41);
    let mut found_bytes = 0;
    for round in 0..8 {
        let mut life = RandomLife::new(seed + round, 2_000_000);
        for save in 0..6 {
            life.rig.options.limits.extents_max = [40, 400, 1 << 18][(save % 3) as usize];
            found_bytes += life.save().found_bytes;
            // Without edits that insert or cut.
            life.change(1, |state, random, file, bytes| {
                write_blocks(state, file, bytes, random, 40);
                match random.below(4) {
                    0 => punch(state, random, file, bytes),
                    1 => {
                        bytes.truncate(bytes.len() - random.below(10_000) as usize);
                        state.truncate(file, bytes.len() as u64);
                    }
                    2 => {
                        let at = bytes.len() as u64;
                        bytes.extend(noise(random.next_u64(), random.below(50_000) as usize));
                        state.write(file, at, &bytes[at as usize..]);
                    }
                    _ => {}
                }
            });
        }
        life.check();
    }
    assert!(found_bytes > 1 << 20, "seed {seed}: {found_bytes}");
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
