//! The changed ranges of each file, as sentences or JSON lines.

use byteback_backup::{BackupError, ChangedName, ChangedNode, ChangesHeader, TreeChange, changes};
use byteback_control::ContentChange;
use byteback_model::NodeKind;
use byteback_oplog::WholeReason;
use serde::Serialize;

use super::Asked;
use crate::error::Result;
use crate::settings::Settings;
use crate::wording::{counted, grouped, nodes, size_exact};

/// Ranges shown per file without `-v`.
const RANGES_SHOWN: usize = 8;

#[derive(Default, Serialize)]
struct Summary {
    nodes: u64,
    names: u64,
    /// Bytes changed in files whose changed ranges are known.
    changed_bytes: u64,
    /// Files whose changed ranges are unknown: they are read whole.
    whole_files: u64,
}

pub(super) fn print(asked: &Asked<'_>, settings: &Settings) -> Result<()> {
    let mut summary = Summary::default();
    let mut is_all_compared = true;
    asked.look(settings, |info| {
        is_all_compared = info.unreadable.is_empty();
        let mut stopped = None;
        let listed = changes(asked.tree, info, &byteback_backup::Silent, |change| {
            print_change(&change, &mut summary, asked, settings).map_err(|error| {
                stopped = Some(error);
                BackupError::Cancelled
            })
        });
        stopped.map_or(Ok(()), Err).and(listed.map_err(Into::into))
    })?;
    let output = settings.output;
    if output.json {
        return output.object("summary", &summary);
    }
    if summary.nodes == 0 && summary.names == 0 {
        let nothing = if is_all_compared { "Nothing" } else { "Nothing else" };
        return output.say(match (asked.is_own, asked.request.since) {
            (true, None) => format!("{nothing} has changed since the last backup."),
            (_, Some(epoch)) => format!("{nothing} has changed since @{epoch}."),
            (false, None) => format!("{nothing} has changed since the mark of {}.", asked.request.consumer),
        });
    }
    let mut to_read = size_exact(summary.changed_bytes, output.verbosity > 0);
    if summary.whole_files > 0 {
        let files = counted(summary.whole_files, "whole file", "whole files");
        to_read = match summary.changed_bytes {
            0 => files,
            _ => format!("{to_read} and {files}"),
        };
    }
    output.say(format!(
        "{} and {} changed; to read: {to_read}.",
        nodes(summary.nodes),
        counted(summary.names, "name", "names")
    ))
}

fn print_change(change: &TreeChange, summary: &mut Summary, asked: &Asked<'_>, settings: &Settings) -> Result<()> {
    let output = settings.output;
    match change {
        TreeChange::Header(header) => return print_header(header, asked, settings),
        TreeChange::Node(node) => {
            summary.nodes += 1;
            match &node.content {
                ContentChange::Ranges(ranges) => {
                    let bytes = ranges.total_len_bytes();
                    summary.changed_bytes = summary.changed_bytes.saturating_add(bytes);
                }
                ContentChange::Whole(_) if node.kind == NodeKind::File => summary.whole_files += 1,
                _ => {}
            }
        }
        TreeChange::Name(_) => summary.names += 1,
    }
    if output.json {
        return output.object("change", change);
    }
    match change {
        TreeChange::Header(_) => Ok(()),
        TreeChange::Node(node) => print_node(node, settings),
        TreeChange::Name(name) => print_name(name, settings),
    }
}

fn print_header(header: &ChangesHeader, asked: &Asked<'_>, settings: &Settings) -> Result<()> {
    let output = settings.output;
    if output.json {
        return output.object("status", header);
    }
    match header.since {
        Some(_) => Ok(()),
        None if asked.request.since.is_some() => {
            output.say("The log does not reach back to that moment, so everything counts as changed.")
        }
        None if asked.is_own => {
            output.say("Nothing has been backed up from here yet, so everything counts as changed.")
        }
        None => output.say(format!(
            "{} has not saved anything from here yet, so everything counts as changed.",
            asked.request.consumer
        )),
    }
}

fn print_node(node: &ChangedNode, settings: &Settings) -> Result<()> {
    let output = settings.output;
    let path = match &node.path {
        Some(path) if path.as_bytes().is_empty() => ".".to_owned(),
        Some(path) => path.to_string(),
        None => format!("(node {}, without a name)", node.node),
    };
    let slash = if node.kind == NodeKind::Directory && path != "." {
        "/"
    } else {
        ""
    };
    let new = if node.is_new { ", new" } else { "" };
    match &node.content {
        _ if node.kind != NodeKind::File => output.line(format!("{path}{slash}{new}")),
        ContentChange::Unchanged => output.line(format!("{path}{new}: only attributes")),
        ContentChange::Whole(reason) => output.line(format!("{path}{new}: the whole file{}", why(*reason))),
        ContentChange::Ranges(ranges) => {
            let bytes = ranges.total_len_bytes();
            let size = size_exact(bytes, output.verbosity > 0);
            output.line(format!(
                "{path}{new}: {} in {}",
                size,
                counted(ranges.len() as u64, "range", "ranges")
            ))?;
            let shown = if output.verbosity > 0 {
                ranges.len()
            } else {
                RANGES_SHOWN
            };
            for range in ranges.iter().take(shown) {
                let (offset, len) = (grouped(range.start()), grouped(range.len_bytes()));
                output.line(format!("  {offset:>20} + {len}"))?;
            }
            match ranges.len().saturating_sub(shown) {
                0 => Ok(()),
                more => output.line(format!(
                    "  and {}; -v shows all",
                    counted(more as u64, "more range", "more ranges")
                )),
            }
        }
    }
}

/// The reason that a file counts as changed as a whole, to be appended to a sentence.
pub(in crate::commands) fn why(reason: WholeReason) -> &'static str {
    match reason {
        WholeReason::Created => "",
        WholeReason::NoMark => ", because nothing was saved before",
        WholeReason::Untracked => ", changed while the folder was not mounted",
        WholeReason::Interrupted => ", because a change was under way when tracking last ended",
        WholeReason::Unsaved => ", not saved last time",
        WholeReason::Dropped => ", because this consumer had been dropped",
        WholeReason::LogLost => ", because the log was lost and started over",
    }
}

fn print_name(name: &ChangedName, settings: &Settings) -> Result<()> {
    let path = match &name.dir {
        Some(dir) if dir.as_bytes().is_empty() => name.name.to_string(),
        Some(dir) => format!("{dir}/{}", name.name),
        None => format!("{} (in a removed directory)", name.name),
    };
    let sign = if name.node.is_some() { '+' } else { '-' };
    settings.output.line(format!("{sign} {path}"))
}
