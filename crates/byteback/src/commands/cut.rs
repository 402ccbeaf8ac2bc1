//! `byteback cut`: moments of a mounted folder, kept under a name for any program that reads files.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use byteback_control::{Client, NamedCut, TreeService};
use byteback_model::ByteString;
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::error::{CommandError, Result};
use crate::output::table;
use crate::settings::Settings;
use crate::timestamp;
use crate::tracked_folder;
use crate::wording::{age, size};

/// Flags of `cut`.
#[derive(Args, Debug)]
#[command(
    after_help = "A cut is the whole folder as it was at one moment, while programs go on writing. Read it at
DIR/.byteback/cut/NAME, which is hidden from listings:
  byteback cut create nightly DIR
  tar -C DIR/.byteback/cut/nightly -cf nightly.tar .
  byteback cut rm nightly DIR
Bytes that programs overwrite meanwhile are kept in the state folder until the cut ends; cuts end with the mount."
)]
pub(crate) struct CutArguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Open a cut of the folder as it is now
    Create(OneCut),
    /// List the open cuts
    Ls {
        /// Folder (default: the one you are in)
        #[arg(value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// End a cut; files that are open in it can be read until they are closed
    Rm(OneCut),
}

#[derive(Args, Debug)]
struct OneCut {
    /// Name of the cut
    #[arg(value_name = "NAME")]
    name: OsString,
    /// Folder (default: the one you are in)
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// A cut as a JSON line.
#[derive(Serialize)]
struct Line<'a> {
    name: &'a ByteString,
    path: &'a ByteString,
    epoch: u64,
    opened: String,
    age_ns: u64,
    kept_bytes: u64,
    /// Whether the cut was ended while files in it are still open.
    is_ended: bool,
    lost: Option<&'a str>,
}

impl<'a> Line<'a> {
    fn of(cut: &'a NamedCut, now_ns: i64) -> Self {
        Self {
            name: &cut.name,
            path: &cut.path,
            epoch: cut.epoch.0,
            opened: timestamp::rfc3339(cut.opened_at_ns),
            age_ns: u64::try_from(now_ns.saturating_sub(cut.opened_at_ns)).unwrap_or(0),
            kept_bytes: cut.kept_bytes,
            is_ended: cut.is_ended,
            lost: cut.lost.as_deref(),
        }
    }
}

#[derive(Serialize)]
struct Removed<'a> {
    name: &'a ByteString,
    directory: String,
}

pub(crate) fn run(arguments: &CutArguments, settings: &Settings) -> Result<()> {
    match &arguments.verb {
        Verb::Create(one) => create(one, settings),
        Verb::Ls { dir } => list(dir.as_deref(), settings),
        Verb::Rm(one) => remove(one, settings),
    }
}

/// The daemon of the folder, and the folder's path.
fn daemon(dir: Option<&Path>, settings: &Settings) -> Result<(Client, String)> {
    let folder = match dir {
        Some(dir) => tracked_folder::state_folder(dir, settings)?,
        None => tracked_folder::folder_of_current_dir(settings)?.ok_or_else(|| {
            CommandError::new("neither the current directory nor one above it is a tracked folder")
                .next("Name the folder: byteback cut ls DIR")
        })?,
    };
    let directory = folder.directory().display().to_string();
    match tracked_folder::daemon(&folder)? {
        Some(daemon) => Ok((daemon, directory)),
        None => Err(
            CommandError::new(format!("{directory} is not mounted, and cuts need a mount"))
                .next(format!("Mount it first: byteback mount {directory}")),
        ),
    }
}

fn create(one: &OneCut, settings: &Settings) -> Result<()> {
    let (daemon, _) = daemon(one.dir.as_deref(), settings)?;
    let name = ByteString::from(one.name.clone().into_vec());
    let cut = daemon.open_cut(&name)?;
    let output = settings.output;
    if output.json {
        return output.object("cut", &Line::of(&cut, timestamp::now_ns()));
    }
    // The path alone, for scripts.
    output.line(&cut.path)
}

fn list(dir: Option<&Path>, settings: &Settings) -> Result<()> {
    let (daemon, directory) = daemon(dir, settings)?;
    let cuts = daemon.list_cuts()?;
    let (output, now_ns) = (settings.output, timestamp::now_ns());
    if output.json {
        return cuts
            .iter()
            .try_for_each(|cut| output.object("cut", &Line::of(cut, now_ns)));
    }
    if cuts.is_empty() {
        return output.say(format!("{directory} has no open cuts."));
    }
    let rows: Vec<[String; 4]> = cuts
        .iter()
        .map(|cut| {
            let state = match (&cut.lost, cut.is_ended) {
                (Some(why), _) => format!("lost: {why}"),
                (None, true) => "ended, still being read".to_owned(),
                (None, false) => cut.path.to_string(),
            };
            [
                cut.name.to_string(),
                age(cut.opened_at_ns, now_ns),
                size(cut.kept_bytes),
                state,
            ]
        })
        .collect();
    table(output, ["Name", "Age", "Kept", "Where"], &rows)
}

fn remove(one: &OneCut, settings: &Settings) -> Result<()> {
    let (daemon, directory) = daemon(one.dir.as_deref(), settings)?;
    let name = ByteString::from(one.name.clone().into_vec());
    daemon.close_cut(&name)?;
    let output = settings.output;
    if output.json {
        return output.object("summary", &Removed { name: &name, directory });
    }
    output.say(format!("Cut {name} of {directory} has ended."))
}
