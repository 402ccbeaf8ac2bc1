//! Power cuts at every sync, failing operations, full disks, restarts, expiry.

use crate::lab::{Batch, Lab, ROOT};
use byteback_host::durable::DurableDir;
use byteback_host::random::noise;
use byteback_host::sim::{CrashPhase, SimDisk};
use byteback_model::{FileId, NodeKind};
use byteback_store::StoreError;
use std::time::Duration;

const BATCHES: u64 = 6;

/// This batch comes from a sender that has lost its state: files with other identities follow the
/// existing ones.
const AFTER_STATE_LOSS: u64 = 4;

/// Sends batches until one fails; returns the number of acknowledged ones. Segments are small, so
/// that several are begun.
fn work(lab: &Lab, from: u64) -> Result<u64, (u64, StoreError)> {
    for counter in from..=BATCHES {
        let base = (counter > 1).then_some(counter - 1);
        let mut batch = Batch::default();
        if counter == 1 {
            batch = batch.node(ROOT, NodeKind::Directory, 0, None);
        }
        let id = u128::from(counter) + 10;
        batch = batch.new_file(id, format!("n{counter}").as_bytes(), &noise(counter, 3000));
        let sent = if counter == AFTER_STATE_LOSS {
            batch = batch.node(ROOT, NodeKind::Directory, 0, None);
            for of in 1..AFTER_STATE_LOSS {
                let (id, name) = (u128::from(of) + 100, format!("n{of}"));
                batch = batch.following(id, name.as_bytes(), u128::from(of) + 10, 3000, &[(of * 7, b"anew")]);
            }
            lab.replace(counter, counter - 1, &batch)
        } else {
            lab.send(counter, base, &batch)
        };
        sent.map_err(|e| (counter - 1, e))?;
    }
    Ok(BATCHES)
}

fn check(lab: &Lab, acknowledged: u64) {
    assert_eq!(lab.store.folder("f").unwrap().seq, acknowledged);
    for seq in 1..=acknowledged {
        for counter in 1..=seq {
            assert_eq!(lab.read(u128::from(counter) + 10, seq).unwrap(), noise(counter, 3000));
        }
        for of in (1..AFTER_STATE_LOSS).filter(|_| seq >= AFTER_STATE_LOSS) {
            let mut expected = noise(of, 3000);
            expected[of as usize * 7..][..4].copy_from_slice(b"anew");
            assert_eq!(lab.read(u128::from(of) + 100, seq).unwrap(), expected);
        }
    }
}

#[test]
fn store_keeps_acknowledged_batches_through_power_cuts() {
    let trial = Lab::new(5000);
    work(&trial, 1).unwrap();
    let syncs = trial.disk.counters().syncs;
    assert!(syncs > BATCHES);
    for nth in 1..=syncs {
        for phase in [CrashPhase::Before, CrashPhase::Middle, CrashPhase::After] {
            let disk = SimDisk::new(1);
            disk.crash_at_sync(nth, phase);
            let mut lab = Lab::on(disk, 5000);
            let (acknowledged, _) = work(&lab, 1).expect_err("the power was cut");
            // Other survivors of the same crash, one after the other.
            let crashed = lab.disk.clone();
            for seed in 0..3 {
                lab = lab.reopen(crashed.recover(seed));
                check(&lab, acknowledged);
            }
            // The next backup completes.
            work(&lab, acknowledged + 1).unwrap();
            check(&lab, BATCHES);
        }
    }
}

#[test]
fn store_loses_nothing_to_one_failed_operation_and_retry_works() {
    let trial = Lab::new(5000);
    work(&trial, 1).unwrap();
    let ops = trial.disk.counters().ops;
    let mut failed = 0;
    for nth in 3..=ops {
        let disk = SimDisk::new(1);
        disk.fail_op(nth, 5);
        let lab = Lab::on(disk, 5000);
        let mut done = 0;
        while let Err((acknowledged, error)) = work(&lab, done + 1) {
            assert!(
                matches!(error, StoreError::Segment { .. } | StoreError::SegmentAbandoned(_)),
                "{error}"
            );
            assert!(failed < 10 * ops, "the error does not go away");
            (done, failed) = (acknowledged, failed + 1);
        }
        check(&lab, BATCHES);
        // Bytes that a failed sync dropped still read as written, until the power is cut.
        let survivor = lab.disk.recover(nth);
        check(&lab.reopen(survivor), BATCHES);
    }
    assert!(failed > ops / 2, "faults were injected");
}

