//! Names of the server that this tree does not hold, durably (docs/format-identities.md): the file system refuses them, or does not tell them from others that
//! are there.
//!
//! They outlive the process, because nothing else tells them from names that a program removed here: [`Engine`](crate::live::engine::Engine) never
//! sends that one of them is gone. One that *collides* is let in when what is in its way is gone, see [`Receive`](super::Receive).
//!
//! The list is durable before the cursor moves over what it came from; until then the same is found out again.

use std::io;
use std::sync::Arc;

use byteback_api::{ByteString, FileId};
use byteback_host::durable::{DurableDir, OpenMode};
use serde::{Deserialize, Serialize};

use crate::live::incoming::plan::Place;

const NAME: &str = "left-out.json";
const NEW_NAME: &str = "left-out.json.new";
const VERSION: u32 = 1;

/// More is none of ours.
const LEN_MAX: u64 = 256 * 1024 * 1024;

/// What is noted of names that are left out cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LeftOutError {
    /// The file system.
    #[error("cannot {what} the list of names that are left out: {source}")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// It cannot be understood.
    #[error(
        "the list of names that are left out cannot be used ({0}); join the folder anew, as a new device in an empty directory, so that none of them is taken for removed"
    )]
    Damaged(String),
}

/// A name that is left out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeftOut {
    /// Its directory at the server.
    pub parent: FileId,
    /// The name.
    pub name: ByteString,
    /// What it stands for there.
    pub node: FileId,
    /// The file system has another name that it does not tell from this one: as soon as that is gone, this one can be.
    pub collides: bool,
}

impl LeftOut {
    pub(super) fn place(&self) -> Place {
        Place {
            parent: self.parent,
            name: self.name.clone(),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct File {
    version: u32,
    names: Vec<LeftOut>,
    /// CRC-32C of the same without this, as JSON without white space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crc32c: Option<String>,
}

/// See the module.
#[derive(Debug)]
pub struct LeftOutNames {
    dir: Arc<dyn DurableDir>,
    noted: Vec<LeftOut>,
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> LeftOutError {
    move |source| LeftOutError::Io { what, source }
}

impl LeftOutNames {
    /// Reads what is noted in `dir`.
    ///
    /// # Errors
    /// It cannot be read or understood.
    pub fn open(dir: Arc<dyn DurableDir>) -> Result<Self, LeftOutError> {
        let file = match dir.open(NAME, OpenMode::Existing) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let noted = Vec::new();
                return Ok(Self { dir, noted });
            }
            opened => opened.map_err(failed("open"))?,
        };
        let len = file.len().map_err(failed("read"))?;
        let len = usize::try_from(len.min(LEN_MAX)).unwrap_or(0);
        let mut bytes = vec![0; len];
        file.read_exact_at(0, &mut bytes).map_err(failed("read"))?;
        let noted = from_bytes(&bytes)?;
        Ok(Self { dir, noted })
    }

    /// All that is noted, in order.
    #[must_use]
    pub fn noted(&self) -> &[LeftOut] {
        &self.noted
    }

    /// Notes these in place of all others, durably, if they are not the same.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn note(&mut self, mut names: Vec<LeftOut>) -> Result<(), LeftOutError> {
        names.sort_unstable();
        if names == self.noted {
            return Ok(());
        }
        let bytes = to_bytes(&names)?;
        let write = || {
            let file = self.dir.open(NEW_NAME, OpenMode::CreateIfMissing)?;
            file.set_len(0)?;
            file.write_all_at(0, &bytes)?;
            file.sync_data()?;
            self.dir.rename(NEW_NAME, NAME)?;
            self.dir.sync()
        };
        write().map_err(failed("write"))?;
        self.noted = names;
        Ok(())
    }
}

fn to_bytes(names: &[LeftOut]) -> Result<Vec<u8>, LeftOutError> {
    let mut file = File {
        version: VERSION,
        names: names.to_vec(),
        crc32c: None,
    };
    let json = |file: &File| serde_json::to_vec(file).map_err(|error| LeftOutError::Damaged(error.to_string()));
    file.crc32c = Some(format!("{:08x}", crc32c::crc32c(&json(&file)?)));
    json(&file)
}

fn from_bytes(bytes: &[u8]) -> Result<Vec<LeftOut>, LeftOutError> {
    #[derive(Deserialize)]
    struct AnyVersion {
        version: u32,
    }
    let unusable = |error: serde_json::Error| LeftOutError::Damaged(error.to_string());
    let AnyVersion { version } = serde_json::from_slice(bytes).map_err(unusable)?;
    if version != VERSION {
        let message = format!("it has version {version}, this program knows {VERSION}");
        return Err(LeftOutError::Damaged(message));
    }
    let file: File = serde_json::from_slice(bytes).map_err(unusable)?;
    match to_bytes(&file.names)? == bytes {
        true => Ok(file.names),
        false => Err(LeftOutError::Damaged("its checksum is wrong".to_owned())),
    }
}

#[cfg(test)]
mod tests;
