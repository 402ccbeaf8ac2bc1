//! The JSON bodies of requests and answers.
//!
//! Lists come in pages: `next_cursor` is opaque and goes unchanged into the next request's
//! `cursor`; no cursor means that the list has ended. All times are ns since the Unix epoch.

use crate::FolderName;
use byteback_model::{Attributes, BatchApplied, ByteString, DeviceId, FileId, NodeInfo, Seq, Snapshot, SnapshotLabel};
use serde::{Deserialize, Serialize};

/// Body of `POST /v1/devices`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// The one-time join token (`bbj_...`).
    pub join_token: String,
    /// What to call the device in lists, for example its host name.
    pub name: String,
    /// The token that the device drew for itself (`bbd_` and 32 random bytes in base64url) and has
    /// kept, or has from an earlier invitation to this server. With the same two tokens it may ask
    /// again when the answer is lost. Without one, the server draws it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_token: Option<String>,
}

/// Answer of `POST /v1/devices`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinResponse {
    /// The device's number, the client id of its versions.
    pub device_id: DeviceId,
    /// The device's token (`bbd_...`).
    pub token: String,
    /// What the device is called.
    #[serde(default)]
    pub name: String,
    /// The folder that it was given; none: all, and it may manage devices.
    #[serde(default)]
    pub folder: Option<FolderName>,
    /// Whether it may only read the folder.
    #[serde(default)]
    pub read_only: bool,
}

/// A folder that a device was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantInfo {
    /// Its name.
    pub folder: String,
    /// Whether the device may only read it.
    pub read_only: bool,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Its number, the client id of its versions.
    pub id: DeviceId,
    /// What it is called.
    pub name: String,
    /// When it joined.
    pub created_ns: i64,
    /// When it was last heard of, some minutes exact.
    pub seen_ns: Option<i64>,
    /// Since when its token is void.
    pub revoked_ns: Option<i64>,
    /// Whether it may use all folders and manage devices.
    pub manages: bool,
    /// The folders that it was given.
    pub folders: Vec<GrantInfo>,
}

/// An invitation that waits to be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvitationInfo {
    /// Its number.
    pub id: u64,
    /// To which folder; none: to all, and to manage devices.
    pub folder: Option<String>,
    /// Whether the device may only read the folder.
    pub read_only: bool,
    /// What the device is to be called; empty: as it calls itself.
    pub name: String,
    /// When it was made.
    pub created_ns: i64,
    /// Until when it is valid.
    pub expires_ns: i64,
}

/// Answer of `GET /v1/devices`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceList {
    /// All devices by number, revoked ones too.
    pub devices: Vec<DeviceInfo>,
    /// The invitations that wait to be used, by number.
    pub invitations: Vec<InvitationInfo>,
    /// Which device asks.
    pub asking: DeviceId,
}

/// Body of `PUT /v1/devices/{device}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenameDevice {
    /// What it is to be called.
    pub name: String,
}

/// Body of `POST /v1/invitations`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InviteRequest {
    /// To which folder, which is made if it is missing and may be changed; none: to all, and to
    /// manage devices.
    #[serde(default)]
    pub folder: Option<FolderName>,
    /// Whether the device may only read the folder.
    #[serde(default)]
    pub read_only: bool,
    /// What the device is to be called; empty: as it calls itself.
    #[serde(default)]
    pub name: String,
    /// For how long the invitation may wait to be used.
    pub valid_ns: u64,
}

/// Answer of `POST /v1/invitations`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InviteResponse {
    /// Number of the invitation.
    pub id: u64,
    /// The one-time join token (`bbj_...`), shown only this once.
    pub join_token: String,
    /// Until when it is valid.
    pub expires_ns: i64,
    /// Whether the folder was made for it.
    pub folder_is_new: bool,
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
    /// The server knows of damage, maybe of this folder: `GET .../damage` tells. Only told of a
    /// single folder.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub knows_damage: bool,
}

/// Answer of `GET /v1/folders`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderList {
    /// All folders, by name.
    pub folders: Vec<FolderInfo>,
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

/// The data of an event of `GET .../events`, whose id is the sequence number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchEvent {
    /// The sequence number of the batch.
    pub seq: Seq,
    /// The device that sent it.
    pub device: DeviceId,
    /// The device's number for it: together they are the version of all that it changed.
    pub counter: u64,
    /// When it was made, ns since the Unix epoch.
    pub created_ns: i64,
    /// The host that it comes from.
    pub host: ByteString,
}

