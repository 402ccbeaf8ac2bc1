//! Snapshots: names for moments of a folder.

use serde::{Deserialize, Serialize};

use crate::{ByteString, Seq};

/// The label of a snapshot: in a batch manifest, or in `POST .../snapshots`.
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
    /// The sequence number that it names.
    pub seq: Seq,
    /// Its label.
    #[serde(flatten)]
    pub label: SnapshotLabel,
}
