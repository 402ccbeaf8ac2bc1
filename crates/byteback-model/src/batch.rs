//! A batch: what a device changes in a folder at once, as it says so itself.
//!
//! Out of scope: the stream that a batch travels in, which is the API's.

use serde::{Deserialize, Serialize};

use crate::{Attributes, ByteString, DeviceId, FileId, Seq, SnapshotLabel};

/// What a batch is and what it stands on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The sending device; must be the one that the token belongs to.
    pub device: DeviceId,
    /// The device's number for this batch in this folder; must be the one in the URL. The same
    /// (device, counter) is applied once, however often it is sent.
    pub counter: u64,
    /// The folder's sequence number that the client's picture was based on. `None` at first
    /// contact: the batch holds the whole tree and replaces whatever is there. Every name that is
    /// not in it is gone, and every file's previous contents count as empty.
    pub base_seq: Option<Seq>,
    /// Only without `base_seq`: what the batch replaces is the folder at this sequence number, to
    /// whose contents [`ContentBase::Of`] refers. It is refused with `conflict` if the folder is no
    /// longer there. `None` replaces whatever there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<Seq>,
    /// Only with `base_seq`: the device's own batch before this one, by its counter, of which the
    /// device need not know the sequence number. It must be the device's newest in the folder,
    /// otherwise this batch is refused with `out_of_order`. The batch stands on what that one left,
    /// and what the device itself did since `base_seq` is in no conflict with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<u64>,
    /// The root directory.
    pub root: FileId,
    /// When the batch was made, ns since the Unix epoch.
    pub created_ns: i64,
    /// The host.
    pub host: ByteString,
    /// The directory on that host.
    pub path: ByteString,
    /// Asks for a snapshot that names this batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotLabel>,
}

/// What the first delta of a file in a batch applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContentBase {
    /// The file's contents at the manifest's `base_seq`, or as left by the batch that this one
    /// follows.
    Previous,
    /// Nothing: zero bytes.
    Empty,
    /// The contents that this file of the folder, or the same one, has at the manifest's `replaces`
    /// (at its `base_seq`, or as left by the batch that this one follows), whatever becomes of it
    /// in the batch. Where somebody else changed them since, that is a conflict.
    Of(FileId),
    /// The contents that a file of the folder had at any moment of the past.
    At {
        /// The file.
        file: FileId,
        /// The moment.
        seq: Seq,
    },
}

/// That a file gets new contents, and from what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentChange {
    /// How many delta records of this file the batch holds. 0 with base `Empty` truncates the file
    /// to nothing; 0 with base `Of` or `At` makes it a copy; 0 with base `Previous` is an error.
    pub deltas: u32,
    /// What the first of them applies to.
    pub base: ContentBase,
}

/// A node that is new or changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// The node.
    pub id: FileId,
    /// All its attributes; `size` is the length after the batch.
    pub attributes: Attributes,
    /// New contents; `None` leaves them as they are (empty for a new file).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<ContentChange>,
}

/// How many records of each kind the whole batch holds, all pieces together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Node records.
    pub nodes: u64,
    /// Entry records.
    pub entries: u64,
    /// Delta records.
    pub deltas: u64,
    /// Proof records.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub proofs: u64,
    /// Records of directories' times.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub directory_times: u64,
}

/// Answer of a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchApplied {
    /// The sequence number that the batch got.
    pub seq: Seq,
    /// The snapshot that its manifest asked for.
    #[serde(default)]
    pub snapshot_id: Option<u64>,
    /// True when the batch had been applied before and this answer only repeats the first.
    #[serde(default)]
    pub repeated: bool,
    /// Bytes of literal frames that the batch added to the store.
    #[serde(default)]
    pub stored_bytes: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}
