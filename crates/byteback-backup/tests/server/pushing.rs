//! Pushes of real directories to a real server.

use byteback_api::FolderName;
use byteback_backup::{
    BackupError, Change, DeltaChoice, Event, Exclude, Phase, PullOptions, PushOptions, PushReport, RestoreOptions,
    Silent, SnapshotSpec,
};
use byteback_client::ClientOptions;
use byteback_host::clock::{Clock, RealClock};
use byteback_host::durable::RealDir;
use byteback_host::random::{SplitMix64, noise};
use byteback_host::tree::{self, SetTime};
use byteback_testkit::clients::impatient;
use byteback_testkit::listener::RecordingMonitor;
use byteback_testkit::local_tree::{assert_same, change, paths, seen};
use byteback_testkit::rig::Rig;
use byteback_testkit::seed::seed;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

pub(crate) struct Push {
    pub(crate) rig: Rig,
    pub(crate) options: PushOptions,
    pub(crate) source: PathBuf,
}

impl Push {
    pub(crate) fn new(seed: u64) -> Self {
        Self::of(Rig::new(seed))
    }

    pub(crate) fn of(rig: Rig) -> Self {
        let mut options = PushOptions::new(rig.options.device);
        options.part_len_bytes = 16 * 1024;
        let source = rig.temp.path().join("source");
        fs::create_dir(&source).unwrap();
        Self { rig, options, source }
    }

    pub(crate) fn push(&self) -> Result<PushReport, BackupError> {
        self.push_to(b"")
    }

    fn push_to(&self, to: &[u8]) -> Result<PushReport, BackupError> {
        let Rig { client, folder, .. } = &self.rig;
        byteback_backup::push(client, folder, to, &self.source, &self.options, &Silent)
    }

    /// The server's content at a path, as files.
    pub(crate) fn fetched(&self, path: &[u8]) -> PathBuf {
        let target = tempfile::tempdir_in(self.rig.temp.path()).unwrap().keep();
        let Rig { client, folder, .. } = &self.rig;
        let options = RestoreOptions::default();
        let report = byteback_backup::restore(
            client,
            folder,
            SnapshotSpec::default(),
            path,
            &target,
            &options,
            &Silent,
        )
        .unwrap();
        assert!(report.is_complete(), "{:?}", report.not_restored);
        target
    }

    pub(crate) fn keep_state(&mut self) {
        let dir = RealDir::create(self.rig.temp.path().join("state")).unwrap();
        self.options.state = Some(Arc::new(dir));
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.source.join(name)
    }
}

pub(crate) fn set_mtime(path: &Path, ns: i64) {
    let file = File::open(path).unwrap();
    tree::set_times(&file, SetTime::Keep, SetTime::To(ns.into())).unwrap();
}

pub(crate) fn mtime_ns(path: &Path) -> i64 {
    let metadata = fs::symlink_metadata(path).unwrap();
    metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec()
}

#[test]
fn push_of_random_changing_trees_leaves_the_server_equal() {
    let seed = seed(0x9054);
    for (round, delta) in [
        DeltaChoice::Auto,
        DeltaChoice::Hash,
        DeltaChoice::SkyF,
        DeltaChoice::SkyC,
        DeltaChoice::Full,
    ]
    .into_iter()
    .enumerate()
    {
        let mut random = SplitMix64::new(seed + round as u64);
        let mut push = Push::new(seed);
        push.options.delete = true;
        push.options.delta = delta;
        for _ in 0..6 {
            for _ in 0..1 + random.next_u64() % 25 {
                change(&mut random, &push.source);
            }
            push.push().unwrap();
            assert_same(&push.source, &push.fetched(b""));
            let again = push.push().unwrap();
            assert!(!again.has_changes() && again.seq.is_none(), "{again:?}");
        }
    }
}

#[test]
fn without_delete_and_with_excludes_it_is_as_a_naive_copy_says() {
    let seed = seed(0x9055);
    let mut random = SplitMix64::new(seed);
    let mut push = Push::new(seed);
    // The expected state of the server, kept as files.
    let model = push.rig.temp.path().join("model");
    fs::create_dir(&model).unwrap();
    for round in 0..14 {
        for _ in 0..1 + random.next_u64() % 15 {
            change(&mut random, &push.source);
        }
        push.options.delete = round % 2 == 1;
        let excludes: &[&str] = match round % 3 {
            0 => &[],
            1 => &["n1", "/n2/n*"],
            _ => &["n3/", "!n3/n4", "n5"],
        };
        push.options.exclude = Exclude::new(excludes).unwrap();
        let report = push.push().unwrap();
        copy_naively(&push.source, &model, Path::new(""), &push.options);
        // Contents alone: links and times of remaining files are tested elsewhere.
        let (wanted, found) = (contents(&model), contents(&push.fetched(b"")));
        assert_eq!(found, wanted, "round {round} {report:?}");
    }
}

