//! Device tokens: what the server gave this machine when it joined, kept where it is found again by the server's address.
//!
//! One file per server in `tokens/` of the user's configuration folder, mode 0600, as TOML:
//!
//! ```toml
//! server = "http://127.0.0.1:7117"
//! device = 1
//! token = "bbd_..."
//! ```
//!
//! `--token-file` names another file of the same form. A joining machine makes the file *before* it uses up the join
//! token, so that a full disk or a wrong permission does not cost the token.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use byteback_api::DeviceId;
use serde::{Deserialize, Serialize};

use crate::error::{CommandError, Result};
use crate::exit_code::Exit;
use crate::private_file::PrivateFile;

/// What a machine shows to a server.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Credentials {
    /// The server that gave it.
    pub(crate) server: String,
    /// This machine's number there.
    pub(crate) device: DeviceId,
    /// The secret.
    pub(crate) token: String,
}

/// Where the token of `server` is kept below the configuration folder.
pub(crate) fn default_path(config_dir: &Path, server: &str) -> PathBuf {
    let name = byteback_api::query::encode(server.as_bytes()).replace('/', "%2F");
    config_dir.join("tokens").join(name)
}

/// Reads a token file; `None` if there is none.
pub(crate) fn read(path: &Path) -> Result<Option<Credentials>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => {
            return Err(unusable(path, &error.to_string()));
        }
    };
    // The parser's message would quote the line, and with it the secret.
    let credentials = toml::from_str(&text)
        .map_err(|_| unusable(path, "it is no token file (three lines: server, device and token)"))?;
    Ok(Some(credentials))
}

fn unusable(path: &Path, why: &str) -> CommandError {
    CommandError::with_exit(
        Exit::WrongCredentials,
        format!("cannot use the token file {}: {why}", path.display()),
    )
    .next("Name another one with --token-file, or remove it and join the server again with a join token.")
}

/// A token file in the making.
pub(crate) struct NewCredentials {
    path: PathBuf,
    file: PrivateFile,
}

impl NewCredentials {
    /// Makes sure that the token can be kept at `path`.
    pub(crate) fn prepare(path: &Path) -> Result<Self> {
        let file = PrivateFile::create(path).map_err(|error| {
            CommandError::file("write the token file", path, &error)
                .next("The join token was not used. Choose another place with --token-file.")
        })?;
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    /// Keeps it.
    pub(crate) fn save(self, credentials: &Credentials) -> Result<PathBuf> {
        let failed = |error: &dyn std::fmt::Display| {
            CommandError::file("write the token file", &self.path, error)
                .next("The join token is used up. Make a new one on the server with 'byteback invite', and join again.")
        };
        let text = toml::to_string(credentials).map_err(|error| failed(&error))?;
        self.file.finish(text.as_bytes()).map_err(|error| failed(&error))?;
        Ok(self.path)
    }

    /// Gives it up: the machine did not join.
    pub(crate) fn discard(self) {
        self.file.discard();
    }
}
