//! The main job on real data: what a person sees who tries Byteback for three minutes.
//!
//! A folder of real data is mounted and backed up, real programs change it, and it is backed up again. Both snapshots are restored
//! and compared, to the last byte and attribute, with plain copies that were made of both states. Then rsync does the same second
//! backup: it starts from a plain copy of the first state and gets a plain copy of the second one, so it pays nothing for our mount.
//! Everything happens below one temporary folder, which is removed at the end, also after Ctrl-C.

mod changes;
mod data;
mod progress;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::alternate::Results;
use crate::compare::{Comparison, Difference, compare, difference};
use crate::report::{Metric, OURS, Record, record};
use crate::rig::byteback::{Backup, Byteback, Mount};
use crate::rig::interrupt;
use crate::rig::process::{program, run};
use crate::rig::rsync::{Rsync, Transfer};
use crate::rig::scratch::{self, Scratch};
use crate::{Options, SuiteError};

use changes::{CHANGES, check_soundness};
use data::Data;
use progress::Progress;
use table::{Row, bytes, seconds, table};

/// At the worst moment there are the folder, the store, two copies and one restored folder.
const NEEDED_BYTES: u64 = 7 << 30;

const PEER: &str = "rsync";

/// Everything that a backup of a folder with odd files should carry; in place, since that is what large images ask for.
const RSYNC_OPTIONS: [&str; 5] = ["-aHAX", "--delete", "--inplace", "--no-whole-file", "--numeric-ids"];

/// The two copies that everything is compared with.
struct States {
    first: std::path::PathBuf,
    second: std::path::PathBuf,
}

/// Does it all, prints what a person wants to see, and tells the figures.
///
/// # Errors
/// If a step fails, if a restored folder differs, or if the user asks to stop.
pub(crate) fn run_demo(_: Options) -> Result<Vec<Record>, SuiteError> {
    let progress = Progress::new();
    let scratch = Scratch::create(&Scratch::default_parent()?, NEEDED_BYTES)?;
    progress.say(&format!(
        "Byteback demo, in {} (removed at the end)\n",
        scratch.path().display()
    ));
    let records = in_folder(&scratch, &progress)?;
    drop(scratch);
    progress.say("\nEverything that was made for this is removed again.");
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

    let data = progress.step(
        "a folder of real data: database, disk image, mail, source tree",
        None,
        |step| data::build(&folder, &work, |more| step.advance(more)),
    )?;
    let server = byteback.serve(&store)?;
    byteback.init(&server, &folder, "demo")?;
    let mount = progress.step("byteback mount: from here on every change is known", None, |_| {
        byteback.mount(&folder, None)
    })?;
    let first = progress.step("byteback backup: the first one reads everything", None, |_| {
        byteback.backup(&server, &mount)
    })?;
    progress.step("a plain copy of this state, to compare with", None, |_| {
        copy(&folder, &states.first)
    })?;

    let tracking_cpu_s = change(&mount, &data, &work, progress)?;

    let stored_before = allocated_bytes(&store)?;
    let second = progress.step("byteback backup: the second one", None, |_| {
        byteback.backup(&server, &mount)
    })?;
    let stored_bytes = allocated_bytes(&store)?.saturating_sub(stored_before);
    progress.step("a plain copy of this state", None, |_| copy(&folder, &states.second))?;

    let mut comparisons = Vec::new();
    for (name, backup, state) in [("first", &first, &states.first), ("second", &second, &states.second)] {
        let target = scratch.path().join("restored");
        let snapshot = backup.summary.snapshot_id.ok_or("the backup made no snapshot")?;
        progress.step(&format!("byteback restore: the {name} snapshot"), None, |_| {
            byteback.restore(&folder, snapshot, &target)
        })?;
        let comparison = compare_step("every byte and attribute of it compared", state, &target, progress)?;
        progress.step("sqlite3, e2fsck and git check what was restored", None, |_| {
            check_soundness(&target)
        })?;
        comparisons.push((format!("the {name} snapshot, restored"), comparison));
        scratch::remove(&target)?;
    }
    mount.unmount()?;
    server.stop()?;

    let total = data_bytes(&states.second)?;
    let truth = progress.step("what really changed, counted", Some(total), |step| {
        difference(&states.first, &states.second, |more| step.advance(more))
    })?;
    let destination_before = allocated_bytes(&states.first)?;
    let transfer = progress.step("rsync: the same second backup", None, |_| {
        Rsync::new(&states.first, &work).transfer(&states.second, &RSYNC_OPTIONS)
    })?;
    let destination_growth = allocated_bytes(&states.first)?.saturating_sub(destination_before);
    let rsynced = compare_step(
        "every byte and attribute of rsync's copy compared",
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
    };
    progress.say(&format!("\nThe second backup, {} of data:\n", bytes(total)));
    progress.say(&table(
        "Byteback",
        &format!("rsync {}", Rsync::version()?),
        &figures.rows(),
    ));
    progress.say(&format!(
        "  While the programs worked, Byteback's mount used {} of CPU time to know what they change.",
        seconds(tracking_cpu_s)
    ));
    progress.say("  rsync keeps the new state only; Byteback keeps both.\n");
    verdict(&comparisons, progress)?;
    Ok(figures.records())
}

