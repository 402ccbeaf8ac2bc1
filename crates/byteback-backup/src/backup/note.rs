//! The client's memory of its last backup: the consumer's note in the folder's log.
//!
//! JSON with a version. A note that cannot be understood is as good as none: the next backup then
//! covers everything, which is always right. Beside the server's position, the note lists what the
//! server does *not* have although the mark has passed it: nodes that could not be read when they
//! were new, and the names that had to be left out with them. The log reports such nodes again, but
//! not their names, and it no longer calls them new.

use byteback_model::{ByteString, DeviceId, FileId, NodeId, Seq};
use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;

/// More left-out names than this are not remembered one by one: the next backup covers everything.
const LEFT_OUT_MAX: usize = 20_000;

/// A name that the server does not have because it lacks the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeftOutName {
    pub(crate) parent: NodeId,
    pub(crate) name: ByteString,
    pub(crate) child: NodeId,
}

/// The memory of one backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) version: u32,
    pub(crate) server: String,
    pub(crate) folder: String,
    pub(crate) device: DeviceId,
    /// The batch that brought the folder to `seq`: a server that applied it under this number is
    /// the same server.
    pub(crate) counter: u64,
    pub(crate) seq: Seq,
    pub(crate) snapshot_id: Option<u64>,
    pub(crate) root: FileId,
    /// Nodes that the server lacks.
    pub(crate) missing: Vec<NodeId>,
    /// Names that the server lacks for that reason.
    pub(crate) left_out: Vec<LeftOutName>,
    /// Too many nodes and names to remember.
    pub(crate) everything_next: bool,
    /// The measured speed of the link, in bytes per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) link_bytes_per_s: Option<u64>,
}

impl Note {
    pub(crate) fn new(
        server: &str,
        folder: &str,
        device: DeviceId,
        counter: u64,
        seq: Seq,
        snapshot_id: Option<u64>,
        root: FileId,
    ) -> Self {
        Self {
            version: VERSION,
            server: server.to_owned(),
            folder: folder.to_owned(),
            device,
            counter,
            seq,
            snapshot_id,
            root,
            missing: Vec::new(),
            left_out: Vec::new(),
            everything_next: false,
            link_bytes_per_s: None,
        }
    }

    pub(crate) fn with_left_out(mut self, missing: Vec<NodeId>, left_out: Vec<LeftOutName>) -> Self {
        if missing.len() + left_out.len() > LEFT_OUT_MAX {
            self.everything_next = true;
        } else {
            self.missing = missing;
            self.left_out = left_out;
        }
        self
    }

    pub(crate) fn with_link(mut self, bytes_per_s: Option<u64>) -> Self {
        self.link_bytes_per_s = bytes_per_s;
        self
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // A struct of numbers, strings and lists always has a JSON form; an empty note means "cover
        // everything".
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let note: Self = serde_json::from_slice(bytes).ok()?;
        (note.version == VERSION).then_some(note)
    }
}
