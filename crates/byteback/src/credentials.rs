//! Device tokens: what the server gave this machine when it joined, stored by the server's address.
//!
//! One file per server in `tokens/` of the user's configuration folder, mode 0600, as TOML:
//!
//! ```toml
//! server = "https://192.0.2.7:7117"
//! device = 1
//! token = "bbd_..."
//! certificate = "SHA-256 of the server's certificate, 64 hexadecimal digits"
//! addresses = ["backup.example.org:7117"]
//! ```
//!
//! The last two keys are present only if the code by which the machine joined had them.
//! `--token-file` names another file of the same form.
//!
//! A joining machine draws its token itself and keeps it in a *draft*, the same file with
//! `.joining` appended to its name, before it asks the server. If the machine dies before the
//! answer arrives, it joins again with the same code and the same token, and the server recognises
//! it (`byteback_store::token`). Order: draft, request, token file, removal of the draft.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use byteback_api::Fingerprint;
use byteback_model::DeviceId;
use serde::{Deserialize, Serialize};

use crate::error::{CommandError, Result};
use crate::exit_code::Exit;
use crate::private_file;

/// The credentials that this machine presents to a server.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Credentials {
    /// Address of the server that issued the token.
    pub(crate) server: String,
    /// This machine's number at that server.
    pub(crate) device: DeviceId,
    /// The secret token.
    pub(crate) token: String,
    /// The certificate that the server must present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) certificate: Option<Fingerprint>,
    /// Other addresses of the server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) addresses: Vec<String>,
}

/// Path of the token file of `server` below the configuration folder.
pub(crate) fn default_path(config_dir: &Path, server: &str) -> PathBuf {
    let name = byteback_api::query::encode(server.as_bytes()).replace('/', "%2F");
    config_dir.join("tokens").join(name)
}

/// Reads a token file; `None` if it does not exist.
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
        .map_err(|_| unusable(path, "it is not a token file (lines with server, device and token)"))?;
    Ok(Some(credentials))
}

fn unusable(path: &Path, why: &str) -> CommandError {
    CommandError::with_exit(
        Exit::WrongCredentials,
        format!("cannot use the token file {}: {why}", path.display()),
    )
    .next("Name another one with --token-file, or remove it and join the server again with a new code.")
}

/// Path of the draft of a token file.
pub(crate) fn draft_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().map_or_else(OsString::new, OsString::from);
    name.push(".joining");
    path.with_file_name(name)
}

/// Writes a token file or a draft of one, durably.
pub(crate) fn write(path: &Path, credentials: &Credentials) -> Result<()> {
    let failed = |error: &dyn std::fmt::Display| CommandError::file("write the token file", path, error);
    let text = toml::to_string(credentials).map_err(|error| failed(&error))?;
    private_file::write(path, text.as_bytes()).map_err(|error| failed(&error))
}
