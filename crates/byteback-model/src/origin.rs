//! Contents that a server has already: where a file came from, and the newest batch of a device.

use crate::{FileId, Seq};
use serde::{Deserialize, Serialize};

/// The content that a file grew from, which the server has under another identity than the file's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// A file at the server.
    pub file: FileId,
    /// The folder's sequence number at which that file had the content.
    pub seq: Seq,
}

/// A batch that this device sent and the server applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnBatch {
    /// The device's number of the batch.
    pub counter: u64,
    /// The folder's sequence number after the batch.
    pub seq: Seq,
}
