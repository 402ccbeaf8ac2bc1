//! Conflict copies that were made here and are not decided yet, durable
//! (docs/formats/identities.md).
//!
//! A conflict is noted before its copy has its name, so none is forgotten by a crash; one whose
//! copy was never made, was removed, or has another name by now counts as decided. The notes are
//! for people: a copy is an ordinary file, and is sent like one.

use byteback_model::{ByteString, NodeId, Place};
use std::io;
use std::sync::Arc;

use byteback_control::LandingTree;
use byteback_host::durable::DurableDir;
use serde::{Deserialize, Serialize};

use byteback_host::durable::{VersionedJson, VersionedJsonError};

const FILE: VersionedJson = VersionedJson {
    name: "conflicts.json",
    version: 1,
    len_max_bytes: 256 * 1024 * 1024,
};

/// The list of conflicts cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ConflictsError {
    /// File system error.
    #[error("cannot {what} the list of conflicts: {source}")]
    Io {
        /// Attempted operation.
        what: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The list cannot be understood.
    #[error(
        "the list of conflicts cannot be used ({0}); remove 'conflicts.json' to start a new one: the copies themselves \
         are ordinary files"
    )]
    Damaged(String),
}

/// A conflict copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflict {
    /// The copy, by its number in the log here.
    pub node: u64,
    /// The former name, which stands for the server's version since.
    pub name: ByteString,
    /// The name of the copy.
    pub copy: ByteString,
    /// When it was found, nanoseconds since 1970.
    pub at_ns: i64,
    /// Copies with the same number were changed in one atomic operation, and are to be decided
    /// together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set: Option<u64>,
}

impl Conflict {
    /// Place of the copy; `None`: it was never made, was removed, or has another name by now.
    ///
    /// # Errors
    /// If the tree cannot be read: the copy may be there.
    pub fn place_in(&self, landing: &dyn LandingTree) -> byteback_control::Result<Option<Place<NodeId>>> {
        let names = landing
            .look(NodeId(self.node))?
            .into_iter()
            .flat_map(|found| found.names);
        Ok({ names }.find(|place| place.name == self.copy))
    }
}

#[derive(Serialize, Deserialize)]
struct Body {
    conflicts: Vec<Conflict>,
}

/// Durable list of conflicts: see the module.
#[derive(Debug)]
pub struct Conflicts {
    dir: Arc<dyn DurableDir>,
    noted: Vec<Conflict>,
}

impl From<VersionedJsonError> for ConflictsError {
    fn from(error: VersionedJsonError) -> Self {
        match error {
            VersionedJsonError::Io(what, source) => Self::Io { what, source },
            VersionedJsonError::Damaged(why) => Self::Damaged(why),
        }
    }
}

impl Conflicts {
    /// Reads the list in `dir`.
    ///
    /// # Errors
    /// The list cannot be read or understood.
    pub fn open(dir: Arc<dyn DurableDir>) -> Result<Self, ConflictsError> {
        let noted = FILE.read::<Body>(&*dir)?.map(|body| body.conflicts);
        let noted = noted.unwrap_or_default();
        Ok(Self { dir, noted })
    }

    /// All noted conflicts, oldest first.
    #[must_use]
    pub fn noted(&self) -> &[Conflict] {
        &self.noted
    }

    /// Notes a conflict, durably; the same copy once.
    ///
    /// # Errors
    /// The list cannot be written.
    pub fn add(&mut self, conflict: Conflict) -> Result<(), ConflictsError> {
        if self
            .noted
            .iter()
            .any(|noted| (noted.node, &noted.copy) == (conflict.node, &conflict.copy))
        {
            return Ok(());
        }
        self.noted.push(conflict);
        self.write()
    }

    /// Keeps only conflicts that are still open, durably.
    ///
    /// # Errors
    /// The list cannot be written.
    pub fn retain(&mut self, is_open: impl FnMut(&Conflict) -> bool) -> Result<(), ConflictsError> {
        let before = self.noted.len();
        self.noted.retain(is_open);
        match self.noted.len() == before {
            true => Ok(()),
            false => self.write(),
        }
    }

    fn write(&self) -> Result<(), ConflictsError> {
        let conflicts = self.noted.clone();
        Ok(FILE.write(&*self.dir, &Body { conflicts })?)
    }
}

#[cfg(test)]
mod tests;
