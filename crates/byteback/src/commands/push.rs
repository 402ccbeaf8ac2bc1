//! `byteback push`: makes a place at a server equal to a local file or directory.

use std::ffi::OsString;
use std::path::PathBuf;

use byteback_backup::{BackupError, PushOptions, PushReport, push, push_state_name};
use clap::Args;
use serde::Serialize;

use super::backup::{Delta, own_directory};
use super::plain::PlainArguments;
use crate::error::{CommandError, Result};
use crate::exit_code::Exit;
use crate::output::Output;
use crate::progress::Progress;
use crate::repository::Location;
use crate::settings::Settings;
use crate::signals::Interrupt;
use crate::wording::{counts, duration, listed, nodes, size_exact};

/// Flags of `push`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  byteback push photos https://HOST:7117/photos
  byteback push -n --delete --exclude '*.tmp' work https://HOST:7117/laptop/work
The content of a directory becomes the content of the destination, with or without a trailing
slash. A file becomes the destination itself, or goes into it if that is a directory, ends in a
slash or is the folder. Missing folders and directories are created.

Either everything is applied at once, or nothing is. After an interruption, the same command
continues where it stopped, within a day. With -n or -v each path is listed ('+' new, 'M' content
changed, 'a' attributes changed, '-' removed, '>' moved here, '=' copied at the server). A file that cannot be read, or that changes while
it is read, is reported and left as the server has it; the exit code is then 3.")]
pub(crate) struct PushArguments {
    /// The file or directory to send
    #[arg(value_name = "FILE_OR_DIR")]
    source: PathBuf,
    /// The destination: https://HOST:PORT/FOLDER[/PATH]
    #[arg(value_name = "URL", value_parser = Location::parser())]
    url: Location,
    #[command(flatten)]
    plain: PlainArguments,
    /// Leave alone file systems that are mounted below the directory
    #[arg(short = 'x', long)]
    one_file_system: bool,
    /// How to find what changed in a file
    #[arg(long, value_name = "WAY", default_value = "auto")]
    delta: Delta,
    /// Give the snapshot this tag; may be given several times
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Record this host name in the snapshot
    #[arg(long, value_name = "HOST")]
    host: Option<OsString>,
}

#[derive(Serialize)]
struct Summary<'a> {
    source: String,
    url: String,
    #[serde(flatten)]
    report: &'a PushReport,
}

pub(crate) fn run(arguments: &PushArguments, settings: &Settings) -> Result<()> {
    let exclude = arguments.plain.exclude()?;
    let url = &arguments.url;
    let (server, credentials) = arguments.plain.connect(&url.repository, None, settings)?;
    server.keep_line();
    let dry_run = arguments.plain.dry_run;
    let kept = match dry_run {
        true => None,
        false => own_directory(
            &state_path(arguments, settings)?,
            "the record of the push's progress",
            settings,
        ),
    };
    let (state, _lock) = kept.unzip();
    let interrupt = Interrupt::watch()?;
    let progress = Progress::new(settings, "push", Some(interrupt)).telling_changes(dry_run);
    let options = PushOptions {
        host: settings.host(arguments.host.as_ref()),
        tags: arguments.tag.clone(),
        dry_run,
        delete: arguments.plain.delete,
        checksum: arguments.plain.checksum,
        one_file_system: arguments.one_file_system,
        exclude,
        delta: arguments.delta.into(),
        processor_share: byteback_host::load::thread_share().unwrap_or(1.0),
        state,
        ..PushOptions::new(credentials.device)
    };
    let pushed = push(
        &server,
        &url.repository.folder,
        &url.path,
        &arguments.source,
        &options,
        &progress,
    );
    progress.finish();
    let report = pushed.map_err(|error| match error {
        BackupError::Cancelled => CommandError::with_exit(
            Exit::Interrupted,
            "stopped on request; nothing was changed at the server",
        )
        .next("To continue where it stopped, run the same command again within a day."),
        BackupError::OutcomeUnknown { .. } => {
            CommandError::new("the server stopped answering before it confirmed the push")
                .next("Run the same command again: it finds out whether the push was applied, and loses nothing.")
        }
        error => error.into(),
    })?;
    let output = settings.output;
    let printed = if output.json {
        let summary = Summary {
            source: arguments.source.display().to_string(),
            url: url.to_string(),
            report: &report,
        };
        output.object("summary", &summary)
    } else {
        print(&report, arguments, output)
    };
    if report.is_complete() {
        printed
    } else {
        Err(CommandError::Reported(Exit::SourceUnreadable))
    }
}

/// The directory that records the outcome of a push from this source to this place.
fn state_path(arguments: &PushArguments, settings: &Settings) -> Result<PathBuf> {
    let Location { repository, path } = &arguments.url;
    let name = push_state_name(&repository.server, &repository.folder, path, &arguments.source);
    Ok(settings.state_root()?.join("push").join(name))
}

fn print(report: &PushReport, arguments: &PushArguments, output: Output) -> Result<()> {
    let sizes = |bytes: u64| size_exact(bytes, output.verbosity > 0);
    let (source, url) = (arguments.source.display(), &arguments.url);
    let took = duration(report.total_ns);
    match (report.dry_run, report.snapshot_id) {
        (true, _) => output.say(format!(
            "Nothing was sent (dry run). A push of {source} to {url} would find:"
        ))?,
        (false, Some(id)) => output.say(format!("Pushed {source} to {url} in {took}, as snapshot {id}."))?,
        (false, None) => output.say(format!("{url} already matches {source} ({took})."))?,
    }
    output.say(format!("  {}", found(report)))?;
    if report.resumed {
        output.say(format!(
            "  resumed with {} that an interrupted push had sent",
            sizes(report.reused_bytes)
        ))?;
    }
    if report.files_new + report.files_changed > 0 {
        output.say(format!("  changed  {}", sizes(report.changed_bytes)))?;
    }
    if report.snapshot_id.is_some() {
        if report.found_bytes > 0 {
            output.say(format!("  found    {} at the server", sizes(report.found_bytes)))?;
        }
        output.say(format!("  sent     {} on the wire", sizes(report.wire.sent)))?;
        output.say(format!("  stored   {}", sizes(report.stored_bytes)))?;
    }
    if !report.is_complete() {
        output.say(format!(
            "  {} could not be sent; see the messages above.",
            nodes(report.unsaved.len() as u64)
        ))?;
    }
    Ok(())
}

/// The differences, as a sentence.
fn found(report: &PushReport) -> String {
    let parts = counts(&[
        (report.files_new, "new file", "new files"),
        (report.files_changed, "changed file", "changed files"),
        (report.files_moved, "moved file", "moved files"),
        (report.files_copied, "copied file", "copied files"),
        (report.dirs_new, "new directory", "new directories"),
        (report.dirs_moved, "moved directory", "moved directories"),
        (
            report.others_new,
            "new link or special file",
            "new links and special files",
        ),
        (
            report.attributes_changed,
            "attribute-only change",
            "attribute-only changes",
        ),
        (report.removed, "removed name", "removed names"),
    ]);
    let same = nodes(report.unchanged);
    match (parts.is_empty(), report.unchanged) {
        (true, _) => format!("nothing had changed (of {same})"),
        (false, 0) => listed(&parts),
        (false, _) => format!("{}; {same} unchanged", listed(&parts)),
    }
}
