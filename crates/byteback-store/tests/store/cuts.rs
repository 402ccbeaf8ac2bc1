//! Power cuts of the whole machine: of the segments at every sync, and of the catalog right before
//! and right after every commit. The catalog is the twin in memory, which loses what was not
//! committed.

use crate::lab::{Batch, Lab, ROOT};
use byteback_host::durable::DurableDir;
use byteback_host::random::noise;
use byteback_host::sim::{CrashPhase, SimDisk};
use byteback_model::{FileId, NodeKind};
use byteback_store::catalog::Catalog;
use byteback_store::numbers::{LayerNumber, SegmentNumber};
use byteback_store::segments::Segments;
use std::collections::BTreeSet;
use std::time::Duration;

const BATCHES: u64 = 10;

/// The file that each batch patches: enough layers for a merge.
const PATCHED: u128 = 5;

/// Survivors that are drawn of each crash.
const SURVIVORS: u64 = 4;

/// A place at which the power is cut.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// At the n-th commit of the catalog.
    Commit(u64, CrashPhase),
    /// At the n-th sync of the disk.
    Sync(u64, CrashPhase),
    /// Instead of the n-th operation on the disk.
    Operation(u64),
}

impl Cut {
    /// All cuts of a run that takes this many commits, syncs and operations.
    fn all(commits: u64, syncs: u64, operations: u64) -> Vec<Self> {
        let (before, middle, after) = (CrashPhase::Before, CrashPhase::Middle, CrashPhase::After);
        let commits = (1..=commits).flat_map(|nth| [before, after].map(|phase| Self::Commit(nth, phase)));
        let syncs = (1..=syncs).flat_map(|nth| [before, middle, after].map(|phase| Self::Sync(nth, phase)));
        commits
            .chain(syncs)
            .chain((1..=operations).map(Self::Operation))
            .collect()
    }

    /// Plans the cut, counted from now.
    fn plan(self, lab: &Lab) {
        let (catalog, done) = (lab.catalog.memory(), lab.disk.counters());
        match self {
            Self::Commit(nth, phase) => catalog.crash_at_commit(catalog.commits() + nth, phase),
            Self::Sync(nth, phase) => lab.disk.crash_at_sync(done.syncs + nth, phase),
            Self::Operation(nth) => lab.disk.crash_at_op(done.ops + nth),
        }
    }
}

/// The commits, syncs and operations that `run` takes.
fn measure(lab: &Lab, run: impl FnOnce(&Lab)) -> (u64, u64, u64) {
    let (commits, disk) = (lab.catalog.memory().commits(), lab.disk.counters());
    run(lab);
    let disk_after = lab.disk.counters();
    (
        lab.catalog.memory().commits() - commits,
        disk_after.syncs - disk.syncs,
        disk_after.ops - disk.ops,
    )
}

/// Sends batches until one fails; returns the number of acknowledged ones.
fn work(lab: &Lab, from: u64) -> Result<(), u64> {
    for counter in from..=BATCHES {
        let batch = match counter {
            1 => {
                Batch::default()
                    .node(ROOT, NodeKind::Directory, 0, None)
                    .new_file(PATCHED, b"patched", &noise(0, 3000))
            }
            _ => Batch::default().patch(PATCHED, 3000, &[(counter * 100, &noise(counter, 150))]),
        };
        let id = u128::from(counter) + 10;
        let batch = batch.new_file(id, format!("n{counter}").as_bytes(), &noise(counter, 1500));
        let base = (counter > 1).then_some(counter - 1);
        lab.send(counter, base, &batch).map_err(|_| counter - 1)?;
    }
    Ok(())
}

fn check_contents(lab: &Lab, batches: u64) {
    assert_eq!(lab.store.folder("f").unwrap().seq, batches);
    let mut patched = noise(0, 3000);
    for seq in 1..=batches {
        if seq > 1 {
            patched[seq as usize * 100..][..150].copy_from_slice(&noise(seq, 150));
        }
        assert_eq!(lab.read(PATCHED, seq).unwrap(), patched, "at {seq}");
        assert_eq!(lab.read(u128::from(seq) + 10, batches).unwrap(), noise(seq, 1500));
    }
}

/// Numbers of the segment files on a disk.
fn segments_on(disk: &SimDisk) -> BTreeSet<SegmentNumber> {
    let names = disk.list().unwrap();
    let digits = names.iter().filter_map(|name| name.strip_suffix(".seg"));
    digits
        .map(|digits| SegmentNumber(u64::from_str_radix(digits, 16).unwrap()))
        .collect()
}

/// Segments that a catalog refers to.
fn referenced(catalog: &dyn Catalog) -> BTreeSet<SegmentNumber> {
    // Dropped without a commit, it forgets nothing.
    let trial = catalog.write().unwrap();
    let known = (1..=trial.segment_id_max().unwrap().0).map(SegmentNumber);
    known
        .filter(|segment| !trial.forget_segment(*segment).unwrap())
        .collect()
}

