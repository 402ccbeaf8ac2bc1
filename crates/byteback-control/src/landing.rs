//! The receiving side's view of a mounted tree: changes made elsewhere are applied here, step by
//! step, while programs use the tree.
//!
//! A step goes through the tree's gate from inside, as a program's change does: the log records it,
//! open cuts and undo keep the old state, and programs see it at once, also through open files and
//! mappings. Only the sync queue is left out, as the change was not made here.
//!
//! **Expectations.** Each step names its preconditions ([`Expected`]): which name stands for which
//! node, or is free, and that nothing of them waits to be sent. The check and the step are one
//! moment, in which no program changes anything. If a precondition does not hold nothing is done,
//! and the answer is [`Landed::Overtaken`]: a program came first, so the caller looks again and
//! plans anew. Errors are not a matter of planning: a full disk, a log that cannot be written, an
//! impossible name.
//!
//! **Contents.** A file is *watched* ([`LandingTree::watch_file`]) from before its content is read
//! until it is as it is to be. The guard is the base that is read, and the target to which a delta
//! is applied in place, in any number of pieces:
//! - a change by a program before the first piece: each piece is refused ([`overtaken_in`]), and
//!   nothing of the file was changed;
//! - later changes by programs count as done *after the whole* of the landed content, though only a
//!   part of it is there: their bytes stay, a length that they set stays, bytes between their
//!   writes beyond the end and the landed end are zeros. So the file ends as if all pieces had
//!   landed before the first of these changes; and when they are sent later, they stand on the
//!   landed content.
//!
//! A store through a shared mapping counts as done when the kernel writes it back, with all the
//! bytes of its pages that differ then.
//!
//! **Durability.** Steps are durable after [`LandingTree::sync`], not before. After a crash any of
//! those since then may be missing, in any order, and the log reports whatever differs.
//!
//! Calls wait for programs and the disk; none may come from a thread that serves the mount, or with
//! a lock held that such a thread may want. All landing is done from one thread.

use byteback_model::{Attributes, ByteString, NodeId, NodeKind, Place};
use std::error::Error;
use std::io;

use byteback_delta::{Base, Target};
use byteback_extents::ByteRange;

use crate::repair::Damage;
use crate::service::{DirEntry, ErrorKind, Result, ServiceError};

/// A program was faster, or what was expected was not so to begin with: nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not applied: {0}")]
pub struct Overtaken(pub String);

/// The outcome of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "what was overtaken was not done"]
pub enum Landed<T> {
    /// The step was made.
    Done(T),
    /// A precondition does not hold. Nothing was done.
    Overtaken(Overtaken),
}

impl<T> Landed<T> {
    /// The result of the step, if it was made.
    pub fn done(self) -> Option<T> {
        match self {
            Self::Done(done) => Some(done),
            Self::Overtaken(_) => None,
        }
    }
}

/// The reason for an error of a [`WatchedFile`] as [`Target`], however it was wrapped since, if a
/// program was faster.
#[must_use]
pub fn overtaken_in<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Overtaken> {
    let mut next: Option<&'a (dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(overtaken) = error.downcast_ref::<Overtaken>() {
            return Some(overtaken);
        }
        // The source of such an error is the source of the wrapped error, which is thus skipped
        // itself.
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match wrapped {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        };
    }
    None
}

/// The precondition on the sync queue, for each node and name that a step is about.
#[derive(Clone, Copy)]
pub enum Expected<'a> {
    /// Nothing of it waits or is in flight.
    Unqueued,
    /// Nothing of it is in flight, or waits in its order: what waits is folded, and will be sent as
    /// it is then. The queue no longer knows what changed since the caller looked; in its place,
    /// these watches must not have noticed anything.
    Folded(&'a [&'a dyn WatchedNode]),
}

/// The parts of a node that wait to be sent, or are on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnsentNode {
    /// A content.
    pub content: bool,
    /// Its attributes, one of its names, or that it exists.
    pub other: bool,
    /// All that changed since the log's mark for continuous sync is to be sent: whether this node
    /// is part of it the log knows.
    pub is_everything: bool,
    /// A fold left the node out: the log goes on reporting it, but not whether it is new.
    pub was_left_out: bool,
}

/// A node as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LandingNode {
    /// The kind of the node.
    pub kind: NodeKind,
    /// Its attributes; of a file, `size` is its length now.
    pub attributes: Attributes,
    /// All its names, in no order. The root has none.
    pub names: Vec<Place<NodeId>>,
}

/// An attribute that could not be set because it is not possible here; all others are set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissedAttribute {
    /// The attribute.
    pub what: AttributeKind,
    /// The system's error.
    pub why: String,
}

/// A kind of attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeKind {
    /// Owner or group.
    Owner,
    /// The permission bits, or only those that give the owner's rights.
    Mode,
    /// The extended attribute of this name; access control lists are among them.
    Xattr(ByteString),
    /// The time of the last modification.
    ModificationTime,
}

