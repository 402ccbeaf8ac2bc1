//! The batch stream: how one atomic group of changes travels from a client to a server.
//!
//! A batch is cut into one or more *pieces* at record borders; each piece is one request body.
//!
//! ```text
//! piece   = magic "BYBATCH" | version u8 = 1 | record*
//! record  = tag u8 | payload_len varint (LEB128) | payload | crc32c u32 LE
//! ```
//! The checksum covers tag, length bytes and payload. Records, in this order of kinds:
//!
//! | tag | kind | payload | where |
//! |---|---|---|---|
//! | 1 | [`Manifest`] | JSON | exactly once, first record of the batch |
//! | 7 | [`Manifest`] with [`Manifest::follows`] | JSON | in the place of that |
//! | 2 | [`NodeRecord`] | JSON | at most once per node, before the node's deltas |
//! | 3 | [`EntryRecord`] | JSON | at most once per (parent, name) |
//! | 4 | delta | [`FileId`] (16 bytes, big-endian) and a complete delta stream | as many as the node's [`ContentChange::deltas`], in order |
//! | 6 | [`ProofRecord`] | JSON | at most once per node that gets new contents, anywhere |
//! | 8 | [`DirectoryTimeRecord`] | JSON | at most once per directory that has no node record, anywhere |
//! | 5 | [`Totals`] | JSON | exactly once, last record of the batch |
//!
//! Nodes, entries and deltas may alternate. All parts of a batch, in the order of their numbers, and the
//! commit's body last form the batch, so the manifest stands in part 1 (or in the commit's body if there
//! are no parts) and the totals stand in the commit's body.
//!
//! A delta without copies need not know how long its base is: the base is first cut off, or filled up with zeros, to
//! the delta's `base_len`. A sender that knows the changed ranges and the new length says `base_len = new_len`.
//!
//! A *proof* says what the new contents of a file are to be: whoever applies the batch compares before anything of it counts. It
//! is for contents whose copies were found by checksums that somebody else told.
//!
//! Several deltas of one file apply one over the other: the first one's base is the file's previous
//! contents, nothing, or what another file had ([`ContentBase`]), each next one's base is the result so far. So a large first
//! upload is split into pieces without waiting for its end.
//!
//! A batch that holds the whole tree, because its sender has lost what it knew, need not send what the folder has already: it says
//! which sequence number it *replaces*, and contents may follow those that any file of the folder had then. Readers from before
//! that pass over [`Manifest::replaces`] and refuse the first node with [`ContentBase::Of`], so that nothing is misunderstood and the version
//! of the stream stays what it was.
//!
//! A device that sends batch after batch without waiting for the answers cannot know the sequence numbers of its own: it says by
//! which of its batches the new one *follows* ([`Manifest::follows`]), and stands on what that one left. Readers from before that refuse the
//! tag of such a manifest.
//!
//! A small piece may be [`packed`]: its records are then one compressed frame behind the version [`VERSION_PACKED`].
//!
//! What this does not do: check that a batch makes sense. That needs the folder and is the store's work.

mod leaf_kind;
mod packed;
mod reader;
mod writer;

use crate::messages::SnapshotLabel;
use crate::{Attributes, ByteString, DeviceId, Digest, FileId, Seq};
use byteback_delta::leaves::LeafKind;
use serde::{Deserialize, Serialize};

pub use packed::{UNPACKED_LEN_MAX, VERSION_PACKED, packed};
pub use reader::{BatchReader, Record};
pub use writer::BatchWriter;

/// The first bytes of every piece; the version follows.
pub const MAGIC: [u8; 7] = *b"BYBATCH";

/// The version of the stream that this crate writes; it reads this one, and pieces that are [`packed`].
pub const VERSION: u8 = 1;

/// Longest JSON payload in bytes. The largest record is a node with xattrs: Linux allows 64 KiB of
/// names and 64 KiB per value, but no file system in use lets a file hold more than a few of these.
pub const JSON_LEN_MAX: u64 = 4 * 1024 * 1024;

pub(crate) const TAG_MANIFEST: u8 = 1;
pub(crate) const TAG_NODE: u8 = 2;
pub(crate) const TAG_ENTRY: u8 = 3;
pub(crate) const TAG_DELTA: u8 = 4;
pub(crate) const TAG_END: u8 = 5;
pub(crate) const TAG_PROOF: u8 = 6;
pub(crate) const TAG_FOLLOWING_MANIFEST: u8 = 7;
pub(crate) const TAG_DIRECTORY_TIME: u8 = 8;

