//! Measurements of Byteback beside its peers, in one run and in alternation.
//!
//! `byteback-bench SUITE [--quick] [--json FILE]` runs a suite, prints a table, and writes the same
//! as JSON (see [`measured`]). A suite measures the same work done by us and by others, each
//! several times and in turn (see [`alternate`]), so that other activity on the machine affects all
//! alike. The exit code says whether the suite ran, not whether its goals were met: the report says
//! that.
//!
//! A new suite is a module of [`suites`] with a function that takes [`Options`] and returns
//! records, and a line in [`Suite`].

mod alternate;
mod change;
mod compare;
mod demo;
mod figure;
mod findings;
mod measured;
mod plot;
mod random;
mod real_files;
mod report;
mod rig;
mod suites;
mod traces;

use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use byteback_heap::CountingHeap;
use clap::{Parser, Subcommand};

use crate::report::Record;
use crate::rig::interrupt;
use crate::rig::process::is_interrupted;

/// The code that a shell reports for a program ended by SIGINT.
const EXIT_INTERRUPTED: u8 = 130;

/// Counts what suites ask it to count; see `byteback-heap`.
#[global_allocator]
static HEAP: CountingHeap = CountingHeap;

/// Measure Byteback beside its peers.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Suite to run.
    #[command(subcommand)]
    suite: Suite,
    /// Do less work, in three runs instead of five: for a first impression, not for publication.
    #[arg(long, global = true)]
    quick: bool,
    /// Also write the figures to this file, as JSON.
    #[arg(long, value_name = "FILE", global = true)]
    json: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Suite {
    /// Insert ranges into extent sets and maps; compare with the crate rangemap.
    Extents,
    /// Back up small changes in a large file; compare with rsync.
    Image,
    /// Back up a folder in use fifty times; compare with restic.
    History,
    /// Back up and restore many small files; compare with restic.
    SmallFiles,
    /// Measure what a save costs on the wire, however a program saves; compare with rsync and
    /// xdelta3.
    Saves(suites::saves::SavesArguments),
    /// Demonstrate the main job on real data; compare everything that is restored.
    Demo,
    /// Measure finders of deltas, and deltas from existing checksums (the figures of the SkySync
    /// paper).
    Skysync(suites::skysync::SkysyncArguments),
    /// Compare continuous sync with Syncthing, Unison, rsync and xdelta3, where these are installed
    /// (the figures of the DeltaCFS paper).
    Deltacfs(suites::deltacfs::DeltacfsArguments),
    /// Measure what a volume saves by deltas, compared with file systems of the kernel (the figures
    /// of the DeltaFS paper); needs root.
    Deltafs(suites::deltafs::DeltafsArguments),
    /// Measure the figures of the SolFS paper and the goals of the operation log.
    Solfs(suites::solfs::SolfsArguments),
    /// Compare the figures of two builds, written with --json; `scripts/bench-change` measures
    /// both.
    Change(change::ChangeArguments),
    /// Internal: run inside a virtual machine that was started for a measurement.
    #[command(hide = true)]
    Guest(suites::deltafs::GuestArguments),
    /// Internal: run as a process that holds a mount.
    #[command(hide = true)]
    Hold(rig::hold::HoldArguments),
}

/// The thoroughness of a suite.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Less work.
    pub(crate) quick: bool,
    /// The number of measurements of everything.
    pub(crate) runs: usize,
}

/// A suite that could not be run; the text says why.
pub(crate) type SuiteError = Box<dyn Error>;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_interrupted(&error) => ExitCode::from(EXIT_INTERRUPTED),
        Err(error) => {
            // No way is left to report a failure of this.
            let _ = writeln!(io::stderr(), "byteback-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), SuiteError> {
    let options = Options {
        quick: arguments.quick,
        runs: if arguments.quick { 3 } else { 5 },
    };
    let records: Vec<Record> = match &arguments.suite {
        Suite::Extents => suites::extents::run(options)?,
        Suite::Image => {
            interrupt::install()?;
            suites::image::run(options)?
        }
        Suite::History => {
            interrupt::install()?;
            suites::history::run(options)?
        }
        Suite::SmallFiles => {
            interrupt::install()?;
            suites::small_files::run(options)?
        }
        Suite::Demo => {
            interrupt::install()?;
            demo::run_demo(options)?
        }
        Suite::Skysync(skysync) => {
            interrupt::install()?;
            return suites::skysync::run(skysync, options, arguments.json.as_deref());
        }
        Suite::Solfs(solfs) => {
            interrupt::install()?;
            return suites::solfs::run(solfs, options, arguments.json.as_deref());
        }
        Suite::Saves(saves) => {
            interrupt::install()?;
            return suites::saves::run(saves, options, arguments.json.as_deref());
        }
        Suite::Deltacfs(deltacfs) => {
            interrupt::install()?;
            return suites::deltacfs::run(deltacfs, options, arguments.json.as_deref());
        }
        Suite::Deltafs(deltafs) => {
            interrupt::install()?;
            return suites::deltafs::run(deltafs, options, arguments.json.as_deref());
        }
        Suite::Change(change) => return change::run(change, &mut io::stdout().lock()),
        Suite::Guest(guest) => return suites::deltafs::work_in_guest(guest),
        Suite::Hold(hold) => return rig::hold::serve(hold),
    };
    // The demo prints a table of its own.
    if !matches!(arguments.suite, Suite::Demo) {
        report::write_table(&mut io::stdout().lock(), &records)?;
    }
    if let Some(path) = &arguments.json {
        let suite = records.first().map_or("", |record| record.suite);
        measured::write(path, suite, &measured::of_records(&records))?;
    }
    Ok(())
}
