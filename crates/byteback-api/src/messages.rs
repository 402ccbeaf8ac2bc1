//! The JSON bodies of requests and answers.
//!
//! Lists come in pages: `next_cursor` is opaque and goes unchanged into the next request's
//! `cursor`; no cursor means that the list has ended. All times are ns since the Unix epoch.

use crate::{Attributes, ByteString, DeviceId, FileId, FolderName, Seq};
use serde::{Deserialize, Serialize};

/// Body of `POST /v1/devices`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// The one-time join token (`bbj_...`).
    pub join_token: String,
    /// What to call the device in lists, for example its host name.
    pub name: String,
}

/// Answer of `POST /v1/devices`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinResponse {
    /// The device's number, the client id of its versions.
    pub device_id: DeviceId,
    /// The device's token (`bbd_...`), shown only this once.
    pub token: String,
}

/// A folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderInfo {
    /// Its name.
    pub name: FolderName,
    /// Sequence number of the newest batch; 0 when nothing was ever applied.
    pub seq: Seq,
    /// The root directory; none before the first batch.
    pub root: Option<FileId>,
    /// Directory entries at `seq`.
    pub entries: u64,
    /// Snapshots.
    pub snapshots: u64,
    /// Bytes of literal frames stored for all versions of this folder.
    pub stored_bytes: u64,
    /// When it was created.
    pub created_ns: i64,
}

/// Answer of `GET /v1/folders`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderList {
    /// All folders, by name.
    pub folders: Vec<FolderInfo>,
}

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

/// Body of `POST .../snapshots`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateSnapshot {
    /// What to name; the newest when absent.
    #[serde(default)]
    pub seq: Option<Seq>,
    /// How to call it.
    #[serde(flatten)]
    pub label: SnapshotLabel,
}

/// Answer of `GET .../snapshots`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotPage {
    /// Snapshots by id, oldest first.
    pub snapshots: Vec<Snapshot>,
    /// Where the next page begins.
    #[serde(default)]
    pub next_cursor: Option<String>,
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

/// Answer of `GET .../batches/{counter}`, for the asking device's batch of that counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchStatus {
    /// Present once the batch is applied.
    pub applied: Option<BatchApplied>,
    /// Numbers of the parts that are staged and not yet committed.
    pub staged_parts: Vec<u32>,
}

/// Answer of `PUT .../parts/{n}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartStaged {
    /// The part's number.
    pub part: u32,
    /// When it expires unless another part of the batch or its commit comes before.
    pub expires_ns: i64,
}

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
}

/// A name in a directory and what it names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryInfo {
    /// The name.
    pub name: ByteString,
    /// The node.
    pub node: NodeInfo,
}

/// Answer of `GET .../tree`: a node and, if it is a directory, a page of its entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreePage {
    /// The sequence number that was read.
    pub at: Seq,
    /// The node that `parent` or `path` names (the root when neither is given).
    pub node: NodeInfo,
    /// Entries in byte order of their names.
    pub entries: Vec<EntryInfo>,
    /// Where the next page begins.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// Whether bytes are stored or known to be zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExtentKind {
    /// Stored bytes.
    Data,
    /// Zeros that need no space: a restore leaves a hole.
    Hole,
}

/// A range of contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentExtent {
    /// First byte.
    pub offset: u64,
    /// Length in bytes, never 0.
    pub len: u64,
    /// What is there.
    pub kind: ExtentKind,
}

/// Answer of `GET .../extents`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtentsPage {
    /// Length of the contents in bytes.
    pub size: u64,
    /// Adjacent ranges without gaps, in order.
    pub extents: Vec<ContentExtent>,
    /// Where the next page begins.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// A range of bytes that differ between two versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedRange {
    /// First byte, in the newer version.
    pub offset: u64,
    /// Length in bytes, never 0.
    pub len: u64,
}

/// Answer of `GET .../changes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangesPage {
    /// Length at `from`; 0 when the node did not exist.
    pub size_from: u64,
    /// Length at `to`.
    pub size_to: u64,
    /// Ranges of the newer version that were written since `from`, in order. Bytes beyond
    /// `size_to` that `from` had are gone and not listed.
    pub ranges: Vec<ChangedRange>,
    /// Where the next page begins.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// One difference between two sequence numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum DiffItem {
    /// A name exists at `to` that did not exist, or named something else, at `from`.
    EntryAdded {
        /// The directory.
        parent: FileId,
        /// The name.
        name: ByteString,
        /// What it names.
        child: FileId,
        /// Path from the root at `to`; none for what the root does not reach.
        path: Option<ByteString>,
    },
    /// A name that existed at `from` does not exist, or names something else, at `to`.
    EntryRemoved {
        /// The directory.
        parent: FileId,
        /// The name.
        name: ByteString,
        /// What it named.
        child: FileId,
        /// Path from the root at `from`.
        path: Option<ByteString>,
    },
    /// A node that exists at both and has other attributes or contents, or is new.
    NodeChanged {
        /// The node.
        id: FileId,
        /// One of its paths at `to`.
        path: Option<ByteString>,
        /// Attributes at `from`; none when the node is new.
        before: Option<Box<Attributes>>,
        /// Attributes at `to`.
        after: Box<Attributes>,
        /// Bytes of the contents at `to` that were written since `from`.
        changed_bytes: u64,
        /// True when the contents have another version.
        content_changed: bool,
    },
}

/// Answer of `GET .../diff`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffPage {
    /// The older sequence number.
    pub from: Seq,
    /// The newer one.
    pub to: Seq,
    /// Names first (by parent and name), then nodes (by their age on the server).
    pub changes: Vec<DiffItem>,
    /// Where the next page begins.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// One line of the answer of `POST .../verify`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum VerifyEvent {
    /// What was read so far.
    Progress {
        /// Files whose every frame was read.
        files: u64,
        /// Frames read.
        frames: u64,
        /// Stored bytes read.
        bytes: u64,
    },
    /// A file that cannot be read in full.
    Damage {
        /// The file.
        id: FileId,
        /// One of its paths.
        path: Option<ByteString>,
        /// What is wrong, with segment and offset.
        detail: String,
    },
    /// The last line. A stream without it was cut short and proves nothing.
    Summary {
        /// Files checked.
        files: u64,
        /// Frames read.
        frames: u64,
        /// Stored bytes read.
        bytes: u64,
        /// Files with damage.
        damaged_files: u64,
        /// Files whose checksums, which the server kept to save reading, did not agree with their bytes and were thrown away.
        #[serde(default, skip_serializing_if = "is_zero")]
        wrong_sums: u64,
    },
    /// The verification itself failed and stops here.
    Failed {
        /// Why.
        detail: String,
    },
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Answer of `GET /healthz`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// `ok`.
    pub status: String,
    /// Version of the server program.
    pub version: String,
}
