//! Backups under load: every restored snapshot is one moment of the tree, between two operations.
//!
//! Writers hammer lanes (see `rig/lane.rs`): in a lane, an operation begins only after the previous
//! one has returned, and operations of all kinds touch all of its files. Backups run meanwhile, one
//! after the other, to one repository or to two at once. Each snapshot is restored and must be, in
//! every lane, exactly the state after some operation that had not yet returned when the backup
//! began, or had begun when it ended: a prefix of the order of operations, across all files,
//! nothing torn.
//!
//! In mode `exact` that holds for everything that reaches the mount as a call. Where the kernel
//! collects writes (mode `fast`, and stores into shared mappings that are not synced) the promise
//! is weaker, see docs/semantics.md: everything that had returned before the backup began is there.
//!
//! `BYTEBACK_SEED` repeats the choices of a run, `BYTEBACK_ROUNDS` sets the number of backups.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "these are tests; the lint configuration only recognises test functions, not their helpers"
)]

#[path = "../rig/mod.rs"]
#[allow(dead_code, reason = "shared with other test targets, which use other parts of it")]
mod rig;

mod standstill;

use std::fs;
use std::time::Duration;

use byteback_host::random::SplitMix64;
use byteback_testkit::local_tree::{differences, seen};
use byteback_testkit::seed::{fresh_seed, rounds};

use rig::hand::Hand;
use rig::lane::{History, Lane, Moment, Plan, Window, part_of};
use rig::operation::Choice;
use rig::{Mode, Rig};

/// The requirement on a lane's restored state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promise {
    /// A state between two operations.
    Moment,
    /// Nothing from before the backup is missing; see [`Window::is_blend`].
    Blend,
}

struct Promised {
    lane: Lane,
    promise: Promise,
}

const SYNCED: Choice = Choice {
    stores: true,
    unsynced_stores: false,
};
const UNSYNCED: Choice = Choice {
    stores: true,
    unsynced_stores: true,
};

fn start_lane(rig: &Rig, name: &str, random: &mut SplitMix64, choice: Choice, hands: usize) -> Lane {
    let directory = rig.tree().join(name);
    fs::create_dir(&directory).unwrap();
    let mut all = vec![Hand::here(&directory)];
    all.extend((1..hands).map(|_| Hand::process(&directory)));
    let plan = Plan {
        seed: random.next_u64(),
        choice,
        pace: Duration::from_micros(150),
    };
    Lane::start(name, History::default(), all, plan)
}

/// Runs a backup; returns its result and, for each lane, the states during it.
fn during<T>(lanes: &[Promised], backup: impl FnOnce() -> T) -> (T, Vec<Window>) {
    let moments: Vec<Moment> = lanes.iter().map(|promised| promised.lane.moment()).collect();
    let done = backup();
    let windows = lanes.iter().zip(&moments);
    (
        done,
        windows.map(|(promised, moment)| promised.lane.since(moment)).collect(),
    )
}

/// Restores a snapshot and compares it with the permitted states.
fn check(rig: &Rig, snapshot: u64, repository: Option<&str>, lanes: &[Promised], windows: &[Window]) {
    let restored = rig.restore(snapshot, repository);
    let tree = seen(restored.path());
    for (promised, window) in lanes.iter().zip(windows) {
        let part = part_of(&tree, &promised.lane.name);
        let answer = match promised.promise {
            Promise::Moment => window.moment_of(&part).map(|_| ()),
            Promise::Blend => window.is_blend(&part),
        };
        if let Err(why) = answer {
            panic!(
                "snapshot {snapshot} of {repository:?}, lane {}, of {} possible states: {why}",
                promised.lane.name,
                window.len()
            );
        }
    }
}

fn snapshot_of(summary: &serde_json::Value) -> u64 {
    let unsaved = summary["unsaved"].as_array().unwrap();
    assert!(unsaved.is_empty(), "not saved: {unsaved:?}");
    summary["snapshot_id"].as_u64().unwrap()
}

