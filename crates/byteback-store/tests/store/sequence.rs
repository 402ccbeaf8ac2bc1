//! Batches of several devices, sent one after the other without waiting: which state each is based
//! on, and which of them conflict.

use crate::lab::{Batch, Lab, ROOT, patch};
use byteback_delta::ContentDigest;
use byteback_host::random::{SplitMix64, noise};
use byteback_model::{BatchApplied, ContentBase, FileId, Manifest, Totals};
use byteback_store::StoreError;
use std::collections::BTreeMap;

const LEN: u64 = 20_000;

type Files = BTreeMap<u128, Vec<u8>>;

fn send(lab: &Lab, manifest: Manifest, batch: &Batch, proofs: &Files) -> Result<BatchApplied, StoreError> {
    let mut part = lab.store.begin_part("f", manifest.device, manifest.counter).unwrap();
    part.manifest(manifest)?;
    for (file, bytes) in proofs {
        let mut digest = ContentDigest::new(bytes.len() as u64);
        digest.push(bytes);
        part.proof(FileId(*file), digest.finish().unwrap())?;
    }
    let mut batch = batch.clone();
    batch.totals = Some(Totals {
        nodes: batch.nodes.len() as u64,
        entries: batch.entries.len() as u64,
        deltas: batch.deltas.len() as u64,
        proofs: proofs.len() as u64,
        directory_times: 0,
    });
    batch.feed(&mut part)?;
    lab.store.commit(part, 0)
}

/// A device's view of the folder, and its last batches.
struct Device {
    id: u64,
    counter: u64,
    base_seq: u64,
    follows: Option<u64>,
    files: Files,
}

/// The folder as it must be.
#[derive(Clone, Default)]
struct Moment {
    files: Files,
    /// For each file, the moment at which its contents last changed, and the device that changed
    /// them.
    changed: BTreeMap<u128, (u64, u64)>,
}

#[test]
fn batches_follow_their_own_and_conflict_after_those_of_others() {
    let (mut applied, mut refused) = (0, 0);
    for seed in 0..6 {
        let life = one_life(seed);
        (applied, refused) = (applied + life.0, refused + life.1);
    }
    assert!(applied > 250 && refused > 30, "{applied} applied, {refused} refused");
}

