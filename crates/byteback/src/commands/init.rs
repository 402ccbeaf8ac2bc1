//! `byteback init`: joins the server if necessary, makes the folder there, and binds a directory to
//! it.
//!
//! Order: the machine joins (`joining`); the binding is written last, so that a directory with a
//! binding can be backed up. Each step may be repeated.

use std::path::{Path, PathBuf};

use byteback_backup::{SnapshotSpec, resolve_snapshot};
use byteback_client::ServerErrorKind;
use byteback_daemon::StateFolder;
use clap::Args;
use serde::Serialize;

use crate::binding::{self, Binding};
use crate::credentials::{self, Credentials};
use crate::error::{CommandError, Result};
use crate::exit_code::Exit;
use crate::joining::{self, Voucher};
use crate::repository::Repository;
use crate::settings::Settings;
use crate::tracked_folder;

/// Flags of `init`.
#[derive(Args, Debug)]
pub(crate) struct InitArguments {
    /// Directory to back up
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    join: JoinArguments,
    /// Keep a checksum of every 4 KiB block that the server has (0.4 % of the folder's size, on
    /// this machine): identical rewrites are not sent, and after a crash only real differences are.
    /// '=false' turns it off
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    block_checksums: Option<bool>,
}

/// How a machine joins a server that it has no token of yet.
#[derive(Args, Debug)]
pub(super) struct JoinArguments {
    /// Read the server's code (or join token) from this file; needed once per machine
    #[arg(long, value_name = "FILE", conflicts_with = "join_token")]
    join_token_file: Option<PathBuf>,
    /// Use this code (or join token); - reads it from standard input
    #[arg(long, value_name = "TOKEN", allow_hyphen_values = true)]
    join_token: Option<String>,
}

impl JoinArguments {
    /// Whether a token was given.
    pub(super) fn is_given(&self) -> bool {
        self.join_token_file.is_some() || self.join_token.is_some()
    }
}

#[derive(Serialize)]
struct Summary {
    directory: String,
    repository: String,
    device: u64,
    joined: bool,
    token_file: String,
}

pub(crate) fn run(arguments: &InitArguments, settings: &Settings) -> Result<()> {
    let folder = tracked_folder::state_folder(&arguments.dir, settings)?;
    let directory = folder.directory().display();
    let old = Binding::read(&folder)?;
    let repository = wanted_repository(settings, old.as_ref())?;
    if let Some(old) = old.as_ref().filter(|old| old.repository != repository) {
        let message = format!("{directory} is already bound to {}", old.repository);
        return Err(CommandError::new(message).next(format!(
            "To bind it to {repository} instead, remove {} first.",
            binding::path(&folder).display()
        )));
    }
    let token_path = settings.token_path(&repository.server, old.as_ref())?;
    let (credentials, joined) = match known_credentials(&arguments.join, settings, &repository, &token_path)? {
        Some(known) => (known, false),
        None => (join_server(&arguments.join, settings, &repository, &token_path)?, true),
    };
    let server = settings.client(&credentials)?;
    server.create_folder(&repository.folder)?;
    bind(&folder, &repository, settings, arguments.block_checksums, old)?;
    if let Ok(last) = resolve_snapshot(&server, &repository.folder, SnapshotSpec::Latest(0))
        && last.label.path.as_bytes() != folder.directory().as_os_str().as_encoded_bytes()
    {
        settings.output.warn(&format!(
            "{repository} already holds backups of {} on {}; if two folders take turns there, each backup compares \
             everything. Unless this folder replaces that one, choose another name",
            last.label.path, last.label.host
        ));
    }

    let output = settings.output;
    if output.json {
        let summary = Summary {
            directory: directory.to_string(),
            repository: repository.to_string(),
            device: credentials.device,
            joined,
            token_file: token_path.display().to_string(),
        };
        return output.object("summary", &summary);
    }
    if joined {
        output.say(format!(
            "Joined {} as device {}.",
            repository.server, credentials.device
        ))?;
        if output.verbosity > 0 {
            output.say(format!("  the token is stored in {}", token_path.display()))?;
        }
    }
    output.say(format!("{directory} is now bound to {repository}."))?;
    output.say(format!(
        "Next: byteback mount {directory}    (tracks every change from then on)"
    ))?;
    output.say(format!("      byteback backup {directory}"))
}

fn wanted_repository(settings: &Settings, old: Option<&Binding>) -> Result<Repository> {
    let wanted = settings.repository().or_else(|| old.map(|old| &old.repository));
    wanted.cloned().ok_or_else(|| {
        CommandError::with_exit(Exit::NoRepository, "no server folder is given for the directory")
            .next("Add -r https://HOST:PORT/FOLDER, for example -r https://192.0.2.7:7117/mail")
    })
}

/// The credentials for a server that this machine joined before; with a join token, only if the
/// server still accepts them.
pub(super) fn known_credentials(
    arguments: &JoinArguments,
    settings: &Settings,
    repository: &Repository,
    token_path: &Path,
) -> Result<Option<Credentials>> {
    let known = credentials::read(token_path)?.filter(|known| known.server == repository.server);
    let known = match known {
        Some(known) if arguments.is_given() => known,
        known => return Ok(known),
    };
    match settings.client(&known)?.folder(&repository.folder) {
        // The server was restored from an older copy, or is another one at the same address, or the
        // token grants more.
        Err(error)
            if matches!(
                error.kind,
                ServerErrorKind::WrongToken | ServerErrorKind::Forbidden | ServerErrorKind::Tls
            ) =>
        {
            Ok(None)
        }
        _ => Ok(Some(known)),
    }
}

/// Joins a server and keeps the token in `token_path`.
pub(super) fn join_server(
    arguments: &JoinArguments,
    settings: &Settings,
    repository: &Repository,
    token_path: &Path,
) -> Result<Credentials> {
    let Some(voucher) = voucher(arguments)? else {
        let message = format!("this machine has not joined {} yet", repository.server);
        return Err(CommandError::with_exit(Exit::WrongCredentials, message).next(
            "Get a code on the server ('byteback invite FOLDER --data DIR', or its file join-token), and use it here: \
             byteback join CODE DIR",
        ));
    };
    Ok(joining::join_server(&voucher, &repository.server, settings, token_path)?.credentials)
}

fn voucher(arguments: &JoinArguments) -> Result<Option<Voucher>> {
    let text = match (&arguments.join_token_file, &arguments.join_token) {
        (Some(path), _) => joining::text_in(path)?,
        (None, Some(token)) => joining::given_text(token)?,
        (None, None) => return Ok(None),
    };
    Voucher::parse(&text).map(Some)
}

pub(super) fn bind(
    folder: &StateFolder,
    repository: &Repository,
    settings: &Settings,
    block_checksums: Option<bool>,
    old: Option<Binding>,
) -> Result<()> {
    let kept_before = old.as_ref().is_some_and(|old| old.block_checksums);
    folder.create()?;
    let token_file = match settings.token_file() {
        Some(path) => Some(std::path::absolute(path).unwrap_or_else(|_| path.to_owned())),
        None => old.and_then(|old| old.token_file),
    };
    let binding = Binding {
        repository: repository.clone(),
        token_file,
        block_checksums: block_checksums.unwrap_or(kept_before),
    };
    binding.write(folder)
}
