//! What is to be done here so that the tree becomes what it is at the server: pure, without I/O of
//! its own. It compares states and not histories: what others changed ([`Others`]), and what is
//! here ([`Here`]); so it can be asked again at any moment, also when a part of its steps was done.
//!
//! **Who begins to land a range of batches ends it.** The head up to which others' changes are
//! landed is durable before the first step, and until the cursor has reached it the plan is made
//! for the same head: what was compared with an older one might look as if nobody had changed it.
//!
//! Rules, for what was changed here and is not sent yet ("unsent"), and there, too:
//! - Names: the server's count. What they displace here keeps what it holds under a conflict name
//!   (`names`).
//! - Contents: the server's stays with the identity and the name; the node here becomes another
//!   file under a conflict name, with an identity of its own that stands on what it was made from
//!   ([`Step::Identity`]). Programs that have it open go on writing into it.
//! - What a program here has open for writing stays like that, too, as soon as that was in the way
//!   of a step.
//! - A file changed here and removed there stays, as a new file. A file removed here and changed
//!   there comes back, with the directories above it.
//! - A directory removed there in which something unsent is stays, and is told to be sent
//!   ([`Outcome::Stays`]).
//! - Directories moved into each other, by here and there together: the moves there count, those
//!   here are taken back.
//! - Both did the same: nothing to do; what both made becomes one node.
//! - Files whose contents were changed here in one atomic operation, and that lie in one directory,
//!   share the outcome: if one gets a conflict name, all do (`merge/together`).
//! - What is ignored here is neither seen nor touched: names of the server that are ignored are
//!   left out; a directory removed there stays here for what is ignored in it, and the server is
//!   not told of it again ([`Identity::Withheld`]).
//!
//! | room | what is in it |
//! |---|---|
//! | `merge` | which name is to stand for what, and what becomes of what has no name then |
//! | `order` | in which order that can be done |
//! | `names` | conflict names, and the names of nodes on their way |
//!
//! **Order.** Identities; new files are made under a name on their way, in the root; their
//! contents, and those that changed; attributes; then names, each when what it needs is there: a
//! name is free, or held by what is not needed there any more, a directory exists, nothing goes
//! into itself. What waits for each other is a cycle: one of it is *parked* under a name on its
//! way. Directories get their attributes last. Names on their way tell the identity; after a crash
//! each is found by its place, and is moved on or removed: nothing is left of them when the plan is
//! done.
//!
//! Out of scope: ask the server. What it has to know beyond the difference it names
//! ([`PlanError::Needs`]), and is asked again with that.

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
    /// What it stood for when it was like here, unsent changes apart.
    pub before: Option<FileId>,
    /// What it stands for at the head; nothing if its directory is not in the tree there.
    pub after: Option<FileId>,
}

/// A node that others made or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeChange {
    /// The moment at which it was like here, unsent changes apart.
    pub since: Seq,
    /// Its attributes then; none if it is new.
    pub before: Option<Attributes>,
    /// At the head.
    pub after: Attributes,
    /// It holds something else than then.
    pub is_content_changed: bool,
}

/// A node at the head, asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Its attributes.
    pub attributes: Attributes,
    /// Its names.
    pub places: Vec<Place<FileId>>,
    /// If it is a directory and that was asked for: what is in it, each with its attributes.
    pub entries: Option<Vec<(Vec<u8>, FileId, Attributes)>>,
}

/// What others changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// The moment that is to be reached.
    pub head: Seq,
    /// Names.
    pub names: BTreeMap<Place<FileId>, NameChange>,
    /// Nodes.
    pub nodes: BTreeMap<FileId, NodeChange>,
    /// Directories that are not in the tree at the head, and got names nevertheless.
    pub unreachable: BTreeSet<FileId>,
    /// What was asked for beyond that; none: the head does not have it.
    pub told: BTreeMap<FileId, Option<Told>>,
}

impl Others {
    /// How many changes these are, to tell people: names, and nodes that had a name before.
    #[must_use]
    pub fn count(&self) -> u64 {
        let changed = self.nodes.values().filter(|node| node.before.is_some()).count();
        self.names.len().saturating_add(changed) as u64
    }
}

/// A node as it is here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HereNode {
    /// Its attributes; also its kind.
    pub attributes: Attributes,
    /// All its names.
    pub places: Vec<Place<FileId>>,
    /// The server has, or had, a node of this identity.
    pub is_known: bool,
    /// It is new here, or its content changed here, and that is not sent.
    pub is_unsent: bool,
    /// A program has it open for writing, and was in the way of a step for that: it cannot lose its
    /// last name, as what the program writes afterwards would be nowhere.
    pub is_in_use: bool,
    /// Its attributes changed here, and that is not sent.
    pub has_unsent_attributes: bool,
}

