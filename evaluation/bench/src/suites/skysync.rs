//! Delta engines, and deltas from checksums that exist already (SkySync, section 4), beside rsync,
//! rdiff and a plain dsync.
//!
//! | part | what it measures |
//! |---|---|
//! | [`micro`] | every finder by itself: insertions, cuts, inversions of 256 bytes; unmodified (Fig. 7 to 13, 17) |
//! | [`pairs`] | successive versions of real packages (Fig. 14 to 17) |
//! | [`machine`] | the planner's constants: CPU for a byte of each kind of work |
//! | [`service`] | the same finders through the program and a real server |
//!
//! [`content`] makes the files, [`sources`] the places whose checksums are used, [`finders`] runs
//! the steps, [`baseline`] is plain dsync.

mod baseline;
mod content;
mod finders;
mod machine;
mod micro;
mod pairs;
mod service;
mod sources;

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::findings::Findings;
use crate::{Options, SuiteError};

/// The parts to measure.
#[derive(Args, Debug)]
pub(crate) struct SkysyncArguments {
    /// Parts to measure; all if none is given.
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Keep fetched packages in this folder; by default below the target folder.
    #[arg(long, value_name = "DIR", env = "BYTEBACK_BENCH_PACKAGES")]
    packages: Option<PathBuf>,
    /// Write each chart into this folder, as SVG.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Each finder by itself, on changes of 256 bytes (Fig. 7 to 13, 17).
    Micro,
    /// Successive versions of real packages, which are fetched (Fig. 14 to 17).
    Pairs,
    /// Through the program and a real server.
    Service,
    /// The planner's constants: CPU for a byte of each kind of work.
    Machine,
}

/// Runs the suite.
///
/// # Errors
/// If a program fails, a result is wrong, or the user asks to stop.
pub(crate) fn run(arguments: &SkysyncArguments, options: Options, json: Option<&Path>) -> Result<(), SuiteError> {
    let wanted = |part| arguments.parts.is_empty() || arguments.parts.contains(&part);
    let mut findings = Findings::default();
    if wanted(Part::Micro) {
        findings.add(micro::run(options)?);
    }
    if wanted(Part::Pairs) {
        findings.add(pairs::run(options, arguments.packages.as_deref())?);
    }
    if wanted(Part::Service) {
        findings.add(service::run(options)?);
    }
    if wanted(Part::Machine) {
        findings.add(machine::run(options)?);
    }
    findings.tell("skysync", arguments.plots.as_deref(), json)
}

/// Reports progress on standard error.
fn tell(what: &str) {
    use std::io::Write;
    let _ = writeln!(io::stderr(), "skysync: {what}");
}
