//! A mounted tree as continuous sync sees it: what its programs do, in their order, as groups to be
//! sent.
//!
//! Who sends does this, over and over, in one thread: [`poll`](LiveTree::poll), and what it
//! answers:
//!
//! | work | what is to be done |
//! |---|---|
//! | [`Work::Idle`] | [`wait`](LiveTree::wait), at most as long as it says |
//! | [`Work::Send`] | make one batch of the group, with [`read`](LiveTree::read) and [`read_delta`](LiveTree::read_delta), and send it |
//! | [`Work::Cut`] | [`cut_fold`](LiveTree::cut_fold), then the same with what the tree's service tells of this cut |
//! | [`Work::Ask`] | ask the server what became of a group: [`applied`](LiveTree::applied) or [`never_arrived`](LiveTree::never_arrived) |
//! | [`Work::Decide`] | [`resolve`](LiveTree::resolve) a group that the server refused |
//! | [`Work::Ended`] | stop: the mount is gone |
//!
//! What is to be taken from a cut though nothing of it changed here is asked for by
//! [`fold`](LiveTree::fold).
//!
//! What is read of a fold's cut is to be peeked at (`TreeService::peek`), as it may have to be sent
//! again.
//!
//! Several groups may be in flight. They are answered in their order, by
//! [`applied`](LiveTree::applied), [`refused`](LiveTree::refused) or
//! [`unanswered`](LiveTree::unanswered). When a group is applied the server has exactly the state
//! that the tree had at [`LiveGroup::up_to`]; only the modification times may be younger, by as
//! much as the next groups bring.
//!
//! A group's number is durable when it is handed out, and never stands for anything else; that it
//! is lost is noticed by [`known_up_to`](LiveTree::known_up_to). What was handed out by an earlier
//! process that ended without an answer is [`unanswered_before`](LiveTree::unanswered_before): it
//! cannot be sent again, its changes are in what follows.
//!
//! Only within one process: nothing of this crosses the socket.

use byteback_model::{Attributes, ByteString, NameChange, NodeId, NodeKind};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use byteback_queue::queue::Resolution;
use byteback_queue::{GroupId, Position, Version};
use serde::{Deserialize, Serialize};

use crate::service::{CutInfo, Piece, Result};

/// What is to be done next.
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

/// One transaction: all of it counts or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveGroup {
    /// Its number.
    pub id: GroupId,
    /// When it is applied, the server has the tree as it was right after this event.
    pub up_to: Position,
    /// The server is to make conflict versions of it.
    pub is_conflict: bool,
    /// What each name that changed stands for afterwards.
    pub names: Vec<NameChange<NodeId>>,
    /// Nodes that are new, or whose content or attributes change, if they have a name afterwards:
    /// as they are then.
    pub nodes: Vec<LiveNode>,
    /// New contents, in the order in which they are to be applied. A file may have several, each on
    /// top of the one before.
    pub contents: Vec<LiveContent>,
    /// Directories whose time was moved by names that came and went, told here or not, with that
    /// time, ns since the Unix epoch. What is among the nodes is not here.
    pub directory_times: Vec<(NodeId, i128)>,
    /// Instead of all that: what is to be taken from a cut.
    pub fold: Option<LiveFold>,
}

/// A node as it is after a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveNode {
    /// The node.
    pub node: NodeId,
    /// What it is.
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
        /// The version of what it holds; `None`: the one that the reader knows the server to have.
        base_version: Option<Version>,
        /// By what the delta is read.
        stamp: u64,
        /// How long the delta is, in bytes.
        len_bytes: u64,
    },
}

/// What is to be taken from a cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveFold {
    /// The version that each of its contents makes.
    pub version: Version,
    /// The cut, open at the tree's service for the consumer [`SYNC_CONSUMER`]. It is finished
    /// there, before the group is said to be applied.
    pub cut: CutInfo,
    /// What of it.
    pub scope: LiveScope,
}

/// What of a cut is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LiveScope {
    /// All that changed since the consumer's mark; where it has none, the whole tree, and nothing
    /// else is there.
    Everything {
        /// What names stand for that groups changed since the mark: the log need not tell of those
        /// that came and went again. Of some it tells, the same.
        names: Vec<NameChange<NodeId>>,
    },
    /// What these stand for, hold and look like at the cut. What has no name then is not sent.
    Items {
        /// Files with changed content, each with the version that it stands on (see
        /// [`LiveContent::base`]).
        contents: BTreeMap<NodeId, Option<Version>>,
        /// Nodes whose attributes may be news.
        attributes: BTreeSet<NodeId>,
        /// Names, with what they stand for: the log need not tell of those that came and went since
        /// the mark.
        names: Vec<NameChange<NodeId>>,
        /// Directories whose time was moved by names that came and went, these or others.
        times: BTreeSet<NodeId>,
    },
}