/// A file that was changed here in one atomic operation with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The file.
    pub id: FileId,
    /// The server's file that it was before it became another one, for a conflict.
    pub was: Option<FileId>,
    /// It has the conflict name already that it was to get.
    pub is_copy: bool,
}

/// What is here. Nodes go by their identities; what the server does not know by those that it would
/// get.
pub trait Here {
    /// The root.
    fn root(&self) -> FileId;

    /// A node that has a name.
    ///
    /// # Errors
    /// If the tree cannot be read.
    fn node(&self, id: FileId) -> Result<Option<HereNode>, ServiceError>;

    /// What a name stands for.
    ///
    /// # Errors
    /// As above.
    fn entry(&self, place: &Place<FileId>) -> Result<Option<FileId>, ServiceError>;

    /// Whether a name was changed here, and that is not sent; so is each in a directory that the
    /// server does not know.
    ///
    /// # Errors
    /// As above.
    fn is_unsent(&self, place: &Place<FileId>) -> Result<bool, ServiceError>;

    /// What is in a directory.
    ///
    /// # Errors
    /// As above.
    fn entries(&self, directory: FileId) -> Result<Vec<(Vec<u8>, FileId)>, ServiceError>;

    /// Whether anything is ignored here. What is, the calls above do not tell: neither names nor
    /// nodes that have no other ones.
    fn may_ignore(&self) -> bool {
        false
    }

    /// Whether a path, from the root, is ignored here.
    fn is_ignored(&self, _path: &[u8], _is_directory: bool) -> bool {
        false
    }

    /// Whether a name stands for something here that is ignored.
    ///
    /// # Errors
    /// As above.
    fn is_hidden(&self, _place: &Place<FileId>) -> Result<bool, ServiceError> {
        Ok(false)
    }

    /// Whether a directory is kept here for what is ignored in it, and the server is not told of
    /// it.
    fn is_withheld(&self, _directory: FileId) -> bool {
        false
    }

    /// Whether there is anything in a directory that is ignored.
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

    /// The files that were changed here in one atomic operation, each such set of them, as far as
    /// they wait to be sent.
    ///
    /// # Errors
    /// As above.
    fn together(&self) -> Result<Vec<Vec<Member>>, ServiceError>;

    /// Whether others' change of a file's content, which was changed or removed here, too, left
    /// another content than it had: what was only sent once more was not changed.
    ///
    /// # Errors
    /// If the server cannot be asked.
    fn is_changed_there(&self, _id: FileId, _change: &NodeChange) -> Result<bool, ServiceError> {
        Ok(true)
    }

    /// [`Here::is_same`] will be asked of files here and the server's: they may be compared at
    /// once.
    ///
    /// # Errors
    /// As there.
    fn compare_ahead(&self, _pairs: &[(FileId, FileId)]) -> Result<(), ServiceError> {
        Ok(())
    }

    /// Whether a node here, which is no directory, is what `there` is at the head: content, or what
    /// a symlink points to; attributes apart.
    ///
    /// # Errors
    /// As above, or if the server cannot be asked.
    fn is_same(&self, here: FileId, there: FileId) -> Result<bool, ServiceError>;
}

/// What does not let itself be changed here: it stays as it is, and everything else goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocked {
    /// Names that can be neither given nor taken away.
    pub places: BTreeSet<Place<FileId>>,
    /// Files whose contents cannot be changed.
    pub contents: BTreeSet<FileId>,
}

/// What else a plan depends on.
#[derive(Debug)]
pub struct Given<'a> {
    /// Files whose contents of the head were written already: what is unsent of them came after
    /// that. One that is made anew is not among them.
    pub landed: &'a BTreeSet<FileId>,
    /// Names that this tree cannot hold, found out by trying.
    pub refused: &'a BTreeSet<Place<FileId>>,
    /// What cannot be changed as long as it is as it is, found out by trying.
    pub blocked: &'a Blocked,
    /// What conflict names say.
    pub label: &'a ConflictLabel,
}

/// What a new content is laid over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentFrom {
    /// The file is empty.
    Nothing,
    /// It holds what it held at the server then.
    Since(Seq),
}

/// What a node becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The node of the server that was made there, too, and is the same.
    Theirs,
    /// One that the server does not know yet, as that of this identity is another one there, or
    /// gone. A file's content stands on what that held at this moment, with what was changed here
    /// since.
    New(Seq),
    /// A directory that is kept here for what is ignored in it, and of which the server is not
    /// told.
    Withheld,
}

