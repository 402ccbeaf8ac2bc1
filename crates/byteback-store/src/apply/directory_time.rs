//! The time of a directory in which names came or went: unlike other attributes it is in conflict with nobody. Where others changed the directory
//! since the batch's base, too, the later of both times counts; so two devices that make files in one directory never refuse each other.
//!
//! Nothing else of the directory changes, and a time that stays leaves no row.

use crate::catalog::AttributeRow;
use crate::error::StoreError;
use crate::model::{FileId, NodeKind};

use super::{Apply, invalid};

impl Apply<'_> {
    /// Names in a directory came or went at the sender. Others who made or removed some since its `base_seq` did no harm to that: the
    /// later of both times is the one at which the directory was changed last.
    pub(super) fn directory_time(&mut self, directory: FileId, mtime_ns: i128) -> Result<(), StoreError> {
        // It came and went between two batches.
        if !self.is_mentioned(directory)? {
            return Ok(());
        }
        let node = self.number(directory)?;
        let Some(previous) = self.catalog.attributes(node, self.folder.seq)? else {
            return invalid(&format!("the time of directory {directory} comes before itself"));
        };
        if previous.attributes.kind != NodeKind::Directory {
            return invalid(&format!("node {directory} is no directory"));
        }
        if self.kinds.insert(node, NodeKind::Directory).is_some() {
            return invalid(&format!("node {directory} is described twice"));
        }
        let is_others = self.base_seq().is_some_and(|base_seq| previous.seq > base_seq)
            && !self.basis.is_own(self.catalog, self.folder.id, previous.seq)?;
        let before_ns = previous.attributes.mtime_ns;
        let mtime_ns = if is_others { mtime_ns.max(before_ns) } else { mtime_ns };
        if mtime_ns == before_ns {
            return Ok(());
        }
        let mut row = AttributeRow {
            seq: self.seq,
            ..previous
        };
        row.attributes.mtime_ns = mtime_ns;
        self.catalog.insert_attributes(self.folder.id, node, &row)
    }
}