/// How much waits, and what it takes here.
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

/// A file that was changed here and, before that was sent, by another machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncConflict {
    /// The path that it had, which stands for the other machine's version since.
    pub path: ByteString,
    /// Where what was changed here is.
    pub copy: ByteString,
    /// When that was found out, nanoseconds since 1970.
    pub at_ns: i64,
    /// Files with the same number were changed here in one atomic operation: they became copies
    /// together, and are best decided together.
    #[serde(default)]
    pub set: Option<u64>,
}

/// A name of the server that this file system does not hold, or a file that others changed and that
/// does not let itself be changed here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncLeftOut {
    /// The path that it would have.
    pub path: ByteString,
    /// The file system does not tell it from another name that is there: it appears when that is
    /// gone. Otherwise it cannot be here at all.
    pub collides: bool,
    /// What is there does not let itself be changed, for this reason: others changed it, and that
    /// is tried again.
    #[serde(default)]
    pub blocked: Option<String>,
}

/// A line of a file with rules for what is ignored that says nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncUnusableRule {
    /// The file.
    pub path: ByteString,
    /// The line, from 1 on.
    pub line: u64,
    /// What is wrong with it.
    pub why: String,
}

/// How continuous sync of a tree with its server stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncStatus {
    /// The server's address.
    pub server: String,
    /// The folder there.
    pub folder: String,
    /// The server answered when it was asked last.
    pub is_connected: bool,
    /// Since when that is so, nanoseconds since 1970.
    pub since_ns: i64,
    /// What failed last, until it works again, or until something else is wrong.
    pub error: Option<String>,
    /// It will not pass by itself.
    pub needs_attention: bool,
    /// It has ended, though the mount may go on.
    pub has_ended: bool,
    /// Groups of changes that the server applied since the start.
    pub sent_groups: u64,
    /// Bytes that were sent since the start.
    pub sent_bytes: u64,
    /// When the server last applied one, nanoseconds since 1970.
    pub sent_at_ns: Option<i64>,
    /// Up to this sequence number of the server's folder, what others did is here.
    pub cursor: u64,
    /// When something that others did last came in, nanoseconds since 1970.
    pub received_at_ns: Option<i64>,
    /// Names of the server that this file system does not hold.
    pub left_out_names: u64,
    /// The first of them.
    #[serde(default)]
    pub left_out: Vec<SyncLeftOut>,
    /// Names of the server that are ignored here, each with all that is below it.
    #[serde(default)]
    pub ignored_names: u64,
    /// Files, directories and the like here that are ignored, as of what was sent last.
    #[serde(default)]
    pub ignored_here: u64,
    /// Files that say what is ignored: `.bytebackignore` and `CACHEDIR.TAG`.
    #[serde(default)]
    pub ignore_files: u64,
    /// The first of them.
    #[serde(default)]
    pub ignored_by: Vec<ByteString>,
    /// The first lines of files with rules for that which say nothing.
    #[serde(default)]
    pub unusable_rules: Vec<SyncUnusableRule>,
    /// Conflict copies that nobody has decided about, eldest first.
    pub conflicts: Vec<SyncConflict>,
    /// Files that could not be read.
    pub unsaved_files: u64,
    /// Files, directories and the like whose changes are not sent until what others changed of them
    /// can be made here.
    #[serde(default)]
    pub held_nodes: u64,
    /// Changes that wait.
    pub waiting_nodes: u64,
    /// Bytes of content that wait.
    pub waiting_bytes: u64,
    /// Groups that are on their way.
    pub groups_in_flight: u64,
    /// What waits is so much, or so little is known of it, that it is taken from a moment of the
    /// whole tree.
    pub is_folded: bool,
    /// Since when somebody wants that nothing is sent or received, nanoseconds since 1970.
    pub paused_since_ns: Option<i64>,
    /// The limits that somebody wants, one after the other as people write them.
    pub limits: Vec<String>,
    /// Bytes per second that may move now; 0: none; `None`: as fast as it goes.
    pub bytes_per_second_max: Option<u64>,
    /// When the server was last heard of, nanoseconds since 1970: by an answer, or by the sign of
    /// life that it sends to listeners every [`SIGN_OF_LIFE_S`] seconds.
    #[serde(default)]
    pub heard_at_ns: Option<i64>,
    /// What others did is coming in. What is told here is not all of it: more may follow.
    #[serde(default)]
    pub receiving: Option<SyncReceiving>,
}

