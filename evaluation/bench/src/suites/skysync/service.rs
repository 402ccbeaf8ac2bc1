//! The finders as users have them: the program backs up a folder that is not mounted, to a real
//! server, and `--delta` selects the way in which the change of its one file is found. The peer is
//! rsync, to its daemon on loopback.
//!
//! Before each round the file gets its next version, the same for all contenders, and is left alone
//! for some seconds. Processes are measured from outside, with their start. In the end every
//! contender's copy on the server is compared.

use std::cell::RefCell;
use std::fs::{self, File};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, SystemTime};

use super::content::{Edit, edited, real_bytes};
use super::micro::{CLIENT_CPU, SERVER_CPU};
use super::{Findings, tell};
use crate::alternate::{Contender, Measures, Results, alternate_after};
use crate::figure::{Cell, Figure, GoalRow, Limit, Panel};
use crate::rig::btrfs;
use crate::rig::byteback::{Byteback, Server};
use crate::rig::interrupt;
use crate::rig::rsync::Rsync;
use crate::rig::scratch::{self, Scratch};
use crate::{Options, SuiteError};

const FILE: &str = "file";
const LEN: usize = 100_000_000;
const LEN_QUICK: usize = 10_000_000;
const EDIT_LEN: usize = 1 << 20;

/// The time after a write before a file's checksums are kept.
const QUIET: Duration = Duration::from_millis(3500);

const RSYNC: &str = "rsync (program)";

/// Ways of finding changes, and whether the file lies on a btrfs with SHA-256.
const WAYS: [(&str, &str, bool); 9] = [
    ("--delta full", "full", false),
    ("--delta rsync", "rsync", false),
    ("--delta hash", "hash", false),
    ("--delta webr", "webr", false),
    ("--delta cdc", "cdc", false),
    ("--delta sky-f, btrfs", "sky-f", true),
    ("--delta sky-c, btrfs", "sky-c", true),
    ("--delta sky-f, no checksums", "sky-f", false),
    ("--delta auto, btrfs", "auto", true),
];

const CPU: &str = "CPU";
const METRICS: [(&str, &str); 7] = [
    (CLIENT_CPU, "client CPU (ms)"),
    (SERVER_CPU, "server CPU (ms)"),
    (CPU, "CPU (ms)"),
    ("wall", "wall (ms)"),
    ("traffic", "traffic (KiB)"),
    ("client read", "read by any call, client (KiB)"),
    ("server read", "read by any call, server (KiB)"),
];

/// A contender's folder and way of finding changes.
struct Way {
    name: &'static str,
    delta: &'static str,
    folder: PathBuf,
}

/// Fields are dropped in order: the server before the folder.
struct TestBed {
    server: Server,
    byteback: Byteback,
    ways: Vec<Way>,
    rsync_source: PathBuf,
    rsync_copy: PathBuf,
    scratch: Scratch,
}

impl TestBed {
    fn make(content: &[u8]) -> Result<Self, SuiteError> {
        let len = content.len() as u64;
        let scratch = Scratch::create(&Scratch::default_parent()?, 40 * len + (2 << 30))?;
        let byteback = Byteback::locate(scratch.folder("home")?)?;
        let server = byteback.serve(&scratch.folder("store")?)?;
        let disk = match btrfs::mount(&scratch, "sha256", 12 * len + (1 << 30)) {
            Ok(disk) => Some(disk),
            Err(error) => {
                tell(&format!("without btrfs, which cannot be mounted here: {error}"));
                None
            }
        };
        let mut ways = Vec::new();
        for (number, (name, delta, is_on_btrfs)) in WAYS.into_iter().enumerate() {
            if !byteback.knows_delta(delta)? {
                tell(&format!("without {delta}, which this program does not support"));
                continue;
            }
            let folder = match (is_on_btrfs, &disk) {
                (false, _) => scratch.folder(&format!("folder{number}"))?,
                (true, None) => continue,
                (true, Some(disk)) => {
                    let folder = disk.join(format!("folder{number}"));
                    fs::create_dir(&folder)?;
                    folder
                }
            };
            byteback.init(&server, &folder, &format!("skysync-{number}"))?;
            ways.push(Way { name, delta, folder });
        }
        let test_bed = Self {
            server,
            byteback,
            ways,
            rsync_source: scratch.folder("rsync-source")?,
            rsync_copy: scratch.folder("rsync-copy")?,
            scratch,
        };
        test_bed.write(Some(content))?;
        for way in &test_bed.ways {
            test_bed
                .byteback
                .backup_unmounted(&test_bed.server, &way.folder, "full")?;
        }
        test_bed.rsync()?;
        Ok(test_bed)
    }

    /// Writes the next version for all contenders; `None` changes the file's time only.
    fn write(&self, content: Option<&[u8]>) -> Result<(), SuiteError> {
        for folder in self.ways.iter().map(|way| &way.folder).chain([&self.rsync_source]) {
            interrupt::check()?;
            let path = folder.join(FILE);
            match content {
                Some(content) => fs::write(&path, content)?,
                None => File::options()
                    .write(true)
                    .open(&path)?
                    .set_modified(SystemTime::now())?,
            }
            File::open(&path)?.sync_all()?;
        }
        thread::sleep(QUIET);
        Ok(())
    }

