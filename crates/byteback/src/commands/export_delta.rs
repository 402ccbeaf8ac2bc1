//! `byteback export-delta`: the changes of one file as a delta in librsync's format, which `rdiff
//! patch` applies.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use byteback_backup::{ExportReport, ExportRequest, WholeFileReason, export_delta};
use byteback_extents::ExtentSet;
use byteback_oplog::WholeReason;
use clap::Args;
use serde::Serialize;

use crate::commands::changes::{Since, borg_map, in_cut, why};
use crate::error::{CommandError, Result};
use crate::progress::Progress;
use crate::settings::Settings;
use crate::signals::Interrupt;
use crate::tracked_folder::{self, Owner};
use crate::wording::{size, size_exact};

/// Flags of `export-delta`.
#[derive(Args, Debug)]
#[command(after_help = "If OLD is a copy of FILE made at the mark, these commands make NEW:
  byteback export-delta FILE -o DELTA
  rdiff patch OLD DELTA NEW
NEW is FILE as it was at the moment of the export, even while programs go on writing.

To continue from there, use a separate consumer (see 'byteback consumers --help') with
--consumer NAME.")]
pub(crate) struct ExportDeltaArguments {
    /// File in a tracked folder
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Write the delta to this file (default: standard output)
    #[arg(short, long, value_name = "DELTA")]
    output: Option<PathBuf>,
    /// Use the length of this old copy, which makes the deltas of sparse files smaller; its content
    /// is not read
    #[arg(long, value_name = "OLD")]
    old: Option<PathBuf>,
    /// Start of the changes: mark (the consumer's last save), or an epoch (@17)
    #[arg(long, value_name = "MOMENT", default_value = "mark")]
    since: Since,
    /// Start at the mark of this consumer (default: 'byteback backup')
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
}

#[derive(Serialize)]
struct Summary<'a> {
    file: String,
    delta: String,
    whole_because: Option<&'static str>,
    #[serde(flatten)]
    report: &'a ExportReport,
}

pub(crate) fn run(arguments: &ExportDeltaArguments, settings: &Settings) -> Result<()> {
    let output = settings.output;
    let since = match arguments.since {
        Since::Mark => None,
        Since::Epoch(epoch) => Some(epoch.0),
        Since::Snapshot(_) => {
            return Err(
                CommandError::new("a delta begins at a mark or an epoch, not at a snapshot")
                    .next("To get the content of a snapshot, use 'byteback restore'."),
            );
        }
    };
    match &arguments.output {
        None if output.json => {
            return Err(CommandError::new("with --json, the delta cannot go to standard output")
                .next("Name a file for it: -o DELTA"));
        }
        None if io::stdout().is_terminal() => {
            return Err(CommandError::new("cannot write a delta to a terminal").next("Name a file for it: -o DELTA"));
        }
        _ => {}
    }
    let (known, path) = tracked_folder::folder_of_file(&arguments.file, settings)?;
    if in_cut(&path).is_some() {
        return Err(
            CommandError::new(format!("{} is inside a cut", arguments.file.display()))
                .next("Name the file itself: an export takes a moment of its own."),
        );
    }
    let consumer = known.consumer(arguments.consumer.as_deref())?;
    let progress = Progress::new(settings, "export-delta", Some(Interrupt::watch()?));
    let owner = Owner::of(&known.folder, settings, &progress)?;
    let is_mounted = owner.is_mounted();
    let holes = || match is_mounted {
        true => holes(&arguments.file),
        // A write into a hole meanwhile would go unnoticed.
        false => ExtentSet::new(),
    };
    let old_len_bytes = match &arguments.old {
        Some(old) => Some(
            std::fs::metadata(old)
                .map_err(|error| CommandError::file("read", old, &error))?
                .len(),
        ),
        None => None,
    };
    let request = ExportRequest {
        consumer: &consumer,
        since,
        path: &path,
        old_len_bytes,
    };
    let mut export = |out: &mut dyn Write| -> Result<ExportReport> {
        let report = export_delta(owner.service(), &request, holes, out, &progress)?;
        report.ok_or_else(|| {
            let is_missing =
                std::fs::symlink_metadata(&arguments.file).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
            if is_missing {
                return CommandError::new(format!("{} does not exist", arguments.file.display()))
                    .next("Check the name; 'byteback changes' shows what was renamed or removed.");
            }
            CommandError::new(format!("{} is not a regular file", arguments.file.display()))
                .next("A delta covers the content of one file; 'byteback changes' covers whole folders.")
        })
    };
    let Some(to) = &arguments.output else {
        let mut out = BufWriter::with_capacity(1 << 18, io::stdout().lock());
        let exported = export(&mut out);
        progress.finish();
        return exported.map(|_| ());
    };
    let exported = write_file(to, &mut export);
    progress.finish();
    let report = exported?;
    if output.json {
        return output.object(
            "summary",
            &Summary {
                file: arguments.file.display().to_string(),
                delta: to.display().to_string(),
                whole_because: report.whole.map(reason),
                report: &report,
            },
        );
    }
    say(arguments, to, &report, settings)
}

