//! The steps that bring the tree here to the state of the server: pure, without I/O of its own. The
//! plan compares states and not histories: others' changes ([`Others`]), and the tree here
//! ([`LocalTree`]); so it can be made again at any moment, also when a part of its steps was done.
//!
//! The server reports no moves. A name that went and a name that came of the same node become one
//! [`Step::Rename`] in `order`.
//!
//! **A landing that was begun is ended.** The head up to which others' changes are landed is
//! durable before the first step, and until the cursor has reached it the plan is made for the same
//! head: a node that was compared with an older one might look unchanged.
//!
//! Rules, for nodes and names that were changed here and are not sent yet ("unsent"), and there,
//! too:
//! - Names: the server's count. A node that they displace here keeps its content under a conflict
//!   name (`names`).
//! - Contents: the server's stays with the identity and the name; the node here becomes another
//!   file under a conflict name, with an identity of its own that stands on the content it was made
//!   from ([`Step::Identity`]). Programs that have it open go on writing into it.
//! - A file that a program here has open for writing is kept in the same way, once it was in the
//!   way of a step.
//! - A file changed here and removed there stays, as a new file. A file removed here and changed
//!   there comes back, with the directories above it.
//! - A directory removed there that holds something unsent stays, and is reported to be sent
//!   ([`Outcome::Stays`]).
//! - Directories moved into each other, by here and there together: the moves there count, those
//!   here are taken back.
//! - Both did the same: nothing to do; nodes that both made become one.
//! - Files whose contents were changed here in one atomic operation, and that lie in one directory,
//!   share the outcome: if one gets a conflict name, all do (`merge/together`).
//! - Ignored nodes here are neither seen nor touched: names of the server that are ignored are left
//!   out; a directory removed there stays here for the ignored nodes in it, and is not reported to
//!   the server again ([`Identity::Withheld`]).
//!
//! | room | what is in it |
//! |---|---|
//! | `merge` | which node a name is to stand for, and what becomes of nodes that have no name then |
//! | `order` | in which order that can be done |
//! | `names` | conflict names, and the names of nodes on their way |
//!
//! **Order.** Identities; new files are made under a name on their way, in the root; their
//! contents, and those that changed; attributes; then names, each when its preconditions hold: a
//! name is free, or held by a node that is not needed there any more, a directory exists, nothing
//! goes into itself. Names that wait for each other are a cycle: one of them is *parked* under a
//! name on its way. Directories get their attributes last. Names on their way contain the identity;
//! after a crash each is found by its place, and is moved on or removed: nothing is left of them
//! when the plan is done.
//!
//! Out of scope: asking the server. A plan that needs more than the difference names its needs
//! ([`PlanError::Needs`]), and is made again with them.

mod merge;
mod names;
mod order;

use byteback_model::{Attributes, FileId, NodeKind, Place, Seq};
use std::collections::{BTreeMap, BTreeSet};

use byteback_control::ServiceError;

pub(crate) use names::name_on_its_way;
pub use names::{ConflictLabel, is_name_on_its_way};

/// A name that others changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameChange {
    /// The node it stood for when the server's state was as here, unsent changes apart.
    pub before: Option<FileId>,
    /// The node it stands for at the head; `None` if its directory is not in the tree there.
    pub after: Option<FileId>,
}

/// A node that others made or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeChange {
    /// The moment at which it was as here, unsent changes apart.
    pub since: Seq,
    /// Its attributes then; `None` if it is new.
    pub before: Option<Attributes>,
    /// Its attributes at the head.
    pub after: Attributes,
    /// Whether its content differs from then.
    pub is_content_changed: bool,
}

/// A node at the head, as the server reports it on request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadNode {
    /// Its attributes.
    pub attributes: Attributes,
    /// Its names.
    pub places: Vec<Place<FileId>>,
    /// If it is a directory and they were asked for: its entries, each with its attributes.
    pub entries: Option<Vec<(Vec<u8>, FileId, Attributes)>>,
}

