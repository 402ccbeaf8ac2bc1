//! One change on its way through the gate: the loops over the witnesses, and what is held
//! meanwhile.
//!
//! **Locks.** The log's operation has begun before `Order` is taken, and ends after it is released.

use std::ffi::OsStr;

use byteback_checksums::written;
use byteback_host::tree::{Identity, Inode, Stat};
use byteback_model::NodeId;
use byteback_oplog::{Log, Operation};

use super::account::Account;
use super::change::{Change, Outcome};
use super::observer::{KnownNode, LostName, NamedAt, NamesChanged, Observer, OrderGuard};
use super::witness::{Lasting, Witness, witnesses_of};
use super::{Origin, TrackedResult, Victim};
use crate::integrity::Integrity;

/// The witnesses of a tree's changes.
pub(super) struct Gate {
    pub(super) account: Account,
    witnesses: Vec<Lasting>,
}

impl Gate {
    pub(super) fn new(account: Account) -> Self {
        let witnesses = witnesses_of(&account);
        Self { account, witnesses }
    }

    /// A gate with further witnesses, before and behind the others.
    #[cfg(test)]
    pub(super) fn with_witnesses(account: Account, first: Lasting, last: Lasting) -> Self {
        let mut witnesses = vec![first];
        witnesses.extend(witnesses_of(&account));
        witnesses.push(last);
        Self { account, witnesses }
    }

    pub(super) fn observer(&self) -> Option<&dyn Observer> {
        self.account.observer.as_deref()
    }

    pub(super) fn shared_order(&self) -> Option<OrderGuard<'_>> {
        self.observer().map(|observer| observer.order().guarded_shared())
    }

    pub(super) fn exclusive_order(&self) -> Option<OrderGuard<'_>> {
        self.observer().map(|observer| observer.order().guarded_exclusive())
    }

    /// Begins a change of attributes. It is prepared before anything waits for `Order`.
    pub(super) fn begin_attributes(&self, origin: Origin, change: &Change<'_>) -> TrackedResult<Passage<'_>> {
        let mut passage = Passage {
            gate: self,
            origin,
            order: None,
            operation: Some(self.account.log.begin()),
        };
        passage.prepare(change)?;
        passage.order = self.exclusive_order();
        Ok(passage)
    }

    /// Begins a change of names.
    pub(super) fn begin_names(&self, origin: Origin) -> Passage<'_> {
        let operation = self.account.log.begin();
        Passage {
            gate: self,
            origin,
            order: self.exclusive_order(),
            operation: Some(operation),
        }
    }
}

/// A change under way.
pub(super) struct Passage<'a> {
    pub(super) gate: &'a Gate,
    pub(super) origin: Origin,
    /// Let go before the operation ends.
    pub(super) order: Option<OrderGuard<'a>>,
    /// The log's; `None` for an inode that the log does not know.
    pub(super) operation: Option<Operation<'a>>,
}

impl<'a> Passage<'a> {
    /// The witnesses that this change concerns, in their order.
    fn witnesses(&self) -> impl Iterator<Item = &dyn Witness> {
        let log = self.operation.iter().map(|operation| operation as &dyn Witness);
        let others = self.gate.witnesses.iter().map(|witness| &**witness as &dyn Witness);
        log.chain(others.filter(|witness| witness.hears_of(self.origin)))
    }

    /// The first step: all that may fail but the change itself.
    pub(super) fn prepare(&self, change: &Change<'_>) -> TrackedResult<()> {
        self.witnesses().try_for_each(|witness| witness.prepare(change))
    }

    fn before(&self, change: &Change<'_>) {
        self.witnesses().for_each(|witness| witness.before(change));
    }

    pub(super) fn after(&self, change: &Change<'_>, outcome: &Outcome<'_>) {
        self.witnesses().for_each(|witness| witness.after(change, outcome));
    }

