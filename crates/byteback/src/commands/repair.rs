//! `byteback repair`: files with bytes that no program wrote, and how the user settles them.
//!
//! The process that keeps the folder in sync does the work; this command makes requests and prints
//! the results.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use byteback_control::{
    DamagedFile, RepairReport, RepairRequest, RepairWish, Repaired, ServerVersion, TreeService, TreeStatus,
};
use byteback_model::ByteString;
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::error::{CommandError, Result};
use crate::operands::FilesArguments;
use crate::output::Output;
use crate::settings::Settings;
use crate::timestamp;
use crate::tracked_folder::{self, BoundFolder};
use crate::wording::{counted, listed};

/// Ranges shown per file without `-v`.
const RANGES_SHOWN: usize = 3;

/// Flags of `repair`.
#[derive(Args, Debug)]
#[command(
    after_help = "Where checksums are kept (the default of byteback sync), bytes that changed although no
program wrote them are noticed and never sent. The same holds for files that a crash of the
machine left in a state that they never had. Without --keep, such files are listed with both
versions.

  byteback repair --keep server a.txt   take the damaged blocks from the server; later changes here
                                        stay. If the checksums do not confirm the result, the file
                                        stays as it is
  byteback repair --keep mine a.txt     accept the content here as it is, and send it"
)]
pub(crate) struct RepairArguments {
    /// Version to keep of each damaged file, or of each FILE
    #[arg(long, value_name = "WHICH")]
    keep: Option<Keep>,
    #[command(flatten)]
    operands: FilesArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum Keep {
    /// The content here
    Mine,
    /// The server's content
    Server,
}

/// A version of a file.
#[derive(Serialize)]
struct VersionLine {
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<u64>,
    size: u64,
    mtime: String,
}

#[derive(Serialize)]
struct Line<'a> {
    path: Option<&'a ByteString>,
    after_crash: bool,
    found: String,
    ranges: &'a [(u64, u64)],
    here: Option<VersionLine>,
    server: Option<VersionLine>,
    /// Why the server's version is not known.
    problem: Option<String>,
    /// The version that was kept, if the user has decided.
    kept: Option<Keep>,
    /// Bytes that were restored, or accepted as they are.
    bytes: Option<u64>,
}

pub(crate) fn run(arguments: &RepairArguments, settings: &Settings) -> Result<()> {
    let (dir, files) = arguments.operands.split(settings)?;
    let BoundFolder { folder, .. } = tracked_folder::bound_folder(dir.as_deref(), settings)?;
    let directory = folder.directory();
    let daemon = tracked_folder::daemon(&folder)?.ok_or_else(|| {
        CommandError::new(format!("{} is not mounted", directory.display()))
            .next(format!("Start it with: byteback sync {}", directory.display()))
    })?;
    let status = daemon.status()?;
    let point = status.mounted_at.as_ref().map_or_else(|| directory.to_owned(), path_of);
    let chosen = chosen(&status.damaged, &point, files)?;
    let unasked = unasked(&status);
    if let (Some(Keep::Server), Some(why)) = (arguments.keep, unasked) {
        return Err(CommandError::new(format!("cannot ask the server: {why}")));
    }
    let output = settings.output;
    let mut failed = 0;
    for file in &chosen {
        let wish = match arguments.keep {
            None => RepairWish::Look,
            Some(Keep::Mine) => RepairWish::KeepMine,
            Some(Keep::Server) => RepairWish::KeepServer,
        };
        let here = here(file, &point);
        let node = file.node;
        let asked = match (wish, unasked) {
            (RepairWish::Look, Some(why)) => Err(why.to_owned()),
            _ => daemon
                .repair(&RepairRequest { node, wish })
                .map_err(|error| error.message),
        };
        if let (Some(_), Err(why)) = (arguments.keep, &asked) {
            failed += 1;
            output.warn(&format!("{} stays as it is: {why}", name_of(file)));
            continue;
        }
        match output.json {
            true => output.object("damaged", &line(file, here, asked, arguments.keep))?,
            false => print(file, here, asked, output)?,
        }
    }
    if failed > 0 {
        let count = counted(failed, "file was", "files were");
        return Err(CommandError::new(format!("{count} not repaired, and left unchanged")));
    }
    if output.json {
        return Ok(());
    }
    let count = counted(
        u64::try_from(chosen.len()).unwrap_or(u64::MAX),
        "damaged file",
        "damaged files",
    );
    match (arguments.keep, chosen.is_empty()) {
        (_, true) => output.say("No damaged files are known."),
        (None, false) => output.say(format!(
            "{count}. Decide with: byteback repair --keep server|mine [FILE...]"
        )),
        (Some(_), false) => Ok(()),
    }
}

fn path_of(name: &ByteString) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(name.as_bytes()))
}

fn name_of(file: &DamagedFile) -> String {
    let path = file.path.as_ref();
    path.map_or_else(|| "a file without a name".to_owned(), ToString::to_string)
}

