//! Fifty backups of a folder in use, beside restic: a disk image of 2 GiB and 2,500 small files,
//! 2.2 GB in all.
//!
//! Before each backup a program writes 64 pieces of 4 KiB into the image at random places, rewrites
//! ten small files, makes ten and removes five, through the mount. Then Byteback and restic back up
//! the same state, in turn: Byteback the mounted folder, to its server on this machine; restic the
//! backing folder, into a repository on the same disk. Both have the folder in the page cache. At
//! the end both restore the newest backup, and what they restore is compared with the folder. The
//! server verifies it too: what that reads is compared with what there is.
//!
//! restic always encrypts and Byteback does not yet; the cost of that is within its CPU time. Most
//! of its time goes into reading and chunking the image, which changed somewhere.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::alternate::{Contender, Measures, Results, Samples, alternate_after};
use crate::compare::compare;
use crate::random::Random;
use crate::report::{Goal, Metric, OURS, Record, record};
use crate::rig::byteback::{Byteback, Mount, Server};
use crate::rig::interrupt;
use crate::rig::restic::{self, Restic};
use crate::rig::scratch::{self, Scratch};
use crate::{Options, SuiteError};

const SUITE: &str = "history";
const PEER: &str = "restic";

const BACKUPS: usize = 50;
const BACKUPS_QUICK: usize = 5;
const IMAGE_BYTES: u64 = 2 << 30;
const IMAGE_BYTES_QUICK: u64 = 256 << 20;
const SMALL_FILES: u64 = 2500;
const SMALL_FILE_BYTES: usize = 20_000;
const PIECES: usize = 64;
const PIECE_BYTES: usize = 4096;
const REWRITTEN: u64 = 10;
const MADE: u64 = 10;
const REMOVED: u64 = 5;

const METRICS: [Metric; 5] = [
    metric("wall", "s"),
    metric("CPU, all programs", "s"),
    metric("read by the client", "MiB"),
    metric("growth of the store", "MiB"),
    metric("peak memory of the client", "MiB"),
];

/// Reads of the store for a verification.
const VERIFY_READ: Metric = Metric {
    name: "stored bytes read for each byte of content",
    unit: "ratio",
    goal: Some(Goal::AtMost(1.2)),
};

const fn metric(name: &'static str, unit: &'static str) -> Metric {
    Metric { name, unit, goal: None }
}

/// The equipment of all rounds. Fields are dropped in order: the mount before the server, and the
/// folder last.
struct TestBed {
    mount: Mount,
    server: Server,
    byteback: Byteback,
    restic: Restic,
    /// The backing folder.
    folder: PathBuf,
    store: PathBuf,
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
    let (backups, image_bytes) = match options.quick {
        true => (BACKUPS_QUICK, IMAGE_BYTES_QUICK),
        false => (BACKUPS, IMAGE_BYTES),
    };
    // Room for the folder, two stores of it, and one restored folder at a time.
    let scratch = Scratch::create(&Scratch::default_parent()?, 5 * image_bytes)?;
    let byteback = Byteback::locate(scratch.folder("home")?)?;
    let (folder, point, store) = (
        scratch.folder("data")?,
        scratch.folder("mounted")?,
        scratch.folder("store")?,
    );
    tell("making the folder");
    make(&folder, image_bytes)?;
    let restic = Restic::create(&scratch.folder("repository")?, &scratch.folder("cache")?)?;
    let server = byteback.serve(&store)?;
    byteback.init(&server, &folder, SUITE)?;
    let mount = byteback.mount(&folder, Some(&point))?;
    let test_bed = TestBed {
        mount,
        server,
        byteback,
        restic,
        folder,
        store,
        scratch,
    };
    tell(&format!(
        "first backups, then {backups} more beside restic {}",
        restic::version()?
    ));
    ours(&test_bed)?;
    theirs(&test_bed)?;
    let mut last_snapshot = None;
    let results = {
        let mut contenders = vec![
            Contender::new(OURS, || {
                let (measures, snapshot) = ours(&test_bed)?;
                last_snapshot = snapshot;
                Ok(measures)
            }),
            Contender::new(PEER, || theirs(&test_bed)),
        ];
        let before = |round: usize| {
            tell(&format!("backup {round} of {backups}"));
            change(test_bed.mount.point(), image_bytes, round as u64)
        };
        alternate_after(backups, before, &mut contenders)?
    };
    let snapshot = last_snapshot.ok_or("a backup made no snapshot")?;
    let restored = restore_both(&test_bed, snapshot)?;
    let verified = verify(&test_bed)?;
    let mut records: Vec<Record> = METRICS
        .into_iter()
        .filter_map(|metric| record(SUITE, "each backup", metric, &results))
        .collect();
    records.extend(record(SUITE, "restore of the newest", metric("wall", "s"), &restored));
    for metric in [VERIFY_READ, metric("wall", "s")] {
        records.extend(record(SUITE, "verification of the newest", metric, &verified));
    }
    test_bed.mount.unmount()?;
    Ok(records)
}

fn tell(what: &str) {
    // Reports progress on standard error; a failure to do so does not matter.
    let _ = writeln!(io::stderr(), "history: {what}");
}

// All below 2^53.
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn ours(test_bed: &TestBed) -> Result<(Measures, Option<u64>), SuiteError> {
    let before = disk_usage(&test_bed.store)?;
    test_bed.mount.reset_peak()?;
    let backup = test_bed.byteback.backup(&test_bed.server, &test_bed.mount, |_| ())?;
    let measures = Measures::from([
        ("wall", backup.wall_s),
        ("CPU, all programs", backup.client_cpu_s() + backup.server.cpu_s),
        ("read by the client", mib(backup.client_read_bytes())),
        ("growth of the store", mib(disk_usage(&test_bed.store)?) - mib(before)),
        // The mount's and the command's: both run on the client.
        (
            "peak memory of the client",
            mib(backup.daemon.peak_bytes + backup.command.peak_bytes),
        ),
    ]);
    Ok((measures, backup.summary.snapshot_id))
}

