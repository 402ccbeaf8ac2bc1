//! A group of the sync queue on its way to the server: one batch, one transaction (DeltaCFS
//! sections III-B and III-E).
//!
//! **A batch stands on** ([`Footing`]) the folder at the sequence number up to which this client
//! has applied others' changes, and on its own batch before this one, whose answer it need not have
//! yet. So groups follow each other without waiting, and conflict only with others' batches.
//!
//! **Contents.** A file's new content is a chain: ranges over its old content, or a delta of
//! another file's content at that moment, which may itself be the work of earlier changes of the
//! same group. The chain goes back to a content that the server has: that becomes the base of the
//! file's record, and the rest its deltas, in order. So nothing has to be composed, and a temporary
//! file that took over another one's content is sent as what the program changed.
//!
//! Memory: the parts of a batch that are on their way, and one delta; a delta longer than a part is
//! not sent: the order is given up, and the file is taken from a cut.
//!
//! Out of scope: deciding what is sent or when; folds, which are taken from a cut; numbers of nodes
//! that were made elsewhere.

use std::collections::{HashMap, HashSet};

use byteback_api::FolderName;
use byteback_api::batch::DirectoryTimeRecord;
use byteback_control::{ErrorKind, LiveContent, LiveGroup, LiveSource, LiveTree, Piece, ServiceError};
use byteback_delta::{DeltaWriter, WriterOptions};
use byteback_model::{
    BatchApplied, ByteString, ContentBase, DeviceId, FileId, Manifest, NameChange, NodeId, NodeKind, NodeRecord, Seq,
};
use byteback_oplog::TreeId;
use byteback_queue::GroupId;

use byteback_backup::{BackupError, Result};
use byteback_backup::{
    Destination, Failure, FileDeltas, LITERAL_BYTES_MAX, PART_LEN_BYTES_DEFAULT, PART_LEN_BYTES_RANGE, PartStream,
    unusable,
};
use byteback_backup::{Monitor, check_cancelled};
use byteback_client::ServerClient;
use byteback_client::{ServerError, ServerErrorKind};

/// Batches of groups have counters of their own, apart from those of backups, which are times.
const COUNTERS_FROM: u64 = 1 << 62;

/// Bits of a counter that hold the group's number.
const GROUP_BITS: u32 = 36;

/// Bits of a counter that hold the tree's number: groups of a log that was made anew are others,
/// though their numbers begin again.
const TREE_BITS: u32 = 25;

/// The counter of a group's batch.
#[must_use]
pub fn batch_counter(tree: TreeId, group: GroupId) -> u64 {
    let low = |number: u64, bits: u32| number & ((1 << bits) - 1);
    COUNTERS_FROM | (low(tree.0, TREE_BITS) << GROUP_BITS) | low(group.0, GROUP_BITS)
}

/// The group whose batch has this counter, if it is one of this tree.
#[must_use]
pub fn group_of(tree: TreeId, counter: u64) -> Option<GroupId> {
    let group = GroupId(counter & ((1 << GROUP_BITS) - 1));
    (batch_counter(tree, group) == counter).then_some(group)
}

/// Whether a batch with this counter is one of continuous sync, of any tree.
#[must_use]
pub const fn is_of_group(counter: u64) -> bool {
    counter >= COUNTERS_FROM
}

/// The state that a batch stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footing {
    /// Others' changes up to here are in the folder here.
    pub base_seq: Seq,
    /// The device's newest batch in the folder, by its number; `None`: it has none there.
    pub follows: Option<u64>,
}

/// Outcome of sending a group.
#[derive(Debug)]
pub enum Sent {
    /// The server applied it.
    Applied(BatchApplied),
    /// The group was empty, so nothing was sent; the server keeps what it has.
    Nothing,
    /// Another device changed the same first, or the batch before was refused: nothing of it
    /// counts.
    Refused(ServerError),
    /// The batch may or may not have arrived: it is to be sent again, exactly as it was.
    Unanswered(BackupError),
    /// The group cannot be sent: its order is to be given up, for this reason.
    Unsendable(String),
}

/// Outcome of a group, by how its batch ended.
pub(crate) fn sent(ended: Result<BatchApplied>) -> Result<Sent> {
    match ended {
        Ok(applied) => Ok(Sent::Applied(applied)),
        Err(BackupError::Tree(error)) => Ok(Sent::Unsendable(error.to_string())),
        Err(BackupError::Server(error)) => match error.kind {
            ServerErrorKind::Conflict | ServerErrorKind::OutOfOrder => Ok(Sent::Refused(error)),
            // The batch does not fit what the server has: another way of sending may.
            ServerErrorKind::Refused | ServerErrorKind::ContentMismatch | ServerErrorKind::TooLarge => {
                Ok(Sent::Unsendable(error.to_string()))
            }
            // Parts do not count without the commit, which is sent again with them.
            ServerErrorKind::PartsMissing => Ok(Sent::Unanswered(error.into())),
            kind if kind.is_transient() => Ok(Sent::Unanswered(error.into())),
            _ => Err(error.into()),
        },
        Err(error @ BackupError::OutcomeUnknown { .. }) => Ok(Sent::Unanswered(error)),
        Err(error) => Err(error),
    }
}

