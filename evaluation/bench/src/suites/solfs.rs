//! The figures of the SolFS paper (USENIX ATC'25, section 5), measured on our operation log, and
//! its goals.
//!
//! | part | what it measures |
//! |---|---|
//! | [`speed`] | the cost of a mount and of tracking, operation by operation and for whole jobs |
//! | [`applications`] | traces of real applications: speed, memory, storage (Fig. 14) |
//! | [`pace`] | CPU of the whole system while they run at their recorded pace (Fig. 14, text) |
//! | [`sync`] | time, traffic and CPU of a sync (Fig. 10 to 12) |
//! | [`app_backup`] | time, traffic and CPU of a backup after each application (Fig. 13) |
//! | [`micro`] | the log by itself: search, conversion, memory, bytes on disk (Fig. 15, sections 3.2.1 and 5.3) |
//! | [`getdiff`] | a backup program's calls to the mount (section 4.3) |
//! | [`million`] | a million tracked files |
//!
//! Each part prints tables in the format of `docs/benchmarks.md`.

mod app_backup;
mod applications;
mod getdiff;
mod jobs;
mod log_memory;
mod log_test_bed;
mod micro;
mod million;
mod pace;
mod speed;
mod sync;
mod test_bed;

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::findings::Findings;
use crate::rig::scheduling::Placement;
use crate::{Options, SuiteError};

/// The parts to measure, and their inputs.
#[derive(Args, Debug)]
pub(crate) struct SolfsArguments {
    /// Parts to measure; all if none is given.
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Read traces of real applications from this folder; without it the parts that need them are
    /// skipped.
    #[arg(long, value_name = "DIR", env = "BYTEBACK_BENCH_TRACES")]
    traces: Option<PathBuf>,
    /// Write each chart into this folder, as SVG.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Keep the measured program and the daemons on this processor, in real-time classes (needs
    /// root), which shows the cost of the code without the scheduler. By default the scheduler
    /// places them.
    #[arg(long, value_name = "CPU")]
    pin: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Speed of the mount and of tracking, by operation and for jobs.
    Speed,
    /// Speed, memory and storage while applications are replayed (Fig. 14).
    Traces,
    /// CPU of the whole system while applications are replayed at recorded pace (Fig. 14, text).
    Pace,
    /// Time and traffic of a sync by kind and size of the change (Fig. 10 and 11).
    Sync,
    /// Time of a sync by part, over links of 50, 100 and 200 Mbit/s (Fig. 12).
    Parts,
    /// The log by itself, and the calls that query it: versions, mlogs, granularity, bytes on disk
    /// (Fig. 15, sections 3.2.1, 4.3, 5.3).
    Log,
    /// Time, traffic and CPU of a backup after each application (Fig. 13).
    Backup,
    /// A million tracked files.
    Million,
}

/// The inputs of all parts.
pub(crate) struct Setting<'a> {
    pub(crate) options: Options,
    pub(crate) traces: Option<&'a Path>,
    pub(crate) placement: Placement,
}

/// Runs the suite.
///
/// # Errors
/// If a program fails or the user asks to stop.
pub(crate) fn run(arguments: &SolfsArguments, options: Options, json: Option<&Path>) -> Result<(), SuiteError> {
    let setting = Setting {
        options,
        traces: arguments.traces.as_deref(),
        placement: arguments.pin.map_or(Placement::Free, |cpu| Placement::Pinned { cpu }),
    };
    let wanted = |part| arguments.parts.is_empty() || arguments.parts.contains(&part);
    let mut findings = Findings::default();
    if wanted(Part::Speed) {
        findings.add(speed::run(&setting)?);
    }
    if wanted(Part::Traces) {
        findings.add(applications::run(&setting)?);
    }
    if wanted(Part::Pace) {
        findings.add(pace::run(&setting)?);
    }
    if wanted(Part::Sync) {
        findings.add(sync::run(&setting)?);
    }
    if wanted(Part::Parts) {
        findings.add(sync::run_parts(&setting)?);
    }
    if wanted(Part::Log) {
        findings.add(micro::run(&setting)?);
        findings.add(getdiff::run(&setting)?);
    }
    if wanted(Part::Million) {
        findings.add(million::run(&setting)?);
    }
    if wanted(Part::Backup) {
        findings.add(app_backup::run(&setting)?);
    }
    findings.tell("solfs", arguments.plots.as_deref(), json)
}

/// Reports progress on standard error.
fn tell(what: &str) {
    use std::io::Write;
    let _ = writeln!(io::stderr(), "solfs: {what}");
}
