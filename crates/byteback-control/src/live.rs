//! A mounted tree as continuous sync sees it: the changes of its programs, in their order, as
//! groups to be sent.
//!
//! The sender loops in one thread: it calls [`poll`](LiveTree::poll) and does the work that this
//! returns:
//!
//! | work | the sender's task |
//! |---|---|
//! | [`Work::Idle`] | [`wait`](LiveTree::wait), at most as long as it says |
//! | [`Work::Send`] | make one batch of the group, with [`read`](LiveTree::read) and [`read_delta`](LiveTree::read_delta), and send it |
//! | [`Work::Cut`] | [`cut_fold`](LiveTree::cut_fold), then the same with what the tree's service tells of this cut |
//! | [`Work::Ask`] | ask the server what became of a group: [`applied`](LiveTree::applied) or [`never_arrived`](LiveTree::never_arrived) |
//! | [`Work::Decide`] | [`resolve`](LiveTree::resolve) a group that the server refused |
//! | [`Work::Ended`] | stop: the mount is gone |
//!
//! Items that did not change here but are to be taken from a cut are requested by
//! [`fold`](LiveTree::fold).
//!
//! The content of a fold's cut must be read with `TreeService::peek`, as it may have to be sent
//! again.
//!
//! Several groups may be in flight. They are answered in their order, by
//! [`applied`](LiveTree::applied), [`refused`](LiveTree::refused) or
//! [`unanswered`](LiveTree::unanswered). When a group is applied the server has exactly the state
//! that the tree had at [`LiveGroup::up_to`]; only the modification times may be newer, by as much
//! as the next groups bring.
//!
//! A group's number is durable when it is handed out, and is never reused;
//! [`known_up_to`](LiveTree::known_up_to) detects a lost one. Groups that an earlier process handed
//! out and that were not answered before it ended are
//! [`unanswered_before`](LiveTree::unanswered_before): they cannot be sent again, their changes are
//! in later groups.
//!
//! [`LiveTree`] stays within one process.

use byteback_model::{Attributes, NameChange, NodeId, NodeKind, Place};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use byteback_queue::queue::Resolution;
use byteback_queue::{GroupId, Position, Version};

use crate::service::{CutInfo, Piece, Result};

/// The next step of the sender.
#[derive(Clone, Debug)]
pub enum Work {
    /// Nothing, for so long at most; `None`: until something happens.
    Idle(Option<Duration>),
    /// A group is to be sent. The same one again if it was said to be unanswered.
    Send(Arc<LiveGroup>),
    /// So much waits that it is to be taken from a cut of the log.
    Cut,
    /// The server is to be asked what became of this group.
    Ask(GroupId),
    /// The server refused this group.
    Decide(GroupId),
    /// The tree is not mounted any more.
    Ended,
}

/// A transaction, which counts as a whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveGroup {
    /// Its number.
    pub id: GroupId,
    /// When it is applied, the server has the tree as it was right after this event.
    pub up_to: Position,
    /// The server is to make conflict versions of it.
    pub is_conflict: bool,
    /// The node that each changed name stands for afterwards.
    pub names: Vec<NameChange<NodeId>>,
    /// Nodes that are new, or whose content or attributes change, if they have a name afterwards:
    /// as they are then.
    pub nodes: Vec<LiveNode>,
    /// New contents, in the order in which they are to be applied. A file may have several, each on
    /// top of the one before.
    pub contents: Vec<LiveContent>,
    /// Directories whose time was moved by names that came and went, listed here or not, with that
    /// time, ns since the Unix epoch. Directories among the nodes are not repeated here.
    pub directory_times: Vec<(NodeId, i128)>,
    /// Instead of all that: the state to be taken from a cut.
    pub fold: Option<LiveFold>,
}

/// A node as it is after a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveNode {
    /// The node.
    pub node: NodeId,
    /// The kind of the node.
    pub kind: NodeKind,
    /// The group brings it into being.
    pub is_new: bool,
    /// Its attributes. Of a file, `size` is its length after the group.
    pub attributes: Attributes,
}

/// A new content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveContent {
    /// By what it is read.
    pub at: Position,
    /// The file.
    pub node: NodeId,
    /// The version that it makes.
    pub version: Version,
    /// The version that it stands on; `None`: the file is new, or it is the one that the reader
    /// knows the server to have.
    pub base: Option<Version>,
    /// The file's length in bytes.
    pub len_bytes: u64,
    /// The file loses its last name in this group: the content only serves as the base of another
    /// one.
    pub is_gone: bool,
    /// Where its bytes come from.
    pub source: LiveSource,
}

/// Where the bytes of a content come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LiveSource {
    /// From the file's content before, cut off or filled up with zeros to the new length, with
    /// these ranges (offset and length in bytes, ascending) laid over it: [`LiveTree::read`].
    Ranges(Vec<(u64, u64)>),
    /// From what `base` holds when it is this content's turn, by a delta: [`LiveTree::read_delta`].
    /// The base may have lost its name earlier in the same group.
    Delta {
        /// The file.
        base: NodeId,
        /// The version of that content; `None`: the one that the reader knows the server to have.
        base_version: Option<Version>,
        /// By what the delta is read.
        stamp: u64,
        /// How long the delta is, in bytes.
        len_bytes: u64,
    },
}

/// The state to be taken from a cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveFold {
    /// The version that each of its contents makes.
    pub version: Version,
    /// The cut, open at the tree's service for the consumer [`SYNC_CONSUMER`]. It is finished
    /// there, before the group is said to be applied.
    pub cut: CutInfo,
    /// The part of the cut to be sent.
    pub scope: LiveScope,
}

