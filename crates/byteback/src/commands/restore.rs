//! `byteback restore`: a snapshot, or what lies at one path of it, becomes files again.

use std::path::PathBuf;

use byteback_sync::{NotRestoredKind, RestoreOptions, RestoreReport, restore};
use clap::Args;
use serde::Serialize;

use super::source::Source;
use crate::arguments::SourceArguments;
use crate::error::{CommandError, Result};
use crate::exit_code::Exit;
use crate::progress::Progress;
use crate::settings::Settings;
use crate::signals::Interrupt;
use crate::snapshot_path::SnapshotPath;
use crate::wording::{counted, duration, listed, size_exact};

/// Flags of `restore`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  byteback restore latest --target /tmp/all
  byteback restore latest~1:mail/inbox --target /tmp/inbox
An interrupted restore goes on where it stopped: run it again with --overwrite. If a file, or an owner, a permission or
the like, could not be restored, the rest is, and the exit code is 1.")]
pub(crate) struct RestoreArguments {
    /// What to restore: latest, latest~N or a number, and a path in it
    #[arg(value_name = "SNAPSHOT[:PATH]")]
    what: SnapshotPath,
    /// Directory to restore into; made if it is missing
    #[arg(long, value_name = "DIR")]
    target: PathBuf,
    /// Restore also into a directory that is not empty, replacing files of the same name
    #[arg(long)]
    overwrite: bool,
    /// Remove what is in the target and not in the snapshot
    #[arg(long, requires = "overwrite")]
    delete: bool,
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
    let source = Source::open(&arguments.source, settings)?;
    let interrupt = Interrupt::watch()?;
    let progress = Progress::new(settings, "restore", Some(interrupt));
    let options = RestoreOptions {
        overwrite: arguments.overwrite,
        delete: arguments.delete,
        ..RestoreOptions::default()
    };
    let (what, target) = (&arguments.what, &arguments.target);
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
    let report = restored.map_err(CommandError::from).map_err(|error| match error {
        CommandError::Failed(failure) if failure.exit == Exit::Interrupted => CommandError::with_exit(
            Exit::Interrupted,
            "stopped before the end, as asked; what is restored so far is whole",
        )
        .next("Go on with the same command and --overwrite."),
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
        print(&report, arguments, &source, settings)
    };
    if report.is_complete() {
        printed
    } else {
        Err(CommandError::Reported(Exit::Failed))
    }
}

fn print(report: &RestoreReport, arguments: &RestoreArguments, source: &Source, settings: &Settings) -> Result<()> {
    let output = settings.output;
    let sizes = |bytes: u64| size_exact(bytes, output.verbosity > 0);
    let path = match arguments.what.path_text() {
        path if path.is_empty() => String::new(),
        path => format!(":{path}"),
    };
    output.say(format!(
        "Snapshot {}{path} of {} restored into {} in {}.",
        report.snapshot_id,
        source.repository,
        arguments.target.display(),
        duration(report.total_ns)
    ))?;
    let mut parts = vec![counted(report.files, "file", "files")];
    for (count, one, many) in [
        (
            report.files_kept,
            "file that was there already",
            "files that were there already",
        ),
        (report.specials, "link or special file", "links and special files"),
        (report.hard_links, "hard link", "hard links"),
        (report.removed, "name removed", "names removed"),
    ] {
        if count > 0 {
            parts.push(counted(count, one, many));
        }
    }
    output.say(format!("  {}", listed(&parts)))?;
    output.say(format!("  written   {}", sizes(report.written_bytes)))?;
    output.say(format!("  received  {} on the wire", sizes(report.wire.received)))?;
    for missing in &report.not_restored {
        let count = missing.count;
        let what = match missing.kind {
            NotRestoredKind::Owner => counted(count, "owner", "owners"),
            NotRestoredKind::SetId => counted(count, "set-id bit", "set-id bits"),
            NotRestoredKind::Mode => format!("permissions of {}", counted(count, "file", "files")),
            NotRestoredKind::Xattr => counted(count, "extended attribute or ACL", "extended attributes and ACLs"),
            NotRestoredKind::Times => format!("times of {}", counted(count, "file", "files")),
            NotRestoredKind::Device => counted(count, "device", "devices"),
            NotRestoredKind::File => counted(count, "file", "files"),
        };
        output.say(format!(
            "  not restored: {what}, first {}: {}",
            missing.first_path, missing.first_reason
        ))?;
    }
    if report
        .not_restored
        .iter()
        .any(|missing| missing.kind != NotRestoredKind::File)
        && !rustix::process::geteuid().is_root()
    {
        output.say("  Contents and names are whole. To restore these, too, run it as root.")?;
    }
    Ok(())
}