/// Paths with their contents.
fn contents(root: &Path) -> Vec<(PathBuf, String, Vec<u8>)> {
    let of = |path: PathBuf| {
        let full = root.join(&path);
        let kind = fs::symlink_metadata(&full).unwrap().file_type();
        let content = match kind.is_file() {
            true => fs::read(&full).unwrap(),
            false => Vec::new(),
        };
        (path, format!("{kind:?}"), content)
    };
    let mut all: Vec<_> = paths(root).into_iter().map(of).collect();
    all.sort();
    all
}

/// The expected effect of a push, one name at a time.
fn copy_naively(source: &Path, model: &Path, below: &Path, options: &PushOptions) {
    let names = |root: &Path| -> BTreeSet<_> {
        let listed = fs::read_dir(root.join(below)).unwrap();
        listed.map(|entry| entry.unwrap().file_name()).collect()
    };
    let is_excluded = |root: &Path, path: &Path| {
        let is_directory = fs::symlink_metadata(root.join(path)).unwrap().is_dir();
        let bytes = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str());
        options.exclude.is_excluded(bytes, is_directory)
    };
    // Returns whether nothing is there now.
    let remove = |path: &Path| match fs::symlink_metadata(model.join(path)) {
        Ok(metadata) if metadata.is_dir() => remove_naively(model, path, options),
        Ok(_) => fs::remove_file(model.join(path)).is_ok(),
        Err(_) => true,
    };
    for name in names(model).difference(&names(source)) {
        let path = below.join(name);
        if options.delete && !is_excluded(model, &path) {
            remove(&path);
        }
    }
    for name in names(source) {
        let path = below.join(&name);
        if is_excluded(source, &path) {
            continue;
        }
        let (from, to) = (source.join(&path), model.join(&path));
        let kind = fs::symlink_metadata(&from).unwrap().file_type();
        let there = fs::symlink_metadata(&to).ok().map(|metadata| metadata.file_type());
        if there.is_some_and(|there| there.is_dir())
            && !kind.is_dir()
            && (!options.delete || holds_excluded(model, &path, options))
        {
            continue;
        }
        if there.is_some_and(|there| !there.is_dir() || !kind.is_dir()) {
            remove(&path);
        }
        if kind.is_dir() {
            fs::create_dir_all(&to).unwrap();
            copy_naively(source, model, &path, options);
        } else if kind.is_file() {
            fs::write(&to, fs::read(&from).unwrap()).unwrap();
        } else if kind.is_symlink() {
            symlink(fs::read_link(&from).unwrap(), &to).unwrap();
        } else {
            let (mode, fifo) = (rustix::fs::Mode::RUSR, rustix::fs::FileType::Fifo);
            rustix::fs::mknodat(rustix::fs::CWD, &to, fifo, mode, 0).unwrap();
        }
    }
}

/// Removes everything in a directory that is not excluded, and the directory if it is empty then;
/// returns whether it was.
fn remove_naively(model: &Path, path: &Path, options: &PushOptions) -> bool {
    let is_kept = holds_excluded(model, path, options);
    if !is_kept {
        fs::remove_dir_all(model.join(path)).unwrap();
        return true;
    }
    for entry in fs::read_dir(model.join(path)).unwrap() {
        let entry = entry.unwrap();
        let below = path.join(entry.file_name());
        let is_directory = entry.file_type().unwrap().is_dir();
        let bytes = std::os::unix::ffi::OsStrExt::as_bytes(below.as_os_str());
        match is_directory {
            _ if options.exclude.is_excluded(bytes, is_directory) => {}
            true => drop(remove_naively(model, &below, options)),
            false => fs::remove_file(entry.path()).unwrap(),
        }
    }
    false
}

/// Whether a directory or anything below it is excluded.
fn holds_excluded(model: &Path, path: &Path, options: &PushOptions) -> bool {
    let is_directory = fs::symlink_metadata(model.join(path)).unwrap().is_dir();
    let bytes = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str());
    if options.exclude.is_excluded(bytes, is_directory) || !is_directory {
        return options.exclude.is_excluded(bytes, is_directory);
    }
    let mut names = fs::read_dir(model.join(path)).unwrap();
    names.any(|entry| holds_excluded(model, &path.join(entry.unwrap().file_name()), options))
}

#[test]
fn what_is_excluded_outlives_the_directory_that_it_is_in() {
    let mut push = Push::new(3);
    for name in [
        "gone/keep.log",
        "gone/other",
        "gone/deep/down/keep.log",
        "gone/deep/x/y",
        "replaced/keep.log",
    ] {
        fs::create_dir_all(push.file(name).parent().unwrap()).unwrap();
        fs::write(push.file(name), name).unwrap();
    }
    push.push().unwrap();
    fs::remove_dir_all(push.file("gone")).unwrap();
    fs::remove_dir_all(push.file("replaced")).unwrap();
    fs::write(push.file("replaced"), "now a file").unwrap();
    push.options.delete = true;
    push.options.exclude = Exclude::new(["*.log"]).unwrap();
    let report = push.push().unwrap();
    assert_eq!((report.removed, report.unsaved.len()), (2, 1), "{report:?}");
    let left: Vec<_> = contents(&push.fetched(b""))
        .into_iter()
        .map(|(path, ..)| path)
        .collect();
    let wanted = [
        "",
        "gone",
        "gone/deep",
        "gone/deep/down",
        "gone/deep/down/keep.log",
        "gone/keep.log",
    ];
    assert_eq!(left[..6], wanted.map(PathBuf::from));
    assert_eq!(left[6..], ["replaced", "replaced/keep.log"].map(PathBuf::from));
    // No longer excluded, all of it goes.
    push.options.exclude = Exclude::default();
    assert!(push.push().unwrap().is_complete());
    assert_same(&push.source, &push.fetched(b""));
}

