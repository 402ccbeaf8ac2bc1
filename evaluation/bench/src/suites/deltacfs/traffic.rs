//! CPU of client and server (Table II) and bytes on the wire (Fig. 8) while programs work.
//!
//! In each round every contender keeps a folder of its own, filled alike, in which the same program
//! works step by step. The copy at the server is brought up to date after each step; for some
//! workloads, the peers do so only after several. Byteback sends by itself and is only waited for.
//! At the end each copy is compared with what the program wrote. A contender's beginning (its
//! start, the first copy) is not counted. The working program itself is none of the contenders'
//! processes; our mount's work for it counts as the client's.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::keepers::{self, RSYNC, SYNCTHING, Spent, XDELTA};
use super::tell;
use super::workloads::{self, Workload};
use crate::alternate::Samples;
use crate::figure::{Cell, Chart, Figure, GoalRow, Limit, Panel};
use crate::findings::Findings;
use crate::report::OURS;
use crate::rig::interrupt;
use crate::rig::process::{program, run as run_program};
use crate::rig::scratch::{self, Scratch};
use crate::{Options, SuiteError};

/// Room for five folders of the largest file, each with a copy, and one to begin with.
const NEEDED_BYTES: u64 = 4 << 30;
/// The overhead of a batch, its confirmation and the connection, allowed beyond the changed bytes.
const OVERHEAD_BYTES: f64 = 2048.0;

type Metric = (&'static str, fn(&Spent) -> f64);

const METRICS: [Metric; 5] = [
    ("client CPU (ms)", |spent| spent.client_cpu_s * 1e3),
    ("server CPU (ms)", |spent| spent.server_cpu_s * 1e3),
    ("CPU of both (ms)", |spent| {
        (spent.client_cpu_s + spent.server_cpu_s) * 1e3
    }),
    ("up (KB)", |spent| spent.up_bytes as f64 / 1e3),
    ("down (KB)", |spent| spent.down_bytes as f64 / 1e3),
];
const CPU: usize = 2;
const UP: usize = 3;

/// All rounds of a workload, by contender.
type Rounds = BTreeMap<&'static str, Vec<Spent>>;

/// Measures all workloads and contenders whose names contain a text of `only`; all of them if none
/// does.
///
/// # Errors
/// If a program fails, or if a copy differs.
pub(super) fn run(options: Options, only: &[String], traces: Option<&Path>) -> Result<Findings, SuiteError> {
    let all = keepers::names(|package| tell(&format!("{package} is not installed and is left out")));
    tell("Seafile's server and Dropbox are not packaged by Debian and are left out");
    let contenders = chosen(&all, only, |name| name);
    if traces.is_none() {
        tell("no traces: name their folder with --traces DIR; recorded programs are left out");
    }
    let workloads = workloads::all(traces)?;
    let chosen_workloads = chosen(&workloads, only, |workload| &workload.name);
    let mut findings = Findings::default();
    let mut figure = Figure {
        id: "table-2",
        title: "CPU and traffic of continuous sync (Table II, Fig. 8)".to_owned(),
        about:
            "Client and server on one machine, each contender with a folder of its own in which the same program works."
                .to_owned(),
        panels: Vec::new(),
    };
    for workload in chosen_workloads {
        let rounds = measure(workload, &contenders, options.runs)?;
        let panel = panel(workload, &contenders, &rounds);
        // A whole run takes long, so each case is shown as soon as it is measured.
        panel.write_markdown(&mut std::io::stderr().lock())?;
        figure.panels.push(panel);
        findings.goals.extend(goals(workload, &rounds));
    }
    findings.figures.push(figure);
    Ok(findings)
}

/// Selects the items whose names contain one of the texts; all of them if none does.
fn chosen<'a, T>(all: &'a [T], only: &[String], name: fn(&T) -> &str) -> Vec<&'a T> {
    let is_meant = |item: &&'a T| only.iter().any(|text| name(item).contains(text.as_str()));
    let meant: Vec<&T> = all.iter().filter(is_meant).collect();
    if meant.is_empty() { all.iter().collect() } else { meant }
}

