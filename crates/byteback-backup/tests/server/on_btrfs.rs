//! SkySync on a real btrfs in an image file, with a real daemon and programs at work: the saved
//! files are the tree at the cut.

use btrfs_disk::Disk;
use byteback_backup::decisions::{DeltaMethod, last_decision};
use byteback_backup::{DeltaChoice, RestoreOptions, Silent, SnapshotSpec};
use byteback_control::{Client, CutRequest, Outcome, TreeService};
use byteback_daemon::{Daemon, DaemonError, DaemonOptions, Service, StateFolder, TrackedTree};
use byteback_host::random::{SplitMix64, noise};
use byteback_mount::{Mount, MountOptions, Unmount};
use byteback_testkit::listener::RecordingMonitor;
use byteback_testkit::rig::Rig;
use byteback_testkit::seed::seed;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

#[path = "../../../byteback-checksums/tests/btrfs/disk.rs"]
#[allow(dead_code, reason = "it is for other tests, too")]
mod btrfs_disk;

const FILES: usize = 10;
const FILE_LEN: usize = 1_200_000;

/// A folder that a daemon of this process has mounted.
struct Mounted {
    state: StateFolder,
    mount: Arc<Mount>,
    running: Option<JoinHandle<()>>,
}

impl Mounted {
    fn new(dir: &Path, state: &Path) -> Self {
        let state = StateFolder::of(dir, state).unwrap();
        let tree = TrackedTree::open(state.clone(), &mut |_| {}).unwrap();
        let daemon = Daemon::start(tree, &DaemonOptions::new(MountOptions::new(dir.to_owned()))).unwrap();
        let mount = Arc::clone(daemon.mount());
        let running = Some(std::thread::spawn(move || daemon.run().unwrap()));
        Self { state, mount, running }
    }

    fn client(&self) -> Client {
        Client::connect(&self.state.socket()).unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for _ in 0..200 {
            if self.mount.unmount(Unmount::IfIdle).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        if self.mount.unmount(Unmount::IfIdle).is_err() {
            let _ = self.mount.unmount(Unmount::Detach);
        }
        let _ = self.running.take().map(JoinHandle::join);
    }
}

/// Operation `number` on the files: the file, the offset, the bytes.
fn operation(seed: u64, number: u64) -> (usize, usize, Vec<u8>) {
    let mut random = SplitMix64::new(seed ^ (number << 20));
    // The last ones are never written.
    let file = random.below(FILES as u64 / 2) as usize;
    let len = 1 + random.below(20_000) as usize;
    let at = 4096 + random.below((FILE_LEN - 4096 - len) as u64) as usize;
    (file, at, noise(random.next_u64(), len))
}

fn name(file: usize) -> String {
    format!("file{file}")
}

/// The possible states of the files while the first one's first bytes say `count`: the next
/// operation was not begun, was done, or the kernel had reported only its first page to the mount.
/// It does so with writes that begin inside of a page that it does not have in memory
/// (docs/semantics.md).
fn moments(seed: u64, count: u64) -> impl Iterator<Item = Vec<Vec<u8>>> {
    let (file, at, bytes) = operation(seed, count + 1);
    let in_first_page = bytes.len().min(4096 - at % 4096);
    [0, in_first_page, bytes.len()].into_iter().map(move |len| {
        let mut files = after(seed, count, count);
        files[file][at..at + len].copy_from_slice(&bytes[..len]);
        files
    })
}

/// The files after this number of operations. The first bytes of the first one hold that number, or
/// one less.
fn after(seed: u64, number: u64, count: u64) -> Vec<Vec<u8>> {
    let mut files: Vec<Vec<u8>> = (0..FILES).map(|file| noise(file as u64, FILE_LEN)).collect();
    for number in 1..=number {
        let (file, at, bytes) = operation(seed, number);
        files[file][at..at + bytes.len()].copy_from_slice(&bytes);
    }
    files[0][..8].copy_from_slice(&count.to_le_bytes());
    files
}

#[test]
fn btrfs_checksums_under_load_save_the_tree_at_the_cut() {
    let seed = seed(31);
    for (checksum, choice) in [("sha256", DeltaChoice::SkyF), ("blake2", DeltaChoice::SkyC)] {
        let Some(disk) = Disk::new(checksum, 256, "") else {
            return;
        };
        let mut rig = Rig::new(seed);
        rig.options.part_len_bytes = 1 << 20;
        rig.options.delta = choice;
        let dir = disk.path().join("tree");
        fs::create_dir(&dir).unwrap();
        for (file, content) in after(seed, 0, 0).into_iter().enumerate() {
            fs::write(dir.join(name(file)), content).unwrap();
        }
        let mounted = Mounted::new(&dir, &rig.temp.path().join("state"));
        let backup =
            || byteback_backup::backup(&mounted.client(), &rig.client, &rig.folder, &rig.options, &Silent).unwrap();
        backup();
        let is_over = AtomicBool::new(false);
        let (mut last, mut reported) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let open = |file| fs::File::options().write(true).open(dir.join(name(file))).unwrap();
                let files: Vec<fs::File> = (0..FILES).map(open).collect();
                for number in 1.. {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    let (file, at, bytes) = operation(seed, number);
                    files[file].write_all_at(&bytes, at as u64).unwrap();
                    files[0].write_all_at(&number.to_le_bytes(), 0).unwrap();
                    // The others are touched, so that backups look at them: nothing else changes.
                    let other = FILES / 2 + (number as usize % (FILES / 2));
                    files[other].write_all_at(&noise(other as u64, 100), 0).unwrap();
                    std::thread::sleep(Duration::from_millis(3));
                }
            });
            // Even if an assertion fails: the scope waits for the writer.
            scopeguard::defer! { is_over.store(true, Ordering::Relaxed) }
            for round in 0..4 {
                std::thread::sleep(Duration::from_millis(150));
                let report = backup();
                assert!(report.is_complete(), "seed {seed}: {:?}", report.unsaved);
                let restored = tempfile::tempdir_in(rig.temp.path()).unwrap();
                let options = RestoreOptions::default();
                rig.restore(SnapshotSpec::default(), restored.path(), &options, &Silent)
                    .unwrap();
                let read = |file| fs::read(restored.path().join(name(file))).unwrap();
                let files: Vec<Vec<u8>> = (0..FILES).map(read).collect();
                let count = u64::from_le_bytes(*files[0].first_chunk().unwrap());
                assert!(count >= last, "seed {seed}, round {round}");
                last = count;
                assert!(
                    moments(seed, count).any(|moment| files == moment),
                    "seed {seed}, round {round}: no moment of the tree around operation {count}"
                );
                reported += report.examined_files;
            }
        });
        assert!(
            last > 5 && reported > 4,
            "seed {seed}: {last} operations, {reported} files"
        );
        drop(mounted);
    }
}

