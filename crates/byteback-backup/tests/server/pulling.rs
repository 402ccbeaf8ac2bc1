//! Pulls from a real server into real directories.

use byteback_backup::is_partial_name;
use byteback_backup::{BackupError, Change, Event, Exclude, Monitor, PullOptions, PullReport, PushOptions, Silent};
use byteback_host::random::{SplitMix64, noise};
use byteback_host::tree::{self, SetTime};
use byteback_testkit::clients::impatient;
use byteback_testkit::listener::RecordingMonitor;
use byteback_testkit::local_tree::{assert_same, change, paths, seen};
use byteback_testkit::rig::Rig;
use byteback_testkit::seed::seed;
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

struct Pull {
    rig: Rig,
    /// The pushed directory.
    source: PathBuf,
    target: PathBuf,
    options: PullOptions,
}

impl Pull {
    fn new(seed: u64) -> Self {
        Self::of(Rig::new(seed))
    }

    fn of(rig: Rig) -> Self {
        let [source, target] = ["source", "target"].map(|name| rig.temp.path().join(name));
        fs::create_dir(&source).unwrap();
        Self {
            rig,
            source,
            target,
            options: PullOptions::default(),
        }
    }

    fn push(&self) {
        let options = PushOptions {
            delete: true,
            ..PushOptions::new(self.rig.options.device)
        };
        let Rig { client, folder, .. } = &self.rig;
        let report = byteback_backup::push(client, folder, b"", &self.source, &options, &Silent).unwrap();
        assert!(report.is_complete());
    }

    fn pull(&self) -> Result<PullReport, BackupError> {
        let Rig { client, folder, .. } = &self.rig;
        byteback_backup::pull(client, folder, b"", &self.target, &self.options, &Silent)
    }

    /// Pulls, and returns the reported changes.
    fn reported(&self) -> (PullReport, Vec<(String, Change)>) {
        let reported = Mutex::new(Vec::new());
        let listener = RecordingMonitor::new(|event, _| {
            if let Event::Changed { path, change } = event {
                reported.lock().unwrap().push((path.to_string(), *change));
            }
        });
        let Rig { client, folder, .. } = &self.rig;
        let report = byteback_backup::pull(client, folder, b"", &self.target, &self.options, &listener).unwrap();
        drop(listener);
        let mut reported = reported.into_inner().unwrap();
        reported.sort_by(|one, other| one.0.cmp(&other.0));
        (report, reported)
    }

    fn partial_files(&self) -> Vec<PathBuf> {
        let all = paths(&self.target).into_iter();
        all.filter(|path| path.file_name().is_some_and(|name| is_partial_name(name.as_bytes())))
            .map(|path| self.target.join(path))
            .collect()
    }
}

fn mtime_ns(path: &Path) -> i64 {
    let metadata = fs::symlink_metadata(path).unwrap();
    metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec()
}

fn set_mtime(path: &Path, ns: i64) {
    let file = File::open(path).unwrap();
    tree::set_times(&file, SetTime::Keep, SetTime::To(ns.into())).unwrap();
}

#[test]
fn pull_of_random_trees_fits_empty_old_and_changed_targets() {
    let seed = seed(0x9011);
    let mut random = SplitMix64::new(seed);
    for _ in 0..3 {
        let mut pull = Pull::new(seed);
        pull.options.delete = true;
        for _ in 0..8 {
            for _ in 0..1 + random.below(25) {
                change(&mut random, &pull.source);
            }
            pull.push();
            if pull.target.exists() {
                for _ in 0..random.below(12) {
                    change(&mut random, &pull.target);
                }
            }
            // A dry run reports the changes that a real run makes.
            let before = pull.target.exists().then(|| seen(&pull.target));
            pull.options.dry_run = true;
            let (would, would_tell) = pull.reported();
            assert_eq!(before, pull.target.exists().then(|| seen(&pull.target)));
            pull.options.dry_run = false;
            let (did, reported) = pull.reported();
            assert!(did.restored.is_complete(), "{did:?}");
            if before.is_some() {
                assert_eq!(would_tell, reported);
                assert_eq!(would.restored.removed, did.restored.removed);
            }
            assert_same(&pull.source, &pull.target);
            assert_eq!(mtime_ns(&pull.source), mtime_ns(&pull.target));
            let again = pull.pull().unwrap();
            assert!(!again.has_changes(), "{again:?}");
            assert!(again.restored.written_bytes == 0 && pull.partial_files().is_empty());
        }
    }
}

