//! Where a folder that is kept in sync stands with its server, durably (docs/format-identities.md):
//! which server, folder, device, tree and root these are, and up to which sequence number what
//! others did is here.
//!
//! What it says may be late but never early: the cursor is written after all that it stands for is
//! durable. So who goes on from it hears once more of some batches.
//!
//! What belongs to another server, folder or device is refused: a cursor means nothing there, and
//! changes sent on top of it would undo what others did.

use std::io;
use std::sync::Arc;

use byteback_api::FolderName;
use byteback_host::durable::DurableDir;
use byteback_model::{DeviceId, FileId, Seq};
use byteback_oplog::TreeId;
use serde::{Deserialize, Serialize};

use crate::json_file::{JsonFile, JsonFileError};

const FILE: JsonFile = JsonFile {
    name: "standing.json",
    new_name: "standing.json.new",
    version: 1,
    len_max_bytes: 64 * 1024,
};

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
    #[error("the folder was kept in sync with {what} {known}, not {given}; nothing is sent")]
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
    /// The number of a tree by which nodes and groups are named at the server: the tree's own, or
    /// one that was drawn when sync started over.
    pub names: TreeId,
    /// The root at the server.
    pub root: FileId,
    /// Up to here, what others did is in the folder.
    pub cursor: Seq,
    /// The newest batch of this device that is known to be applied.
    pub newest: Option<OwnBatch>,
    /// What others did up to here is being brought into the folder; nothing is sent until the
    /// cursor is there.
    pub landing: Option<Seq>,
    /// Sync started over: what this device sent counts as others' changes until the landing that
    /// follows has ended.
    pub takes_own: bool,
}

#[derive(Clone, Serialize, Deserialize)]
struct Body {
    #[serde(flatten)]
    counterpart: Counterpart,
    tree: u64,
    /// Only where it is another than the tree's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    names: Option<u64>,
    root: FileId,
    cursor: Seq,
    newest: Option<OwnBatch>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    landing: Option<Seq>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    takes_own: bool,
}

impl From<JsonFileError> for StandingError {
    fn from(error: JsonFileError) -> Self {
        match error {
            JsonFileError::Io(what, source) => Self::Io { what, source },
            JsonFileError::Damaged(why) => Self::Damaged(why),
        }
    }
}

impl Standing {
    /// What was noted in `dir`; `None` if nothing was.
    ///
    /// # Errors
    /// It cannot be read or understood.
    pub fn read(dir: &dyn DurableDir) -> Result<Option<Self>, StandingError> {
        let body: Option<Body> = FILE.read(dir)?;
        Ok(body.map(|body| Self {
            counterpart: body.counterpart,
            tree: TreeId(body.tree),
            names: TreeId(body.names.unwrap_or(body.tree)),
            root: body.root,
            cursor: body.cursor,
            newest: body.newest,
            landing: body.landing,
            takes_own: body.takes_own,
        }))
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

    /// The server that a folder is kept in sync with has another address. Answers whether that was
    /// noted: not if nothing is, or another server.
    ///
    /// # Errors
    /// It cannot be read or written; what was noted before is still there.
    pub fn follow(dir: &Arc<dyn DurableDir>, old: &str, new: &str) -> Result<bool, StandingError> {
        let Some(mut standing) = Self::read(&**dir)?.filter(|standing| standing.counterpart.server == old) else {
            return Ok(false);
        };
        new.clone_into(&mut standing.counterpart.server);
        standing.write(dir).map(|()| true)
    }

    /// Notes it durably.
    ///
    /// # Errors
    /// It cannot be written; what was noted before is still there.
    pub fn write(&self, dir: &Arc<dyn DurableDir>) -> Result<(), StandingError> {
        Ok(FILE.write(&**dir, &self.body())?)
    }

    fn body(&self) -> Body {
        Body {
            counterpart: self.counterpart.clone(),
            tree: self.tree.0,
            names: (self.names != self.tree).then_some(self.names.0),
            root: self.root,
            cursor: self.cursor,
            newest: self.newest,
            landing: self.landing,
            takes_own: self.takes_own,
        }
    }
}

#[cfg(test)]
mod tests;