#[test]
fn a_change_in_a_large_file_costs_about_the_change() {
    let mut push = Push::new(1);
    // Independent of the speed of this link.
    push.options.delta = DeltaChoice::Rsync;
    let image = push.file("image");
    fs::write(&image, noise(1, 8 << 20)).unwrap();
    let first = push.push().unwrap();
    assert!(first.wire.sent > 8 << 20);
    let mut bytes = fs::read(&image).unwrap();
    bytes.splice(4_000_000..4_000_000, *b"inserted");
    fs::write(&image, &bytes).unwrap();
    let second = push.push().unwrap();
    assert!(second.wire.sent < 40_000, "{second:?}");
    assert!(second.found_bytes > 8_000_000 && second.files_changed == 1);
    assert_eq!(fs::read(push.fetched(b"").join("image")).unwrap(), bytes);
}

#[test]
fn a_dry_run_says_what_would_be_done_and_does_nothing() {
    let mut push = Push::new(2);
    push.options.delete = true;
    let mut random = SplitMix64::new(2);
    for _ in 0..60 {
        change(&mut random, &push.source);
    }
    push.push().unwrap();
    for _ in 0..60 {
        change(&mut random, &push.source);
    }
    push.keep_state();
    let (seq, received) = (push.rig.seq(), push.rig.server_bytes().0);
    let reported = Mutex::new(Vec::new());
    let monitor = |reported: &Mutex<Vec<(String, Change)>>, event: &Event<'_>| {
        if let Event::Changed { path, change } = event {
            reported.lock().unwrap().push((path.to_string(), *change));
        }
    };
    let run = |push: &Push| {
        let listener = RecordingMonitor::new(|event, _| monitor(&reported, event));
        let Rig { client, folder, .. } = &push.rig;
        let report = byteback_backup::push(client, folder, b"", &push.source, &push.options, &listener).unwrap();
        drop(listener);
        (report, std::mem::take(&mut *reported.lock().unwrap()))
    };
    push.options.dry_run = true;
    let (would, would_tell) = run(&push);
    assert_eq!(push.rig.seq(), seq);
    assert!(push.rig.server_bytes().0 - received < 20_000, "only questions");
    assert!(
        fs::read_dir(push.rig.temp.path().join("state"))
            .unwrap()
            .next()
            .is_none()
    );
    push.options.dry_run = false;
    let (did, told_then) = run(&push);
    assert_eq!(would_tell, told_then);
    let counts = |report: &PushReport| {
        [
            report.files_new,
            report.files_changed,
            report.dirs_new,
            report.others_new,
            report.attributes_changed,
            report.removed,
            report.changed_bytes,
        ]
    };
    assert_eq!(counts(&would), counts(&did));
    assert!(did.has_changes());
    // A missing folder is not made.
    let folder: FolderName = "other".parse().unwrap();
    push.options.dry_run = true;
    let report = byteback_backup::push(&push.rig.client, &folder, b"", &push.source, &push.options, &Silent).unwrap();
    assert!(report.folder_is_new && push.rig.client.folder(&folder).is_err());
    push.options.dry_run = false;
    let report =
        byteback_backup::push(&push.rig.client, &folder, b"a/b", &push.source, &push.options, &Silent).unwrap();
    assert!(report.folder_is_new && report.seq == Some(1), "{report:?}");
}

#[test]
fn push_finds_changes_of_equal_time_and_length_only_by_content() {
    let mut push = Push::new(3);
    let file = push.file("file");
    fs::write(&file, noise(3, 3_000_000)).unwrap();
    set_mtime(&file, 1_000);
    fs::write(push.file("same"), noise(4, 3_000_000)).unwrap();
    push.push().unwrap();
    OpenOptions::new()
        .write(true)
        .open(&file)
        .unwrap()
        .write_all_at(b"x", 1_234_567)
        .unwrap();
    set_mtime(&file, 1_000);
    assert!(!push.push().unwrap().has_changes());
    push.options.checksum = true;
    let report = push.push().unwrap();
    assert_eq!((report.files_changed, report.unchanged), (1, 2), "{report:?}");
    assert_same(&push.source, &push.fetched(b""));
    // The other way round: another time, the same content.
    set_mtime(&file, 2_000);
    let report = push.push().unwrap();
    assert_eq!((report.files_changed, report.attributes_changed), (0, 1), "{report:?}");
    assert!(report.wire.sent < 10_000);
    assert_same(&push.source, &push.fetched(b""));
}

