//! Losses that a batch would cause without its sender knowing, although no single name conflicts: a
//! device that removes a directory does not know what others put into it meanwhile, and a device
//! that writes a file, or makes one in a directory, does not know that others removed these.
//! (DeltaCFS III-C: the first write wins, and the other device gets a conflict.)
//!
//! Checked inside the transaction after everything is applied, and only if others changed the
//! folder since the batch's `base_seq`:
//! - A node that lost a name through the batch and has no place in the tree any more: neither it
//!   nor anything in it may have got a name or new contents from others since then.
//! - A node that got a name or new contents through the batch and has no place in the tree: others
//!   must not have removed it since then.
//!
//! So each node that the batch unlinks, names or writes costs a few lookups; a directory that
//! vanishes also costs a walk over what is still in it.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::catalog::{CatalogRead, EntryRow, OPEN};
use crate::error::StoreError;
use crate::numbers::{FolderNumber, NodeNumber};
use byteback_model::{NodeKind, Seq};

use super::Basis;

/// More names than any file system gives a file.
const NAMES_MAX: u32 = 1 << 17;

/// Entries of a directory that one query fetches.
const PAGE: u32 = 1000;

/// Batches searched for one made by others; if there are more, others are assumed to have made one.
const BATCHES_MAX: u32 = 64;

/// Nodes that the batch touched.
#[derive(Debug, Default)]
pub(super) struct Touched {
    /// Nodes that lost a name.
    pub(super) unlinked: BTreeSet<NodeNumber>,
    /// Directories that got an entry.
    pub(super) filled: BTreeSet<NodeNumber>,
    /// Nodes whose contents changed.
    pub(super) written: BTreeSet<NodeNumber>,
}

/// The folder as the batch leaves it.
pub(super) struct Loss<'a> {
    pub(super) catalog: &'a dyn CatalogRead,
    pub(super) folder: FolderNumber,
    pub(super) root: NodeNumber,
    /// The batch's number.
    pub(super) seq: Seq,
    pub(super) base_seq: Seq,
    pub(super) basis: Basis,
    /// Known answers to whether a directory has a place in the tree.
    pub(super) placed: HashMap<NodeNumber, bool>,
}

impl Loss<'_> {
    /// Calls `found` with each node that others changed first and the moment of that change, until
    /// it returns `false`.
    pub(super) fn find(
        &mut self,
        touched: &Touched,
        found: &mut dyn FnMut(NodeNumber, Seq) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        if !self.have_others_changed()? {
            return Ok(());
        }
        let mut vanished = Vec::new();
        for node in &touched.unlinked {
            if !self.has_place(*node)? {
                vanished.push(*node);
            }
        }
        let mut walked: HashSet<NodeNumber> = vanished.iter().copied().collect();
        while let Some(node) = vanished.pop() {
            let row = self.catalog.attributes(node, self.seq)?;
            match row {
                Some(row) if row.attributes.kind != NodeKind::Directory => {
                    if self.is_others(row.content_seq)? && !found(node, row.content_seq)? {
                        return Ok(());
                    }
                    continue;
                }
                None => continue,
                Some(_) => {}
            }
            let mut after: Option<Vec<u8>> = None;
            loop {
                let page = self.catalog.entries(node, self.seq, after.as_deref(), PAGE)?;
                let Some(last) = page.last() else { break };
                after = Some(last.name.clone());
                for entry in page {
                    if self.is_others(entry.from_seq)? && !found(entry.child, entry.from_seq)? {
                        return Ok(());
                    }
                    if !self.has_place(entry.child)? && walked.insert(entry.child) {
                        vanished.push(entry.child);
                    }
                }
            }
        }
        for node in touched.filled.iter().chain(&touched.written) {
            if let Some(taken) = self.taken_by_others(*node)?
                && !found(*node, taken)?
            {
                return Ok(());
            }
        }
        Ok(())
    }

    fn have_others_changed(&self) -> Result<bool, StoreError> {
        let batches = self.catalog.batches_after(self.folder, self.base_seq, BATCHES_MAX)?;
        for batch in batches.iter().filter(|batch| batch.seq != self.seq) {
            if self.is_others(batch.seq)? {
                return Ok(true);
            }
        }
        Ok(batches.len() >= BATCHES_MAX as usize)
    }

    /// Whether the change at a moment was made by others, after the state that the batch is based
    /// on.
    fn is_others(&self, at: Seq) -> Result<bool, StoreError> {
        Ok(at > self.base_seq && at < self.seq && !self.basis.is_own(self.catalog, self.folder, at)?)
    }

    fn names(&self, node: NodeNumber) -> Result<Vec<EntryRow>, StoreError> {
        self.catalog.parents(node, self.seq, NAMES_MAX)
    }

    /// Whether a path leads from the root to a node.
    fn has_place(&mut self, node: NodeNumber) -> Result<bool, StoreError> {
        if node == self.root {
            return Ok(true);
        }
        for name in self.names(node)? {
            if self.is_placed_directory(name.parent)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_placed_directory(&mut self, directory: NodeNumber) -> Result<bool, StoreError> {
        let mut way = Vec::new();
        let mut walked = HashSet::new();
        let mut current = directory;
        let is_placed = loop {
            if current == self.root {
                break true;
            }
            if let Some(known) = self.placed.get(&current) {
                break *known;
            }
            way.push(current);
            // A directory that hangs below itself hangs nowhere.
            if !walked.insert(current) {
                break false;
            }
            match self.catalog.parents(current, self.seq, 1)?.first() {
                Some(name) => current = name.parent,
                None => break false,
            }
        };
        self.placed.extend(way.into_iter().map(|node| (node, is_placed)));
        Ok(is_placed)
    }

    /// The moment at which others took a node out of the tree; `None` if they did not.
    fn taken_by_others(&mut self, node: NodeNumber) -> Result<Option<Seq>, StoreError> {
        if self.has_place(node)? {
            return Ok(None);
        }
        let mut way = vec![node];
        let mut walked = HashSet::new();
        while let Some(node) = way.pop() {
            if !walked.insert(node) {
                continue;
            }
            let names = self.names(node)?;
            if names.is_empty() {
                let newest = self.catalog.newest_name(node)?.filter(|name| name.to_seq != OPEN);
                let taken = newest.map_or(0, |name| name.to_seq);
                if self.is_others(taken)? {
                    return Ok(Some(taken));
                }
            }
            way.extend(names.into_iter().map(|name| name.parent));
        }
        Ok(None)
    }
}
