use super::*;

use byteback_host::random::SplitMix64;
use byteback_host::sim::SimDisk;

const TREE: TreeId = TreeId(7);

fn decision(random: &mut SplitMix64, node: u64) -> Decision {
    let methods = [
        DeltaMethod::Log,
        DeltaMethod::Sums,
        DeltaMethod::Rsync,
        DeltaMethod::Hash,
        DeltaMethod::Full,
        DeltaMethod::Webr,
        DeltaMethod::Cdc,
        DeltaMethod::LogSearched,
        DeltaMethod::LogLookedUp,
        DeltaMethod::LogCompared,
    ];
    let causes = [
        Cause::LogKnew,
        Cause::New,
        Cause::Asked,
        Cause::Rewritten,
        Cause::Whole(WholeReason::Created),
        Cause::Whole(WholeReason::LogLost),
        Cause::SamePath,
        Cause::Replaced,
        Cause::Copied,
    ];
    let fallbacks = [
        None,
        Some(Fallback::TooShort),
        Some(Fallback::TooLong),
        Some(Fallback::NoSignature),
        Some(Fallback::TooScattered),
        Some(Fallback::ProofRefused),
        Some(Fallback::CostsLess),
        Some(Fallback::Appended),
        Some(Fallback::FoundNothing),
    ];
    Decision {
        node: NodeId(node),
        method: methods[random.below(methods.len() as u64) as usize],
        cause: causes[random.below(causes.len() as u64) as usize],
        fallback: fallbacks[random.below(fallbacks.len() as u64) as usize],
        size_bytes: random.next_u64(),
        changed_bytes: random.next_u64(),
        hashed_bytes: random.next_u64(),
        found_bytes: random.next_u64(),
        literal_bytes: random.next_u64(),
    }
}

fn dir(disk: &SimDisk) -> Arc<dyn DurableDir> {
    Arc::new(disk.clone())
}

/// A backup with these decisions.
fn backup(disk: &SimDisk, batch: u64, decisions: &[Decision]) {
    let mut writer = DecisionWriter::begin(&dir(disk), TREE, batch, batch as i64 * 10);
    decisions.iter().for_each(|decision| writer.decided(decision));
    writer.end(batch + 1, None);
}

fn last(disk: &SimDisk, node: u64) -> Option<Decided> {
    last_decision(disk, TREE, NodeId(node)).unwrap()
}