/// Others' changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// The moment that is to be reached.
    pub head: Seq,
    /// Changed names.
    pub names: BTreeMap<Place<FileId>, NameChange>,
    /// Changed nodes.
    pub nodes: BTreeMap<FileId, NodeChange>,
    /// Directories that are not in the tree at the head, but got names.
    pub unreachable: BTreeSet<FileId>,
    /// Nodes asked for beyond that; `None`: the head does not have it.
    pub reported: BTreeMap<FileId, Option<HeadNode>>,
}

impl Others {
    /// Number of changes, for people: names, and nodes that had a name before.
    #[must_use]
    pub fn count(&self) -> u64 {
        let changed = self.nodes.values().filter(|node| node.before.is_some()).count();
        self.names.len().saturating_add(changed) as u64
    }
}

/// A node as it is here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalNode {
    /// Its attributes, its kind included.
    pub attributes: Attributes,
    /// All its names.
    pub places: Vec<Place<FileId>>,
    /// Whether the server has, or had, a node of this identity.
    pub is_known: bool,
    /// Whether it is new here, or its content changed here, and that is not sent.
    pub is_unsent: bool,
    /// Whether a program has it open for writing, and was in the way of a step for that: it cannot
    /// lose its last name, as what the program writes afterwards would be nowhere.
    pub is_in_use: bool,
    /// Whether its attributes changed here, and that is not sent.
    pub has_unsent_attributes: bool,
}

/// A file that was changed here in one atomic operation with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The file.
    pub id: FileId,
    /// The server's file that it was before a conflict made it another one.
    pub was: Option<FileId>,
    /// Whether it already has the conflict name that it was to get.
    pub is_copy: bool,
}

/// The tree here. Nodes go by their identities; a node that the server does not know, by the one it
/// would get.
pub trait LocalTree {
    /// Identity of the root.
    fn root(&self) -> FileId;

    /// A node that has a name.
    ///
    /// # Errors
    /// If the tree cannot be read.
    fn node(&self, id: FileId) -> Result<Option<LocalNode>, ServiceError>;

    /// The node that a name stands for.
    ///
    /// # Errors
    /// As above.
    fn entry(&self, place: &Place<FileId>) -> Result<Option<FileId>, ServiceError>;

    /// Whether a name was changed here, and that is not sent; this holds for each name in a
    /// directory that the server does not know.
    ///
    /// # Errors
    /// As above.
    fn is_unsent(&self, place: &Place<FileId>) -> Result<bool, ServiceError>;

    /// Entries of a directory.
    ///
    /// # Errors
    /// As above.
    fn entries(&self, directory: FileId) -> Result<Vec<(Vec<u8>, FileId)>, ServiceError>;

    /// Whether anything is ignored here. The calls above do not report ignored names, nor nodes
    /// without other names.
    fn may_ignore(&self) -> bool {
        false
    }

    /// Whether a path, from the root, is ignored here.
    fn is_ignored(&self, _path: &[u8], _is_directory: bool) -> bool {
        false
    }

    /// Whether a name stands here for an ignored node.
    ///
    /// # Errors
    /// As above.
    fn is_hidden(&self, _place: &Place<FileId>) -> Result<bool, ServiceError> {
        Ok(false)
    }

    /// Whether a directory is kept here for the ignored nodes in it, and not reported to the
    /// server.
    fn is_withheld(&self, _directory: FileId) -> bool {
        false
    }

    /// Whether a directory contains anything ignored.
    ///
    /// # Errors
    /// As above.
    fn holds_hidden(&self, _directory: FileId) -> Result<bool, ServiceError> {
        Ok(false)
    }

    /// Names on their way in the root.
    ///
    /// # Errors
    /// As above.
    fn on_their_way(&self) -> Result<Vec<(Vec<u8>, FileId)>, ServiceError> {
        let mut names = self.entries(self.root())?;
        names.retain(|(name, _)| is_name_on_its_way(name));
        Ok(names)
    }

    /// Sets of files that were changed here in one atomic operation, as far as they wait to be
    /// sent.
    ///
    /// # Errors
    /// As above.
    fn together(&self) -> Result<Vec<Vec<Member>>, ServiceError>;

    /// Whether others' change of the content of a file that was changed or removed here, too, left
    /// a different content: a content that was only sent once more did not change.
    ///
    /// # Errors
    /// If the server cannot be asked.
    fn is_changed_there(&self, _id: FileId, _change: &NodeChange) -> Result<bool, ServiceError> {
        Ok(true)
    }