/// The part of a cut that is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LiveScope {
    /// All that changed since the consumer's mark; where it has none, the whole tree, and nothing
    /// else is there.
    Everything {
        /// The nodes of the names that groups changed since the mark: the log need not report names
        /// that came and went again. Some of these it reports, with the same node.
        names: Vec<NameChange<NodeId>>,
    },
    /// Names, contents and attributes as of the cut. Nodes without a name then are not sent.
    Items {
        /// Files with changed content, each with the version that it stands on (see
        /// [`LiveContent::base`]).
        contents: BTreeMap<NodeId, Option<Version>>,
        /// Nodes whose attributes may be news.
        attributes: BTreeSet<NodeId>,
        /// Names, with the nodes that they stand for: the log need not report those that came and
        /// went since the mark.
        names: Vec<NameChange<NodeId>>,
        /// The nodes that these names stood for before, if for any.
        stood_for: BTreeMap<Place<NodeId>, Option<NodeId>>,
        /// Directories whose time was moved by names that came and went, these or others.
        times: BTreeSet<NodeId>,
    },
}

/// The amount of waiting changes, and the space they take here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveStatus {
    /// Changes that wait.
    pub waiting_nodes: u64,
    /// Bytes of content that wait.
    pub waiting_bytes: u64,
    /// Groups that were handed out and not answered.
    pub groups_in_flight: u64,
    /// Bytes that were put aside because they were overwritten before they were sent.
    pub saved_bytes: u64,
    /// Removed files that are held open.
    pub kept_files: u64,
    /// All that waits is to be taken from a cut.
    pub is_folded: bool,
    /// Nodes that were in a fold and were not sent, in this process or an earlier one: the log goes
    /// on telling of them.
    pub unsaved_nodes: u64,
    /// How often since the start the order of changes was given up.
    pub abandoned: u64,
    /// Why, the last time.
    pub abandoned_because: Option<String>,
}

/// The consumer of the log that stands for continuous sync.
pub const SYNC_CONSUMER: &str = "sync";

/// See the module.
pub trait LiveTree: Send + Sync {
    /// The next step. It counts as begun when it is returned.
    ///
    /// # Errors
    /// If a group's number cannot be made durable: nothing may be sent then, and nothing is lost.
    fn poll(&self) -> Result<Work>;

    /// Waits until there may be something to be done, or the time is out.
    fn wait(&self, at_most: Duration);

    /// Ends a [`wait`](LiveTree::wait), or the next one if none is under way.
    fn wake(&self);

    /// Cuts the log, and hands out the fold up to the cut. The nodes of `also` are reported by the
    /// cut, as a whole and with their names, and can be read as they were then, whether they
    /// changed or not.
    ///
    /// # Errors
    /// If nothing is folded, or the tree cannot be cut.
    fn cut_fold(&self, also: &[NodeId]) -> Result<Arc<LiveGroup>>;

    /// Folds the waiting changes, if they are not folded: a cut comes then even if nothing waited.
    /// For a caller that lands others' changes where something waits, or that knows of something to
    /// be sent which was not reported here.
    fn fold(&self);

    /// Reads the ranges of a content of a group that is in flight, ascending, as they were at its
    /// turn.
    ///
    /// # Errors
    /// If they cannot be read any more: the order of changes is given up then, and
    /// [`poll`](LiveTree::poll) returns the next step. An error of `sink` is handed back.
    fn read(&self, content: &LiveContent, sink: &mut dyn FnMut(Piece<'_>) -> Result<()>) -> Result<()>;

    /// Reads a delta of a group that is in flight, from its beginning to its end.
    ///
    /// # Errors
    /// As [`read`](LiveTree::read).
    fn read_delta(&self, stamp: u64, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;

    /// The server applied a group, or made conflict versions of it.
    ///
    /// # Errors
    /// If it is not the oldest in flight.
    fn applied(&self, group: GroupId) -> Result<()>;

    /// The server refused a group, and did not look at those behind it.
    ///
    /// # Errors
    /// If it is not the oldest in flight.
    fn refused(&self, group: GroupId) -> Result<()>;

    /// Decides what becomes of a group that was refused.
    ///
    /// # Errors
    /// If it was not.
    fn resolve(&self, group: GroupId, resolution: &Resolution) -> Result<()>;

    /// No answer came: the groups in flight are sent again, exactly as they were, after this time.
    fn unanswered(&self, retry_after: Duration);

    /// The server does not know a group that was asked for.
    ///
    /// # Errors
    /// If it was not to be asked for.
    fn never_arrived(&self, group: GroupId) -> Result<()>;

    /// Numbers of groups that earlier processes handed out and that were never answered, until
    /// [`settled`](LiveTree::settled).
    fn unanswered_before(&self) -> Vec<GroupId>;

    /// The outcome of one of these is known: it is not listed at the next start.
    fn settled(&self, group: GroupId);

    /// The server has a group of this number from here. If none with it was handed out here, the
    /// state here is older than the sent groups, or was lost: then this number and later ones that
    /// may be on their way are not given again, and everything is sent. Returns whether that is so.
    ///
    /// # Errors
    /// If it cannot be made durable that all is to be sent. Nothing may be sent before.
    fn known_up_to(&self, group: GroupId) -> Result<bool>;

    /// Gives the order of changes up: all that waits is to be taken from a cut, and the server is
    /// asked about the groups in flight. For a caller that finds that sent groups cannot be right.
    fn give_up(&self, why: &str);

    /// Nodes that could not be read for a fold which is about to be noted as sent: these, and only
    /// these, are to be reported as long as no other fold was sent. Until then no mark of the log
    /// passes over them, not even one that another process makes.
    fn unsaved(&self, nodes: &[NodeId]);

    /// How much waits.
    fn status(&self) -> LiveStatus;
}
