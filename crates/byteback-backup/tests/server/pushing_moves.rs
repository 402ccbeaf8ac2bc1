//! Pushes of files and directories that were moved or copied since the last push.

use crate::pushing::{Push, mtime_ns, set_mtime};
use byteback_backup::{Change, DeltaChoice, Event, Exclude, PushReport};
use byteback_host::random::{SplitMix64, noise};
use byteback_model::FileId;
use byteback_testkit::listener::RecordingMonitor;
use byteback_testkit::local_tree::{assert_same, change, paths};
use byteback_testkit::rig::Rig;
use byteback_testkit::seed::{Draw, seed};
use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Files of the moved directories.
const FILES: usize = 40;

/// A directory `photos` of 20 MB, pushed, and then another file in the root.
fn with_photos(seed: u64) -> Push {
    let push = Push::new(seed);
    fs::create_dir(push.file("photos")).unwrap();
    for at in 0..FILES {
        let path = push.file(&format!("photos/image {at:03}.jpg"));
        fs::write(path, noise(seed * 1000 + at as u64, 512 * 1024)).unwrap();
    }
    fs::write(push.file("notes"), "short").unwrap();
    push.push().unwrap();
    push
}

fn wire(report: &PushReport) -> u64 {
    report.wire.sent + report.wire.received
}

fn id_of(push: &Push, path: &str) -> FileId {
    let Rig { client, folder, .. } = &push.rig;
    let place = byteback_client::TreePlace::Path(path.as_bytes());
    client.tree_page(folder, push.rig.seq(), place, None).unwrap().node.id
}

/// The report of a push, and the change of each path that it tells.
fn told(push: &Push) -> (PushReport, Vec<(String, Change)>) {
    let told = Mutex::new(Vec::new());
    let listener = RecordingMonitor::new(|event: &Event<'_>, _| {
        if let Event::Changed { path, change } = event {
            told.lock().unwrap().push((path.to_string(), *change));
        }
    });
    let Rig { client, folder, .. } = &push.rig;
    let report = byteback_backup::push(client, folder, b"", &push.source, &push.options, &listener).unwrap();
    drop(listener);
    (report, told.into_inner().unwrap())
}

#[test]
fn moved_directory_costs_its_names() {
    let mut push = with_photos(1);
    push.options.delete = true;
    let id = id_of(&push, "photos");
    fs::create_dir(push.file("archive")).unwrap();
    fs::rename(push.file("photos"), push.file("archive/of 2026")).unwrap();
    let report = push.push().unwrap();
    println!("moved with --delete: {} bytes, {report:?}", wire(&report));
    assert!(wire(&report) < 20_000, "{} bytes: {report:?}", wire(&report));
    assert_eq!(
        (report.dirs_moved, report.dirs_new, report.removed),
        (1, 1, 0),
        "{report:?}"
    );
    assert_eq!((report.files_new, report.literal_bytes), (0, 0), "{report:?}");
    assert_eq!(id_of(&push, "archive/of 2026"), id, "its history goes on");
    assert_same(&push.source, &push.fetched(b""));
    assert!(!push.push().unwrap().has_changes());
}

#[test]
fn moved_directory_without_delete_is_copied() {
    let push = with_photos(2);
    fs::rename(push.file("photos"), push.file("pictures")).unwrap();
    let report = push.push().unwrap();
    println!("moved without --delete: {} bytes, {report:?}", wire(&report));
    assert!(wire(&report) < 30_000, "{} bytes: {report:?}", wire(&report));
    assert_eq!((report.dirs_new, report.files_copied), (1, FILES as u64), "{report:?}");
    assert_eq!(report.literal_bytes, 0);
    let there = push.fetched(b"");
    assert_same(&push.file("pictures"), &there.join("pictures"));
    assert_same(&push.file("pictures"), &there.join("photos"));
}

