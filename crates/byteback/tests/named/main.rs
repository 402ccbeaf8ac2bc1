//! Programs that know nothing of Byteback save one moment of a tree under load: they read a named
//! cut.
//!
//! Writers hammer lanes (see `rig/lane.rs`) and two SQLite databases, of which the second never has
//! a row that the first one lacks. A cut is opened, and GNU tar, Borg and restic save it, one after
//! the other, while the writers go on. Each restored copy must hold one state of each lane between
//! two operations that the cut could have met, and databases that SQLite finds sound and in step;
//! all three copies must be equal, to the last attribute; and a later reading of the cut must give
//! the same bytes.

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

mod library;
mod socket;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use byteback_host::random::SplitMix64;
use byteback_testkit::local_tree::{Tree, differences, seen};
use byteback_testkit::seed::fresh_seed;
use byteback_testkit::tools::printed;

use rig::hand::Hand;
use rig::lane::{History, Lane, Moment, Plan, part_of};
use rig::operation::Choice;
use rig::{Mode, Rig};

/// A named cut of the rig's tree, ended when this is dropped.
struct NamedCut(PathBuf);

impl NamedCut {
    fn open(rig: &Rig, name: &str) -> Self {
        let path = rig.tree().join(".byteback/cut").join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for NamedCut {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn sqlite(database: &Path, orders: &str) -> String {
    printed(Command::new("sqlite3").arg("-batch").arg(database).arg(orders))
}

/// Writes number after number, first into `a.db`, which has a write-ahead log, then into `b.db`,
/// which has a rollback journal.
fn count_in_databases(dir: &Path, stop: &AtomicBool, written: &AtomicU64) {
    let (a, b) = (dir.join("a.db"), dir.join("b.db"));
    sqlite(
        &a,
        "PRAGMA journal_mode = wal; CREATE TABLE t (n INTEGER PRIMARY KEY, fill TEXT)",
    );
    sqlite(
        &b,
        "PRAGMA journal_mode = delete; CREATE TABLE t (n INTEGER PRIMARY KEY, fill TEXT)",
    );
    let insert = "INSERT INTO t (fill) VALUES (hex(randomblob(500)))";
    while !stop.load(Ordering::Relaxed) {
        sqlite(&a, insert);
        sqlite(&b, insert);
        written.fetch_add(1, Ordering::Relaxed);
    }
}

/// Checks the databases of a saved tree on a copy, because opening them repairs them.
fn check_databases(saved: &Path, beside: &Path, who: &str) -> u64 {
    let copy = beside.join(format!("databases-of-{who}"));
    printed(Command::new("cp").arg("-a").arg(saved.join("databases")).arg(&copy));
    let count = |name: &str| {
        let database = copy.join(name);
        assert_eq!(
            sqlite(&database, "PRAGMA integrity_check").trim(),
            "ok",
            "{who}: {name}"
        );
        sqlite(&database, "SELECT count(*) FROM t")
            .trim()
            .parse::<u64>()
            .unwrap()
    };
    let (a, b) = (count("a.db"), count("b.db"));
    assert!(
        a == b || a == b + 1,
        "{who}: {a} rows in the first, {b} in the second database"
    );
    b
}

/// The tree without its root, which not every program restores.
fn below(tree: &Tree) -> Tree {
    tree.iter()
        .filter(|(path, _)| !path.as_os_str().is_empty())
        .map(|(path, entry)| (path.clone(), entry.clone()))
        .collect()
}

fn with_tar(cut: &Path, archive: &Path, into: &Path) {
    // Times of access are no part of a cut. Modification times are, and are compared. Holes are
    // not: a file system may report other holes after it writes back, without any change of the
    // file.
    printed(
        Command::new("tar")
            .args([
                "--xattrs",
                "--xattrs-include=*",
                "--numeric-owner",
                "--pax-option=delete=atime",
            ])
            .arg("-C")
            .arg(cut)
            .arg("-cf")
            .arg(archive)
            .arg("."),
    );
    let all = ["--xattrs", "--xattrs-include=*", "--numeric-owner"];
    fs::create_dir(into).unwrap();
    printed(
        Command::new("tar")
            .args(all)
            .arg("-C")
            .arg(into)
            .arg("-xpf")
            .arg(archive),
    );
}

fn with_borg(cut: &Path, home: &Path, into: &Path) {
    let repository = home.join("borg");
    let borg = |arguments: &[&str], dir: &Path| {
        printed(
            Command::new("borg")
                .args(arguments)
                .current_dir(dir)
                .env("BORG_BASE_DIR", home)
                .env("BORG_REPO", &repository)
                .env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes"),
        )
    };
    borg(&["init", "-e", "none"], home);
    borg(&["create", "--files-cache=ctime,size", "::one", "."], cut);
    fs::create_dir(into).unwrap();
    borg(&["extract", "--numeric-ids", "::one"], into);
}

fn with_restic(cut: &Path, home: &Path, into: &Path) -> PathBuf {
    let repository = home.join("restic");
    let restic = |arguments: &[&str]| {
        printed(
            Command::new("restic")
                .args(arguments)
                .arg("--no-cache")
                .current_dir(cut)
                .env("HOME", home)
                .env("RESTIC_REPOSITORY", &repository)
                .env("RESTIC_PASSWORD", "test"),
        )
    };
    restic(&["init"]);
    restic(&["backup", "--ignore-inode", "."]);
    restic(&["restore", "latest", "--target", into.to_str().unwrap()]);
    // restic restores the whole path.
    let whole = into.join(cut.strip_prefix("/").unwrap());
    if whole.is_dir() { whole } else { into.to_owned() }
}

#[test]
fn cut_under_load_gives_tar_borg_and_restic_the_same_moment() {
    let mut random = SplitMix64::new(fresh_seed());
    let mut rig = Rig::new(Mode::Exact);
    rig.mount();
    let beside = tempfile::Builder::new()
        .prefix("byteback-named-")
        .tempdir_in("/var/tmp")
        .unwrap();
    let beside = beside.path();
    let choice = Choice {
        stores: true,
        unsynced_stores: false,
    };
    let mut lanes = Vec::new();
    for name in ["lane0", "lane1"] {
        let directory = rig.tree().join(name);
        fs::create_dir(&directory).unwrap();
        let hands = vec![Hand::here(&directory), Hand::process(&directory)];
        let plan = Plan {
            seed: random.next_u64(),
            choice,
            pace: Duration::from_micros(300),
        };
        lanes.push(Lane::start(name, History::default(), hands, plan));
    }
    let databases = rig.tree().join("databases");
    fs::create_dir(&databases).unwrap();
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| count_in_databases(&databases, &stop, &written));
        // The writer must be told to stop even if an assertion below fails.
        let _stop = StopAtEnd(&stop);
        while written.load(Ordering::Relaxed) < 3 {
            std::thread::sleep(Duration::from_millis(10));
        }
        let moments: Vec<Moment> = lanes.iter().map(Lane::moment).collect();
        let before = written.load(Ordering::Relaxed);
        let cut = NamedCut::open(&rig, "nightly");
        let windows: Vec<_> = lanes
            .iter()
            .zip(&moments)
            .map(|(lane, moment)| lane.since(moment))
            .collect();

        with_tar(&cut.0, &beside.join("first.tar"), &beside.join("tar"));
        with_borg(&cut.0, beside, &beside.join("of-borg"));
        let of_restic = with_restic(&cut.0, beside, &beside.join("of-restic"));
        let saved = [
            ("tar", beside.join("tar")),
            ("borg", beside.join("of-borg")),
            ("restic", of_restic),
        ];
        let shown = below(&seen(&cut.0));
        for (who, path) in &saved {
            let tree = below(&seen(path));
            let found = differences(&shown, &tree, true);
            assert!(
                found.is_empty(),
                "{who} saved something else than the cut shows:\n{}",
                found.join("\n")
            );
            for (lane, window) in lanes.iter().zip(&windows) {
                if let Err(why) = window.moment_of(&part_of(&tree, &lane.name)) {
                    panic!("{who}, lane {}: {why}", lane.name);
                }
            }
            let rows = check_databases(path, beside, who);
            assert!(rows >= before, "{who}: what was written before the cut is missing");
        }
        // A later reading gives the same bytes.
        while written.load(Ordering::Relaxed) < before + 20 {
            std::thread::sleep(Duration::from_millis(10));
        }
        with_tar(&cut.0, &beside.join("second.tar"), &beside.join("tar-again"));
        printed(
            Command::new("cmp")
                .arg(beside.join("first.tar"))
                .arg(beside.join("second.tar")),
        );
        // The tree has really moved on.
        assert!(!differences(&shown, &below(&look_calmly(&databases, &shown)), true).is_empty());
        drop(cut);
    });
    for lane in lanes {
        let name = lane.name.clone();
        let (history, failed) = lane.stop();
        assert!(failed.is_none(), "lane {name}: {failed:?}");
        println!("{name}: {} operations", history.done);
    }
    rig.umount();
}

/// The tree of a cut, with the present content of `a.db`. Nothing else is read again, since the
/// rest may be changing.
fn look_calmly(databases: &Path, shown: &Tree) -> Tree {
    let mut tree = shown.clone();
    let path = PathBuf::from("databases/a.db");
    if let Some(entry) = tree.get_mut(&path) {
        entry.content = std::sync::Arc::new(fs::read(databases.join("a.db")).unwrap());
    }
    tree
}

struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The body of the processes that the tests above start as writers.
#[test]
#[ignore = "it is run by the other tests, in processes of their own"]
fn hand() {
    rig::hand::serve_as_hand();
}
