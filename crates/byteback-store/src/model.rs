//! The store's own types for what clients send and read; free of JSON and HTTP.

use byteback_delta::DIGEST_LEN;
use byteback_delta::leaves::LeafKind;
use byteback_model::{FileId, Seq};

/// A folder at present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    /// Name.
    pub name: String,
    /// Newest batch; 0 before the first.
    pub seq: Seq,
    /// Root directory.
    pub root: Option<FileId>,
    /// Directory entries.
    pub entries: u64,
    /// Snapshots.
    pub snapshots: u64,
    /// Literal bytes stored for all versions, as they lie in the segments.
    pub stored_bytes: u64,
    /// Creation.
    pub created_ns: i64,
}

/// A digest that the contents of a file must have after a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The digest of the whole contents.
    pub digest: [u8; DIGEST_LEN],
    /// Kind of the leaves that the digest is of; `None`: it is of the bytes.
    pub sums: Option<LeafKind>,
}

impl From<[u8; DIGEST_LEN]> for Proof {
    /// A proof by the bytes.
    fn from(digest: [u8; DIGEST_LEN]) -> Self {
        Self { digest, sums: None }
    }
}

/// A place where a batch collides with a newer change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The node.
    pub id: FileId,
    /// A path of the node.
    pub path: Option<Vec<u8>>,
    /// Sequence number of the newer change.
    pub seq: Seq,
}
