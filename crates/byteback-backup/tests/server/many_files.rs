//! Restores of many small files, whose contents come in streams.

use crate::restoring::{OVER, assert_names_promise_contents, is_temporary, names_below};
use byteback_api::{Code, FolderName, Problem};
use byteback_backup::{
    BackupError, Event, NotRestoredKind, RestoreOptions, RestoreReport, Silent, SnapshotSpec, list, restore,
};
use byteback_client::ServerClient;
use byteback_extents::ByteRange;
use byteback_host::random::{SplitMix64, noise};
use byteback_model::{NodeId, NodeKind};
use byteback_testkit::clients::patient;
use byteback_testkit::listener::RecordingMonitor;
use byteback_testkit::proxy::hearing;
use byteback_testkit::rig::Rig;
use byteback_testkit::scripted_tree::assert_restored;
use byteback_testkit::seed::seed;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Parts of the usual length: the trees here have more files than others.
fn rig_through(rig: Rig) -> Rig {
    let mut rig = rig;
    rig.options.part_len_bytes = 1 << 20;
    rig
}

/// Makes files of `len_bytes` random bytes in some directories.
fn add_files(rig: &Rig, count: u64, len_bytes: usize) {
    let mut state = rig.tree.lock();
    let mut dir = NodeId::ROOT;
    for number in 0..count {
        if number % 300 == 0 {
            let parent = if number % 900 == 0 { NodeId::ROOT } else { dir };
            dir = state.create(parent, format!("d{number}").as_bytes(), NodeKind::Directory);
        }
        let file = state.create(dir, format!("f{number}").as_bytes(), NodeKind::File);
        state.write(file, 0, &noise(number, len_bytes));
    }
}

fn latest(rig: &Rig, target: &Path, options: &RestoreOptions) -> Result<RestoreReport, BackupError> {
    rig.restore(SnapshotSpec::default(), target, options, &Silent)
}

/// A rig whose proxy counts requests for many contents and for single ones, and answers the first
/// kind as a server that lacks the call if `is_old`.
fn counting_rig(seed: u64, is_old: bool) -> (Rig, Arc<[AtomicU64; 2]>) {
    let asked = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let counted = Arc::clone(&asked);
    let rig = Rig::through(seed, patient(), move |to, _| {
        hearing(to, move |head, _| {
            let line = head.lines().next().unwrap_or_default();
            if line.contains("/contents ") {
                counted[0].fetch_add(1, Ordering::SeqCst);
                return is_old.then(|| Problem::new(Code::RouteNotFound, "as the test wants it"));
            }
            if line.contains("/content?") {
                counted[1].fetch_add(1, Ordering::SeqCst);
            }
            None
        })
    });
    (rig_through(rig), asked)
}

fn counts(asked: &[AtomicU64; 2]) -> [u64; 2] {
    [0, 1].map(|index| asked[index].swap(0, Ordering::SeqCst))
}

#[test]
fn many_files_of_random_trees_come_back_equal() {
    let seed = seed(0x3a11);
    let mut random = SplitMix64::new(seed);
    for _ in 0..3 {
        let rig = rig_through(Rig::new(random.next_u64()));
        rig.change(&mut random, 300);
        {
            let mut state = rig.tree.lock();
            let dir = state.create(NodeId::ROOT, b"many", NodeKind::Directory);
            for number in 0..700_u64 {
                let file = state.create(dir, format!("f{number}").as_bytes(), NodeKind::File);
                let len = match number % 50 {
                    // Around the longest content of a stream, and with holes.
                    0 => 256 * 1024 + random.below(3) as usize - 1,
                    1 => 0,
                    _ => random.below(3000) as usize,
                };
                state.write(file, 0, &noise(random.next_u64(), len));
                match number % 11 {
                    0 => state.truncate(file, len as u64 + random.below(100_000)),
                    1 => state.punch(file, ByteRange::new(100, 9_000).unwrap()),
                    2 => state.link(file, NodeId::ROOT, format!("link{number}").as_bytes()),
                    3 => state.set_xattr(file, "user.note", b"kept"),
                    4 => state.set_mode(file, 0o444),
                    _ => {}
                }
            }
        }
        rig.backup().unwrap();
        let target = rig.temp.path().join("target");
        let report = latest(&rig, &target, &OVER).unwrap();
        assert!(report.is_complete(), "{report:?}");
        assert_restored(&rig.tree.picture(), &target);
        // Changes, over what is there.
        rig.change(&mut random, 100);
        rig.backup().unwrap();
        let options = RestoreOptions { delete: true, ..OVER };
        let report = latest(&rig, &target, &options).unwrap();
        assert!(report.files_kept > 300, "{report:?}");
        assert_restored(&rig.tree.picture(), &target);
    }
}

