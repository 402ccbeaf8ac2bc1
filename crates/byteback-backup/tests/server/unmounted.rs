//! A real directory that is not mounted, with its real log: changes are found by size, times and
//! inode.

use byteback_backup::{
    BackupReport, DifferenceKind, Event, Monitor, RestoreOptions, Silent, SnapshotSpec, VerifyOptions,
};
use byteback_control::{
    ChangesCursor, ChangesPage, CutId, CutInfo, CutRequest, FinishReport, Outcome, Piece, ServiceError, TreeService,
    TreeStatus,
};
use byteback_daemon::{Service, StateFolder, TrackedTree};
use byteback_host::random::{SplitMix64, noise};
use byteback_host::tree::{self, SetTime};
use byteback_model::{Attributes, ByteString, NodeId};
use byteback_testkit::listener::RecordingMonitor;
use byteback_testkit::programs::change;
use byteback_testkit::rig::Rig;
use byteback_testkit::seed::seed;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Longer than the clock of any file system stands still: an older time is proof.
const TICK: Duration = Duration::from_millis(60);

struct Folder {
    rig: Rig,
    dir: PathBuf,
}

impl Folder {
    fn new(seed: u64) -> Self {
        let rig = Rig::new(seed);
        let dir = rig.temp.path().join("tree");
        fs::create_dir(&dir).unwrap();
        Self { rig, dir }
    }

    fn service(&self) -> Service {
        let state = StateFolder::of(&self.dir, &self.rig.temp.path().join("state")).unwrap();
        Service::unmounted(Arc::new(TrackedTree::open(state, &mut |_| {}).unwrap()))
    }

    fn backup(&self, monitor: &dyn Monitor) -> BackupReport {
        self.backup_of(&self.service(), monitor)
    }

    fn backup_of(&self, tree: &dyn TreeService, monitor: &dyn Monitor) -> BackupReport {
        byteback_backup::backup(tree, &self.rig.client, &self.rig.folder, &self.rig.options, monitor).unwrap()
    }

    /// Asserts that the newest snapshot is the directory as it is now, compared in place and
    /// restored.
    fn assert_saved(&self) {
        let target = tempfile::tempdir_in(self.rig.temp.path()).unwrap();
        let options = RestoreOptions::default();
        let restored = self
            .rig
            .restore(SnapshotSpec::default(), target.path(), &options, &Silent)
            .unwrap();
        assert!(restored.is_complete(), "{:?}", restored.not_restored);
        for dir in [&self.dir, target.path()] {
            let options = VerifyOptions {
                here: None,
                deep: Some(dir),
            };
            let (client, folder) = (&self.rig.client, &self.rig.folder);
            let verified = byteback_backup::verify(client, folder, SnapshotSpec::default(), &options, &Silent).unwrap();
            assert!(verified.is_clean(), "{}: {:?}", dir.display(), verified.differences);
        }
    }
}

#[test]
fn backup_without_a_mount_finds_and_saves_every_change() {
    let seed = seed(60);
    let mut random = SplitMix64::new(seed);
    let folder = Folder::new(seed);
    for round in 0..10 {
        for _ in 0..1 + random.below(25) {
            change(&folder.dir, &mut random);
        }
        let report = folder.backup(&Silent);
        assert!(report.is_complete(), "round {round}: {:?}", report.unsaved);
        let why = report.everything_because;
        assert_eq!(why.is_some(), round == 0, "round {round}: {why:?}");
        folder.assert_saved();
    }
    std::thread::sleep(TICK);
    folder.backup(&Silent);
    let report = folder.backup(&Silent);
    assert_eq!((report.has_changes(), report.read_bytes), (false, 0));
}

#[test]
fn file_replaced_without_a_mount_costs_its_insertion() {
    let folder = Folder::new(66);
    let [document, temporary] = ["document", ".document.tmp"].map(|name| folder.dir.join(name));
    let mut bytes = noise(1, 2 << 20);
    fs::write(&document, &bytes).unwrap();
    std::thread::sleep(TICK);
    folder.backup(&Silent);
    bytes.splice(700_000..700_000, noise(2, 10_000));
    fs::write(&temporary, &bytes).unwrap();
    fs::rename(&temporary, &document).unwrap();
    std::thread::sleep(TICK);
    let report = folder.backup(&Silent);
    assert_eq!((report.examined_files, report.followed_files), (1, 1));
    // Blocks are 1448 bytes here.
    assert!(report.literal_bytes < 10_000 + 2 * 1448, "{}", report.literal_bytes);
    folder.assert_saved();
}