#[test]
fn pull_without_delete_keeps_local_and_excluded_files() {
    let mut pull = Pull::new(2);
    for name in ["a", "skip.tmp", "dir/b", "dir/c.tmp"] {
        let path = pull.source.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("server's {name}")).unwrap();
    }
    fs::write(pull.source.join("was a directory"), "now a file").unwrap();
    pull.push();
    fs::create_dir_all(pull.target.join("dir")).unwrap();
    for name in ["dir/c.tmp", "dir/mine", "mine.tmp"] {
        fs::write(pull.target.join(name), format!("my {name}")).unwrap();
    }
    fs::create_dir(pull.target.join("was a directory")).unwrap();
    fs::write(pull.target.join("was a directory/f"), "f").unwrap();
    pull.options.exclude = Exclude::new(["*.tmp"]).unwrap();
    let report = pull.pull().unwrap();
    assert_eq!(report.restored.not_restored[0].count, 1, "the directory in the way");
    let read = |name: &str| fs::read_to_string(pull.target.join(name)).ok();
    assert_eq!(read("a").as_deref(), Some("server's a"));
    assert_eq!(read("skip.tmp"), None);
    assert_eq!(read("dir/b").as_deref(), Some("server's dir/b"));
    assert_eq!(read("dir/c.tmp").as_deref(), Some("my dir/c.tmp"));
    assert_eq!(read("dir/mine").as_deref(), Some("my dir/mine"));
    assert_eq!(read("was a directory/f").as_deref(), Some("f"));
    pull.options.delete = true;
    assert!(pull.pull().unwrap().restored.is_complete());
    let read = |name: &str| fs::read_to_string(pull.target.join(name)).ok();
    assert_eq!(read("dir/mine"), None);
    assert_eq!(read("mine.tmp").as_deref(), Some("my mine.tmp"));
    assert_eq!(read("was a directory").as_deref(), Some("now a file"));
}

#[test]
fn what_is_excluded_outlives_the_directory_that_it_is_in() {
    let mut pull = Pull::new(4);
    fs::write(pull.source.join("replaced"), "a file").unwrap();
    fs::write(pull.source.join("skipped"), "a file").unwrap();
    fs::write(pull.source.join("linked"), "one").unwrap();
    fs::hard_link(pull.source.join("linked"), pull.source.join("second")).unwrap();
    pull.push();
    for name in [
        "gone/keep.log",
        "gone/other",
        "gone/deep/keep.log",
        "gone/deep/x/y",
        "replaced/keep.log",
    ] {
        fs::create_dir_all(pull.target.join(name).parent().unwrap()).unwrap();
        fs::write(pull.target.join(name), name).unwrap();
    }
    fs::create_dir(pull.target.join("skipped")).unwrap();
    fs::create_dir_all(pull.target.join("second/in")).unwrap();
    fs::write(pull.target.join("second/in/keep.log"), "my second").unwrap();
    pull.options.delete = true;
    pull.options.exclude = Exclude::new(["*.log", "skipped/"]).unwrap();
    pull.options.dry_run = true;
    let (would, would_tell) = pull.reported();
    pull.options.dry_run = false;
    let (did, reported) = pull.reported();
    assert_eq!((would_tell, would.restored.removed), (reported, did.restored.removed));
    assert_eq!(did.restored.removed, 2, "gone/other and gone/deep/x: {did:?}");
    assert_eq!(did.restored.not_restored[0].count, 3, "{did:?}");
    for name in [
        "gone/keep.log",
        "gone/deep/keep.log",
        "replaced/keep.log",
        "second/in/keep.log",
    ] {
        assert!(pull.target.join(name).exists(), "{name}");
    }
    assert!(pull.target.join("skipped").is_dir());
    for name in ["gone/other", "gone/deep/x"] {
        assert!(!pull.target.join(name).exists(), "{name}");
    }
    // No longer excluded, all of it goes.
    pull.options.exclude = Exclude::default();
    assert!(pull.pull().unwrap().restored.is_complete());
    assert_same(&pull.source, &pull.target);
}

