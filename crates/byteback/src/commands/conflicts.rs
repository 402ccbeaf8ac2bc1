//! `byteback conflicts`: files that another machine changed before a change made here was sent, and
//! how the user settles them.
//!
//! Both versions are ordinary files of the folder. A decision is carried out as any program would
//! do it, through the mount, and thus reaches the other machines like every change.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use byteback_control::{SyncConflict, TreeService};
use byteback_model::ByteString;
use clap::{Args, ValueEnum};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::Serialize;

use crate::error::{CommandError, Result};
use crate::operands::FilesArguments;
use crate::settings::Settings;
use crate::timestamp;
use crate::tracked_folder::{self, BoundFolder};
use crate::wording::counted;

/// Names tried for a version that is kept beside the other.
const NAMES_TRIED_MAX: u32 = 10_000;

/// Flags of `conflicts`.
#[derive(Args, Debug)]
#[command(
    after_help = "If two machines change a file at the same time, the version that came first keeps the name, and the \
other one is kept beside it as 'NAME (conflict from MACHINE, DATE)'. Without --keep, the conflicts that this machine \
found are listed.

  byteback conflicts --keep theirs          the first version stays, all copies are removed
  byteback conflicts --keep mine a.txt      the copy takes the name of a.txt
  byteback conflicts --keep both            both stay; the copies get plain names, such as 'a (2).txt'

Files that a program here changed in one operation, such as a database and its log, are in conflict together, \
including those that no other machine changed. They are listed as belonging together and should be decided alike:

  byteback conflicts --keep mine --together a.db"
)]
pub(crate) struct ConflictsArguments {
    /// Keep this version for every conflict, or for those of FILE
    #[arg(long, value_name = "WHICH")]
    keep: Option<Keep>,
    /// Also decide the conflicts that belong together with FILE
    #[arg(long, requires = "operands")]
    together: bool,
    #[command(flatten)]
    operands: FilesArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum Keep {
    /// The version of this machine, which takes the name
    Mine,
    /// The version of the other machine, which has the name
    Theirs,
    /// Both versions; the copy gets a plain name
    Both,
}

#[derive(Serialize)]
struct Line<'a> {
    path: &'a ByteString,
    copy: &'a ByteString,
    at: String,
    /// Conflicts with the same number belong together.
    set: Option<u64>,
    /// The version that was kept, if the conflict is settled.
    kept: Option<Keep>,
}

pub(crate) fn run(arguments: &ConflictsArguments, settings: &Settings) -> Result<()> {
    let (dir, files) = arguments.operands.split(settings)?;
    let BoundFolder { folder, .. } = tracked_folder::bound_folder(dir.as_deref(), settings)?;
    let directory = folder.directory();
    let not_synced = || {
        CommandError::new(format!("{} is not being synced", directory.display()))
            .next(format!("Start it with: byteback sync {}", directory.display()))
    };
    let daemon = tracked_folder::daemon(&folder)?.ok_or_else(not_synced)?;
    let status = daemon.status()?;
    let conflicts = status.sync.ok_or_else(not_synced)?.conflicts;
    // `mount --at` shows the folder elsewhere.
    let point = status
        .mounted_at
        .map_or_else(|| directory.to_owned(), |point| path_of(&point));
    let mut chosen = chosen(&conflicts, &point, files)?;
    let left = belonging(&conflicts, &chosen);
    let left = match arguments.together {
        true => {
            chosen.extend(left);
            Vec::new()
        }
        false => left,
    };
    let output = settings.output;
    for conflict in &chosen {
        if let Some(keep) = arguments.keep {
            decide(conflict, &point, keep)?;
        }
        let (path, copy) = (&conflict.path, &conflict.copy);
        let line = Line {
            path,
            copy,
            at: timestamp::rfc3339(conflict.at_ns),
            set: conflict.set,
            kept: arguments.keep,
        };
        if output.json {
            output.object("conflict", &line)?;
            continue;
        }
        match arguments.keep {
            None => {
                output.line(path)?;
                output.line(format!("  yours: {copy}"))?;
                for other in belonging(&conflicts, &[*conflict]) {
                    output.line(format!("  belongs together with: {}", other.path))?;
                }
            }
            Some(Keep::Mine) => output.line(format!("{path}: yours was kept"))?,
            Some(Keep::Theirs) => output.line(format!("{path}: theirs was kept"))?,
            Some(Keep::Both) => output.line(format!("{path}: both were kept"))?,
        }
    }
    if output.json {
        return Ok(());
    }
    let count = counted(u64::try_from(chosen.len()).unwrap_or(u64::MAX), "conflict", "conflicts");
    match (arguments.keep, chosen.is_empty()) {
        (_, true) => output.say("This machine has found no conflicts."),
        (None, false) => output.say(format!(
            "{count}. Decide with: byteback conflicts --keep mine|theirs|both [FILE...]"
        )),
        (Some(_), false) if left.is_empty() => output.say(format!("{count} decided.")),
        (Some(_), false) => {
            output.say(format!(
                "{count} decided. These were changed together with them and should be decided alike:"
            ))?;
            for conflict in left {
                output.say(format!("  {}", conflict.path))?;
            }
            output.say("Add --together to decide them as well.")
        }
    }
}

