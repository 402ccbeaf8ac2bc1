//! The content of the queue: the nodes of DeltaCFS section III-B, with their versions (III-C).

use byteback_model::{NodeId, Place};
use std::collections::{BTreeMap, BTreeSet};

use byteback_extents::{ByteRange, ExtentSet};

use crate::ids::{GroupId, Position, Version};
use crate::operation::NameOperation;

/// Something that happened at the origin, in the order of its gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An operation on names succeeded.
    Name(NameOperation),
    /// Bytes of a file changed: written, zeroed, cut off, or gained by lengthening.
    Wrote {
        /// The file.
        node: NodeId,
        /// The range that may have changed. After a truncation, the part that was cut off.
        range: ByteRange,
        /// The file's length afterwards, in bytes.
        size_bytes: u64,
        /// The version that the file had when nothing of it was queued; counts only then. `None`:
        /// it is new.
        base: Option<Version>,
    },
    /// Attributes of a node changed.
    Attributes {
        /// The node.
        node: NodeId,
        /// Where the caller finds what they are now; without meaning here.
        stamp: u64,
    },
    /// The last writer of a file closed it.
    Closed {
        /// The file.
        node: NodeId,
    },
    /// An epoch of the operation log begins here: when all before it is applied, the log's mark may
    /// move to it.
    Mark {
        /// The epoch.
        epoch: u64,
    },
}

/// Where the bytes of a content come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentSource {
    /// These ranges of the file, as far as they lie below its length; bytes beyond the base's end
    /// and in no range are zeros. Saved bytes come from where they were saved; all others from the
    /// file itself.
    Ranges {
        /// The bytes that may differ from the base.
        ranges: ExtentSet,
        /// The bytes that were saved because the file was changed again; see
        /// [`crate::queue::Queue::saves_before`].
        saved: ExtentSet,
    },
    /// A delta that the caller encoded and keeps.
    Delta {
        /// The file whose content it copies from, as of this node's turn. It may have lost its name
        /// earlier in the same group.
        base: NodeId,
        /// The version of that content, if it was queued or passed with the delta.
        base_version: Option<Version>,
        /// Where the caller finds the delta; without meaning here.
        stamp: u64,
        /// How long the delta is, in bytes.
        len_bytes: u64,
    },
}

/// A new content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The file.
    pub node: NodeId,
    /// The version that it stands on; `None`: none as the file is new, or the one that the caller
    /// knows when this is sent.
    pub base: Option<Version>,
    /// The file's length in bytes.
    pub size_bytes: u64,
    /// Takes no more writes.
    pub is_packed: bool,
    /// Where its bytes come from.
    pub source: ContentSource,
}

impl Content {
    /// How many bytes of content it carries.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        match &self.source {
            ContentSource::Ranges { ranges, .. } => match ByteRange::new(0, self.size_bytes) {
                Some(all) => ranges.iter_within(all).map(ByteRange::len_bytes).sum(),
                None => 0,
            },
            ContentSource::Delta { len_bytes, .. } => *len_bytes,
        }
    }

    /// The same without a look at each range: bytes beyond the end count, too.
    pub(crate) fn queued_bytes(&self) -> u64 {
        match &self.source {
            ContentSource::Ranges { ranges, .. } => ranges.total_len_bytes(),
            ContentSource::Delta { len_bytes, .. } => *len_bytes,
        }
    }

    pub(crate) fn extents(&self) -> usize {
        match &self.source {
            ContentSource::Ranges { ranges, saved } => ranges.len() + saved.len(),
            ContentSource::Delta { .. } => 0,
        }
    }

    pub(crate) fn has_saved(&self) -> bool {
        matches!(&self.source, ContentSource::Ranges { saved, .. } if !saved.is_empty())
    }
}

/// The effect of a node of the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Changes names.
    Name(NameOperation),
    /// Gives a file a new content.
    Content(Content),
    /// Gives a node new attributes.
    Attributes {
        /// The node.
        node: NodeId,
        /// Where the caller finds them.
        stamp: u64,
    },
    /// Names came and went of which nothing is left to tell, but that these directories have
    /// another time.
    Times {
        /// The directories, none of which is new.
        directories: BTreeSet<NodeId>,
    },
}

impl Change {
    /// The nodes that the change is about: those that get or lose a name, are moved, or get content
    /// or attributes.
    pub(crate) fn subjects(&self) -> Vec<NodeId> {
        match self {
            Self::Content(content) => vec![content.node],
            Self::Attributes { node, .. } => vec![*node],
            Self::Times { .. } => Vec::new(),
            Self::Name(operation) => match operation {
                NameOperation::Created { node, .. } | NameOperation::Linked { node, .. } => vec![node.node],
                NameOperation::Unlinked { victim, .. } => vec![victim.node],
                NameOperation::Renamed { node, replaced, .. } => {
                    let mut nodes = vec![node.node];
                    nodes.extend(replaced.map(|victim| victim.node));
                    nodes
                }
                NameOperation::Exchanged {
                    one_node, other_node, ..
                } => vec![one_node.node, other_node.node],
            },
        }
    }