#[test]
fn many_files_cost_few_requests_and_few_bytes() {
    const FILES: u64 = 3000;
    const LEN: u64 = 1000;
    let (rig, asked) = counting_rig(61, false);
    add_files(&rig, FILES, LEN as usize);
    rig.backup().unwrap();
    counts(&asked);
    let before = rig.client.wire_bytes();
    list(&rig.client, &rig.folder, rig.seq(), b"", true, &Silent, |_| Ok(())).unwrap();
    let listed = rig.client.wire_bytes().since(before);
    let target = rig.temp.path().join("target");
    let report = latest(&rig, &target, &OVER).unwrap();
    assert_restored(&rig.tree.picture(), &target);
    let [many, single] = counts(&asked);
    let fewest = FILES / 512;
    assert!((fewest..=fewest + 1).contains(&many), "{many} requests");
    assert_eq!(single, 0);
    // Beside the names: at most 1.02 x the contents, and 40 bytes for each file.
    let wire = report.wire.total() - listed.total();
    let most = FILES * LEN * 102 / 100 + FILES * 40;
    assert!(wire <= most, "{wire} bytes on the wire, at most {most}");
    assert!(wire > FILES * LEN, "random bytes do not compress");
    // Files that are here are not asked for.
    let report = latest(&rig, &target, &OVER).unwrap();
    assert_eq!((report.files_kept, report.written_bytes), (FILES, 0));
    assert_eq!(counts(&asked), [0, 0]);
}

#[test]
fn many_files_of_an_old_server_come_one_by_one() {
    let (rig, asked) = counting_rig(62, true);
    add_files(&rig, 1400, 20);
    rig.backup().unwrap();
    counts(&asked);
    let target = rig.temp.path().join("target");
    let report = latest(&rig, &target, &OVER).unwrap();
    assert!(report.is_complete(), "{report:?}");
    assert_restored(&rig.tree.picture(), &target);
    let [many, single] = counts(&asked);
    // Threads that ask at the same time may each ask once.
    assert!((1..=4).contains(&many), "{many} requests for many contents");
    assert_eq!(single, 1400);
    // The same client does not ask again.
    let again = rig.temp.path().join("again");
    latest(&rig, &again, &OVER).unwrap();
    assert_eq!(counts(&asked), [0, 1400]);
}

