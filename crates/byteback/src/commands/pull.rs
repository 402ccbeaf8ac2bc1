//! `byteback pull`: a local directory becomes what a server has at a place.

use std::path::PathBuf;

use byteback_sync::{NotRestoredKind, PullOptions, PullReport, pull};
use clap::Args;
use serde::Serialize;

use super::plain::PlainArguments;
use super::restore::not_restored;
use crate::error::{CommandError, Result};
use crate::exit_code::Exit;
use crate::output::Output;
use crate::progress::Progress;
use crate::repository::Location;
use crate::settings::Settings;
use crate::signals::Interrupt;
use crate::wording::{counts, duration, listed, size_exact};

/// Flags of `pull`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  byteback pull http://HOST:7117/photos photos
  byteback pull -n --delete http://HOST:7117/laptop/work work
The content of a directory becomes the content of DIR, which is made if it is missing; a file goes into DIR under its own name. What is
here nearly is not fetched: of a large file that changed, what changed is.

If it is interrupted, the same command goes on where it stopped; until then there are files called .byteback-partial-... With -n or
-v each path is told: + new, M another content, a other attributes, - removed. If a file, or an owner, a permission or the like,
could not be made, the rest is, and the exit code is 1.")]
pub(crate) struct PullArguments {
    /// What to fetch: http://HOST:PORT/FOLDER[/PATH]
    #[arg(value_name = "URL", value_parser = Location::parser())]
    url: Location,
    /// The directory that it goes into
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    plain: PlainArguments,
}

#[derive(Serialize)]
struct Summary<'a> {
    url: String,
    target: String,
    #[serde(flatten)]
    report: &'a PullReport,
}

pub(crate) fn run(arguments: &PullArguments, settings: &Settings) -> Result<()> {
    let url = &arguments.url;
    let options = PullOptions {
        dry_run: arguments.plain.dry_run,
        delete: arguments.plain.delete,
        checksum: arguments.plain.checksum,
        exclude: arguments.plain.exclude()?,
        ..PullOptions::default()
    };
    let (server, _) = arguments.plain.connect(&url.repository, settings)?;
    let interrupt = Interrupt::watch()?;
    let progress = Progress::new(settings, "pull", Some(interrupt)).telling_changes(options.dry_run);
    let pulled = pull(
        &server,
        &url.repository.folder,
        &url.path,
        &arguments.dir,
        &options,
        &progress,
    );
    progress.finish();
    let report = pulled.map_err(CommandError::from).map_err(|error| match error {
        CommandError::Failed(failure) if failure.exit == Exit::Interrupted => CommandError::with_exit(
            Exit::Interrupted,
            "stopped before the end, as asked; what has its name is whole",
        )
        .next("The same command goes on where it stopped."),
        other => other,
    })?;
    let output = settings.output;
    let printed = if output.json {
        let summary = Summary {
            url: url.to_string(),
            target: arguments.dir.display().to_string(),
            report: &report,
        };
        output.object("summary", &summary)
    } else {
        print(&report, arguments, output)
    };
    if report.restored.is_complete() {
        printed
    } else {
        Err(CommandError::Reported(Exit::Failed))
    }
}

fn print(report: &PullReport, arguments: &PullArguments, output: Output) -> Result<()> {
    let sizes = |bytes: u64| size_exact(bytes, output.verbosity > 0);
    let (url, target) = (&arguments.url, arguments.dir.display());
    let took = duration(report.restored.total_ns);
    match (report.dry_run, report.has_changes()) {
        (true, _) => output.say(format!(
            "Nothing was changed (dry run). A pull of {url} into {target} would find:"
        ))?,
        (false, true) => output.say(format!("Pulled {url} into {target} in {took}."))?,
        (false, false) => output.say(format!("{target} is as {url} already ({took})."))?,
    }
    let parts = counts(&[
        (report.new, "new name", "new names"),
        (report.changed, "changed file", "changed files"),
        (
            report.attributes_changed,
            "change of attributes alone",
            "changes of attributes alone",
        ),
        (report.restored.removed, "removed name", "removed names"),
    ]);
    match (parts.is_empty(), report.dry_run) {
        (false, _) => output.say(format!("  {}", listed(&parts)))?,
        (true, true) => output.say("  nothing to change")?,
        (true, false) => {}
    }
    if !report.dry_run && report.restored.written_bytes > 0 {
        output.say(format!("  written   {}", sizes(report.restored.written_bytes)))?;
        if report.found_bytes > 0 {
            output.say(format!(
                "  found     {} in files that were here",
                sizes(report.found_bytes)
            ))?;
        }
        if report.resumed_bytes > 0 {
            output.say(format!(
                "  resumed   {} that an interrupted pull had left",
                sizes(report.resumed_bytes)
            ))?;
        }
        output.say(format!(
            "  received  {} on the wire",
            sizes(report.restored.wire.received)
        ))?;
    }
    for missing in &report.restored.not_restored {
        output.say(format!("  not restored: {}", not_restored(missing)))?;
    }
    let is_about_rights = |kind| kind != NotRestoredKind::File;
    let missing = &report.restored.not_restored;
    if missing.iter().any(|missing| is_about_rights(missing.kind)) && !rustix::process::geteuid().is_root() {
        output.say("  Contents and names are whole. To restore these, too, run it as root.")?;
    }
    Ok(())
}