#[test]
fn pull_of_a_large_file_costs_the_change_and_keeps_holes() {
    let pull = Pull::new(3);
    let image = pull.source.join("image");
    let mut bytes = noise(3, 6 << 20);
    bytes.extend(vec![0; 2 << 20]);
    bytes.extend(noise(4, 1 << 20));
    fs::write(&image, &bytes).unwrap();
    File::create(pull.source.join("hole"))
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    pull.push();
    pull.pull().unwrap();
    bytes.splice(2_000_000..2_000_000, *b"inserted");
    bytes.truncate(9_000_000);
    fs::write(&image, &bytes).unwrap();
    OpenOptions::new()
        .write(true)
        .open(pull.source.join("hole"))
        .unwrap()
        .write_all_at(&[7; 5000], 30 << 20)
        .unwrap();
    pull.push();
    let report = pull.pull().unwrap();
    assert!(report.restored.wire.received < 200_000, "{report:?}");
    assert!(report.found_bytes > 6_000_000, "{report:?}");
    assert_same(&pull.source, &pull.target);
    let hole = fs::metadata(pull.target.join("hole")).unwrap();
    assert!(hole.blocks() * 512 < 1 << 20, "{} blocks", hole.blocks());
}

#[test]
fn a_dry_run_tells_what_the_pull_itself_could_not_make() {
    let mut pull = Pull::new(12);
    for name in ["blocked", "excluded", "fine"] {
        fs::write(pull.source.join(name), noise(1, 1000)).unwrap();
    }
    fs::hard_link(pull.source.join("fine"), pull.source.join("link")).unwrap();
    pull.push();
    // Directories stand where files and a link are to be.
    for name in ["blocked", "link", "excluded"] {
        fs::create_dir_all(pull.target.join(name).join("inner.o")).unwrap();
    }
    for (delete, exclude, blocked) in [(false, None, 3), (true, Some("*.o"), 3), (true, None, 0)] {
        pull.options.delete = delete;
        pull.options.exclude = exclude.map_or_else(Exclude::default, |exclude| Exclude::new([exclude]).unwrap());
        pull.options.dry_run = true;
        // The first one depends on threads.
        let counts = |report: PullReport| {
            let missing = report.restored.not_restored.into_iter();
            missing.map(|missing| (missing.kind, missing.count)).collect::<Vec<_>>()
        };
        let would = counts(pull.pull().unwrap());
        pull.options.dry_run = false;
        assert_eq!(would, counts(pull.pull().unwrap()));
        assert_eq!(would.iter().map(|(_, count)| count).sum::<u64>(), blocked);
    }
}

#[test]
fn an_interrupted_pull_goes_on_where_it_was() {
    let seed = seed(0x9012);
    let pull = Pull::of(Rig::with(seed, impatient()));
    fs::write(pull.source.join("large"), noise(seed, 4 << 20)).unwrap();
    pull.push();
    for cut in [3 << 20, 1 << 19] {
        pull.rig.cutter.cut_after(cut, true);
        assert!(!pull.pull().is_ok_and(|report| report.restored.is_complete()));
        pull.rig.cutter.heal();
        assert_eq!(pull.partial_files().len(), 1);
        assert!(!pull.target.join("large").exists());
    }
    let report = pull.pull().unwrap();
    assert!(report.restored.wire.received < 3 << 19, "{report:?}");
    assert!(report.resumed_bytes >= 3 << 20, "{report:?}");
    assert_same(&pull.source, &pull.target);
}

#[test]
fn pull_yields_the_content_whatever_has_the_partial_name() {
    let pull = Pull::new(5);
    let file = pull.source.join("file");
    fs::write(&file, noise(5, 1_000_000)).unwrap();
    pull.push();
    fs::create_dir(&pull.target).unwrap();
    let partial = pull.target.join(byteback_backup::partial_name("file".as_ref()));
    let outside = pull.rig.temp.path().join("outside");
    fs::write(&outside, "outside").unwrap();
    let plants: [&dyn Fn(); 6] = [
        &|| fs::write(&partial, noise(6, 3_000_000)).unwrap(),
        &|| fs::write(&partial, &fs::read(&file).unwrap()[..500_000]).unwrap(),
        &|| fs::write(&partial, vec![0; 1_000_000]).unwrap(),
        &|| symlink(&outside, &partial).unwrap(),
        &|| fs::hard_link(&outside, &partial).unwrap(),
        &|| {
            // The old file and the left one have half of it each.
            let bytes = fs::read(&file).unwrap();
            fs::write(&partial, [&noise(7, 500_000), &bytes[500_000..]].concat()).unwrap();
            fs::write(pull.target.join("file"), &bytes[..500_000]).unwrap();
        },
    ];
    for plant in plants {
        let _ = fs::remove_file(pull.target.join("file"));
        plant();
        pull.pull().unwrap();
        assert_same(&pull.source, &pull.target);
        assert_eq!(fs::read_to_string(&outside).unwrap(), "outside");
    }
    // Another pull is at work on it: this one makes its own.
    let other = File::create(&partial).unwrap();
    rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
    fs::remove_file(pull.target.join("file")).unwrap();
    pull.pull().unwrap();
    assert_eq!(fs::read(pull.target.join("file")).unwrap(), fs::read(&file).unwrap());
    assert_eq!(fs::metadata(&partial).unwrap().len(), 0);
}