    /// Announces that [`LocalTree::is_same`] will be asked for these pairs of a file here and the
    /// server's: they may be compared at once.
    ///
    /// # Errors
    /// As for [`LocalTree::is_same`].
    fn compare_ahead(&self, _pairs: &[(FileId, FileId)]) -> Result<(), ServiceError> {
        Ok(())
    }

    /// Whether a node here that is not a directory equals `there` at the head: its content, or a
    /// symlink's target; attributes apart.
    ///
    /// # Errors
    /// As above, or if the server cannot be asked.
    fn is_same(&self, here: FileId, there: FileId) -> Result<bool, ServiceError>;
}

/// Blocked changes: the nodes and names stay as they are, and everything else goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocked {
    /// Names that can be neither given nor taken away.
    pub places: BTreeSet<Place<FileId>>,
    /// Files whose contents cannot be changed.
    pub contents: BTreeSet<FileId>,
}

/// Further input of a plan.
#[derive(Debug)]
pub struct Given<'a> {
    /// Files whose contents of the head were written already: unsent changes of them came after
    /// that. A file that is made anew is not among them.
    pub landed: &'a BTreeSet<FileId>,
    /// Names that this tree cannot hold, found out by trying.
    pub refused: &'a BTreeSet<Place<FileId>>,
    /// Changes that cannot be made as long as the tree is as it is, found out by trying.
    pub blocked: &'a Blocked,
    /// Label of conflict names.
    pub label: &'a ConflictLabel,
}

/// The content that a new content is laid over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentFrom {
    /// None: the file is empty.
    Nothing,
    /// The file's content at the server at this moment.
    Since(Seq),
}

/// Kind of the identity that a node gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The identity of the server's node that was made there, too, and is the same.
    Theirs,
    /// A new one that the server does not know yet, as the node of the old one is another one
    /// there, or gone. A file's content stands on that node's content at this moment, with the
    /// changes made here since.
    New(Seq),
    /// That of a directory that is kept here for the ignored nodes in it, and not reported to the
    /// server.
    Withheld,
}

/// A single step. Each states what it expects; if that does not hold any more nothing is done, and
/// a new plan is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The node here that is `was` is `becomes` from now on.
    Identity {
        /// Identity until now.
        was: FileId,
        /// Identity from now on.
        becomes: FileId,
        /// Kind of the new identity.
        kind: Identity,
    },
    /// A new node. A file is empty.
    Make {
        /// Its identity.
        id: FileId,
        /// Its place; the name is free.
        place: Place<FileId>,
        /// Its attributes.
        attributes: Attributes,
    },
    /// A file gets the content of the head. A file that is made, and is empty there, is complete
    /// without this step.
    Content {
        /// The file.
        id: FileId,
        /// The content it is laid over.
        from: ContentFrom,
    },
    /// A node gets the attributes of the head.
    Attributes {
        /// The node.
        id: FileId,
        /// All of them. The size is to be ignored.
        attributes: Attributes,
    },
    /// A node that is not a directory gets a further name.
    Link {
        /// The node.
        id: FileId,
        /// The name, which is free.
        place: Place<FileId>,
    },
    /// A name of a node moves.
    Rename {
        /// The node.
        id: FileId,
        /// Its old name.
        from: Place<FileId>,
        /// Its new name.
        to: Place<FileId>,
        /// The node that the new name stands for until then. Neither is a directory then.
        replaces: Option<FileId>,
        /// Whether the node is displaced: it is in the way, and gets a conflict name. That is a
        /// change made here: the observer is told, so it is sent. A file may be linked first and
        /// lose its old name only to the node that lands there (`leaves_old`).
        is_local: bool,
        /// Whether the old name stays, too, until the node that lands there replaces it, so that
        /// programs find something under it at any moment. Only with a conflict name.
        leaves_old: bool,
    },
    /// A name is removed. A directory is empty.
    Remove {
        /// The node that it stands for.
        id: FileId,
        /// The name.
        place: Place<FileId>,
    },
}