/// Numbers of batches that were applied and that were in conflict.
fn one_life(seed: u64) -> (u32, u32) {
    let lab = Lab::new(1 << 20);
    let mut rng = SplitMix64::new(seed);
    let first: Files = (10..16).map(|id| (id, noise(id as u64, LEN as usize))).collect();
    let named: Vec<(u128, &[u8])> = first.iter().map(|(id, bytes)| (*id, &bytes[..])).collect();
    lab.first(&named);
    let other = {
        let token = lab.store.create_join_token(i64::MAX / 2).unwrap();
        lab.store.roster().join(&token, "other", None).unwrap().device
    };
    let mut devices = [lab.device, other].map(|id| Device {
        id,
        counter: 1,
        base_seq: 1,
        follows: None,
        files: first.clone(),
    });
    let changed = first.keys().map(|id| (*id, (1, lab.device))).collect();
    let mut moments = vec![Moment::default(), Moment { files: first, changed }];
    let mut next_id = 100;
    let (mut applied, mut refused) = (0, 0);
    for _ in 0..120 {
        let device = &mut devices[rng.below(2) as usize];
        let newest = moments.last().unwrap().clone();
        let seq = moments.len() as u64 - 1;
        if rng.below(8) == 0 {
            (device.files, device.base_seq) = (newest.files.clone(), seq);
            if rng.coin() {
                device.follows = None;
            }
            continue;
        }
        let mut batch = Batch::default();
        let mut proofs = Files::new();
        let mut now = newest.clone();
        let mut is_conflict = false;
        let mut touched = Vec::new();
        for _ in 0..1 + rng.below(3) {
            let ids: Vec<u128> = device.files.keys().copied().collect();
            let file = ids[rng.below(ids.len() as u64) as usize];
            if touched.contains(&file) {
                continue;
            }
            let is_elses = |file: u128| {
                let (at, by) = newest.changed[&file];
                at > device.base_seq && (by != device.id || device.follows.is_none())
            };
            let at = rng.below(LEN - 100);
            let bytes = noise(rng.next_u64(), 100);
            let (id, base, mut content) = match rng.below(4) {
                0 => {
                    next_id += 1;
                    is_conflict |= is_elses(file);
                    let base = ContentBase::Of(FileId(file));
                    (next_id, base, device.files[&file].clone())
                }
                1 => {
                    let at = 1 + rng.below(seq);
                    let past = &moments[at as usize].files;
                    let Some((file, content)) = past.iter().nth(rng.below(past.len() as u64) as usize) else {
                        continue;
                    };
                    next_id += 1;
                    let base = ContentBase::At {
                        file: FileId(*file),
                        seq: at,
                    };
                    (next_id, base, content.clone())
                }
                _ => {
                    touched.push(file);
                    is_conflict |= is_elses(file);
                    (file, ContentBase::Previous, device.files[&file].clone())
                }
            };
            content[at as usize..][..100].copy_from_slice(&bytes);
            batch = batch.file(id, LEN, 1, base);
            if base != ContentBase::Previous {
                batch = batch.entry(ROOT, format!("file{id}").as_bytes(), Some(id));
            }
            batch = batch.delta(id, patch(LEN, LEN, &[(at, &bytes)]));
            if rng.coin() {
                proofs.insert(id, content.clone());
            }
            now.changed.insert(id, (seq + 1, device.id));
            now.files.insert(id, content);
        }
        device.counter += 1;
        let manifest = Manifest {
            device: device.id,
            follows: device.follows,
            ..lab.manifest(device.counter, Some(device.base_seq))
        };
        let result = send(&lab, manifest, &batch, &proofs);
        if is_conflict {
            refused += 1;
            assert!(
                matches!(result, Err(StoreError::Conflict { .. })),
                "seed {seed}: {result:?}"
            );
            assert_eq!(lab.store.folder("f").unwrap().seq, seq, "seed {seed}");
            (device.files, device.base_seq, device.follows) = (newest.files, seq, None);
            continue;
        }
        applied += 1;
        assert_eq!(result.unwrap().seq, seq + 1, "seed {seed}");
        for (id, content) in &now.files {
            if now.changed[id].0 == seq + 1 {
                assert!(lab.read(*id, seq + 1).unwrap() == *content, "seed {seed}: file {id}");
                device.files.insert(*id, content.clone());
            }
        }
        device.follows = Some(device.counter);
        moments.push(now);
    }
    for (seq, moment) in moments.iter().enumerate().skip(1) {
        for (id, content) in &moment.files {
            assert!(
                lab.read(*id, seq as u64).unwrap() == *content,
                "seed {seed}: file {id} at {seq}"
            );
        }
    }
    (applied, refused)
}

#[test]
fn a_batch_whose_predecessor_did_not_arrive_waits_for_it() {
    let lab = Lab::new(1 << 20);
    lab.first(&[(2, &noise(1, 5000))]);
    let overwrite = Batch::default().patch(2, 5000, &[(7, b"x")]);
    let sent = |counter: u64, follows: u64| {
        let manifest = Manifest {
            follows: Some(follows),
            ..lab.manifest(counter, Some(1))
        };
        send(&lab, manifest, &overwrite, &Files::new())
    };
    let out_of_order = |result: Result<BatchApplied, StoreError>, was_applied: bool| match result {
        Err(StoreError::OutOfOrder { is_applied, .. }) => assert_eq!(is_applied, was_applied),
        other => panic!("{other:?}"),
    };
    out_of_order(sent(3, 2), false);
    out_of_order(sent(3, 3), false);
    sent(2, 1).unwrap();
    sent(3, 2).unwrap();
    assert!(sent(3, 2).unwrap().repeated);
    out_of_order(sent(4, 2), true);
    sent(4, 3).unwrap();
    let without_base = Manifest {
        follows: Some(4),
        ..lab.manifest(5, None)
    };
    let result = send(&lab, without_base, &overwrite, &Files::new());
    assert!(matches!(result, Err(StoreError::InvalidBatch(_))), "{result:?}");
}