#[test]
fn backup_without_a_mount_sends_changed_files_whole_only() {
    let folder = Folder::new(61);
    fs::write(folder.dir.join("a"), vec![1; 3000]).unwrap();
    fs::write(folder.dir.join("b"), vec![2; 3000]).unwrap();
    std::thread::sleep(TICK);
    assert_eq!(folder.backup(&Silent).read_bytes, 6000);
    File::options()
        .write(true)
        .open(folder.dir.join("a"))
        .unwrap()
        .write_all_at(b"x", 7)
        .unwrap();
    fs::create_dir(folder.dir.join("c")).unwrap();
    std::thread::sleep(TICK);
    let report = folder.backup(&Silent);
    assert_eq!((report.read_bytes, report.whole.untracked), (3000, 1), "{report:?}");
    folder.assert_saved();
    // A new name moves the same time that a hidden change would move.
    fs::rename(folder.dir.join("b"), folder.dir.join("c/b")).unwrap();
    std::thread::sleep(TICK);
    let report = folder.backup(&Silent);
    assert_eq!((report.read_bytes, report.whole.untracked), (3000, 1), "{report:?}");
    folder.assert_saved();
}

#[test]
fn backup_without_a_mount_reports_a_changing_file_then_saves_it() {
    let folder = Folder::new(62);
    let path = folder.dir.join("busy");
    fs::write(&path, vec![1; 3_000_000]).unwrap();
    fs::write(folder.dir.join("calm"), vec![2; 1000]).unwrap();
    std::thread::sleep(TICK);
    let read = AtomicU64::new(0);
    let reported = RecordingMonitor::new(|event, _| {
        if let Event::BytesRead(bytes) = event
            && read.fetch_add(*bytes, Ordering::SeqCst) == 0
        {
            // Behind the reader, and in front of it.
            let file = File::options().write(true).open(&path).unwrap();
            file.write_all_at(b"changed", 0).unwrap();
            file.write_all_at(b"changed", 2_900_000).unwrap();
        }
    });
    let report = folder.backup(&reported);
    assert_eq!(report.unsaved.len(), 1, "{report:?}");
    assert_eq!(report.unsaved[0].path, "busy".into());
    assert!(
        report.unsaved[0].reason.contains("changed while it was being read"),
        "{report:?}"
    );
    std::thread::sleep(TICK);
    let report = folder.backup(&Silent);
    assert!(report.is_complete());
    assert_eq!(report.everything_because, None);
    folder.assert_saved();
    // One that shrinks or goes away under the reader's hands.
    for round in 0..2 {
        let bytes: Vec<u8> = vec![3 + round; 3_000_000];
        fs::write(&path, bytes).unwrap();
        std::thread::sleep(TICK);
        let read = AtomicU64::new(0);
        let reported = RecordingMonitor::new(|event, _| {
            if let Event::BytesRead(bytes) = event
                && read.fetch_add(*bytes, Ordering::SeqCst) == 0
            {
                if round == 0 {
                    File::options().write(true).open(&path).unwrap().set_len(10).unwrap();
                } else {
                    fs::remove_file(&path).unwrap();
                }
            }
        });
        let report = folder.backup(&reported);
        assert_eq!(report.unsaved.len(), 1, "round {round}: {report:?}");
        std::thread::sleep(TICK);
        assert!(folder.backup(&Silent).is_complete());
        folder.assert_saved();
    }
}

/// ext4 keeps times up to the year 2446; 64 bits of nanoseconds end in 2262.
#[test]
fn far_times_that_differ_are_told_apart() {
    let (year_2300, year_2400): (i128, i128) = (10_413_792_000_123_456_789, 13_569_465_600_987_654_321);
    let folder = Folder::new(63);
    let path = folder.dir.join("far");
    let set = |mtime_ns: i128| {
        let file = File::open(&path).unwrap();
        tree::set_times(&file, SetTime::Keep, SetTime::To(mtime_ns)).unwrap();
        let found = tree::stat_fd(&file).unwrap().mtime_ns;
        assert_eq!(found, mtime_ns, "this file system does not keep such times");
    };
    fs::write(&path, "of the future").unwrap();
    set(year_2300);
    folder.backup(&Silent);
    folder.assert_saved();
    set(year_2400);
    let options = VerifyOptions {
        here: None,
        deep: Some(&folder.dir),
    };
    let (client, name) = (&folder.rig.client, &folder.rig.folder);
    let verified = byteback_backup::verify(client, name, SnapshotSpec::default(), &options, &Silent).unwrap();
    let reported: Vec<_> = verified
        .differences
        .iter()
        .map(|difference| (difference.path.to_string(), &difference.kind))
        .collect();
    assert_eq!(
        reported,
        [("far".to_owned(), &DifferenceKind::Attribute { which: "mtime" })]
    );
    std::thread::sleep(TICK);
    folder.backup(&Silent);
    folder.assert_saved();
}

