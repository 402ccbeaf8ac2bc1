//! The main job on real data: a three-minute demonstration of Byteback.
//!
//! A folder of real data is mounted and backed up, real programs change it, and it is backed up
//! again. Both snapshots are restored and compared, to the last byte and attribute, with plain
//! copies of both states. Then rsync does the same second backup: it starts from a plain copy of
//! the first state and gets a plain copy of the second one, so our mount costs it nothing.
//! Everything happens below one temporary folder, which is removed at the end, also after Ctrl-C.

mod changes;
mod data;
mod progress;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use crate::alternate::Results;
use crate::compare::{Comparison, Difference, compare, difference};
use crate::report::{Metric, OURS, Record, record};
use crate::rig::byteback::{Backup, Byteback, Mount, Status};
use crate::rig::interrupt;
use crate::rig::process::{program, run};
use crate::rig::rsync::{Rsync, Transfer};
use crate::rig::scratch::{self, Scratch};
use crate::{Options, SuiteError};

use changes::{CHANGES, check_soundness};
use data::Data;
use progress::{Progress, Step};
use table::{Row, bytes, seconds, table};

/// The largest need of space: the folder, the store, two copies and one restored folder.
const NEEDED_BYTES: u64 = 7 << 30;

const PEER: &str = "rsync";

/// Everything that a backup of a folder with odd files should carry; in place, as suits large
/// images.
const RSYNC_OPTIONS: [&str; 5] = ["-aHAX", "--delete", "--inplace", "--no-whole-file", "--numeric-ids"];

/// Explanations of the figures, printed below their table.
const NOTES: [&str; 7] = [
    "changed   bytes that differ between both states, place by place, and bytes of new",
    "          files: counted by comparing plain copies of the two states",
    "noted     ranges that programs wrote since the first backup, by the mount",
    "read      from files, by any call, as the kernel counts; the page cache was warm",
    "sent      in both directions, counted on the socket",
    "stored    growth on disk: Byteback now keeps both states, rsync the second one",
    "mount     what it cost to know the changes, while the programs worked",
];

/// Plain copies of the two states, which everything is compared with.
struct States {
    first: std::path::PathBuf,
    second: std::path::PathBuf,
}

/// Runs the demo, prints it for the user, and returns the figures.
///
/// # Errors
/// If a step fails, if a restored folder differs, or if the user asks to stop.
pub(crate) fn run_demo(_: Options) -> Result<Vec<Record>, SuiteError> {
    let started = Instant::now();
    let progress = Progress::new();
    let scratch = Scratch::create(&Scratch::default_parent()?, NEEDED_BYTES)?;
    progress.say(&format!(
        "Byteback demo: a folder is backed up, changed, backed up again, and restored.\n\
         Everything happens in {}, which is removed at the end.",
        scratch.path().display()
    ));
    let records = in_folder(&scratch, &progress)?;
    progress.section("Cleaning up");
    progress.step("no file, process or mount is left behind", None, |_| scratch.remove())?;
    progress.say(&format!("\nDone in {:.0} s.", started.elapsed().as_secs_f64()));
    Ok(records)
}

