//! A file that was saved very often costs as one that was saved once: by counted bytes, of contents
//! that the server reads and of the connection.

use super::pushing::Push;
use byteback_backup::SnapshotSpec;
use byteback_host::random::{SplitMix64, noise};
use byteback_model::NodeId;
use byteback_oplog::WholeReason;
use byteback_testkit::rig::Rig;
use byteback_testkit::seed::seed;
use std::fs;
use std::sync::atomic::Ordering;

const LEN: usize = 4 << 20;
const VERSIONS: u64 = 500;

/// Saves that are counted. The server writes pieces together beside some of them, and reads for
/// that; what the cheapest one costs is the save alone.
const COUNTED: u64 = 5;

/// The bytes that the server read, and those on the wire.
#[derive(Clone, Copy, Debug)]
struct Cost {
    read_bytes: u64,
    wire_bytes: u64,
}

fn cost_of(rig: &Rig, save: impl FnOnce()) -> Cost {
    let read = || rig.read_bytes.load(Ordering::SeqCst);
    let (read_before, wire_before) = (read(), rig.client.wire_bytes());
    save();
    Cost {
        read_bytes: read() - read_before,
        wire_bytes: rig.client.wire_bytes().since(wire_before).total(),
    }
}

/// The least of each.
fn least(costs: impl Iterator<Item = Cost>) -> Cost {
    costs
        .reduce(|one, other| Cost {
            read_bytes: one.read_bytes.min(other.read_bytes),
            wire_bytes: one.wire_bytes.min(other.wire_bytes),
        })
        .unwrap()
}

fn assert_equally_cheap(what: &str, many: Cost, one: Cost) {
    // A page for what a stretch of the file shares with its neighbours.
    let within = |many: u64, one: u64| many <= one * 12 / 10 + 4096;
    assert!(
        within(many.read_bytes, one.read_bytes) && within(many.wire_bytes, one.wire_bytes),
        "{what}: {many:?} with {VERSIONS} versions, {one:?} with one"
    );
}

/// Overwrites a thousand bytes somewhere.
fn overwrite(content: &mut [u8], random: &mut SplitMix64) -> (usize, Vec<u8>) {
    let new = random.bytes(1000);
    let at = random.below(content.len() as u64 - 1000) as usize;
    content[at..at + 1000].copy_from_slice(&new);
    (at, new)
}

#[test]
fn push_of_a_file_with_500_versions_costs_as_with_one() {
    let seed = seed(0x500);
    let mut random = SplitMix64::new(seed);
    let (many, one) = (Push::new(seed), Push::new(seed));
    let mut content = noise(seed, LEN);
    fs::write(many.file("image"), &content).unwrap();
    for _ in 0..VERSIONS {
        many.push().unwrap();
        overwrite(&mut content, &mut random);
        fs::write(many.file("image"), &content).unwrap();
    }
    many.push().unwrap();
    fs::write(one.file("image"), &content).unwrap();
    one.push().unwrap();
    let mut costs = Vec::new();
    for _ in 0..COUNTED {
        overwrite(&mut content, &mut random);
        costs.push([&many, &one].map(|push| {
            fs::write(push.file("image"), &content).unwrap();
            cost_of(&push.rig, || drop(push.push().unwrap()))
        }));
    }
    let [of_many, of_one] = [0, 1].map(|which| least(costs.iter().map(|costs| costs[which])));
    // In particular, the server does not digest its version to compare it with itself.
    assert!(of_many.read_bytes < LEN as u64 / 64, "{of_many:?}");
    assert_equally_cheap("push", of_many, of_one);
    assert!(fs::read(many.fetched(b"").join("image")).unwrap() == content);
}

#[test]
fn backup_of_a_file_with_500_versions_costs_as_with_one() {
    let seed = seed(0x501);
    let mut random = SplitMix64::new(seed);
    let mut content = noise(seed, LEN);
    let (many, one) = (Rig::new(seed), Rig::new(seed));
    let in_many = many.with_file(&content);
    for _ in 0..VERSIONS {
        let (at, new) = overwrite(&mut content, &mut random);
        many.tree.lock().write(in_many, at as u64, &new);
        many.backup().unwrap();
    }
    let in_one = one.with_file(&content);
    // With the ranges of the log; and without, as after a crash.
    for is_known in [true, false] {
        let mut costs = Vec::new();
        for _ in 0..COUNTED {
            let (at, new) = overwrite(&mut content, &mut random);
            costs.push([(&many, in_many), (&one, in_one)].map(|(rig, file): (&Rig, NodeId)| {
                rig.tree.lock().write(file, at as u64, &new);
                if !is_known {
                    rig.tree.lock().mark_whole(file, WholeReason::Interrupted);
                }
                cost_of(rig, || drop(rig.backup().unwrap()))
            }));
        }
        let [of_many, of_one] = [0, 1].map(|which| least(costs.iter().map(|costs| costs[which])));
        assert_equally_cheap("backup", of_many, of_one);
    }
    many.assert_snapshot(SnapshotSpec::Latest(0), &many.tree.picture());
}
