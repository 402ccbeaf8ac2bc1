//! A tracked tree as its users see it.
//!
//! The way of a backup: [`cut`](TreeService::cut), page through [`changes`](TreeService::changes),
//! fetch [`attributes`](TreeService::attributes) and [`read`](TreeService::read) ranges, all as of
//! the cut; [`note_batch`](TreeService::note_batch) before something is sent that cannot be taken
//! back; then [`finish`](TreeService::finish). A user that dies in between leaves its pending cut
//! to its successor.

use byteback_model::{Attributes, ByteString, NodeId, NodeKind};
use std::num::NonZeroU64;
use std::os::unix::net::UnixStream;

use byteback_extents::ByteRange;
use byteback_oplog::{
    ChangesCursor, ChangesPage, ConsumerState, Dropped, Epoch, LedgerEntry, PendingCut, TreeId, Usage,
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::leaves::{LeafOffer, LeafPiece, LeafRequest, LeavesSummary};
use crate::repair::{RepairReport, RepairRequest};
use crate::sync_status::SyncStatus;

/// A cut that is being read, as long as its tree's process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CutId(pub u64);

/// The wish for a cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutRequest {
    /// Whose mark counts.
    pub consumer: String,
    /// Report everything, as if there were no mark.
    #[serde(default)]
    pub everything: bool,
    /// Only look: reported changes are not held for any consumer, and content cannot be read. The
    /// epoch goes on.
    #[serde(default)]
    pub look_only: bool,
    /// Look since this epoch instead of the consumer's mark.
    #[serde(default)]
    pub since: Option<Epoch>,
    /// For no consumer: reported changes are held while the cut is open, and no mark is made or
    /// moved, however it ends. `consumer` then only names the mark to begin at; it may be empty.
    /// Every file can be read, also one that did not change.
    #[serde(default)]
    pub anonymous: bool,
    /// The consumer will read changed files as a whole, not only the changes in them: all of them
    /// is held still.
    #[serde(default)]
    pub whole_files: bool,
}

impl CutRequest {
    /// A cut for `consumer`, since its mark.
    #[must_use]
    pub fn of(consumer: &str) -> Self {
        Self {
            consumer: consumer.to_owned(),
            everything: false,
            look_only: false,
            since: None,
            anonymous: false,
            whole_files: false,
        }
    }
}

/// A cut that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutInfo {
    /// The cut.
    pub cut: CutId,
    /// The tree.
    pub tree: TreeId,
    /// The first epoch after the cut.
    pub epoch: Epoch,
    /// Since when changes are reported; `None`: everything is.
    pub since: Option<Epoch>,
    /// Changed nodes.
    pub nodes: u64,
    /// Changed names.
    pub names: u64,
    /// Bytes of content that have to be read, as far as is known before reading.
    pub content_bytes: u64,
    /// Nodes of the tree at the cut.
    pub tree_nodes: u64,
    /// Directories that could not be read (only where no daemon tracks the tree): their contents
    /// are unknown.
    pub unreadable: Vec<ServiceError>,
}

/// All names of a node at a cut.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeNames {
    /// The kind of the node; `None`: it does not exist then.
    pub kind: Option<NodeKind>,
    /// Each name with its directory. The root has none.
    pub names: Vec<(NodeId, ByteString)>,
    /// The file for which one of the names stood at the mark, if that was another one: a file that
    /// was saved under a new name and renamed grew from it. A guess: nothing may rest on it.
    #[serde(default)]
    pub stood_for: Option<NodeId>,
    /// The file from which a program copied it last, if the tree saw that. A guess, too.
    #[serde(default)]
    pub copied_from: Option<NodeId>,
}

/// An entry of a directory at a cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirEntry {
    /// The name.
    pub name: ByteString,
    /// The node that the name stands for.
    pub node: NodeId,
    /// The kind of that node.
    pub kind: NodeKind,
}

/// A piece of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Bytes.
    Data {
        /// Where they are.
        offset: u64,
        /// The bytes from there on.
        bytes: &'a [u8],
    },
    /// A hole: it reads as zeros and takes no space.
    Hole(ByteRange),
}

