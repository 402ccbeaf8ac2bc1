//! `byteback explain`: how the last backup of a file found its changes, and why in that way.

use std::path::{Path, PathBuf};

use byteback_backup::decisions::{
    Cause, Compression, CompressionEffort, Decided, Decision, DeltaMethod, Fallback, last_decision,
};
use byteback_control::{CutRequest, Outcome, TreeService};
use byteback_daemon::StateFolder;
use byteback_host::durable::RealDir;
use byteback_model::{ByteString, NodeId};
use byteback_oplog::{TreeId, WholeReason};
use clap::Args;
use serde::Serialize;

use crate::error::{CommandError, Result};
use crate::progress::Progress;
use crate::settings::Settings;
use crate::timestamp;
use crate::tracked_folder::{self, Owner};
use crate::wording::size_exact;

/// Flags of `explain`.
#[derive(Args, Debug)]
#[command(
    after_help = "Changes are taken from the log of writes where it knows them, otherwise from stored block checksums, \
or found by comparing the file with the server's version. 'byteback backup --delta' forces one of these methods."
)]
pub(crate) struct ExplainArguments {
    /// File to explain
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

#[derive(Serialize)]
struct Line<'a> {
    file: String,
    time: String,
    seq: u64,
    because: &'a str,
    #[serde(flatten)]
    decision: Decision,
    #[serde(skip_serializing_if = "Option::is_none")]
    compression: Option<Compression>,
}

/// The directory where the decisions about files are recorded.
pub(super) fn decisions_path(folder: &StateFolder) -> PathBuf {
    Path::new(folder.path()).join("decisions")
}

pub(crate) fn run(arguments: &ExplainArguments, settings: &Settings) -> Result<()> {
    let file = arguments.file.display();
    let (known, path) = tracked_folder::folder_of_file(&arguments.file, settings)?;
    let progress = Progress::new(settings, "explain", None);
    let owner = Owner::of(&known.folder, settings, &progress)?;
    let found = find(owner.service(), &path);
    progress.finish();
    let (tree, node) = found?;
    let node = node.ok_or_else(|| {
        CommandError::new(format!(
            "{file} does not exist in {}",
            known.folder.directory().display()
        ))
        .next("Name a file that exists now; the log identifies files by node, not by earlier names.")
    })?;
    let unreadable = |error: &std::io::Error| CommandError::file("read", &decisions_path(&known.folder), error);
    let decided = match RealDir::open(decisions_path(&known.folder)) {
        Ok(dir) => last_decision(&dir, tree, node).map_err(|error| unreadable(&error))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(unreadable(&error)),
    };
    let decided = decided.ok_or_else(|| {
        CommandError::new(format!("there is no record of how {file} was saved")).next(
            "It has not been saved yet, its content has not changed for very long, or it is not a regular file; \
                 'byteback changes' shows whether it is still to be saved.",
        )
    })?;
    if settings.output.json {
        let line = Line {
            file: file.to_string(),
            time: timestamp::rfc3339(decided.at_ns),
            seq: decided.seq,
            because: &because(&decided.decision),
            decision: decided.decision,
            compression: decided.compression,
        };
        return settings.output.object("decision", &line);
    }
    print(&file.to_string(), &decided, settings)
}

/// The node that a path refers to now.
fn find(tree: &dyn TreeService, path: &ByteString) -> Result<(TreeId, Option<NodeId>)> {
    let info = tree.cut(&CutRequest {
        look_only: true,
        ..CutRequest::of("")
    })?;
    let node = tree.find(info.cut, path);
    let finished = tree.finish(info.cut, &Outcome::Abandoned);
    let node = node?;
    finished?;
    Ok((info.tree, node))
}

fn print(file: &str, decided: &Decided, settings: &Settings) -> Result<()> {
    let output = settings.output;
    let decision = &decided.decision;
    let size = |bytes: u64| size_exact(bytes, output.verbosity > 0);
    output.line(format!(
        "{file}: saved {}, {} long",
        timestamp::local(decided.at_ns),
        size(decision.size_bytes)
    ))?;
    output.line(format!("  how      {}", how(decision.method)))?;
    output.line(format!("  why      {}", because(decision)))?;
    output.line(format!("  changed  at most {}", size(decision.changed_bytes)))?;
    let hashed = match (decision.hashed_bytes, decision.found_bytes) {
        (0, 0) => "nothing".to_owned(),
        (0, found) => format!("nothing; the server had {}", size(found)),
        (bytes, _) => format!("{}; the server had {}", size(bytes), size(decision.found_bytes)),
    };
    output.line(format!("  hashed   {hashed}"))?;
    let compressed = decided.compression.filter(|_| decision.literal_bytes > 0);
    output.line(format!(
        "  sent     {} before compression{}",
        size(decision.literal_bytes),
        compressed.map_or_else(String::new, compressing)
    ))
}

