//! Map of the nodes here to the files at the server, durable (docs/formats/identities.md).
//!
//! A file's ID at the server is given by the client that made it: [`file_id`] of its tree and node.
//! So files made here need no memory: *a node that is not in the map is our own*. Files that others
//! made have their ID and a node of ours. A node may also get another ID than its own, when its
//! content becomes a file apart (a conflict); it then remembers its *origin*, the content that it
//! grew from, until the server has it. The root is bound like everything else.
//!
//! **Invariant: no ID stands for two nodes, and no node for two IDs**, neither now nor after any
//! prefix of the changes, which is what a crash leaves. So an ID is given to another node only when
//! it is free: its holder is bound to another ID or forgotten *before*. A forgotten node never
//! comes back, as the log never reuses a number. Its tombstone is kept only while another node has
//! its ID, so giving one of our own IDs to another node must forget the previous holder in the same
//! call of [`Identities::change`].
//!
//! **Order of the durable steps.** The map is a [`RecordLog`]: a change is appended and synced
//! before it is reported to any caller, several of them with one sync. A crash leaves a prefix of
//! the unacknowledged changes. The log is written anew when its tail is torn, and when most records
//! are out of date. A disk that was full for a while delays changes only that long.
//!
//! **Withheld nodes** are here but not reported to the server, as they are ignored ([`Withheld`]).
//! Such a node has an ID that the server has never heard, and an origin with a sequence number that
//! no batch has.
//!
//! Out of scope: knowing whether a node exists; drawing IDs.

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use byteback_host::durable::{DurableDir, RecordLog, RecordLogError, RecordLogFormat};
use byteback_model::{FileId, NodeId, Origin, Seq};
use byteback_oplog::TreeId;

use byteback_backup::file_id;

/// The head is the tree's number. Some thousand records that are out of date do no harm.
const FORMAT: RecordLogFormat = RecordLogFormat {
    name: "identities",
    magic: *b"BYIDENT",
    version: 1,
    len_max_bytes: 1024,
    rewrite_from_bytes: 256 << 10,
};

/// Tag, node, file, the origin's file and sequence number.
const RECORD_LEN: usize = 1 + 8 + 16 + 16 + 8;

const TAG_BOUND: u8 = 1;
const TAG_BOUND_WITH_ORIGIN: u8 = 2;
const TAG_ARRIVED: u8 = 3;
const TAG_FORGOTTEN: u8 = 4;

/// The map cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// File system error.
    #[error("cannot {what} the map of files to their server IDs: {source}")]
    Io {
        /// Attempted operation.
        what: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The map cannot be understood.
    #[error("the map of files to their server IDs is damaged ({0}); nothing is sent")]
    Damaged(&'static str),
    /// The map belongs to another tree.
    #[error(
        "the map of files to their server IDs belongs to another log ({found:x}, not {expected:x}): the folder's log \
         was recreated"
    )]
    OtherTree {
        /// The tree the map belongs to.
        found: u64,
        /// The tree it should belong to.
        expected: u64,
    },
    /// A change would give one file ID to two nodes.
    #[error("file {file} is node {holder} here, so it cannot be node {node}; this is a bug in Byteback")]
    Taken {
        /// The file ID.
        file: FileId,
        /// The node that has it.
        holder: u64,
        /// The node that was to have it.
        node: u64,
    },
}

impl From<RecordLogError> for IdentityError {
    fn from(error: RecordLogError) -> Self {
        match error {
            RecordLogError::Io { what, source, .. } => Self::Io { what, source },
            RecordLogError::Damaged { reason, .. } => Self::Damaged(reason),
            RecordLogError::Version { .. } => Self::Damaged("it has another version"),
        }
    }
}

/// Why a node is not reported to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withheld {
    /// All its names are ignored.
    Ignored,
    /// A directory that others removed, kept here for the ignored nodes in it.
    Holding,
}

impl Withheld {
    /// The sequence number that marks it, in the place of an origin's.
    const fn seq(self) -> Seq {
        match self {
            Self::Ignored => Seq::MAX,
            Self::Holding => Seq::MAX - 1,
        }
    }

    const fn of(origin: Origin) -> Option<Self> {
        match origin.seq {
            Seq::MAX => Some(Self::Ignored),
            seq if seq == Seq::MAX - 1 => Some(Self::Holding),
            _ => None,
        }
    }

