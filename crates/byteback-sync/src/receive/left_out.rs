//! Names of the server that this tree does not hold, durable (docs/formats/identities.md): the file
//! system refuses them, or does not tell them from others that are there.
//!
//! They outlive the process, because nothing else distinguishes them from names that a program
//! removed here: [`Engine`](crate::engine::Engine) never reports one of them as removed. A name
//! that *collides* is let in when the name in its way is gone, see [`Receive`](super::Receive).
//!
//! Names that are ignored here are in the list, too; they are let in when no rule says so any more.
//! A node here under such a name is another node, whatever it was before.
//!
//! Changes that are blocked here ([`BlockedChange`]) are in the same file: nothing else says that
//! the state here is not that of the cursor.
//!
//! The list is durable before the cursor moves over the changes it came from; until then the same
//! is found out again.

use byteback_model::{ByteString, FileId, Place, Seq};
use std::io;
use std::sync::Arc;

use byteback_host::durable::DurableDir;
use serde::{Deserialize, Serialize};

use byteback_host::durable::{VersionedJson, VersionedJsonError};

const FILE: VersionedJson = VersionedJson {
    name: "left-out.json",
    version: 1,
    len_max_bytes: 256 * 1024 * 1024,
};

/// The list of left-out names cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LeftOutError {
    /// File system error.
    #[error("cannot {what} the list of left-out names: {source}")]
    Io {
        /// Attempted operation.
        what: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The list cannot be understood.
    #[error(
        "the list of left-out names cannot be used ({0}); join the folder again as a new device in an empty directory, \
         so that none of them is taken for removed"
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
    /// The node that it stands for there.
    pub node: FileId,
    /// The file system has another name that it does not tell from this one: as soon as that is
    /// gone, this one can be let in.
    pub collides: bool,
    /// Whether it is ignored here, or the node under its name here is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_ignored: bool,
    /// Whether it is a directory, if it is ignored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_directory: bool,
    /// Whether it was ignored, and is not any more: it is let in as soon as something can land.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_due: bool,
}

impl LeftOut {
    pub(super) fn place(&self) -> Place<FileId> {
        Place {
            parent: self.parent,
            name: self.name.clone(),
        }
    }
}

/// A change of others that is blocked here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum BlockedChange {
    /// A name.
    Name {
        /// Its directory at the server.
        parent: FileId,
        /// The name.
        name: ByteString,
        /// The node that it stands for here.
        before: Option<FileId>,
        /// The node that it stands for there.
        after: Option<FileId>,
        /// Error of the operating system.
        why: String,
    },
    /// A file's content.
    Content {
        /// The file.
        node: FileId,
        /// The file holds its content of this moment at the server.
        since: Seq,
        /// Error of the operating system.
        why: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Body {
    names: Vec<LeftOut>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    blocked: Vec<BlockedChange>,
}

/// Durable list of left-out names and blocked changes: see the module.
#[derive(Debug)]
pub struct LeftOutNames {
    dir: Arc<dyn DurableDir>,
    noted: Vec<LeftOut>,
    blocked: Vec<BlockedChange>,
}

impl From<VersionedJsonError> for LeftOutError {
    fn from(error: VersionedJsonError) -> Self {
        match error {
            VersionedJsonError::Io(what, source) => Self::Io { what, source },
            VersionedJsonError::Damaged(why) => Self::Damaged(why),
        }
    }
}

impl LeftOutNames {
    /// Reads the list in `dir`.
    ///
    /// # Errors
    /// The list cannot be read or understood.
    pub fn open(dir: Arc<dyn DurableDir>) -> Result<Self, LeftOutError> {
        let noted = FILE.read::<Body>(&*dir)?.map(|body| (body.names, body.blocked));
        let (noted, blocked) = noted.unwrap_or_default();
        Ok(Self { dir, noted, blocked })
    }

    /// All left-out names, in order.
    #[must_use]
    pub fn noted(&self) -> &[LeftOut] {
        &self.noted
    }

    /// Blocked changes, in order.
    #[must_use]
    pub fn blocked(&self) -> &[BlockedChange] {
        &self.blocked
    }

    /// Notes these names in place of all others, durably, if they differ.
    ///
    /// # Errors
    /// The list cannot be written.
    pub fn note(&mut self, names: Vec<LeftOut>) -> Result<(), LeftOutError> {
        let blocked = self.blocked.clone();
        self.note_all(names, blocked)
    }

    /// As [`LeftOutNames::note`], and replaces the blocked changes as well.
    ///
    /// # Errors
    /// The list cannot be written.
    pub fn note_all(&mut self, mut names: Vec<LeftOut>, mut blocked: Vec<BlockedChange>) -> Result<(), LeftOutError> {
        names.sort_unstable();
        blocked.sort_unstable();
        if names == self.noted && blocked == self.blocked {
            return Ok(());
        }
        let body = Body { names, blocked };
        FILE.write(&*self.dir, &body)?;
        (self.noted, self.blocked) = (body.names, body.blocked);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
