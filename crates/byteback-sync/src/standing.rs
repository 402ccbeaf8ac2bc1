//! Where a synced folder stands with its server, durably (docs/formats/identities.md): which
//! server, folder, device, tree and root these are, and up to which sequence number others' changes
//! are here.
//!
//! The record may be late but never early: the cursor is written after all that it stands for is
//! durable. So an engine that continues from it hears once more of some batches.
//!
//! A record of another server, folder or device is refused: its cursor means nothing there, and
//! changes sent on top of it would undo what others did.

use std::io;
use std::sync::Arc;

use byteback_api::FolderName;
use byteback_host::durable::DurableDir;
use byteback_model::{DeviceId, FileId, OwnBatch, Seq};
use byteback_oplog::TreeId;
use serde::{Deserialize, Serialize};

use byteback_host::durable::{VersionedJson, VersionedJsonError};

const FILE: VersionedJson = VersionedJson {
    name: "standing.json",
    version: 1,
    len_max_bytes: 64 * 1024,
};

/// The standing cannot be read or written, or is of another counterpart.
#[derive(Debug, thiserror::Error)]
pub enum StandingError {
    /// File system error.
    #[error("cannot {what} the record of the folder's sync state: {source}")]
    Io {
        /// Attempted operation.
        what: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The stored record cannot be understood.
    #[error("the record of the folder's sync state cannot be used ({0})")]
    Damaged(String),
    /// The folder was kept in sync with something else.
    #[error("the folder was kept in sync with {what} {known}, not {given}; nothing is sent")]
    Other {
        /// The part that differs: server, folder or device.
        what: &'static str,
        /// Noted value.
        known: String,
        /// Value that the caller passed.
        given: String,
    },
}

/// The server, folder and device with which a directory is kept in sync.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counterpart {
    /// The server's address.
    pub server: String,
    /// The folder at the server.
    pub folder: FolderName,
    /// This device.
    pub device: DeviceId,
}

/// A folder's standing: see the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The server, folder and device.
    pub counterpart: Counterpart,
    /// The tree, as its log numbers it.
    pub tree: TreeId,
    /// The tree number that names nodes and groups at the server: the tree's own, or one that was
    /// drawn when sync started over.
    pub names: TreeId,
    /// The root's file ID at the server.
    pub root: FileId,
    /// Others' changes up to here are in the folder.
    pub cursor: Seq,
    /// The newest batch of this device that is known to be applied.
    pub newest: Option<OwnBatch>,
    /// Others' changes up to here are being brought into the folder; nothing is sent until the
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
    /// Present only if it differs from the tree's own number.
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

impl From<VersionedJsonError> for StandingError {
    fn from(error: VersionedJsonError) -> Self {
        match error {
            VersionedJsonError::Io(what, source) => Self::Io { what, source },
            VersionedJsonError::Damaged(why) => Self::Damaged(why),
        }
    }
}

impl Standing {
    /// The standing noted in `dir`; `None` if nothing was noted.
    ///
    /// # Errors
    /// The record cannot be read or understood.
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

    /// As [`read`](Self::read), but only for `counterpart`.
    ///
    /// # Errors
    /// As [`read`](Self::read), and if the standing is of another counterpart.
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

    /// Notes that the folder's server has another address. Returns whether it did: not if there is
    /// no standing, or if it is of another server.
    ///
    /// # Errors
    /// The standing cannot be read or written; the old one is still there.
    pub fn follow(dir: &Arc<dyn DurableDir>, old: &str, new: &str) -> Result<bool, StandingError> {
        let Some(mut standing) = Self::read(&**dir)?.filter(|standing| standing.counterpart.server == old) else {
            return Ok(false);
        };
        new.clone_into(&mut standing.counterpart.server);
        standing.write(dir).map(|()| true)
    }

    /// Notes the standing durably.
    ///
    /// # Errors
    /// It cannot be written; the old one is still there.
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