impl Piece<'_> {
    /// The piece, this much further up.
    #[must_use]
    pub fn moved_up(self, by_bytes: u64) -> Self {
        match self {
            Self::Data { offset, bytes } => Self::Data {
                offset: offset.saturating_add(by_bytes),
                bytes,
            },
            Self::Hole(range) => {
                let (start, end) = (
                    range.start().saturating_add(by_bytes),
                    range.end().saturating_add(by_bytes),
                );
                Self::Hole(ByteRange::new(start, end).unwrap_or(range))
            }
        }
    }
}

/// How the reading of a cut ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Everything is saved but `unsaved`, which is reported again next time: the mark moves.
    Saved {
        /// The consumer's own note on this backup.
        note: Vec<u8>,
        /// Nodes that could not be read or saved.
        unsaved: Vec<NodeId>,
    },
    /// Nothing was saved: the mark stays.
    Abandoned,
    /// Whether it arrived is not known yet: the pending cut stays for the successor to ask about.
    Unknown,
}

/// The cost of reading a cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishReport {
    /// Bytes of content read from the backing files.
    pub read_bytes: u64,
    /// Old bytes that were kept because programs overwrote them before they were read.
    pub kept_bytes: u64,
    /// CPU time of the tree's process since the cut, where it is another process than the asking
    /// one, nanoseconds.
    pub cpu_ns: u64,
}

/// The state of a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeStatus {
    /// The tracked directory.
    pub path: ByteString,
    /// Where it is mounted; `None` when it is not.
    pub mounted_at: Option<ByteString>,
    /// `exact` or `fast`.
    pub mode: Option<String>,
    /// The tree.
    pub tree: TreeId,
    /// The current epoch.
    pub epoch: Epoch,
    /// Nodes in the record.
    pub nodes: u64,
    /// Nodes that are open for change, or were not long ago.
    pub open_nodes: u64,
    /// Process id of the daemon.
    pub pid: u32,
    /// Consumers: name, mark, pending cut, time of the last backup (nanoseconds since 1970), note.
    pub consumers: Vec<ConsumerStatus>,
    /// The coverage ledger, oldest first.
    pub ledger: Vec<LedgerEntry>,
    /// The costs of the log, and the gaps in its knowledge.
    pub usage: Usage,
    /// Continuous sync, where the process does that.
    pub sync: Option<SyncStatus>,
    /// Files with bytes that changed although no program wrote them, as far as that was noticed:
    /// those bytes are not sent.
    pub damaged: Vec<DamagedFile>,
    /// The mount is gone from its place, and the process goes on for now.
    pub detached: Option<Detached>,
    /// Why the volume in which the tree lies takes nothing more: its device refused a write.
    pub volume_failure: Option<String>,
}

/// A mount that is gone from its place: programs that come by the path pass it by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detached {
    /// Nothing uses it any more, and the process is about to end.
    pub has_ended: bool,
    /// The processes and mounts that keep the mount alive, as far as the daemon may see them.
    pub held_by: Vec<Holder>,
}

/// Something that keeps a mount alive that is gone from its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The process; `None` for a further mount in the daemon's own mount namespace.
    pub pid: Option<u32>,
    /// The name of that process.
    pub name: String,
    /// Where the mount namespace of that process, or the daemon's, shows the tree.
    pub point: Option<ByteString>,
    /// The process works in the tree.
    pub works_there: bool,
    /// How many files of the tree it has open.
    pub open_files: u64,
}

/// A file with bytes that are not what was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedFile {
    /// The file.
    pub node: NodeId,
    /// A path of it, below the root; `None` if it has no name any more.
    pub path: Option<ByteString>,
    /// A crash of the machine left it as it never was: none of it is sent. Otherwise what is not
    /// damaged is.
    pub after_crash: bool,
    /// When it was noticed, in nanoseconds since 1970.
    pub found_at_ns: i64,
    /// Offset and length in bytes, in whole blocks.
    pub ranges: Vec<(u64, u64)>,
}

