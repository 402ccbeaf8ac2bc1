//! `byteback snapshots`: the snapshots of a repository, oldest first.

use byteback_model::{ByteString, Snapshot};
use clap::Args;
use serde::Serialize;

use super::source::Source;
use crate::error::Result;
use crate::operands::SourceArguments;
use crate::settings::Settings;
use crate::timestamp;

/// Flags of `snapshots`.
#[derive(Args, Debug)]
pub(crate) struct SnapshotsArguments {
    #[command(flatten)]
    source: SourceArguments,
    /// List only snapshots with this tag
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,
    /// List only snapshots of this host
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
}

#[derive(Serialize)]
struct Line<'a> {
    id: u64,
    seq: u64,
    time: String,
    host: &'a ByteString,
    path: &'a ByteString,
    tags: &'a [String],
}

pub(crate) fn run(arguments: &SnapshotsArguments, settings: &Settings) -> Result<()> {
    let source = Source::open(arguments.source.dir().as_deref(), settings)?;
    let mut found: Vec<Snapshot> = Vec::new();
    byteback_backup::snapshots(&source.server, source.folder(), |snapshot| {
        let has_tag = arguments
            .tag
            .as_ref()
            .is_none_or(|tag| snapshot.label.tags.contains(tag));
        let has_host = arguments
            .host
            .as_ref()
            .is_none_or(|host| snapshot.label.host.as_bytes() == host.as_bytes());
        if has_tag && has_host {
            found.push(snapshot);
        }
        Ok(())
    })?;
    let output = settings.output;
    if output.json {
        for snapshot in &found {
            let label = &snapshot.label;
            output.object(
                "snapshot",
                &Line {
                    id: snapshot.id,
                    seq: snapshot.seq,
                    time: timestamp::rfc3339(label.time_ns),
                    host: &label.host,
                    path: &label.path,
                    tags: &label.tags,
                },
            )?;
        }
        return Ok(());
    }
    if found.is_empty() {
        return output.say(format!(
            "No snapshots in {} yet. 'byteback backup' makes one.",
            source.repository
        ));
    }
    let rows = found.iter().map(|snapshot| {
        let label = &snapshot.label;
        let time = timestamp::local(label.time_ns);
        [
            snapshot.id.to_string(),
            time,
            label.host.to_string(),
            label.path.to_string(),
            label.tags.join(","),
        ]
    });
    let rows: Vec<_> = rows.collect();
    crate::output::table(output, ["ID", "Time", "Host", "Path", "Tags"], &rows)
}