    /// Binds a node to an ID that the server has never heard, and withholds it.
    #[must_use]
    pub const fn bound(self, node: NodeId, file: FileId) -> IdentityChange {
        let seq = self.seq();
        IdentityChange::Bound {
            node,
            file,
            origin: Some(Origin { file, seq }),
        }
    }
}

/// A change of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityChange {
    /// The node is this file at the server from now on.
    Bound {
        /// The node.
        node: NodeId,
        /// Its file ID at the server.
        file: FileId,
        /// The content it grew from, if the server does not have it yet.
        origin: Option<Origin>,
    },
    /// The server has this node: its origin does not matter any more.
    Arrived(NodeId),
    /// The node is gone.
    Forgotten(NodeId),
}

impl IdentityChange {
    fn node(&self) -> NodeId {
        match self {
            Self::Bound { node, .. } | Self::Arrived(node) | Self::Forgotten(node) => *node,
        }
    }

    fn to_bytes(self) -> [u8; RECORD_LEN] {
        let none = Origin {
            file: FileId(0),
            seq: 0,
        };
        let (tag, node, file, origin) = match self {
            Self::Bound { node, file, origin } => match origin {
                None => (TAG_BOUND, node, file, none),
                Some(origin) => (TAG_BOUND_WITH_ORIGIN, node, file, origin),
            },
            Self::Arrived(node) => (TAG_ARRIVED, node, FileId(0), none),
            Self::Forgotten(node) => (TAG_FORGOTTEN, node, FileId(0), none),
        };
        let body = [
            &[tag][..],
            &node.0.to_le_bytes(),
            &file.to_bytes(),
            &origin.file.to_bytes(),
            &origin.seq.to_le_bytes(),
        ]
        .concat();
        let mut bytes = [0; RECORD_LEN];
        for (to, from) in bytes.iter_mut().zip(body) {
            *to = from;
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (tag, rest) = bytes.split_first()?;
        let (node, rest) = rest.split_first_chunk::<8>()?;
        let (file, rest) = rest.split_first_chunk::<16>()?;
        let (origin_file, seq) = rest.split_first_chunk::<16>()?;
        let node = NodeId(u64::from_le_bytes(*node));
        let file = FileId(u128::from_be_bytes(*file));
        let origin = Origin {
            file: FileId(u128::from_be_bytes(*origin_file)),
            seq: Seq::from_le_bytes(*seq.first_chunk::<8>()?),
        };
        let change = match *tag {
            TAG_BOUND => Self::Bound {
                node,
                file,
                origin: None,
            },
            TAG_BOUND_WITH_ORIGIN => Self::Bound {
                node,
                file,
                origin: Some(origin),
            },
            TAG_ARRIVED => Self::Arrived(node),
            TAG_FORGOTTEN => Self::Forgotten(node),
            _ => return None,
        };
        // Each change has exactly one encoding.
        (change.to_bytes() == *bytes).then_some(change)
    }
}

/// Entry of a node whose file ID is, or was, another than its own number gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    /// `None`: the node is gone.
    file: Option<FileId>,
    origin: Option<Origin>,
}

impl Entry {
    fn is_unsent(&self) -> bool {
        self.file.is_some() && self.origin.is_some_and(|origin| Withheld::of(origin).is_none())
    }
}

/// A node's entry before a change.
struct Undo {
    node: NodeId,
    before: Option<Entry>,
}

/// The map in memory.
#[derive(Debug, PartialEq, Eq)]
struct Known {
    tree: TreeId,
    nodes: HashMap<NodeId, Entry>,
    files: HashMap<FileId, NodeId>,
}

impl Known {
    fn new(tree: TreeId) -> Self {
        Self {
            tree,
            nodes: HashMap::new(),
            files: HashMap::new(),
        }
    }

    fn file_of(&self, node: NodeId) -> Option<FileId> {
        match self.nodes.get(&node) {
            Some(entry) => entry.file,
            None => Some(file_id(self.tree, node)),
        }
    }

    fn node_of(&self, file: FileId) -> Option<NodeId> {
        if let Some(node) = self.files.get(&file) {
            return Some(*node);
        }
        let own = own_node(self.tree, file)?;
        (!self.nodes.contains_key(&own)).then_some(own)
    }

