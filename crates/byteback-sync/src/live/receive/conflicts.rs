//! Conflict copies that were made here and that nobody has decided about, durably (docs/format-identities.md).
//!
//! A conflict is noted before its copy has its name, so none is forgotten by a crash; one whose copy was never made, was removed, or has another name by now
//! counts as decided. What is noted is for people: a copy is an ordinary file, and is sent like one.

use std::io;
use std::sync::Arc;

use byteback_api::ByteString;
use byteback_control::{LandingTree, NamePlace};
use byteback_host::durable::{DurableDir, OpenMode};
use byteback_oplog::NodeId;
use serde::{Deserialize, Serialize};

const NAME: &str = "conflicts.json";
const NEW_NAME: &str = "conflicts.json.new";
const VERSION: u32 = 1;

/// More is none of ours.
const LEN_MAX: u64 = 256 * 1024 * 1024;

/// What is noted of conflicts cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ConflictsError {
    /// The file system.
    #[error("cannot {what} the list of conflicts: {source}")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// It cannot be understood.
    #[error(
        "the list of conflicts cannot be used ({0}); remove '{NAME}' to begin a new one: the copies themselves are ordinary files"
    )]
    Damaged(String),
}

/// One conflict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflict {
    /// The copy, by its number in the log here.
    pub node: u64,
    /// The name that it had, which stands for the server's version since.
    pub name: ByteString,
    /// The name of the copy.
    pub copy: ByteString,
    /// When it was found, nanoseconds since 1970.
    pub at_ns: i64,
}

impl Conflict {
    /// Where the copy is; `None`: it was never made, was removed, or has another name by now.
    ///
    /// # Errors
    /// If the tree cannot be read: it may be there.
    pub fn place_in(&self, landing: &dyn LandingTree) -> byteback_control::Result<Option<NamePlace>> {
        let names = landing
            .look(NodeId(self.node))?
            .into_iter()
            .flat_map(|found| found.names);
        Ok({ names }.find(|place| place.name == self.copy))
    }
}

#[derive(Serialize, Deserialize)]
struct File {
    version: u32,
    conflicts: Vec<Conflict>,
    /// CRC-32C of the same without this, as JSON without white space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crc32c: Option<String>,
}

/// See the module.
#[derive(Debug)]
pub struct Conflicts {
    dir: Arc<dyn DurableDir>,
    noted: Vec<Conflict>,
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> ConflictsError {
    move |source| ConflictsError::Io { what, source }
}

impl Conflicts {
    /// Reads what is noted in `dir`.
    ///
    /// # Errors
    /// It cannot be read or understood.
    pub fn open(dir: Arc<dyn DurableDir>) -> Result<Self, ConflictsError> {
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

    /// All that is noted, eldest first.
    #[must_use]
    pub fn noted(&self) -> &[Conflict] {
        &self.noted
    }

    /// Notes one, durably; the same copy once.
    ///
    /// # Errors
    /// It cannot be written.
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

    /// Keeps only what is still to be decided, durably.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn retain(&mut self, is_open: impl FnMut(&Conflict) -> bool) -> Result<(), ConflictsError> {
        let before = self.noted.len();
        self.noted.retain(is_open);
        match self.noted.len() == before {
            true => Ok(()),
            false => self.write(),
        }
    }

    fn write(&self) -> Result<(), ConflictsError> {
        let bytes = to_bytes(&self.noted)?;
        let write = || {
            let file = self.dir.open(NEW_NAME, OpenMode::CreateIfMissing)?;
            file.set_len(0)?;
            file.write_all_at(0, &bytes)?;
            file.sync_data()?;
            self.dir.rename(NEW_NAME, NAME)?;
            self.dir.sync()
        };
        write().map_err(failed("write"))
    }
}

fn to_bytes(conflicts: &[Conflict]) -> Result<Vec<u8>, ConflictsError> {
    let mut file = File {
        version: VERSION,
        conflicts: conflicts.to_vec(),
        crc32c: None,
    };
    let json = |file: &File| serde_json::to_vec(file).map_err(|error| ConflictsError::Damaged(error.to_string()));
    file.crc32c = Some(format!("{:08x}", crc32c::crc32c(&json(&file)?)));
    json(&file)
}

fn from_bytes(bytes: &[u8]) -> Result<Vec<Conflict>, ConflictsError> {
    #[derive(Deserialize)]
    struct AnyVersion {
        version: u32,
    }
    let unusable = |error: serde_json::Error| ConflictsError::Damaged(error.to_string());
    let AnyVersion { version } = serde_json::from_slice(bytes).map_err(unusable)?;
    if version != VERSION {
        let message = format!("it has version {version}, this program knows {VERSION}");
        return Err(ConflictsError::Damaged(message));
    }
    let file: File = serde_json::from_slice(bytes).map_err(unusable)?;
    match to_bytes(&file.conflicts)? == bytes {
        true => Ok(file.conflicts),
        false => Err(ConflictsError::Damaged("its checksum is wrong".to_owned())),
    }
}

#[cfg(test)]
mod tests;