#[test]
fn an_old_file_that_changes_meanwhile_does_no_harm() {
    let pull = Pull::new(6);
    let file = pull.source.join("file");
    fs::write(&file, noise(6, 2_000_000)).unwrap();
    pull.push();
    pull.pull().unwrap();
    let mut bytes = fs::read(&file).unwrap();
    bytes.extend(b"more");
    fs::write(&file, &bytes).unwrap();
    pull.push();
    let old = OpenOptions::new().write(true).open(pull.target.join("file")).unwrap();
    // Whenever the pull checks whether to stop, which it does between any two blocks, some of the
    // old file changes.
    let writing = Writing {
        old,
        looks: AtomicU64::new(0),
        warnings: Mutex::default(),
    };
    let Rig { client, folder, .. } = &pull.rig;
    let report = byteback_backup::pull(client, folder, b"", &pull.target, &pull.options, &writing).unwrap();
    assert!(report.restored.is_complete(), "{report:?}");
    assert_same(&pull.source, &pull.target);
    let warnings = writing.warnings.into_inner().unwrap();
    assert!(
        warnings.iter().any(|warning| warning.contains("could not be rebuilt")),
        "{warnings:?}"
    );
}

/// Writes into a file whenever it is asked whether to stop.
struct Writing {
    old: File,
    looks: AtomicU64,
    warnings: Mutex<Vec<String>>,
}

impl Monitor for Writing {
    fn event(&self, event: Event<'_>) {
        if let Event::Warning(warning) = event {
            self.warnings.lock().unwrap().push(warning.to_owned());
        }
    }

    fn is_cancelled(&self) -> bool {
        let look = self.looks.fetch_add(1, Ordering::SeqCst);
        self.old.write_all_at(b"meanwhile", look * 7919 % 2_000_000).unwrap();
        false
    }
}

#[test]
fn pull_compares_content_if_asked_or_if_only_the_time_differs() {
    let mut pull = Pull::new(7);
    fs::write(pull.source.join("file"), noise(7, 500_000)).unwrap();
    pull.push();
    pull.pull().unwrap();
    let file = pull.target.join("file");
    let at = mtime_ns(&file);
    OpenOptions::new()
        .write(true)
        .open(&file)
        .unwrap()
        .write_all_at(b"x", 77_777)
        .unwrap();
    set_mtime(&file, at);
    assert!(!pull.pull().unwrap().has_changes());
    pull.options.checksum = true;
    assert_eq!(pull.pull().unwrap().changed, 1);
    assert_same(&pull.source, &pull.target);
    pull.options.checksum = false;
    set_mtime(&file, 5);
    let report = pull.pull().unwrap();
    assert_eq!((report.changed, report.attributes_changed), (0, 1), "{report:?}");
    assert_same(&pull.source, &pull.target);
}

#[test]
fn a_full_disk_ends_it_and_leaves_what_was_there() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut pull = Pull::new(8);
    fs::write(pull.source.join("large"), noise(8, 6 << 20)).unwrap();
    fs::write(pull.source.join("small"), "small").unwrap();
    pull.push();
    let disk = pull.rig.temp.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=8m", "none"])
        .arg(&disk)
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("no tmpfs can be mounted here");
        return;
    }
    pull.target = disk.join("target");
    fs::create_dir(&pull.target).unwrap();
    fs::write(pull.target.join("large"), "old").unwrap();
    fs::write(disk.join("filler"), vec![1; 4 << 20]).unwrap();
    let ended = pull.pull();
    let old = fs::read_to_string(pull.target.join("large"));
    fs::remove_file(disk.join("filler")).unwrap();
    let again = pull.pull();
    let whole = fs::read(pull.target.join("large"));
    let unmounted = std::process::Command::new("umount").arg(&disk).status();
    assert!(unmounted.unwrap().success());
    assert!(matches!(ended, Err(BackupError::Local { .. })), "{ended:?}");
    assert_eq!(old.unwrap(), "old");
    let again = again.unwrap();
    assert!(again.resumed_bytes > 1 << 20, "{again:?}");
    assert!(whole.unwrap() == fs::read(pull.source.join("large")).unwrap());
}

