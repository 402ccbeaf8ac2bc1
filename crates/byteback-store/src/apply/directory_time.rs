//! The modification time of a directory in which names came or went. It does not conflict with
//! others' names in the directory. If others moved the time since the batch's base, too, the later
//! time wins, so two devices that make files in one directory never refuse each other.
//!
//! Nothing else of the directory changes, and an unchanged time leaves no row. If others changed
//! more of the directory than its time, there is a conflict: a row of this batch's device over
//! theirs would hide their change from the device, which is sent only what others did after its own
//! newest change. Conversely, a change of a directory's attributes does not conflict with others'
//! names in it.

use crate::catalog::AttributeRow;
use crate::error::StoreError;
use crate::numbers::NodeNumber;
use byteback_model::{Attributes, FileId, NodeKind, Seq};

use super::{Apply, invalid};

fn is_same_but_for_time(one: &Attributes, other: &Attributes) -> bool {
    let other = Attributes {
        mtime_ns: one.mtime_ns,
        ..other.clone()
    };
    *one == other
}

impl Apply<'_> {
    /// The moment at which others changed more of a directory than its time since the batch's base;
    /// `newest` are its newest attributes.
    pub(super) fn changed_by_others(&self, node: NodeNumber, newest: &AttributeRow) -> Result<Option<Seq>, StoreError> {
        let Some(base_seq) = self.base_seq() else {
            return Ok(None);
        };
        let mut row = newest.clone();
        // A batch that takes long to arrive has an old base: others may have moved the time any
        // number of times since.
        while row.seq > base_seq {
            // Rows below one of this device were checked when that one arrived: its base was the
            // same, or older.
            if self.basis.is_own(self.catalog, self.folder.id, row.seq)? {
                break;
            }
            match self.catalog.attributes(node, row.seq.saturating_sub(1))? {
                Some(before) if is_same_but_for_time(&before.attributes, &row.attributes) => row = before,
                _ => return Ok(Some(row.seq)),
            }
        }
        Ok(None)
    }

    /// Sets the time of a directory in which the sender made or removed names. Others who did so
    /// since its `base_seq` do not conflict with that: the later of both times is the directory's
    /// last change.
    pub(super) fn directory_time(&mut self, directory: FileId, mtime_ns: i128) -> Result<(), StoreError> {
        // The directory came and went between two batches.
        if !self.is_mentioned(directory)? {
            return Ok(());
        }
        let node = self.number(directory)?;
        let Some(previous) = self.catalog.attributes(node, self.folder.seq)? else {
            return invalid(&format!(
                "the time of directory {directory} comes before the directory itself"
            ));
        };
        if previous.attributes.kind != NodeKind::Directory {
            return invalid(&format!("node {directory} is not a directory"));
        }
        if self.kinds.insert(node, NodeKind::Directory).is_some() {
            return invalid(&format!("node {directory} is described twice"));
        }
        if let Some(changed) = self.changed_by_others(node, &previous)? {
            return self.check_conflict(node, changed);
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
