//! `byteback diff`: the differences between two snapshots.
//!
//! The server lists names first, then nodes. A line begins with the kind of change: `+` new, `-`
//! removed, `M` other content, `U` only other attributes. A new file is listed once, by its name.

use std::ffi::OsString;

use byteback_api::messages::DiffItem;
use byteback_backup::{BackupError, Silent, SnapshotSpec, diff};
use byteback_model::{Attributes, ByteString, NodeKind};
use clap::Args;
use serde::Serialize;

use super::source::Source;
use crate::error::{CommandError, Result};
use crate::operands::SourceArguments;
use crate::settings::Settings;
use crate::wording::{counted, counts, listed, size};

/// Flags of `diff`.
#[derive(Args, Debug)]
pub(crate) struct DiffArguments {
    /// Older snapshot: latest~N or a number (default: the one before the newest)
    #[arg(value_name = "A")]
    from: Option<OsString>,
    /// Newer snapshot (default: the newest)
    #[arg(value_name = "B")]
    to: Option<OsString>,
    #[command(flatten)]
    source: SourceArguments,
}

#[derive(Default, Serialize)]
struct Summary {
    from: u64,
    to: u64,
    names_added: u64,
    names_removed: u64,
    contents_changed: u64,
    attributes_changed: u64,
    changed_bytes: u64,
}

pub(crate) fn run(arguments: &DiffArguments, settings: &Settings) -> Result<()> {
    let chosen = arguments.source.choose(arguments.from.iter().chain(&arguments.to), 2);
    let from = chosen
        .snapshots
        .first()
        .map_or(SnapshotSpec::Latest(1), |from| from.snapshot);
    let to = chosen.snapshot(1).snapshot;
    let source = Source::open(chosen.dir.as_deref(), settings)?;
    let from = source.snapshot(from)?;
    let to = source.snapshot(to)?;
    let mut summary = Summary {
        from: from.id,
        to: to.id,
        ..Summary::default()
    };
    if from.seq > to.seq {
        return Err(
            CommandError::new(format!("snapshot {} is newer than snapshot {}", from.id, to.id))
                .next(format!("Name the older one first: byteback diff {} {}", to.id, from.id)),
        );
    }
    let mut stopped = None;
    let done = diff(&source.server, source.folder(), from.seq, to.seq, &Silent, |item| {
        print(&item, &mut summary, settings).map_err(|error| {
            stopped = Some(error);
            BackupError::Cancelled
        })
    });
    if let Some(error) = stopped {
        return Err(error);
    }
    done?;
    let output = settings.output;
    if output.json {
        return output.object("summary", &summary);
    }
    let mut parts = counts(&[
        (summary.names_added, "name added", "names added"),
        (summary.names_removed, "name removed", "names removed"),
        (
            summary.attributes_changed,
            "file with other attributes",
            "files with other attributes",
        ),
    ]);
    if summary.contents_changed > 0 {
        let files = counted(summary.contents_changed, "file", "files");
        parts.push(format!("{} in {files} changed", size(summary.changed_bytes)));
    }
    output.say(match parts.as_slice() {
        [] => format!("Snapshots {} and {} are equal.", summary.from, summary.to),
        parts => format!("From snapshot {} to {}: {}.", summary.from, summary.to, listed(parts)),
    })
}

fn print(item: &DiffItem, summary: &mut Summary, settings: &Settings) -> Result<()> {
    let output = settings.output;
    if output.json {
        count(item, summary);
        return output.object("change", item);
    }
    let counted = count(item, summary);
    match (item, counted) {
        (DiffItem::EntryAdded { path, name, .. }, _) => output.line(format!("+ {}", shown(path.as_ref(), name))),
        (DiffItem::EntryRemoved { path, name, .. }, _) => output.line(format!("- {}", shown(path.as_ref(), name))),
        (
            DiffItem::NodeChanged {
                path,
                id,
                changed_bytes,
                ..
            },
            Some(What::Content),
        ) => {
            let id = ByteString::from(id.to_string());
            output.line(format!(
                "M {}  ({} written)",
                shown(path.as_ref(), &id),
                size(*changed_bytes)
            ))
        }
        (
            DiffItem::NodeChanged {
                path,
                id,
                before,
                after,
                ..
            },
            Some(What::Attributes),
        ) => {
            let id = ByteString::from(id.to_string());
            let which = before
                .as_deref()
                .map_or_else(Vec::new, |before| differing(before, after));
            output.line(format!("U {}  ({})", shown(path.as_ref(), &id), which.join(", ")))
        }
        (DiffItem::NodeChanged { .. }, _) => Ok(()),
    }
}

#[derive(PartialEq)]
enum What {
    Name,
    Content,
    Attributes,
}

/// Counts an item. `None` for an item that gets no line: a new node, which its name announced, and
/// a directory whose time changed because of the names in it.
fn count(item: &DiffItem, summary: &mut Summary) -> Option<What> {
    match item {
        DiffItem::EntryAdded { .. } => {
            summary.names_added += 1;
            Some(What::Name)
        }
        DiffItem::EntryRemoved { .. } => {
            summary.names_removed += 1;
            Some(What::Name)
        }
        DiffItem::NodeChanged {
            changed_bytes,
            content_changed,
            before,
            ..
        } if *content_changed => {
            summary.contents_changed += 1;
            summary.changed_bytes = summary.changed_bytes.saturating_add(*changed_bytes);
            before.is_some().then_some(What::Content)
        }
        DiffItem::NodeChanged {
            before: Some(before),
            after,
            ..
        } => {
            let which = differing(before, after);
            let only_time = after.kind == NodeKind::Directory && which == ["mtime"];
            if only_time || which.is_empty() {
                return None;
            }
            summary.attributes_changed += 1;
            Some(What::Attributes)
        }
        DiffItem::NodeChanged { before: None, .. } => None,
    }
}

fn differing(before: &Attributes, after: &Attributes) -> Vec<&'static str> {
    let all = [
        (before.mode != after.mode, "mode"),
        ((before.uid, before.gid) != (after.uid, after.gid), "owner"),
        (before.size != after.size, "size"),
        (before.mtime_ns != after.mtime_ns, "mtime"),
        (before.rdev != after.rdev, "device"),
        (before.target != after.target, "target"),
        (before.xattrs != after.xattrs, "xattrs"),
        (before.inode_flags != after.inode_flags, "flags"),
    ];
    all.into_iter()
        .filter_map(|(differs, name)| differs.then_some(name))
        .collect()
}

fn shown(path: Option<&ByteString>, otherwise: &ByteString) -> String {
    match path {
        Some(path) if path.as_bytes().is_empty() => ".".to_owned(),
        Some(path) => path.to_string(),
        None => otherwise.to_string(),
    }
}