#[test]
fn push_puts_files_and_directories_where_they_belong() {
    let push = Push::new(4);
    fs::write(push.file("f"), "f").unwrap();
    push.push_to(b"a/b").unwrap();
    assert_eq!(fs::read_to_string(push.fetched(b"a/b").join("f")).unwrap(), "f");
    // The content again, whatever slashes there are.
    assert!(!push.push_to(b"/a/b/").unwrap().has_changes());
    let push_file = |to: &[u8]| {
        let Rig { client, folder, .. } = &push.rig;
        byteback_backup::push(client, folder, to, &push.file("f"), &push.options, &Silent)
    };
    push_file(b"").unwrap();
    push_file(b"new name").unwrap();
    push_file(b"a").unwrap();
    push_file(b"made/").unwrap();
    push_file(b"deep/er/name").unwrap();
    let all = push.fetched(b"");
    let wanted = ["f", "new name", "a/f", "a/b/f", "made/f", "deep/er/name"];
    for path in wanted {
        assert_eq!(fs::read_to_string(all.join(path)).unwrap(), "f", "{path}");
    }
    let files = seen(&all).into_keys().filter(|path| all.join(path).is_file());
    assert_eq!(files.count(), wanted.len());
    for to in [&b"f/x/y"[..], b"a/../b", b"a//b"] {
        let error = push_file(to).unwrap_err();
        assert!(matches!(error, BackupError::BadDestination { .. }), "{error:?}");
    }
    let error = push.push_to(b"f").unwrap_err();
    assert!(matches!(error, BackupError::BadDestination { .. }), "{error:?}");
}

#[test]
fn the_folder_of_a_tracked_tree_is_refused() {
    let push = Push::new(5);
    push.rig.with_file(b"backed up");
    let seq = push.rig.seq();
    let error = push.push().unwrap_err();
    assert!(matches!(error, BackupError::BackedUpFolder { .. }), "{error:?}");
    assert_eq!(push.rig.seq(), seq);
}

#[test]
fn push_that_comes_second_changes_nothing() {
    let push = Push::new(6);
    let file = push.file("file");
    fs::write(&file, noise(6, 100_000)).unwrap();
    push.push().unwrap();
    fs::write(&file, noise(7, 100_001)).unwrap();
    let other = push.rig.temp.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("file"), "other").unwrap();
    let Rig { client, folder, .. } = &push.rig;
    // The other one pushes while this one is on its way.
    let listener = RecordingMonitor::new(|event, _| {
        if let Event::Changed {
            change: Change::Content,
            ..
        } = event
        {
            byteback_backup::push(client, folder, b"", &other, &push.options, &Silent).unwrap();
        }
    });
    let error = byteback_backup::push(client, folder, b"", &push.source, &push.options, &listener).unwrap_err();
    assert!(matches!(error, BackupError::ChangedMeanwhile { .. }), "{error:?}");
    assert_same(&other, &push.fetched(b""));
    push.push().unwrap();
    assert_same(&push.source, &push.fetched(b""));
    // Two first pushes: the folder is not replaced by the second.
    let empty: FolderName = "empty".parse().unwrap();
    let once = AtomicU64::new(0);
    let listener = RecordingMonitor::new(|event, _| {
        if matches!(event, Event::Changed { .. }) && once.fetch_add(1, Ordering::SeqCst) == 0 {
            byteback_backup::push(client, &empty, b"", &other, &push.options, &Silent).unwrap();
        }
    });
    byteback_backup::push(client, &empty, b"", &push.source, &push.options, &listener).unwrap_err();
    assert_eq!(client.folder(&empty).unwrap().seq, 1);
}

#[test]
fn push_that_comes_second_into_a_new_folder_is_reported() {
    let push = Push::new(16);
    fs::write(push.file("mine"), "mine").unwrap();
    let theirs = push.rig.temp.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    fs::write(theirs.join("theirs"), "theirs").unwrap();
    // While the second one compares, the first one has all of it.
    let is_pushed = AtomicBool::new(false);
    let Rig { client, folder, .. } = &push.rig;
    let listener = RecordingMonitor::new(|event, _| {
        if matches!(event, Event::Phase(Phase::Committing)) && !is_pushed.swap(true, Ordering::Relaxed) {
            byteback_backup::push(client, folder, b"", &theirs, &push.options, &Silent).unwrap();
        }
    });
    let refused = byteback_backup::push(client, folder, b"", &push.source, &push.options, &listener).unwrap_err();
    assert!(matches!(refused, BackupError::ChangedMeanwhile { .. }), "{refused:?}");
    drop(listener);
    assert!(push.push().unwrap().is_complete());
    assert_eq!(paths(&push.fetched(b"")), ["", "mine", "theirs"].map(PathBuf::from));
}

