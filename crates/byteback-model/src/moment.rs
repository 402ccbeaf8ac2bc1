//! What a node of a folder is at one moment.

use serde::{Deserialize, Serialize};

use crate::{Attributes, DeviceId, FileId, Place, Seq};

/// Which version of the contents a node shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentVersion {
    /// When it was applied.
    pub seq: Seq,
    /// The device that made it.
    pub device: DeviceId,
    /// That device's batch.
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
    /// Version of its contents; none for what has no contents or never had any bytes.
    #[serde(default)]
    pub content: Option<ContentVersion>,
    /// How many names it has in the whole tree, if it is a file that has several; counted up to
    /// [`NAMES_COUNTED_MAX`]. Servers before this field never told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<u32>,
    /// Its names with their directories, if they were asked for; of more than
    /// [`NAMES_COUNTED_MAX`], some. Also those in directories that the root does not reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub places: Option<Vec<Place<FileId>>>,
}

/// So far a server counts the names of a file.
pub const NAMES_COUNTED_MAX: u32 = 64;
