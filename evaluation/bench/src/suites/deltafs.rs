//! The figures of the DeltaFS paper (section 6), measured on a volume, and the goals that we set
//! it.
//!
//! | part | what it measures |
//! |---|---|
//! | [`applications`] | bytes that reach the device, and the time of writes and reads, while recorded programs work (Fig. 9 to 12 and 14, Table 2) |
//! | [`threshold`] | the minimum number of deltas in a page of the main area: savings, and cost for readers (Fig. 13) |
//! | [`throughput`] | long files through a mount, beside a mounted directory |
//! | [`costs`] | the time to encode the difference of two pages and to restore a page, by several codes (section 6.4) |
//!
//! Recorded programs are replayed at full speed with the syncs that they made. In addition,
//! everything is synced once in thirty seconds of recorded time, on all file systems alike, as
//! Linux writes back data older than that. [`stage`] is the common way of replaying, [`on_volume`]
//! and [`on_directory`] are its places, the latter also in a [`guest`]; [`database`] is a program
//! that was not recorded but is imitated.

mod applications;
mod costs;
mod database;
mod guest;
mod on_directory;
mod on_volume;
mod stage;
mod threshold;
mod throughput;

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

pub(crate) use guest::{GuestArguments, work as work_in_guest};

use crate::findings::Findings;
use crate::rig::interrupt;
use crate::traces::{self, Trace};
use crate::{Options, SuiteError};

/// The parts to measure.
#[derive(Args, Debug)]
pub(crate) struct DeltafsArguments {
    /// Parts to measure; all if none is given.
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Run only programs whose names contain this text.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// For programs at work, measure only the bytes that volumes write, in one round: they are the
    /// same in each.
    #[arg(long)]
    volumes_only: bool,
    /// Read recorded traces from this folder.
    #[arg(long, value_name = "DIR", env = "BYTEBACK_BENCH_TRACES")]
    traces: Option<PathBuf>,
    /// Write each chart into this folder, as SVG.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Programs at work: bytes written, latency, hits (Fig. 9 to 12 and 14, Table 2).
    Applications,
    /// The minimum number of deltas in a page of the main area: bytes written, and reads (Fig. 13).
    Threshold,
    /// Long files through a mount: written, read, overwritten, beside a mounted directory; needs
    /// root.
    Throughput,
    /// Encoding the difference of one page, and restoring it, by several codes (section 6.4).
    Costs,
}

/// Runs the suite.
///
/// # Errors
/// If something fails, if a tree differs from the recorded one, or if the user asks to stop.
pub(crate) fn run(arguments: &DeltafsArguments, options: Options, json: Option<&Path>) -> Result<(), SuiteError> {
    let wanted = |part| arguments.parts.is_empty() || arguments.parts.contains(&part);
    let mut findings = Findings::default();
    let traces = load(&arguments.only, arguments.traces.as_deref())?;
    if wanted(Part::Costs) {
        findings.add(costs::run(options, &traces)?);
    }
    if wanted(Part::Throughput) {
        findings.add(throughput::run(options)?);
    }
    if wanted(Part::Threshold) {
        findings.add(threshold::run(&traces)?);
    }
    if wanted(Part::Applications) {
        findings.add(applications::run(options, arguments.volumes_only, &traces)?);
    }
    findings.tell("deltafs", arguments.plots.as_deref(), json)
}

/// The programs whose names were requested.
fn load(only: &[String], traces: Option<&Path>) -> Result<Vec<Trace>, SuiteError> {
    let is_wanted = |name: &str| only.is_empty() || only.iter().any(|part| name.contains(part.as_str()));
    let mut loaded = Vec::new();
    if is_wanted(database::NAME) {
        loaded.push(database::trace()?);
    }
    let Some(folder) = traces else {
        tell("no traces: name their folder with --traces DIR or BYTEBACK_BENCH_TRACES; recorded programs are left out");
        return Ok(loaded);
    };
    for path in traces::find(folder)? {
        interrupt::check()?;
        if path.file_name().and_then(|name| name.to_str()).is_some_and(is_wanted) {
            loaded.push(Trace::load(&path)?);
        }
    }
    Ok(loaded)
}

/// Reports progress on standard error.
fn tell(what: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "deltafs: {what}");
}
