//! `byteback pull`: makes a local directory equal to a place at a server.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use byteback_api::problem::Code;
use byteback_backup::{BackupError, NotRestoredKind, PullOptions, PullReport, pull};
use clap::Args;
use serde::Serialize;

use super::plain::PlainArguments;
use super::restore::not_restored;
use crate::binding::Binding;
use crate::error::{CommandError, Result};
use crate::exit_code::Exit;
use crate::output::Output;
use crate::progress::Progress;
use crate::repository::Location;
use crate::settings::Settings;
use crate::signals::Interrupt;
use crate::tracked_folder;
use crate::wording::{counts, duration, listed, size_exact};

/// Flags of `pull`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  byteback pull photos                                  (after 'byteback join CODE photos')
  byteback pull https://HOST:7117/photos photos
  byteback pull -n --delete https://HOST:7117/laptop/work work
The content of a directory becomes the content of DIR, which is created if missing; a file goes
into DIR under its own name. Data that local files already have is not fetched: of a large file
that changed, only the changes are.

After an interruption, the same command continues where it stopped; until then, files named
.byteback-partial-... remain. With -n or -v each path is listed ('+' new, 'M' content changed,
'a' attributes changed, '-' removed). If a file, an owner, a permission or the like cannot be
restored, the rest is, and the exit code is 1; -n predicts that as far as it can.")]
pub(crate) struct PullArguments {
    /// Source to fetch: https://HOST:PORT/FOLDER[/PATH] (default: the folder that DIR is bound to)
    #[arg(value_name = "URL")]
    from: OsString,
    /// The directory to fetch into
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Also set the immutable and append-only flags (chattr +i, +a), and change local files that
    /// have them; for root
    #[arg(long)]
    flags: bool,
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

/// The source and the destination: `pull URL DIR`, or `pull DIR` for a bound directory.
fn from_and_to(arguments: &PullArguments, settings: &Settings) -> Result<(Location, PathBuf, Option<Binding>)> {
    let wrong = |message: String| CommandError::new(message).next("'byteback pull --help' shows the syntax.");
    if let Some(dir) = &arguments.dir {
        let url = Location::parse(&arguments.from).map_err(wrong)?;
        return Ok((url, dir.clone(), None));
    }
    if arguments.from.as_bytes().windows(3).any(|three| three == b"://") {
        return Err(wrong("no directory to fetch into is given".to_owned()));
    }
    let dir = PathBuf::from(&arguments.from);
    let bound = tracked_folder::bound_folder(Some(&dir), settings)?;
    let url = Location {
        repository: bound.binding.repository.clone(),
        path: Vec::new(),
    };
    Ok((url, dir, Some(bound.binding)))
}

pub(crate) fn run(arguments: &PullArguments, settings: &Settings) -> Result<()> {
    let (url, dir, binding) = from_and_to(arguments, settings)?;
    let options = PullOptions {
        dry_run: arguments.plain.dry_run,
        delete: arguments.plain.delete,
        checksum: arguments.plain.checksum,
        flags: arguments.flags,
        exclude: arguments.plain.exclude()?,
        ..PullOptions::default()
    };
    let (server, _) = arguments.plain.connect(&url.repository, binding.as_ref(), settings)?;
    let interrupt = Interrupt::watch()?;
    let progress = Progress::new(settings, "pull", Some(interrupt)).telling_changes(options.dry_run);
    let pulled = pull(&server, &url.repository.folder, &url.path, &dir, &options, &progress);
    progress.finish();
    let report = pulled
        .map_err(|error| not_there(error, &url))
        .map_err(|error| match error {
            CommandError::Failed(failure) if failure.exit == Exit::Interrupted => CommandError::with_exit(
                Exit::Interrupted,
                "stopped on request; every file that has its final name is complete",
            )
            .next("To continue where it stopped, run the same command again."),
            other => other,
        })?;
    let output = settings.output;
    let printed = if output.json {
        let summary = Summary {
            url: url.to_string(),
            target: dir.display().to_string(),
            report: &report,
        };
        output.object("summary", &summary)
    } else {
        print(&report, &url, &dir, output)
    };
    if report.restored.is_complete() {
        printed
    } else {
        Err(CommandError::Reported(Exit::Failed))
    }
}

/// The error of a pull; a missing path at the server is reported in the user's terms.
fn not_there(error: BackupError, url: &Location) -> CommandError {
    let code = match &error {
        BackupError::Server(error) => error.problem.as_ref().map(|problem| problem.code),
        _ => None,
    };
    if code != Some(Code::NodeNotFound) || url.path.is_empty() {
        return error.into();
    }
    let path = String::from_utf8_lossy(&url.path);
    CommandError::with_exit(
        Exit::of_sync(&error),
        format!("the server has no \"{path}\" in {}", url.repository),
    )
    .next("In a URL, the path of a file or directory follows the folder's name.")
}

fn print(report: &PullReport, url: &Location, dir: &Path, output: Output) -> Result<()> {
    let sizes = |bytes: u64| size_exact(bytes, output.verbosity > 0);
    let target = dir.display();
    let took = duration(report.restored.total_ns);
    match (report.dry_run, report.has_changes()) {
        (true, _) => output.say(format!(
            "Nothing was changed (dry run). A pull of {url} into {target} would find:"
        ))?,
        (false, true) => output.say(format!("Pulled {url} into {target} in {took}."))?,
        (false, false) => output.say(format!("{target} already matches {url} ({took})."))?,
    }
    let parts = counts(&[
        (report.new, "new name", "new names"),
        (report.changed, "changed file", "changed files"),
        (
            report.attributes_changed,
            "attribute-only change",
            "attribute-only changes",
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
            output.say(format!("  found     {} in local files", sizes(report.found_bytes)))?;
        }
        if report.resumed_bytes > 0 {
            output.say(format!(
                "  resumed   {} left by an interrupted pull",
                sizes(report.resumed_bytes)
            ))?;
        }
        output.say(format!(
            "  received  {} on the wire",
            sizes(report.restored.wire.received)
        ))?;
    }
    let cannot = match report.dry_run {
        true => "cannot be restored",
        false => "not restored",
    };
    for missing in &report.restored.not_restored {
        output.say(format!("  {cannot}: {}", not_restored(missing)))?;
    }
    let is_about_rights = |kind| kind != NotRestoredKind::File;
    let missing = &report.restored.not_restored;
    if missing.iter().any(|missing| is_about_rights(missing.kind)) && !rustix::process::geteuid().is_root() {
        let whole = match report.dry_run {
            true => "Contents and names would be",
            false => "Contents and names are",
        };
        output.say(format!("  {whole} complete. To restore these as well, run it as root."))?;
    }
    Ok(())
}
