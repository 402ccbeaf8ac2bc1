//! The state of a node of a folder at one moment.

use serde::{Deserialize, Serialize};

use crate::{Attributes, DeviceId, FileId, Place, Seq};

/// The version of a node's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentVersion {
    /// The sequence number at which it was applied.
    pub seq: Seq,
    /// The device that wrote it.
    pub device: DeviceId,
    /// The counter of the device's batch.
    pub counter: u64,
}

/// A node at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Its identity.
    pub id: FileId,
    /// The sequence number of its newest change (attributes or contents) at that moment.
    pub seq: Seq,
    /// Its attributes.
    pub attributes: Attributes,
    /// Version of its contents; `None` if the node has no contents or never had any bytes.
    #[serde(default)]
    pub content: Option<ContentVersion>,
    /// Number of names in the whole tree, for a file with several; counted up to
    /// [`NAMES_COUNTED_MAX`]. Servers older than this field omit it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<u32>,
    /// Its names with their directories, if the client asked for them; a part of them if there are
    /// more than [`NAMES_COUNTED_MAX`]. Names in directories unreachable from the root are
    /// included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub places: Option<Vec<Place<FileId>>>,
}

/// Servers stop counting the names of a file at this number.
pub const NAMES_COUNTED_MAX: u32 = 64;
