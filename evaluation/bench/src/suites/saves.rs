//! The cost of a save, however a program saves: bytes on the wire for each work and each command.
//!
//! A *work* is a program that saves into a folder several times: [`made`] by this suite, done by a
//! real program ([`programs`]), or [`recorded`] earlier. After each save every contender brings its
//! server up to date, and its figure is the total of all saves. The first transfer of the folder is
//! not counted.
//!
//! | contender | transfer after a save |
//! |---|---|
//! | `backup` | `byteback backup` of a mounted folder |
//! | `backup, no mount` | `byteback backup` of a bound folder that is not mounted |
//! | `push` | `byteback push --delete` of a folder that is neither mounted nor bound |
//! | `sync` | none: `byteback sync` sends by itself, and the suite waits until it has settled |
//! | `rsync` | `rsync -aH --delete --no-whole-file` to its own daemon, without `--inplace` |
//! | `xdelta3` | a delta for each file that changed, from its old content; new files without a base |
//!
//! Each contender has a folder of its own, a copy of the same one, in which the same work is done
//! with the same seed: none reads through the mount or the caches of another. The deltas of xdelta3
//! are what would travel; it has no protocol, and needs both contents on one machine. Its column is
//! the bound of a delta of each file by itself. Byteback's bytes include TLS, which is its default;
//! rsync's are plain.
//!
//! At the end the restored, pushed or synced folder is compared with the contender's folder in all
//! names, attributes and bytes, and xdelta3's copy in the bytes of its files. After a difference
//! the other works are measured, and the suite fails.
//!
//! Each work is done once: bytes on the wire hardly differ from run to run. CPU times are therefore
//! an order of magnitude, and have no goal. They include the mount's while the program works.

mod changed;
mod contenders;
mod made;
mod programs;
mod recorded;
mod table;
mod work;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use self::contenders::{COMMANDS, PEERS};
use self::table::Row;
use self::work::Case;
use crate::alternate::{Results, Samples};
use crate::report::{self, Goal, Metric, OURS, Record, record};
use crate::rig::interrupt;
use crate::rig::process::{is_interrupted, program, run as run_program};
use crate::rig::scratch::{self, Scratch};
use crate::suites::deltacfs::keepers::Spent;
use crate::{Options, SuiteError, measured};

const SUITE: &str = "saves";
/// Room for a folder, a store and a copy of the largest work, and the originals.
const NEEDED_BYTES: u64 = 4 << 30;
/// The goal relative to the better peer.
const TIMES_BEST: f64 = 1.3;
/// The bytes beyond it that are allowed for each file of each save: its name, its attributes and
/// the request.
const OVERHEAD_KB: f64 = 2.048;

type MetricOf = (Metric, fn(&Spent) -> f64);

const METRICS: [MetricOf; 4] = [
    (metric("up", "KB"), |spent| spent.up_bytes as f64 / 1e3),
    (metric("down", "KB"), |spent| spent.down_bytes as f64 / 1e3),
    (metric("client CPU", "ms"), |spent| spent.client_cpu_s * 1e3),
    (metric("server CPU", "ms"), |spent| spent.server_cpu_s * 1e3),
];
const UP: &str = METRICS[0].0.name;

/// Works that a quick run does only by name.
const NOT_QUICK: [&str; 7] = [
    "cp",
    "cp --reflink=auto",
    "SQLite VACUUM",
    "vim, backupcopy=yes",
    "vim, backupcopy=no",
    "log copied and truncated",
    "rsync as writer",
];

const fn metric(name: &'static str, unit: &'static str) -> Metric {
    Metric { name, unit, goal: None }
}

/// The works and contenders to measure.
#[derive(Args, Debug)]
pub(crate) struct SavesArguments {
    /// Do only works whose names contain this text; may be given several times.
    #[arg(long, value_name = "TEXT")]
    work: Vec<String>,
    /// Measure only contenders whose names contain this text; may be given several times.
    #[arg(long, value_name = "TEXT")]
    contender: Vec<String>,
    /// Read recorded traces from this folder; each is a work, with a save at each of its marks.
    #[arg(long, value_name = "DIR", env = "BYTEBACK_BENCH_TRACES")]
    traces: Option<PathBuf>,
}