/// Counts the pieces in which contents are read.
struct Counted {
    service: Service,
    pieces: AtomicU64,
}

impl TreeService for Counted {
    fn status(&self) -> Result<TreeStatus, ServiceError> {
        self.service.status()
    }

    fn resolve_pending(&self, consumer: &str, saved: Option<Vec<u8>>) -> Result<(), ServiceError> {
        self.service.resolve_pending(consumer, saved)
    }

    fn drop_consumer(&self, consumer: &str) -> Result<bool, ServiceError> {
        self.service.drop_consumer(consumer)
    }

    fn cut(&self, request: &CutRequest) -> Result<CutInfo, ServiceError> {
        self.service.cut(request)
    }

    fn changes(&self, cut: CutId, cursor: &ChangesCursor) -> Result<ChangesPage, ServiceError> {
        self.service.changes(cut, cursor)
    }

    fn attributes(&self, cut: CutId, nodes: &[NodeId]) -> Result<Vec<Result<Attributes, ServiceError>>, ServiceError> {
        self.service.attributes(cut, nodes)
    }

    fn read(
        &self,
        cut: CutId,
        node: NodeId,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<(), ServiceError>,
    ) -> Result<(), ServiceError> {
        self.service.read(cut, node, ranges, &mut |piece| {
            self.pieces.fetch_add(1, Ordering::SeqCst);
            sink(piece)
        })
    }

    fn peek(
        &self,
        cut: CutId,
        node: NodeId,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<(), ServiceError>,
    ) -> Result<(), ServiceError> {
        self.service.peek(cut, node, ranges, sink)
    }

    fn path(&self, cut: CutId, node: NodeId) -> Result<Option<ByteString>, ServiceError> {
        self.service.path(cut, node)
    }

    fn note_batch(&self, cut: CutId, batch: u64) -> Result<(), ServiceError> {
        self.service.note_batch(cut, batch)
    }

    fn finish(&self, cut: CutId, outcome: &Outcome) -> Result<FinishReport, ServiceError> {
        self.service.finish(cut, outcome)
    }

    fn unmount(&self) -> Result<(), ServiceError> {
        self.service.unmount()
    }
}

#[test]
fn a_hole_of_tebibytes_is_read_in_few_pieces() {
    const LEN: u64 = 3 << 40;
    let folder = Folder::new(64);
    let path = folder.dir.join("sparse");
    File::create_new(&path).unwrap().set_len(LEN).unwrap();
    let write = |places: &[u64]| {
        let file = File::options().write(true).open(&path).unwrap();
        for place in places {
            file.write_all_at(&noise(*place, 5000), *place).unwrap();
        }
    };
    // The first time, and after a change, which an unmounted folder knows only to have happened.
    for places in [&[5_000_000, 1_u64 << 40, LEN - 5000][..], &[2_u64 << 40]] {
        write(places);
        std::thread::sleep(TICK);
        let tree = Counted {
            service: folder.service(),
            pieces: AtomicU64::new(0),
        };
        let report = folder.backup_of(&tree, &Silent);
        assert!(report.is_complete(), "{:?}", report.unsaved);
        let pieces = tree.pieces.load(Ordering::SeqCst);
        assert!((1..=40).contains(&pieces), "{pieces} pieces");
        assert!(report.read_bytes < 1 << 20, "{} bytes were read", report.read_bytes);
    }
    let target = folder.rig.temp.path().join("target");
    let options = RestoreOptions::default();
    folder
        .rig
        .restore(SnapshotSpec::default(), &target, &options, &Silent)
        .unwrap();
    let found = fs::metadata(target.join("sparse")).unwrap();
    assert_eq!(found.len(), LEN);
    assert!(found.blocks() * 512 < 1 << 20, "{} blocks", found.blocks());
    folder.assert_saved();
}
