//! Times of directories in which names come and go: they never conflict, and the later of two
//! counts.

use crate::lab::{Batch, Lab, ROOT};
use byteback_host::random::SplitMix64;
use byteback_model::{BatchApplied, FileId, Manifest, NodeKind};
use byteback_store::StoreError;

const DIRECTORY: FileId = FileId(2);

/// A folder with a directory, and the number of a second device.
fn folder() -> (Lab, u64) {
    let lab = Lab::new(1 << 20);
    let first = Batch::default()
        .node(ROOT, NodeKind::Directory, 0, None)
        .node(DIRECTORY, NodeKind::Directory, 0, None)
        .entry(ROOT, b"directory", Some(DIRECTORY.0));
    lab.send(1, None, &first).unwrap();
    let token = lab.store.create_join_token(i64::MAX / 2).unwrap();
    let other = lab.store.roster().join(&token, "other", None).unwrap().device;
    (lab, other)
}

fn send_as(
    lab: &Lab,
    device: u64,
    counter: u64,
    (base_seq, follows): (u64, Option<u64>),
    batch: &Batch,
) -> Result<BatchApplied, StoreError> {
    let mut part = lab.store.begin_part("f", device, counter).unwrap();
    part.manifest(Manifest {
        device,
        follows,
        ..lab.manifest(counter, Some(base_seq))
    })?;
    batch.feed(&mut part)?;
    lab.store.commit(part, 0)
}

fn time_of(lab: &Lab, seq: u64) -> i128 {
    let node = lab.store.node("f", DIRECTORY, Some(seq)).unwrap();
    node.attributes.mtime_ns
}

/// A new file in the directory, and the time that it set.
fn made(id: u128, mtime_ns: i128) -> Batch {
    Batch::default()
        .node(FileId(id), NodeKind::File, 0, None)
        .entry(DIRECTORY, format!("file{id}").as_bytes(), Some(id))
        .time(DIRECTORY, mtime_ns)
}

#[test]
fn files_made_by_two_devices_leave_the_later_time() {
    let (lab, other) = folder();
    send_as(&lab, lab.device, 2, (1, None), &made(10, 50)).unwrap();
    assert_eq!(time_of(&lab, 2), 50);
    // The other device does not know of that.
    send_as(&lab, other, 2, (1, None), &made(11, 40)).unwrap();
    assert_eq!(time_of(&lab, 3), 50, "what came first is later");
    send_as(&lab, other, 3, (1, Some(2)), &made(12, 60)).unwrap();
    assert_eq!(time_of(&lab, 4), 60);
    assert_eq!([time_of(&lab, 1), time_of(&lab, 2)], [0, 50], "the past stays");
}

#[test]
fn directory_time_may_be_set_back_by_who_knows_the_last() {
    let (lab, other) = folder();
    send_as(&lab, lab.device, 2, (1, None), &made(10, 50)).unwrap();
    send_as(&lab, other, 2, (2, None), &made(11, 40)).unwrap();
    assert_eq!(time_of(&lab, 3), 40, "its clock is behind");
    send_as(&lab, other, 3, (2, Some(2)), &made(12, 30)).unwrap();
    assert_eq!(time_of(&lab, 4), 30, "its own batch is no other's");
}

#[test]
fn a_time_that_stays_leaves_no_row_behind() {
    let (lab, other) = folder();
    send_as(&lab, lab.device, 2, (1, None), &made(10, 50)).unwrap();
    send_as(&lab, other, 2, (1, None), &Batch::default().time(DIRECTORY, 50)).unwrap();
    let attributes = Batch::default().node(DIRECTORY, NodeKind::Directory, 0, None);
    send_as(&lab, lab.device, 3, (1, Some(2)), &attributes).expect("nobody else has changed it");
}

#[test]
fn a_time_is_refused_where_no_directory_is() {
    let (lab, _) = folder();
    send_as(&lab, lab.device, 2, (1, None), &made(10, 50)).unwrap();
    let refused = |batch: Batch| match lab.send(3, Some(2), &batch) {
        Err(StoreError::InvalidBatch(why)) => why,
        other => panic!("{other:?}"),
    };
    let why = refused(Batch::default().time(FileId(10), 5));
    assert!(why.contains("is not a directory"), "{why}");
    let why = refused(Batch::default().time(DIRECTORY, 5).time(DIRECTORY, 6));
    assert!(why.contains("described twice"), "{why}");
    let both = Batch::default().node(DIRECTORY, NodeKind::Directory, 0, None);
    let why = refused(both.time(DIRECTORY, 5));
    assert!(why.contains("described twice"), "{why}");
    // A directory that came and went between two batches.
    lab.send(3, Some(2), &Batch::default().time(FileId(77), 5)).unwrap();
    assert_eq!(time_of(&lab, 3), 50);
}