/// Two uploads write into one segment, and the sync of the first fails. It may have dropped the
/// bytes of the second, whose own sync would then report success.
#[test]
fn store_accepts_nothing_that_anothers_failed_sync_may_drop() {
    for seed in 0..40 {
        let lab = Lab::on(SimDisk::new(seed), 1 << 20);
        lab.first(&[(2, &noise(1, 100))]);
        let (mut failing, mut other) = (lab.part(2), lab.part(3));
        let bytes = noise(seed + 2, 20_000);
        let batch = Batch::default().new_file(3, b"other", &bytes);
        for (part, counter) in [(&mut failing, 2), (&mut other, 3)] {
            part.manifest(lab.manifest(counter, Some(1))).unwrap();
            batch.feed(part).unwrap();
        }
        lab.disk.fail_op(lab.disk.counters().ops + 1, 5);
        assert!(
            matches!(lab.store.commit(failing, 0), Err(StoreError::Segment { .. })),
            "seed {seed}"
        );
        let refused = lab.store.commit(other, 0);
        assert!(
            matches!(refused, Err(StoreError::SegmentAbandoned(_))),
            "seed {seed}: {refused:?}"
        );
        // Sent again, it goes elsewhere.
        lab.send(3, Some(1), &batch).unwrap();
        let survivor = lab.disk.recover(seed);
        assert_eq!(lab.reopen(survivor).read(3, 2).unwrap(), bytes, "seed {seed}");
    }
}

#[test]
fn a_full_segment_disk_is_told_and_the_next_batch_completes() {
    let lab = Lab::new(1 << 20);
    lab.first(&[(2, &noise(1, 50_000))]);
    lab.disk.set_capacity(80_000);
    let batch = Batch::default().new_file(3, b"big", &noise(2, 300_000));
    for _ in 0..3 {
        let error = lab.send(2, Some(1), &batch).unwrap_err();
        assert!(matches!(&error, StoreError::Full { .. }), "{error}");
        assert!(error.to_string().contains("free some space"));
    }
    assert_eq!(lab.read(2, 1).unwrap(), noise(1, 50_000));
    lab.disk.set_capacity(10_000_000);
    lab.send(2, Some(1), &batch).unwrap();
    assert_eq!(lab.read(3, 2).unwrap(), noise(2, 300_000));
    let lab = {
        let disk = lab.disk.clone();
        lab.reopen(disk)
    };
    assert_eq!(lab.read(3, 2).unwrap(), noise(2, 300_000));
}

#[test]
fn a_batch_that_is_given_up_leaves_its_room_and_nobody_elses() {
    let lab = Lab::new(100_000);
    lab.first(&[(2, &noise(1, 50_000))]);
    let stage = |counter: u64, part: u32| {
        let mut writer = lab.part(counter);
        let bytes = noise(counter, 90_000);
        writer
            .delta(FileId(3), &crate::lab::patch(0, 90_000, &[(0, &bytes)])[..])
            .unwrap();
        lab.store.stage(writer, part).unwrap();
    };
    for part in 1..=5 {
        stage(2, part);
    }
    stage(3, 1);
    let files = || {
        let names = lab.disk.list().unwrap();
        names.into_iter().filter(|name| name.ends_with(".seg")).count()
    };
    let before = files();
    let freed = lab.store.abandon("f", lab.device, 2).unwrap();
    assert!(freed.segments >= 2, "{freed:?}");
    assert_eq!(files() as u64, before as u64 - freed.segments);
    let staged = |counter| lab.store.batch_status("f", lab.device, counter).unwrap().staged_parts;
    assert_eq!((staged(2), staged(3)), (vec![], vec![1]));
    assert_eq!(lab.read(2, 1).unwrap(), noise(1, 50_000));
    // Repeating it is no error, nor is an unknown device; an unknown folder is one.
    lab.store.abandon("f", lab.device, 2).unwrap();
    lab.store.abandon("f", 77, 3).unwrap();
    assert_eq!(staged(3), [1]);
    assert!(lab.store.abandon("none", lab.device, 3).is_err());
}

#[test]
fn a_full_catalog_is_told_and_the_next_batch_completes() {
    let lab = Lab::new(1 << 20);
    lab.first(&[(2, b"kept")]);
    lab.catalog.limit_len(1).unwrap();
    let mut batch = Batch::default();
    for id in 10..3000 {
        batch = batch.new_file(id, format!("a fairly long name {id}").as_bytes(), b"x");
    }
    let error = lab.send(2, Some(1), &batch).unwrap_err();
    assert!(matches!(&error, StoreError::Full { .. }), "{error}");
    assert_eq!(
        (lab.store.folder("f").unwrap().seq, lab.read(2, 1).unwrap()),
        (1, b"kept".to_vec())
    );
    lab.catalog.limit_len(u64::MAX).unwrap();
    assert_eq!(lab.send(2, Some(1), &batch).unwrap().seq, 2);
}

