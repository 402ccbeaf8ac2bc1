//! `SNAPSHOT[:PATH]`, as commands accept it: `latest`, `latest~2:etc/passwd`, `17:/var/mail`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use byteback_backup::SnapshotSpec;

/// A snapshot, and a place in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotPath {
    pub(crate) snapshot: SnapshotSpec,
    /// Path below the root, as bytes; empty for the root itself.
    pub(crate) path: Vec<u8>,
}

impl SnapshotPath {
    /// The root of the newest snapshot.
    pub(crate) fn latest() -> Self {
        Self {
            snapshot: SnapshotSpec::Latest(0),
            path: Vec::new(),
        }
    }

    pub(crate) fn parse(text: &OsStr) -> Result<Self, String> {
        let bytes = text.as_bytes();
        let (snapshot, path) = match bytes.iter().position(|byte| *byte == b':') {
            Some(at) => (
                bytes.get(..at).unwrap_or_default(),
                bytes.get(at + 1..).unwrap_or_default(),
            ),
            None => (bytes, &[][..]),
        };
        let snapshot = String::from_utf8_lossy(snapshot)
            .parse::<SnapshotSpec>()
            .map_err(|error| error.to_string())?;
        Ok(Self {
            snapshot,
            path: path.to_vec(),
        })
    }

    /// The path, for people.
    pub(crate) fn path_text(&self) -> String {
        OsString::from_vec(self.path.clone()).to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests;