#[test]
fn a_directory_that_others_removed_gets_no_time_and_no_conflict() {
    let (lab, other) = folder();
    let removed = Batch::default().entry(ROOT, b"directory", None);
    send_as(&lab, other, 2, (1, None), &removed).unwrap();
    lab.send(2, Some(1), &Batch::default().time(DIRECTORY, 5)).unwrap();
}

/// A directory with other permissions.
fn chmod(mode: u32) -> Batch {
    let mut batch = Batch::default().node(DIRECTORY, NodeKind::Directory, 0, None);
    batch.nodes[0].attributes.mode = mode;
    batch
}

#[test]
fn a_time_over_others_permissions_is_a_conflict() {
    let (lab, other) = folder();
    send_as(&lab, other, 2, (1, None), &chmod(0o700)).unwrap();
    // The device's own row over that would hide it from this device, and bring the old mode back
    // with the next one.
    let refused = send_as(&lab, lab.device, 2, (1, None), &made(10, 50));
    assert!(matches!(refused, Err(StoreError::Conflict { .. })), "{refused:?}");
    send_as(&lab, lab.device, 3, (2, None), &made(10, 50)).unwrap();
    let node = lab.store.node("f", DIRECTORY, Some(3)).unwrap();
    assert_eq!((node.attributes.mode, node.attributes.mtime_ns), (0o700, 50));
}

#[test]
fn permissions_over_others_times_are_no_conflict() {
    let (lab, other) = folder();
    send_as(&lab, other, 2, (1, None), &made(10, 50)).unwrap();
    send_as(&lab, other, 3, (2, None), &made(11, 60)).unwrap();
    send_as(&lab, lab.device, 2, (1, None), &chmod(0o700)).unwrap();
    let refused = send_as(&lab, other, 4, (3, Some(3)), &chmod(0o711));
    assert!(matches!(refused, Err(StoreError::Conflict { .. })), "{refused:?}");
}

#[test]
fn times_of_others_are_no_conflict_however_often_they_moved() {
    let (lab, other) = folder();
    // While a long upload of one device arrives, the other one makes file after file.
    for number in 0..200 {
        let counter = number + 2;
        let follows = (number > 0).then_some(counter - 1);
        let batch = made(100 + u128::from(number), 50 + i128::from(number));
        send_as(&lab, other, counter, (1, follows), &batch).unwrap();
    }
    send_as(&lab, lab.device, 2, (1, None), &made(10, 1000)).unwrap();
    send_as(&lab, lab.device, 3, (1, Some(2)), &chmod(0o700)).unwrap();
    let node = lab.store.node("f", DIRECTORY, Some(203)).unwrap();
    assert_eq!(node.attributes.mode, 0o700);
    assert_eq!(time_of(&lab, 202), 1000);
    // The mode is a conflict, however often the time moved after it.
    for number in 0..100 {
        let counter = number + 4;
        let batch = made(400 + u128::from(number), 2000 + i128::from(number));
        send_as(&lab, lab.device, counter, (1, Some(counter - 1)), &batch).unwrap();
    }
    let refused = send_as(&lab, other, 202, (202, Some(201)), &made(500, 5000));
    assert!(matches!(refused, Err(StoreError::Conflict { .. })), "{refused:?}");
}

/// Two devices make files, one after the other, each after it has learned a random part of the
/// other's changes: the last time is what a naive record of all times says.
#[test]
fn random_times_of_two_devices_are_those_of_a_naive_record() {
    for seed in 0..20 {
        let mut rng = SplitMix64::new(seed);
        let (lab, other) = folder();
        let devices = [lab.device, other];
        let (mut heard, mut newest) = ([1u64; 2], [None; 2]);
        let mut counters = [1u64; 2];
        // The device that wrote each moment, and the time that it left.
        let mut moments: Vec<(usize, i128)> = vec![(0, 0), (0, 0)];
        for id in 10..60 {
            let who = rng.below(2) as usize;
            let head = moments.len() as u64 - 1;
            heard[who] += rng.below(head - heard[who] + 1);
            counters[who] += 1;
            let mtime_ns = i128::from(rng.below(1000));
            let batch = made(id, mtime_ns);
            send_as(&lab, devices[who], counters[who], (heard[who], newest[who]), &batch)
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            newest[who] = Some(counters[who]);
            // The moment at which the time was last changed, and the device that changed it.
            let (_, last_ns) = moments[head as usize];
            let changed = (1..=head as usize).rev().find(|at| moments[at - 1].1 != last_ns);
            let changed = changed.unwrap_or(1);
            let is_others = changed as u64 > heard[who] && moments[changed].0 != who;
            let expected = if is_others { mtime_ns.max(last_ns) } else { mtime_ns };
            moments.push((who, expected));
            assert_eq!(time_of(&lab, head + 1), expected, "seed {seed}, moment {}", head + 1);
        }
    }
}