fn hammer(mode: Mode, promises: &[Promise], repositories: usize, default_rounds: u64) {
    let seed = fresh_seed();
    let mut random = SplitMix64::new(seed);
    let mut rig = Rig::new(mode);
    let url = rig.start_server("127.0.0.1:0");
    rig.init(&rig.tree(), &url, "first");
    for number in 1..repositories {
        rig.init_another(&url, &format!("other{number}"));
    }
    rig.mount();
    let mut lanes = Vec::new();
    for (number, promise) in promises.iter().enumerate() {
        let choice = match promise {
            Promise::Moment => SYNCED,
            Promise::Blend => UNSYNCED,
        };
        let lane = start_lane(&rig, &format!("lane{number}"), &mut random, choice, 3);
        lanes.push(Promised {
            lane,
            promise: *promise,
        });
    }
    let others: Vec<String> = (1..repositories).map(|number| format!("{url}/other{number}")).collect();
    let (mut states, mut kept) = (0, 0);
    for round in 0..rounds(default_rounds) {
        std::thread::sleep(Duration::from_millis(random.below(120)));
        std::thread::scope(|scope| {
            let other = others.iter().map(|repository| {
                let (rig, lanes) = (&rig, &lanes);
                scope.spawn(move || {
                    let (ran, windows) = during(lanes, || rig.backup(Some(repository)));
                    let summary = ran.succeeds("backup to the other repository");
                    check(rig, snapshot_of(&summary), Some(repository), lanes, &windows);
                })
            });
            let other: Vec<_> = other.collect();
            let (ran, windows) = during(&lanes, || rig.backup(None));
            let summary = ran.succeeds(&format!("backup {round}"));
            check(&rig, snapshot_of(&summary), None, &lanes, &windows);
            states += windows.iter().map(Window::len).max().unwrap_or(0);
            kept += summary["kept_bytes"].as_u64().unwrap();
            for other in other {
                other.join().unwrap();
            }
        });
    }
    let mut operations = 0;
    for promised in lanes {
        let name = promised.lane.name.clone();
        let (history, failed) = promised.lane.stop();
        assert!(failed.is_none(), "lane {name}: {failed:?}");
        operations += history.done;
    }
    println!("{mode:?}: {operations} operations, {states} possible states in the backups, {kept} old bytes kept");
    assert!(
        states as u64 > rounds(default_rounds) * 2,
        "hardly anything happened while backups ran: this proves nothing"
    );
    quiet(&rig, mode);
    rig.umount();
}

/// With no writers, a restored backup equals the folder to the last attribute, and the next backup
/// finds no change.
fn quiet(rig: &Rig, mode: Mode) {
    let snapshot = snapshot_of(&rig.backup(None).succeeds("the last backup"));
    let restored = rig.restore(snapshot, None);
    // A kernel that collects writes keeps the time to itself until it writes the inode.
    let found = differences(&seen(&rig.tree()), &seen(restored.path()), mode == Mode::Exact);
    assert!(found.is_empty(), "the last backup differs:\n{}", found.join("\n"));
}

#[test]
fn pictures_are_moments_exact() {
    hammer(Mode::Exact, &[Promise::Moment, Promise::Moment], 1, 25);
}

#[test]
fn pictures_of_two_repositories_are_moments_exact() {
    hammer(Mode::Exact, &[Promise::Moment], 2, 15);
}

#[test]
fn unsynced_stores_before_a_backup_are_in_it_exact() {
    hammer(Mode::Exact, &[Promise::Blend, Promise::Moment], 1, 15);
}

#[test]
fn collected_writes_before_a_backup_are_in_it_fast() {
    hammer(Mode::Fast, &[Promise::Blend, Promise::Blend], 1, 25);
}

/// The body of the processes that the tests above start as writers.
#[test]
#[ignore = "it is run by the other tests, in processes of their own"]
fn hand() {
    rig::hand::serve_as_hand();
}
