//! `byteback restore`: turns a snapshot, or one path in it, into files again; with `--at` a file as
//! it was some time ago.

mod moment;
mod past;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use byteback_backup::{NotRestored, NotRestoredKind, RestoreOptions, RestoreReport, SnapshotSpec, restore};
use clap::Args;
use serde::Serialize;

use super::source::Source;
use crate::error::{CommandError, Result};
use crate::exit_code::Exit;
use crate::operands::SourceArguments;
use crate::progress::Progress;
use crate::settings::Settings;
use crate::signals::Interrupt;
use crate::snapshot_path::SnapshotPath;
use crate::wording::{counted, counts, duration, listed, size_exact};

/// Flags of `restore`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  byteback restore latest /data/mail --target /tmp/all
  byteback restore latest~1:mail/inbox /data/mail --target /tmp/inbox
An interrupted restore continues where it stopped when it is run again with --overwrite. If a
file, an owner, a permission or the like cannot be restored, the rest is, and the exit code is 1.

With --at no backup is needed: the server keeps everything that sync sent ('byteback versions
FILE'), and a mount with --undo-window keeps what programs overwrite:
  byteback restore --at '20 minutes ago' FILE           in its place
  byteback restore --at 14:30 FILE -o OTHER_FILE        beside it
  byteback restore --at @44 DIR --target NEW_DIR        everything in a directory, as of a version")]
pub(crate) struct RestoreArguments {
    /// Source to restore: latest, latest~N, a number, or @NUMBER as in 'versions', and a path in it
    /// (a folder means its latest); with --at, a file or directory
    #[arg(value_name = "SNAPSHOT[:PATH]")]
    what: OsString,
    /// Directory to restore into; created if missing
    #[arg(long, value_name = "DIR", required_unless_present = "at")]
    target: Option<PathBuf>,
    /// Restore a file or directory as it was then: '20 minutes ago', 2h, 14:30, RFC 3339, or
    /// @NUMBER as in 'versions'
    #[arg(long, value_name = "TIME", conflicts_with_all = ["delete", "operand", "dir"])]
    at: Option<String>,
    /// With --at: write it here instead of in its place
    #[arg(short = 'o', long, value_name = "FILE", requires = "at", conflicts_with = "target")]
    to: Option<PathBuf>,
    /// Restore even into a directory that is not empty, replacing files of the same name
    #[arg(long)]
    overwrite: bool,
    /// Remove from the target what the snapshot does not have
    #[arg(long, requires = "overwrite")]
    delete: bool,
    /// Restore what can be read of files that are damaged at the server, with holes for the rest
    /// (exit code 3)
    #[arg(long, conflicts_with = "at")]
    salvage: bool,
    /// Also restore the immutable and append-only flags (chattr +i, +a), and replace local files
    /// that have them; for root
    #[arg(long)]
    flags: bool,
    #[command(flatten)]
    source: SourceArguments,
}

#[derive(Serialize)]
struct Summary<'a> {
    target: String,
    repository: String,
    #[serde(flatten)]
    report: &'a RestoreReport,
}