#[test]
fn push_to_one_hard_link_leaves_unpushed_names_their_content() {
    let mut push = Push::new(5);
    fs::create_dir(push.file("in")).unwrap();
    fs::create_dir(push.file("out")).unwrap();
    for name in ["linked", "touched", "same"] {
        fs::write(push.file(&format!("in/{name}")), noise(1, 100_000)).unwrap();
        fs::hard_link(push.file(&format!("in/{name}")), push.file(&format!("out/{name}"))).unwrap();
    }
    // Both names inside.
    fs::write(push.file("in/pair"), noise(2, 100_000)).unwrap();
    fs::hard_link(push.file("in/pair"), push.file("in/pair-too")).unwrap();
    assert!(push.push().unwrap().is_complete());
    let all = push.source.clone();
    let old = seen(&push.fetched(b"out"));

    // Still one inode here; and one that an editor replaced.
    fs::write(push.file("in/linked"), noise(3, 100_000)).unwrap();
    fs::remove_file(push.file("in/touched")).unwrap();
    fs::write(push.file("in/touched"), noise(1, 100_000)).unwrap();
    fs::write(push.file("in/pair"), noise(4, 100_000)).unwrap();
    push.source = all.join("in");
    let report = push.push_to(b"in").unwrap();
    assert!(report.is_complete());
    assert_same(&all.join("in"), &push.fetched(b"in"));
    let pulled = push.fetched(b"");
    assert_eq!(seen(&pulled.join("out")), old, "what was not pushed");
    let inode = |path: &str| fs::metadata(pulled.join(path)).unwrap().ino();
    assert_eq!(
        inode("in/same"),
        inode("out/same"),
        "what did not change stays one file"
    );
    assert_eq!(inode("in/pair"), inode("in/pair-too"));
    assert_eq!(push.push_to(b"in").unwrap().seq, None, "nothing is left to do");

    // One file alone, and by its content alone.
    push.options.checksum = true;
    let same = all.join("in/same");
    let time = mtime_ns(&same);
    fs::write(&same, noise(5, 100_000)).unwrap();
    set_mtime(&same, time);
    push.source = same;
    push.push_to(b"in/").unwrap();
    assert_eq!(
        fs::read(push.fetched(b"in/same").join("same")).unwrap(),
        noise(5, 100_000)
    );
    assert_eq!(seen(&push.fetched(b"out")), old);
    push.options.checksum = false;

    // Everything at once: they are one file again where they are one here.
    push.source = all;
    assert!(push.push().unwrap().is_complete());
    assert_same(&push.source, &push.fetched(b""));
    // An excluded name keeps its content, too; and so does one that is gone here without removing.
    fs::write(push.file("in/linked"), noise(6, 100_000)).unwrap();
    fs::remove_file(push.file("in/pair-too")).unwrap();
    fs::write(push.file("in/pair"), noise(7, 100_000)).unwrap();
    push.options.exclude = Exclude::new(["/out/"]).unwrap();
    assert!(push.push().unwrap().is_complete());
    let pulled = push.fetched(b"");
    assert_eq!(fs::read(pulled.join("in/linked")).unwrap(), noise(6, 100_000));
    assert_eq!(fs::read(pulled.join("out/linked")).unwrap(), noise(3, 100_000));
    assert_eq!(fs::read(pulled.join("in/pair")).unwrap(), noise(7, 100_000));
    assert_eq!(fs::read(pulled.join("in/pair-too")).unwrap(), noise(4, 100_000));
}

#[test]
fn push_too_large_leaves_the_server_room_and_works_on_retry() {
    let mut push = Push::new(6);
    push.keep_state();
    fs::write(push.file("small"), b"here before").unwrap();
    assert!(push.push().unwrap().is_complete());
    let segments = || {
        let files = fs::read_dir(push.rig.data().join("segments")).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum::<u64>()
    };
    let before = segments();
    fs::write(push.file("large"), noise(1, 3_000_000)).unwrap();
    push.rig.room.store(60, Ordering::SeqCst);
    let BackupError::Server(error) = push.push().unwrap_err() else {
        panic!("it was not the server");
    };
    assert_eq!(error.kind, byteback_client::ServerErrorKind::Full);
    // The staged parts lie in the segment that goes on being written.
    push.rig.room.store(-1, Ordering::SeqCst);
    push.rig.restart_server(byteback_store::StoreLimits::default());
    assert!(segments() <= before + 1_100_000, "{} {before}", segments());
    let report = push.push().unwrap();
    // Nothing of it had waited.
    assert!(report.is_complete() && !report.resumed);
    assert_same(&push.source, &push.fetched(b""));
}

