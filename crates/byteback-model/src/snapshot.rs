//! Snapshots: names for moments of a folder.

use serde::{Deserialize, Serialize};

use crate::{ByteString, Seq};

/// What a snapshot is called by: in a batch manifest, or in `POST .../snapshots`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotLabel {
    /// The moment the snapshot shows.
    pub time_ns: i64,
    /// Host that was backed up.
    pub host: ByteString,
    /// Directory that was backed up.
    pub path: ByteString,
    /// Free tags.
    #[serde(default)]
    pub tags: Vec<String>,
}

/// A snapshot: a name for a sequence number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Number of the snapshot on this server, never used twice.
    pub id: u64,
    /// What it names.
    pub seq: Seq,
    /// How it is called.
    #[serde(flatten)]
    pub label: SnapshotLabel,
}
