//! `byteback history`: the recent changes of a file, and which of them can be undone.

use std::path::PathBuf;

use byteback_control::{FileHistory, PastEvent, PastMoment, TreeService};
use byteback_model::ByteString;
use clap::Args;
use serde::Serialize;

use crate::error::{CommandError, Result};
use crate::output::table;
use crate::settings::Settings;
use crate::timestamp;
use crate::tracked_folder;
use crate::wording::{counted, duration, size, size_exact};

/// Flags of `history`.
#[derive(Args, Debug)]
#[command(
    after_help = "Overwritten bytes are kept for folders that are mounted with --undo-window. The time in the first \
column restores the state before that change:
  byteback restore --at '2026-11-21 14:30:05.123456' FILE
  byteback restore --at '20 minutes ago' FILE -o OTHER_FILE"
)]
pub(crate) struct HistoryArguments {
    /// File, which may have been removed
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// A change as a JSON line.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    what: PastEvent,
    size_before: Option<u64>,
    kept_bytes: u64,
    kept_ranges: u64,
    restorable: bool,
    because: Option<&'a str>,
}

#[derive(Serialize)]
struct Summary<'a> {
    file: String,
    known_since: Option<String>,
    because: Option<&'a str>,
    window_ns: i64,
    quantum_ns: i64,
    budget_bytes: u64,
    kept_bytes: u64,
}

pub(crate) fn run(arguments: &HistoryArguments, settings: &Settings) -> Result<()> {
    let (daemon, path) = daemon_of(&arguments.file, settings)?;
    let history = daemon.history(&path)?;
    if settings.output.json {
        print_json(arguments, &history, settings)
    } else {
        print(arguments, &history, settings)
    }
}

/// The daemon of the folder that a file lies in, and the file's path in it.
pub(super) fn daemon_of(file: &std::path::Path, settings: &Settings) -> Result<(byteback_control::Client, ByteString)> {
    let (known, path) = tracked_folder::folder_of_file(file, settings)?;
    let directory = known.folder.directory().display();
    match tracked_folder::daemon(&known.folder)? {
        Some(daemon) => Ok((daemon, path)),
        None => Err(CommandError::new(format!(
            "{directory} is not mounted, so its overwritten bytes are not available"
        ))
        .next(format!("Mount it: byteback mount --undo-window 30m {directory}"))),
    }
}

fn print_json(arguments: &HistoryArguments, history: &FileHistory, settings: &Settings) -> Result<()> {
    let output = settings.output;
    for moment in &history.moments {
        let line = Line {
            time: timestamp::rfc3339(moment.at_ns),
            what: moment.what,
            size_before: moment.size_before_bytes,
            kept_bytes: moment.kept_bytes,
            kept_ranges: moment.kept_ranges,
            restorable: moment.not_kept.is_none(),
            because: moment.not_kept.as_deref(),
        };
        output.object("moment", &line)?;
    }
    let since = history.known_since.as_ref();
    let summary = Summary {
        file: arguments.file.display().to_string(),
        known_since: since.map(|(at_ns, _)| timestamp::rfc3339(*at_ns)),
        because: since.map(|(_, because)| because.as_str()),
        window_ns: history.window_ns,
        quantum_ns: history.quantum_ns,
        budget_bytes: history.budget_bytes,
        kept_bytes: history.kept_bytes,
    };
    output.object("summary", &summary)
}

fn print(arguments: &HistoryArguments, history: &FileHistory, settings: &Settings) -> Result<()> {
    let output = settings.output;
    let file = arguments.file.display();
    if history.moments.is_empty() {
        output.line(format!("No changes to {file} are remembered."))?;
    } else {
        let rows: Vec<[String; 4]> = history
            .moments
            .iter()
            .map(|moment| {
                let before = match (&moment.not_kept, moment.size_before_bytes) {
                    (Some(because), _) => format!("not kept: {because}"),
                    (None, Some(bytes)) => size_exact(bytes, output.verbosity > 0),
                    (None, None) => "kept".to_owned(),
                };
                let what = name(moment.what).to_owned();
                [timestamp::local_exact(moment.at_ns), what, changed(moment), before]
            })
            .collect();
        table(output, ["TIME", "WHAT", "OLD BYTES", "BEFORE"], &rows)?;
    }
    if let Some((since_ns, because)) = &history.known_since {
        output.say(format!(
            "Known since {}. Before that: {because}.",
            timestamp::local(*since_ns)
        ))?;
    }
    let ns = |ns: i64| duration(ns.unsigned_abs());
    output.say(format!(
        "Kept for {}, at most {} ({} now), in steps of {}.",
        ns(history.window_ns),
        size(history.budget_bytes),
        size(history.kept_bytes),
        ns(history.quantum_ns)
    ))
}

fn name(what: PastEvent) -> &'static str {
    match what {
        PastEvent::Written => "written",
        PastEvent::Truncated => "truncated or extended",
        PastEvent::Zeroed => "zeroed or allocated",
        PastEvent::Removed => "removed",
        PastEvent::Created => "created",
        PastEvent::Replaced => "replaced",
        PastEvent::MovedHere => "moved here",
        PastEvent::MovedAway => "moved away",
    }
}

fn changed(moment: &PastMoment) -> String {
    if moment.kept_ranges == 0 {
        return String::new();
    }
    let ranges = counted(moment.kept_ranges, "range", "ranges");
    format!("{} in {ranges}", size(moment.kept_bytes))
}
