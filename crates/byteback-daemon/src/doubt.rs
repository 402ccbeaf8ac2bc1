//! The reasons for which a directory is perhaps not the folder that was tracked at its path.
//!
//! [`presence`](crate::presence) finds them, the state folder keeps them (`held-back.json`), and
//! [`DaemonError::HeldBack`](crate::DaemonError::HeldBack) reports them.
//!
//! Out of scope: looking at directories, and deciding what follows.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a directory is perhaps not the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Doubt {
    /// Another directory lies at the path.
    OtherDirectory {
        /// Whether it is in another file system.
        is_other_file_system: bool,
    },
    /// Many of its files are gone.
    FilesGone {
        /// Files that were known.
        known: u64,
        /// Known files that are gone.
        gone: u64,
    },
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherDirectory {
                is_other_file_system: true,
            } => f.write_str("it is on another file system than before (a disk is not mounted, or another one is)"),
            Self::OtherDirectory {
                is_other_file_system: false,
            } => f.write_str("it is a different directory than before, under the same path"),
            Self::FilesGone { known, gone } => {
                write!(
                    f,
                    "{gone} of its {known} files were removed while Byteback was not watching"
                )
            }
        }
    }
}

/// Sync of a folder that does not begin until its user has decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldBack {
    /// Why it does not begin.
    pub doubt: Doubt,
    /// When that was found, ns since 1970.
    pub since_ns: i64,
    /// Another command has since taken what was there into the record: the return of the right
    /// directory is not enough any more.
    pub is_recorded: bool,
}
