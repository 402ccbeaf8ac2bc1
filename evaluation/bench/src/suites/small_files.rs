//! Many small files, beside restic: the first backup of 200,000 files of 1,000 random bytes, the
//! second one without a change, and the restore.
//!
//! Each round begins with an empty store, an empty state of the client and an empty repository, and
//! the folder in the page cache. Byteback mounts the folder, which records its names, and backs it
//! up to its server on this machine, over a proxy that counts; restic backs up the backing folder,
//! into a repository on the same disk. The folders that both restore are compared with it in each
//! round, outside of the measured time.
//!
//! restic always encrypts and Byteback does not yet; the cost of that is within its CPU time.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::alternate::{Contender, Measures, alternate_after};
use crate::compare::compare;
use crate::random::Random;
use crate::report::{Goal, Metric, OURS, Record, record};
use crate::rig::byteback::Byteback;
use crate::rig::interrupt;
use crate::rig::restic::{self, Restic};
use crate::rig::scratch::{self, Scratch};
use crate::{Options, SuiteError};

const SUITE: &str = "small-files";
const PEER: &str = "restic";

const FILES: u64 = 200_000;
const FILES_QUICK: u64 = 20_000;
const FILE_BYTES: u64 = 1000;
const FILES_PER_FOLDER: u64 = 100;

/// The wire may have this multiple of the content, and these bytes for each file.
const WIRE_FACTOR: f64 = 1.02;
const WIRE_BYTES_PER_FILE: f64 = 40.0;

const METRICS: [Metric; 9] = [
    metric("mount", "s", None),
    metric("mount and first backup", "s", Some(Goal::TimesPeer(1.0, PEER))),
    metric("CPU of the backup, all programs", "s", Some(Goal::TimesPeer(1.0, PEER))),
    metric(
        "wire, each file",
        "B",
        Some(Goal::AtMost(WIRE_FACTOR * FILE_BYTES as f64 + WIRE_BYTES_PER_FILE)),
    ),
    metric("store, each file", "B", Some(Goal::TimesPeer(1.0, PEER))),
    metric("client state, each file", "B", Some(Goal::AtMost(120.0))),
    metric("client peak memory", "MiB", None),
    metric("second backup", "s", Some(Goal::TimesPeer(1.0, PEER))),
    metric("restore", "s", Some(Goal::TimesPeer(1.0, PEER))),
];

const fn metric(name: &'static str, unit: &'static str, goal: Option<Goal>) -> Metric {
    Metric { name, unit, goal }
}

/// The equipment of all rounds.
struct TestBed {
    folder: PathBuf,
    files: u64,
    scratch: Scratch,
}

/// Runs the suite.
///
/// # Errors
/// If restic is not installed, a program fails, a restored folder differs, or the user asks to
/// stop.
pub(crate) fn run(options: Options) -> Result<Vec<Record>, SuiteError> {
    if !restic::is_installed() {
        return Err("this suite compares with restic; install it (apt-get install restic)".into());
    }
    let files = if options.quick { FILES_QUICK } else { FILES };
    // A file takes a block of the disk: room for the folder, a restored one, and the stores.
    let scratch = Scratch::create(&Scratch::default_parent()?, files * 16_384)?;
    let folder = scratch.folder("data")?;
    tell("making the folder");
    make(&folder, files)?;
    let test_bed = TestBed { folder, files, scratch };
    tell(&format!("{files} files, beside restic {}", restic::version()?));
    let results = {
        let mut contenders = vec![
            Contender::new(OURS, || ours(&test_bed)),
            Contender::new(PEER, || theirs(&test_bed)),
        ];
        let before = |round: usize| {
            tell(&format!("round {round} of {}", options.runs));
            Ok(())
        };
        alternate_after(options.runs, before, &mut contenders)?
    };
    let case = format!("{files} files of {FILE_BYTES} bytes");
    let records = METRICS
        .into_iter()
        .filter_map(|metric| record(SUITE, &case, metric, &results));
    Ok(records.collect())
}

fn tell(what: &str) {
    // Reports progress on standard error; a failure to do so does not matter.
    let _ = writeln!(io::stderr(), "{SUITE}: {what}");
}

fn make(folder: &Path, files: u64) -> Result<(), SuiteError> {
    let mut random = Random::new(files);
    let mut bytes = vec![0; usize::try_from(FILE_BYTES)?];
    for number in 0..files {
        interrupt::check()?;
        let below = folder.join(format!("folder {:05}", number / FILES_PER_FOLDER));
        if number % FILES_PER_FOLDER == 0 {
            fs::create_dir(&below)?;
        }
        random.fill(&mut bytes);
        fs::write(below.join(format!("file {number:07}.dat")), &bytes)?;
    }
    Ok(())
}