#[test]
fn moved_files_of_a_removed_directory_keep_identities() {
    let mut push = with_photos(3);
    push.options.delete = true;
    let id = id_of(&push, "photos/image 007.jpg");
    for at in 0..FILES {
        let name = format!("image {at:03}.jpg");
        let to = push.file(&format!("renamed {at:03}"));
        fs::rename(push.file("photos").join(name), to).unwrap();
    }
    fs::remove_dir(push.file("photos")).unwrap();
    let report = push.push().unwrap();
    println!("moved one by one: {} bytes, {report:?}", wire(&report));
    assert!(wire(&report) < 30_000, "{} bytes: {report:?}", wire(&report));
    let counts = (report.files_moved, report.files_new, report.removed);
    assert_eq!(counts, (FILES as u64, 0, 1), "{report:?}");
    assert_eq!(id_of(&push, "renamed 007"), id);
    assert_same(&push.source, &push.fetched(b""));
    // It has one name, so a change of it is a change of that file.
    OpenOptions::new()
        .append(true)
        .open(push.file("renamed 007"))
        .unwrap()
        .write_all(b"more")
        .unwrap();
    push.push().unwrap();
    assert_eq!(id_of(&push, "renamed 007"), id);
}

#[test]
fn copied_files_are_found_with_and_without_their_times() {
    let push = Push::new(4);
    fs::write(push.file("a"), noise(1, 3 << 20)).unwrap();
    fs::write(push.file("short"), noise(2, 5000)).unwrap();
    push.push().unwrap();
    for (from, to) in [("a", "b"), ("short", "shorter")] {
        fs::copy(push.file(from), push.file(to)).unwrap();
    }
    fs::copy(push.file("a"), push.file("c")).unwrap();
    set_mtime(&push.file("c"), mtime_ns(&push.file("a")));
    let (report, told) = told(&push);
    println!("copied: {} bytes, {report:?}", wire(&report));
    assert_eq!((report.files_copied, report.files_new), (3, 0), "{report:?}");
    assert!(wire(&report) < 6000, "{} bytes: {report:?}", wire(&report));
    for path in ["b", "c", "shorter"] {
        assert!(told.contains(&(path.to_owned(), Change::Copied)), "{told:?}");
    }
    assert_same(&push.source, &push.fetched(b""));
}

#[test]
fn rotated_logs_are_not_sent_again() {
    let mut push = Push::new(5);
    push.options.delete = true;
    for at in 0..4 {
        let log = push.file(&format!("log.{at}"));
        fs::write(&log, noise(at, 400_000)).unwrap();
        set_mtime(&log, 1_000_000_000 * (100 - at as i64));
    }
    push.push().unwrap();
    for at in (0..4).rev() {
        let [from, to] = [at, at + 1].map(|at| push.file(&format!("log.{at}")));
        fs::rename(from, to).unwrap();
    }
    fs::write(push.file("log.0"), "begins anew").unwrap();
    let report = push.push().unwrap();
    println!("rotated: {} bytes, {report:?}", wire(&report));
    assert_eq!(report.files_copied, 4, "{report:?}");
    assert!(wire(&report) < 8000, "{} bytes: {report:?}", wire(&report));
    assert_same(&push.source, &push.fetched(b""));
}

#[test]
fn moved_file_that_changed_costs_its_change() {
    let mut push = Push::new(6);
    push.options.delete = true;
    push.options.delta = DeltaChoice::Rsync;
    fs::create_dir_all(push.file("in/deep")).unwrap();
    fs::write(push.file("in/image"), noise(1, 4 << 20)).unwrap();
    push.push().unwrap();
    fs::rename(push.file("in/image"), push.file("in/deep/image")).unwrap();
    let image = OpenOptions::new().write(true).open(push.file("in/deep/image")).unwrap();
    image.write_all_at(b"changed", 1_000_000).unwrap();
    let report = push.push().unwrap();
    assert!(wire(&report) < 60_000, "{} bytes: {report:?}", wire(&report));
    assert_same(&push.source, &push.fetched(b""));
}

