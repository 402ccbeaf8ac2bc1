//! The batch stream: how one atomic group of changes travels from a client to a server.
//!
//! A batch is cut into one or more *pieces* at record borders; each piece is one request body.
//!
//! ```text
//! piece   = magic "BYBATCH" | u8 = 1 | record*
//! record  = tag u8 | payload_len varint (LEB128) | payload | crc32c u32 LE
//! ```
//! The checksum covers tag, length bytes and payload. Records, in this order of kinds:
//!
//! | tag | kind | payload | where |
//! |---|---|---|---|
//! | 1 | [`Manifest`] | JSON | exactly once, first record of the batch |
//! | 7 | [`Manifest`] with [`Manifest::follows`] | JSON | instead of tag 1 |
//! | 2 | [`NodeRecord`] | JSON | at most once per node, before the node's deltas |
//! | 3 | [`NameChange<FileId>`] | JSON | at most once per (parent, name) |
//! | 4 | delta | [`FileId`] (16 bytes, big-endian) and a complete delta stream | as many as the node's [`ContentChange::deltas`], in order |
//! | 6 | [`ProofRecord`] | JSON | at most once per node that gets new contents, anywhere |
//! | 8 | [`DirectoryTimeRecord`] | JSON | at most once per directory that has no node record, anywhere |
//! | 5 | [`Totals`] | JSON | exactly once, last record of the batch |
//!
//! Nodes, entries and deltas may alternate. All parts of a batch, in the order of their numbers,
//! and the commit's body last form the batch, so the manifest stands in part 1 (or in the commit's
//! body if there are no parts) and the totals stand in the commit's body.
//!
//! The sender of a delta without copies need not know the length of its base: the base is first
//! truncated, or extended with zeros, to the delta's `base_len`. A sender that knows the changed
//! ranges and the new length sets `base_len = new_len`.
//!
//! A *proof* states the digest of a file's new contents; the store compares it before it applies
//! any of the batch. Senders use it for contents whose copies were found by checksums that came
//! from elsewhere.
//!
//! Several deltas of one file apply one after the other: the base of the first is the file's
//! previous contents, nothing, or the contents of another file ([`ContentBase`]); the base of each
//! further one is the result so far. So a large first upload is split into pieces without waiting
//! for its end.
//!
//! A batch that holds the whole tree, because its sender has lost its state, need not resend what
//! the folder already has: it names the sequence number that it *replaces*
//! ([`Manifest::replaces`]), and its contents may build on those that any file of the folder had
//! then ([`ContentBase::Of`]).
//!
//! A device that sends batches without waiting for the answers does not know their sequence
//! numbers. Its new batch instead names the one that it *follows* ([`Manifest::follows`]) and
//! builds on the state which that one left.
//!
//! A piece is [`packed`], if that makes it shorter: its records then form one compressed frame
//! behind the byte [`VERSION_PACKED`], or [`VERSION_STREAMED`] if it is long. All other pieces are
//! plain.
//!
//! Out of scope: checking that a batch makes sense. That needs the folder and is the store's work.

mod leaf_kind;
mod packed;
mod reader;
mod writer;

use crate::Digest;
use byteback_delta::leaves::LeafKind;
use byteback_model::FileId;
use serde::{Deserialize, Serialize};

pub(crate) use packed::DICTIONARY;
pub use packed::{STREAMED_LEN_MAX, UNPACKED_LEN_MAX, VERSION_PACKED, VERSION_STREAMED, packed};
pub use reader::{BatchReader, Record};
pub use writer::BatchWriter;

/// The first bytes of every piece; [`VERSION`], [`VERSION_PACKED`] or [`VERSION_STREAMED`] follows.
pub const MAGIC: [u8; 7] = *b"BYBATCH";

/// The version byte of a plain piece.
pub const VERSION: u8 = 1;

/// Longest JSON payload in bytes. The largest record is a node with xattrs: Linux allows 64 KiB of
/// names and 64 KiB per value, but file systems in use store no more than a few such values per
/// file.
pub const JSON_LEN_MAX: u64 = 4 * 1024 * 1024;