/// One thing to do. Each says what it expects; if that does not hold any more nothing is done, and
/// a new plan is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The node here that is `was` is `becomes` from now on.
    Identity {
        /// Until now.
        was: FileId,
        /// From now on.
        becomes: FileId,
        /// What that is.
        kind: Identity,
    },
    /// A new node. A file is empty.
    Make {
        /// Its identity.
        id: FileId,
        /// Where; the name is free.
        place: Place<FileId>,
        /// Its attributes.
        attributes: Attributes,
    },
    /// A file gets the content of the head.
    Content {
        /// Which.
        id: FileId,
        /// Over what.
        from: ContentFrom,
    },
    /// A node gets the attributes of the head.
    Attributes {
        /// Which.
        id: FileId,
        /// All of them. The size is not to be looked at.
        attributes: Attributes,
    },
    /// A node that is no directory gets a further name.
    Link {
        /// Which.
        id: FileId,
        /// The name, which is free.
        place: Place<FileId>,
    },
    /// A name of a node becomes another one.
    Rename {
        /// Which.
        id: FileId,
        /// Which name.
        from: Place<FileId>,
        /// The new one.
        to: Place<FileId>,
        /// What the new one stands for until then. Neither is a directory then.
        replaces: Option<FileId>,
        /// It is a conflict name: a change made here, to be sent.
        is_local: bool,
        /// The old name stays, too, until what lands there replaces it, so that programs find
        /// something under it at any moment. Only of a conflict name.
        leaves_old: bool,
    },
    /// A name goes. A directory is empty.
    Remove {
        /// What it stands for.
        id: FileId,
        /// The name.
        place: Place<FileId>,
    },
}

/// Something that a person, or the sender of what was changed here, has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// What was changed here has another name from now on, as somebody else came first.
    Conflict {
        /// The name that it had, if it still has one.
        place: Place<FileId>,
        /// The name that it gets.
        copy: Place<FileId>,
        /// The node, by its identity from now on.
        node: FileId,
    },
    /// Others removed this name, and it stays, as something unsent depends on it: the name is to be
    /// sent, and the node, which may have a new identity; of a directory, too, all that is in it.
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
        /// What it stands for here.
        before: Option<FileId>,
        /// What it stands for there.
        after: Option<FileId>,
    },
    /// A file that others changed, and whose content cannot be changed here.
    BlockedContent {
        /// The file.
        node: FileId,
        /// It holds what it held at the server then.
        since: Seq,
    },
    /// A name of the server that this tree cannot hold: it, and what is below it, is left out.
    LeftOut {
        /// The name.
        place: Place<FileId>,
        /// What it stands for there.
        node: FileId,
        /// Why.
        why: &'static str,
        /// It is ignored here, and a directory or not.
        ignored: Option<bool>,
    },
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In this order.
    pub steps: Vec<Step>,
    /// What comes of it.
    pub outcomes: Vec<Outcome>,
}

/// Something about the head that has to be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Need {
    /// The node.
    pub id: FileId,
    /// If it is a directory, with what is in it.
    pub entries: bool,
}

/// There is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// This has to be asked for first, into [`Others::told`].
    #[error("{} nodes have to be asked for at the server", .0.len())]
    Needs(Vec<Need>),
    /// The tree here cannot be read.
    #[error("the folder cannot be read")]
    Tree(#[from] ServiceError),
    /// What the server tells is no tree.
    #[error("the server's answer is not to be trusted: {0}; nothing of it was used")]
    Hostile(String),
}

/// Makes the plan. `fresh` draws identities that nobody has.
///
/// # Errors
/// More has to be known; the tree cannot be read; the server's tree is none.
pub fn plan(
    others: &Others,
    here: &dyn Here,
    given: &Given<'_>,
    fresh: &mut dyn FnMut() -> FileId,
) -> Result<Plan, PlanError> {
    let merged = merge::Merge::new(others, here, given, fresh).run()?;
    order::order(merged)
}

/// Whether attributes are the same, as far as they are no matter of the content or of how owners
/// are called.
pub(crate) fn are_same_attributes(one: &Attributes, other: &Attributes) -> bool {
    let key = |of: &Attributes| (of.mode, of.uid, of.gid, of.mtime_ns);
    key(one) == key(other) && one.xattrs == other.xattrs
}

/// What a node that has unsent changes is to look like: what others changed counts.
fn merged_attributes(node: &HereNode, change: &NodeChange) -> Attributes {
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
    // The time of the last modification is the content's, or one's own.
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