#[test]
fn moved_file_too_long_for_a_digest_is_proven_by_signature() {
    let mut push = Push::new(13);
    push.options.delete = true;
    let long = OpenOptions::new()
        .create_new(true)
        .write(true)
        .open(push.file("long"))
        .unwrap();
    long.set_len(70 << 20).unwrap();
    long.write_all_at(&noise(3, 1 << 20), 5 << 20).unwrap();
    drop(long);
    push.push().unwrap();
    fs::rename(push.file("long"), push.file("renamed")).unwrap();
    let report = push.push().unwrap();
    assert_eq!((report.files_moved, report.removed), (1, 0), "{report:?}");
    assert!(wire(&report) < 10_000, "{} bytes: {report:?}", wire(&report));
    // The same length and time do not suffice here, either.
    let (from, to) = (push.file("renamed"), push.file("again"));
    fs::rename(&from, &to).unwrap();
    let mtime = mtime_ns(&to);
    let again = OpenOptions::new().write(true).open(&to).unwrap();
    again.write_all_at(b"other", 5 << 20).unwrap();
    set_mtime(&to, mtime);
    let report = push.push().unwrap();
    assert_eq!((report.files_moved, report.files_new), (0, 1), "{report:?}");
    let fetched = push.fetched(b"").join("again");
    assert!(fs::read(fetched).unwrap() == fs::read(&to).unwrap());
}

#[test]
fn moved_directory_with_equal_times_is_proven_by_content() {
    let mut push = with_photos(7);
    push.options.delete = true;
    fs::rename(push.file("photos"), push.file("pictures")).unwrap();
    let mut changed = Vec::new();
    for name in ["image 003.jpg", "image 011.jpg"] {
        let path = push.file("pictures").join(name);
        let mtime = mtime_ns(&path);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(b"other bytes, the same length and time", 77_777)
            .unwrap();
        set_mtime(&path, mtime);
        changed.push(path);
    }
    let report = push.push().unwrap();
    assert_eq!((report.dirs_moved, report.files_changed), (1, 2), "{report:?}");
    assert!(wire(&report) < 1_200_000, "{report:?}");
    assert_same(&push.source, &push.fetched(b""));
}

#[test]
fn excluded_files_keep_a_moved_directory_in_place() {
    let mut push = Push::new(8);
    fs::create_dir(push.file("old")).unwrap();
    for name in ["one", "two", "kept.log"] {
        fs::write(push.file("old").join(name), noise(9, 100_000 + name.len())).unwrap();
    }
    push.push().unwrap();
    push.options.delete = true;
    push.options.exclude = Exclude::new(["*.log", "/new/two"]).unwrap();
    fs::rename(push.file("old"), push.file("new")).unwrap();
    let report = push.push().unwrap();
    let counts = (report.files_moved, report.dirs_moved, report.dirs_new, report.removed);
    assert_eq!(counts, (1, 0, 1, 1), "{report:?}");
    let mut left: Vec<_> = paths(&push.fetched(b""));
    left.sort();
    let wanted = ["", "new", "new/one", "old", "old/kept.log"].map(PathBuf::from);
    assert_eq!(left, wanted);
}

#[test]
fn moved_directory_takes_no_excluded_file_along() {
    let mut push = Push::new(14);
    fs::create_dir(push.file("old")).unwrap();
    for name in ["one", "two"] {
        fs::write(push.file("old").join(name), noise(9, 100_000 + name.len())).unwrap();
    }
    push.push().unwrap();
    push.options.delete = true;
    push.options.exclude = Exclude::new(["/new/one"]).unwrap();
    fs::rename(push.file("old"), push.file("new")).unwrap();
    let report = push.push().unwrap();
    assert_eq!((report.files_moved, report.literal_bytes), (1, 0), "{report:?}");
    let left = paths(&push.fetched(b""));
    assert_eq!(left, ["", "new", "new/two"].map(PathBuf::from));
}

#[test]
fn moved_directories_leave_each_other_and_their_names() {
    let mut push = Push::new(15);
    push.options.delete = true;
    fs::create_dir_all(push.file("outer/inner")).unwrap();
    for name in ["a", "b", "inner/x", "inner/y"] {
        fs::write(push.file("outer").join(name), noise(name.len() as u64, 90_000)).unwrap();
    }
    push.push().unwrap();
    let ids = ["outer", "outer/inner"].map(|path| id_of(&push, path));
    // The inner one comes first, and its name in the outer one goes to another directory.
    let mtime = mtime_ns(&push.file("outer"));
    fs::rename(push.file("outer/inner"), push.file("first")).unwrap();
    fs::rename(push.file("outer"), push.file("second")).unwrap();
    fs::create_dir(push.file("second/inner")).unwrap();
    fs::write(push.file("second/inner/x"), "new").unwrap();
    set_mtime(&push.file("second"), mtime);
    let report = push.push().unwrap();
    assert_eq!(
        (report.dirs_moved, report.dirs_new, report.removed),
        (2, 1, 0),
        "{report:?}"
    );
    assert_eq!(ids, ["second", "first"].map(|path| id_of(&push, path)));
    assert_same(&push.source, &push.fetched(b""));
    // The outer one goes into the inner one.
    fs::rename(push.file("second"), push.file("first/third")).unwrap();
    let report = push.push().unwrap();
    assert_eq!(
        (report.dirs_moved, report.dirs_new, report.removed),
        (1, 0, 0),
        "{report:?}"
    );
    assert_same(&push.source, &push.fetched(b""));
    assert!(!push.push().unwrap().has_changes());
}