/// Answer of `GET .../batches/{counter}`, for the asking device's batch of that counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchStatus {
    /// Present once the batch is applied.
    pub applied: Option<BatchApplied>,
    /// Numbers of the parts that are staged and not yet committed.
    pub staged_parts: Vec<u32>,
    /// The SHA-256 of each of them, hexadecimal; null of one that was staged by a server that did
    /// not note it. Only if asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub digests: Vec<Option<String>>,
}

/// Answer of `PUT .../parts/{n}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartStaged {
    /// The part's number.
    pub part: u32,
    /// When it expires unless another part of the batch or its commit comes before.
    pub expires_ns: i64,
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

/// What stood at a path for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathVersion {
    /// The batch with which it came: at this sequence number, and up to the one before `until`, it
    /// is read.
    pub since: BatchEvent,
    /// The batch with which it went, or something else took its place. Absent: it is there.
    #[serde(default)]
    pub until: Option<BatchEvent>,
    /// What it was.
    pub node: NodeInfo,
}

/// Answer of `GET .../versions`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionsPage {
    /// Newest first. A page may be empty and have a next one.
    pub versions: Vec<PathVersion>,
    /// Where the next page begins.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// Answer of `GET .../moment`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// The batch. Absent: all were made later.
    #[serde(default)]
    pub batch: Option<BatchEvent>,
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
        /// The moment with which it is compared: `from`, or a later one if only what others changed
        /// was asked for. Servers before this field never told.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<Seq>,
        /// Attributes at that moment; none when the node is new.
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

/// Most files of one `POST .../digests`.
pub const DIGESTS_MAX: usize = 1000;

/// Contents of at most so many bytes have digests in `POST .../digests`.
pub const DIGESTED_LEN_MAX: u64 = 64 * 1024;

/// Body of `POST .../digests`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedDigests {
    /// The moment.
    pub at: Seq,
    /// Files, at most [`DIGESTS_MAX`].
    pub files: Vec<FileId>,
}

/// Answer of `POST .../digests`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digests {
    /// The digest of each file's content in the order asked, hexadecimal; null of what is no file,
    /// is longer than [`DIGESTED_LEN_MAX`], or cannot be read.
    pub digests: Vec<Option<String>>,
}

/// Most files of one `POST .../bundle`.
pub const BUNDLED_MAX: usize = 1000;

/// The longest content that comes in a bundle, in bytes.
pub const BUNDLED_LEN_MAX: u64 = 64 * 1024;

/// The most bytes of contents that come in one bundle.
pub const BUNDLE_LEN_MAX: u64 = 4 << 20;

/// Body of `POST .../bundle`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedContents {
    /// The moment.
    pub at: Seq,
    /// Files, at most [`BUNDLED_MAX`].
    pub files: Vec<FileId>,
}

/// A range of bytes that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedRange {
    /// First byte.
    pub offset: u64,
    /// Length in bytes, never 0.
    pub len: u64,
}

/// Answer of `GET .../nodes/{node}/damage`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagePage {
    /// Length of the contents in bytes.
    pub size: u64,
    /// Ascending, not touching each other within a page.
    pub ranges: Vec<DamagedRange>,
    /// Where the next page begins. A page may be empty and not the last: the server reads so much
    /// for one answer.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// Where some bytes of a frame lie in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FramePiece {
    /// Bytes of the frame before them.
    pub skip: u64,
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes, never 0.
    pub len: u64,
}

/// A damaged frame, as a file shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedFrame {
    /// The file.
    pub file: FileId,
    /// The moment.
    pub at: Seq,
    /// Segment and offset, for the server that said so.
    pub frame: String,
    /// Bytes of the frame, decoded.
    pub len: u64,
    /// What the file has of them, by `skip`; maybe not all.
    pub pieces: Vec<FramePiece>,
}

/// Answer of `GET .../damage`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownDamage {
    /// At most as many as were asked for, or as are told at once.
    pub frames: Vec<DamagedFrame>,
}

/// Answer of `POST .../heal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Healed {
    /// Whether the frame can be read now. Otherwise these are not its bytes, as far as can be
    /// proven.
    pub healed: bool,
}

/// Answer of `GET .../nodes/{node}/totals`: what there is below a node at a moment, itself
/// included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeTotals {
    /// Names of what is no directory.
    pub names: u64,
    /// Regular files, each once however many names it has.
    pub files: u64,
    /// Their lengths in bytes, holes included.
    pub bytes: u64,
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
        /// The first ranges that are lost, ascending.
        #[serde(default)]
        ranges: Vec<DamagedRange>,
        /// How many bytes are lost in all; 0 if nothing is known of the contents.
        #[serde(default)]
        lost_bytes: u64,
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
        /// Files whose checksums, which the server kept to save reading, did not agree with their
        /// bytes and were thrown away.
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
