//! The store's own types for what clients send and read; free of JSON and HTTP.

use byteback_delta::DIGEST_LEN;
use byteback_delta::leaves::LeafKind;
use byteback_extents::ByteRange;
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The digest.
    pub digest: [u8; DIGEST_LEN],
    /// The parts of the contents that it is of, and how.
    pub of: ProofOf,
}

/// The parts of a file's contents that a digest is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProofOf {
    /// All bytes.
    Bytes,
    /// All leaves of a kind.
    Leaves(LeafKind),
    /// The bytes of these ranges, one after the other; ascending and apart from each other.
    Ranges(Vec<ByteRange>),
}

impl From<[u8; DIGEST_LEN]> for Proof {
    /// A proof by the bytes.
    fn from(digest: [u8; DIGEST_LEN]) -> Self {
        Self {
            digest,
            of: ProofOf::Bytes,
        }
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