#[test]
fn interrupted_push_of_moves_goes_on() {
    let mut push = with_photos(10);
    push.options.delete = true;
    push.keep_state();
    fs::rename(push.file("photos"), push.file("pictures")).unwrap();
    fs::copy(push.file("pictures/image 001.jpg"), push.file("copy")).unwrap();
    fs::write(push.file("new"), noise(12, 600_000)).unwrap();
    let Rig { client, folder, .. } = &push.rig;
    let sent = Mutex::new(0);
    let listener = RecordingMonitor::new(|event: &Event<'_>, _| {
        if let Event::BytesSent(bytes) = event {
            *sent.lock().unwrap() += bytes;
        }
    });
    let stopper = Stopping(&listener, &sent);
    let stopped = byteback_backup::push(client, folder, b"", &push.source, &push.options, &stopper);
    assert!(stopped.is_err());
    let report = push.push().unwrap();
    assert!(report.resumed && report.parts_reused > 0, "{report:?}");
    assert_eq!((report.dirs_moved, report.files_copied), (1, 1), "{report:?}");
    assert_same(&push.source, &push.fetched(b""));
}

/// Stops a push after some bytes.
struct Stopping<'a, M>(&'a M, &'a Mutex<u64>);

impl<M: byteback_backup::Monitor> byteback_backup::Monitor for Stopping<'_, M> {
    fn event(&self, event: Event<'_>) {
        self.0.event(event);
    }

    fn is_cancelled(&self) -> bool {
        *self.1.lock().unwrap() > 100_000
    }
}

#[test]
fn push_of_random_moves_leaves_the_server_equal() {
    let seed = seed(0x90e5);
    for round in 0..10_u64 {
        let mut random = SplitMix64::new(seed + round);
        let mut push = Push::new(seed + round);
        let does_delete = round % 3 != 2;
        // Only then may a path have another content of the same length and time.
        let has_traps = round % 2 == 0;
        push.options.checksum = has_traps;
        let mut stamps = Stamps::default();
        push.options.delta = match round % 4 {
            0 => DeltaChoice::Hash,
            _ => DeltaChoice::Auto,
        };
        for _ in 0..20 {
            change(&mut random, &push.source);
        }
        stamps.tell_apart(&push.source);
        push.push().unwrap();
        for step in 0..12 {
            println!("seed {seed:#x}, round {round}, step {step}");
            for _ in 0..1 + random.next_u64() % 10 {
                rearrange(&mut random, &push.source);
                if !has_traps {
                    stamps.tell_apart(&push.source);
                }
            }
            push.options.delete = does_delete;
            push.options.dry_run = true;
            let (would, would_tell) = told(&push);
            push.options.dry_run = false;
            let (did, did_tell) = told(&push);
            assert_eq!(would_tell, did_tell);
            let moved = |report: &PushReport| (report.files_moved, report.dirs_moved, report.files_copied);
            assert_eq!(moved(&would), moved(&did));
            assert!(did.is_complete() || !does_delete, "{did:?}");
            if does_delete {
                assert_same(&push.source, &push.fetched(b""));
                let again = push.push().unwrap();
                assert!(!again.has_changes() && again.seq.is_none(), "{again:?}");
            } else if did.is_complete() {
                assert_holds(&push.source, &push.fetched(b""));
            }
        }
        // Names that were left behind go.
        push.options.delete = true;
        push.push().unwrap();
        assert_same(&push.source, &push.fetched(b""));
    }
}

/// The contents of all lengths and times that there were.
#[derive(Default)]
struct Stamps(HashMap<(u64, i64), Vec<u8>>);

