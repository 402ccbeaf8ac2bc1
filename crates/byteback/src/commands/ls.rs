//! `byteback ls`: lists the content of a snapshot.

use std::ffi::OsString;

use byteback_backup::{BackupError, ListedEntry, Monitor, Silent, list};
use byteback_model::{ByteString, NodeKind};
use clap::Args;
use serde::Serialize;

use super::source::Source;
use crate::error::Result;
use crate::operands::SourceArguments;
use crate::settings::Settings;
use crate::timestamp;
use crate::wording::permissions;

/// Flags of `ls`.
#[derive(Args, Debug)]
pub(crate) struct LsArguments {
    /// Snapshot (latest, latest~N or a number; default: latest), and a path in it
    #[arg(value_name = "SNAPSHOT[:PATH]")]
    what: Option<OsString>,
    /// Show owner, size and time
    #[arg(short, long)]
    long: bool,
    /// List only this directory, not those below it
    #[arg(long)]
    flat: bool,
    #[command(flatten)]
    source: SourceArguments,
}

#[derive(Serialize)]
struct Line<'a> {
    path: &'a ByteString,
    id: String,
    kind: NodeKind,
    mode: String,
    uid: u32,
    gid: u32,
    size: u64,
    mtime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'a ByteString>,
}

pub(crate) fn run(arguments: &LsArguments, settings: &Settings) -> Result<()> {
    let chosen = arguments.source.choose(&arguments.what, 1);
    let what = chosen.snapshot(0);
    let source = Source::open(chosen.dir.as_deref(), settings)?;
    let snapshot = source.snapshot(what.snapshot)?;
    let monitor: &dyn Monitor = &Silent;
    let mut stopped = None;
    let listed = list(
        &source.server,
        source.folder(),
        snapshot.seq,
        &what.path,
        !arguments.flat,
        monitor,
        |entry| {
            print(&entry, arguments.long, settings).map_err(|error| {
                stopped = Some(error);
                BackupError::Cancelled
            })
        },
    );
    match stopped {
        Some(error) => Err(error),
        None => listed.map_err(|error| source.in_snapshot(error, &what)),
    }
}

fn print(entry: &ListedEntry, long: bool, settings: &Settings) -> Result<()> {
    let output = settings.output;
    let (path, node) = (&entry.path, &entry.node);
    let attributes = &node.attributes;
    if output.json {
        let line = Line {
            path,
            id: node.id.to_string(),
            kind: attributes.kind,
            mode: format!("{:04o}", attributes.mode),
            uid: attributes.uid,
            gid: attributes.gid,
            size: attributes.size,
            mtime: timestamp::rfc3339(attributes.mtime_ns),
            target: attributes.target.as_ref(),
        };
        return output.object("node", &line);
    }
    if !long {
        let slash = if attributes.kind == NodeKind::Directory {
            "/"
        } else {
            ""
        };
        return output.line(format!("{path}{slash}"));
    }
    let target = attributes
        .target
        .as_ref()
        .map_or_else(String::new, |target| format!(" -> {target}"));
    output.line(format!(
        "{}{} {:>5} {:>5} {:>12} {} {path}{target}",
        letter(attributes.kind),
        permissions(attributes.mode),
        attributes.uid,
        attributes.gid,
        attributes.size,
        timestamp::local(attributes.mtime_ns),
    ))
}

/// The letter for a kind of node, as in `ls -l`.
fn letter(kind: NodeKind) -> char {
    match kind {
        NodeKind::File => '-',
        NodeKind::Directory => 'd',
        NodeKind::Symlink => 'l',
        NodeKind::Fifo => 'p',
        NodeKind::Socket => 's',
        NodeKind::CharDevice => 'c',
        NodeKind::BlockDevice => 'b',
    }
}
