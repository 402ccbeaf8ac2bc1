//! `byteback consumers`: the programs that have a mark in a folder's log, each with its own; their marks are set from scripts.
//!
//! A program saves in three steps: `begin` (a moment of the folder, and its epoch), reading what `changes --consumer` lists since the
//! program's mark, and `done` with that epoch. Between the first and the last, the mark stays; whatever dies in between, the next
//! run covers the same again. A list that is made after `begin` may hold more than was changed before it, never less; and
//! `done` refuses an epoch that another run of the same consumer has replaced. So no change falls between two runs.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use byteback_control::{ConsumerStatus, CutRequest, Outcome, TreeService};
use byteback_oplog::Epoch;
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::error::{CommandError, Result};
use crate::output::table;
use crate::progress::Progress;
use crate::settings::Settings;
use crate::timestamp;
use crate::tracked_folder::{self, KnownFolder, Owner};
use crate::wording::age;

/// Consumers of this kind are our own backups.
const OWN_PREFIX: &str = "backup:";
/// The longest name.
const NAME_LEN_MAX: usize = 100;

/// Flags of `consumers`.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "A program of your own becomes a consumer by its first 'begin'. A script:
  epoch=$(byteback consumers begin nightly DIR)
  byteback changes DIR --consumer nightly --format paths -0 > list
  tar -C DIR --null --no-recursion -T list -czf nightly.tar.gz
  byteback consumers done nightly \"$epoch\" DIR
If anything fails in between, leave out the last step: the next run then covers the same again."
)]
pub(crate) struct ConsumersArguments {
    /// The folder; without it, the one you are in
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Take a moment of the folder up to which a consumer will save; prints its epoch
    Begin {
        /// The consumer; a new one saves everything
        #[arg(value_name = "NAME", value_parser = name)]
        name: String,
        /// The folder; without it, the one you are in
        #[arg(value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// Everything up to a begun moment is saved: from now on only later changes are told
    Done {
        /// The consumer
        #[arg(value_name = "NAME")]
        name: String,
        /// What 'begin' printed
        #[arg(value_name = "EPOCH")]
        epoch: EpochArgument,
        /// The folder; without it, the one you are in
        #[arg(value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// An epoch on the command line: `@17`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EpochArgument(pub(crate) Epoch);

impl FromStr for EpochArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix('@').unwrap_or(text);
        digits
            .parse()
            .map(|number| Self(Epoch(number)))
            .map_err(|_| format!("'{text}' is no epoch: it looks like @17, as 'byteback consumers begin' prints it"))
    }
}

/// A name that a program of the user's may have.
fn name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > NAME_LEN_MAX || text.chars().any(char::is_control) {
        return Err(format!(
            "a name has 1 to {NAME_LEN_MAX} bytes and no control characters"
        ));
    }
    if text.starts_with(OWN_PREFIX) {
        return Err(format!(
            "names that begin with '{OWN_PREFIX}' are those of 'byteback backup'"
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
        Some(Verb::Done { name, epoch, dir }) => done(name, epoch.0, dir.as_deref(), settings),
    }
}

fn open(dir: Option<&Path>, settings: &Settings) -> Result<(KnownFolder, Owner)> {
    let known = tracked_folder::known_folder(dir, settings)?;
    let progress = Progress::new(settings, "consumers", None);
    let owner = Owner::of(&known.folder, &progress)?;
    progress.finish();
    Ok((known, owner))
}

fn begin(name: &str, dir: Option<&Path>, settings: &Settings) -> Result<()> {
    let (known, owner) = open(dir, settings)?;
    let tree = owner.service();
    let info = tree.cut(&CutRequest {
        consumer: name.to_owned(),
        everything: false,
        look_only: false,
        since: None,
        anonymous: false,
    })?;
    // Nothing is read of this cut: only its epoch stays, in the log.
    tree.finish(info.cut, &Outcome::Unknown)?;
    let output = settings.output;
    if !owner.is_mounted() {
        output.warn(&format!(
            "{} is not mounted: which bytes of a file change is not seen, and what is not saved by 'byteback backup' is told again",
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
    // The epoch alone, so that a script can take it.
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
        // Said twice, for instance after an answer that was lost.
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
            .next(format!("It begins with: byteback consumers begin {name}"));
    };
    match state.pending_cut() {
        Some(pending) => CommandError::new(format!(
            "the mark of '{name}' stays: @{epoch} was replaced by @{}, so another run of it has begun since",
            pending.epoch
        ))
        .next("What this run saved is told again to that one. Two runs of one consumer must not overlap."),
        None => CommandError::new(format!("the mark of '{name}' stays: it has not begun @{epoch}"))
            .next(format!("Begin first: byteback consumers begin {name}")),
    }
}

fn list(dir: Option<&Path>, settings: &Settings) -> Result<()> {
    let (known, owner) = open(dir, settings)?;
    let status = owner.service().status()?;
    let output = settings.output;
    if output.json {
        return status.consumers.iter().try_for_each(|consumer| {
            output.object(
                "consumer",
                &Line {
                    name: &consumer.name,
                    mark: consumer.mark.map(|mark| mark.0),
                    pending: consumer.pending_cut().map(|pending| pending.epoch.0),
                    saved: consumer.mark.map(|_| timestamp::rfc3339(consumer.saved_at_ns)),
                },
            )
        });
    }
    if status.consumers.is_empty() {
        let directory = known.folder.directory().display();
        return output.say(format!("Nothing has been saved from {directory} yet, by any program."));
    }
    let now_ns = timestamp::now_ns();
    let rows: Vec<[String; 3]> = status
        .consumers
        .iter()
        .map(|consumer| {
            let mark = consumer.mark.map_or_else(|| "-".to_owned(), |mark| format!("@{mark}"));
            let saved = match consumer.mark {
                Some(_) => format!("{} ago", age(consumer.saved_at_ns, now_ns)),
                None => "never".to_owned(),
            };
            [consumer.name.clone(), mark, saved]
        })
        .collect();
    table(output, ["Name", "Mark", "Saved"], &rows)
}
