//! A batch: the changes that a device makes in a folder in one atomic step, as the device states
//! them.
//!
//! Out of scope: the stream that a batch travels in, which is the API's.

use serde::{Deserialize, Serialize};

use crate::{Attributes, ByteString, DeviceId, FileId, Seq, SnapshotLabel};

/// The identity of a batch and the state that it builds on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The sending device; must be the one that the token belongs to.
    pub device: DeviceId,
    /// The device's number for this batch in this folder; must be the one in the URL. The same
    /// (device, counter) is applied once, however often it is sent.
    pub counter: u64,
    /// The folder's sequence number that the client's picture was based on. `None` at first
    /// contact: the batch then holds the whole tree and replaces the folder's. Every name that it
    /// lacks is removed, and every file's previous contents count as empty.
    pub base_seq: Option<Seq>,
    /// Only without `base_seq`: the batch replaces the folder as of this sequence number, and
    /// [`ContentBase::Of`] refers to contents at that moment. The batch is refused with `conflict`
    /// if the folder has moved on since. `None` replaces the folder in any state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<Seq>,
    /// Only with `base_seq`: the counter of the device's own preceding batch, whose sequence number
    /// the device need not know. It must be the device's newest batch in the folder, otherwise this
    /// one is refused with `out_of_order`. The batch builds on the state which that batch left, and
    /// the device's own changes since `base_seq` do not conflict with it.
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
    /// The label of a snapshot to create of this batch, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotLabel>,
}

/// The contents that the first delta of a file in a batch applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContentBase {
    /// The file's contents at the manifest's `base_seq`, or as left by the batch that this one
    /// follows.
    Previous,
    /// Nothing: zero bytes.
    Empty,
    /// The contents of this file of the folder, which may be the changed file itself, at the
    /// manifest's `replaces` (at its `base_seq`, or as left by the batch that this one follows),
    /// whatever the batch does to that file. It is a conflict if another device has changed those
    /// contents since.
    Of(FileId),
    /// The contents that a file of the folder had at any moment of the past.
    At {
        /// The file.
        file: FileId,
        /// The moment.
        seq: Seq,
    },
}

/// A change of a file's contents, and the contents that it starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentChange {
    /// Number of delta records of this file in the batch. 0 with base `Empty` truncates the file to
    /// nothing; 0 with base `Of` or `At` makes it a copy; 0 with base `Previous` is an error.
    pub deltas: u32,
    /// The contents that the first delta applies to.
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

/// The number of records of each kind in the whole batch, over all pieces.
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

/// The answer to a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchApplied {
    /// The sequence number assigned to the batch.
    pub seq: Seq,
    /// The snapshot that its manifest asked for.
    #[serde(default)]
    pub snapshot_id: Option<u64>,
    /// True if the batch had been applied before and this answer repeats the first one.
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