/// The state of one consumer of a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumerStatus {
    /// Its name.
    pub name: String,
    /// Its mark.
    pub mark: Option<Epoch>,
    /// Its pending cut: epoch and batch.
    pub pending: Option<(Epoch, u64)>,
    /// When its mark last moved, nanoseconds since 1970.
    pub saved_at_ns: i64,
    /// Its memory.
    pub note: Vec<u8>,
    /// When it last did anything, nanoseconds since 1970.
    pub heard_at_ns: i64,
    /// How many files it has marks of.
    pub file_marks: u64,
    /// When it will be dropped unless it is heard of, nanoseconds since 1970; `None` while its
    /// silence is not worth a warning.
    pub expires_at_ns: Option<i64>,
    /// The consumer was dropped, and has not saved anything since.
    pub dropped: Option<Dropped>,
}

impl ConsumerStatus {
    /// The log's state of the consumer `name`. `expires_at_ns`: see
    /// [`ConsumerStatus::expires_at_ns`].
    #[must_use]
    pub fn of(name: String, state: ConsumerState, expires_at_ns: Option<i64>) -> Self {
        Self {
            name,
            mark: state.mark,
            pending: state.pending.map(|pending| (pending.epoch, pending.batch)),
            saved_at_ns: state.saved_at_ns,
            note: state.note,
            heard_at_ns: state.heard_at_ns,
            file_marks: state.file_marks,
            expires_at_ns,
            dropped: state.dropped,
        }
    }

    /// The pending cut.
    #[must_use]
    pub fn pending_cut(&self) -> Option<PendingCut> {
        self.pending.map(|(epoch, batch)| PendingCut { epoch, batch })
    }
}

/// A named cut of the whole tree, which programs read at its path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedCut {
    /// Its name; the one it had, if it was ended.
    pub name: ByteString,
    /// Where it is read.
    pub path: ByteString,
    /// The first epoch after it.
    pub epoch: Epoch,
    /// When it was opened, nanoseconds since 1970.
    pub opened_at_ns: i64,
    /// Old bytes kept for it so far.
    pub kept_bytes: u64,
    /// The cut was ended, and programs still have files of it open.
    pub is_ended: bool,
    /// Why it cannot be read any more.
    pub lost: Option<String>,
}

/// The past of a file, as far as it is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHistory {
    /// For how long old bytes are kept, nanoseconds.
    pub window_ns: i64,
    /// How many at most.
    pub budget_bytes: u64,
    /// How much of that is used, by the whole tree.
    pub kept_bytes: u64,
    /// Changes that begin within this time of each other share a moment, nanoseconds.
    pub quantum_ns: i64,
    /// Before this time (nanoseconds since 1970) nothing is known, and why.
    pub known_since: Option<(i64, String)>,
    /// The changes, oldest first; only the last thousand.
    pub moments: Vec<PastMoment>,
}

/// Something that happened to a file. Its time brings back what was before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastMoment {
    /// When, nanoseconds since 1970.
    pub at_ns: i64,
    /// The event.
    pub what: PastEvent,
    /// How long the file was before, where it is known.
    pub size_before_bytes: Option<u64>,
    /// How much of the old content was overwritten or cut off, and is kept.
    pub kept_bytes: u64,
    /// In how many ranges.
    pub kept_ranges: u64,
    /// Why what was before cannot be brought back, if so.
    pub not_kept: Option<String>,
}

/// An event in a file's past.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PastEvent {
    /// The file was written.
    Written,
    /// The file was cut off or lengthened.
    Truncated,
    /// A range of it was zeroed or allocated.
    Zeroed,
    /// The file was removed.
    Removed,
    /// The file was created.
    Created,
    /// Another file was moved into its place.
    Replaced,
    /// The file got this name.
    MovedHere,
    /// The file lost this name to another place.
    MovedAway,
}

/// The result of reading a file's past.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastFile {
    /// How long it was.
    pub size_bytes: u64,
    /// The moment whose content it is (nanoseconds since 1970); `None`: it has not changed since.
    pub moment_ns: Option<i64>,
    /// The file had another name then.
    pub had_other_name: bool,
    /// Of a file that was removed since: mode, owner and group that it had then.
    #[serde(default)]
    pub rights: Option<(u32, u32, u32)>,
}

/// The kind of a failure, which decides what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The node could not be read; others can.
    Node,
    /// The picture is lost (no space for old bytes, or the cut is unknown): begin a new backup.
    PictureLost,
    /// The file system will never have such a node or name.
    Impossible,
    /// This file cannot be changed as long as it is as it is: it is immutable or append-only, is
    /// being executed, has a disk mounted on it, or the process lacks the right to. Everything else
    /// can.
    Blocked,
    /// The log failed; its message says what to do.
    Log,
    /// The request is not possible now; the message says why.
    Refused,
    /// The tree's process cannot be reached any more.
    Gone,
    /// The two ends do not understand each other.
    Protocol,
}

