//! The versions at a path, moment after moment, newest first.
//!
//! Every sequence number can be read for ever, whether a snapshot names it or not: so a node that
//! was at a path after any batch is still here, even if continuous sync replaced or removed it
//! within seconds. The walk goes back from a moment: it finds the node at the path and the batch
//! since which that has been so, and continues with the batch before. Each step costs a few lookups
//! by name, however many batches lie between.
//!
//! A path is followed by its names: a node that was moved there has its history from then on, one
//! that was moved away has it up to then.

use crate::catalog::{BatchCondition, BatchRow, CatalogRead, FolderRow, OPEN};
use crate::error::StoreError;
use crate::numbers::NodeNumber;
use crate::read::{AppliedBatch, describe, root_at};
use crate::store::{Store, existing_seq, folder_row};
use byteback_model::{NodeInfo, Seq};

/// Steps of one page: a path may have been empty again and again.
const STEPS_MAX: u32 = 20_000;

/// A node that stood at a path for a while, unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathVersion {
    /// The batch with which it came.
    pub since: AppliedBatch,
    /// The batch with which it went or was replaced; `None`: it is there.
    pub until: Option<AppliedBatch>,
    /// The node.
    pub node: NodeInfo,
}

/// A page of versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionsPage {
    /// Newest first.
    pub versions: Vec<PathVersion>,
    /// The moment from which the next page looks back.
    pub next: Option<Seq>,
}

/// The node at a path at a moment, if any, and since when that has been so.
struct Found {
    since: Seq,
    node: Option<NodeNumber>,
}

impl From<BatchRow> for AppliedBatch {
    fn from(row: BatchRow) -> Self {
        Self {
            seq: row.seq,
            device: row.device,
            counter: row.counter,
            created_ns: row.created_ns,
            host: row.host,
        }
    }
}

impl Store {
    /// Versions at `path` (`/` separates) at the moment `before` and earlier.
    ///
    /// # Errors
    /// The folder or the moment does not exist; the catalog fails.
    pub fn versions(
        &self,
        folder: &str,
        path: &[u8],
        before: Option<Seq>,
        limit: u32,
    ) -> Result<VersionsPage, StoreError> {
        let catalog = self.catalog().read()?;
        let catalog = &*catalog;
        let folder = folder_row(catalog, folder)?;
        let mut page = VersionsPage {
            versions: Vec::new(),
            next: None,
        };
        if folder.seq == 0 {
            return Ok(page);
        }
        let mut at = existing_seq(&folder, before)?;
        // The root and the moment since which it has been so: nearly always the first.
        let mut root: Option<(NodeNumber, Seq)> = None;
        for _ in 0..STEPS_MAX {
            if page.versions.len() >= usize::try_from(limit).unwrap_or(usize::MAX) {
                break;
            }
            let (node, since) = match root.filter(|(_, since)| *since <= at) {
                Some(root) => root,
                None => {
                    let node = root_at(catalog, &folder, at)?;
                    let other = catalog.newest_batch(folder.id, 0..=at, BatchCondition::OtherRoot(node))?;
                    *root.insert((node, other.map_or(1, |other| other.seq.saturating_add(1))))
                }
            };
            let found = find(catalog, (node, since), path, at)?;
            if let Some(node) = found.node {
                let until = match at < folder.seq {
                    true => Some(batch(catalog, &folder, at.saturating_add(1))?),
                    false => None,
                };
                page.versions.push(PathVersion {
                    since: batch(catalog, &folder, found.since)?,
                    until,
                    node: describe(catalog, &folder, node, at)?,
                });
            }
            if found.since <= 1 {
                return Ok(page);
            }
            at = found.since.saturating_sub(1);
        }
        page.next = Some(at);
        Ok(page)
    }

    /// The newest batch that was made at `time_ns` or earlier, by the clocks of the machines that
    /// sent them; `None` if there is none.
    ///
    /// # Errors
    /// The folder does not exist; the catalog fails.
    pub fn moment(&self, folder: &str, time_ns: i64) -> Result<Option<AppliedBatch>, StoreError> {
        let catalog = self.catalog().read()?;
        let folder = folder_row(&*catalog, folder)?;
        let row = catalog.newest_batch(folder.id, 0..=OPEN, BatchCondition::MadeUntil(time_ns))?;
        Ok(row.map(AppliedBatch::from))
    }
}

fn batch(catalog: &dyn CatalogRead, folder: &FolderRow, seq: Seq) -> Result<AppliedBatch, StoreError> {
    let row = catalog.batch_by_seq(folder.id, seq)?;
    row.map(AppliedBatch::from)
        .ok_or_else(|| StoreError::CatalogDamaged(format!("batch {seq} is missing")))
}

fn find(
    catalog: &dyn CatalogRead,
    (root, since): (NodeNumber, Seq),
    path: &[u8],
    at: Seq,
) -> Result<Found, StoreError> {
    let (mut node, mut since) = (root, since);
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        match catalog.newest_entry_at(node, name, at)? {
            None => return Ok(Found { since, node: None }),
            Some(entry) if entry.to_seq <= at => {
                let since = since.max(entry.to_seq);
                return Ok(Found { since, node: None });
            }
            Some(entry) => {
                since = since.max(entry.from_seq);
                node = entry.child;
            }
        }
    }
    let row = catalog.attributes(node, at)?;
    Ok(Found {
        since: row.as_ref().map_or(since, |row| since.max(row.seq)),
        node: row.map(|_| node),
    })
}

#[cfg(test)]
mod tests;
