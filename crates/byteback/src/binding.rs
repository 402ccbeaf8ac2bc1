//! The binding: to which folder of which server a directory is backed up. `binding.json` in its state folder.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use byteback_api::{ByteString, FolderName};
use byteback_daemon::StateFolder;
use serde::{Deserialize, Serialize};

use crate::error::{CommandError, Result};
use crate::private_file;
use crate::repository::Repository;

const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct File {
    version: u32,
    server: String,
    folder: FolderName,
    /// Only where the token is not in its usual place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token_file: Option<ByteString>,
    /// Only where they are kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    block_checksums: bool,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    pub(crate) repository: Repository,
    /// The token file that was named when the directory was bound.
    pub(crate) token_file: Option<PathBuf>,
    /// Whether checksums of what the server has are kept between backups.
    pub(crate) block_checksums: bool,
}

impl Binding {
    /// The binding of a directory, if it has one.
    pub(crate) fn read(folder: &StateFolder) -> Result<Option<Self>> {
        let path = path(folder);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(CommandError::file("read", &path, &error)),
        };
        let unusable = |why: &dyn std::fmt::Display| {
            CommandError::file("understand", &path, why)
                .next("Remove this file and bind the directory anew with 'byteback init'.")
        };
        let file: File = serde_json::from_slice(&bytes).map_err(|error| unusable(&error))?;
        if file.version != VERSION {
            return Err(unusable(&format!(
                "it has version {}, this program knows {VERSION}",
                file.version
            )));
        }
        let repository = format!("{}/{}", file.server, file.folder)
            .parse()
            .map_err(|error| unusable(&error))?;
        let token_file = file
            .token_file
            .map(|path| PathBuf::from(OsString::from_vec(path.into_bytes())));
        Ok(Some(Self {
            repository,
            token_file,
            block_checksums: file.block_checksums,
        }))
    }

    /// Binds a directory whose state folder exists.
    pub(crate) fn write(&self, folder: &StateFolder) -> Result<()> {
        let file = File {
            version: VERSION,
            server: self.repository.server.clone(),
            folder: self.repository.folder.clone(),
            token_file: self
                .token_file
                .as_deref()
                .map(|path| ByteString::from(path.as_os_str().as_bytes())),
            block_checksums: self.block_checksums,
        };
        let path = path(folder);
        let mut json = serde_json::to_vec_pretty(&file).map_err(|error| CommandError::file("write", &path, &error))?;
        json.push(b'\n');
        private_file::write(&path, &json).map_err(|error| CommandError::file("write", &path, &error))
    }
}

/// Where the binding of a directory is.
pub(crate) fn path(folder: &StateFolder) -> PathBuf {
    Path::new(folder.path()).join("binding.json")
}