/// An error of a tree service, as it crosses the socket.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct ServiceError {
    /// The kind of the failure.
    pub kind: ErrorKind,
    /// The operation that failed, the file, and what to do next.
    pub message: String,
    /// The path below the root, where one file is concerned.
    #[serde(default)]
    pub path: Option<ByteString>,
}

impl ServiceError {
    /// An error of `kind` without a path.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            path: None,
        }
    }
}

/// The result of a request.
pub type Result<T, E = ServiceError> = std::result::Result<T, E>;

/// The block length in which a cut is held still, counted from a file's start: of a block in which
/// a byte is reported as changed, all bytes can be read as they were at the cut, so that a
/// comparison of blocks sums the bytes of that moment.
pub const HELD_BLOCK_BYTES: NonZeroU64 = NonZeroU64::new(4096).unwrap();

/// A tracked tree. Calls may come from any thread and take as long as the disk does.
pub trait TreeService: Send + Sync {
    /// The state of the tree.
    ///
    /// # Errors
    /// If the log cannot be read.
    fn status(&self) -> Result<TreeStatus>;

    /// Settles the pending cut of a consumer whose last backup did not end: it became the mark, or
    /// it is given up. `note` is remembered if it was saved.
    ///
    /// # Errors
    /// If the log cannot be written.
    fn resolve_pending(&self, consumer: &str, saved: Option<Vec<u8>>) -> Result<()>;

    /// Gives a consumer up: unsaved changes are no longer kept for it, and the ledger says so. If
    /// it was dropped before, the memory of that goes too. Returns whether there was anything to
    /// give up.
    ///
    /// # Errors
    /// If the log cannot be written.
    fn drop_consumer(&self, consumer: &str) -> Result<bool>;

    /// Cuts the tree.
    ///
    /// # Errors
    /// If the log cannot be written or, where no daemon tracks the tree, the tree cannot be read.
    fn cut(&self, request: &CutRequest) -> Result<CutInfo>;

    /// A page of the changes up to the cut.
    ///
    /// # Errors
    /// For a cut that is not open.
    fn changes(&self, cut: CutId, cursor: &ChangesCursor) -> Result<ChangesPage>;

    /// The attributes of nodes at the cut, in the order asked; an error for each that cannot be
    /// read.
    ///
    /// # Errors
    /// For a cut that is not open or lost.
    fn attributes(&self, cut: CutId, nodes: &[NodeId]) -> Result<Vec<Result<Attributes>>>;

