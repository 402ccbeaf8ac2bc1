//! The directories of a subtree at one moment, with their entries: for digests by which a client
//! that has a tree of its own finds out where the two differ.
//!
//! The tree is walked in the catalog; no content is read. Memory: a page of entries, and the paths
//! of the directories that come next, whose number the caller bounds.

use crate::error::StoreError;
use crate::numbers::NodeNumber;
use crate::read::node_at;
use crate::store::{Store, existing_seq, folder_row};
use byteback_model::{Attributes, FileId, NodeKind, Seq};

/// Entries that one query fetches.
const ENTRIES_AT_ONCE: u32 = 1000;

/// Takes what is in a subtree: its directories, each behind the one above it, those in one
/// directory in byte order of their names, and the entries of each.
pub trait TakesDirectories {
    /// A directory follows: its path below the top, and the number of the one above it, counted
    /// from 0 in this order. Returns whether to go on.
    fn directory(&mut self, path: &[u8], above: Option<usize>) -> bool;

    /// The next entry of the directory, in byte order of names; whether its node has several names
    /// in the folder. Returns whether to go on.
    fn entry(&mut self, name: &[u8], attributes: &Attributes, has_several_names: bool) -> bool;
}

impl Store {
    /// Walks the directories from a node on at a moment.
    ///
    /// # Errors
    /// The folder, the moment or the node does not exist, or it is no directory; the catalog fails.
    pub fn walk_directories(
        &self,
        folder: &str,
        node: FileId,
        at: Option<Seq>,
        take: &mut dyn TakesDirectories,
    ) -> Result<(), StoreError> {
        let (at, (node, row)) = {
            let catalog = self.catalog().read()?;
            let folder = folder_row(&*catalog, folder)?;
            let at = existing_seq(&folder, at)?;
            (at, node_at(&*catalog, &folder, node, at)?)
        };
        if row.attributes.kind != NodeKind::Directory {
            return Err(StoreError::InvalidParameter("the node is no directory".to_owned()));
        }
        // The next one last.
        let mut to_do: Vec<(NodeNumber, Vec<u8>, Option<usize>)> = vec![(node, Vec::new(), None)];
        let mut number = 0;
        while let Some((directory, path, above)) = to_do.pop() {
            if !take.directory(&path, above) {
                return Ok(());
            }
            let first_below = to_do.len();
            let mut after: Option<Vec<u8>> = None;
            loop {
                // A short transaction for each page: a large tree takes long.
                let catalog = self.catalog().read()?;
                let entries = catalog.entries(directory, at, after.as_deref(), ENTRIES_AT_ONCE)?;
                let Some(last) = entries.last() else { break };
                after = Some(last.name.clone());
                for entry in entries {
                    let row = catalog.attributes(entry.child, at)?;
                    let row = row
                        .ok_or_else(|| StoreError::CatalogDamaged(format!("node {} has no attributes", entry.child)))?;
                    let kind = row.attributes.kind;
                    let is_directory = kind == NodeKind::Directory;
                    // Symlinks and special files have several names, too.
                    let has_several_names = !is_directory && catalog.parents(entry.child, at, 2)?.len() > 1;
                    if !take.entry(&entry.name, &row.attributes, has_several_names) {
                        return Ok(());
                    }
                    if is_directory {
                        let mut below = path.clone();
                        if !below.is_empty() {
                            below.push(b'/');
                        }
                        below.extend_from_slice(&entry.name);
                        to_do.push((entry.child, below, Some(number)));
                    }
                }
            }
            to_do.get_mut(first_below..).unwrap_or_default().reverse();
            number += 1;
        }
        Ok(())
    }
}