/// A watch on a node: from its creation until it is dropped, it notices when a program changes the
/// node's content, its attributes or one of its names; of a directory also an entry.
pub trait WatchedNode: Send + Sync {
    /// The node.
    fn node(&self) -> NodeId;

    /// The first change that was noticed. Of a file that is watched as such only what came before
    /// the first piece.
    fn overtaken(&self) -> Option<Overtaken>;
}

/// A watched file: the base of a delta, and its target. See the module on changes by programs.
/// After an error the file holds a mixture, and the same pieces can be landed again through this.
///
/// Programs see a file that grows as long as it was until this is dropped, unless one of them
/// changes it meanwhile.
///
/// Pieces need not be ordered. [`overtaken_in`] recognises an error of [`Target`] that means that a
/// program was faster.
pub trait WatchedFile: WatchedNode + Base + Target {
    /// Ends the landing: all pieces are there. Says whether programs changed the file since the
    /// first.
    fn was_changed(&self) -> bool;
}

impl Base for Box<dyn WatchedFile + '_> {
    fn len_bytes(&self) -> io::Result<u64> {
        Base::len_bytes(&**self)
    }

    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        Base::read_range(&**self, offset, buffer)
    }

    fn next_data(&self, range: ByteRange) -> io::Result<Option<ByteRange>> {
        Base::next_data(&**self, range)
    }
}

impl Target for Box<dyn WatchedFile + '_> {
    fn len_bytes(&self) -> io::Result<u64> {
        Target::len_bytes(&**self)
    }

    fn write_range(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        Target::write_range(&mut **self, offset, bytes)
    }

    fn punch_hole(&mut self, range: ByteRange) -> io::Result<()> {
        Target::punch_hole(&mut **self, range)
    }

    fn set_len_bytes(&mut self, len_bytes: u64) -> io::Result<()> {
        Target::set_len_bytes(&mut **self, len_bytes)
    }
}

/// See the module.
pub trait LandingTree: Send + Sync {
    /// The node that a name stands for now; `None`: nothing.
    ///
    /// # Errors
    /// If the log cannot be read.
    fn child(&self, place: &Place<NodeId>) -> Result<Option<NodeId>>;

    /// Whether a name that stands for nothing here cannot be given: the file system has something
    /// under another name that it cannot distinguish from this one (it folds cases, or spellings of
    /// the same letter), or will never have such a name.
    ///
    /// # Errors
    /// If that cannot be found out.
    fn is_taken_by_another(&self, place: &Place<NodeId>) -> Result<bool>;

    /// A node as it is now; `None` if it has no name any more.
    ///
    /// # Errors
    /// If it cannot be read.
    fn look(&self, node: NodeId) -> Result<Option<LandingNode>>;

    /// A page of a directory as it is now, in byte order of the names, from the one behind `after`
    /// on; empty after the last.
    ///
    /// # Errors
    /// If it cannot be read, or is gone.
    fn entries(&self, directory: NodeId, after: Option<&ByteString>) -> Result<Vec<DirEntry>>;

    /// Whether anything of a node (content, attributes, names) waits to be sent or is in flight, or
    /// something is to be sent as a delta of its content.
    fn is_node_queued(&self, node: NodeId) -> bool;

    /// Whether a program has a file open for writing. Its last name is neither removed nor replaced
    /// then ([`Landed::Overtaken`]): later writes of the program would be lost.
    ///
    /// # Errors
    /// If that cannot be determined.
    fn is_open_for_writing(&self, node: NodeId) -> Result<bool>;

    /// The parts of a node that wait to be sent or are in flight.
    fn unsent_of(&self, node: NodeId) -> UnsentNode;

    /// Whether anything of a name waits to be sent or is in flight.
    fn is_name_queued(&self, place: &Place<NodeId>) -> bool;

    /// Sets of files in a fold whose contents were changed together by programs in one atomic
    /// operation (DeltaCFS section III-C), each of several files. One file may be in several sets;
    /// files that were sent since, or are gone, may still be in one.
    fn together(&self) -> Vec<Vec<NodeId>>;

    /// Makes a node under a free name: an empty file, a directory, a symlink, a pipe, a socket or a
    /// device, as `attributes` say. It is never visible with other attributes.
    ///
    /// # Errors
    /// If it cannot be made.
    fn make(
        &self,
        at: &Place<NodeId>,
        attributes: &Attributes,
        expected: Expected<'_>,
    ) -> Result<Landed<(NodeId, Vec<MissedAttribute>)>>;

