//! `byteback verify`: the server re-reads all data that a snapshot needs; with `--deep` each file
//! is compared with the folder.

use std::ffi::OsString;
use std::path::Path;

use byteback_api::messages::DamagedRange;
use byteback_backup::{Difference, DifferenceKind, VerifyOptions, VerifyReport, verify};
use clap::Args;
use serde::Serialize;

use super::source::Source;
use crate::error::{CommandError, Result};
use crate::exit_code::Exit;
use crate::operands::SourceArguments;
use crate::progress::Progress;
use crate::settings::Settings;
use crate::signals::Interrupt;
use crate::tracked_folder;
use crate::wording::{counted, duration, size_exact};

/// Flags of `verify`.
#[derive(Args, Debug)]
#[command(
    after_help = "Exit code 1 if anything is damaged or differs. A folder that was changed after the snapshot
differs as well, so --deep proves most right after a backup."
)]
pub(crate) struct VerifyArguments {
    /// latest (the default), latest~N or a number
    #[arg(value_name = "SNAPSHOT")]
    snapshot: Option<OsString>,
    /// Also compare every file with the bound folder (DIR, or the one you are in)
    #[arg(long)]
    deep: bool,
    #[command(flatten)]
    source: SourceArguments,
}

#[derive(Serialize)]
struct Summary<'a> {
    repository: String,
    clean: bool,
    #[serde(flatten)]
    report: &'a VerifyReport,
}

pub(crate) fn run(arguments: &VerifyArguments, settings: &Settings) -> Result<()> {
    let chosen = arguments.source.choose(&arguments.snapshot, 1);
    let source = Source::open(chosen.dir.as_deref(), settings)?;
    let bound = tracked_folder::bound_folder(chosen.dir.as_deref(), settings);
    let here = match (arguments.deep, bound) {
        (_, Ok(bound)) => Some(bound.folder.directory().to_owned()),
        (false, Err(_)) => None,
        (true, Err(error)) => return Err(error),
    };
    let directory = here.clone().filter(|_| arguments.deep);
    let interrupt = Interrupt::watch()?;
    let progress = Progress::new(settings, "verify", Some(interrupt));
    let options = VerifyOptions {
        here: here.as_deref(),
        deep: directory.as_deref(),
    };
    let snapshot = chosen.snapshot(0).snapshot;
    let report = verify(&source.server, source.folder(), snapshot, &options, &progress);
    progress.finish();
    let report = report?;
    let output = settings.output;
    let printed = if output.json {
        for difference in &report.differences {
            output.object("difference", difference)?;
        }
        let (clean, repository) = (report.is_clean(), source.repository.to_string());
        output.object(
            "summary",
            &Summary {
                repository,
                clean,
                report: &report,
            },
        )
    } else {
        print(&report, &source, (here.as_deref(), directory.as_deref()), settings)
    };
    if report.is_clean() {
        printed
    } else {
        Err(CommandError::Reported(Exit::Failed))
    }
}

fn print(
    report: &VerifyReport,
    source: &Source,
    (here, directory): (Option<&Path>, Option<&Path>),
    settings: &Settings,
) -> Result<()> {
    let output = settings.output;
    let sizes = |bytes: u64| size_exact(bytes, output.verbosity > 0);
    for difference in &report.differences {
        let path = match difference.path.as_bytes() {
            b"" => ".".to_owned(),
            _ => difference.path.to_string(),
        };
        output.line(format!("{path}: {}", said(difference)))?;
    }
    let took = duration(report.total_ns);
    let files = counted(report.files, "file", "files");
    output.say(format!(
        "Snapshot {} of {} checked in {took}.",
        report.snapshot_id, source.repository
    ))?;
    match report.damaged_files {
        0 => output.say(format!(
            "  stored    {files}, {} re-read, all checksums correct",
            sizes(report.bytes)
        ))?,
        damaged => {
            output.say(format!(
                "  stored    {} of {files} cannot be read in full:",
                counted(damaged, "file", "files")
            ))?;
            for damage in &report.damaged {
                let path = damage
                    .path
                    .as_ref()
                    .map_or_else(|| damage.id.to_string(), ToString::to_string);
                let healable = match damage.healable {
                    Some(true) => "; can be healed",
                    _ => "",
                };
                match damage.lost_bytes {
                    0 => output.say(format!("    {path}: {}{healable}", damage.detail))?,
                    lost => output.say(format!(
                        "    {path}: {} lost ({}): {}{healable}",
                        sizes(lost),
                        named(&damage.ranges),
                        damage.detail
                    ))?,
                }
            }
            let more = damaged.saturating_sub(report.damaged.len() as u64);
            if more > 0 {
                output.say(format!("    and {}", counted(more, "more file", "more files")))?;
            }
            let healable = report.damaged.iter().filter(|damage| damage.healable == Some(true));
            match (healable.count(), here) {
                (1.., Some(here)) => output.say(format!(
                    "    The folder still has what can be healed; heal it with: byteback backup {}",
                    here.display()
                ))?,
                (_, Some(here)) => output.say(format!(
                    "    The folder has none of them as they were saved. To save its present content: \
                     byteback backup --full {}",
                    here.display()
                ))?,
                (_, None) => output.say("    A backup on a machine that still has them heals them.")?,
            }
            output.say(
                "    All other files can be restored, and these as far as they can be read: byteback restore --salvage",
            )?;
        }
    }
    if report.wrong_sums > 0 {
        output.say(format!(
            "  the checksums that the server kept of {} did not match their bytes, which are intact. They were \
             discarded and will be computed again; the server's memory or disk may be failing",
            counted(report.wrong_sums, "file", "files")
        ))?;
    }
    let Some(directory) = directory else { return Ok(()) };
    let compared = format!(
        "{} with {} of content",
        counted(report.compared, "name", "names"),
        sizes(report.compared_bytes)
    );
    match report.differences.len() as u64 {
        0 => output.say(format!(
            "  compared  {compared} with {}: all equal",
            directory.display()
        )),
        differences => {
            let differences = counted(differences, "difference", "differences");
            output.say(format!(
                "  compared  {compared} with {}: {differences}",
                directory.display()
            ))
        }
    }
}

/// The first ranges, as byte offsets from and to.
fn named(ranges: &[DamagedRange]) -> String {
    let named = ranges.iter().take(3).map(|range| {
        let end = range.offset.saturating_add(range.len);
        format!("bytes {} to {end}", range.offset)
    });
    let mut named: Vec<String> = named.collect();
    if ranges.len() > named.len() {
        named.push("...".to_owned());
    }
    named.join(", ")
}

fn said(difference: &Difference) -> String {
    match &difference.kind {
        DifferenceKind::Missing => "only in the snapshot".to_owned(),
        DifferenceKind::Extra => "only in the folder".to_owned(),
        DifferenceKind::Kind => "has a different type".to_owned(),
        DifferenceKind::Size { snapshot, folder } => {
            format!("has {snapshot} bytes in the snapshot and {folder} in the folder")
        }
        DifferenceKind::Content { first_offset } => format!("has different content, first at offset {first_offset}"),
        DifferenceKind::Attribute { which } => format!("differs in: {which}"),
        DifferenceKind::NotLinked => "is a hard link in the snapshot and a separate file in the folder".to_owned(),
        DifferenceKind::Unreadable { reason } => format!("cannot be read in the folder: {reason}"),
    }
}
