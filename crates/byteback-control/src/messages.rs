//! Requests and answers, one for each method of [`crate::TreeService`].
//!
//! Both are tagged from outside (`{"cut": {...}}`, `"status"`): a tag inside would make the reader
//! keep a whole untrusted message as a tree of values before it knows what it is.
//!
//! **New fields.** A reader ignores fields that it does not know. A field that is missing is an
//! error, unless it is an `Option` or has `#[serde(default)]`: a new field of an answer needs one
//! of these, with a default that means "not known". A new field of a request needs one, too, and is
//! only for what an older daemon may ignore. A new request is for what its sender can do without:
//! an older daemon answers it with an error. Any other change (a field that is gone or means
//! something else, a new variant of an answer to an earlier request) is a new version of the hello.

use byteback_model::{Attributes, ByteString, NodeId};
use byteback_oplog::{ChangesCursor, ChangesPage, Epoch};
use serde::{Deserialize, Serialize};

use crate::leaves::{LeafOffer, LeafRequest, LeavesSummary};
use crate::repair::{RepairReport, RepairRequest};
use crate::service::{
    CutId, CutInfo, CutRequest, DirEntry, FileHistory, FinishReport, NamedCut, NodeNames, Outcome, PastFile,
    ServiceError, TreeStatus,
};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    Status,
    ResolvePending {
        consumer: String,
        saved: Option<Vec<u8>>,
    },
    DropConsumer {
        consumer: String,
    },
    Cut {
        cut: CutRequest,
    },
    LookAt {
        name: ByteString,
        cut: CutRequest,
    },
    Changes {
        cut: CutId,
        cursor: ChangesCursor,
    },
    Attributes {
        cut: CutId,
        nodes: Vec<NodeId>,
    },
    Read {
        cut: CutId,
        node: NodeId,
        ranges: Vec<(u64, u64)>,
    },
    Peek {
        cut: CutId,
        node: NodeId,
        ranges: Vec<(u64, u64)>,
    },
    PeekMany {
        cut: CutId,
        files: Vec<(NodeId, u64)>,
    },
    Release {
        cut: CutId,
        nodes: Vec<NodeId>,
    },
    BeforeImage {
        cut: CutId,
        node: NodeId,
    },
    LeafOffer {
        cut: CutId,
        node: NodeId,
    },
    LeafSums {
        cut: CutId,
        node: NodeId,
        leaves: LeafRequest,
    },
    Path {
        cut: CutId,
        node: NodeId,
    },
    Names {
        cut: CutId,
        nodes: Vec<NodeId>,
    },
    Entries {
        cut: CutId,
        directory: NodeId,
        after: Option<ByteString>,
    },
    Find {
        cut: CutId,
        path: ByteString,
    },
    Advance {
        consumer: String,
        cut: Epoch,
    },
    NoteBatch {
        cut: CutId,
        batch: u64,
    },
    Finish {
        cut: CutId,
        outcome: Outcome,
    },
    Unmount,
    SyncWishesChanged,
    Repair {
        repair: RepairRequest,
    },
    OpenCut {
        name: ByteString,
    },
    CloseCut {
        name: ByteString,
    },
    ListCuts,
    History {
        path: ByteString,
    },
    ReadPast {
        path: ByteString,
        at_ns: i64,
    },
    /// After the answer, the connection carries a line to the server instead of requests.
    Line,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Error(ServiceError),
    Done,
    Status(Box<TreeStatus>),
    Dropped(bool),
    Heard(bool),
    Repaired(RepairReport),
    Cut(CutInfo),
    Changes(ChangesPage),
    Attributes(Vec<Result<Attributes, ServiceError>>),
    Path(Option<ByteString>),
    Names(Vec<NodeNames>),
    Entries(Vec<DirEntry>),
    Found(Option<NodeId>),
    Advanced(bool),
    Finished(FinishReport),
    NamedCut(NamedCut),
    NamedCuts(Vec<NamedCut>),
    History(Box<FileHistory>),
    Past(PastFile),
    LeafOffer(LeafOffer),
    LeafSums(LeavesSummary),
    Unread(Vec<(usize, ServiceError)>),
    BeforeImage(Option<u64>),
}

#[cfg(test)]
mod tests;