    /// The directories in which it changes names, or changed some: they have another time.
    #[must_use]
    pub fn parents(&self) -> Vec<NodeId> {
        match self {
            Self::Name(operation) => places(operation).into_iter().map(|place| place.parent).collect(),
            Self::Times { directories } => directories.iter().copied().collect(),
            Self::Content(_) | Self::Attributes { .. } => Vec::new(),
        }
    }

    /// The directories whose time this change sends, and nothing else of them.
    pub(crate) fn times(&self) -> BTreeSet<NodeId> {
        match self {
            Self::Times { directories } => directories.clone(),
            _ => BTreeSet::new(),
        }
    }

    /// The node whose last name this takes away.
    pub(crate) fn last_removal(&self) -> Option<NodeId> {
        let victim = match self {
            Self::Name(NameOperation::Unlinked { victim, .. }) => Some(victim),
            Self::Name(NameOperation::Renamed { replaced, .. }) => replaced.as_ref(),
            _ => None,
        };
        victim.filter(|victim| victim.is_last).map(|victim| victim.node)
    }

    pub(crate) fn content(&self) -> Option<&Content> {
        match self {
            Self::Content(content) => Some(content),
            _ => None,
        }
    }
}

/// The names that an operation changes.
pub(crate) fn places(operation: &NameOperation) -> Vec<&Place<NodeId>> {
    match operation {
        NameOperation::Created { at, .. } | NameOperation::Linked { at, .. } | NameOperation::Unlinked { at, .. } => {
            vec![at]
        }
        NameOperation::Renamed { from, to, .. } => vec![from, to],
        NameOperation::Exchanged { one, other, .. } => vec![one, other],
    }
}

/// The nodes that the places of an operation stood for before it.
pub(crate) fn nodes_before(operation: &NameOperation) -> Vec<(&Place<NodeId>, Option<NodeId>)> {
    match operation {
        NameOperation::Created { at, .. } | NameOperation::Linked { at, .. } => vec![(at, None)],
        NameOperation::Unlinked { at, victim } => vec![(at, Some(victim.node))],
        NameOperation::Renamed {
            from,
            to,
            node,
            replaced,
        } => vec![(from, Some(node.node)), (to, replaced.map(|victim| victim.node))],
        NameOperation::Exchanged {
            one,
            one_node,
            other,
            other_node,
        } => vec![(one, Some(one_node.node)), (other, Some(other_node.node))],
    }
}

/// A node of the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueNode {
    /// The version that it makes: of a content, the file's new version (III-C); of anything else,
    /// the number of the change.
    pub version: Version,
    /// When it was enqueued, in the caller's monotonic nanoseconds.
    pub enqueued_ns: u64,
    /// When something was added to it last.
    pub touched_ns: u64,
    /// The change.
    pub change: Change,
}

/// The state to be taken from the operation log, because the queue would have grown too large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoldScope {
    /// All that changed since the log's mark.
    Everything,
    /// These names, contents and attributes as of the cut. A file without a name at the cut is not
    /// to be sent.
    Items {
        /// Files with changed content, each with the version that it stands on; see
        /// [`Content::base`].
        contents: BTreeMap<NodeId, Option<Version>>,
        /// Nodes with changed attributes.
        attributes: BTreeSet<NodeId>,
        /// Names, each with the node that it stood for before.
        names: BTreeMap<Place<NodeId>, Option<NodeId>>,
        /// Directories whose time was moved by names, listed here or not.
        times: BTreeSet<NodeId>,
    },
}

/// How far a group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupState {
    /// The group was handed out and not answered yet.
    InFlight,
    /// The group may or may not have arrived; to be sent again, exactly as it was, from this time
    /// on.
    Retry {
        /// When, in the caller's monotonic nanoseconds.
        at_ns: u64,
    },
    /// The group may or may not have arrived and cannot be sent again: the server is to be asked.
    Unknown,
    /// The server refused it. Nothing goes on before the refusal is resolved.
    Refused,
}

/// The transaction that is handed out to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The client's number for it: sent twice, it is applied once.
    pub id: GroupId,
    /// The position after the group before; the changes of this one begin here.
    pub first: Position,
    /// When it is applied, the server has the origin's state right after this position.
    pub up_to: Position,
    /// The state of its sending.
    pub state: GroupState,
    /// The server is to make conflict versions of it (III-C: first write wins).
    pub is_conflict: bool,
    /// Instead of nodes of the queue, the scope to be read as of the cut, with the version that it
    /// makes.
    pub fold: Option<(FoldScope, Version)>,
}