/// A remark on how hard a backup was compressed; empty if that was as usual.
fn compressing(compression: Compression) -> String {
    let effort = match compression.effort {
        CompressionEffort::Fast => "little",
        CompressionEffort::Standard => return String::new(),
        CompressionEffort::Thorough => "much",
    };
    let link = compression.link_bytes_per_s.map_or_else(String::new, |rate| {
        format!(", because the link carried {} per second", crate::wording::size(rate))
    });
    format!(", compressed with {effort} effort{link}")
}

fn how(method: DeltaMethod) -> &'static str {
    match method {
        DeltaMethod::Log => "the ranges that the log recorded as changed were sent",
        DeltaMethod::Sums => "the file was read, and the blocks that differ from the checksums kept here were sent",
        DeltaMethod::Rsync => "the file was matched against the server's version by rolling checksums (rsync)",
        DeltaMethod::Hash => "the file was matched against the server's version by hashes of its blocks",
        DeltaMethod::Webr => "the server searched its version for the file's blocks (WebR2sync+)",
        DeltaMethod::Cdc => {
            "the file was cut into content-defined chunks, which were compared with those of the server's version"
        }
        DeltaMethod::SkyF => {
            "existing checksums showed which blocks the server has; the rest was read and searched (SkySync-F)"
        }
        DeltaMethod::SkyC => {
            "existing checksums showed which blocks the server has; the rest was read and cut into chunks (SkySync-C)"
        }
        DeltaMethod::LogSearched => {
            "the ranges that the log recorded as changed were searched in the server's version by rolling checksums"
        }
        DeltaMethod::LogLookedUp => {
            "the blocks that the log recorded as changed were looked up among those of the server's version"
        }
        DeltaMethod::LogCompared => {
            "the ranges that the log recorded as changed were compared with what programs overwrote there"
        }
        DeltaMethod::Full => "the whole file was sent",
    }
}

fn because(decision: &Decision) -> String {
    let cause = match decision.cause {
        Cause::LogKnew => "the log knew which bytes had been written",
        Cause::New => "the server had no version of it",
        Cause::Asked => "it was requested with --delta",
        Cause::Rewritten => "it had been rewritten from the first byte to the last",
        Cause::Whole(WholeReason::Created) => "it was new to the log",
        Cause::Whole(WholeReason::NoMark) => "nothing had been saved before",
        Cause::Whole(WholeReason::Untracked) => "it had changed while the folder was not mounted",
        Cause::Whole(WholeReason::Interrupted) => "a change was under way when tracking last ended",
        Cause::Whole(WholeReason::Unsaved) => "it could not be saved last time",
        Cause::Whole(WholeReason::Dropped) => "the mark of this backup had been dropped",
        Cause::Whole(WholeReason::LogLost) => "the log was lost and started over",
        Cause::SamePath => "everything had to be examined again, and the server had a file at this path",
        Cause::Moved => "everything had to be examined again, and the server had a similar file elsewhere",
        Cause::Replaced => "it had replaced a file that the server has",
        Cause::Copied => "it had been copied from a file that the server has",
    };
    let fallback = match decision.fallback {
        None => return cause.to_owned(),
        Some(Fallback::TooShort) => "it was too short to be worth asking the server",
        Some(Fallback::TooLong) => "it was too long for the server to check",
        Some(Fallback::NoSignature) => "the server gave no signature of its version",
        Some(Fallback::TooScattered) => "it consisted of too many pieces",
        Some(Fallback::ProofRefused) => "the server rejected the result of its own checksums",
        Some(Fallback::CostsLess) => "sending it was expected to take no longer than searching for it",
        Some(Fallback::Appended) => "the server's version ended before these ranges",
        Some(Fallback::FoundNothing) => "the server's version had none of its blocks",
        Some(Fallback::NotSummed) => "it had no strong checksums: it was read once to compute them",
    };
    format!("{cause}, and {fallback}")
}
