//! `byteback restore --at` from the server: a file or a directory as it was at a moment, without
//! any snapshot of it.
//!
//! The server keeps every state that it ever had, so it can restore what continuous sync replaced
//! or removed. The mount's own old bytes (`past`) come first: they are nearer and cover more
//! moments. The result is written in its place through the mount, if there is one, so that sync
//! treats it as any other change.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use byteback_backup::{RestoreOptions, RestoreReport, SnapshotSpec, restore};
use byteback_client::{ServerClient, ServerErrorKind, TreePlace};
use byteback_control::TreeService;
use byteback_model::{ByteString, NodeKind, Seq};
use jiff::tz::TimeZone;
use serde::Serialize;

use super::{RestoreArguments, not_restored, past};
use crate::binding::Binding;
use crate::error::{CommandError, Result};
use crate::exit_code::Exit;
use crate::progress::Progress;
use crate::settings::Settings;
use crate::signals::Interrupt;
use crate::timestamp;
use crate::tracked_folder::{self, KnownFolder};
use crate::when;
use crate::wording::{counted, size_exact};

#[derive(Serialize)]
struct Summary<'a> {
    file: String,
    target: String,
    repository: String,
    #[serde(flatten)]
    report: &'a RestoreReport,
}

pub(super) fn run(arguments: &RestoreArguments, at: &str, settings: &Settings) -> Result<()> {
    let file = Path::new(&arguments.what);
    let (known, path) = tracked_folder::place_in_folder(file, settings)?;
    let is_near = !at.starts_with('@') && arguments.target.is_none();
    let mut refused = None;
    if is_near && is_kept_here(&known, &path)? {
        refused = past::run(arguments, at, settings)?;
        if refused.is_none() {
            return Ok(());
        }
    }
    match (&known.binding, refused) {
        (Some(binding), _) => from_server(arguments, (&known, binding, &path), at, settings),
        (None, Some(refused)) => Err(refused),
        // This call reports why nothing is kept.
        (None, None) if is_near => past::run(arguments, at, settings)?.map_or(Ok(()), Err),
        (None, None) => {
            let directory = known.folder.directory().display();
            Err(CommandError::with_exit(
                Exit::NoRepository,
                format!("{directory} is not bound to a server, so its earlier content is not known"),
            ))
        }
    }
}

/// Whether a mount keeps old bytes of a file.
fn is_kept_here(known: &KnownFolder, path: &ByteString) -> Result<bool> {
    let Some(daemon) = tracked_folder::daemon(&known.folder)? else {
        return Ok(false);
    };
    Ok(!path.as_bytes().is_empty() && daemon.history(path).is_ok())
}

fn from_server(
    arguments: &RestoreArguments,
    (known, binding, path): (&KnownFolder, &Binding, &ByteString),
    at: &str,
    settings: &Settings,
) -> Result<()> {
    let file = Path::new(&arguments.what);
    let repository = &binding.repository;
    let (server, _) = settings.connect(&repository.server, Some(binding))?;
    let seq = moment(&server, binding, at)?;
    let place = TreePlace::Path(path.as_bytes());
    let node = match server.tree_page(&repository.folder, seq, place, None) {
        Ok(page) => page.node,
        Err(error) if error.kind == ServerErrorKind::NotFound => {
            let what = file.display();
            return Err(
                CommandError::new(format!("{what} did not exist at that moment (@{seq})"))
                    .next(format!("To list its versions: byteback versions {what}")),
            );
        }
        Err(error) => return Err(error.into()),
    };
    let is_directory = node.attributes.kind == NodeKind::Directory;
    let place = known.folder.directory().join(OsStr::from_bytes(path.as_bytes()));
    let place = match tracked_folder::daemon(&known.folder)? {
        Some(daemon) if !path.as_bytes().is_empty() => seen(&place, &daemon)?,
        _ => place,
    };
    let (target, final_name) = match (&arguments.target, &arguments.to) {
        (Some(target), _) => (target.clone(), None),
        (None, Some(_)) if is_directory => {
            return Err(
                CommandError::new(format!("{} was a directory at that time", file.display()))
                    .next("Name a directory to restore it into: --target DIR"),
            );
        }
        (None, Some(to)) => (beside(to, arguments.overwrite)?, Some(to.clone())),
        (None, None) if is_directory => (place, None),
        (None, None) => (place.parent().map_or_else(PathBuf::new, Path::to_owned), None),
    };
    let options = RestoreOptions {
        overwrite: arguments.overwrite || arguments.target.is_none(),
        // Two versions may have the same length and time.
        verify: arguments.target.is_none(),
        flags: arguments.flags,
        ..RestoreOptions::default()
    };
    let progress = Progress::new(settings, "restore", Some(Interrupt::watch()?));
    let spec = SnapshotSpec::Moment(seq);
    let restored = restore(
        &server,
        &repository.folder,
        spec,
        path.as_bytes(),
        &target,
        &options,
        &progress,
    );
    progress.finish();
    let report = match (restored, &final_name) {
        (Ok(report), Some(to)) => settle(&target, path, to, report)?,
        (restored, Some(_)) => {
            let _ = fs::remove_dir_all(&target);
            restored?
        }
        (restored, None) => restored?,
    };
    let target = final_name.unwrap_or(target);
    let printed = print(arguments, (&target, repository.to_string(), seq), &report, settings);
    match report.is_complete() {
        true => printed,
        false => Err(CommandError::Reported(Exit::Failed)),
    }
}

