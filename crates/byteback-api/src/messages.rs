//! The JSON bodies of requests and answers.
//!
//! Lists come in pages: `next_cursor` is opaque and goes unchanged into the next request's
//! `cursor`; its absence means that the list has ended. All times are ns since the Unix epoch.

use crate::FolderName;
use byteback_model::{Attributes, BatchApplied, ByteString, DeviceId, FileId, NodeInfo, Seq, Snapshot, SnapshotLabel};
use serde::{Deserialize, Serialize};

/// Body of `POST /v1/devices`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// The one-time join token (`bbj_...`).
    pub join_token: String,
    /// The device's name in lists, for example its host name.
    pub name: String,
    /// The token that the device generated and stored (`bbd_` and 32 random bytes in base64url), or
    /// that it has from an earlier invitation to this server. With the same two tokens it may
    /// repeat the request if the answer is lost. Without one, the server generates it.
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
    /// The device's name.
    #[serde(default)]
    pub name: String,
    /// The folder granted to the device; `None`: all, and it may manage devices.
    #[serde(default)]
    pub folder: Option<FolderName>,
    /// Whether the device may only read the folder.
    #[serde(default)]
    pub read_only: bool,
}

/// A folder that a device may use.
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
    /// Its name.
    pub name: String,
    /// The time when it joined.
    pub created_ns: i64,
    /// The time of its last request, accurate to some minutes.
    pub seen_ns: Option<i64>,
    /// The time when its token was revoked.
    pub revoked_ns: Option<i64>,
    /// Whether it may use all folders and manage devices.
    pub manages: bool,
    /// The folders granted to it.
    pub folders: Vec<GrantInfo>,
}

/// An invitation that has not been used yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvitationInfo {
    /// Its number.
    pub id: u64,
    /// The folder that it grants; `None`: all, and the right to manage devices.
    pub folder: Option<String>,
    /// Whether the device may only read the folder.
    pub read_only: bool,
    /// The name that the device gets; if empty, the device chooses it.
    pub name: String,
    /// The time when it was made.
    pub created_ns: i64,
    /// The time when it expires.
    pub expires_ns: i64,
}

/// Answer of `GET /v1/devices`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceList {
    /// All devices by number, including revoked ones.
    pub devices: Vec<DeviceInfo>,
    /// The unused invitations, by number.
    pub invitations: Vec<InvitationInfo>,
    /// The device that sent the request.
    pub asking: DeviceId,
}

/// Body of `PUT /v1/devices/{device}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenameDevice {
    /// The new name of the device.
    pub name: String,
}

/// Body of `POST /v1/invitations`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InviteRequest {
    /// The folder that it grants, created if it is missing and the invitation may write; `None`:
    /// all, and the right to manage devices.
    #[serde(default)]
    pub folder: Option<FolderName>,
    /// Whether the device may only read the folder.
    #[serde(default)]
    pub read_only: bool,
    /// The name that the device gets; if empty, the device chooses it.
    #[serde(default)]
    pub name: String,
    /// Time in ns after which the unused invitation expires.
    pub valid_ns: u64,
}

/// Answer of `POST /v1/invitations`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InviteResponse {
    /// Number of the invitation.
    pub id: u64,
    /// The one-time join token (`bbj_...`), shown only this once.
    pub join_token: String,
    /// The time when it expires.
    pub expires_ns: i64,
    /// Whether this call created the folder.
    pub folder_is_new: bool,
}

/// A folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderInfo {
    /// Its name.
    pub name: FolderName,
    /// Sequence number of the newest batch; 0 if no batch was ever applied.
    pub seq: Seq,
    /// The root directory; `None` before the first batch.
    pub root: Option<FileId>,
    /// Directory entries at `seq`.
    pub entries: u64,
    /// Number of snapshots.
    pub snapshots: u64,
    /// Bytes of literal frames stored for all versions of this folder.
    pub stored_bytes: u64,
    /// The time when it was created.
    pub created_ns: i64,
    /// Whether the server knows of damage, maybe of this folder; `GET .../damage` lists it. Set
    /// only in the answer for a single folder.
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
    /// The sequence number to name; the newest when absent.
    #[serde(default)]
    pub seq: Option<Seq>,
    /// The label of the snapshot.
    #[serde(flatten)]
    pub label: SnapshotLabel,
}

