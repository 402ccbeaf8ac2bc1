//! `byteback join`: with one code, this machine becomes a device of a server, and a directory is
//! bound to a folder there.
//!
//! Order: the machine joins (`joining`); the folder is made if the code allows it; the binding is
//! written last. Each step may be repeated, also by running the command again with the same code.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use byteback_api::messages::FolderInfo;
use byteback_api::{FolderName, JoinCode};
use byteback_backup::{SnapshotSpec, resolve_snapshot};
use byteback_client::ServerClient;
use byteback_control::TreeService;
use byteback_daemon::StateFolder;
use byteback_host::durable::RealDir;
use byteback_model::OwnBatch;
use byteback_sync::standing::Standing;
use clap::Args;
use serde::Serialize;

use super::init::bind;
use crate::binding::{self, Binding};
use crate::credentials;
use crate::error::{CommandError, Result};
use crate::joining::{self, Voucher};
use crate::moved_server;
use crate::repository::Repository;
use crate::settings::Settings;
use crate::throttling;
use crate::tracked_folder;
use crate::wording::counted;

/// Flags of `join`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  byteback join bbc_04... /data/mail
  ssh SERVER byteback invite mail --data /srv/backup | byteback join - /data/mail

A code works once. If the connection breaks, run the same command again with the same code. While the command runs, \
other users of this machine can see its arguments; use - to keep the code out of them.")]
pub(crate) struct JoinArguments {
    /// Code that 'byteback invite' printed; - reads it from standard input, a path with a slash
    /// from that file
    #[arg(value_name = "CODE")]
    code: String,
    /// Directory to back up, or to restore into; created if it is missing
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Use this folder on the server, if the code is for all (default: the name of the directory)
    #[arg(long, value_name = "NAME")]
    folder: Option<FolderName>,
}

#[derive(Serialize)]
struct Summary {
    directory: String,
    repository: String,
    device: u64,
    name: String,
    read_only: bool,
    snapshots: u64,
    token_file: String,
}

pub(crate) fn run(arguments: &JoinArguments, settings: &Settings) -> Result<()> {
    let text = match arguments.code.contains('/') {
        true => joining::text_in(Path::new(&arguments.code))?,
        false => joining::given_text(&arguments.code)?,
    };
    let code = joining::code(text.trim())?;
    let repository = Repository {
        server: code.url(),
        folder: wanted_folder(arguments, &code)?,
    };
    match fs::create_dir(&arguments.dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(CommandError::file("create the directory", &arguments.dir, &error));
        }
        _ => {}
    }
    let folder = tracked_folder::state_folder(&arguments.dir, settings)?;
    let directory = folder.directory().display();
    let mut old = Binding::read(&folder)?;
    if let Some(moved) = old.as_ref().filter(|old| is_moved(old, &code, &repository, settings)) {
        let from = moved.repository.server.clone();
        moved_server::follow(&from, &repository.server, true, settings)
            .map_err(|error| error.next("The code was not used."))?;
        old = Binding::read(&folder)?;
    }
    if let Some(old) = old.as_ref().filter(|old| old.repository != repository) {
        let message = format!("{directory} is already bound to {}", old.repository);
        return Err(CommandError::new(message).next(format!(
            "The code was not used. Name another directory, or remove {} first.",
            binding::path(&folder).display()
        )));
    }
    let token_path = settings.token_path(&repository.server, old.as_ref())?;
    let read_only = code.read_only;
    let voucher = Voucher::Code(Box::new(code));
    let joined = joining::join_server(&voucher, &repository.server, settings, &token_path)?;
    let server = settings.client(&joined.credentials)?;
    let there = match read_only {
        true => server.folder(&repository.folder)?,
        false => server.create_folder(&repository.folder)?,
    };
    bind(&folder, &repository, settings, None, old)?;

    let output = settings.output;
    let credentials = &joined.credentials;
    if output.json {
        let summary = Summary {
            directory: directory.to_string(),
            repository: repository.to_string(),
            device: credentials.device,
            name: joined.answer.name,
            read_only,
            snapshots: there.snapshots,
            token_file: token_path.display().to_string(),
        };
        return output.object("summary", &summary);
    }
    output.say(format!(
        "Joined {} as device {} ({}).",
        repository.server, credentials.device, joined.answer.name
    ))?;
    if output.verbosity > 0 {
        output.say(format!("  the token is stored in {}", token_path.display()))?;
    }
    output.say(format!("{directory} is now bound to {repository}."))?;
    if starts_over(&folder, (&repository, credentials.device), (&server, &there)) {
        if is_in_sync(&folder)? {
            return output
                .say("The running sync takes the new token within a minute, and compares the folder with the server.");
        }
        return output.say(format!(
            "Next: byteback sync --start-over {directory}    (compares it with the server; nothing is removed)"
        ));
    }
    if there.snapshots > 0 {
        if let Ok(last) = resolve_snapshot(&server, &repository.folder, SnapshotSpec::Latest(0)) {
            output.say(format!(
                "It holds {}, the last of {} on {}.",
                counted(there.snapshots, "snapshot", "snapshots"),
                last.label.path,
                last.label.host
            ))?;
        }
        return output.say(format!("Next: byteback pull {directory}    (fetches the last one)"));
    }
    output.say(format!(
        "Next: byteback sync {directory}    (sends each change within seconds)"
    ))?;
    output.say(format!(
        "  or: byteback mount {directory}   (tracks every change; to save them:)"
    ))?;
    output.say(format!("      byteback backup {directory}"))
}