/// Conflicts that belong together with one of `chosen` but are not among them.
fn belonging<'a>(conflicts: &'a [SyncConflict], chosen: &[&'a SyncConflict]) -> Vec<&'a SyncConflict> {
    let is_chosen = |conflict: &SyncConflict| chosen.iter().any(|chosen| chosen.copy == conflict.copy);
    let belongs = |conflict: &SyncConflict| {
        let mut chosen = chosen.iter();
        conflict.set.is_some() && chosen.any(|chosen| chosen.set == conflict.set)
    };
    let others = conflicts.iter().filter(|conflict| !is_chosen(conflict));
    others.filter(|conflict| belongs(conflict)).collect()
}

fn path_of(name: &ByteString) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(name.as_bytes()))
}

fn chosen<'a>(conflicts: &'a [SyncConflict], point: &Path, files: &[PathBuf]) -> Result<Vec<&'a SyncConflict>> {
    if files.is_empty() {
        return Ok(conflicts.iter().collect());
    }
    let mut chosen: Vec<&SyncConflict> = Vec::new();
    for file in files {
        let absolute = tracked_folder::resolved(file)?;
        let is_meant = |name: &ByteString| point.join(path_of(name)) == absolute || path_of(name) == *file;
        let before = chosen.len();
        for conflict in conflicts {
            let is_new = !chosen.iter().any(|chosen| chosen.copy == conflict.copy);
            if is_new && (is_meant(&conflict.path) || is_meant(&conflict.copy)) {
                chosen.push(conflict);
            }
        }
        if chosen.len() == before {
            return Err(CommandError::new(format!("{} is not in conflict", file.display()))
                .next("'byteback conflicts' lists all conflicts."));
        }
    }
    Ok(chosen)
}

fn decide(conflict: &SyncConflict, point: &Path, keep: Keep) -> Result<()> {
    let (path, copy) = (point.join(path_of(&conflict.path)), point.join(path_of(&conflict.copy)));
    let done = match keep {
        // If the other version has been removed or renamed meanwhile, its name is free.
        Keep::Mine => fs::rename(&copy, &path),
        Keep::Theirs if copy.symlink_metadata().is_ok_and(|found| found.is_dir()) => fs::remove_dir_all(&copy),
        Keep::Theirs => fs::remove_file(&copy),
        Keep::Both => keep_both(&path, &copy),
    };
    done.map_err(|error| {
        let what = match keep {
            Keep::Mine => "give the name of the other version to",
            Keep::Theirs => "remove",
            Keep::Both => "rename",
        };
        CommandError::file(what, &copy, &error).next("The conflict is still open, and nothing was overwritten.")
    })
}

/// Gives the copy the first free name of `a (2).txt`, `a (3).txt`...
fn keep_both(path: &Path, copy: &Path) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().as_bytes();
    let (stem, extension) = match name.iter().rposition(|byte| *byte == b'.') {
        Some(dot) if dot > 0 => name.split_at(dot),
        _ => (name, &[][..]),
    };
    for number in 2..NAMES_TRIED_MAX {
        let free = [stem, format!(" ({number})").as_bytes(), extension].concat();
        let free = path.with_file_name(OsStr::from_bytes(&free));
        match renameat_with(CWD, copy, CWD, &free, RenameFlags::NOREPLACE) {
            Err(rustix::io::Errno::EXIST) => {}
            moved => return moved.map_err(io::Error::from),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