/// The sequence number for a time, or the number that was given.
fn moment(server: &ServerClient, binding: &Binding, at: &str) -> Result<Seq> {
    if let Some(seq) = at.strip_prefix('@') {
        return seq.parse().map_err(|_| {
            CommandError::new(format!("'{at}' is not a version"))
                .next("Give @NUMBER as listed by 'byteback versions FILE', or a time.")
        });
    }
    let at_ns = when::past(at, timestamp::now_ns(), &TimeZone::system()).map_err(CommandError::new)?;
    let batch = server.moment(&binding.repository.folder, at_ns)?;
    batch.map(|batch| batch.seq).ok_or_else(|| {
        CommandError::new(format!(
            "{} has nothing from {} or earlier",
            binding.repository,
            timestamp::local(at_ns)
        ))
    })
}

fn seen(place: &Path, daemon: &dyn TreeService) -> Result<PathBuf> {
    let status = daemon.status()?;
    match past::through_the_mount(place, &status) {
        // Its directory is gone as well, and is restored with it.
        Err(_) if !place.parent().is_some_and(Path::exists) => Ok(place.to_owned()),
        found => found,
    }
}

/// A directory beside `to`, in which the file is restored before it gets its name.
fn beside(to: &Path, overwrite: bool) -> Result<PathBuf> {
    if to.exists() && !overwrite {
        return Err(CommandError::new(format!("{} already exists", to.display()))
            .next("Choose another name, or replace it with --overwrite."));
    }
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    let name: String = name.chars().take(50).collect();
    Ok(to.with_file_name(format!(".{name}.{}.byteback", std::process::id())))
}

fn settle(spool: &Path, path: &ByteString, to: &Path, report: RestoreReport) -> Result<RestoreReport> {
    let name = path.as_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let renamed = fs::rename(spool.join(OsStr::from_bytes(name)), to);
    let _ = fs::remove_dir_all(spool);
    match renamed {
        Ok(()) => Ok(report),
        // The report already tells what was not restored.
        Err(_) if !report.is_complete() => Ok(report),
        Err(error) => Err(CommandError::file("write", to, &error)),
    }
}

fn print(
    arguments: &RestoreArguments,
    (target, repository, seq): (&Path, String, Seq),
    report: &RestoreReport,
    settings: &Settings,
) -> Result<()> {
    let output = settings.output;
    let file = arguments.what.to_string_lossy().into_owned();
    if output.json {
        let summary = Summary {
            file,
            target: target.display().to_string(),
            repository,
            report,
        };
        return output.object("summary", &summary);
    }
    output.say(format!(
        "{file} as it was at @{seq} of {repository} restored into {} ({}, {}).",
        target.display(),
        counted(report.files, "file", "files"),
        size_exact(report.written_bytes, output.verbosity > 0)
    ))?;
    for missing in &report.not_restored {
        output.say(format!("  not restored: {}", not_restored(missing)))?;
    }
    if arguments.target.is_none() && arguments.to.is_none() {
        output.say("  The server keeps what this replaced: 'byteback versions FILE' lists it.")?;
    }
    Ok(())
}