/// Whether the directory is bound to the code's folder at a server with the same certificate but
/// another address.
fn is_moved(old: &Binding, code: &JoinCode, repository: &Repository, settings: &Settings) -> bool {
    let is_elsewhere = old.repository.server != repository.server && old.repository.folder == repository.folder;
    let known = settings
        .token_path(&old.repository.server, Some(old))
        .and_then(|path| credentials::read(&path));
    let certificate = known.ok().flatten().and_then(|known| known.certificate);
    is_elsewhere && certificate.is_some() && certificate == code.fingerprint
}

fn is_in_sync(folder: &StateFolder) -> Result<bool> {
    match tracked_folder::daemon(folder)? {
        Some(daemon) => Ok(daemon.status()?.sync.is_some()),
        None => Ok(false),
    }
}

/// Whether the record of the directory's sync no longer fits: it names another device of this
/// machine, another server, or a server that lost data and numbers its devices from the beginning.
fn starts_over(
    folder: &StateFolder,
    (repository, device): (&Repository, u64),
    (server, there): (&ServerClient, &FolderInfo),
) -> bool {
    let path = folder.path().join(throttling::DIR_NAME);
    let noted = RealDir::open(&path)
        .ok()
        .and_then(|dir| Standing::read(&dir).ok().flatten());
    let Some(noted) = noted else { return false };
    let known = noted.counterpart;
    if (known.server, known.folder, known.device) != (repository.server.clone(), repository.folder.clone(), device) {
        return true;
    }
    let is_lost = |own: OwnBatch| {
        let status = server.batch_status(&repository.folder, own.counter);
        status.is_ok_and(|status| status.applied.is_none_or(|applied| applied.seq != own.seq))
    };
    let is_other_root = there.root.is_some_and(|root| root != noted.root);
    is_other_root || there.seq < noted.cursor || noted.newest.is_some_and(is_lost)
}

/// The folder of the server that is meant.
fn wanted_folder(arguments: &JoinArguments, code: &JoinCode) -> Result<FolderName> {
    match (&code.folder, &arguments.folder) {
        (Some(given), Some(wanted)) if given != wanted => Err(CommandError::new(format!(
            "the code is for the folder {given}, not for {wanted}"
        ))
        .next("Leave out --folder, or ask for a code for the other folder. The code was not used.")),
        (Some(folder), _) | (None, Some(folder)) => Ok(folder.clone()),
        (None, None) => {
            let path = std::path::absolute(&arguments.dir).unwrap_or_else(|_| arguments.dir.clone());
            let name = path
                .file_name()
                .and_then(OsStr::to_str)
                .and_then(|name| name.parse().ok());
            name.ok_or_else(|| {
                CommandError::new(format!("cannot name a folder on the server after {}", path.display()))
                    .next("Choose its name on the server: --folder NAME")
            })
        }
    }
}