/// What a batch is and what it stands on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The sending device; must be the one that the token belongs to.
    pub device: DeviceId,
    /// The device's number for this batch in this folder; must be the one in the URL. The same
    /// (device, counter) is applied once, however often it is sent.
    pub counter: u64,
    /// The folder's sequence number that the client's picture was based on. `None` at first
    /// contact: the batch holds the whole tree and replaces whatever is there. Every name that is not
    /// in it is gone, and every file's previous contents count as empty.
    pub base_seq: Option<Seq>,
    /// Only without `base_seq`: what the batch replaces is the folder at this sequence number, to whose contents [`ContentBase::Of`]
    /// refers. It is refused with `conflict` if the folder is no longer there. `None` replaces whatever there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<Seq>,
    /// Only with `base_seq`: the device's own batch before this one, by its counter, of which the device need not know the sequence
    /// number. It must be the device's newest in the folder, otherwise this batch is refused with `out_of_order`. The batch stands on
    /// what that one left, and what the device itself did since `base_seq` is in no conflict with it.
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
    /// The file's contents at the manifest's `base_seq`, or as left by the batch that this one follows.
    Previous,
    /// Nothing: zero bytes.
    Empty,
    /// The contents that this file of the folder, or the same one, has at the manifest's `replaces` (at its `base_seq`, or as left by the
    /// batch that this one follows), whatever becomes of it in the batch. Where somebody else changed them since, that is a conflict.
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

/// A directory entry that is new, changed or gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryRecord {
    /// The directory.
    pub parent: FileId,
    /// The name: 1 to 255 bytes, without `/` and NUL, neither `.` nor `..`.
    pub name: ByteString,
    /// What the name stands for now; `None` removes it.
    pub child: Option<FileId>,
}

/// What the contents of a file are to be after the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProofRecord {
    /// The file, to which the batch gives new contents.
    pub id: FileId,
    /// The digest of the whole contents.
    pub digest: Digest,
    /// `None`: of their bytes (`byteback_delta::ContentDigest`). Otherwise of their leaves of this kind
    /// (`byteback_delta::leaves::LeafDigest`), for whoever has these without reading; spelt `sha256`, `blake2b256` or `blake3`.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "leaf_kind")]
    pub sums: Option<LeafKind>,
}

/// The time of a directory that was moved by names that came or went, and by nothing else.
///
/// Unlike a [`NodeRecord`] it is in no conflict with others' names in the directory: where others moved the time since the batch's base, the later of
/// both counts. With other attributes that others changed it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryTimeRecord {
    /// The directory. One that the folder does not have is passed over.
    pub id: FileId,
    /// Its time of modification, ns since the Unix epoch.
    #[serde(with = "crate::wide_ns")]
    pub mtime_ns: i128,
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

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A batch stream cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// The underlying stream failed.
    #[error("the stream failed: {0}")]
    Io(#[from] std::io::Error),
    /// The stream ends inside a record or the header.
    #[error("the stream ends inside record {record}")]
    Truncated {
        /// Number of the record in its piece, from 0.
        record: u64,
    },
    /// The first bytes are not [`MAGIC`].
    #[error("this is not a batch stream")]
    NotABatch,
    /// A version that this program does not read.
    #[error("batch stream version {0} is not supported, only {VERSION} and {VERSION_PACKED}: update the older side")]
    Version(u8),
    /// A packed piece gives nothing, or too much.
    #[error("the packed piece cannot be unpacked: {0}")]
    Packed(String),
    /// A tag that this version does not have.
    #[error("record {record} has the unknown kind {tag}")]
    UnknownTag {
        /// Number of the record.
        record: u64,
        /// Its tag.
        tag: u8,
    },
    /// A length that no valid record has.
    #[error("record {record} claims {len} bytes, which its kind does not allow")]
    BadLength {
        /// Number of the record.
        record: u64,
        /// The claimed length in bytes.
        len: u64,
    },
    /// The length is no valid varint.
    #[error("the length of record {record} is malformed")]
    BadVarint {
        /// Number of the record.
        record: u64,
    },
    /// The bytes differ from what was written.
    #[error("record {record} arrived with a wrong checksum")]
    Checksum {
        /// Number of the record.
        record: u64,
    },
    /// A JSON payload does not parse.
    #[error("record {record} is not the JSON of its kind: {source}")]
    Json {
        /// Number of the record.
        record: u64,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// The tag of a manifest and its contents disagree.
    #[error("record {record} is a manifest whose kind and whose contents disagree on whether it follows another batch")]
    FollowsTag {
        /// Number of the record.
        record: u64,
    },
    /// Bytes of a delta record were not part of its delta stream.
    #[error("record {record} holds {len} bytes after the end of its delta")]
    TrailingDelta {
        /// Number of the record.
        record: u64,
        /// How many bytes.
        len: u64,
    },
    /// A record follows the totals.
    #[error("record {record} follows the end of the batch")]
    AfterEnd {
        /// Number of the record.
        record: u64,
    },
    /// The bytes given for a delta are more or fewer than announced.
    #[error("a delta was announced with {announced} bytes and has another length")]
    DeltaLength {
        /// What was announced, in bytes.
        announced: u64,
    },
}

#[cfg(test)]
mod tests;
