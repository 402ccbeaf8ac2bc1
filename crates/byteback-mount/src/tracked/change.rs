//! A change on its way through the gate, as its witnesses see it: before it is performed, and when
//! it is over.
//!
//! Before, a change is the nodes whose state is about to be lost. Afterwards, a change of names is
//! the names as they are now, which only the end tells: a new node has no number before.

use byteback_extents::ByteRange;
use byteback_host::tree::{Identity, Inode};
use byteback_model::{NodeId, NodeKind};
use byteback_oplog::RemainingLinks;
use byteback_undo::ContentHow;

use super::observer::{LostName, NamesChanged};
use super::ranges::Ranges;
use super::{Place, Victim};

/// A change.
#[derive(Debug)]
pub(crate) enum Change<'a> {
    /// Bytes of a file; without any range only its times.
    Content(Content<'a>),
    /// Bytes of an inode that the log does not know: mostly one without a name that is still open.
    ContentOfUnknown {
        /// The inode.
        identity: Identity,
        /// A descriptor of the inode, which need not be readable.
        fd: &'a Inode,
        /// The bytes, ascending.
        ranges: Ranges,
    },
    /// Attributes of a node.
    Attributes {
        /// The node.
        node: NodeId,
        /// Whether it is a regular file.
        is_file: bool,
        /// Any descriptor of the node.
        fd: &'a Inode,
    },
    /// Names in one or two directories.
    Names(Names<'a>),
}

/// Bytes of a file that are about to change.
#[derive(Debug)]
pub(crate) struct Content<'a> {
    pub(crate) node: NodeId,
    pub(crate) identity: Identity,
    /// A descriptor of the file, which need not be readable.
    pub(crate) fd: &'a Inode,
    pub(crate) how: ContentHow,
    /// The bytes, ascending.
    pub(crate) ranges: Ranges,
    /// The bytes that the log was told of when the change began.
    pub(crate) announced: Option<ByteRange>,
    /// The file's length afterwards, where it is set.
    pub(crate) len_after_bytes: Option<u64>,
    /// Whether the node still has a name: what others did may have taken the last one away since
    /// the node was found. True where no observer asks.
    pub(crate) is_named: bool,
}

impl Content<'_> {
    /// Whether `range` lies in the bytes that the log was told of at the beginning. An append may
    /// go elsewhere.
    pub(crate) fn has_announced(&self, range: ByteRange) -> bool {
        let announced = self.announced;
        announced.is_some_and(|announced| announced.start() <= range.start() && range.end() <= announced.end())
    }
}

/// Names that are about to change.
#[derive(Debug, Default)]
pub(crate) struct Names<'a> {
    /// The directories that the log knows, whose times change.
    pub(crate) directories: [Option<(NodeId, &'a Inode)>; 2],
    /// The nodes that the log knows of those that get or lose names.
    pub(crate) nodes: [Option<Renamed<'a>>; 2],
}

impl<'a> Names<'a> {
    pub(crate) fn directories(&self) -> impl Iterator<Item = (NodeId, &'a Inode)> {
        self.directories.iter().copied().flatten()
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = Renamed<'a>> {
        self.nodes.iter().copied().flatten()
    }

    /// Whether a node loses a name in a directory that the log knows.
    pub(crate) fn loses_known(&self) -> bool {
        self.nodes()
            .any(|renamed| matches!(renamed.part, Part::Loses(_, Some(_), _)))
    }
}

/// A node that gets or loses a name, and its times with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Renamed<'a> {
    pub(crate) node: NodeId,
    pub(crate) kind: NodeKind,
    pub(crate) part: Part<'a>,
}

/// The part of a node in a change of names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'a> {
    /// The node gets one more name; any descriptor of it.
    Gains(&'a Inode),
    /// The name at this place becomes another one.
    Moves(&'a Place<'a>, &'a Victim),
    /// The node loses the name at this place. The directory's number, if the log knows it.
    Loses(&'a Place<'a>, Option<NodeId>, &'a Victim),
}

/// The end of a change.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Outcome<'a> {
    /// The system refused it. Of content and attributes, a part may have been done.
    #[default]
    Failed,
    /// The change was performed. Of names: no name changed that the log knows.
    Done,
    /// A name changed. One change of names may end in several of these.
    Named(NamesChanged<'a>),
    /// An inode that the log did not know got a name: all of its content is new.
    Appeared(Appeared<'a>),
    /// Names moved between directories that the log knows and others. The changes of the known ones
    /// follow.
    CrossedBorder,
}

/// An inode that got a name in the tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Appeared<'a> {
    pub(crate) identity: Identity,
    pub(crate) fd: &'a Inode,
    /// All of its content.
    pub(crate) all: ByteRange,
    /// The new name, with the node; `None` in a directory that the log does not know.
    pub(crate) named: Option<(NodeId, NamesChanged<'a>)>,
}

impl<'a> Outcome<'a> {
    /// The names that changed, as far as the log knows them.
    pub(crate) fn names(&self) -> Option<NamesChanged<'a>> {
        match self {
            Self::Named(names) => Some(*names),
            Self::Appeared(appeared) => appeared.named.map(|(_, names)| names),
            Self::Failed | Self::Done | Self::CrossedBorder => None,
        }
    }
}

impl LostName {
    /// Whether the node remains.
    pub(crate) fn remains(&self) -> RemainingLinks {
        match self.is_last {
            true => RemainingLinks::Gone,
            false => RemainingLinks::Linked,
        }
    }
}