/// An outcome that a person, or the sender of local changes, has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A node changed here gets another name, as another device came first.
    Conflict {
        /// Its former name, if it still has one.
        place: Place<FileId>,
        /// Its new name.
        copy: Place<FileId>,
        /// The node, by its identity from now on.
        node: FileId,
    },
    /// A name that others removed stays, as something unsent depends on it. To be sent are the name
    /// and the node, which may have a new identity; of a directory, too, all that is in it.
    Stays {
        /// The name.
        place: Place<FileId>,
        /// The node, by its identity from now on.
        node: FileId,
    },
    /// A name that others changed, and that can be neither given nor taken away here.
    BlockedName {
        /// The name.
        place: Place<FileId>,
        /// The node that it stands for here.
        before: Option<FileId>,
        /// The node that it stands for there.
        after: Option<FileId>,
    },
    /// A file that others changed, and whose content cannot be changed here.
    BlockedContent {
        /// The file.
        node: FileId,
        /// The file holds its content of this moment at the server.
        since: Seq,
    },
    /// A name of the server that this tree cannot hold: it is left out, with everything below it.
    LeftOut {
        /// The name.
        place: Place<FileId>,
        /// The node that it stands for there.
        node: FileId,
        /// Reason.
        why: &'static str,
        /// If it is ignored here: whether it is a directory.
        ignored: Option<bool>,
    },
}

/// Steps to be done, and their outcomes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The steps, in this order.
    pub steps: Vec<Step>,
    /// Outcomes that a person or the sender has to know.
    pub outcomes: Vec<Outcome>,
}

/// A node whose state at the head a plan needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Need {
    /// The node.
    pub id: FileId,
    /// Whether its entries are needed, if it is a directory.
    pub entries: bool,
}

/// Reason why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// Nodes that have to be asked for first, into [`Others::reported`].
    #[error("{} nodes must first be requested from the server", .0.len())]
    Needs(Vec<Need>),
    /// The tree here cannot be read.
    #[error("cannot read the folder")]
    Tree(#[from] ServiceError),
    /// The server's answer is not a tree.
    #[error("the server's answer cannot be trusted: {0}; none of it was used")]
    Hostile(String),
}

/// Makes the plan. `fresh` draws identities that no node has.
///
/// # Errors
/// More has to be known; the tree cannot be read; the server's answer is not a tree.
pub fn plan(
    others: &Others,
    here: &dyn LocalTree,
    given: &Given<'_>,
    fresh: &mut dyn FnMut() -> FileId,
) -> Result<Plan, PlanError> {
    let merged = merge::Merge::new(others, here, given, fresh).run()?;
    order::order(merged)
}

/// Whether attributes are the same, apart from those of the content and the names of owner and
/// group.
pub(crate) fn are_same_attributes(one: &Attributes, other: &Attributes) -> bool {
    let key = |of: &Attributes| (of.mode, of.uid, of.gid, of.mtime_ns);
    key(one) == key(other) && one.xattrs == other.xattrs
}

/// Attributes of a node that has unsent changes: others' changes count.
fn merged_attributes(node: &LocalNode, change: &NodeChange) -> Attributes {
    let (here, after) = (&node.attributes, &change.after);
    let Some(before) = change
        .before
        .as_ref()
        .filter(|_| node.has_unsent_attributes || node.is_unsent)
    else {
        return after.clone();
    };
    let mut merged = here.clone();
    if node.has_unsent_attributes {
        if before.mode != after.mode {
            merged.mode = after.mode;
        }
        if (before.uid, before.gid) != (after.uid, after.gid) {
            (merged.uid, merged.gid) = (after.uid, after.gid);
            (merged.user, merged.group) = (after.user.clone(), after.group.clone());
        }
        if before.xattrs != after.xattrs {
            merged.xattrs.clone_from(&after.xattrs);
        }
    } else {
        merged = after.clone();
    }
    // The modification time is the content's, or the node's own.
    merged.mtime_ns = match node.is_unsent || before.mtime_ns == after.mtime_ns {
        true => here.mtime_ns,
        false => after.mtime_ns,
    };
    merged
}

const fn is_directory(attributes: &Attributes) -> bool {
    matches!(attributes.kind, NodeKind::Directory)
}

#[cfg(test)]
mod tests;
