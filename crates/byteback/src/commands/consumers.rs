//! `byteback consumers`: the programs that have marks in a folder's log, one each; scripts set
//! these marks.
//!
//! A program saves in three steps: `begin` (a moment of the folder, and its epoch), reading the
//! list of `changes --consumer` since the program's mark, and `done` with that epoch. Between the
//! first and the last step the mark stays, so after a crash in between the next run covers the same
//! changes again. A list that is made after `begin` may hold later changes too, but never omits an
//! earlier one; and `done` refuses an epoch that another run of the same consumer has replaced. So
//! no change falls between two runs.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use byteback_control::{ConsumerStatus, CutRequest, Outcome, TreeService};
use byteback_oplog::{DropReason, Epoch};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::consumer_notes;
use crate::error::{CommandError, Result};
use crate::output::table;
use crate::progress::Progress;
use crate::settings::Settings;
use crate::timestamp;
use crate::tracked_folder::{self, KnownFolder, Owner};
use crate::wording::{age, counted, nodes, size};

/// Prefix of the consumers that are our own backups.
const OWN_PREFIX: &str = "backup:";
/// Longest name, in bytes.
const NAME_LEN_MAX: usize = 100;

/// Flags of `consumers`.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "A program of your own becomes a consumer with its first 'begin'. An example script:
  epoch=$(byteback consumers begin nightly DIR)
  byteback changes DIR --consumer nightly --format paths -0 > list
  tar -C DIR --null --no-recursion -T list -czf nightly.tar.gz
  byteback consumers done nightly \"$epoch\" DIR
If any step fails, leave out the last one: the next run then covers the same changes again."
)]
pub(crate) struct ConsumersArguments {
    /// Folder (default: the one you are in)
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Begin a run: fix the moment up to which the consumer will save, and print its epoch
    Begin {
        /// Name of the consumer; a new one begins with everything
        #[arg(value_name = "NAME", value_parser = name)]
        name: String,
        /// Folder (default: the one you are in)
        #[arg(value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// Complete a run: everything up to its moment is saved; only later changes are listed
    Done {
        /// Name of the consumer
        #[arg(value_name = "NAME")]
        name: String,
        /// Epoch that 'begin' printed
        #[arg(value_name = "EPOCH")]
        epoch: EpochArgument,
        /// Folder (default: the one you are in)
        #[arg(value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// Drop a consumer: nothing is kept for it any longer, and it gets everything if it returns
    Drop {
        /// Name of the consumer
        #[arg(value_name = "NAME")]
        name: String,
        /// Folder (default: the one you are in)
        #[arg(value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// An epoch as a command-line argument: `@17`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EpochArgument(pub(crate) Epoch);

impl FromStr for EpochArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix('@').unwrap_or(text);
        digits.parse().map(|number| Self(Epoch(number))).map_err(|_| {
            format!("'{text}' is not an epoch: epochs look like @17, as 'byteback consumers begin' prints them")
        })
    }
}

/// Parses a name for a consumer of the user's.
fn name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > NAME_LEN_MAX || text.chars().any(char::is_control) {
        return Err(format!(
            "a name has 1 to {NAME_LEN_MAX} bytes and no control characters"
        ));
    }
    if text.starts_with(OWN_PREFIX) {
        return Err(format!(
            "names that begin with '{OWN_PREFIX}' are reserved for 'byteback backup'"
        ));
    }
    Ok(text.to_owned())
}

#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    mark: Option<u64>,
    pending: Option<u64>,
    saved: Option<String>,
    heard: Option<String>,
    file_marks: u64,
    unsaved_files: Option<u64>,
    unsaved_bytes: Option<u64>,
    expires: Option<String>,
    dropped: Option<DroppedLine>,
}

#[derive(Serialize)]
struct DroppedLine {
    at: String,
    reason: DropReason,
}

#[derive(Serialize)]
struct Gone<'a> {
    name: &'a str,
    directory: String,
}