fn theirs(test_bed: &TestBed) -> Result<Measures, SuiteError> {
    let before = disk_usage(test_bed.restic.repository())?;
    let finished = test_bed.restic.backup(&test_bed.folder)?;
    Ok(Measures::from([
        ("wall", finished.wall_s),
        ("CPU, all programs", finished.cost.cpu_s),
        ("read by the client", mib(finished.cost.read_bytes)),
        (
            "growth of the store",
            mib(disk_usage(test_bed.restic.repository())?) - mib(before),
        ),
        ("peak memory of the client", mib(finished.cost.peak_bytes)),
    ]))
}

/// Restores the newest backup of each, compares it with the folder, and returns how long it took.
fn restore_both(test_bed: &TestBed, snapshot: u64) -> Result<Results, SuiteError> {
    let mut results = Results::new();
    for name in [OURS, PEER] {
        tell(&format!("restoring and comparing what {name} has"));
        let target = test_bed.scratch.folder("restored")?;
        let (restored, finished) = match name {
            OURS => {
                let restored = target.join("folder");
                let finished = test_bed
                    .byteback
                    .restore(&test_bed.folder, snapshot, &restored, |_| ())?;
                (restored, finished)
            }
            _ => test_bed.restic.restore(&test_bed.folder, &target)?,
        };
        let comparison = compare(&test_bed.folder, &restored, |_| ())?;
        if !comparison.is_equal() {
            return Err(format!("what {name} restored differs: {}", comparison.told.join("; ")).into());
        }
        scratch::remove(&target)?;
        let wall: Samples = std::iter::once(finished.wall_s).collect();
        results.insert(name, [("wall", wall)].into());
    }
    Ok(results)
}

/// Verifies the newest backup: what is read, against the bytes of all files, and how long it takes.
fn verify(test_bed: &TestBed) -> Result<Results, SuiteError> {
    tell("verifying");
    let (read_bytes, finished) = test_bed.byteback.verify(&test_bed.folder)?;
    let content_bytes = content_len(&test_bed.folder)?;
    let one = |value: f64| std::iter::once(value).collect::<Samples>();
    let measures = [
        (VERIFY_READ.name, one(mib(read_bytes) / mib(content_bytes))),
        ("wall", one(finished.wall_s)),
    ];
    Ok(Results::from([(OURS, measures.into())]))
}

/// Bytes of all files below `path`.
fn content_len(path: &Path) -> Result<u64, SuiteError> {
    let mut bytes = 0;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += match metadata.is_dir() {
            true => content_len(&entry.path())?,
            false => metadata.len(),
        };
    }
    Ok(bytes)
}

/// Bytes that the files below `path` take on the disk.
fn disk_usage(path: &Path) -> Result<u64, SuiteError> {
    let mut bytes = 0;
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => folders.push(entry.path()),
                Ok(metadata) => bytes += metadata.blocks() * 512,
                // Taken away meanwhile, by the store or by restic.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(bytes)
}

fn small_file(folder: &Path, number: u64) -> PathBuf {
    folder
        .join("mail")
        .join(format!("{:02}", number % 50))
        .join(format!("{number}"))
}

/// Random letters: they compress to three quarters, about as encoded attachments do.
fn write_small_file(folder: &Path, number: u64, random: &mut Random) -> Result<(), SuiteError> {
    let path = small_file(folder, number);
    let mut bytes = vec![0; SMALL_FILE_BYTES];
    random.fill(&mut bytes);
    for byte in &mut bytes {
        *byte = b'0' + (*byte & 63);
    }
    fs::write(&path, bytes).map_err(|error| format!("cannot write {}: {error}", path.display()).into())
}

fn make(folder: &Path, image_bytes: u64) -> Result<(), SuiteError> {
    let mut random = Random::new(image_bytes);
    let mut image = File::create(folder.join("image"))?;
    let mut block = vec![0; 1 << 20];
    for _ in 0..image_bytes >> 20 {
        interrupt::check()?;
        random.fill(&mut block);
        image.write_all(&block)?;
    }
    for number in 0..50 {
        fs::create_dir_all(folder.join("mail").join(format!("{number:02}")))?;
    }
    (0..SMALL_FILES).try_for_each(|number| write_small_file(folder, number, &mut random))
}

/// The work of a program between two backups. Files that are removed are the oldest, those that are
/// made have numbers behind all others, and those that are rewritten lie between.
fn change(folder: &Path, image_bytes: u64, round: u64) -> Result<(), SuiteError> {
    let mut random = Random::new(round + 1);
    let image = OpenOptions::new().write(true).open(folder.join("image"))?;
    let mut piece = vec![0; PIECE_BYTES];
    for offset in random.clone().scattered(PIECES, PIECE_BYTES as u64, image_bytes) {
        random.fill(&mut piece);
        image.write_all_at(&piece, offset)?;
    }
    for _ in 0..REWRITTEN {
        let number = SMALL_FILES / 2 + random.below(SMALL_FILES / 2);
        write_small_file(folder, number, &mut random)?;
    }
    for at in 0..MADE {
        write_small_file(folder, SMALL_FILES + round * MADE + at, &mut random)?;
    }
    for at in 0..REMOVED {
        fs::remove_file(small_file(folder, round * REMOVED + at))?;
    }
    Ok(())
}