/// A time without what people do not read: of a small batch each digit counts.
const fn to_ms(time_ns: i64) -> i64 {
    time_ns - time_ns.rem_euclid(1_000_000)
}

/// The ends of an upload: the tree that groups come from, and the folder they go to.
pub struct Upload<'a> {
    /// The server.
    pub server: &'a ServerClient,
    /// The folder at the server.
    pub folder: &'a FolderName,
    /// This device.
    pub device: DeviceId,
    /// The tree whose groups are sent.
    pub live: &'a dyn LiveTree,
    /// The log's number of the tree.
    pub tree: TreeId,
    /// Gives the file ID of a node at the server.
    pub file_id: &'a (dyn Fn(NodeId) -> FileId + Sync),
    /// File ID of the root at the server.
    pub root: FileId,
    /// The host, for people.
    pub host: ByteString,
    /// The directory on the host, for people.
    pub path: ByteString,
    /// Length of a part of a batch, in bytes.
    pub part_len_bytes: usize,
    /// Receives warnings, and may stop the upload.
    pub monitor: &'a dyn Monitor,
}

impl std::fmt::Debug for Upload<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upload")
            .field("folder", &self.folder)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

/// The content that a file's new content is built on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Root {
    /// The file is new.
    Nothing,
    /// The content of this node at the server.
    Held(NodeId),
}

/// Origin of a content: what the server has, and the changes of the group over it, oldest first.
#[derive(Clone, Debug)]
struct Chain<'g> {
    root: Root,
    steps: Vec<&'g LiveContent>,
}

/// The chains of all files of a group whose contents change, as they are at its end.
fn chains(group: &LiveGroup) -> HashMap<NodeId, Chain<'_>> {
    let mut chains: HashMap<NodeId, Chain<'_>> = HashMap::new();
    let new = group.nodes.iter().filter(|node| node.is_new);
    let new = new.map(|node| node.node).collect::<HashSet<_>>();
    let at_server = |node| Chain {
        root: match new.contains(&node) {
            true => Root::Nothing,
            false => Root::Held(node),
        },
        steps: Vec::new(),
    };
    for content in &group.contents {
        let (before, chain) = match content.source {
            LiveSource::Ranges(_) => (content.node, chains.remove(&content.node)),
            // The base of another delta may be changed further itself.
            LiveSource::Delta { base, .. } => (base, chains.get(&base).cloned()),
        };
        let mut chain = chain.unwrap_or_else(|| at_server(before));
        chain.steps.push(content);
        chains.insert(content.node, chain);
    }
    chains
}

