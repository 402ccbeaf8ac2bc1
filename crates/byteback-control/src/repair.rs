//! Files with bytes that no program wrote: the server's version of them, and the choice of which to
//! keep (DeltaCFS, section III-E).

use byteback_model::NodeId;
use serde::{Deserialize, Serialize};

/// The damage of a file in a tree that receives changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Offset and length in bytes, in whole blocks.
    pub ranges: Vec<(u64, u64)>,
    /// A crash of the machine left it as it never was: none of it is sent.
    pub after_crash: bool,
}

/// The version of a damaged file to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepairWish {
    /// Nothing is decided: it is only said what the server has.
    Look,
    /// The bytes here count, and are sent.
    KeepMine,
    /// The damaged blocks come from the server's version, where that proves what was written.
    KeepServer,
}

/// The wish to have a damaged file put right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairRequest {
    /// The file.
    pub node: NodeId,
    /// The version to be kept.
    pub wish: RepairWish,
}

/// A version of a file that the server has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerVersion {
    /// The folder at this sequence number has it.
    pub seq: u64,
    /// Its length.
    pub len_bytes: u64,
    /// When it was last modified, in nanoseconds since 1970.
    #[serde(with = "byteback_model::wide_ns")]
    pub mtime_ns: i128,
}

/// The outcome for a damaged file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repaired {
    /// Nothing was to be done.
    Looked,
    /// Nothing is wrong with it any more.
    WasSound,
    /// The number of bytes that count now as they are.
    Accepted(u64),
    /// The number of bytes restored to those that were written.
    Healed(u64),
}

/// The answer to a [`RepairRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairReport {
    /// The server's version of the file, if it has one and was asked.
    pub server: Option<ServerVersion>,
    /// The outcome.
    pub repaired: Repaired,
}