impl Stamps {
    /// Gives files another time if a former content of the same length had theirs.
    fn tell_apart(&mut self, root: &Path) {
        for path in paths(root) {
            let path = root.join(path);
            if !fs::symlink_metadata(&path).unwrap().is_file() {
                continue;
            }
            let content = fs::read(&path).unwrap();
            loop {
                let stamp = (content.len() as u64, mtime_ns(&path));
                let known = self.0.entry(stamp).or_insert_with(|| content.clone());
                if *known == content {
                    break;
                }
                set_mtime(&path, stamp.1 + 1);
            }
        }
    }
}

/// Fails unless each file here is there with the same content.
fn assert_holds(here: &Path, there: &Path) {
    for path in paths(here) {
        let [one, other] = [here, there].map(|root| root.join(&path));
        if fs::symlink_metadata(&one).unwrap().is_file() {
            assert!(fs::read(&one).unwrap() == fs::read(&other).unwrap(), "{path:?}");
        }
    }
}

/// Makes a random change of the kinds that a search for moved files could get wrong.
fn rearrange(random: &mut SplitMix64, root: &Path) {
    let all = paths(root);
    let of = |random: &mut SplitMix64, is: fn(&fs::Metadata) -> bool| -> Option<PathBuf> {
        let some: Vec<_> = all
            .iter()
            .filter(|path| !path.as_os_str().is_empty())
            .map(|path| root.join(path))
            .filter(|path| fs::symlink_metadata(path).is_ok_and(|metadata| is(&metadata)))
            .collect();
        (!some.is_empty()).then(|| some[random.index(some.len())].clone())
    };
    let (Some(file), Some(other)) = (of(random, fs::Metadata::is_file), of(random, fs::Metadata::is_file)) else {
        return change(random, root);
    };
    let dir = of(random, fs::Metadata::is_dir);
    let into = of(random, fs::Metadata::is_dir).unwrap_or_else(|| root.to_owned());
    let new = into.join(format!("n{}", random.next_u64() % 12));
    let is_free = fs::symlink_metadata(&new).is_err();
    let times = |from: &Path, to: &Path| set_mtime(to, mtime_ns(from));
    match random.next_u64() % 16 {
        // Moves, also onto others.
        0 | 1 if is_free || new.is_file() => fs::rename(&file, &new).unwrap(),
        2 => drop(fs::rename(&file, &other)),
        // A directory into another one, or onto an empty one.
        3..=5 => drop(dir.map(|dir| fs::rename(dir, &new))),
        // Copies, with and without the time.
        6 if is_free => drop(fs::copy(&file, &new).unwrap()),
        7 if is_free => {
            fs::copy(&file, &new).unwrap();
            times(&file, &new);
        }
        // Two swap.
        8 if file != other => {
            let between = root.join("between");
            fs::rename(&file, &between).unwrap();
            fs::rename(&other, &file).unwrap();
            fs::rename(&between, &other).unwrap();
        }
        9 => {
            if let (Some(dir), true) = (dir, into != root)
                && !dir.starts_with(&into)
                && !into.starts_with(&dir)
            {
                let between = root.join("between");
                fs::rename(&dir, &between).unwrap();
                fs::rename(&into, &dir).unwrap();
                fs::rename(&between, &into).unwrap();
            }
        }
        // Moved and changed, the length and time kept.
        10 | 11 if is_free => {
            let time = mtime_ns(&file);
            fs::rename(&file, &new).unwrap();
            let opened = OpenOptions::new().write(true).open(&new).unwrap();
            if opened.metadata().unwrap().len() > 10 {
                opened.write_all_at(&noise(random.next_u64(), 4), 3).unwrap();
            }
            set_mtime(&new, time);
        }
        // Another content of the same length and time elsewhere.
        12 if is_free => {
            let len = fs::metadata(&file).unwrap().len();
            fs::write(&new, noise(random.next_u64(), usize::try_from(len).unwrap())).unwrap();
            times(&file, &new);
        }
        13 if is_free => fs::hard_link(&file, &new).unwrap(),
        // Its name goes to a directory, with the file in it.
        14 => {
            let between = root.join("between");
            fs::rename(&file, &between).unwrap();
            fs::create_dir(&file).unwrap();
            fs::rename(&between, file.join("n1")).unwrap();
        }
        _ => change(random, root),
    }
}