fn in_folder(scratch: &Scratch, progress: &Progress) -> Result<Vec<Record>, SuiteError> {
    let byteback = Byteback::locate(scratch.folder("home")?)?;
    let (folder, store, work) = (
        scratch.folder("data")?,
        scratch.folder("store")?,
        scratch.folder("work")?,
    );
    let states = States {
        first: scratch.path().join("first-state"),
        second: scratch.path().join("second-state"),
    };

    progress.section("A folder of real data");
    let data = data::build(&folder, &work, progress)?;

    progress.section("First backup");
    let server = progress.step("byteback serve, byteback init", None, |_| {
        let server = byteback.serve(&store)?;
        byteback.init(&server, &folder, "demo")?;
        Ok(server)
    })?;
    let mount = progress.step("byteback mount: from here on, every write is noted", None, |_| {
        byteback.mount(&folder, None)
    })?;
    let first = progress.step("byteback backup: the first one reads everything", None, |step| {
        byteback.backup(&server, &mount, reaching(step))
    })?;
    progress.step("cp -a: this state, to compare with", None, |_| {
        copy(&folder, &states.first)
    })?;

    progress.section("Real programs change the folder");
    let tracking_cpu_s = change(&mount, &data, &work, progress)?;

    progress.section("Second backup");
    let stored_before = allocated_bytes(&store)?;
    let second = progress.step("byteback backup: reads what was written", None, |step| {
        byteback.backup(&server, &mount, reaching(step))
    })?;
    let stored_bytes = allocated_bytes(&store)?.saturating_sub(stored_before);
    progress.step("cp -a: this state, to compare with", None, |_| {
        copy(&folder, &states.second)
    })?;

    progress.section("Both states are restored");
    let mut comparisons = Vec::new();
    for (name, backup, state) in [("first", &first, &states.first), ("second", &second, &states.second)] {
        let target = scratch.path().join("restored");
        let snapshot = backup.summary.snapshot_id.ok_or("the backup made no snapshot")?;
        progress.step(&format!("byteback restore: the {name} snapshot"), None, |step| {
            byteback.restore(&folder, snapshot, &target, reaching(step))
        })?;
        let comparison = compare_step("every byte and attribute is compared", state, &target, progress)?;
        progress.step("sqlite3, e2fsck and git fsck find it sound", None, |_| {
            check_soundness(&target)
        })?;
        comparisons.push((format!("the {name} snapshot, restored"), comparison));
        progress.step("rm -r: the restored folder", None, |_| Ok(scratch::remove(&target)?))?;
    }
    mount.unmount()?;
    server.stop()?;

    progress.section("rsync does the second backup, too");
    let total = data_bytes(&states.second)?;
    let truth = progress.step("the real changes are counted", Some(total), |step| {
        difference(&states.first, &states.second, |more| step.advance(more))
    })?;
    let destination_before = allocated_bytes(&states.first)?;
    let transfer = progress.step("rsync: from the first state to the second one", None, |_| {
        Rsync::new(&states.first, &work).transfer(&states.second, &RSYNC_OPTIONS)
    })?;
    let destination_growth = allocated_bytes(&states.first)?.saturating_sub(destination_before);
    let rsynced = compare_step(
        "every byte and attribute is compared",
        &states.second,
        &states.first,
        progress,
    )?;
    comparisons.push(("rsync's copy".to_owned(), rsynced));

    let figures = Figures {
        truth,
        second,
        stored_bytes,
        transfer,
        destination_growth,
        tracking_cpu_s,
    };
    progress.section(&format!("The second backup, of {}\n", bytes(total)));
    progress.say(&table(
        "Byteback",
        &format!("rsync {}", Rsync::version()?),
        &figures.rows(),
    ));
    for note in NOTES {
        progress.say(&format!("  {note}"));
    }
    verdict(&comparisons, progress)?;
    Ok(figures.records())
}

/// Shows the progress of one of our commands.
fn reaching(step: &Step) -> impl Fn(Status) + Send {
    |status| step.reach(status.bytes_done, status.total_bytes)
}

/// Runs the programs. Returns the CPU time that the mount's daemon used meanwhile, in seconds.
fn change(mount: &Mount, data: &Data, work: &Path, progress: &Progress) -> Result<f64, SuiteError> {
    let before = mount.cost()?;
    for (title, change) in CHANGES {
        progress.step(title, None, |_| change(mount.point(), data, work))?;
    }
    Ok(mount.cost()?.since(before).cpu_s)
}

/// Makes a plain copy that keeps everything `cp` can keep.
fn copy(from: &Path, to: &Path) -> Result<(), SuiteError> {
    run(program("cp").args(["-a", "--no-target-directory"]).arg(from).arg(to))?;
    Ok(())
}

fn compare_step(title: &str, expected: &Path, actual: &Path, progress: &Progress) -> Result<Comparison, SuiteError> {
    let total = data_bytes(expected)?;
    progress.step(title, Some(total), |step| {
        compare(expected, actual, |more| step.advance(more))
    })
}

/// A sum over all nodes of a tree; hard links count once.
fn sum_of(path: &Path, value: fn(&fs::Metadata) -> u64) -> Result<u64, SuiteError> {
    let mut seen = std::collections::HashSet::new();
    let mut pending = vec![path.to_owned()];
    let mut sum = 0;
    while let Some(path) = pending.pop() {
        interrupt::check()?;
        let failed = |error| format!("cannot look at {}: {error}", path.display());
        let metadata = fs::symlink_metadata(&path).map_err(failed)?;
        if metadata.is_dir() {
            for entry in fs::read_dir(&path).map_err(failed)? {
                pending.push(entry.map_err(failed)?.path());
            }
        } else if seen.insert(metadata.ino()) {
            sum += value(&metadata);
        }
    }
    Ok(sum)
}

/// Bytes of content of all files.
fn data_bytes(path: &Path) -> Result<u64, SuiteError> {
    sum_of(path, |metadata| if metadata.is_file() { metadata.len() } else { 0 })
}