#[derive(Serialize)]
struct Moved<'a> {
    name: &'a str,
    directory: String,
    epoch: u64,
    mark: Option<u64>,
}

pub(crate) fn run(arguments: &ConsumersArguments, settings: &Settings) -> Result<()> {
    match &arguments.verb {
        None => list(arguments.dir.as_deref(), settings),
        Some(Verb::Begin { name, dir }) => begin(name, dir.as_deref(), settings),
        Some(Verb::Drop { name, dir }) => give_up(name, dir.as_deref(), settings),
        Some(Verb::Done { name, epoch, dir }) => done(name, epoch.0, dir.as_deref(), settings),
    }
}

fn open(dir: Option<&Path>, settings: &Settings) -> Result<(KnownFolder, Owner)> {
    let known = tracked_folder::known_folder(dir, settings)?;
    let progress = Progress::new(settings, "consumers", None);
    let owner = Owner::of(&known.folder, settings, &progress)?;
    progress.finish();
    Ok((known, owner))
}

fn begin(name: &str, dir: Option<&Path>, settings: &Settings) -> Result<()> {
    let (known, owner) = open(dir, settings)?;
    let tree = owner.service();
    let info = tree.cut(&CutRequest::of(name))?;
    // Nothing is read of this cut: only its epoch stays, in the log.
    tree.finish(info.cut, &Outcome::Unknown)?;
    let output = settings.output;
    if !owner.is_mounted() {
        output.warn(&format!(
            "{} is not mounted: changed ranges of files are not tracked, and changes that 'byteback backup' has not \
             saved are listed again",
            known.folder.directory().display()
        ));
    }
    if output.json {
        return output.object(
            "summary",
            &Moved {
                name,
                directory: known.folder.directory().display().to_string(),
                epoch: info.epoch.0,
                mark: info.since.map(|mark| mark.0),
            },
        );
    }
    // The epoch alone, for scripts.
    output.line(format!("@{}", info.epoch))
}

fn consumer(tree: &dyn TreeService, name: &str) -> Result<Option<ConsumerStatus>> {
    let status = tree.status()?;
    Ok(status.consumers.into_iter().find(|consumer| consumer.name == name))
}

fn done(name: &str, epoch: Epoch, dir: Option<&Path>, settings: &Settings) -> Result<()> {
    let (known, owner) = open(dir, settings)?;
    let tree = owner.service();
    let output = settings.output;
    if !tree.advance(name, epoch)? {
        let state = consumer(tree, name)?;
        // A repeated `done` is no error: the answer to the first may have been lost.
        if state.as_ref().and_then(|state| state.mark) != Some(epoch) {
            return Err(refused(name, epoch, state.as_ref()));
        }
    }
    if output.json {
        return output.object(
            "summary",
            &Moved {
                name,
                directory: known.folder.directory().display().to_string(),
                epoch: epoch.0,
                mark: Some(epoch.0),
            },
        );
    }
    output.say(format!("{name} has saved everything up to @{epoch}."))
}

fn refused(name: &str, epoch: Epoch, state: Option<&ConsumerStatus>) -> CommandError {
    let Some(state) = state else {
        return CommandError::new(format!("there is no consumer '{name}'"))
            .next(format!("Create it with: byteback consumers begin {name}"));
    };
    match state.pending_cut() {
        Some(pending) => CommandError::new(format!(
            "the mark of '{name}' was not moved: @{epoch} was replaced by @{}, so another run has begun since",
            pending.epoch
        ))
        .next("That run lists the changes of this one again. Two runs of one consumer must not overlap."),
        None => CommandError::new(format!(
            "the mark of '{name}' was not moved: no run with @{epoch} is open"
        ))
        .next(format!("Begin a run first: byteback consumers begin {name}")),
    }
}