/// As a command without a daemon does it. A process that another test forks at this moment has the
/// previous lock for an instant.
fn unmounted(dir: &Path, state: &Path) -> Service {
    let started = std::time::Instant::now();
    loop {
        let folder = StateFolder::of(dir, state).unwrap();
        match TrackedTree::open(folder, &mut |_| {}) {
            Ok(tree) => return Service::unmounted(Arc::new(tree)),
            Err(DaemonError::InUse { .. }) if started.elapsed().as_secs() < 60 => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn btrfs_saves_a_touched_file_unread_where_others_read_it() {
    let disk = Disk::new("sha256", 256, "");
    let elsewhere = tempfile::tempdir_in("/var/tmp").unwrap();
    let on_btrfs = disk.as_ref().map(Disk::path);
    for (place, is_btrfs) in [(on_btrfs, true), (Some(elsewhere.path().to_owned()), false)] {
        let Some(place): Option<PathBuf> = place else { continue };
        let mut rig = Rig::new(1);
        rig.options.part_len_bytes = 1 << 20;
        let decisions = rig.keep_decisions();
        let (dir, state) = (place.join("tree"), rig.temp.path().join("state"));
        fs::create_dir(&dir).unwrap();
        let content = noise(1, 3_000_000);
        fs::write(dir.join("file"), &content).unwrap();
        let backup = || {
            let tree = unmounted(&dir, &state);
            byteback_backup::backup(&tree, &rig.client, &rig.folder, &rig.options, &Silent).unwrap()
        };
        // Longer than the clock of any file system stands still: an older time proves that the file
        // did not change.
        let tick = Duration::from_millis(60);
        std::thread::sleep(tick);
        backup();
        std::thread::sleep(tick);
        // Rewritten with the same content, except one byte.
        let file = fs::File::options().write(true).open(dir.join("file")).unwrap();
        file.write_all_at(b"!", 1_234_567).unwrap();
        std::thread::sleep(tick);
        let report = backup();
        assert_eq!(report.whole.untracked, 1);
        let tree = unmounted(&dir, &state);
        let cut = tree
            .cut(&CutRequest {
                look_only: true,
                ..CutRequest::of("")
            })
            .unwrap();
        let node = tree.find(cut.cut, &"file".into()).unwrap().unwrap();
        let decided = last_decision(decisions.as_ref(), cut.tree, node).unwrap().unwrap();
        tree.finish(cut.cut, &Outcome::Abandoned).unwrap();
        drop(tree);
        if is_btrfs {
            // The changed block, and the last one, which is not full.
            assert!(report.read_bytes <= 3 * 4096, "{}", report.read_bytes);
        }
        assert_eq!(
            (decided.decision.method, decided.decision.fallback),
            (DeltaMethod::SkyF, None)
        );
        // A block, or some chunks.
        let literal_max = if is_btrfs { 4096 } else { 3 * 12 * 1024 };
        assert!(report.literal_bytes <= literal_max, "{}", report.literal_bytes);
        let restored = tempfile::tempdir_in(rig.temp.path()).unwrap();
        let options = RestoreOptions::default();
        rig.restore(SnapshotSpec::default(), restored.path(), &options, &Silent)
            .unwrap();
        assert!(fs::read(restored.path().join("file")).unwrap() == fs::read(dir.join("file")).unwrap());
    }
}

#[test]
fn btrfs_push_reads_only_what_checksums_do_not_prove_equal() {
    let seed = seed(32);
    for (checksum, choice) in [
        ("sha256", DeltaChoice::Auto),
        ("blake2", DeltaChoice::SkyF),
        ("sha256", DeltaChoice::SkyC),
        ("crc32c", DeltaChoice::SkyF),
    ] {
        let Some(disk) = Disk::new(checksum, 256, "") else {
            return;
        };
        let rig = Rig::new(seed);
        let dir = disk.path().join("tree");
        fs::create_dir(&dir).unwrap();
        let file = dir.join("file");
        let mut content = noise(seed, 3_000_100);
        fs::write(&file, &content).unwrap();
        let options = byteback_backup::PushOptions {
            delta: choice,
            ..byteback_backup::PushOptions::new(rig.options.device)
        };
        let push = || byteback_backup::push(&rig.client, &rig.folder, b"", &dir, &options, &Silent).unwrap();
        let touch = || {
            let file = fs::File::options().write(true).open(&file).unwrap();
            file.set_modified(std::time::SystemTime::now()).unwrap();
        };
        push();
        let is_proof = checksum != "crc32c";
        // The time moves, the content does not: only the last, partly filled block is read.
        touch();
        let report = push();
        assert_eq!(
            (report.files_changed, report.literal_bytes),
            (1, 0),
            "{checksum} {choice:?} {report:?}"
        );
        match is_proof {
            true => assert!(report.read_bytes <= 4096, "{checksum} {choice:?} {report:?}"),
            false => assert!(report.read_bytes >= 3_000_100, "{report:?}"),
        }
        content[1_000_000] ^= 1;
        fs::write(&file, &content).unwrap();
        touch();
        let report = push();
        assert!(report.literal_bytes <= 64 * 1024, "{checksum} {choice:?} {report:?}");
        if is_proof {
            assert!(report.read_bytes <= 300_000, "{checksum} {choice:?} {report:?}");
        }
        let target = tempfile::tempdir().unwrap();
        let fetched = byteback_backup::restore(
            &rig.client,
            &rig.folder,
            SnapshotSpec::default(),
            b"",
            target.path(),
            &RestoreOptions::default(),
            &Silent,
        )
        .unwrap();
        assert!(fetched.is_complete());
        assert!(
            fs::read(target.path().join("file")).unwrap() == content,
            "{checksum} {choice:?}"
        );
    }
}

/// The reason why the file system does not report checksums may last: a clock that was set back, a
/// tree that is not understood.
#[test]
fn btrfs_push_reads_what_the_file_system_does_not_tell_at_once() {
    let Some(disk) = Disk::new("sha256", 256, "") else {
        return;
    };
    let rig = Rig::new(33);
    let dir = disk.path().join("tree");
    fs::create_dir(&dir).unwrap();
    let path = dir.join("file");
    let mut content = noise(33, 1_000_100);
    fs::write(&path, &content).unwrap();
    let options = byteback_backup::PushOptions {
        delta: DeltaChoice::SkyF,
        ..byteback_backup::PushOptions::new(rig.options.device)
    };
    let Rig { client, folder, .. } = &rig;
    byteback_backup::push(client, folder, b"", &dir, &options, &Silent).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    let change = |byte: u8| {
        file.write_all_at(&[byte], 500_000).unwrap();
        file.set_modified(std::time::SystemTime::now()).unwrap();
    };
    change(1);
    // Totals are reported when the file has its stamp, and is about to be reported.
    let is_changed = AtomicBool::new(false);
    let listener = RecordingMonitor::new(|event, _| {
        if let byteback_backup::Event::Totals { bytes: 1.., .. } = event
            && !is_changed.swap(true, Ordering::Relaxed)
        {
            std::thread::sleep(Duration::from_millis(50));
            change(2);
        }
    });
    let report = byteback_backup::push(client, folder, b"", &dir, &options, &listener).unwrap();
    assert!(report.is_complete(), "{report:?}");
    assert!(report.read_bytes >= 1_000_100, "{report:?}");
    content[500_000] = 2;
    let target = tempfile::tempdir().unwrap();
    let latest = SnapshotSpec::default();
    byteback_backup::restore(
        client,
        folder,
        latest,
        b"",
        target.path(),
        &RestoreOptions::default(),
        &Silent,
    )
    .unwrap();
    assert!(fs::read(target.path().join("file")).unwrap() == content);
}
