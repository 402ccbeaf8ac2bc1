//! The checker: proves of a recorded history that every state that was delivered is one that the
//! origin had, in the origin's order.
//!
//! [`Tree`] is a file tree as naive as can be: names, contents and attributes in plain maps.
//! [`Checker`] gets each operation of the origin in its order ([`Checker::performed`]), and
//! whatever state a server or another client shows: with the moment that it claims to be
//! ([`Checker::delivered`]), or without ([`Checker::visible`]). A state that the origin never had,
//! or an older one than before, is an error that names the first difference. This is causal order
//! (DeltaCFS section III-E) in its strongest form: a prefix of one machine's operations.
//!
//! For the tests of this crate alone, so it is not compiled into the library.

use byteback_model::{NodeId, NodeKind, Place};
use std::collections::{BTreeMap, BTreeSet};

use crate::operation::{Moved, NameOperation, Victim};

#[cfg(test)]
mod tests;

/// An operation of the origin, with all that it did.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Operation {
    /// On names.
    Name(NameOperation),
    /// Bytes of a file were written.
    Write {
        /// The file.
        node: NodeId,
        /// Where, in bytes.
        offset: usize,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A file's length was set.
    Truncate {
        /// The file.
        node: NodeId,
        /// The new length in bytes.
        size: usize,
    },
    /// A node got other attributes, represented by a stamp.
    Attributes {
        /// The node.
        node: NodeId,
        /// The new attributes.
        stamp: u64,
    },
}

/// A file tree. Nodes without a name stay until [`Tree::forget_nameless`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Tree {
    /// The node that each name stands for.
    names: BTreeMap<Place<NodeId>, NodeId>,
    /// The kind of each node.
    kinds: BTreeMap<NodeId, NodeKind>,
    /// The contents of the files.
    contents: BTreeMap<NodeId, Vec<u8>>,
    /// The attributes of those nodes whose attributes were ever set.
    attributes: BTreeMap<NodeId, u64>,
}

impl Tree {
    /// An empty tree with this root directory.
    #[must_use]
    fn new(root: NodeId) -> Self {
        let mut tree = Self::default();
        tree.kinds.insert(root, NodeKind::Directory);
        tree
    }

    /// Performs an operation.
    ///
    /// # Errors
    /// If the tree is not what the operation says that it was before.
    fn perform(&mut self, operation: &Operation) -> Result<(), String> {
        match operation {
            Operation::Name(operation) => self.name(operation)?,
            Operation::Write { node, offset, bytes } => {
                let content = self.content(*node)?;
                let end = offset + bytes.len();
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[*offset..end].copy_from_slice(bytes);
            }
            Operation::Truncate { node, size } => self.content(*node)?.resize(*size, 0),
            Operation::Attributes { node, stamp } => {
                if !self.kinds.contains_key(node) {
                    return Err(format!("{node} gets attributes but does not exist"));
                }
                self.attributes.insert(*node, *stamp);
            }
        }
        Ok(())
    }

    /// The content of a file, to be changed.
    ///
    /// # Errors
    /// If there is no such file.
    fn content(&mut self, node: NodeId) -> Result<&mut Vec<u8>, String> {
        self.contents
            .get_mut(&node)
            .ok_or_else(|| format!("there is no file {node}"))
    }

    /// How many names a node has.
    #[must_use]
    fn links(&self, node: NodeId) -> usize {
        self.names.values().filter(|&&named| named == node).count()
    }

    fn name(&mut self, operation: &NameOperation) -> Result<(), String> {
        match operation {
            NameOperation::Created { at, node } => {
                if self.kinds.insert(node.node, node.kind).is_some() {
                    return Err(format!("{} already exists", node.node));
                }
                if node.kind == NodeKind::File {
                    self.contents.insert(node.node, Vec::new());
                }
                self.give(at, *node)
            }
            NameOperation::Linked { at, node } => self.give(at, *node),
            NameOperation::Unlinked { at, victim } => self.take(at, victim),
            NameOperation::Renamed {
                from,
                to,
                node,
                replaced,
            } => {
                if let Some(victim) = replaced {
                    self.take(to, victim)?;
                }
                self.is(from, node.node)?;
                self.names.remove(from);
                self.give(to, *node)
            }
            NameOperation::Exchanged {
                one,
                one_node,
                other,
                other_node,
            } => {
                self.is(one, one_node.node)?;
                self.is(other, other_node.node)?;
                self.names.insert(one.clone(), other_node.node);
                self.names.insert(other.clone(), one_node.node);
                Ok(())
            }
        }
    }

    fn is(&self, at: &Place<NodeId>, node: NodeId) -> Result<(), String> {
        match self.names.get(at) {
            Some(named) if *named == node => Ok(()),
            other => Err(format!("{at:?} stands for {other:?} instead of {node}")),
        }
    }

