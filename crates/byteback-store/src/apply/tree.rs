//! Checks that the directories of a folder still form a tree after a batch.

use super::{Apply, CONFLICTS_MAX, conflict, invalid};
use crate::error::StoreError;
use crate::numbers::NodeNumber;
use byteback_model::{NodeKind, Seq};
use std::collections::HashSet;

/// Deepest directory that a batch may create.
const DEPTH_MAX: usize = 100_000;

impl Apply<'_> {
    /// Checks that linked directories have one name each and that none is its own ancestor. Only
    /// linked directories can have gone wrong: a new cycle needs a new entry.
    pub(super) fn check_tree(&self, base_seq: Option<Seq>) -> Result<(), StoreError> {
        let mut above_root: HashSet<NodeNumber> = HashSet::new();
        for &child in &self.linked {
            if self.kind_of(child)? != NodeKind::Directory {
                continue;
            }
            if self.catalog.parents(child, self.seq, 2)?.len() > 1 {
                let id = self.catalog.file_id(child)?;
                return invalid(&format!("directory {id} has two names"));
            }
            let mut walked = HashSet::new();
            let mut current = child;
            while !above_root.contains(&current) {
                if !walked.insert(current) {
                    return self.inside_itself(child, &walked, base_seq.unwrap_or(self.seq));
                }
                if walked.len() > DEPTH_MAX {
                    return Err(StoreError::TooLarge(format!(
                        "directories are nested deeper than {DEPTH_MAX}"
                    )));
                }
                match self.catalog.parents(current, self.seq, 1)?.first() {
                    Some(entry) => current = entry.parent,
                    None => break,
                }
            }
            above_root.extend(walked);
        }
        Ok(())
    }

    /// Reports a cycle of directories: either the batch contradicts itself, or it moved a directory
    /// into one that others moved into it.
    fn inside_itself(&self, child: NodeNumber, cycle: &HashSet<NodeNumber>, base_seq: Seq) -> Result<(), StoreError> {
        let mut conflicts = Vec::new();
        for node in cycle {
            let parents = self.catalog.parents(*node, self.seq, 1)?;
            let moved = parents.first().map_or(0, |name| name.from_seq);
            if moved > base_seq && moved < self.seq && !self.basis.is_own(self.catalog, self.folder.id, moved)? {
                conflicts.push(conflict(self.catalog, &self.folder, *node, moved)?);
            }
        }
        if conflicts.is_empty() {
            let id = self.catalog.file_id(child)?;
            return invalid(&format!("directory {id} would be inside itself"));
        }
        conflicts.truncate(CONFLICTS_MAX);
        Err(StoreError::Conflict { conflicts })
    }
}
