//! The figures of the DeltaCFS paper (ICDCS'17, section IV), measured on continuous sync, and the
//! goals that we set it.
//!
//! | part | what it measures |
//! |---|---|
//! | [`traffic`] | CPU of client and server (Table II) and bytes up and down (Fig. 8), for programs at work |
//! | [`latency`] | the time from a write to the server's acknowledgement |
//! | [`local`] | throughput of the mounted folder (Table III), and the cost of the checksums for a write |
//!
//! Peers that are not installed are left out and named; the repository's own build is enough.

pub(super) mod keepers;
mod latency;
mod local;
mod traffic;
mod workloads;

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::findings::Findings;
use crate::{Options, SuiteError};

/// The parts to measure.
#[derive(Args, Debug)]
pub(crate) struct DeltacfsArguments {
    /// Parts to measure; all if none is given.
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Run only workloads and contenders whose names contain this text.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Read recorded traces from this folder: programs that save a document or keep chats in a
    /// database.
    #[arg(long, value_name = "DIR", env = "BYTEBACK_BENCH_TRACES")]
    traces: Option<PathBuf>,
    /// Write each chart into this folder, as SVG.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// CPU and bytes of a sync while programs work (Table II, Fig. 8).
    Traffic,
    /// Time from a write to the server's acknowledgement.
    Latency,
    /// Throughput of the mounted folder, with and without checksums (Table III).
    Local,
}

/// Runs the suite.
///
/// # Errors
/// If a program fails, if a copy differs, or if the user asks to stop.
pub(crate) fn run(arguments: &DeltacfsArguments, options: Options, json: Option<&Path>) -> Result<(), SuiteError> {
    let wanted = |part| arguments.parts.is_empty() || arguments.parts.contains(&part);
    let mut findings = Findings::default();
    if wanted(Part::Traffic) {
        findings.add(traffic::run(options, &arguments.only, arguments.traces.as_deref())?);
    }
    if wanted(Part::Latency) {
        findings.add(latency::run(options)?);
    }
    if wanted(Part::Local) {
        findings.add(local::run(options)?);
    }
    findings.tell("deltacfs", arguments.plots.as_deref(), json)
}

/// Reports progress on standard error.
fn tell(what: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "deltacfs: {what}");
}