fn contents(disk: &SimDisk, name: &str) -> Vec<u8> {
    let file = disk.open(name, OpenMode::Existing).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_file_of_version_1() {
    let disk = SimDisk::new(1);
    let saved = Decision {
        node: NodeId(5),
        method: DeltaMethod::Rsync,
        cause: Cause::Whole(WholeReason::Untracked),
        fallback: None,
        size_bytes: 4096,
        changed_bytes: 4096,
        hashed_bytes: 4096,
        found_bytes: 4000,
        literal_bytes: 96,
    };
    backup(&disk, 2, &[saved]);
    let mut expected = b"BBDECID\x01".to_vec();
    let mut frame = |kind: u8, body: &[u64], decision: &[u8]| {
        let start = expected.len();
        let len = (1 + body.len() * 8 + decision.len()) as u32;
        expected.extend_from_slice(&len.to_le_bytes());
        expected.push(kind);
        body.iter()
            .for_each(|number| expected.extend_from_slice(&number.to_le_bytes()));
        expected.extend_from_slice(decision);
        let crc = crc32c::crc32c(&expected[start..]);
        expected.extend_from_slice(&crc.to_le_bytes());
        expected.extend_from_slice(&len.to_le_bytes());
    };
    frame(1, &[2, 7, 20], &[]);
    let decision = [
        &[3, 5, 3, 0][..],   // rsync; changed while it was not tracked; as planned
        &[0x21, 0x20, 0x22], // lengths of one and two bytes; none and two; two and two
        &[5],                // node
        &[0x00, 0x10],       // size
        &[0x00, 0x10],       // hashed; as many changed as it has
        &[0xa0, 0x0f],       // found
        &[0x60, 0x10],       // sent: 96, exclusive or with the size
    ];
    frame(5, &[2], &decision.concat());
    frame(3, &[2, 3], &[]);
    assert_eq!(contents(&disk, "decisions"), expected);
    let decided = Decided {
        at_ns: 20,
        batch: 2,
        seq: 3,
        decision: saved,
        compression: None,
    };
    assert_eq!(last(&disk, 5), Some(decided));
    assert_eq!(last(&disk, 6), None);
    assert_eq!(last_decision(&disk, TreeId(8), NodeId(5)).unwrap(), None);
}

#[test]
fn how_a_backup_was_compressed_is_told_with_it() {
    let disk = SimDisk::new(1);
    let saved = decision(&mut SplitMix64::new(1), 5);
    let compression = |effort, link_bytes_per_s| {
        Some(Compression {
            effort,
            link_bytes_per_s,
        })
    };
    for (batch, reported) in [
        (2, compression(CompressionEffort::Fast, Some(600_000_000))),
        (4, compression(CompressionEffort::Standard, None)),
        (6, None),
        (8, compression(CompressionEffort::Thorough, Some(100_000))),
    ] {
        let before = contents_if_any(&disk).len();
        let mut writer = DecisionWriter::begin(&dir(&disk), TREE, batch, 0);
        writer.decided(&saved);
        writer.end(batch, reported);
        assert_eq!(
            last(&disk, 5).map(|decided| (decided.batch, decided.compression)),
            Some((batch, reported))
        );
        if batch == 2 {
            let frame = [
                &[18, 0, 0, 0, 4][..],
                &[2, 0, 0, 0, 0, 0, 0, 0],
                &[1],
                &600_000_000u64.to_le_bytes(),
            ]
            .concat();
            let all = contents(&disk, "decisions");
            assert!(all[before..].windows(frame.len()).any(|window| window == frame));
        }
    }
}

fn contents_if_any(disk: &SimDisk) -> Vec<u8> {
    disk.open("decisions", OpenMode::Existing)
        .map_or(Vec::new(), |_| contents(disk, "decisions"))
}

#[test]
fn the_last_backup_that_was_applied_counts() {
    for seed in 0..20 {
        let mut random = SplitMix64::new(seed);
        let disk = SimDisk::new(seed);
        let mut expected = std::collections::BTreeMap::new();
        // More than one file holds, and less than two.
        for batch in 1..30 {
            let nodes = (0..random.below(12)).map(|_| random.below(8));
            let decisions: Vec<Decision> = nodes
                .collect::<Vec<_>>()
                .into_iter()
                .map(|node| decision(&mut random, node))
                .collect();
            let is_applied = random.below(4) > 0;
            if is_applied {
                backup(&disk, batch, &decisions);
                expected.extend(decisions.iter().map(|decision| (decision.node.0, (batch, *decision))));
            } else {
                let mut writer = DecisionWriter::begin(&dir(&disk), TREE, batch, 0);
                decisions.iter().for_each(|decision| writer.decided(decision));
            }
        }
        for node in 0..8 {
            let found = last(&disk, node).map(|decided| (decided.batch, decided.decision));
            assert_eq!(found, expected.get(&node).copied(), "seed {seed}, node {node}");
        }
    }
}

#[test]
fn two_files_hold_the_youngest_and_no_more() {
    let mut random = SplitMix64::new(3);
    let disk = SimDisk::new(3);
    for batch in 1..400 {
        let some: Vec<Decision> = (0..20).map(|node| decision(&mut random, batch * 100 + node)).collect();
        backup(&disk, batch, &some);
        assert!(last(&disk, batch * 100 + 19).is_some());
        for name in FILE_NAMES {
            let len = disk
                .open(name, OpenMode::Existing)
                .map_or(0, |file| file.len().unwrap());
            assert!(len <= FILE_LEN_MAX, "{name}: {len}");
        }
    }
    assert!(last(&disk, 399 * 100 - 100).is_some());
    assert_eq!(last(&disk, 100), None);
    // A backup with more than both files hold: only its last decisions are kept.
    let many: Vec<Decision> = (0..3000).map(|node| decision(&mut random, 1_000_000 + node)).collect();
    backup(&disk, 400, &many);
    let newest = last(&disk, 1_002_999).unwrap();
    assert_eq!((newest.batch, newest.at_ns, newest.decision), (400, 4000, many[2999]));
    assert_eq!(last(&disk, 1_000_000), None);
}

#[test]
fn decisions_ignore_torn_and_damaged_records() {
    let mut random = SplitMix64::new(4);
    let disk = SimDisk::new(4);
    let (one, two) = (decision(&mut random, 1), decision(&mut random, 2));
    backup(&disk, 1, &[one]);
    let whole_len = contents(&disk, "decisions").len();
    backup(&disk, 2, &[two]);
    let whole = contents(&disk, "decisions");
    for len in 0..whole.len() {
        let disk = SimDisk::new(4);
        disk.open("decisions", OpenMode::CreateNew)
            .unwrap()
            .write_all_at(0, &whole[..len])
            .unwrap();
        let known = last(&disk, 1).map(|decided| decided.decision);
        assert_eq!(known, (len >= whole_len).then_some(one), "cut at {len}");
        assert_eq!(last(&disk, 2), None);
        backup(&disk, 3, &[two]);
        assert_eq!(last(&disk, 2).map(|decided| decided.batch), Some(3), "cut at {len}");
        assert_eq!(last(&disk, 1).is_some(), len >= whole_len, "cut at {len}");
    }
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << random.below(8);
        let disk = SimDisk::new(4);
        disk.open("decisions", OpenMode::CreateNew)
            .unwrap()
            .write_all_at(0, &flipped)
            .unwrap();
        for (node, decision) in [(1, one), (2, two)] {
            let known = last(&disk, node).map(|decided| decided.decision);
            assert!(known.is_none_or(|known| known == decision), "byte {at}");
        }
        backup(&disk, 3, &[two]);
    }
}

