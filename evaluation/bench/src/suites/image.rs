//! Small changes in a large file: 1 KiB pieces at random places, 1 MiB in all, in an image of 4
//! GiB, beside rsync.
//!
//! Before each round the pieces are written through the mount; then Byteback and rsync transfer the
//! same change, in turn. rsync reads the file in its backing folder, not through the mount, and its
//! destination holds the state of the previous round; so does our server. Both have the file in the
//! page cache. The image holds random bytes, so that no contender profits from repetitions. Two
//! cases: pieces of random bytes, and pieces of real source text, which compress; there rsync also
//! runs with `-z`. At the end of a case the restored image and rsync's copies are compared with the
//! image.
//!
//! Goals: on the wire at most 1.02 x changed + 2 KiB; read at most 1.1 x changed; CPU time of
//! client and server at most 1/200 of rsync's.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::alternate::{Contender, Measures, alternate_after};
use crate::compare::compare;
use crate::random::Random;
use crate::real_files::readable_files;
use crate::report::{Goal, Metric, OURS, Record, record};
use crate::rig::byteback::{Backup, Byteback, Mount, Server};
use crate::rig::interrupt;
use crate::rig::process::{program, run as run_program};
use crate::rig::rsync::{Rsync, Transfer};
use crate::rig::scratch::{self, Scratch};
use crate::{Options, SuiteError};

const SUITE: &str = "image";
const PEER: &str = "rsync";
const PEER_COMPRESSING: &str = "rsync -z";

const IMAGE_BYTES: u64 = 4 << 30;
const IMAGE_BYTES_QUICK: u64 = 1 << 30;
const PIECE_BYTES: usize = 1024;
const PIECES: usize = 1024;
const CHANGED_KIB: f64 = 1024.0;
const TEXT_BYTES: u64 = 16 << 20;

const RSYNC_OPTIONS: [&str; 3] = ["-a", "--inplace", "--no-whole-file"];

const METRICS: [Metric; 12] = [
    metric("reported as changed", "KiB", None),
    metric("wire", "KiB", Some(Goal::AtMost(1.02 * CHANGED_KIB + 2.0))),
    metric("read from the file", "KiB", Some(Goal::AtMost(1.1 * CHANGED_KIB))),
    metric("read by any call, client", "KiB", None),
    metric("read by any call, server", "KiB", None),
    metric("client CPU", "ms", None),
    metric("server CPU", "ms", None),
    metric("CPU", "ms", Some(Goal::TimesPeer(1.0 / 200.0, PEER))),
    metric("wall", "ms", None),
    metric("stored", "KiB", None),
    metric("mount peak memory", "MiB", None),
    metric("server peak memory", "MiB", None),
];

const fn metric(name: &'static str, unit: &'static str, goal: Option<Goal>) -> Metric {
    Metric { name, unit, goal }
}

/// The equipment of all rounds. Fields are dropped in order: the mount before the server, and the
/// folder last.
struct TestBed {
    mount: Mount,
    server: Server,
    byteback: Byteback,
    /// The backing folder of the image.
    folder: PathBuf,
    scratch: Scratch,
}

/// Runs the suite.
///
/// # Errors
/// If a program fails, if a restored file differs, or if the user asks to stop.
pub(crate) fn run(options: Options) -> Result<Vec<Record>, SuiteError> {
    let image_bytes = if options.quick { IMAGE_BYTES_QUICK } else { IMAGE_BYTES };
    // Room for the image, its store, two destinations of rsync and one restored image.
    let scratch = Scratch::create(&Scratch::default_parent()?, 5 * image_bytes + (1 << 30))?;
    let byteback = Byteback::locate(scratch.folder("home")?)?;
    let (folder, point) = (scratch.folder("data")?, scratch.folder("mounted")?);
    tell("making the image");
    make_image(&folder.join("image"), image_bytes)?;
    let server = byteback.serve(&scratch.folder("store")?)?;
    byteback.init(&server, &folder, SUITE)?;
    let mount = byteback.mount(&folder, Some(&point))?;
    tell("first backup");
    byteback.backup(&server, &mount, |_| ())?;
    let test_bed = TestBed {
        mount,
        server,
        byteback,
        folder,
        scratch,
    };
    let mut records = Vec::new();
    for (case, peers, text) in [
        ("random pieces", &[PEER][..], Vec::new()),
        ("pieces of source text", &[PEER, PEER_COMPRESSING][..], source_text()?),
    ] {
        records.extend(run_case(&test_bed, case, peers, &text, image_bytes, options.runs)?);
    }
    test_bed.mount.unmount()?;
    Ok(records)
}

fn tell(what: &str) {
    // Reports progress on standard error; a failure to do so does not matter.
    let _ = writeln!(io::stderr(), "image: {what}");
}