    /// Makes a change; returns what is needed to take it back.
    fn apply(&mut self, change: &IdentityChange) -> Result<Undo, IdentityError> {
        let node = change.node();
        let before = self.nodes.get(&node).copied();
        match *change {
            IdentityChange::Bound { file, origin, .. } => {
                if let Some(holder) = self.node_of(file).filter(|holder| *holder != node) {
                    return Err(IdentityError::Taken {
                        file,
                        holder: holder.0,
                        node: node.0,
                    });
                }
                self.release(node);
                self.files.insert(file, node);
                let file = Some(file);
                self.nodes.insert(node, Entry { file, origin });
            }
            IdentityChange::Arrived(_) => {
                if let Some(entry) = self.nodes.get_mut(&node) {
                    entry.origin = None;
                }
            }
            IdentityChange::Forgotten(_) => {
                self.release(node);
                let (file, origin) = (None, None);
                self.nodes.insert(node, Entry { file, origin });
            }
        }
        Ok(Undo { node, before })
    }

    /// Takes the last change back.
    fn take_back(&mut self, undo: Undo) {
        self.release(undo.node);
        match undo.before {
            None => {
                self.nodes.remove(&undo.node);
            }
            Some(entry) => {
                if let Some(file) = entry.file {
                    self.files.insert(file, undo.node);
                }
                self.nodes.insert(undo.node, entry);
            }
        }
    }

    fn release(&mut self, node: NodeId) {
        if let Some(file) = self.nodes.get(&node).and_then(|entry| entry.file) {
            self.files.remove(&file);
        }
    }

    /// Drops tombstones that are not needed: a gone node is remembered only while another has its
    /// ID.
    fn forget_removed(&mut self) {
        let (tree, files) = (self.tree, &self.files);
        self.nodes
            .retain(|node, entry| entry.file.is_some() || files.contains_key(&file_id(tree, *node)));
    }

    /// The changes that lead from nothing to this map, none of them to an ID that another node has.
    fn changes(&self) -> Vec<IdentityChange> {
        let mut nodes: Vec<_> = self.nodes.iter().collect();
        nodes.sort_by_key(|(node, _)| **node);
        // First all nodes give their own IDs away.
        let gone = nodes.iter().map(|(node, _)| IdentityChange::Forgotten(**node));
        let bound = nodes.iter().filter_map(|(node, entry)| {
            let (node, origin) = (**node, entry.origin);
            entry.file.map(|file| IdentityChange::Bound { node, file, origin })
        });
        gone.chain(bound).collect()
    }

    /// The records of these changes.
    fn records(&self) -> Vec<[u8; RECORD_LEN]> {
        self.changes().into_iter().map(IdentityChange::to_bytes).collect()
    }
}

/// The node that an own file ID of this tree stands for.
fn own_node(tree: TreeId, file: FileId) -> Option<NodeId> {
    let node = NodeId((file.0 & u128::from(u64::MAX)) as u64);
    (file_id(tree, node) == file).then_some(node)
}

/// Durable map of nodes and file IDs: see the module.
#[derive(Debug)]
pub struct Identities {
    log: RecordLog,
    known: Known,
}

impl Identities {
    /// Opens the map of a tree in `dir`, or begins one.
    ///
    /// # Errors
    /// The map cannot be read or written, is damaged at its head, or belongs to another tree.
    pub fn open(dir: Arc<dyn DurableDir>, tree: TreeId) -> Result<Self, IdentityError> {
        let Some((mut log, contents)) = FORMAT.open(&dir)? else {
            let known = Known::new(tree);
            let log = FORMAT.create(&dir, &head(tree), known.records())?;
            return Ok(Self { log, known });
        };
        let (mut known, is_whole) = known_of(&contents.head, &contents.records)?;
        if known.tree != tree {
            return Err(IdentityError::OtherTree {
                found: known.tree.0,
                expected: tree.0,
            });
        }
        if contents.is_damaged {
            // Without the lost pairs, nodes here would count as files that others never heard of.
            return Err(IdentityError::Damaged("records in it are corrupt"));
        }
        if !is_whole || log.needs_rewrite() {
            known.forget_removed();
            log.rewrite(&head(tree), known.records())?;
        }
        Ok(Self { log, known })
    }

    /// Removes a map: that of a tree whose log was made anew means nothing any more.
    ///
    /// # Errors
    /// The file cannot be removed, or that cannot be made durable.
    pub fn remove(dir: &dyn DurableDir) -> Result<(), IdentityError> {
        let removed = match dir.remove(FORMAT.name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => dir.sync(),
        };
        let what = "remove";
        removed.map_err(|source| IdentityError::Io { what, source })
    }