#[test]
fn damage_among_many_files_costs_only_its_files() {
    let rig = rig_through(Rig::new(63));
    add_files(&rig, 600, 2000);
    rig.backup().unwrap();
    rig.change_data(|data| {
        let segment = fs::read_dir(data.join("segments")).unwrap().next().unwrap().unwrap();
        let mut bytes = fs::read(segment.path()).unwrap();
        for place in [3, 5] {
            let at = bytes.len() * place / 8;
            bytes[at] ^= 1;
        }
        fs::write(segment.path(), bytes).unwrap();
    });
    let target = rig.temp.path().join("target");
    let reported = RecordingMonitor::new(|_, _| {});
    let report = rig.restore(SnapshotSpec::default(), &target, &OVER, &reported).unwrap();
    assert_eq!((report.files, report.not_restored.len()), (598, 1), "{report:?}");
    let missing = &report.not_restored[0];
    assert_eq!((missing.kind, missing.count), (NotRestoredKind::File, 2));
    let failures = reported.failures.lock().unwrap().clone();
    assert_eq!(failures.len(), 2);
    for (path, reason) in &failures {
        assert!(path.contains("/f") && !target.join(path).exists(), "{path}");
        assert!(reason.contains("damaged at the server"), "{reason}");
    }
    assert_eq!(assert_names_promise_contents(&rig.tree.picture(), &target), 598);
    // The rest of a damaged file is lost, as it is one frame; its name comes back.
    let salvaged = RestoreOptions { salvage: true, ..OVER };
    let report = latest(&rig, &target, &salvaged).unwrap();
    assert_eq!((report.files, report.files_kept, report.salvaged.len()), (2, 598, 2));
}

#[test]
fn many_files_arrive_over_connections_that_break() {
    let rig = rig_through(Rig::with(64, patient()));
    add_files(&rig, 8000, 1000);
    rig.backup().unwrap();
    let target = rig.temp.path().join("target");
    let (breaks, received) = (AtomicU64::new(0), AtomicU64::new(0));
    let reported = RecordingMonitor::new(|event, _| {
        if let Event::BytesRead(bytes) = event {
            let before = received.fetch_add(*bytes, Ordering::SeqCst);
            if before / 1_500_000 != (before + bytes) / 1_500_000 {
                breaks.fetch_add(1, Ordering::SeqCst);
                // In the middle of answers, behind their first frames.
                rig.cutter.cut_after(1_000_000, false);
            }
        }
    });
    let report = rig.restore(SnapshotSpec::default(), &target, &OVER, &reported).unwrap();
    assert!(report.is_complete(), "{:?}", report.not_restored);
    assert!(breaks.load(Ordering::SeqCst) >= 5);
    // Contents that came before a break do not come again.
    assert_eq!(received.load(Ordering::SeqCst), 8_000_000);
    assert_restored(&rig.tree.picture(), &target);
}

#[test]
fn many_files_report_the_progress_of_each() {
    let rig = rig_through(Rig::new(65));
    add_files(&rig, 1000, 500);
    rig.backup().unwrap();
    let target = rig.temp.path().join("target");
    let (bytes, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let reported = RecordingMonitor::new(|event, is_cancelled| match event {
        Event::BytesRead(more) | Event::BytesSkipped(more) => {
            bytes.fetch_add(*more, Ordering::SeqCst);
        }
        Event::FileDone { .. } if done.fetch_add(1, Ordering::SeqCst) == 700 => {
            is_cancelled.store(true, Ordering::SeqCst);
        }
        _ => {}
    });
    let error = rig
        .restore(SnapshotSpec::default(), &target, &OVER, &reported)
        .unwrap_err();
    assert!(matches!(error, BackupError::Cancelled), "{error:?}");
    assert!(done.load(Ordering::SeqCst) < 710, "each thread ends after its file");
    assert!(bytes.load(Ordering::SeqCst) <= 710 * 500);
    assert!(!names_below(&target).iter().any(|path| is_temporary(path)));
    reported.is_cancelled.store(false, Ordering::SeqCst);
    bytes.store(0, Ordering::SeqCst);
    done.store(1000, Ordering::SeqCst);
    let report = rig.restore(SnapshotSpec::default(), &target, &OVER, &reported).unwrap();
    assert!(report.files_kept >= 690, "{report:?}");
    assert_eq!(done.load(Ordering::SeqCst), 2000);
    assert_eq!(bytes.load(Ordering::SeqCst), 1000 * 500);
    assert_restored(&rig.tree.picture(), &target);
}

/// Set for a process that restores until it is killed.
const RESTORE: &str = "BYTEBACK_TEST_RESTORE";

#[test]
#[ignore = "only in a process of its own"]
fn restore_until_killed() {
    let Ok(reported) = std::env::var(RESTORE) else { return };
    let reported: Vec<&str> = reported.split('\n').collect();
    let [url, token, target] = reported[..] else {
        panic!("{reported:?}")
    };
    let server = ServerClient::new(url, token, patient()).unwrap();
    let folder: FolderName = "home".parse().unwrap();
    restore(
        &server,
        &folder,
        SnapshotSpec::default(),
        b"",
        Path::new(target),
        &OVER,
        &Silent,
    )
    .unwrap();
}

fn start_mortal(rig: &Rig, target: &Path) -> Child {
    let reported = [&rig.url, &rig.token, target.to_str().unwrap()].join("\n");
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "many_files::restore_until_killed",
            "--ignored",
            "--nocapture",
        ])
        .env(RESTORE, reported)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Files below a directory that another process changes: all, and those with their own names.