/// How far what others did has come in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncReceiving {
    /// Changes that are still to be made here; `None`: the server is being asked for them.
    pub changes_to_come: Option<u64>,
    /// Files that were compared with the server's, and those that are to be: both sides have them,
    /// and nothing is known about which is newer.
    pub compared: Option<(u64, u64)>,
}

/// A listener hears a sign of life from the server this often, in seconds.
pub const SIGN_OF_LIFE_S: u64 = 15;

/// The consumer of the log that stands for continuous sync.
pub const SYNC_CONSUMER: &str = "sync";

/// See the module.
pub trait LiveTree: Send + Sync {
    /// What is to be done next. What it answers counts as begun.
    ///
    /// # Errors
    /// If a group's number cannot be made durable: nothing may be sent then, and nothing is lost.
    fn poll(&self) -> Result<Work>;

    /// Waits until there may be something to be done, or the time is out.
    fn wait(&self, at_most: Duration);

    /// Ends a [`wait`](LiveTree::wait), or the next one if nobody waits.
    fn wake(&self);

    /// Cuts the log, and hands out what was folded up to the cut. `also` are told by the cut, as a
    /// whole and with their names, and can be read as they were then, whether they changed or not.
    ///
    /// # Errors
    /// If nothing is folded, or the tree cannot be cut.
    fn cut_fold(&self, also: &[NodeId]) -> Result<Arc<LiveGroup>>;

    /// Folds what waits, if it is not folded: a cut comes then even if nothing waited. For who
    /// lands what others did where something waits, and for who knows of something that has to be
    /// sent and was not told here.
    fn fold(&self);

    /// Reads the ranges of a content of a group that is in flight, ascending, as they were at its
    /// turn.
    ///
    /// # Errors
    /// If they cannot be read any more: the order of changes is given up then, and
    /// [`poll`](LiveTree::poll) tells what follows. An error of `sink` is handed back.
    fn read(&self, content: &LiveContent, sink: &mut dyn FnMut(Piece<'_>) -> Result<()>) -> Result<()>;

    /// Reads a delta of a group that is in flight, from its beginning to its end.
    ///
    /// # Errors
    /// As [`read`](LiveTree::read).
    fn read_delta(&self, stamp: u64, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;

    /// The server applied a group, or made conflict versions of it.
    ///
    /// # Errors
    /// If it is not the eldest in flight.
    fn applied(&self, group: GroupId) -> Result<()>;

    /// The server refused a group, and did not look at those behind it.
    ///
    /// # Errors
    /// If it is not the eldest in flight.
    fn refused(&self, group: GroupId) -> Result<()>;

    /// Decides what becomes of a group that was refused.
    ///
    /// # Errors
    /// If it was not.
    fn resolve(&self, group: GroupId, resolution: &Resolution) -> Result<()>;

    /// No answer came: what is in flight is sent again, exactly as it was, after this time.
    fn unanswered(&self, retry_after: Duration);

    /// The server does not know a group that was asked for.
    ///
    /// # Errors
    /// If it was not to be asked for.
    fn never_arrived(&self, group: GroupId) -> Result<()>;

    /// Numbers of groups that earlier processes handed out and nobody answered, until
    /// [`settled`](LiveTree::settled).
    fn unanswered_before(&self) -> Vec<GroupId>;

    /// What became of one of these is known: it is not told at the next start.
    fn settled(&self, group: GroupId);

    /// The server has a group of this number from here. If none with it was handed out here, what
    /// is remembered here is older than what was sent, or was lost: then this number and those
    /// behind it that may be on their way are not given again, and all that there is, is sent.
    /// Answers whether that is so.
    ///
    /// # Errors
    /// If it cannot be made durable that all is to be sent. Nothing may be sent before.
    fn known_up_to(&self, group: GroupId) -> Result<bool>;

    /// Gives the order of changes up: all that waits is to be taken from a cut, and what is in
    /// flight is asked for. For who notices that what was sent cannot be right.
    fn give_up(&self, why: &str);

    /// What could not be read for a fold, which is about to be noted as sent: these, and only
    /// these, are to be told as long as no other fold was sent. Until then no mark of the log
    /// passes over them, also not one that another process makes.
    fn unsaved(&self, nodes: &[NodeId]);

    /// How much waits.
    fn status(&self) -> LiveStatus;
}