impl Upload<'_> {
    /// Usual length of a part, in bytes.
    pub const PART_LEN_BYTES: usize = PART_LEN_BYTES_DEFAULT;

    /// Sends a group that is not a fold. The caller reports the outcome to the tree.
    ///
    /// # Errors
    /// [`BackupError::Cancelled`]; a failure that will not pass by itself (the token is refused,
    /// the server's disk is full); a fold, or a group that is to become conflict versions.
    pub fn send(&self, group: &LiveGroup, footing: Footing) -> Result<Sent> {
        if group.fold.is_some() || group.is_conflict {
            // Its changes are not listed in it: sent like this it would count as sent, without
            // them.
            let message = format!(
                "group {} must be taken from a cut or become conflict versions",
                group.id
            );
            return Err(ServiceError::new(ErrorKind::Refused, message).into());
        }
        let is_empty = group.names.is_empty() && group.nodes.is_empty() && group.contents.is_empty();
        if is_empty && group.directory_times.is_empty() {
            // Its directories are gone.
            return Ok(Sent::Nothing);
        }
        sent(self.batch(group, footing))
    }

    fn batch(&self, group: &LiveGroup, footing: Footing) -> Result<BatchApplied> {
        let counter = batch_counter(self.tree, group.id);
        let manifest = Manifest {
            device: self.device,
            counter,
            base_seq: Some(footing.base_seq),
            replaces: None,
            follows: footing.follows,
            root: self.root,
            created_ns: to_ms(self.server.clock().now_ns()),
            host: self.host.clone(),
            path: self.path.clone(),
            snapshot: None,
        };
        let to = Destination {
            server: self.server,
            folder: self.folder,
            counter,
            monitor: self.monitor,
            memory: None,
            link_before_bytes_per_s: None,
            processor_share: 1.0,
        };
        let part_len_bytes = self
            .part_len_bytes
            .clamp(*PART_LEN_BYTES_RANGE.start(), *PART_LEN_BYTES_RANGE.end());
        // The group's number is durable since it was handed out.
        let noted = || Ok(());
        std::thread::scope(|scope| {
            let mut stream = PartStream::begin(scope, to, part_len_bytes, &manifest, &noted)?;
            let chains = chains(group);
            for node in &group.nodes {
                check_cancelled(self.monitor)?;
                let id = (self.file_id)(node.node);
                let chain = chains
                    .get(&node.node)
                    .filter(|_| node.attributes.kind == NodeKind::File);
                let Some(chain) = chain else {
                    stream.node(&NodeRecord {
                        id,
                        attributes: node.attributes.clone(),
                        content: None,
                    })?;
                    continue;
                };
                let base = match chain.root {
                    Root::Nothing => ContentBase::Empty,
                    Root::Held(held) if held == node.node => ContentBase::Previous,
                    Root::Held(held) => ContentBase::Of((self.file_id)(held)),
                };
                let mut deltas = FileDeltas::default();
                for step in &chain.steps {
                    self.step(step, id, &mut deltas, &mut stream).map_err(of_failure)?;
                }
                deltas
                    .finish(&mut stream, id, &node.attributes, base)
                    .map_err(of_failure)?;
            }
            for name in &group.names {
                stream.entry(&NameChange {
                    parent: (self.file_id)(name.parent),
                    name: name.name.clone(),
                    child: name.child.map(self.file_id),
                })?;
            }
            for (directory, mtime_ns) in &group.directory_times {
                stream.directory_time(&DirectoryTimeRecord {
                    id: (self.file_id)(*directory),
                    mtime_ns: *mtime_ns,
                })?;
            }
            stream.commit(|| check_cancelled(self.monitor))
        })
    }

    /// Adds the changes of one step of a chain to the deltas of the file `id`.
    fn step(
        &self,
        step: &LiveContent,
        id: FileId,
        deltas: &mut FileDeltas,
        stream: &mut PartStream<'_, '_>,
    ) -> std::result::Result<(), Failure> {
        match &step.source {
            LiveSource::Ranges(_) => self.ranges(step, id, deltas, stream),
            LiveSource::Delta { stamp, len_bytes, .. } => {
                let len = usize::try_from(*len_bytes).unwrap_or(usize::MAX);
                if len > stream.part_len_bytes() {
                    return Err(unsendable(format!(
                        "a delta of {len_bytes} bytes is longer than a part of a batch"
                    )));
                }
                let mut delta = Vec::new();
                let read = self.live.read_delta(*stamp, &mut |bytes| {
                    delta.extend_from_slice(bytes);
                    Ok(())
                });
                read.map_err(|error| Failure::All(error.into()))?;
                deltas.push(stream, id, delta, 0)
            }
        }
    }

    /// Reads the ranges of a content into deltas without copies, each with a limited number of
    /// literals.
    fn ranges(
        &self,
        content: &LiveContent,
        id: FileId,
        deltas: &mut FileDeltas,
        stream: &mut PartStream<'_, '_>,
    ) -> std::result::Result<(), Failure> {
        let literal_bytes_max = LITERAL_BYTES_MAX.min((stream.part_len_bytes() / 2) as u64).max(1);
        let len_bytes = content.len_bytes;
        // The base is first cut off, or filled up with zeros, to the length that it is to have.
        let new_writer = || {
            DeltaWriter::new(Vec::new(), len_bytes, len_bytes, WriterOptions::default())
                .map_err(|error| unusable(id, error))
        };
        let mut writer = new_writer()?;
        let mut literal_bytes = 0u64;
        let mut own_error = None;
        let read = self.live.read(content, &mut |piece| {
            let mut take = || {
                let (offset, mut bytes) = match piece {
                    Piece::Hole(range) => {
                        return writer.zero(range).map_err(|error| unusable(id, error));
                    }
                    Piece::Data { offset, bytes } => (offset, bytes),
                };
                let mut offset = offset;
                while !bytes.is_empty() {
                    let room = usize::try_from(literal_bytes_max.saturating_sub(literal_bytes)).unwrap_or(usize::MAX);
                    let (now, later) = bytes.split_at(room.min(bytes.len()));
                    writer.literal_bytes(offset, now).map_err(|error| unusable(id, error))?;
                    literal_bytes = literal_bytes.saturating_add(now.len() as u64);
                    offset = offset.saturating_add(now.len() as u64);
                    bytes = later;
                    if literal_bytes >= literal_bytes_max {
                        let full = std::mem::replace(&mut writer, new_writer()?);
                        let (delta, stats) = full.finish().map_err(|error| unusable(id, error))?;
                        literal_bytes = 0;
                        deltas.push(stream, id, delta, stats.literal_bytes)?;
                    }
                }
                Ok(())
            };
            // An error of our own has to pass through the tree; it waits here meanwhile.
            take().map_err(|error: Failure| {
                let reported = ServiceError::new(ErrorKind::Protocol, error.to_string());
                own_error = Some(error);
                reported
            })
        });
        if let Some(error) = own_error {
            return Err(error);
        }
        read.map_err(|error| Failure::All(error.into()))?;
        // Even if nothing was read: a change of length alone is a delta, too.
        let (delta, stats) = writer.finish().map_err(|error| unusable(id, error))?;
        deltas.push(stream, id, delta, stats.literal_bytes)
    }
}

fn unsendable(what: String) -> Failure {
    Failure::File(ServiceError::new(ErrorKind::Node, what))
}

fn of_failure(failure: Failure) -> BackupError {
    match failure {
        Failure::File(error) => BackupError::Tree(error),
        Failure::All(error) => error,
    }
}