fn say(arguments: &ExportDeltaArguments, to: &Path, report: &ExportReport, settings: &Settings) -> Result<()> {
    let (output, exact) = (settings.output, settings.output.verbosity > 0);
    output.say(format!(
        "{}: {} of {} changed; the delta has {}.",
        arguments.file.display(),
        size_exact(report.changed_bytes, exact),
        size(report.len_bytes),
        size_exact(report.delta_bytes, exact)
    ))?;
    if let Some(whole) = report.whole {
        output.say(format!("  It contains the whole file{}.", reason_in_words(whole)))?;
    }
    if report.zero_bytes > 0 {
        output.say(format!(
            "  {} of it are zeros for holes: the format has no shorter encoding for them.",
            size(report.zero_bytes)
        ))?;
    }
    output.say(format!("Apply it with: rdiff patch OLD {} NEW", to.display()))
}

fn reason_in_words(whole: WholeFileReason) -> &'static str {
    match whole {
        WholeFileReason::Renamed => ", because it got its name after the mark",
        WholeFileReason::Log(WholeReason::Created) => ", which is new",
        WholeFileReason::Log(reason) => why(reason),
    }
}

/// The reason as in the JSON lines of `changes`.
fn reason(whole: WholeFileReason) -> &'static str {
    match whole {
        WholeFileReason::Renamed => "renamed",
        WholeFileReason::Log(WholeReason::Created) => "created",
        WholeFileReason::Log(WholeReason::NoMark) => "no_mark",
        WholeFileReason::Log(WholeReason::Untracked) => "untracked",
        WholeFileReason::Log(WholeReason::Interrupted) => "interrupted",
        WholeFileReason::Log(WholeReason::Unsaved) => "unsaved",
        WholeFileReason::Log(WholeReason::Dropped) => "dropped",
        WholeFileReason::Log(WholeReason::LogLost) => "log_lost",
    }
}

/// The present holes of a file; none if they cannot be determined.
fn holes(file: &Path) -> ExtentSet {
    let look = || {
        let file = borg_map::open(file)?;
        let len_bytes = file.metadata()?.len();
        borg_map::holes(&file, len_bytes)
    };
    look().unwrap_or_default()
}

/// Writes a file that gets its name only when it is complete.
fn write_file(to: &Path, export: &mut dyn FnMut(&mut dyn Write) -> Result<ExportReport>) -> Result<ExportReport> {
    let failed = |error: &io::Error| CommandError::file("write", to, error);
    let mut name = to.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = to.with_file_name(name);
    // A symlink that another user put under this guessable name must not be followed.
    let file = File::create_new(&part).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => CommandError::file("create", &part, &error),
        _ => failed(&error),
    })?;
    let mut out = BufWriter::with_capacity(1 << 18, file);
    let exported = export(&mut out).and_then(|report| {
        let renamed = out
            .into_inner()
            .map_err(io::IntoInnerError::into_error)
            .and_then(|_| std::fs::rename(&part, to));
        renamed.map_err(|error| failed(&error)).map(|()| report)
    });
    if exported.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    exported
}