    fn rsync(&self) -> Result<Measures, SuiteError> {
        let options = ["-a", "-I", "--no-whole-file"];
        let transfer = Rsync::new(&self.rsync_copy, self.scratch.path()).transfer(&self.rsync_source, &options)?;
        Ok(measures(
            [transfer.client.cpu_s, transfer.server.cpu_s, transfer.wall_s],
            transfer.wire.total(),
            [transfer.client.read_bytes, transfer.server.read_bytes],
        ))
    }

    /// Runs every contender's transfer of one change in turn.
    fn measure(
        &self,
        case: &str,
        edit: Option<Edit>,
        runs: usize,
        content: &RefCell<Vec<u8>>,
    ) -> Result<Results, SuiteError> {
        let snapshots = RefCell::new(vec![None; self.ways.len()]);
        let mut contenders = vec![Contender::new(RSYNC, || self.rsync())];
        for (number, way) in self.ways.iter().enumerate() {
            let snapshots = &snapshots;
            contenders.push(Contender::new(way.name, move || {
                let backup = self.byteback.backup_unmounted(&self.server, &way.folder, way.delta)?;
                snapshots.borrow_mut()[number] = backup.summary.snapshot_id;
                Ok(measures(
                    [backup.client_cpu_s(), backup.server.cpu_s, backup.wall_s],
                    backup.wire.total(),
                    [backup.client_read_bytes(), backup.server.read_bytes],
                ))
            }));
        }
        let before = |round: usize| {
            tell(&format!("service, {case}: round {round} of {runs}"));
            let Some(edit) = edit else { return self.write(None) };
            let next = edited(&content.borrow(), edit, EDIT_LEN, round as u64 + 1);
            *content.borrow_mut() = next;
            self.write(Some(&content.borrow()))
        };
        let results = alternate_after(runs, before, &mut contenders)?;
        drop(contenders);
        self.compare(&content.borrow(), &snapshots.into_inner())?;
        Ok(results)
    }

    fn compare(&self, content: &[u8], snapshots: &[Option<u64>]) -> Result<(), SuiteError> {
        if fs::read(self.rsync_copy.join(FILE))? != content {
            return Err("rsync's copy on the server differs from the file".into());
        }
        let restored = self.scratch.path().join("restored");
        for (way, snapshot) in self.ways.iter().zip(snapshots) {
            let snapshot = snapshot.ok_or("a backup made no snapshot")?;
            self.byteback.restore(&way.folder, snapshot, &restored, |_| ())?;
            if fs::read(restored.join(FILE))? != content {
                return Err(format!("the copy of {} on the server differs from the file", way.name).into());
            }
            scratch::remove(&restored)?;
        }
        Ok(())
    }
}

// Far below 2^53.
fn measures([client_s, server_s, wall_s]: [f64; 3], wire: u64, [client_read, server_read]: [u64; 2]) -> Measures {
    Measures::from([
        (CLIENT_CPU, client_s * 1e3),
        (SERVER_CPU, server_s * 1e3),
        (CPU, (client_s + server_s) * 1e3),
        ("wall", wall_s * 1e3),
        ("traffic", wire as f64 / 1024.0),
        ("client read", client_read as f64 / 1024.0),
        ("server read", server_read as f64 / 1024.0),
    ])
}

/// Runs the part.
///
/// # Errors
/// If a program fails, or a contender's copy on the server differs from the file.
pub(crate) fn run(options: Options) -> Result<Findings, SuiteError> {
    let len = if options.quick { LEN_QUICK } else { LEN };
    let content = RefCell::new(real_bytes(len)?);
    let test_bed = TestBed::make(&content.borrow())?;
    let mut panels = Vec::new();
    let mut goals = Vec::new();
    for (case, edit, less) in [
        ("unmodified", None, 50.0),
        ("1 MiB inverted", Some(Edit::Inverse), 20.0),
        ("1 MiB inserted", Some(Edit::Insert), 2.0),
    ] {
        let results = test_bed.measure(case, edit, options.runs, &content)?;
        let mut panel = Panel::new(case, "who", "", &METRICS.map(|(_, title)| title));
        for name in [RSYNC].into_iter().chain(test_bed.ways.iter().map(|way| way.name)) {
            let cell = |metric| Some(Cell::from(results.get(name)?.get(metric)?));
            panel.push(name, METRICS.map(|(metric, _)| cell(metric)).to_vec());
        }
        panels.push(panel);
        // The goals are for 100 MB.
        let goal_names = ["--delta sky-f, btrfs", "--delta auto, btrfs"];
        for name in goal_names.into_iter().filter(|_| !options.quick) {
            let cpu = |name: &str| results.get(name)?.get(CPU);
            if let (Some(theirs), Some(ours)) = (cpu(RSYNC), cpu(name)) {
                goals.push(GoalRow::new(
                    format!("rsync's CPU over that of {name}: {case}, through the server"),
                    "x",
                    Limit::AtLeast(less),
                    Cell::from(&theirs.over(ours)),
                ));
            }
        }
    }
    let about = format!(
        "A file of {len} bytes of real files, changed in pieces of 256 bytes; block lengths as each chooses them. `byteback backup` of a folder \
         that is not mounted, to a server on loopback; rsync -a -I --no-whole-file to its daemon. CPU is that of the processes, with their start."
    );
    let figure = Figure {
        id: "service",
        title: "Through the program and a server".to_owned(),
        about,
        panels,
    };
    Ok(Findings {
        figures: vec![figure],
        goals,
    })
}