    fn give(&mut self, at: &Place<NodeId>, node: Moved) -> Result<(), String> {
        if self.kinds.get(&at.parent) != Some(&NodeKind::Directory) {
            return Err(format!("{at:?} is not in a directory"));
        }
        if !self.kinds.contains_key(&node.node) {
            return Err(format!("{at:?} gets {}, which does not exist", node.node));
        }
        match self.names.insert(at.clone(), node.node) {
            None => Ok(()),
            Some(over) => Err(format!("{at:?} gets {} but stood for {over}", node.node)),
        }
    }

    fn take(&mut self, at: &Place<NodeId>, victim: &Victim) -> Result<(), String> {
        self.is(at, victim.node)?;
        self.names.remove(at);
        let is_last = self.links(victim.node) == 0;
        if is_last != victim.is_last {
            return Err(format!("{} has {} names left", victim.node, self.links(victim.node)));
        }
        let is_full = self.names.keys().any(|place| place.parent == victim.node);
        match is_full && is_last {
            true => Err(format!("the directory {} is removed but not empty", victim.node)),
            false => Ok(()),
        }
    }

    /// Forgets the nodes without a name; `root` has none and stays.
    fn forget_nameless(&mut self, root: NodeId) {
        let mut named = self.names.values().copied().collect::<BTreeSet<_>>();
        named.insert(root);
        self.kinds.retain(|node, _| named.contains(node));
        self.contents.retain(|node, _| named.contains(node));
        self.attributes.retain(|node, _| named.contains(node));
    }

    /// The first difference to what is reachable in `other`, in words.
    #[must_use]
    fn difference(&self, other: &Self) -> Option<String> {
        for place in self.names.keys().chain(other.names.keys()) {
            let (one, two) = (self.names.get(place), other.names.get(place));
            let Some(node) = one.filter(|_| one == two) else {
                return Some(format!("{place:?} stands for {one:?} and {two:?}"));
            };
            if self.kinds.get(node) != other.kinds.get(node) {
                return Some(format!("{node} has two kinds"));
            }
            if self.contents.get(node) != other.contents.get(node) {
                let contents = (self.contents.get(node), other.contents.get(node));
                return Some(format!("{place:?}, node {node}, holds {contents:?}"));
            }
            if self.attributes.get(node) != other.attributes.get(node) {
                return Some(format!("{place:?}, node {node}, has two different attributes"));
            }
        }
        None
    }
}

/// See the module.
#[derive(Clone, Debug)]
struct Checker {
    history: Vec<Operation>,
    /// The origin's state after `reached` operations.
    origin: Tree,
    reached: usize,
}

impl Checker {
    /// A checker of an origin that begins with this tree, as do all that will be compared.
    #[must_use]
    fn new(start: Tree) -> Self {
        Self {
            history: Vec::new(),
            origin: start,
            reached: 0,
        }
    }

    /// The origin performed an operation. Returns its moment: how many it has performed now.
    fn performed(&mut self, operation: Operation) -> usize {
        self.history.push(operation);
        self.history.len()
    }

    /// The moment of the last operation.
    #[must_use]
    fn now(&self) -> usize {
        self.history.len()
    }

    /// The moment that the last delivered state reached.
    #[must_use]
    fn reached(&self) -> usize {
        self.reached
    }

    /// Checks that a receiver's state is the origin's at `moment`.
    ///
    /// # Errors
    /// If it is not, or is older than one that was delivered before, or never was.
    fn delivered(&mut self, state: &Tree, moment: usize) -> Result<(), String> {
        if moment < self.reached {
            return Err(format!("the state of moment {moment} follows that of {}", self.reached));
        }
        self.advance(moment)?;
        match self.origin.difference(state) {
            None => Ok(()),
            Some(difference) => Err(format!(
                "the state is not the origin's at moment {moment}: {difference}"
            )),
        }
    }

    /// Checks a state that a receiver shows: finds the moment of the origin at which it was so,
    /// from the last one on.
    ///
    /// # Errors
    /// If there is none; says how it differs from the last one that was reached.
    fn visible(&mut self, state: &Tree) -> Result<usize, String> {
        let before = self.clone();
        loop {
            if self.origin.difference(state).is_none() {
                return Ok(self.reached);
            }
            if self.reached == self.history.len() {
                *self = before;
                let difference = self.origin.difference(state).unwrap_or_default();
                return Err(format!(
                    "the origin was never in this state since moment {}: {difference}",
                    self.reached
                ));
            }
            self.advance(self.reached + 1)?;
        }
    }

    fn advance(&mut self, moment: usize) -> Result<(), String> {
        while self.reached < moment {
            let operation = self.history.get(self.reached);
            let operation = operation.ok_or_else(|| format!("moment {moment} is still to come"))?;
            self.origin.perform(operation)?;
            self.reached += 1;
        }
        Ok(())
    }
}