pub(crate) fn run(arguments: &RestoreArguments, settings: &Settings) -> Result<()> {
    if let Some(at) = &arguments.at {
        return moment::run(arguments, at, settings);
    }
    let chosen = arguments.source.choose([&arguments.what], 1);
    let what = &chosen.snapshot(0);
    // The parser ensures that there is one.
    let target = arguments.target.as_deref().unwrap_or(Path::new("."));
    let source = Source::open(chosen.dir.as_deref(), settings)?;
    let interrupt = Interrupt::watch()?;
    let progress = Progress::new(settings, "restore", Some(interrupt));
    let options = RestoreOptions {
        overwrite: arguments.overwrite,
        delete: arguments.delete,
        salvage: arguments.salvage,
        flags: arguments.flags,
        ..RestoreOptions::default()
    };
    let restored = restore(
        &source.server,
        source.folder(),
        what.snapshot,
        &what.path,
        target,
        &options,
        &progress,
    );
    progress.finish();
    let report = restored
        .map_err(|error| source.in_snapshot(error, what))
        .map_err(|error| match error {
            CommandError::Failed(failure) if failure.exit == Exit::Interrupted => CommandError::with_exit(
                Exit::Interrupted,
                "stopped on request; every file restored so far is complete",
            )
            .next("To continue, run the same command with --overwrite."),
            other => other,
        })?;
    let output = settings.output;
    let printed = if output.json {
        let summary = Summary {
            target: target.display().to_string(),
            repository: source.repository.to_string(),
            report: &report,
        };
        output.object("summary", &summary)
    } else {
        print(&report, (what, target), &source, settings)
    };
    if report.is_complete() {
        printed
    } else if report.not_restored.is_empty() {
        Err(CommandError::Reported(Exit::SourceUnreadable))
    } else {
        Err(CommandError::Reported(Exit::Failed))
    }
}

fn print(
    report: &RestoreReport,
    (what, target): (&SnapshotPath, &Path),
    source: &Source,
    settings: &Settings,
) -> Result<()> {
    let output = settings.output;
    let sizes = |bytes: u64| size_exact(bytes, output.verbosity > 0);
    let path = match what.path_text() {
        path if path.is_empty() => String::new(),
        path => format!(":{path}"),
    };
    let snapshot = match what.snapshot {
        SnapshotSpec::Moment(seq) => format!("Version @{seq}"),
        _ => format!("Snapshot {}", report.snapshot_id),
    };
    output.say(format!(
        "{snapshot}{path} of {} restored into {} in {}.",
        source.repository,
        target.display(),
        duration(report.total_ns)
    ))?;
    let mut parts = vec![counted(report.files, "file", "files")];
    parts.extend(counts(&[
        (report.files_kept, "file already there", "files already there"),
        (report.specials, "link or special file", "links and special files"),
        (report.hard_links, "hard link", "hard links"),
        (report.removed, "name removed", "names removed"),
    ]));
    output.say(format!("  {}", listed(&parts)))?;
    output.say(format!("  written   {}", sizes(report.written_bytes)))?;
    output.say(format!("  received  {} on the wire", sizes(report.wire.received)))?;
    for file in &report.salvaged {
        output.say(format!(
            "  salvaged: {}: {} of {} are lost",
            file.path,
            sizes(file.lost_bytes),
            sizes(file.size)
        ))?;
        for range in &file.lost {
            let end = range.offset.saturating_add(range.len);
            output.say(format!("    a hole from byte {} to {end}", range.offset))?;
        }
    }
    for missing in &report.not_restored {
        output.say(format!("  not restored: {}", not_restored(missing)))?;
    }
    if report
        .not_restored
        .iter()
        .any(|missing| missing.kind != NotRestoredKind::File)
        && !rustix::process::geteuid().is_root()
    {
        output.say("  Contents and names are complete. To restore these as well, run it as root.")?;
    }
    Ok(())
}

/// The number of items of one kind that could not be restored, with the reason of the first.
pub(super) fn not_restored(missing: &NotRestored) -> String {
    let count = missing.count;
    let what = match missing.kind {
        NotRestoredKind::Owner => counted(count, "owner", "owners"),
        NotRestoredKind::SetId => counted(count, "set-id bit", "set-id bits"),
        NotRestoredKind::Mode => format!("permissions of {}", counted(count, "file", "files")),
        NotRestoredKind::Xattr => counted(count, "extended attribute or ACL", "extended attributes and ACLs"),
        NotRestoredKind::Times => format!("times of {}", counted(count, "file", "files")),
        NotRestoredKind::Flags => format!("flags of {}", counted(count, "file", "files")),
        NotRestoredKind::Device => counted(count, "device", "devices"),
        NotRestoredKind::File => counted(count, "file", "files"),
    };
    format!("{what}, first {}: {}", missing.first_path, missing.first_reason)
}