#[test]
fn one_file_comes_under_its_own_name() {
    let pull = Pull::new(9);
    fs::create_dir(pull.source.join("d")).unwrap();
    fs::write(pull.source.join("d/file"), noise(9, 100_000)).unwrap();
    pull.push();
    let Rig { client, folder, .. } = &pull.rig;
    for _ in 0..2 {
        byteback_backup::pull(client, folder, b"/d/file", &pull.target, &pull.options, &Silent).unwrap();
        assert_eq!(fs::read(pull.target.join("file")).unwrap(), noise(9, 100_000));
    }
    let error = byteback_backup::pull(client, folder, b"/nowhere", &pull.target, &pull.options, &Silent).unwrap_err();
    assert!(matches!(error, BackupError::Server(_)), "{error:?}");
    let empty = "empty".parse().unwrap();
    client.create_folder(&empty).unwrap();
    let error = byteback_backup::pull(client, &empty, b"", &pull.target, &pull.options, &Silent).unwrap_err();
    assert!(error.to_string().contains("server"), "{error:?}");
}

#[test]
fn pull_fetches_and_compares_a_sparse_file_beyond_a_tib() {
    let mut pull = Pull::new(71);
    pull.options.checksum = true;
    let len = (1 << 40) + (1 << 20);
    let source = File::create(pull.source.join("huge")).unwrap();
    source.set_len(len).unwrap();
    source.write_all_at(&noise(1, 5000), 1 << 39).unwrap();
    pull.push();
    pull.pull().unwrap();
    assert_eq!(pull.reported().1, []);
    let path = pull.target.join("huge");
    let before = mtime_ns(&path);
    let here = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    here.write_all_at(b"rotten", 1 << 38).unwrap();
    drop(here);
    set_mtime(&path, before);
    assert_eq!(pull.reported().1, [("huge".to_owned(), Change::Content)]);
    let (mut data, mut hole) = ([0; 5000], [7; 10]);
    let here = File::open(&path).unwrap();
    here.read_exact_at(&mut data, 1 << 39).unwrap();
    here.read_exact_at(&mut hole, 1 << 38).unwrap();
    assert!(data[..] == noise(1, 5000)[..] && hole == [0; 10]);
}

#[test]
fn pull_by_an_ordinary_user_updates_unwritable_directories() {
    const USER: u32 = 65_534;
    assert!(
        rustix::process::geteuid().is_root(),
        "this test takes another user's place"
    );
    let mut pull = Pull::new(72);
    pull.options.delete = true;
    fs::set_permissions(pull.rig.temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(&pull.target).unwrap();
    chown(&pull.target, Some(USER), None).unwrap();
    let (closed, below, gone) = (
        pull.source.join("closed"),
        pull.source.join("closed/below"),
        pull.source.join("closed/gone"),
    );
    let close = || {
        for path in paths(&pull.source)
            .iter()
            .map(|path| pull.source.join(path))
            .chain([pull.source.clone()])
        {
            chown(&path, Some(USER), None).unwrap();
        }
        for (dir, mode) in [(&below, 0o555), (&gone, 0o500), (&closed, 0o555)] {
            if dir.exists() {
                fs::set_permissions(dir, fs::Permissions::from_mode(mode)).unwrap();
            }
        }
        pull.push();
    };
    let as_user = || {
        std::thread::scope(|scope| {
            let pulling = scope.spawn(|| {
                // For this thread, and those that it starts.
                rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(USER)).unwrap();
                pull.pull().unwrap()
            });
            pulling.join().unwrap()
        })
    };
    fs::create_dir_all(&below).unwrap();
    fs::create_dir_all(&gone).unwrap();
    fs::write(below.join("file"), noise(1, 100_000)).unwrap();
    fs::write(gone.join("file"), "goes").unwrap();
    close();
    assert!(as_user().restored.is_complete());
    assert_same(&pull.source, &pull.target);
    fs::write(below.join("file"), noise(2, 100_000)).unwrap();
    fs::write(closed.join("new"), "comes").unwrap();
    fs::remove_dir_all(&gone).unwrap();
    close();
    let report = as_user();
    assert!(report.restored.is_complete(), "{report:?}");
    assert_same(&pull.source, &pull.target);
}