#[test]
fn push_and_pull_of_3000_nested_directories_take_linear_time() {
    const LEVELS: usize = 3000;
    let push = Push::new(7);
    let make = |source: &Path, levels: usize| {
        let root = File::open(source).unwrap();
        let mut way = tree::Descent::new(&root).unwrap();
        let mut path = Vec::new();
        for level in 0..levels {
            let at = way.open(&path).unwrap();
            rustix::fs::mkdirat(&at, "d", rustix::fs::Mode::RWXU).unwrap();
            let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
            if level % 10 == 0 {
                tree::open_at(&at, "file".as_ref(), flags, rustix::fs::Mode::RWXU).unwrap();
            }
            if !path.is_empty() {
                path.push(b'/');
            }
            path.push(b'd');
        }
    };
    let target = push.rig.temp.path().join("pulled");
    let Rig { client, folder, .. } = &push.rig;
    let exclude = Exclude::new(["*.o"]).unwrap();
    let time = |levels: usize| {
        let started = std::time::Instant::now();
        make(&push.source, levels);
        assert!(push.push().unwrap().is_complete());
        let mut options = PullOptions {
            exclude: exclude.clone(),
            ..PullOptions::default()
        };
        let report = byteback_backup::pull(client, folder, b"", &target, &options, &Silent).unwrap();
        assert!(report.restored.is_complete(), "{:?}", report.restored.not_restored);
        assert_eq!(report.new, levels as u64 + (levels as u64).div_ceil(10));
        options.dry_run = true;
        assert!(
            !byteback_backup::pull(client, folder, b"", &target, &options, &Silent)
                .unwrap()
                .has_changes()
        );
        // All of it goes, at both ends, with a pattern that has to be looked for in all of it.
        tree_remove(&push.source.join("d"));
        let delete = PushOptions {
            delete: true,
            exclude: exclude.clone(),
            ..push.options.clone()
        };
        assert_eq!(
            byteback_backup::push(client, folder, b"", &push.source, &delete, &Silent)
                .unwrap()
                .removed,
            2
        );
        (options.dry_run, options.delete) = (false, true);
        assert_eq!(
            byteback_backup::pull(client, folder, b"", &target, &options, &Silent)
                .unwrap()
                .restored
                .removed,
            2
        );
        fs::remove_file(push.file("file")).ok();
        started.elapsed()
    };
    let (short, long) = (time(LEVELS / 8), time(LEVELS));
    println!("{short:?} for {} levels, {long:?} for {LEVELS}", LEVELS / 8);
    assert!(long < short * 32 + Duration::from_secs(2), "{short:?} {long:?}");
}

/// Removes a directory that may be too deep for the standard library.
fn tree_remove(dir: &Path) {
    let done = std::process::Command::new("rm").arg("-rf").arg(dir).status().unwrap();
    assert!(done.success());
    let file = dir.with_file_name("file");
    if file.exists() {
        fs::remove_file(file).unwrap();
    }
}

#[test]
fn push_sends_a_changing_file_as_one_moment_or_reports_it() {
    let push = Push::new(8);
    let (steady, restless) = (push.file("a steady"), push.file("restless"));
    fs::write(&steady, noise(1, 50_000)).unwrap();
    fs::write(&restless, noise(2, 3_000_000)).unwrap();
    let once = AtomicU64::new(0);
    let write_at = |offset| {
        let file = OpenOptions::new().write(true).open(&restless).unwrap();
        file.write_all_at(b"meanwhile", offset).unwrap();
    };
    let Rig { client, folder, .. } = &push.rig;
    // Once: the second reading is of one moment.
    let listener = RecordingMonitor::new(|event, _| {
        if matches!(event, Event::BytesRead(_)) && once.fetch_add(1, Ordering::SeqCst) == 2 {
            write_at(10);
        }
    });
    let report = byteback_backup::push(client, folder, b"", &push.source, &push.options, &listener).unwrap();
    assert!(report.is_complete(), "{report:?}");
    assert_same(&push.source, &push.fetched(b""));
    let before = push.fetched(b"");
    // Always: it stays as it was, everything else is sent.
    fs::write(&steady, noise(3, 50_000)).unwrap();
    write_at(1_000_000);
    let listener = RecordingMonitor::new(|event, _| {
        if matches!(event, Event::BytesRead(_)) {
            write_at(once.fetch_add(1, Ordering::SeqCst));
        }
    });
    let report = byteback_backup::push(client, folder, b"", &push.source, &push.options, &listener).unwrap();
    assert_eq!(report.unsaved.len(), 1, "{report:?}");
    assert_eq!(report.unsaved[0].path.to_string(), "restless");
    let after = push.fetched(b"");
    assert_eq!(
        fs::read(after.join("restless")).unwrap(),
        fs::read(before.join("restless")).unwrap()
    );
    assert_eq!(fs::read(after.join("a steady")).unwrap(), fs::read(&steady).unwrap());
}

#[test]
fn push_removes_nothing_it_cannot_list() {
    if rustix::process::geteuid().is_root() {
        // Root may list everything; then a directory that goes away in the middle stands for it.
        let mut push = Push::new(9);
        push.options.delete = true;
        fs::create_dir(push.file("d")).unwrap();
        fs::write(push.file("d/f"), "f").unwrap();
        push.push().unwrap();
        let Rig { client, folder, .. } = &push.rig;
        set_mtime(&push.file("d"), 5);
        let listener = RecordingMonitor::new(|event, _| {
            if let Event::Changed { path, .. } = event
                && path.as_bytes() == b"d"
            {
                fs::remove_dir_all(push.file("d")).unwrap();
            }
        });
        let report = byteback_backup::push(client, folder, b"", &push.source, &push.options, &listener).unwrap();
        assert_eq!(report.unsaved.len(), 1, "{report:?}");
        assert_eq!(fs::read_to_string(push.fetched(b"").join("d/f")).unwrap(), "f");
    }
}