/// Compared with a naive map: of applied backups, in order, also over the change of files;
/// decisions of other trees and of backups that were not applied do not count.
#[test]
fn shares_are_those_of_the_last_time() {
    let seed = 0x5ab1;
    let mut random = SplitMix64::new(seed);
    for _ in 0..20 {
        let disk = SimDisk::new(random.next_u64());
        let mut expected = HashMap::new();
        for batch in 1..60 {
            let decisions: Vec<Decision> = (0..random.below(12))
                .map(|_| {
                    let size_bytes = random.below(4) * 1000;
                    let node = 1 + random.below(40);
                    Decision {
                        size_bytes,
                        literal_bytes: random.below(1500),
                        ..decision(&mut random, node)
                    }
                })
                .collect();
            let (tree, is_applied) = match random.below(6) {
                0 => (TreeId(8), true),
                1 => (TREE, false),
                _ => (TREE, true),
            };
            let mut writer = DecisionWriter::begin(&dir(&disk), tree, batch, 0);
            decisions.iter().for_each(|decision| writer.decided(decision));
            if is_applied {
                writer.end(batch, None);
            }
            if is_applied && tree == TREE {
                for decision in decisions {
                    if decision.size_bytes > 0 && decision.cause != Cause::New {
                        expected.entry(decision.node).or_insert_with(Vec::new).push(decision);
                    }
                }
            }
        }
        let former = former(&disk, TREE);
        for (node, former) in &former {
            assert_former(former, &expected[node], seed);
        }
        assert!(former.len() > 10);
    }
}

/// Asserts what is known of a file after these decisions about it, by looking back at them.
fn assert_former(former: &Former, decisions: &[Decision], seed: u64) {
    let method = |decision: &Decision| match decision.fallback {
        Some(Fallback::FoundNothing) => DeltaMethod::LogLookedUp,
        _ => decision.method,
    };
    let ways = [DeltaMethod::LogSearched, DeltaMethod::LogLookedUp];
    let share = |decision: &Decision| match ways.contains(&method(decision)) {
        true => (decision.literal_bytes as f64 / decision.changed_bytes.max(1) as f64).min(1.0),
        false => (decision.literal_bytes as f64 / decision.size_bytes as f64).min(1.0),
    };
    let last = decisions.last().filter(|last| !ways.contains(&method(last)));
    assert_eq!(former.sent, last.map(share), "seed {seed:#x}");
    for way in ways {
        let saves_since = decisions.iter().rev().position(|decision| method(decision) == way);
        let of_way = || {
            decisions
                .iter()
                .rev()
                .filter(|decision| method(decision) == way)
                .map(share)
        };
        let expected = saves_since.map(|saves_since| Searches {
            sent: of_way().next().unwrap(),
            in_vain: of_way().take_while(|share| *share > 0.9).count() as u32,
            saves_since: saves_since as u32,
        });
        assert_eq!(former.searches(way), expected, "seed {seed:#x}");
    }
}

#[test]
fn searches_in_vain_are_paused_for_ever_more_saves() {
    let mut former = Former::default();
    let mut tried = Vec::new();
    let mut random = SplitMix64::new(1);
    let found = Decision {
        size_bytes: 1000,
        changed_bytes: 100,
        literal_bytes: 5,
        method: DeltaMethod::LogSearched,
        fallback: None,
        ..decision(&mut random, 1)
    };
    for save in 0..200 {
        let is_due = former
            .searches(DeltaMethod::LogSearched)
            .is_none_or(|searches| !searches.is_paused());
        if is_due {
            tried.push(save);
        }
        former.note(&Decision {
            method: if is_due {
                DeltaMethod::LogSearched
            } else {
                DeltaMethod::Log
            },
            literal_bytes: 100,
            ..found
        });
    }
    assert_eq!(tried, [0, 2, 6, 14, 30, 62, 126, 190]);
    // One that finds something ends it.
    former.note(&found);
    let searches = former.searches(DeltaMethod::LogSearched).unwrap();
    assert_eq!((searches.is_paused(), searches.expected_share()), (false, Some(0.05)));
}

#[test]
fn shares_of_so_many_files_are_kept_and_no_more() {
    let disk = SimDisk::new(1);
    let mut random = SplitMix64::new(2);
    let decisions: Vec<Decision> = (0..FORMER_MAX as u64 + 10)
        .map(|node| Decision {
            size_bytes: 10,
            cause: Cause::Rewritten,
            ..decision(&mut random, node)
        })
        .collect();
    backup(&disk, 1, &decisions);
    assert_eq!(former(&disk, TREE).len(), FORMER_MAX);
}