#[test]
fn staged_parts_survive_restarts_and_expire_with_their_segments() {
    let lab = Lab::new(2000);
    lab.first(&[(2, &noise(1, 100))]);
    let mut part = lab.part(2);
    part.manifest(lab.manifest(2, Some(1))).unwrap();
    let batch = Batch::default().new_file(3, b"n", &noise(2, 5000));
    for node in &batch.nodes {
        part.node(node.clone()).unwrap();
    }
    part.delta(batch.deltas[0].0, &batch.deltas[0].1[..]).unwrap();
    lab.store.stage(part, 1).unwrap();
    let disk = lab.disk.clone();
    let lab = lab.reopen(disk);
    assert_eq!(lab.store.batch_status("f", lab.device, 2).unwrap().staged_parts, [1]);
    lab.clock.advance(Duration::from_secs(23 * 3600));
    assert_eq!(lab.store.collect().unwrap(), Default::default());
    lab.clock.advance(Duration::from_secs(2 * 3600));
    let collected = lab.store.collect().unwrap();
    assert_eq!(
        (collected.expired_parts, collected.segments),
        (1, 0),
        "its frame shares a segment with a live one"
    );
    assert!(
        lab.store
            .batch_status("f", lab.device, 2)
            .unwrap()
            .staged_parts
            .is_empty()
    );
    assert!(matches!(
        lab.store.commit(lab.part(2), 1),
        Err(StoreError::PartsMissing { missing }) if missing == [1]
    ));

    // A segment of its own is removed as a whole.
    let mut part = lab.part(3);
    part.delta(batch.deltas[0].0, &batch.deltas[0].1[..]).unwrap();
    lab.store.stage(part, 1).unwrap();
    lab.send(4, Some(1), &Batch::default().new_file(4, b"m", &noise(3, 3000)))
        .unwrap();
    lab.clock.advance(Duration::from_secs(25 * 3600));
    let collected = lab.store.collect().unwrap();
    assert_eq!((collected.expired_parts, collected.segments), (1, 1));
    assert_eq!(lab.read(4, 2).unwrap(), noise(3, 3000));
    assert_eq!(lab.read(2, 2).unwrap(), noise(1, 100));
}

#[test]
fn upload_may_outlast_the_waiting_of_parts_while_it_goes_on() {
    let lab = Lab::new(2000);
    let mut first = lab.part(2);
    first.manifest(lab.manifest(2, None)).unwrap();
    lab.store.stage(first, 1).unwrap();
    for part in 2..=5 {
        lab.clock.advance(Duration::from_secs(20 * 3600));
        assert_eq!(lab.store.collect().unwrap().expired_parts, 0, "before part {part}");
        lab.store.stage(lab.part(2), part).unwrap();
    }
    let batch = Batch::default()
        .node(ROOT, NodeKind::Directory, 0, None)
        .new_file(3, b"n", &noise(2, 5000));
    let mut last = lab.part(2);
    batch.feed(&mut last).unwrap();
    lab.store.commit(last, 5).unwrap();
    assert_eq!(lab.read(3, 1).unwrap(), noise(2, 5000));
    // An upload that stopped expires as a whole.
    lab.store.stage(lab.part(3), 1).unwrap();
    lab.store.stage(lab.part(3), 2).unwrap();
    lab.clock.advance(Duration::from_secs(25 * 3600));
    assert_eq!(lab.store.collect().unwrap().expired_parts, 2);
}

#[test]
fn a_dropped_part_leaks_a_segment_only_until_the_next_start() {
    use byteback_host::durable::DurableDir;
    let lab = Lab::new(2000);
    let mut part = lab.part(1);
    let batch = Batch::default().new_file(3, b"n", &noise(2, 5000));
    part.delta(batch.deltas[0].0, &batch.deltas[0].1[..]).unwrap();
    assert_eq!(
        lab.store.collect().unwrap().segments,
        0,
        "a writer's segment is not collected"
    );
    drop(part);
    assert_eq!(lab.disk.list().unwrap().len(), 1);
    let disk = lab.disk.clone();
    let lab = lab.reopen(disk);
    assert_eq!(lab.disk.list().unwrap().len(), 0);
}