/// Why the server cannot be asked now; `None` if it can.
fn unasked(status: &TreeStatus) -> Option<&'static str> {
    match &status.sync {
        None => Some("sync is not running; start it with: byteback sync"),
        Some(sync) if sync.paused_since_ns.is_some() => Some("sync is paused; resume it with: byteback resume"),
        Some(sync) if sync.bytes_per_second_max == Some(0) => Some("the limits pause sync at this time of day"),
        Some(_) => None,
    }
}

fn chosen<'a>(damaged: &'a [DamagedFile], point: &Path, files: &[PathBuf]) -> Result<Vec<&'a DamagedFile>> {
    if files.is_empty() {
        return Ok(damaged.iter().collect());
    }
    let mut chosen: Vec<&DamagedFile> = Vec::new();
    for file in files {
        let absolute = tracked_folder::resolved(file)?;
        let is_meant = |name: &ByteString| point.join(path_of(name)) == absolute || path_of(name) == *file;
        let found = damaged
            .iter()
            .find(|damaged| damaged.path.as_ref().is_some_and(is_meant));
        let Some(found) = found else {
            return Err(
                CommandError::new(format!("{} is not known to be damaged", file.display()))
                    .next("'byteback repair' lists the damaged files."),
            );
        };
        if !chosen.iter().any(|chosen| chosen.node == found.node) {
            chosen.push(found);
        }
    }
    Ok(chosen)
}

/// The version of the file in the folder.
fn here(file: &DamagedFile, point: &Path) -> Option<VersionLine> {
    let found = fs::symlink_metadata(point.join(path_of(file.path.as_ref()?))).ok()?;
    let mtime_ns = i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec());
    Some(VersionLine {
        seq: None,
        size: found.size(),
        mtime: timestamp::rfc3339(mtime_ns),
    })
}

fn version(there: &ServerVersion) -> VersionLine {
    VersionLine {
        seq: Some(there.seq),
        size: there.len_bytes,
        mtime: timestamp::rfc3339(there.mtime_ns),
    }
}

fn line<'a>(
    file: &'a DamagedFile,
    here: Option<VersionLine>,
    asked: std::result::Result<RepairReport, String>,
    kept: Option<Keep>,
) -> Line<'a> {
    let (report, problem) = match asked {
        Ok(report) => (Some(report), None),
        Err(why) => (None, Some(why)),
    };
    let server = report.as_ref().and_then(|report| report.server.as_ref()).map(version);
    let bytes = match report.map(|report| report.repaired) {
        Some(Repaired::Accepted(bytes) | Repaired::Healed(bytes)) => Some(bytes),
        Some(Repaired::Looked | Repaired::WasSound) | None => None,
    };
    Line {
        path: file.path.as_ref(),
        after_crash: file.after_crash,
        found: timestamp::rfc3339(file.found_at_ns),
        ranges: &file.ranges,
        here,
        server,
        problem,
        kept,
        bytes,
    }
}

fn print(
    file: &DamagedFile,
    here: Option<VersionLine>,
    asked: std::result::Result<RepairReport, String>,
    output: Output,
) -> Result<()> {
    let path = name_of(file);
    let report = match asked {
        Ok(report) => report,
        Err(why) => return print_versions(file, here, &format!("not known: {why}"), output),
    };
    match report.repaired {
        Repaired::Looked => {
            let there = report
                .server
                .as_ref()
                .map_or_else(|| "no version of this file".to_owned(), |there| said(&version(there)));
            print_versions(file, here, &there, output)
        }
        Repaired::WasSound => output.line(format!("{path}: no longer damaged")),
        Repaired::Accepted(bytes) => output.line(format!(
            "{path}: {} accepted as they are, and sent",
            counted(bytes, "byte", "bytes")
        )),
        Repaired::Healed(bytes) => output.line(format!("{path}: {} repaired", counted(bytes, "byte", "bytes"))),
    }
}

fn said(version: &VersionLine) -> String {
    format!("{}, modified {}", counted(version.size, "byte", "bytes"), version.mtime)
}

fn print_versions(file: &DamagedFile, here: Option<VersionLine>, there: &str, output: Output) -> Result<()> {
    output.line(name_of(file))?;
    let shown = if output.verbosity > 0 { usize::MAX } else { RANGES_SHOWN };
    let ranges = file.ranges.iter().take(shown);
    let mut ranges: Vec<String> = ranges
        .map(|(offset, len)| format!("{offset} to {}", offset.saturating_add(*len)))
        .collect();
    if file.ranges.len() > ranges.len() {
        ranges.push(format!("{} more (-v shows all)", file.ranges.len() - ranges.len()));
    }
    let what = match file.after_crash {
        true => "are not what was written before the crash; the file is not sent",
        false => "changed although no program wrote them; they are not sent",
    };
    let found = timestamp::local(file.found_at_ns);
    output.line(format!("  bytes {} {what} (found {found})", listed(&ranges)))?;
    if let Some(here) = here {
        output.line(format!("  here:   {}", said(&here)))?;
    }
    output.line(format!("  server: {there}"))
}