/// Runs the suite.
///
/// # Errors
/// If a program fails, if a copy differs, or if the user asks to stop.
pub(crate) fn run(arguments: &SavesArguments, options: Options, json: Option<&Path>) -> Result<(), SuiteError> {
    let contenders: Vec<&'static str> = contenders::installed(tell)
        .into_iter()
        .filter(|name| is_meant(&arguments.contender, name))
        .collect();
    let mut cases = made::all(options.quick);
    cases.extend(programs::all(options.quick, tell));
    match &arguments.traces {
        Some(folder) => cases.extend(recorded::all(folder, options.quick)?),
        None => tell("no traces: name their folder with --traces DIR; recorded programs are left out"),
    }
    let names: Vec<String> = cases.iter().map(|case| case.name.clone()).collect();
    let is_left_out = |name: &str| options.quick && arguments.work.is_empty() && NOT_QUICK.contains(&name);
    cases.retain(|case| is_meant(&arguments.work, &case.name) && !is_left_out(&case.name));
    if cases.is_empty() || contenders.is_empty() {
        return Err(format!("nothing to measure; the works are: {}", names.join(", ")).into());
    }
    let mut rows = Vec::new();
    let mut records = Vec::new();
    let mut failed = Vec::new();
    for case in &cases {
        let row = match measure(case, &contenders) {
            Ok(row) => row,
            Err(error) if is_interrupted(&error) => return Err(error),
            // The other works are worth their figures.
            Err(error) => {
                tell(&error.to_string());
                failed.push(case.name.as_str());
                continue;
            }
        };
        records.extend(of_row(&row));
        // A whole run takes long, so each work is shown as soon as it is done.
        table::write_row(&mut io::stderr().lock(), &contenders, &row, &METRICS[0])?;
        rows.push(row);
    }
    let mut stdout = io::stdout().lock();
    for metric in &METRICS {
        table::write_markdown(&mut stdout, &contenders, &rows, metric)?;
    }
    let with_goal = records.iter().filter(|record| record.met.is_some());
    let missed: Vec<Record> = with_goal
        .clone()
        .filter(|record| record.met == Some(false))
        .cloned()
        .collect();
    writeln!(stdout, "Goals missed: {} of {}.\n", missed.len(), with_goal.count())?;
    if !missed.is_empty() {
        report::write_table(&mut stdout, &missed)?;
    }
    if let Some(path) = json {
        measured::write(path, SUITE, &measured::of_records(&records))?;
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("{} failed; the reasons are above", failed.join(", ")).into()),
    }
}

/// Reports progress on standard error.
fn tell(what: &str) {
    // A failure to do so does not matter.
    let _ = writeln!(io::stderr(), "saves: {what}");
}

/// Whether a name is meant by the texts of an option: it contains one, or there are none.
fn is_meant(texts: &[String], name: &str) -> bool {
    texts.is_empty() || texts.iter().any(|text| name.contains(text.as_str()))
}

/// Does one work for all contenders.
fn measure(case: &Case, contenders: &[&'static str]) -> Result<Row, SuiteError> {
    let scratch = Scratch::create(&Scratch::default_parent()?, NEEDED_BYTES)?;
    let original = scratch.folder("original")?;
    let work = (case.load)()?;
    work.prepare(&original)?;
    let mut row = Row {
        work: case.name.clone(),
        saves: work.saves(),
        files: 0,
        goal: goal(work.saves(), 0, case.at_most_kb),
        spent: BTreeMap::new(),
    };
    for name in contenders {
        tell(&format!("{}: {name}", case.name));
        let place = scratch.folder("turn")?;
        let folder = place.join("folder");
        fs::create_dir(&folder)?;
        run_program(program("cp").arg("-a").arg(original.join(".")).arg(&folder))?;
        let mut keeper = contenders::begin(name, &folder, &place)?;
        let mut saves = work.open(&folder)?;
        for index in 0..work.saves() {
            interrupt::check()?;
            let saved = saves.save(index);
            saved.map_err(|error| format!("{}: save {}: {error}", case.name, index + 1))?;
            keeper.bring()?;
        }
        // Files that the program holds open would keep the folder busy.
        drop(saves);
        let copy = place.join("kept");
        let files = keeper.changed_files();
        let spent = keeper.end(&copy)?;
        work.check(&folder)
            .map_err(|error| format!("{}, saved for {name}: {error}", case.name))?;
        contenders::check(name, &folder, &copy)
            .map_err(|error| format!("{}: the data that {name} kept differs: {error}", case.name))?;
        row.files = row.files.max(files);
        row.spent.insert(name, spent);
        scratch::remove(&place)?;
    }
    scratch.remove()?;
    row.goal = goal(row.saves, row.files, case.at_most_kb);
    Ok(row)
}

/// The records of a work: one for each of our commands and each metric.
fn of_row(row: &Row) -> Vec<Record> {
    let mut records = Vec::new();
    for command in COMMANDS {
        let Some(ours) = row.spent.get(command) else { continue };
        let peers = PEERS.iter().filter_map(|peer| Some((*peer, row.spent.get(peer)?)));
        let results: Results = peers
            .chain([(OURS, ours)])
            .map(|(name, spent)| (name, values(spent)))
            .collect();
        let case = format!("{}: {command}", row.work);
        records.extend(METRICS.iter().filter_map(|(metric, _)| {
            let goal = (metric.name == UP).then_some(row.goal);
            record(SUITE, &case, Metric { goal, ..*metric }, &results)
        }));
    }
    records
}

/// The goal of a work: the least of both peers, with an allowance for each file of each save.
fn goal(saves: usize, changed_files: u64, at_most: Option<f64>) -> Goal {
    Goal::TimesBest {
        factor: TIMES_BEST,
        peers: &PEERS,
        // At most some thousands; a save without a changed file is a request, too.
        plus: OVERHEAD_KB * changed_files.max(saves as u64) as f64,
        at_most,
    }
}

fn values(spent: &Spent) -> BTreeMap<&'static str, Samples> {
    METRICS
        .iter()
        .map(|(metric, value)| (metric.name, [value(spent)].into_iter().collect()))
        .collect()
}

#[cfg(test)]
mod tests;