    /// Announces a change of content or attributes that was prepared.
    pub(super) fn announce(self, change: Change<'a>) -> Underway<'a> {
        let underway = Underway {
            sums: self.sums_of(&change),
            change: Some(change),
            outcome: Outcome::Failed,
            passage: Some(self),
        };
        if let (Some(passage), Some(change)) = (&underway.passage, &underway.change) {
            passage.before(change);
        }
        underway
    }

    /// Lets a change through of which nothing is to be said, but that the sums follow.
    pub(super) fn announce_nothing(self, change: &Change<'a>) -> Underway<'a> {
        Underway {
            sums: self.sums_of(change),
            change: None,
            outcome: Outcome::Failed,
            passage: Some(self),
        }
    }

    fn sums_of(&self, change: &Change<'_>) -> Option<(&'a Integrity, NodeId)> {
        match change {
            Change::Content(content) => Some((self.gate.account.integrity.as_deref()?, content.node)),
            _ => None,
        }
    }

    /// Prepares and announces a change of names, and performs it. [`Passage::after`] is to follow
    /// for each name that changed.
    pub(super) fn perform<T>(
        &self,
        change: &Change<'_>,
        perform: impl FnOnce() -> TrackedResult<T>,
    ) -> TrackedResult<T> {
        self.prepare(change)?;
        self.before(change);
        let performed = perform();
        if performed.is_err() {
            self.after(change, &Outcome::Failed);
        }
        performed
    }

    pub(super) fn node(&self, identity: &Identity) -> TrackedResult<Option<NodeId>> {
        Ok(self.gate.account.log.node_of(identity)?)
    }

    /// A new node in a directory, if the log knows the directory. The log gives it its number.
    pub(super) fn created(
        &self,
        parent: Option<NodeId>,
        name: &'a OsStr,
        stat: &Stat,
    ) -> Option<(NodeId, NamesChanged<'a>)> {
        let (parent, operation) = parent.zip(self.operation.as_ref())?;
        let node = operation.created(parent, name, &stat.identity(), stat.kind);
        let kind = stat.kind;
        let names = NamesChanged::Created {
            at: NamedAt { parent, name },
            node: KnownNode { node, kind },
        };
        Some((node, names))
    }

    /// The loss of a node whose name is gone.
    pub(super) fn lost(&self, node: NodeId, victim: &Victim, gone: (NodeId, &OsStr)) -> LostName {
        lost_name(&self.gate.account.log, node, victim, gone)
    }
}

/// The loss of `node` with the name `gone`. Names outside the tree do not count.
pub(super) fn lost_name(log: &Log, node: NodeId, victim: &Victim, gone: (NodeId, &OsStr)) -> LostName {
    let is_last = victim.is_last_link()
        || match log.places_of(node) {
            Ok(places) => places.iter().all(|(parent, name)| (*parent, name.as_os_str()) == gone),
            // A change that is done cannot be refused any more; a node too many does no harm.
            Err(_) => false,
        };
    LostName {
        node: KnownNode {
            node,
            kind: victim.object.kind,
        },
        is_last,
        len_bytes: victim.fence.size_bytes,
    }
}

/// A change of content or attributes that was announced, until it is over. The default is one that
/// nothing has to know of: no account is kept, or the node has no name any more.
#[derive(Default)]
pub(super) struct Underway<'a> {
    /// The sums that follow content.
    sums: Option<(&'a Integrity, NodeId)>,
    /// `None` when it is over.
    change: Option<Change<'a>>,
    outcome: Outcome<'a>,
    passage: Option<Passage<'a>>,
}

impl Underway<'_> {
    /// Performs a change of content through `fd`, or a part of it, and lets the sums follow.
    /// `is_whole` tells of what was done whether it was all.
    pub(super) fn write<T>(
        &mut self,
        fd: &Inode,
        change: written::Change<'_>,
        perform: impl FnOnce() -> TrackedResult<T>,
        is_whole: impl FnOnce(&T) -> bool,
    ) -> TrackedResult<T> {
        let sums = self.sums;
        self.perform(|| match sums {
            Some((sums, node)) => sums.change(node, fd, change, perform, is_whole),
            None => perform(),
        })
    }

    /// Performs a change.
    pub(super) fn perform<T>(&mut self, perform: impl FnOnce() -> TrackedResult<T>) -> TrackedResult<T> {
        let performed = perform();
        self.outcome = match performed {
            Ok(_) => Outcome::Done,
            Err(_) => Outcome::Failed,
        };
        performed
    }

    /// Ends the change. The passage lasts: no other change begins, and there is no cut.
    pub(super) fn end(&mut self) {
        if let (Some(passage), Some(change)) = (&self.passage, self.change.take()) {
            passage.after(&change, &self.outcome);
        }
    }
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