/// Answer of `GET .../snapshots`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotPage {
    /// Snapshots by id, oldest first.
    pub snapshots: Vec<Snapshot>,
    /// Cursor of the next page.
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
    /// The device's counter; together with `device` it is the version of all that the batch
    /// changed.
    pub counter: u64,
    /// The time when it was made, ns since the Unix epoch.
    pub created_ns: i64,
    /// The host that sent it.
    pub host: ByteString,
}

/// Answer of `GET .../batches/{counter}`, for the asking device's batch of that counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchStatus {
    /// The answer of the commit, once the batch is applied.
    pub applied: Option<BatchApplied>,
    /// Numbers of the parts that are staged and not yet committed.
    pub staged_parts: Vec<u32>,
    /// The SHA-256 of each staged part, hexadecimal; null for a part staged by a server that did
    /// not record it. Present only on request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub digests: Vec<Option<String>>,
}

/// Answer of `PUT .../parts/{n}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartStaged {
    /// The part's number.
    pub part: u32,
    /// The time when it expires unless another part of the batch or its commit arrives first.
    pub expires_ns: i64,
}

/// A name in a directory and its node.
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
    /// The sequence number at which the tree was read.
    pub at: Seq,
    /// The node that `parent` or `path` names (the root when neither is given).
    pub node: NodeInfo,
    /// Entries in byte order of their names.
    pub entries: Vec<EntryInfo>,
    /// Cursor of the next page.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// A node that a path named during a span of sequence numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathVersion {
    /// The batch that put the node at the path. The node is readable there from this sequence
    /// number up to the one before `until`.
    pub since: BatchEvent,
    /// The batch that removed or replaced it; absent if it is still there.
    #[serde(default)]
    pub until: Option<BatchEvent>,
    /// The node.
    pub node: NodeInfo,
}

/// Answer of `GET .../versions`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionsPage {
    /// The versions, newest first. A page may be empty and still have a next one.
    pub versions: Vec<PathVersion>,
    /// Cursor of the next page.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// Answer of `GET .../moment`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// The batch; absent if all batches were made later.
    #[serde(default)]
    pub batch: Option<BatchEvent>,
}

/// Whether bytes are stored or known to be zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExtentKind {
    /// Stored bytes.
    Data,
    /// Zeros that take no space: a restore leaves a hole.
    Hole,
}

/// A range of contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentExtent {
    /// First byte.
    pub offset: u64,
    /// Length in bytes, never 0.
    pub len: u64,
    /// Whether the range holds data or a hole.
    pub kind: ExtentKind,
}

/// Answer of `GET .../extents`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtentsPage {
    /// Length of the contents in bytes.
    pub size: u64,
    /// Adjacent ranges without gaps, in order.
    pub extents: Vec<ContentExtent>,
    /// Cursor of the next page.
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
    /// Ranges of the newer version that were written since `from`, in order. Bytes of `from` beyond
    /// `size_to` are gone and not listed.
    pub ranges: Vec<ChangedRange>,
    /// Cursor of the next page.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// A difference between two sequence numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum DiffItem {
    /// A name exists at `to` that did not exist, or named something else, at `from`.
    EntryAdded {
        /// The directory.
        parent: FileId,
        /// The name.
        name: ByteString,
        /// The node that it names.
        child: FileId,
        /// Path from the root at `to`; `None` if the root does not reach it.
        path: Option<ByteString>,
    },
    /// A name that existed at `from` does not exist, or names something else, at `to`.
    EntryRemoved {
        /// The directory.
        parent: FileId,
        /// The name.
        name: ByteString,
        /// The node that it named.
        child: FileId,
        /// Path from the root at `from`.
        path: Option<ByteString>,
    },
    /// A node that exists at both and has other attributes or contents, or that is new.
    NodeChanged {
        /// The node.
        id: FileId,
        /// A path of the node at `to`.
        path: Option<ByteString>,
        /// The moment that it is compared with: `from`, or a later one if only the changes of
        /// others were requested. Servers older than this field omit it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<Seq>,
        /// Attributes at that moment; `None` if the node is new.
        before: Option<Box<Attributes>>,
        /// Attributes at `to`.
        after: Box<Attributes>,
        /// Bytes of the contents at `to` that were written since `from`.
        changed_bytes: u64,
        /// Whether the contents have another version.
        content_changed: bool,
    },
}

/// Answer of `GET .../diff`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffPage {
    /// The older sequence number.
    pub from: Seq,
    /// The newer sequence number.
    pub to: Seq,
    /// Names first (by parent and name), then nodes (by their age on the server).
    pub changes: Vec<DiffItem>,
    /// Cursor of the next page.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// Maximum number of files in one `POST .../digests`.