/// Lets the programs work; the CPU time that the mount's daemon used meanwhile, seconds.
fn change(mount: &Mount, data: &Data, work: &Path, progress: &Progress) -> Result<f64, SuiteError> {
    let before = mount.cost()?;
    for (title, change) in CHANGES {
        progress.step(title, None, |_| change(mount.point(), data, work))?;
    }
    Ok(mount.cost()?.since(before).cpu_s)
}

/// A plain copy with everything that a copy can keep.
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

/// What was measured of the second backup.
struct Figures {
    truth: Difference,
    second: Backup,
    stored_bytes: u64,
    transfer: Transfer,
    destination_growth: u64,
}

impl Figures {
    fn rows(&self) -> Vec<Row> {
        let (ours, theirs) = (&self.second, &self.transfer);
        let changed = self.truth.bytes();
        vec![
            ("really changed", bytes(changed), bytes(changed)),
            (
                "named as changed by the log",
                bytes(ours.summary.changed_bytes),
                "-".to_owned(),
            ),
            (
                "read from the folder",
                bytes(ours.summary.read_bytes),
                bytes(theirs.file_read_bytes()),
            ),
            (
                "read at all, client side",
                bytes(ours.client_read_bytes()),
                bytes(theirs.client.read_bytes),
            ),
            (
                "hashed to find the changes",
                bytes(ours.summary.hashed_bytes),
                format!("2 x {}", bytes(theirs.stats.transferred_file_bytes)),
            ),
            (
                "sent and received on the wire",
                bytes(ours.wire.total()),
                bytes(theirs.wire.total()),
            ),
            (
                "read by the server",
                bytes(ours.server.read_bytes),
                bytes(theirs.server.read_bytes),
            ),
            (
                "stored in addition",
                bytes(self.stored_bytes),
                bytes(self.destination_growth),
            ),
            (
                "CPU time, client and mount",
                seconds(ours.client_cpu_s()),
                seconds(theirs.client.cpu_s),
            ),
            (
                "CPU time, server",
                seconds(ours.server.cpu_s),
                seconds(theirs.server.cpu_s),
            ),
            ("wall time", seconds(ours.wall_s), seconds(theirs.wall_s)),
        ]
    }

    fn records(&self) -> Vec<Record> {
        let (ours, theirs) = (&self.second, &self.transfer);
        // Below 2^53 exact, and these are figures of one run.
        let changed = self.truth.bytes() as f64;
        let values = [
            ("changed", "B", changed, changed),
            (
                "read",
                "B",
                ours.summary.read_bytes as f64,
                theirs.file_read_bytes() as f64,
            ),
            (
                "hashed",
                "B",
                ours.summary.hashed_bytes as f64,
                theirs.stats.transferred_file_bytes as f64,
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
        let metrics = values.map(|(name, unit, ..)| Metric { name, unit, goal: None });
        metrics
            .into_iter()
            .filter_map(|metric| record("demo", "second backup", metric, &results))
            .collect()
    }
}

/// Says whether all is equal.
fn verdict(comparisons: &[(String, Comparison)], progress: &Progress) -> Result<(), SuiteError> {
    let mut wrong = Vec::new();
    for (what, comparison) in comparisons {
        let size = format!("{} names, {}", comparison.names, bytes(comparison.bytes));
        if comparison.is_equal() {
            progress.say(&format!(
                "  EQUAL      {what} ({size}; contents, types, modes, owners, times, links, xattrs)"
            ));
            continue;
        }
        progress.say(&format!(
            "  DIFFERENT  {what} ({size}): {} differences",
            comparison.differences
        ));
        for told in &comparison.told {
            progress.say(&format!("             {told}"));
        }
        wrong.push(what.as_str());
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(format!("{} differs from what was saved", wrong.join(" and ")).into())
    }
}