fn count_files(dir: &Path) -> (u64, u64) {
    let (mut all, mut named) = (0, 0);
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => {
                let (all_below, named_below) = count_files(&path);
                (all, named) = (all + all_below, named + named_below);
            }
            _ => (all, named) = (all + 1, named + u64::from(!is_temporary(&path))),
        }
    }
    (all, named)
}

#[test]
fn many_files_go_on_after_a_killed_restore() {
    const FILES: u64 = 6000;
    let rig = rig_through(Rig::new(66));
    add_files(&rig, FILES, 700);
    rig.backup().unwrap();
    let picture = rig.tree.picture();
    let (mut between, mut leftovers) = (0, 0);
    for life in 0..5 {
        let target = rig.temp.path().join(format!("target{life}"));
        let mut child = start_mortal(&rig, &target);
        let began = Instant::now();
        // From the first files on their way to many with their names.
        while began.elapsed() < Duration::from_secs(60) && child.try_wait().unwrap().is_none() {
            let (all, named) = count_files(&target);
            if (life == 0 && all > 100) || (life > 0 && named > (life - 1) * 1500) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let there = names_below(&target);
        leftovers += there.iter().filter(|path| is_temporary(path)).count();
        let named = assert_names_promise_contents(&picture, &target) as u64;
        between += u64::from(named > 0 && named < FILES);
        let report = latest(&rig, &target, &OVER).unwrap();
        assert!(report.is_complete(), "{report:?}");
        assert_eq!((report.files + report.files_kept, report.files_kept), (FILES, named));
        assert!(!names_below(&target).iter().any(|path| is_temporary(path)));
        assert_restored(&picture, &target);
    }
    assert!(between > 0 && leftovers > 0, "{between} between, {leftovers} leftovers");
}

#[test]
fn many_files_of_one_directory_keep_its_time_and_order() {
    let rig = rig_through(Rig::new(67));
    {
        let mut state = rig.tree.lock();
        let outer = state.create(NodeId::ROOT, b"outer", NodeKind::Directory);
        let inner = state.create(outer, b"inner", NodeKind::Directory);
        for number in 0..1200_u64 {
            let dir = if number % 2 == 0 { outer } else { inner };
            let file = state.create(dir, format!("f{number}").as_bytes(), NodeKind::File);
            state.write(file, 0, &noise(number, 64));
        }
        state.set_time(inner, 1_000_000_007);
        state.set_time(outer, 2_000_000_009);
        state.set_mode(inner, 0o500);
    }
    rig.backup().unwrap();
    let target = rig.temp.path().join("target");
    let changed = Mutex::new(Vec::new());
    let reported = RecordingMonitor::new(|event, _| {
        if let Event::FileDone { path: Some(path) } = event {
            changed.lock().unwrap().push(path.to_string());
        }
    });
    rig.restore(SnapshotSpec::default(), &target, &OVER, &reported).unwrap();
    assert_eq!(changed.lock().unwrap().len(), 1200);
    assert_restored(&rig.tree.picture(), &target);
}