/// Bytes that all files take on the disk.
fn allocated_bytes(path: &Path) -> Result<u64, SuiteError> {
    sum_of(path, |metadata| metadata.blocks() * 512)
}

/// The measurements of the second backup.
struct Figures {
    truth: Difference,
    second: Backup,
    stored_bytes: u64,
    transfer: Transfer,
    destination_growth: u64,
    /// CPU time of the mount's daemon while the programs changed the folder, seconds.
    tracking_cpu_s: f64,
}

impl Figures {
    fn rows(&self) -> Vec<Row> {
        let (ours, theirs) = (&self.second, &self.transfer);
        let changed = self.truth.bytes();
        let nothing = || "-".to_owned();
        vec![
            ("changed", bytes(changed), bytes(changed)),
            ("noted as written", bytes(ours.summary.changed_bytes), nothing()),
            (
                "read by the client",
                bytes(ours.client_read_bytes()),
                bytes(theirs.file_read_bytes()),
            ),
            (
                "read by the server",
                bytes(ours.server.read_bytes),
                bytes(theirs.server_file_read_bytes()),
            ),
            (
                "hashed to find changes",
                bytes(ours.summary.hashed_bytes),
                bytes(theirs.hashed_bytes()),
            ),
            ("sent", bytes(ours.wire.total()), bytes(theirs.wire.total())),
            ("stored", bytes(self.stored_bytes), bytes(self.destination_growth)),
            (
                "CPU time of the client",
                seconds(ours.client_cpu_s()),
                seconds(theirs.client.cpu_s),
            ),
            (
                "CPU time of the server",
                seconds(ours.server.cpu_s),
                seconds(theirs.server.cpu_s),
            ),
            ("elapsed time", seconds(ours.wall_s), seconds(theirs.wall_s)),
            ("CPU time of the mount", seconds(self.tracking_cpu_s), nothing()),
        ]
    }

    fn records(&self) -> Vec<Record> {
        let (ours, theirs) = (&self.second, &self.transfer);
        // Exact below 2^53, and these are figures of one run.
        let changed = self.truth.bytes() as f64;
        let values = [
            ("changed", "B", changed, changed),
            (
                "read",
                "B",
                ours.client_read_bytes() as f64,
                theirs.file_read_bytes() as f64,
            ),
            (
                "hashed",
                "B",
                ours.summary.hashed_bytes as f64,
                theirs.hashed_bytes() as f64,
            ),
            ("wire", "B", ours.wire.total() as f64, theirs.wire.total() as f64),
            ("stored", "B", self.stored_bytes as f64, self.destination_growth as f64),
            ("client CPU", "s", ours.client_cpu_s(), theirs.client.cpu_s),
            ("server CPU", "s", ours.server.cpu_s, theirs.server.cpu_s),
            ("wall", "s", ours.wall_s, theirs.wall_s),
        ];
        let mut results = Results::new();
        for (name, _, mine, yours) in values {
            for (contender, value) in [(OURS, mine), (PEER, yours)] {
                let metrics: &mut BTreeMap<_, _> = results.entry(contender).or_default();
                metrics.insert(name, std::iter::once(value).collect());
            }
        }
        let tracking = results.entry(OURS).or_default();
        tracking.insert("mount CPU", std::iter::once(self.tracking_cpu_s).collect());
        let metrics = values
            .iter()
            .map(|(name, unit, ..)| (*name, *unit))
            .chain([("mount CPU", "s")]);
        metrics
            .map(|(name, unit)| Metric { name, unit, goal: None })
            .filter_map(|metric| record("demo", "second backup", metric, &results))
            .collect()
    }
}

/// Reports whether everything is equal.
fn verdict(comparisons: &[(String, Comparison)], progress: &Progress) -> Result<(), SuiteError> {
    progress.say("\nCompared: contents, names, types, modes, owners, times, links, extended attributes\n");
    let width = comparisons.iter().map(|(what, _)| what.len()).max().unwrap_or(0);
    let mut wrong = Vec::new();
    for (what, comparison) in comparisons {
        let verdict = match comparison.differences {
            0 => "equal".to_owned(),
            1 => "1 DIFFERENCE".to_owned(),
            count => format!("{count} DIFFERENCES"),
        };
        progress.say(&format!(
            "  {what:width$}  {} names, {}: {verdict}",
            comparison.names,
            bytes(comparison.bytes)
        ));
        for told in &comparison.told {
            progress.say(&format!("    {told}"));
        }
        if !comparison.is_equal() {
            wrong.push(what.as_str());
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(format!("{}: differs from what was saved", wrong.join(", ")).into())
    }
}