fn measure(workload: &Workload, contenders: &[&&'static str], runs: usize) -> Result<Rounds, SuiteError> {
    let scratch = Scratch::create(&Scratch::default_parent()?, NEEDED_BYTES)?;
    let original = scratch.folder("original")?;
    workload.prepare(&original)?;
    let mut rounds = Rounds::new();
    for round in 0..runs {
        for turn in 0..contenders.len() {
            let name: &'static str = contenders[(turn + round) % contenders.len()];
            tell(&format!("{}: {name}, round {} of {runs}", workload.name, round + 1));
            let work = scratch.folder("turn")?;
            rounds
                .entry(name)
                .or_default()
                .push(one(name, workload, &original, &work)?);
            scratch::remove(&work)?;
        }
    }
    scratch.remove()?;
    Ok(rounds)
}

fn one(name: &'static str, workload: &Workload, original: &Path, work: &Path) -> Result<Spent, SuiteError> {
    let folder: PathBuf = work.join("folder");
    fs::create_dir(&folder)?;
    run_program(program("cp").arg("-a").arg(original.join(".")).arg(&folder))?;
    let mut keeper = keepers::begin(name, workload, &folder, work)?;
    let mut program = workload.open(&folder)?;
    let every = if name == OURS { 1 } else { workload.peers_every };
    for index in 0..workload.steps {
        interrupt::check()?;
        program.step(index)?;
        if (index + 1).is_multiple_of(every) || index + 1 == workload.steps {
            keeper.bring()?;
        }
    }
    // Files that the program holds open would keep the folder busy.
    drop(program);
    let copy = work.join("copy");
    let spent = keeper.end(&copy)?;
    keepers::check(name, workload, &folder, &copy)?;
    Ok(spent)
}

fn samples(rounds: &Rounds, name: &str, metric: usize) -> Option<Samples> {
    let (_, value) = METRICS.get(metric)?;
    Some(rounds.get(name)?.iter().map(value).collect())
}

fn panel(workload: &Workload, contenders: &[&&'static str], rounds: &Rounds) -> Panel {
    let columns: Vec<&str> = contenders.iter().map(|name| **name).collect();
    let every = match workload.peers_every {
        1 => "synced after each step".to_owned(),
        count => format!("Byteback after each step, the others after {count}"),
    };
    let title = format!("{}: {}; {every}", workload.name, workload.about);
    let mut panel = Panel::new(title, "what", "", &columns).drawn_as(Chart::Bars { logarithmic: true });
    for (index, (title, _)) in METRICS.iter().enumerate() {
        let cells = columns
            .iter()
            .map(|name| samples(rounds, name, index).as_ref().map(Cell::from));
        panel.push(*title, cells.collect());
    }
    panel
}

fn goals(workload: &Workload, rounds: &Rounds) -> Vec<GoalRow> {
    let mut goals = Vec::new();
    let mut over = |metric: usize, what: &str, peer: &str, limit: f64| {
        if let (Some(ours), Some(theirs)) = (samples(rounds, OURS, metric), samples(rounds, peer, metric)) {
            let name = format!("{}: {what} over {peer}'s", workload.name);
            goals.push(GoalRow::new(name, "x", Limit::AtMost(limit), &ours.over(&theirs)));
        }
    };
    match workload.name.as_str() {
        "append write" | "random write" => over(CPU, "CPU", SYNCTHING, 0.1),
        "document" | "lo-writer-docx" => {
            over(CPU, "CPU", RSYNC, 1.0);
            over(UP, "bytes up", XDELTA, 1.2);
        }
        "database" | "sqlite-chat-delete" => {
            over(CPU, "CPU", SYNCTHING, 0.2);
            over(UP, "bytes up", XDELTA, 2.0);
        }
        _ => over(UP, "bytes up", XDELTA, 2.0),
    }
    if let (Some(changed), Some(up)) = (workload.changed_bytes, samples(rounds, OURS, UP)) {
        let limit = (1.02 * changed as f64 + OVERHEAD_BYTES) / 1e3;
        let name = format!("{}: bytes up", workload.name);
        goals.push(GoalRow::new(name, "KB", Limit::AtMost(limit), &up));
    }
    goals
}