impl TestBed {
    fn per_file(&self, bytes: u64) -> f64 {
        // Both below 2^53.
        bytes as f64 / self.files as f64
    }

    /// Compares what was restored with the folder, and removes it.
    fn check(&self, name: &str, restored: &Path) -> Result<(), SuiteError> {
        let comparison = compare(&self.folder, restored, |_| ())?;
        match comparison.is_equal() {
            true => Ok(()),
            false => Err(format!("what {name} restored differs: {}", comparison.told.join("; ")).into()),
        }
    }
}

/// Waits until the disk has what was written before: the next step's syncs would wait for it.
fn rest() {
    rustix::fs::sync();
}

fn ours(test_bed: &TestBed) -> Result<Measures, SuiteError> {
    let round = test_bed.scratch.folder("ours")?;
    let below = |name: &str| -> Result<PathBuf, SuiteError> {
        let path = round.join(name);
        fs::create_dir(&path)?;
        Ok(path)
    };
    let (home, store, point) = (below("home")?, below("store")?, below("mounted")?);
    let byteback = Byteback::locate(home.clone())?;
    let server = byteback.serve(&store)?;
    byteback.init(&server, &test_bed.folder, SUITE)?;
    rest();
    let started = Instant::now();
    let mount = byteback.mount(&test_bed.folder, Some(&point))?;
    let mount_s = started.elapsed().as_secs_f64();
    mount.reset_peak()?;
    let first = byteback.backup(&server, &mount, |_| ())?;
    let second = byteback.backup(&server, &mount, |_| ())?;
    let snapshot = second.summary.snapshot_id.or(first.summary.snapshot_id);
    let restored = round.join("restored");
    let snapshot = snapshot.ok_or("a backup made no snapshot")?;
    rest();
    let restore = byteback.restore(&test_bed.folder, snapshot, &restored, |_| ())?;
    test_bed.check(OURS, &restored)?;
    mount.unmount()?;
    server.stop()?;
    let peak_bytes = first.daemon.peak_bytes + first.command.peak_bytes;
    let measures = Measures::from([
        ("mount", mount_s),
        ("mount and first backup", mount_s + first.wall_s),
        (
            "CPU of the backup, all programs",
            first.client_cpu_s() + first.server.cpu_s,
        ),
        ("wire, each file", test_bed.per_file(first.wire.total())),
        ("store, each file", test_bed.per_file(len_bytes(&store)?)),
        ("client state, each file", test_bed.per_file(len_bytes(&home)?)),
        // Below 2^53.
        ("client peak memory", peak_bytes as f64 / f64::from(1 << 20)),
        ("second backup", second.wall_s),
        ("restore", restore.wall_s),
    ]);
    scratch::remove(&round)?;
    Ok(measures)
}

fn theirs(test_bed: &TestBed) -> Result<Measures, SuiteError> {
    let round = test_bed.scratch.folder("theirs")?;
    let (repository, cache, target) = (round.join("repository"), round.join("cache"), round.join("target"));
    for folder in [&repository, &cache, &target] {
        fs::create_dir(folder)?;
    }
    let restic = Restic::create(&repository, &cache)?;
    rest();
    let first = restic.backup(&test_bed.folder)?;
    let second = restic.backup(&test_bed.folder)?;
    rest();
    let (restored, restore) = restic.restore(&test_bed.folder, &target)?;
    test_bed.check(PEER, &restored)?;
    let measures = Measures::from([
        ("mount and first backup", first.wall_s),
        ("CPU of the backup, all programs", first.cost.cpu_s),
        ("store, each file", test_bed.per_file(len_bytes(&repository)?)),
        ("client state, each file", test_bed.per_file(len_bytes(&cache)?)),
        // Below 2^53.
        ("client peak memory", first.cost.peak_bytes as f64 / f64::from(1 << 20)),
        ("second backup", second.wall_s),
        ("restore", restore.wall_s),
    ]);
    scratch::remove(&round)?;
    Ok(measures)
}

/// Bytes in all files below a folder.
fn len_bytes(path: &Path) -> Result<u64, SuiteError> {
    let mut bytes = 0;
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            match entry.metadata()? {
                metadata if metadata.is_dir() => folders.push(entry.path()),
                metadata => bytes += metadata.size(),
            }
        }
    }
    Ok(bytes)
}