pub(crate) const TAG_MANIFEST: u8 = 1;
pub(crate) const TAG_NODE: u8 = 2;
pub(crate) const TAG_ENTRY: u8 = 3;
pub(crate) const TAG_DELTA: u8 = 4;
pub(crate) const TAG_END: u8 = 5;
pub(crate) const TAG_PROOF: u8 = 6;
pub(crate) const TAG_FOLLOWING_MANIFEST: u8 = 7;
pub(crate) const TAG_DIRECTORY_TIME: u8 = 8;

/// Most ranges of one [`ProofRecord`].
pub const PROVEN_RANGES_MAX: usize = 4096;

/// The digest that a file's contents, or some ranges of them, must have after the batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProofRecord {
    /// The file, whose contents the batch changes.
    pub id: FileId,
    /// The digest of the whole contents, or of the bytes of `ranges` one after the other.
    pub digest: Digest,
    /// `None`: `digest` is of the bytes (`byteback_delta::ContentDigest`). Otherwise it is of the
    /// leaves of this kind (`byteback_delta::leaves::LeafDigest`), for senders that have these
    /// without reading the file; spelt `sha256`, `blake2b256` or `blake3`.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "leaf_kind")]
    pub sums: Option<LeafKind>,
    /// Offset and length in bytes of each range that `digest` is of, ascending and apart from each
    /// other, at most [`PROVEN_RANGES_MAX`]; empty for the whole contents. Not together with
    /// `sums`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<(u64, u64)>,
}

/// The new time of a directory in which only names came or went.
///
/// Unlike a [`NodeRecord`] it does not conflict with others' names in the directory: if others
/// moved the time since the batch's base, the later time wins. It does conflict with others'
/// changes of other attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryTimeRecord {
    /// The directory. The record is ignored if the folder has no such directory.
    pub id: FileId,
    /// Its time of modification, ns since the Unix epoch.
    #[serde(with = "byteback_model::wide_ns")]
    pub mtime_ns: i128,
}

/// An error of writing or reading a batch stream.
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
    /// This program does not read the version.
    #[error("batch stream version {0} is not supported, only {VERSION} to {VERSION_STREAMED}: update the older side")]
    Version(u8),
    /// A packed piece unpacks to nothing, or to too much.
    #[error("cannot unpack the packed piece: {0}")]
    Packed(String),
    /// This version has no such tag.
    #[error("record {record} has unknown kind {tag}")]
    UnknownTag {
        /// Number of the record.
        record: u64,
        /// Its tag.
        tag: u8,
    },
    /// No valid record has this length.
    #[error("record {record} claims {len} bytes, which its kind does not allow")]
    BadLength {
        /// Number of the record.
        record: u64,
        /// The claimed length in bytes.
        len: u64,
    },
    /// The length is not a valid varint.
    #[error("the length of record {record} is malformed")]
    BadVarint {
        /// Number of the record.
        record: u64,
    },
    /// The bytes differ from what was written.
    #[error("record {record} has a wrong checksum")]
    Checksum {
        /// Number of the record.
        record: u64,
    },
    /// A JSON payload does not parse.
    #[error("record {record} is not valid JSON of its kind: {source}")]
    Json {
        /// Number of the record.
        record: u64,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// The tag of a manifest and its contents disagree.
    #[error("the kind and the contents of manifest record {record} disagree on whether it follows another batch")]
    FollowsTag {
        /// Number of the record.
        record: u64,
    },
    /// Bytes of a delta record were not part of its delta stream.
    #[error("record {record} holds {len} bytes after the end of its delta")]
    TrailingDelta {
        /// Number of the record.
        record: u64,
        /// Number of these bytes.
        len: u64,
    },
    /// A record follows the totals.
    #[error("record {record} follows the end of the batch")]
    AfterEnd {
        /// Number of the record.
        record: u64,
    },
    /// The bytes given for a delta are more or fewer than announced.
    #[error("a delta does not have the announced length of {announced} bytes")]
    DeltaLength {
        /// The announced length in bytes.
        announced: u64,
    },
}

#[cfg(test)]
mod tests;
