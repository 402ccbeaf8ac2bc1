//! Totals of a subtree at one moment of a folder, for a client that is about to read all of it and
//! to show its progress.
//!
//! The tree is walked in the catalog; no content is read.

use crate::error::StoreError;
use crate::numbers::NodeNumber;
use crate::read::node_at;
use crate::store::{Store, existing_seq, folder_row};
use byteback_model::{FileId, NodeKind, Seq};
use std::collections::HashSet;

/// Entries that one query fetches.
const ENTRIES_AT_ONCE: u32 = 1000;

/// Totals of a subtree, its top node included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeTotals {
    /// Names of nodes other than directories.
    pub names: u64,
    /// Regular files, each once however many names it has.
    pub files: u64,
    /// Lengths of these files in bytes, holes included.
    pub bytes: u64,
}

impl TreeTotals {
    fn count(&mut self, kind: NodeKind, size: u64, is_first: bool) {
        if kind != NodeKind::Directory {
            self.names += 1;
        }
        if kind == NodeKind::File && is_first {
            self.files += 1;
            self.bytes = self.bytes.saturating_add(size);
        }
    }
}

impl Store {
    /// Counts the subtree of a node at a moment.
    ///
    /// # Errors
    /// The folder, the moment or the node does not exist; the catalog fails.
    pub fn totals(&self, folder: &str, node: FileId, at: Option<Seq>) -> Result<TreeTotals, StoreError> {
        let (at, (node, row)) = {
            let catalog = self.catalog().read()?;
            let folder = folder_row(&*catalog, folder)?;
            let at = existing_seq(&folder, at)?;
            (at, node_at(&*catalog, &folder, node, at)?)
        };
        let mut totals = TreeTotals::default();
        totals.count(row.attributes.kind, row.attributes.size, true);
        let mut seen = HashSet::new();
        // Directories still to be listed, each with the name after which to continue.
        let mut directories: Vec<(NodeNumber, Option<Vec<u8>>)> = Vec::new();
        if row.attributes.kind == NodeKind::Directory {
            directories.push((node, None));
        }
        while let Some((directory, after)) = directories.pop() {
            let catalog = self.catalog().read()?;
            let entries = catalog.entries(directory, at, after.as_deref(), ENTRIES_AT_ONCE)?;
            if let Some(last) = entries.last() {
                directories.push((directory, Some(last.name.clone())));
            }
            for entry in entries {
                let row = catalog
                    .attributes(entry.child, at)?
                    .ok_or_else(|| StoreError::CatalogDamaged(format!("node {} has no attributes", entry.child)))?;
                let kind = row.attributes.kind;
                totals.count(kind, row.attributes.size, seen.insert(entry.child));
                if kind == NodeKind::Directory {
                    directories.push((entry.child, None));
                }
            }
        }
        Ok(totals)
    }
}