    /// Reads ranges (ascending, not overlapping) of a file at the cut and hands them to `sink` in
    /// order, in pieces that together cover the ranges up to the file's end at the cut. Bytes that
    /// were read are no longer kept for the cut. Where a daemon holds the tree still, only ranges
    /// reported as changed can be read, widened to blocks of [`HELD_BLOCK_BYTES`], or to
    /// [`CutRequest::whole_files`]; with an anonymous cut, everything.
    ///
    /// # Errors
    /// [`ErrorKind::Node`] if this file cannot be read, otherwise for the whole cut. An error of
    /// `sink` is handed back.
    fn read(
        &self,
        cut: CutId,
        node: NodeId,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()>;

    /// As [`read`](TreeService::read), for a caller that will read the same bytes again: they stay
    /// as they were at the cut.
    ///
    /// # Errors
    /// As [`read`](TreeService::read).
    fn peek(
        &self,
        cut: CutId,
        node: NodeId,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()>;

    /// As [`peek`](TreeService::peek), of many files as a whole: each with its length at the cut,
    /// in bytes. The pieces come as if the files lay end to end, in this order, and none is of
    /// two files. A file that cannot be read is named by its place among `files`, with the
    /// reason; the pieces that came of it count for nothing.
    ///
    /// # Errors
    /// For the whole cut. An error of `sink` is handed back.
    fn peek_many(
        &self,
        cut: CutId,
        files: &[(NodeId, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<Vec<(usize, ServiceError)>> {
        let mut failed = Vec::new();
        let mut start: u64 = 0;
        for (place, (node, len_bytes)) in files.iter().enumerate() {
            let mut refused = false;
            let read = self.peek(cut, *node, &[(0, *len_bytes)], &mut |piece| {
                sink(piece.moved_up(start)).inspect_err(|_| refused = true)
            });
            match read {
                Ok(()) => {}
                Err(error) if error.kind == ErrorKind::Node && !refused => failed.push((place, error)),
                Err(error) => return Err(error),
            }
            start = start.saturating_add(*len_bytes);
        }
        Ok(failed)
    }

    /// Ends the need for the contents of files that were peeked at: they need not stay as they were
    /// at the cut any longer. Files that are not in the cut are passed over. A tree that must be
    /// able to tell the contents again does nothing.
    ///
    /// # Errors
    /// For a cut that is not open or lost.
    fn release(&self, _cut: CutId, _nodes: &[NodeId]) -> Result<()> {
        Ok(())
    }

    /// Hands what a file was at the consumer's mark to `sink`, where it changed since and the old
    /// bytes are at hand, in ascending pieces. Returns the length that the file had then; `None`
    /// if nothing of that is known. Only a guess: what is made of it has to be proven.
    ///
    /// # Errors
    /// For a cut that is not open. An error of `sink` is handed back.
    fn before_image(
        &self,
        _cut: CutId,
        _node: NodeId,
        _sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Which checksums of a file's leaves are best asked for. Nothing is read.
    ///
    /// # Errors
    /// [`ErrorKind::Node`] if there is no such file at the cut; for a cut that is not open, or a
    /// tree that cannot tell.
    fn leaf_offer(&self, _cut: CutId, _node: NodeId) -> Result<LeafOffer> {
        Err(unsupported_request())
    }

    /// Returns the checksums of all leaves of a file as it was at the cut, ascending, without gaps,
    /// to its end. Leaves without all requested checksums are read, and can be read again. Nothing
    /// counts before this returns; a piece at 0 that is not the first begins anew.
    ///
    /// # Errors
    /// [`ErrorKind::Node`] if this file cannot be summed, otherwise for the whole cut. An error of
    /// `sink` is handed back.
    fn leaf_sums(
        &self,
        _cut: CutId,
        _node: NodeId,
        _request: LeafRequest,
        _sink: &mut dyn FnMut(LeafPiece<'_>) -> Result<()>,
    ) -> Result<LeavesSummary> {
        Err(unsupported_request())
    }

    /// The path of a node below the root at the cut.
    ///
    /// # Errors
    /// For a cut that is not open.
    fn path(&self, cut: CutId, node: NodeId) -> Result<Option<ByteString>>;

    /// All names of nodes at the cut, in the order asked.
    ///
    /// # Errors
    /// For a cut that is not open, or a tree that cannot tell.
    fn names(&self, _cut: CutId, _nodes: &[NodeId]) -> Result<Vec<NodeNames>> {
        Err(unsupported_request())
    }

    /// A page of a directory at the cut, in byte order of the names, from the one behind `after`
    /// on; empty after the last.
    ///
    /// # Errors
    /// For a cut that is not open, or a tree that cannot tell.
    fn entries(&self, _cut: CutId, _directory: NodeId, _after: Option<&ByteString>) -> Result<Vec<DirEntry>> {
        Err(unsupported_request())
    }

    /// The node at a path below the root at the cut: names with single slashes between them, no `.`
    /// and no `..`. The empty path is the root.
    ///
    /// # Errors
    /// For a cut that is not open, or a tree that cannot tell.
    fn find(&self, _cut: CutId, _path: &ByteString) -> Result<Option<NodeId>> {
        Err(unsupported_request())
    }

    /// The pending cut of a consumer is saved and becomes its mark, if it is the one that ended at
    /// `cut`; answers whether it was. For programs that keep no connection while they save.
    ///
    /// # Errors
    /// If the log cannot be written, or for a tree that keeps no marks.
    fn advance(&self, _consumer: &str, _cut: Epoch) -> Result<bool> {
        Err(unsupported_request())
    }

    /// Remembers durably which batch carries the cut.
    ///
    /// # Errors
    /// If the log cannot be written.
    fn note_batch(&self, cut: CutId, batch: u64) -> Result<()>;

    /// Ends the reading of a cut.
    ///
    /// # Errors
    /// If the log cannot be written: the mark then stays.
    fn finish(&self, cut: CutId, outcome: &Outcome) -> Result<FinishReport>;

    /// Unmounts the tree and ends its process. Not for a tree that is not mounted.
    ///
    /// # Errors
    /// If programs still use it; the message names what to do.
    fn unmount(&self) -> Result<()>;

    /// Announces that the settings of continuous sync, its limits or whether it is paused, have
    /// changed: the sync engine reads them again, at once. False if no engine keeps the tree in
    /// sync.
    ///
    /// # Errors
    /// If they cannot be read: the previous settings stay in force.
    fn sync_wishes_changed(&self) -> Result<bool> {
        Ok(false)
    }

    /// Reports the server's version of a damaged file, or repairs the file from it, or accepts the
    /// file as it is: where continuous sync runs.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] where it does not, the server has nothing of the file, or a program
    /// came in between; otherwise the failure of server or disk. Nothing is lost then.
    fn repair(&self, _request: &RepairRequest) -> Result<RepairReport> {
        Err(not_synced())
    }

    /// Hands over a connection whose other end wants to make its calls of the server on a line of
    /// this process. Returns at once; the process goes on with the connection by itself.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if this process has no line.
    fn carry_line(&self, _connection: UnixStream) -> Result<()> {
        Err(no_line())
    }

    /// Opens a cut of the whole tree under a name, for programs that read files: only where the
    /// tree is mounted. It lasts until [`close_cut`](TreeService::close_cut) or the end of the
    /// mount, whatever becomes of this connection.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if there is one of this name, there are too many, or the tree is not
    /// mounted.
    fn open_cut(&self, name: &ByteString) -> Result<NamedCut> {
        let _ = name;
        Err(no_named_cuts())
    }

    /// Ends a named cut; files of it that are open can be read until they are closed.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if there is none of this name.
    fn close_cut(&self, name: &ByteString) -> Result<()> {
        let _ = name;
        Err(no_named_cuts())
    }

    /// As [`cut`](TreeService::cut) with `look_only`, of the moment of a named cut: lists what
    /// changed up to it, with names as they were then.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if there is none of this name.
    fn look_at(&self, name: &ByteString, request: &CutRequest) -> Result<CutInfo> {
        let _ = (name, request);
        Err(no_named_cuts())
    }

    /// The known past of the file at a path below the root, of earlier files of that name, and of
    /// the name itself.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] where nothing is kept.
    fn history(&self, path: &ByteString) -> Result<FileHistory> {
        let _ = path;
        Err(no_undo())
    }

    /// Reads the file that was at a path just before a time (nanoseconds since 1970), or, if
    /// nothing was, the file that is there now as it was then, and hands it to `sink` in order.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] where nothing is kept, or not of this file at that time: the message
    /// says why. An error of `sink` is handed back.
    fn read_past(
        &self,
        path: &ByteString,
        at_ns: i64,
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<PastFile> {
        let _ = (path, at_ns, sink);
        Err(no_undo())
    }

    /// All named cuts.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] where the tree is not mounted.
    fn list_cuts(&self) -> Result<Vec<NamedCut>> {
        Err(no_named_cuts())
    }
}

fn no_undo() -> ServiceError {
    let message = "no old versions of this folder are kept; mount it with byteback mount --undo-window 30m";
    ServiceError::new(ErrorKind::Refused, message)
}

/// The error for a request that needs continuous sync where it does not run.
#[must_use]
pub fn not_synced() -> ServiceError {
    let message = "this folder is not being synced; start with: byteback sync DIR";
    ServiceError::new(ErrorKind::Refused, message)
}

/// The error for a request that needs a line to a server where no process has one.
#[must_use]
pub fn no_line() -> ServiceError {
    ServiceError::new(ErrorKind::Refused, "this process has no connection to a server")
}

fn no_named_cuts() -> ServiceError {
    let message = "named cuts need a mounted folder; mount it first: byteback mount DIR";
    ServiceError::new(ErrorKind::Refused, message)
}

fn unsupported_request() -> ServiceError {
    ServiceError::new(ErrorKind::Protocol, "this folder does not support that request")
}
