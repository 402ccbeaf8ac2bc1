//! The HTTP API of a Byteback server, version 1: the messages between client and server.
//!
//! Control messages are JSON ([`messages`], [`problem`]); a backup travels as a *batch stream*
//! ([`batch`]), a binary sequence of checksummed records that carries JSON records for names and
//! attributes and delta streams for contents. [`routes`] is the one table of calls, and
//! [`openapi`] holds the document that describes them.
//!
//! Words
//! - *folder*: a named tree on the server. Every applied batch gets the folder's next *sequence
//!   number* (`seq`, from 1), the order that everyone sees.
//! - *snapshot*: a name for a sequence number.
//! - *node*: a file, directory or other inode, identified by a [`byteback_model::FileId`] that the
//!   client chose.
//! - *entry*: a name in a directory: (parent, name) -> child.
//! - *batch*: one atomic group of changes, identified by (device id, counter); it is applied once
//!   even if it is sent twice.
//! - *part*: a piece of a batch that is staged before the batch is committed.
//!
//! Compatibility: fields are only ever added. A reader ignores unknown fields, and a writer may
//! omit fields that have a default. The batch stream carries its own version.
//!
//! Out of scope: logic, and I/O beyond `Read` and `Write`; this crate holds types, codecs and
//! documents.

pub mod batch;
pub mod contents_request;
pub mod digest;
pub mod directory_digests;
pub mod fingerprint;
pub mod folder_name;
pub mod join_code;
pub mod line;
pub mod messages;
pub mod openapi;
pub mod problem;
pub mod query;
pub mod routes;

pub use contents_request::ContentsRequest;
pub use digest::Digest;
pub use fingerprint::Fingerprint;
pub use folder_name::FolderName;
pub use join_code::JoinCode;
pub use problem::{Code, Problem};

/// Media type of a batch stream and of its pieces.
pub const MEDIA_BATCH: &str = "application/vnd.byteback.batch";

/// Media type of a delta stream (`byteback-delta`'s wire format).
pub const MEDIA_DELTA: &str = "application/vnd.byteback.delta";

/// Media type of a bundle of short contents (`byteback-delta`'s wire format).
pub const MEDIA_BUNDLE: &str = "application/vnd.byteback.bundle";

/// Media type of a request for the contents of many small files ([`contents_request`]).
pub const MEDIA_CONTENTS_REQUEST: &str = "application/vnd.byteback.contents-request";

/// Media type of a stream of contents (`byteback-delta`'s wire format).
pub const MEDIA_CONTENTS: &str = "application/vnd.byteback.contents";

/// Media type of a stream of events.
pub const MEDIA_EVENTS: &str = "text/event-stream";

/// Media type of a signature stream (`byteback-delta`'s wire format).
pub const MEDIA_SIGNATURE: &str = "application/vnd.byteback.signature";

/// Media type of sums of groups of leaves (`byteback-delta`'s wire format).
pub const MEDIA_GROUPS: &str = "application/vnd.byteback.groups";

/// Media type of the answer to sums of groups (`byteback-delta`'s wire format).
pub const MEDIA_GROUP_ANSWER: &str = "application/vnd.byteback.group-answer";

/// Media type of an excerpt: ranges of a content of which a fine signature is asked for
/// (docs/formats/excerpt.md).
pub const MEDIA_EXCERPT: &str = "application/vnd.byteback.excerpt";

/// Media type of a list of directory digests (docs/formats/directory-digests.md).
pub const MEDIA_DIRECTORY_DIGESTS: &str = "application/vnd.byteback.directory-digests";

/// Media type of the answer to an excerpt.
pub const MEDIA_EXCERPT_ANSWER: &str = "application/vnd.byteback.excerpt-answer";

/// Media type of a list of matches (`byteback-delta`'s wire format).
pub const MEDIA_MATCHES: &str = "application/vnd.byteback.matches";

/// Media type of a list of chunks (`byteback-delta`'s wire format).
pub const MEDIA_CHUNKS: &str = "application/vnd.byteback.chunks";

/// Media type of the answer to a list of chunks (`byteback-delta`'s wire format).
pub const MEDIA_CHUNK_ANSWER: &str = "application/vnd.byteback.chunk-answer";

/// Media type of JSON lines, the answer of a verification.
pub const MEDIA_JSON_LINES: &str = "application/x-ndjson";

/// Header of a commit: the number of parts that were staged by `PUT .../parts/{n}` (numbered from 1
/// without a gap). `0` or absent if the request's body is the whole batch.
pub const HEADER_PARTS: &str = "byteback-parts";

/// Header of a commit: the SHA-256 (hexadecimal) of the concatenated SHA-256s of its staged parts.
/// A server that has other parts reports them as missing and applies nothing.
pub const HEADER_PARTS_DIGEST: &str = "byteback-parts-digest";

/// Default limit of one request body that carries a piece of a batch, in bytes.
pub const PART_LEN_MAX_DEFAULT: u64 = 64 * 1024 * 1024;
