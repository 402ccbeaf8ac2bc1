//! `byteback pause` and `byteback resume`: continuous sync of a folder stops until the user resumes
//! it, also across restarts.
//!
//! Both record the wish in the folder's state, then notify the process that keeps the folder in
//! sync, if there is one.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::error::Result;
use crate::settings::Settings;
use crate::throttling;
use crate::timestamp;
use crate::tracked_folder::{self, BoundFolder};

/// Flags of both.
#[derive(Args, Debug)]
pub(crate) struct PauseArguments {
    /// The folder (default: the bound folder you are in)
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

#[derive(Serialize)]
struct Summary {
    directory: String,
    /// RFC 3339; null if the sync is not paused.
    paused_since: Option<String>,
    /// Whether a process keeps the folder in sync; it has been notified.
    running: bool,
}

pub(crate) fn pause(arguments: &PauseArguments, settings: &Settings) -> Result<()> {
    change(arguments, settings, true)
}

pub(crate) fn resume(arguments: &PauseArguments, settings: &Settings) -> Result<()> {
    change(arguments, settings, false)
}

fn change(arguments: &PauseArguments, settings: &Settings, is_pause: bool) -> Result<()> {
    let BoundFolder { folder, .. } = tracked_folder::bound_folder(arguments.dir.as_deref(), settings)?;
    let mut was_paused = false;
    let (wish, running) = throttling::change(&folder, |wish| {
        was_paused = wish.paused_since_ns.is_some();
        wish.paused_since_ns = match is_pause {
            true => wish.paused_since_ns.or_else(|| Some(timestamp::now_ns())),
            false => None,
        };
    })?;
    let output = settings.output;
    let directory = folder.directory().display().to_string();
    if output.json {
        let paused_since = wish.paused_since_ns.map(timestamp::rfc3339);
        let summary = Summary {
            directory,
            paused_since,
            running,
        };
        return output.object("summary", &summary);
    }
    match (wish.paused_since_ns, was_paused) {
        (Some(since_ns), true) => output.say(format!(
            "{directory} has been paused since {}.",
            timestamp::local(since_ns)
        ))?,
        (Some(_), false) => {
            output.say(format!(
                "{directory} is paused: nothing is sent or received from now on."
            ))?;
            output.say("  Programs can use it as before; their changes are kept.")?;
        }
        (None, true) => output.say(format!("{directory} is no longer paused."))?,
        (None, false) => output.say(format!("{directory} was not paused."))?,
    }
    match (is_pause, running) {
        (true, _) => output.say(format!("  To resume: byteback resume {directory}")),
        (false, false) => output.say(format!("  Sync is not running; to start it: byteback sync {directory}")),
        (false, true) => Ok(()),
    }
}
