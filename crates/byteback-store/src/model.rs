//! The store's own words for what clients send and read; free of JSON and HTTP.

use byteback_delta::DIGEST_LEN;
use byteback_delta::leaves::LeafKind;
use std::fmt;

/// A folder's sequence number.
pub type Seq = u64;

/// The identity of a node, chosen by a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u128);

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// What sort of inode a node is. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum NodeKind {
    File = 1,
    Directory = 2,
    Symlink = 3,
    Fifo = 4,
    Socket = 5,
    CharDevice = 6,
    BlockDevice = 7,
}

impl NodeKind {
    /// The kind of a stored number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::File,
            2 => Self::Directory,
            3 => Self::Symlink,
            4 => Self::Fifo,
            5 => Self::Socket,
            6 => Self::CharDevice,
            7 => Self::BlockDevice,
            _ => return None,
        })
    }
}

/// Attributes of a node at one moment. Times are ns since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Sort of inode.
    pub kind: NodeKind,
    /// Permission, set-id and sticky bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length of a file's contents in bytes; 0 for other kinds.
    pub size: u64,
    /// Last modification of the contents.
    pub mtime_ns: i128,
    /// Device number of a device node.
    pub rdev: u64,
    /// Flags that forbid changes, as `FS_IOC_GETFLAGS` numbers them.
    pub inode_flags: u32,
    /// Target of a symlink.
    pub target: Option<Vec<u8>>,
    /// Extended attributes by name.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Owner's name.
    pub user: Option<Vec<u8>>,
    /// Group's name.
    pub group: Option<Vec<u8>>,
}

/// How a snapshot is called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotLabel {
    /// The moment it shows.
    pub time_ns: i64,
    /// Host that was backed up.
    pub host: Vec<u8>,
    /// Directory that was backed up.
    pub path: Vec<u8>,
    /// Free tags.
    pub tags: Vec<String>,
}

/// A name for a sequence number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Number on this server, never used twice.
    pub id: u64,
    /// What it names.
    pub seq: Seq,
    /// How it is called.
    pub label: SnapshotLabel,
}

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

/// What a batch is and what it stands on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The sender.
    pub device: u64,
    /// The sender's number for it.
    pub counter: u64,
    /// What the sender's picture was based on; `None` replaces everything.
    pub base_seq: Option<Seq>,
    /// Without `base_seq`: what is replaced is the folder at this number, to which [`ContentBase::Of`] refers. `None` replaces whatever
    /// is there.
    pub replaces: Option<Seq>,
    /// Only with `base_seq`: the sender's own batch, by its counter, that it stands on; it must be its newest in the folder.
    pub follows: Option<u64>,
    /// Root directory.
    pub root: FileId,
    /// When it was made.
    pub created_ns: i64,
    /// Host.
    pub host: Vec<u8>,
    /// Directory on the host.
    pub path: Vec<u8>,
    /// Asks for a snapshot.
    pub snapshot: Option<SnapshotLabel>,
}

/// What the first delta of a file applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentBase {
    /// The file's contents so far.
    Previous,
    /// Nothing.
    Empty,
    /// The contents of this file, or another one, at the moment that the batch stands on or replaces.
    Of(FileId),
    /// The contents that a file had at a moment of the past.
    At {
        /// The file.
        file: FileId,
        /// The moment.
        seq: Seq,
    },
}

/// That a file gets new contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentChange {
    /// How many deltas follow.
    pub deltas: u32,
    /// What the first applies to.
    pub base: ContentBase,
}

/// A new or changed node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeChange {
    /// The node.
    pub id: FileId,
    /// Its attributes from now on.
    pub attributes: Attributes,
    /// New contents.
    pub content: Option<ContentChange>,
}

/// A new, changed or removed name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryChange {
    /// Directory.
    pub parent: FileId,
    /// Name.
    pub name: Vec<u8>,
    /// What it names now; `None` removes it.
    pub child: Option<FileId>,
}

/// What the contents of a file are to be after a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The digest of the whole contents.
    pub digest: [u8; DIGEST_LEN],
    /// Of their leaves of this kind, or else of their bytes.
    pub sums: Option<LeafKind>,
}

impl From<[u8; DIGEST_LEN]> for Proof {
    /// By the bytes.
    fn from(digest: [u8; DIGEST_LEN]) -> Self {
        Self { digest, sums: None }
    }
}

/// How many records of each kind a batch holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Node records.
    pub nodes: u64,
    /// Entry records.
    pub entries: u64,
    /// Delta records.
    pub deltas: u64,
    /// Proof records.
    pub proofs: u64,
    /// Records of directories' times.
    pub directory_times: u64,
}

/// The answer to an applied batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Its sequence number.
    pub seq: Seq,
    /// The snapshot it asked for.
    pub snapshot_id: Option<u64>,
    /// It had been applied before.
    pub repeated: bool,
    /// Bytes of literal frames it added.
    pub stored_bytes: u64,
}

/// A place where a batch collides with a newer change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The node.
    pub id: FileId,
    /// One of its paths.
    pub path: Option<Vec<u8>>,
    /// When it was changed.
    pub seq: Seq,
}

/// A version of contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentVersion {
    /// When it was applied.
    pub seq: Seq,
    /// Who made it.
    pub device: u64,
    /// That device's batch.
    pub counter: u64,
}

/// A node at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Identity.
    pub id: FileId,
    /// Its newest change at that moment.
    pub seq: Seq,
    /// Attributes.
    pub attributes: Attributes,
    /// Version of its contents.
    pub content: Option<ContentVersion>,
    /// How many names it has then, if it is a file; counted up to [`NAMES_COUNTED_MAX`].
    pub names: Option<u32>,
}

/// So far the names of a file are counted.
pub const NAMES_COUNTED_MAX: u32 = 64;
