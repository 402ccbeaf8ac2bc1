//! Where a folder that is kept in sync stands with its server, durably (docs/format-identities.md): which server, folder, device, tree and root
//! these are, and up to which sequence number what others did is here.
//!
//! It is written as a whole, beside the old one and renamed, so that a crash leaves one or the other. What it says may be late but never early: the cursor
//! is written after all that it stands for is durable. So who goes on from it hears once more of some batches.
//!
//! What belongs to another server, folder or device is refused: a cursor means nothing there, and changes sent on top of it would undo what
//! others did.

use std::io;
use std::sync::Arc;

use byteback_api::{DeviceId, FileId, FolderName, Seq};
use byteback_host::durable::{DurableDir, OpenMode};
use byteback_oplog::TreeId;
use serde::{Deserialize, Serialize};

const NAME: &str = "standing.json";
const NEW_NAME: &str = "standing.json.new";
const VERSION: u32 = 1;

/// More is none of ours.
const LEN_MAX: u64 = 64 * 1024;

/// Where the folder stands cannot be read or written, or it is not meant.
#[derive(Debug, thiserror::Error)]
pub enum StandingError {
    /// The file system.
    #[error("cannot {what} where the folder stands with its server: {source}")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// It cannot be understood.
    #[error("what was noted of where the folder stands with its server cannot be used ({0})")]
    Damaged(String),
    /// The folder was kept in sync with something else.
    #[error(
        "the folder was kept in sync with {what} {known}, not {given}: bind it to that again, or keep it in sync as a folder of its own"
    )]
    Other {
        /// What differs.
        what: &'static str,
        /// What was noted.
        known: String,
        /// What is asked for now.
        given: String,
    },
}

/// A batch of this device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnBatch {
    /// Its number.
    pub counter: u64,
    /// The folder's sequence number after it.
    pub seq: Seq,
}

/// With what a folder is kept in sync.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counterpart {
    /// The server's address.
    pub server: String,
    /// The folder there.
    pub folder: FolderName,
    /// This device.
    pub device: DeviceId,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// With what.
    pub counterpart: Counterpart,
    /// The tree, as its log numbers it.
    pub tree: TreeId,
    /// The root at the server.
    pub root: FileId,
    /// Up to here, what others did is in the folder.
    pub cursor: Seq,
    /// The newest batch of this device that is known to be applied.
    pub newest: Option<OwnBatch>,
    /// What others did up to here is being brought into the folder; nothing is sent until the cursor is there.
    pub landing: Option<Seq>,
}

#[derive(Serialize, Deserialize)]
struct File {
    version: u32,
    #[serde(flatten)]
    standing: Body,
    /// CRC-32C of the same without this, as JSON without white space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crc32c: Option<String>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Body {
    #[serde(flatten)]
    counterpart: Counterpart,
    tree: u64,
    root: FileId,
    cursor: Seq,
    newest: Option<OwnBatch>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    landing: Option<Seq>,
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> StandingError {
    move |source| StandingError::Io { what, source }
}

impl Standing {
    /// What was noted in `dir`; `None` if nothing was.
    ///
    /// # Errors
    /// It cannot be read or understood.
    pub fn read(dir: &dyn DurableDir) -> Result<Option<Self>, StandingError> {
        let file = match dir.open(NAME, OpenMode::Existing) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed("open"))?,
        };
        let len = file.len().map_err(failed("read"))?;
        let len = usize::try_from(len.min(LEN_MAX)).unwrap_or(0);
        let mut bytes = vec![0; len];
        file.read_exact_at(0, &mut bytes).map_err(failed("read"))?;
        Self::from_bytes(&bytes).map(Some)
    }

    /// As [`read`](Self::read), of what is to be kept in sync with `counterpart`.
    ///
    /// # Errors
    /// As [`read`](Self::read), and if it is another.
    pub fn read_of(dir: &dyn DurableDir, counterpart: &Counterpart) -> Result<Option<Self>, StandingError> {
        let Some(standing) = Self::read(dir)? else {
            return Ok(None);
        };
        let known = &standing.counterpart;
        let pairs = [
            ("server", known.server.clone(), counterpart.server.clone()),
            ("folder", known.folder.to_string(), counterpart.folder.to_string()),
            ("device", known.device.to_string(), counterpart.device.to_string()),
        ];
        match pairs.into_iter().find(|(_, known, given)| known != given) {
            Some((what, known, given)) => Err(StandingError::Other { what, known, given }),
            None => Ok(Some(standing)),
        }
    }

    /// Notes it durably.
    ///
    /// # Errors
    /// It cannot be written; what was noted before is still there.
    pub fn write(&self, dir: &Arc<dyn DurableDir>) -> Result<(), StandingError> {
        let bytes = self.to_bytes()?;
        let write = || {
            let file = dir.open(NEW_NAME, OpenMode::CreateIfMissing)?;
            file.set_len(0)?;
            file.write_all_at(0, &bytes)?;
            file.sync_data()?;
            dir.rename(NEW_NAME, NAME)?;
            dir.sync()
        };
        write().map_err(failed("write"))
    }

    fn body(&self) -> Body {
        Body {
            counterpart: self.counterpart.clone(),
            tree: self.tree.0,
            root: self.root,
            cursor: self.cursor,
            newest: self.newest,
            landing: self.landing,
        }
    }

    fn to_bytes(&self) -> Result<Vec<u8>, StandingError> {
        let mut file = File {
            version: VERSION,
            standing: self.body(),
            crc32c: None,
        };
        let json = |file: &File| serde_json::to_vec(file).map_err(|error| StandingError::Damaged(error.to_string()));
        file.crc32c = Some(format!("{:08x}", crc32c::crc32c(&json(&file)?)));
        json(&file)
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, StandingError> {
        #[derive(Deserialize)]
        struct AnyVersion {
            version: u32,
        }
        let unusable = |error: serde_json::Error| StandingError::Damaged(error.to_string());
        let AnyVersion { version } = serde_json::from_slice(bytes).map_err(unusable)?;
        if version != VERSION {
            let message = format!("it has version {version}, this program knows {VERSION}");
            return Err(StandingError::Damaged(message));
        }
        let file: File = serde_json::from_slice(bytes).map_err(unusable)?;
        let Body {
            counterpart,
            tree,
            root,
            cursor,
            newest,
            landing,
        } = file.standing;
        let standing = Self {
            counterpart,
            tree: TreeId(tree),
            root,
            cursor,
            newest,
            landing,
        };
        // The checksum is of what is understood: a flipped bit that changes nothing harms nobody.
        match standing.to_bytes()? == bytes {
            true => Ok(standing),
            false => Err(StandingError::Damaged("its checksum is wrong".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests;