    /// Gives a node one more name, which is free.
    ///
    /// # Errors
    /// If that cannot be.
    fn link(&self, node: NodeId, at: &Place<NodeId>, expected: Expected<'_>) -> Result<Landed<()>>;

    /// Moves the name `from` of `node` to `to`, which stands for `replaced`, or is free.
    ///
    /// # Errors
    /// If that cannot be.
    fn rename(
        &self,
        node: NodeId,
        from: &Place<NodeId>,
        to: &Place<NodeId>,
        replaced: Option<NodeId>,
        expected: Expected<'_>,
    ) -> Result<Landed<()>>;

    /// Exchanges two names, each with the node that it stands for.
    ///
    /// # Errors
    /// If that cannot be.
    fn exchange(
        &self,
        one: (&Place<NodeId>, NodeId),
        other: (&Place<NodeId>, NodeId),
        expected: Expected<'_>,
    ) -> Result<Landed<()>>;

    /// Whether a name can be taken from a node at all, as far as that is known without trying.
    ///
    /// # Errors
    /// [`ErrorKind::Blocked`](crate::ErrorKind::Blocked) says why it cannot.
    fn check_removable(&self, node: NodeId, at: &Place<NodeId>) -> Result<Landed<()>>;

    /// Moves a node that is in the way of something that lands to a free name, as a program of this
    /// machine would: the queue gets the event, and waiting changes of the node and its names do
    /// not matter. With `leaves_old` the old name stays until something replaces it, where the file
    /// system has hard links: programs find something under it at any moment.
    ///
    /// # Errors
    /// If that cannot be.
    fn displace(&self, node: NodeId, from: &Place<NodeId>, to: &Place<NodeId>, leaves_old: bool) -> Result<Landed<()>>;

    /// Removes a name that stands for `node`; of a directory that is empty, of which no entry waits
    /// to be sent.
    ///
    /// # Errors
    /// If that cannot be.
    fn remove(&self, at: &Place<NodeId>, node: NodeId, expected: Expected<'_>) -> Result<Landed<()>>;

    /// Gives a node its attributes, all at once: owner, extended attributes, permissions,
    /// modification time. Its kind, length, target and device number stay. Labels that the system
    /// gives by itself (`security.`) are set, and never removed.
    ///
    /// # Errors
    /// If the node cannot be reached. Attributes that are not possible here are returned.
    fn set_attributes(
        &self,
        node: NodeId,
        attributes: &Attributes,
        expected: Expected<'_>,
    ) -> Result<Landed<Vec<MissedAttribute>>>;

    /// Watches a node. Stores of programs through mappings until now count as earlier.
    ///
    /// # Errors
    /// If it cannot be reached.
    fn watch(&self, node: NodeId) -> Result<Landed<Box<dyn WatchedNode + '_>>>;

    /// Watches a file, to land in it. A file is watched for this once at a time.
    ///
    /// # Errors
    /// If it cannot be opened.
    fn watch_file(&self, node: NodeId, expected: Expected<'_>) -> Result<Landed<Box<dyn WatchedFile + '_>>>;

    /// The damage of a file: bytes in it that no program wrote.
    ///
    /// # Errors
    /// If that cannot be determined.
    fn damage_of(&self, _node: NodeId) -> Result<Option<Damage>> {
        Ok(None)
    }

    /// Repairs damaged blocks of a file with the server's bytes from `offset` on, a multiple of the
    /// block length: only those blocks for which the bytes are proven to be those that were
    /// written. Later changes by programs in them stay; other blocks are left alone. A repair is no
    /// change of the file. Returns how many bytes are right now.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    fn heal(&self, node: NodeId, _offset: u64, _good: &[u8]) -> Result<Landed<u64>> {
        Err(no_sums(node))
    }

    /// Lets the damaged blocks of a file count as they are, as if a program had just written them.
    /// Answers how many bytes these are.
    ///
    /// # Errors
    /// If the file cannot be read.
    fn accept(&self, node: NodeId) -> Result<Landed<u64>> {
        Err(no_sums(node))
    }

    /// Makes durable which files these nodes are: after a crash they have the same numbers. To be
    /// done before a number of something that was made is noted anywhere else.
    ///
    /// # Errors
    /// If the log cannot be written.
    fn keep_numbers(&self, nodes: &[NodeId]) -> Result<()>;

    /// Names landed in a directory: if its time is still `mtime_ns`, the one before, it becomes the
    /// next that there is, as if a program had set it. Programs that look for new names by the
    /// times of directories, as readers of mail do, would not see these otherwise.
    ///
    /// # Errors
    /// If it cannot be set.
    fn advance_time(&self, directory: NodeId, mtime_ns: i128) -> Result<()>;

    /// Makes all that has landed so far durable: contents, attributes, names.
    ///
    /// # Errors
    /// If the disk does not take it. It is as if nothing had been made durable then.
    fn sync(&self) -> Result<()>;
}

fn no_sums(node: NodeId) -> ServiceError {
    let message = format!("no checksums are kept for node {node}");
    ServiceError::new(ErrorKind::Refused, message)
}

#[cfg(test)]
mod tests;