#[test]
fn an_interrupted_push_goes_on_with_what_the_server_has() {
    let seed = seed(0x9056);
    let mut push = Push::of(Rig::with(seed, impatient()));
    push.keep_state();
    fs::create_dir(push.file("dir")).unwrap();
    fs::write(push.file("dir/small"), "small").unwrap();
    fs::write(push.file("large"), noise(seed, 3 << 20)).unwrap();
    fs::write(push.file("z last"), "last").unwrap();
    push.rig.cutter.cut_after(2 << 20, true);
    push.push().unwrap_err();
    push.rig.cutter.heal();
    // And again, a little further.
    push.rig.cutter.cut_after(1 << 19, true);
    push.push().unwrap_err();
    push.rig.cutter.heal();
    let report = push.push().unwrap();
    assert!(report.resumed && report.reused_bytes > 9 << 18, "{report:?}");
    assert!(report.wire.sent < 1 << 20, "{report:?}");
    assert_same(&push.source, &push.fetched(b""));
    assert!(!push.push().unwrap().has_changes());
    assert!(
        fs::read_dir(push.rig.temp.path().join("state"))
            .unwrap()
            .next()
            .is_none()
    );
}

#[test]
fn push_resumes_and_compares_with_what_others_did_meanwhile() {
    let mut push = Push::of(Rig::with(12, impatient()));
    push.keep_state();
    fs::write(push.file("file"), "mine").unwrap();
    push.push().unwrap();
    fs::write(push.file("large"), noise(12, 3 << 20)).unwrap();
    push.rig.cutter.cut_after(2 << 20, true);
    push.push().unwrap_err();
    push.rig.cutter.heal();
    let other = push.rig.temp.path().join("file");
    fs::write(&other, "somebody else's").unwrap();
    let Rig { client, folder, .. } = &push.rig;
    byteback_backup::push(
        client,
        folder,
        b"",
        &other,
        &PushOptions::new(push.options.device),
        &Silent,
    )
    .unwrap();
    let report = push.push().unwrap();
    assert!(report.resumed && report.reused_bytes > 1 << 20, "{report:?}");
    assert_same(&push.source, &push.fetched(b""));
    assert!(!push.push().unwrap().has_changes());
}

#[test]
fn push_resumes_a_file_searched_in_vain_and_proves_it_once() {
    for choice in [DeltaChoice::Webr, DeltaChoice::Cdc, DeltaChoice::Rsync] {
        let mut push = Push::of(Rig::with(1, impatient()));
        push.keep_state();
        push.options.delta = choice;
        push.options.part_len_bytes = 64 * 1024;
        let large = push.file("large");
        fs::write(&large, noise(1, 1 << 20)).unwrap();
        push.push().unwrap();
        fs::write(&large, noise(2, 1_100_000)).unwrap();
        push.rig.cutter.cut_after(600_000, true);
        push.push().unwrap_err();
        push.rig.cutter.heal();
        let report = push.push().unwrap();
        assert!(report.resumed && report.found_bytes == 0, "{choice:?}: {report:?}");
        assert_same(&push.source, &push.fetched(b""));
    }
}

#[test]
fn push_resumed_sends_later_changes_as_they_are_now() {
    let seed = seed(0x9057);
    let mut random = SplitMix64::new(seed);
    for round in 0..6 {
        let mut push = Push::of(Rig::with(seed, impatient()));
        push.keep_state();
        push.options.delete = true;
        for _ in 0..40 {
            change(&mut random, &push.source);
        }
        push.push().unwrap();
        fs::write(push.file("large"), noise(random.next_u64(), 400_000)).unwrap();
        for _ in 0..4 {
            for _ in 0..random.next_u64() % 8 {
                change(&mut random, &push.source);
            }
            push.rig.cutter.cut_after((random.next_u64() % 500_000) as i64, true);
            let _ = push.push();
            push.rig.cutter.heal();
            if random.next_u64().is_multiple_of(4) {
                // Another client pushes in between.
                let other = push.rig.temp.path().join("large");
                fs::write(&other, noise(random.next_u64(), 1000)).unwrap();
                let options = PushOptions::new(push.options.device);
                let Rig { client, folder, .. } = &push.rig;
                byteback_backup::push(client, folder, b"", &other, &options, &Silent).unwrap();
            }
        }
        let mut report = push.push();
        if let Err(BackupError::ChangedMeanwhile { .. }) = report {
            report = push.push();
        }
        report.unwrap();
        assert_same(&push.source, &push.fetched(b""));
        assert!(!push.push().unwrap().has_changes(), "round {round}");
        assert!(mtime_ns(&push.source) > 0);
    }
}

/// A clock on which only sleeping takes time.
#[derive(Default)]
struct SleepClock(AtomicU64);

impl Clock for SleepClock {
    fn now_ns(&self) -> i64 {
        RealClock.now_ns()
    }