fn give_up(name: &str, dir: Option<&Path>, settings: &Settings) -> Result<()> {
    let (known, owner) = open(dir, settings)?;
    if !owner.service().drop_consumer(name)? {
        return Err(CommandError::new(format!("there is no consumer '{name}'"))
            .next("'byteback consumers' lists all consumers."));
    }
    let (output, directory) = (settings.output, known.folder.directory().display().to_string());
    if output.json {
        return output.object("summary", &Gone { name, directory });
    }
    output.say(format!(
        "{name} is no longer a consumer of {directory}: it gets everything if it returns."
    ))
}

/// The unsaved changes of a consumer: the number of changed files and other nodes, and the bytes in
/// known ranges; `None` if everything is unsaved.
fn unsaved(tree: &dyn TreeService, consumer: &ConsumerStatus) -> Result<Option<(u64, u64)>> {
    if consumer.mark.is_none() {
        return Ok(None);
    }
    let look = tree.cut(&CutRequest {
        look_only: true,
        ..CutRequest::of(&consumer.name)
    })?;
    tree.finish(look.cut, &Outcome::Abandoned)?;
    Ok(look.since.map(|_| (look.nodes, look.content_bytes)))
}

fn list(dir: Option<&Path>, settings: &Settings) -> Result<()> {
    let (known, owner) = open(dir, settings)?;
    let tree = owner.service();
    let consumers = tree.status()?.consumers;
    let (output, now_ns) = (settings.output, timestamp::now_ns());
    let time = |ns: i64| (ns != 0).then(|| timestamp::rfc3339(ns));
    let mut rows: Vec<[String; 3]> = Vec::new();
    for consumer in &consumers {
        let unsaved = unsaved(tree, consumer)?;
        if output.json {
            output.object(
                "consumer",
                &Line {
                    name: &consumer.name,
                    mark: consumer.mark.map(|mark| mark.0),
                    pending: consumer.pending_cut().map(|pending| pending.epoch.0),
                    saved: time(consumer.saved_at_ns),
                    heard: time(consumer.heard_at_ns),
                    file_marks: consumer.file_marks,
                    unsaved_files: unsaved.map(|(files, _)| files),
                    unsaved_bytes: unsaved.map(|(_, bytes)| bytes),
                    expires: consumer.expires_at_ns.map(timestamp::rfc3339),
                    dropped: consumer.dropped.map(|dropped| DroppedLine {
                        at: timestamp::rfc3339(dropped.at_ns),
                        reason: dropped.reason,
                    }),
                },
            )?;
            continue;
        }
        rows.push([
            consumer.name.clone(),
            saved_in_words(consumer, now_ns),
            match unsaved {
                _ if consumer.mark.is_none() && consumer.file_marks > 0 => {
                    format!(
                        "marks of {}",
                        counted(consumer.file_marks, "single file", "single files")
                    )
                }
                None => "everything".to_owned(),
                Some((0, _)) => "nothing".to_owned(),
                Some((files, bytes)) => {
                    let files = nodes(files);
                    format!("{files}, {} in known ranges", size(bytes))
                }
            },
        ]);
    }
    if output.json {
        return Ok(());
    }
    if rows.is_empty() {
        let directory = known.folder.directory().display();
        return output.say(format!("No program has saved anything from {directory} yet."));
    }
    table(output, ["Name", "Saved", "Not saved yet"], &rows)?;
    consumer_notes::warn(&consumers, &known.folder, output);
    Ok(())
}

/// When a consumer last saved, and what it is doing now.
pub(crate) fn saved_in_words(consumer: &ConsumerStatus, now_ns: i64) -> String {
    let saved = match (consumer.saved_at_ns, consumer.dropped) {
        (_, Some(dropped)) => format!("dropped {} ago", age(dropped.at_ns, now_ns)),
        (0, None) => "never".to_owned(),
        (saved_at_ns, None) => format!("{} ago", age(saved_at_ns, now_ns)),
    };
    match consumer.pending {
        Some(_) => format!("{saved}; a run has begun"),
        None => saved,
    }
}