pub const DIGESTS_MAX: usize = 1000;

/// Longest contents that `POST .../digests` digests in any case, in bytes.
pub const DIGESTED_LEN_MAX: u64 = 64 * 1024;

/// Most bytes of longer contents that one `POST .../digests` digests. Servers from before this
/// bound digest none of them.
pub const DIGESTED_TOTAL_MAX: u64 = 64 * 1024 * 1024;

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
    /// The digest of each file's contents in the order of the request, hexadecimal; null if the
    /// node is not a file or cannot be read, or if it is longer than [`DIGESTED_LEN_MAX`] and the
    /// longer files up to it have more than [`DIGESTED_TOTAL_MAX`] bytes together.
    pub digests: Vec<Option<String>>,
}

/// Maximum number of contents in one `POST .../alike`.
pub const ALIKE_MAX: usize = 1000;

/// Shortest files that `POST .../alike` finds, in bytes.
pub const ALIKE_LEN_MIN: u64 = 64 * 1024;

/// Bytes at the beginning of a content that `POST .../alike` compares.
pub const ALIKE_HEAD_LEN: u64 = 4096;

/// A content of which equal ones are looked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoughtContent {
    /// Length in bytes.
    pub len_bytes: u64,
    /// The first 8 bytes of the digest of its first [`ALIKE_HEAD_LEN`] bytes, hexadecimal.
    pub head: String,
}

/// Body of `POST .../alike`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedAlike {
    /// The moment.
    pub at: Seq,
    /// New contents, at most [`ALIKE_MAX`].
    pub contents: Vec<SoughtContent>,
}

/// Answer of `POST .../alike`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlikeFiles {
    /// Some files of each length and beginning, in the order of the request; those first that the
    /// folder got last.
    pub files: Vec<Vec<FileId>>,
}

/// Maximum number of files in one `POST .../bundle`.
pub const BUNDLED_MAX: usize = 1000;

/// Longest contents that a bundle may include, in bytes.
pub const BUNDLED_LEN_MAX: u64 = 64 * 1024;

/// Maximum total of contents in one bundle, in bytes.
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
    /// The damaged ranges, ascending and not adjacent within a page.
    pub ranges: Vec<DamagedRange>,
    /// Cursor of the next page. A page may be empty without being the last, because the server
    /// limits the work for one answer.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// A part of a frame and its place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FramePiece {
    /// Offset of the part in the frame, in bytes.
    pub skip: u64,
    /// Offset of the part in the file, in bytes.
    pub offset: u64,
    /// Length in bytes, never 0.
    pub len: u64,
}

/// A damaged frame and the places where a file shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedFrame {
    /// The file.
    pub file: FileId,
    /// The moment.
    pub at: Seq,
    /// Segment and offset; opaque to clients, for the server that reported it.
    pub frame: String,
    /// Bytes of the frame, decoded.
    pub len: u64,
    /// The parts that the file shows, by `skip`; the list may be incomplete.
    pub pieces: Vec<FramePiece>,
}

/// Answer of `GET .../damage`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownDamage {
    /// The frames; at most as many as requested, or as the server reports at once.
    pub frames: Vec<DamagedFrame>,
}

/// Answer of `POST .../heal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Healed {
    /// Whether the frame is readable now. If not, the bytes could not be proven to be those of the
    /// frame.
    pub healed: bool,
}

/// Answer of `GET .../nodes/{node}/totals`: counts of a node and all below it at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeTotals {
    /// Names of everything but directories.
    pub names: u64,
    /// Regular files, each counted once however many names it has.
    pub files: u64,
    /// Their lengths in bytes, holes included.
    pub bytes: u64,
}

/// A line of the answer of `POST .../verify`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum VerifyEvent {
    /// The amount read so far.
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
        /// A path of the file.
        path: Option<ByteString>,
        /// The damage, with segment and offset.
        detail: String,
        /// The first lost ranges, ascending.
        #[serde(default)]
        ranges: Vec<DamagedRange>,
        /// Number of lost bytes in total; 0 if nothing is known of the contents.
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
        /// Files whose stored checksums did not match their bytes; the server discarded these
        /// checksums.
        #[serde(default, skip_serializing_if = "is_zero")]
        wrong_sums: u64,
    },
    /// The verification itself failed and stops here.
    Failed {
        /// The reason.
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
