//! `byteback versions`: the versions of a path at the server, and until when each was there. No
//! backup is needed for that: the server keeps what sync sent.

use std::path::PathBuf;

use byteback_api::messages::{BatchEvent, PathVersion};
use byteback_model::NodeKind;
use clap::Args;
use serde::Serialize;

use crate::error::{CommandError, Result};
use crate::exit_code::Exit;
use crate::output::table;
use crate::settings::Settings;
use crate::timestamp;
use crate::tracked_folder;
use crate::wording::size_exact;

/// Versions shown unless all are requested.
const SHOWN_MAX: usize = 20;

/// Flags of `versions`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  byteback versions report.txt
  byteback restore --at @44 report.txt                restores that version in its place
  byteback restore --at @44 report.txt -o OLD.txt     beside it
  byteback restore --at '2 hours ago' photos          everything in a directory at that time

Times are those of the machine that made a change. A file that was moved here has its earlier
history under its earlier name.")]
pub(crate) struct VersionsArguments {
    /// The file, which may have been removed
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// List all versions, not only the newest 20
    #[arg(long)]
    all: bool,
}

#[derive(Serialize)]
struct Line {
    version: u64,
    time: String,
    host: String,
    device: u64,
    kind: NodeKind,
    size: u64,
    mtime: String,
    /// When the version was removed or replaced.
    until: Option<String>,
    until_host: Option<String>,
    /// Whether it was removed, not replaced.
    removed: bool,
}

fn time(batch: &BatchEvent) -> String {
    timestamp::local(batch.created_ns)
}

pub(crate) fn run(arguments: &VersionsArguments, settings: &Settings) -> Result<()> {
    let (known, path) = tracked_folder::place_in_folder(&arguments.file, settings)?;
    let Some(binding) = &known.binding else {
        let directory = known.folder.directory().display();
        return Err(CommandError::with_exit(
            Exit::NoRepository,
            format!("{directory} is not bound to a server, so no older versions are known"),
        )
        .next("To list what a mount with --undo-window kept: byteback history FILE"));
    };
    let repository = &binding.repository;
    let (server, _) = settings.connect(&repository.server, Some(binding))?;
    let mut found: Vec<PathVersion> = Vec::new();
    let mut cursor: Option<String> = None;
    let wanted = if arguments.all || settings.output.json {
        usize::MAX
    } else {
        SHOWN_MAX
    };
    let is_all = loop {
        let page = server.versions_page(&repository.folder, path.as_bytes(), cursor.as_deref())?;
        if page.next_cursor.is_some() && page.next_cursor == cursor {
            return Err(CommandError::new("the server sent the same page of versions twice"));
        }
        found.extend(page.versions);
        cursor = page.next_cursor;
        if found.len() > wanted || cursor.is_none() {
            break found.len() <= wanted && cursor.is_none();
        }
    };
    found.truncate(wanted);
    print(arguments, (&found, is_all), &repository.to_string(), settings)
}

fn print(
    arguments: &VersionsArguments,
    (found, is_all): (&[PathVersion], bool),
    repository: &str,
    settings: &Settings,
) -> Result<()> {
    let output = settings.output;
    // The preceding, newer version in the list replaced it, unless there was a gap in between.
    let newer = |at: usize| at.checked_sub(1).and_then(|at| found.get(at));
    let is_removed = |at: usize, version: &PathVersion| match (&version.until, newer(at)) {
        (None, _) => false,
        (Some(until), Some(newer)) => newer.since.seq != until.seq,
        (Some(_), None) => true,
    };
    let rows = found.iter().enumerate();
    if output.json {
        for (at, version) in rows {
            let attributes = &version.node.attributes;
            let line = Line {
                version: version.since.seq,
                time: timestamp::rfc3339(version.since.created_ns),
                host: version.since.host.to_string(),
                device: version.since.device,
                kind: attributes.kind,
                size: attributes.size,
                mtime: timestamp::rfc3339(attributes.mtime_ns),
                until: version.until.as_ref().map(|until| timestamp::rfc3339(until.created_ns)),
                until_host: version.until.as_ref().map(|until| until.host.to_string()),
                removed: is_removed(at, version),
            };
            output.object("version", &line)?;
        }
        return Ok(());
    }
    let file = arguments.file.display();
    if found.is_empty() {
        return output.line(format!("{repository} never had {file}."));
    }
    let rows = rows.map(|(at, version)| {
        let attributes = &version.node.attributes;
        let what = match attributes.kind {
            NodeKind::File => size_exact(attributes.size, output.verbosity > 0),
            NodeKind::Directory => "directory".to_owned(),
            NodeKind::Symlink => "link".to_owned(),
            _ => "special file".to_owned(),
        };
        let until = match &version.until {
            None => "current".to_owned(),
            Some(until) => {
                let how = if is_removed(at, version) { "removed" } else { "replaced" };
                format!("{how} {} by {}", time(until), until.host)
            }
        };
        let since = &version.since;
        [
            format!("@{}", since.seq),
            time(since),
            since.host.to_string(),
            what,
            until,
        ]
    });
    let rows: Vec<_> = rows.collect();
    table(output, ["Version", "Time", "Host", "Size", "Until"], &rows)?;
    if !is_all {
        output.say("To list older versions as well: --all")?;
    }
    // Programs that write a file in place empty it first: the empty version is hardly the one that
    // the user misses.
    let is_empty_file = |version: &PathVersion| {
        let attributes = &version.node.attributes;
        attributes.kind == NodeKind::File && attributes.size == 0
    };
    let missed = |version: &&PathVersion| version.until.is_some() && !is_empty_file(version);
    let example = found.iter().find(missed).or(found.last());
    output.say(format!(
        "To restore one: byteback restore --at @{} {file}",
        example.map_or(0, |version| version.since.seq)
    ))
}