/// Opens the survivors of a crash, one by one. Nothing that the catalog refers to is gone before
/// the start, and nothing that it does not refer to is left after it.
fn check_survivors(crashed: &Lab, cut: Cut, mut check: impl FnMut(Lab)) {
    for seed in 0..SURVIVORS {
        let disk = crashed.disk.recover(seed);
        let wanted = referenced(&crashed.catalog.memory().restart(disk.clone()));
        let files = segments_on(&disk);
        assert!(
            wanted.is_subset(&files),
            "{cut:?}, survivor {seed}: the catalog refers to {wanted:?}, the disk has {files:?}"
        );
        let lab = crashed.survivor(disk);
        let wanted = referenced(&lab.catalog);
        let left = segments_on(&lab.disk);
        assert!(
            left.iter()
                .all(|segment| wanted.contains(segment) || lab.frames.is_in_use(*segment)),
            "{cut:?}, survivor {seed}: of {left:?}, only {wanted:?} are referred to"
        );
        check(lab);
    }
}

#[test]
fn acknowledged_survives_cuts_of_catalog_and_segments() {
    let trial = Lab::in_memory(SimDisk::new(1), 4000);
    let (commits, syncs, _) = measure(&trial, |lab| work(lab, 1).unwrap());
    assert!(commits >= BATCHES && syncs > BATCHES);
    check_contents(&trial, BATCHES);
    let rows = trial.catalog.read().unwrap();
    let folder = rows.folder("f").unwrap().unwrap().id;
    let node = rows.node_number(folder, FileId(PATCHED)).unwrap().unwrap();
    let merged = rows.longest_layer(node, LayerNumber(8), LayerNumber::FIRST).unwrap();
    assert!(
        merged.is_some_and(|row| row.first < row.last),
        "cuts fall into a merge as well"
    );
    for cut in Cut::all(commits, syncs, 0) {
        let lab = Lab::in_memory(SimDisk::new(1), 4000);
        cut.plan(&lab);
        let acknowledged = work(&lab, 1).expect_err("the power was cut");
        // The answer to a batch may be lost, but not the batch.
        let unheard = u64::from(matches!(cut, Cut::Commit(_, CrashPhase::After)));
        check_survivors(&lab, cut, |lab| {
            check_contents(&lab, acknowledged + unheard);
            // The sender repeats what was not acknowledged, and continues.
            work(&lab, acknowledged + 1).unwrap();
            check_contents(&lab, BATCHES);
        });
    }
}

/// A folder, and an upload whose frames fill segments of their own.
fn with_upload(disk: SimDisk) -> Lab {
    let lab = Lab::in_memory(disk, 4000);
    work(&lab, 1).unwrap();
    for number in 1..=3 {
        let mut part = lab.part(BATCHES + 1);
        if number == 1 {
            part.manifest(lab.manifest(BATCHES + 1, Some(BATCHES))).unwrap();
            let batch = Batch::default().new_file(90, b"upload", &noise(90, 9000));
            part.node(batch.nodes[0].clone()).unwrap();
            part.entry(batch.entries[0].clone()).unwrap();
            part.delta(batch.deltas[0].0, &batch.deltas[0].1[..]).unwrap();
        } else {
            // Belongs to no node, and is refused when the batch is committed.
            let other = crate::lab::patch(0, 5000, &[(0, &noise(number, 5000))]);
            part.delta(FileId(91), &other[..]).unwrap();
        }
        lab.store.stage(part, number as u32).unwrap();
    }
    // The active segment belongs to the folder.
    lab.send(
        BATCHES + 2,
        Some(BATCHES),
        &Batch::default().new_file(92, b"last", &noise(92, 100)),
    )
    .unwrap();
    lab
}

fn check_folder(lab: &Lab) {
    assert_eq!(lab.read(92, BATCHES + 1).unwrap(), noise(92, 100));
    for seq in 1..=BATCHES {
        assert_eq!(lab.read(u128::from(seq) + 10, BATCHES + 1).unwrap(), noise(seq, 1500));
    }
}

/// Cuts the power everywhere in `removal`, which removes segments.
fn check_removal(removal: impl Fn(&Lab) -> Result<(), byteback_store::StoreError>) {
    let trial = with_upload(SimDisk::new(1));
    let before = segments_on(&trial.disk).len();
    let (commits, syncs, operations) = measure(&trial, |lab| removal(lab).unwrap());
    let removed = before - segments_on(&trial.disk).len();
    assert!(removed >= 2 && commits > 0 && operations as usize > removed);
    for cut in Cut::all(commits, syncs, operations) {
        let lab = with_upload(SimDisk::new(1));
        cut.plan(&lab);
        assert!(removal(&lab).is_err(), "{cut:?}: the power was cut");
        check_survivors(&lab, cut, |lab| check_folder(&lab));
    }
}

#[test]
fn collected_segments_go_after_their_rows() {
    check_removal(|lab| {
        lab.clock.advance(Duration::from_secs(25 * 3600));
        lab.store.collect().map(drop)
    });
}

#[test]
fn segments_of_abandoned_batches_go_after_their_rows() {
    check_removal(|lab| lab.store.abandon("f", lab.device, BATCHES + 1).map(drop));
}
