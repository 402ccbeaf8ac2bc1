//! The binding of a directory: the server and the folder there that it is backed up to. Stored as
//! `binding.json` in the directory's state folder.
//!
//! A flipped bit could name another folder of the server, and the backup would go there. So the
//! file carries a checksum, and a file with a wrong one or without one is refused.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use byteback_api::FolderName;
use byteback_daemon::StateFolder;
use byteback_model::ByteString;
use serde::{Deserialize, Serialize};

use crate::error::{CommandError, Result};
use crate::private_file;
use crate::repository::Repository;

const VERSION: u32 = 1;

const DAMAGED: &str = "its checksum is wrong: the file was damaged, or edited by hand";

/// The field that every version has.
#[derive(Debug, Deserialize)]
struct AnyVersion {
    version: u32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    server: String,
    folder: FolderName,
    /// Present only if the token is not in its usual place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token_file: Option<ByteString>,
    /// Present only if checksums are kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    block_checksums: bool,
    /// Checksum of all other fields; `None` only where it is computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crc32c: Option<String>,
}

impl File {
    /// The checksum of all other fields as they are written: of the JSON without white space, with
    /// the keys in their order.
    fn checksum(&self) -> serde_json::Result<String> {
        let others = Self {
            version: self.version,
            server: self.server.clone(),
            folder: self.folder.clone(),
            token_file: self.token_file.clone(),
            block_checksums: self.block_checksums,
            crc32c: None,
        };
        Ok(format!("{:08x}", crc32c::crc32c(&serde_json::to_vec(&others)?)))
    }
}

/// The binding of a directory; see the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    pub(crate) repository: Repository,
    /// The token file that was named when the directory was bound.
    pub(crate) token_file: Option<PathBuf>,
    /// Whether checksums of the server's content are kept between backups.
    pub(crate) block_checksums: bool,
}

impl Binding {
    /// Reads the binding of a directory; `None` if it has none.
    pub(crate) fn read(folder: &StateFolder) -> Result<Option<Self>> {
        let path = path(folder);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(CommandError::file("read", &path, &error)),
        };
        Self::parse(&bytes, &path).map(Some)
    }

    /// Parses the content of the file `path`.
    fn parse(bytes: &[u8], path: &Path) -> Result<Self> {
        let unusable = |why: &dyn std::fmt::Display| {
            CommandError::file("parse", path, why)
                .next("Remove this file and bind the directory again with 'byteback init'.")
        };
        let any: AnyVersion = serde_json::from_slice(bytes).map_err(|error| unusable(&error))?;
        if any.version != VERSION {
            let version = any.version;
            return Err(unusable(&format!(
                "it has version {version}, but this program knows only versions up to {VERSION}"
            )));
        }
        let file: File = serde_json::from_slice(bytes).map_err(|error| unusable(&error))?;
        let expected = file.checksum().map_err(|error| unusable(&error))?;
        if file.crc32c.as_ref() != Some(&expected) {
            return Err(unusable(&DAMAGED));
        }
        let repository = format!("{}/{}", file.server, file.folder)
            .parse()
            .map_err(|error| unusable(&error))?;
        let token_file = file
            .token_file
            .map(|path| PathBuf::from(OsString::from_vec(path.into_bytes())));
        Ok(Self {
            repository,
            token_file,
            block_checksums: file.block_checksums,
        })
    }

    /// Binds a directory whose state folder exists.
    pub(crate) fn write(&self, folder: &StateFolder) -> Result<()> {
        let mut file = File {
            version: VERSION,
            server: self.repository.server.clone(),
            folder: self.repository.folder.clone(),
            token_file: self
                .token_file
                .as_deref()
                .map(|path| ByteString::from(path.as_os_str().as_bytes())),
            block_checksums: self.block_checksums,
            crc32c: None,
        };
        let path = path(folder);
        let checksum = file.checksum();
        file.crc32c = Some(checksum.map_err(|error| CommandError::file("write", &path, &error))?);
        let mut json = serde_json::to_vec_pretty(&file).map_err(|error| CommandError::file("write", &path, &error))?;
        json.push(b'\n');
        private_file::write(&path, &json).map_err(|error| CommandError::file("write", &path, &error))
    }
}

/// Path of a directory's binding file.
pub(crate) fn path(folder: &StateFolder) -> PathBuf {
    Path::new(folder.path()).join("binding.json")
}

#[cfg(test)]
mod tests;
