//! Files with bytes that nobody wrote: what a server has of them, and what is to be kept (DeltaCFS,
//! section III-E).

use byteback_model::NodeId;
use serde::{Deserialize, Serialize};

/// What is wrong with a file of a tree that is landed in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Offset and length in bytes, in whole blocks.
    pub ranges: Vec<(u64, u64)>,
    /// A crash of the machine left it as it never was: none of it is sent.
    pub after_crash: bool,
}

/// What is to be kept of a damaged file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepairWish {
    /// Nothing is decided: it is only said what the server has.
    Look,
    /// What lies here counts, and is sent.
    KeepMine,
    /// The damaged blocks come from the server's version, where that proves what was written.
    KeepServer,
}

/// The wish to have a damaged file put right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairRequest {
    /// The file.
    pub node: NodeId,
    /// What is to be kept.
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

/// What became of a damaged file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repaired {
    /// Nothing was to be done.
    Looked,
    /// Nothing is wrong with it any more.
    WasSound,
    /// So many bytes count now as they are.
    Accepted(u64),
    /// So many bytes are again what was written.
    Healed(u64),
}

/// The answer to a [`RepairRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairReport {
    /// What the server has of it, if it has anything and was asked.
    pub server: Option<ServerVersion>,
    /// What was done.
    pub repaired: Repaired,
}