fn run_case(
    test_bed: &TestBed,
    case: &'static str,
    peers: &[&'static str],
    text: &[u8],
    image_bytes: u64,
    runs: usize,
) -> Result<Vec<Record>, SuiteError> {
    let mut destinations = Vec::new();
    for peer in peers {
        tell(&format!("{case}: a copy for {peer} to begin with"));
        let destination = test_bed.scratch.path().join(format!("destination of {peer}"));
        run_program(
            program("cp")
                .args(["-a", "--no-target-directory"])
                .arg(&test_bed.folder)
                .arg(&destination),
        )?;
        destinations.push((*peer, destination));
    }
    let work = test_bed.scratch.path();
    let mut last_snapshot = None;
    let mut contenders = vec![Contender::new(OURS, || {
        let backup = measured_backup(test_bed)?;
        last_snapshot = backup.summary.snapshot_id;
        Ok(our_measures(&backup))
    })];
    for (peer, destination) in &destinations {
        contenders.push(Contender::new(peer, move || {
            let mut options = RSYNC_OPTIONS.to_vec();
            if *peer == PEER_COMPRESSING {
                options.push("-z");
            }
            Ok(their_measures(
                &Rsync::new(destination, work).transfer(&test_bed.folder, &options)?,
            ))
        }));
    }
    let before = |round: usize| {
        tell(&format!("{case}: round {round} of {runs}"));
        // Another seed for each round of each case.
        let seed = (text.len() + round) as u64;
        change(&test_bed.mount.point().join("image"), image_bytes, text, seed)
    };
    let results = alternate_after(runs, before, &mut contenders)?;
    drop(contenders);

    tell(&format!("{case}: comparing the restored data"));
    let restored = test_bed.scratch.path().join("restored");
    let snapshot = last_snapshot.ok_or("a backup made no snapshot")?;
    test_bed
        .byteback
        .restore(&test_bed.folder, snapshot, &restored, |_| ())?;
    destinations.push((OURS, restored));
    for (name, copy) in destinations {
        let comparison = compare(&test_bed.folder, &copy, |_| ())?;
        if !comparison.is_equal() {
            return Err(format!(
                "{case}: the data that {name} kept differs: {}",
                comparison.told.join("; ")
            )
            .into());
        }
        scratch::remove(&copy)?;
    }
    Ok(METRICS
        .into_iter()
        .filter_map(|metric| record(SUITE, case, metric, &results))
        .collect())
}

fn measured_backup(test_bed: &TestBed) -> Result<Backup, SuiteError> {
    test_bed.mount.reset_peak()?;
    test_bed.server.reset_peak()?;
    test_bed.byteback.backup(&test_bed.server, &test_bed.mount, |_| ())
}

// All below 2^53.
fn kib(bytes: u64) -> f64 {
    bytes as f64 / 1024.0
}

fn our_measures(backup: &Backup) -> Measures {
    Measures::from([
        ("reported as changed", kib(backup.summary.changed_bytes)),
        ("wire", kib(backup.wire.total())),
        ("read from the file", kib(backup.summary.read_bytes)),
        ("read by any call, client", kib(backup.client_read_bytes())),
        ("read by any call, server", kib(backup.server.read_bytes)),
        ("client CPU", backup.client_cpu_s() * 1e3),
        ("server CPU", backup.server.cpu_s * 1e3),
        ("CPU", (backup.client_cpu_s() + backup.server.cpu_s) * 1e3),
        ("wall", backup.wall_s * 1e3),
        ("stored", kib(backup.summary.stored_bytes)),
        // Not the command's, because the kernel charges a program that has ended with its starter's
        // memory, too.
        ("mount peak memory", kib(backup.daemon.peak_bytes) / 1024.0),
        ("server peak memory", kib(backup.server.peak_bytes) / 1024.0),
    ])
}

fn their_measures(transfer: &Transfer) -> Measures {
    Measures::from([
        ("wire", kib(transfer.wire.total())),
        ("read from the file", kib(transfer.file_read_bytes())),
        ("read by any call, client", kib(transfer.client.read_bytes)),
        ("read by any call, server", kib(transfer.server.read_bytes)),
        ("client CPU", transfer.client.cpu_s * 1e3),
        ("server CPU", transfer.server.cpu_s * 1e3),
        ("CPU", (transfer.client.cpu_s + transfer.server.cpu_s) * 1e3),
        ("wall", transfer.wall_s * 1e3),
    ])
}

fn make_image(path: &Path, len_bytes: u64) -> Result<(), SuiteError> {
    let mut random = Random::new(len_bytes);
    let mut file = File::create(path)?;
    let mut block = vec![0; 1 << 20];
    for _ in 0..len_bytes >> 20 {
        interrupt::check()?;
        random.fill(&mut block);
        file.write_all(&block)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}

/// Overwrites scattered pieces with slices of `text`, or with random bytes if there is none.
fn change(image: &Path, image_bytes: u64, text: &[u8], seed: u64) -> Result<(), SuiteError> {
    let mut random = Random::new(seed);
    let file = OpenOptions::new().write(true).open(image)?;
    let mut piece = vec![0; PIECE_BYTES];
    for offset in random.clone().scattered(PIECES, PIECE_BYTES as u64, image_bytes) {
        match text.len().checked_sub(PIECE_BYTES) {
            Some(room @ 1..) => {
                let start = usize::try_from(random.below(room as u64))?;
                piece.copy_from_slice(&text[start..start + PIECE_BYTES]);
            }
            _ => random.fill(&mut piece),
        }
        file.write_all_at(&piece, offset)?;
    }
    Ok(())
}

/// Real source text: the headers of the C library and of the kernel.
fn source_text() -> Result<Vec<u8>, SuiteError> {
    let mut text = Vec::new();
    for file in readable_files(&["/usr/include"], TEXT_BYTES, usize::MAX)? {
        if file.path.extension().is_some_and(|extension| extension == "h") {
            text.extend(fs::read(&file.path)?);
        }
    }
    if text.len() < PIECES * PIECE_BYTES {
        return Err("too little source text in /usr/include; install libc6-dev and linux-libc-dev".into());
    }
    Ok(text)
}