    fn monotonic_ns(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn sleep(&self, duration: Duration) {
        self.0.fetch_add(duration.as_nanos() as u64, Ordering::SeqCst);
    }
}

#[test]
fn push_and_pull_stay_within_the_rate_limit() {
    const RATE: u64 = 100_000;
    let clock = Arc::new(SleepClock::default());
    let limited = ClientOptions {
        bytes_per_second_max: Some(RATE),
        clock: Arc::clone(&clock) as Arc<dyn Clock>,
        ..impatient()
    };
    let push = Push::of(Rig::with(11, limited));
    fs::write(push.file("file"), noise(11, 3_000_000)).unwrap();
    let elapsed = |started: u64| clock.monotonic_ns() - started;
    let check = |wire: u64, took_ns: u64| {
        assert!(wire > 3_000_000);
        let paid = wire as f64 / RATE as f64;
        let took = took_ns as f64 / 1e9;
        assert!(
            took > paid - 0.1 && took < paid * 1.02 + 1.0,
            "{wire} bytes in {took} s, {paid} s wanted"
        );
    };
    let started = clock.monotonic_ns();
    let report = push.push().unwrap();
    check(report.wire.total(), elapsed(started));
    let started = clock.monotonic_ns();
    let target = push.rig.temp.path().join("target");
    let Rig { client, folder, .. } = &push.rig;
    let report = byteback_backup::pull(client, folder, b"", &target, &PullOptions::default(), &Silent).unwrap();
    check(report.restored.wire.total(), elapsed(started));
    assert_same(&push.source, &target);
}

/// ext4 keeps times up to the year 2446; 64 bits of nanoseconds end in 2262.
#[test]
fn far_times_that_differ_are_a_change_to_a_push() {
    let (year_2300, year_2400): (i128, i128) = (10_413_792_000_123_456_789, 13_569_465_600_987_654_321);
    let push = Push::new(63);
    let path = push.file("far");
    let write = |text: &str, mtime_ns: i128| {
        fs::write(&path, text).unwrap();
        let file = File::open(&path).unwrap();
        tree::set_times(&file, SetTime::Keep, SetTime::To(mtime_ns)).unwrap();
    };
    write("one", year_2300);
    push.push().unwrap();
    assert!(!push.push().unwrap().has_changes());
    // Of the same length: only the time says that the content differs.
    write("two", year_2400);
    assert_eq!(push.push().unwrap().files_changed, 1);
    let there = push.fetched(b"").join("far");
    assert_eq!(fs::read(&there).unwrap(), b"two");
    let found = tree::stat_fd(File::open(&there).unwrap()).unwrap();
    assert_eq!(found.mtime_ns, year_2400);
}

/// Longer than servers sum.
const HUGE: u64 = (1 << 40) + (1 << 20);

#[test]
fn a_sparse_file_of_more_than_a_tib_is_compared_by_content() {
    let mut push = Push::new(61);
    push.options.checksum = true;
    let path = push.file("huge");
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    file.set_len(HUGE).unwrap();
    let places = [5_000_000, 1 << 39, HUGE - 5000];
    for place in places {
        file.write_all_at(&noise(place, 5000), place).unwrap();
    }
    push.push().unwrap();
    assert!(!push.push().unwrap().has_changes());
    // Data where there was data, data in a hole, and zeros in place of data; the time says nothing.
    let before = mtime_ns(&path);
    for (at, bytes) in [
        ((1 << 39) + 100, &b"changed"[..]),
        (1 << 38, b"new"),
        (5_000_000, &[0; 100]),
    ] {
        file.write_all_at(bytes, at).unwrap();
        set_mtime(&path, before);
        assert_eq!(push.push().unwrap().files_changed, 1, "{at}");
        assert!(!push.push().unwrap().has_changes(), "{at}");
    }
    let fetched = File::open(push.fetched(b"").join("huge")).unwrap();
    assert_eq!(fetched.metadata().unwrap().len(), HUGE);
    for place in places.into_iter().chain([1 << 38, 0]) {
        let (mut here, mut there) = ([0; 5000], [0; 5000]);
        file.read_exact_at(&mut here, place).unwrap();
        fetched.read_exact_at(&mut there, place).unwrap();
        assert!(here == there, "{place}");
    }
}

#[test]
fn a_hole_that_was_punched_over_zeros_is_a_hole_at_the_server() {
    for delta in [
        DeltaChoice::Rsync,
        DeltaChoice::Hash,
        DeltaChoice::Webr,
        DeltaChoice::Cdc,
    ] {
        let mut push = Push::new(62);
        push.options.delta = delta;
        let path = push.file("image");
        let mut bytes = noise(1, 3 << 20);
        bytes[1 << 20..2 << 20].fill(0);
        fs::write(&path, &bytes).unwrap();
        push.push().unwrap();
        let data_of = |dir: PathBuf| {
            let file = File::open(dir.join("image")).unwrap();
            let ranges = tree::data_ranges(&file, 0, 3 << 20).map(Result::unwrap);
            ranges.map(|range| range.end - range.start).sum::<u64>()
        };
        assert_eq!(
            data_of(push.fetched(b"")),
            3 << 20,
            "{delta:?}: zeros that were written are bytes"
        );
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        tree::punch_hole(&file, 1 << 20, 1 << 20).unwrap();
        file.write_all_at(b"changed", 100).unwrap();
        drop(file);
        push.push().unwrap();
        assert_eq!(data_of(push.fetched(b"")), 2 << 20, "{delta:?}");
        assert_same(&push.source, &push.fetched(b""));
    }
}