    /// A node's file ID at the server; `None` if the node is gone.
    #[must_use]
    pub fn file_of(&self, node: NodeId) -> Option<FileId> {
        self.known.file_of(node)
    }

    /// The node here that a file of the server is. It need not exist: for IDs that were given here
    /// only their form is known.
    #[must_use]
    pub fn node_of(&self, file: FileId) -> Option<NodeId> {
        self.known.node_of(file)
    }

    /// The content a node grew from, if the server does not have it yet.
    #[must_use]
    pub fn origin_of(&self, node: NodeId) -> Option<Origin> {
        let origin = self.known.nodes.get(&node)?.origin?;
        Withheld::of(origin).is_none().then_some(origin)
    }

    /// Why a node is not reported to the server; `None` if it is.
    #[must_use]
    pub fn withheld(&self, node: NodeId) -> Option<Withheld> {
        Withheld::of(self.known.nodes.get(&node)?.origin?)
    }

    /// All nodes that are not reported to the server, in no order.
    pub fn all_withheld(&self) -> impl Iterator<Item = NodeId> + '_ {
        let nodes = self.known.nodes.iter();
        nodes.filter_map(|(node, entry)| Withheld::of(entry.origin?).map(|_| *node))
    }

    /// Whether a node was given an ID, so that it does not simply have its own.
    #[must_use]
    pub fn is_bound(&self, node: NodeId) -> bool {
        self.known.nodes.get(&node).is_some_and(|entry| entry.file.is_some())
    }

    /// Nodes that the server does not have yet under their IDs, ascending.
    #[must_use]
    pub fn unsent(&self) -> Vec<NodeId> {
        let entries = self.known.nodes.iter();
        let unsent = entries.filter(|(_, entry)| entry.is_unsent());
        let mut unsent: Vec<NodeId> = unsent.map(|(node, _)| *node).collect();
        unsent.sort_unstable();
        unsent
    }

    /// Whether the server lacks any node under its ID.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        let mut entries = self.known.nodes.values();
        entries.any(|entry| entry.is_unsent())
    }

    /// Number of nodes that do not simply have their own ID.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.nodes.len()
    }

    /// Whether all nodes have their own ID.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.nodes.is_empty()
    }

    /// Makes changes, in their order, and durable.
    ///
    /// # Errors
    /// [`IdentityError::Taken`]: nothing is changed then. After any other error nothing is changed
    /// in memory; whether a restart finds the change is open until the next change that succeeds.
    pub fn change(&mut self, changes: &[IdentityChange]) -> Result<(), IdentityError> {
        if changes.is_empty() {
            return Ok(());
        }
        let mut undos = Vec::with_capacity(changes.len());
        for change in changes {
            match self.known.apply(change) {
                Ok(undo) => undos.push(undo),
                Err(error) => {
                    self.take_back(undos);
                    return Err(error);
                }
            }
        }
        let kept = self.keep(changes);
        if kept.is_err() {
            self.take_back(undos);
        }
        kept
    }

    fn take_back(&mut self, undos: Vec<Undo>) {
        for undo in undos.into_iter().rev() {
            self.known.take_back(undo);
        }
    }

    /// Makes durable what is known in memory already.
    fn keep(&mut self, changes: &[IdentityChange]) -> Result<(), IdentityError> {
        if self.log.needs_rewrite() {
            return Ok(self.log.rewrite(&head(self.known.tree), self.known.records())?);
        }
        self.log.append(changes.iter().map(|change| change.to_bytes()))?;
        Ok(self.log.sync()?)
    }
}

/// The head of a tree's map.
fn head(tree: TreeId) -> [u8; 8] {
    tree.0.to_le_bytes()
}

/// The map that a log holds, and whether all its records count: the first that makes no sense ends
/// it.
fn known_of(head: &[u8], records: &[Vec<u8>]) -> Result<(Known, bool), IdentityError> {
    let tree = <[u8; 8]>::try_from(head).map_err(|_| IdentityError::Damaged("its head is corrupt"))?;
    let mut known = Known::new(TreeId(u64::from_le_bytes(tree)));
    let mut changes = records.iter().map(|record| IdentityChange::from_bytes(record));
    let is_whole = changes.all(|change| change.is_some_and(|change| known.apply(&change).is_ok()));
    Ok((known, is_whole))
}

#[cfg(test)]
mod tests;
