//! The layers of the database, and a count of whole-file layers whose changes were not seen.
//!
//! The count is for `status`, which must not read a million layers: each change of a layer updates
//! it in the same transaction.

use redb::{ReadableTable, Table, WriteTransaction};

use super::{LAYERS, MARKS, meta};
use crate::error::Result;
use crate::file_marks::borders_of_all;
use crate::ids::Epoch;
use crate::keeper::{KeeperHandle, layer_of_row};
use crate::layer::Layer;
use byteback_model::NodeId;

/// The table of layers, open for writing. Every writer goes through this.
pub(crate) struct Layers<'t> {
    table: Table<'t, (u64, u64), &'static [u8]>,
    unknown: i64,
    /// The keeper of layers with ranges, if the table does not hold them.
    kept: Option<&'t KeeperHandle>,
    /// The marks and pending cuts, if a keeper counts how many begin with a layer; else empty.
    borders: Vec<Epoch>,
}

impl<'t> Layers<'t> {
    pub(crate) fn open(txn: &'t WriteTransaction, kept: Option<&'t KeeperHandle>) -> Result<Self> {
        let borders = match kept {
            Some(_) => borders_of_all(&txn.open_table(MARKS)?)?,
            None => Vec::new(),
        };
        Ok(Self {
            table: txn.open_table(LAYERS)?,
            unknown: 0,
            kept,
            borders,
        })
    }

    pub(crate) fn get(&self, epoch: u64, node: NodeId) -> Result<Option<Layer>> {
        let layer = self.table.get((epoch, node.0))?;
        layer
            .map(|row| layer_of_row(self.kept, node, Epoch(epoch), row.value()))
            .transpose()
    }

    pub(crate) fn put(&mut self, epoch: u64, node: NodeId, layer: &Layer) -> Result<()> {
        self.unknown += i64::from(layer.is_unknown());
        let kept = self.kept.filter(|_| layer.whole.is_none() && !layer.ranges.is_empty());
        let row = match kept {
            Some(kept) => {
                let links = self.borders.iter().filter(|border| border.0 == epoch).count();
                kept.put(node, Epoch(epoch), layer, u32::try_from(links).unwrap_or(u32::MAX))?;
                Layer::elsewhere()
            }
            None => layer.encode(),
        };
        if let Some(before) = self.table.insert((epoch, node.0), row.as_slice())? {
            self.unknown -= i64::from(Layer::is_encoded_unknown(before.value()));
            if let (None, Some(keeper), true) = (kept, self.kept, Layer::is_elsewhere(before.value())) {
                keeper.doom(node, Epoch(epoch));
            }
        }
        Ok(())
    }

    pub(crate) fn remove(&mut self, epoch: u64, node: NodeId) -> Result<()> {
        if let Some(before) = self.table.remove((epoch, node.0))? {
            self.unknown -= i64::from(Layer::is_encoded_unknown(before.value()));
            if let (Some(kept), true) = (self.kept, Layer::is_elsewhere(before.value())) {
                kept.doom(node, Epoch(epoch));
            }
        }
        Ok(())
    }

    /// The epochs from `from` on that have layers, ascending.
    pub(crate) fn epochs(&self, from: u64) -> Result<Vec<u64>> {
        epochs_with_layers(&self.table, from)
    }

    /// Writes the count. Must be called at the end.
    pub(crate) fn close(self, txn: &WriteTransaction) -> Result<()> {
        if self.unknown == 0 {
            return Ok(());
        }
        let mut numbers = txn.open_table(super::META)?;
        let before = numbers.get(meta::UNKNOWN_LAYERS)?.map_or(0, |number| number.value());
        numbers.insert(meta::UNKNOWN_LAYERS, before.saturating_add_signed(self.unknown))?;
        Ok(())
    }
}

/// The epochs from `from` on that have layers: one search for each, however many layers they have.
pub(crate) fn epochs_with_layers(
    layers: &impl ReadableTable<(u64, u64), &'static [u8]>,
    mut from: u64,
) -> Result<Vec<u64>> {
    let mut epochs = Vec::new();
    while let Some(entry) = layers.range((from, 0)..)?.next() {
        let epoch = entry?.0.value().0;
        epochs.push(epoch);
        let Some(next) = epoch.checked_add(1) else { break };
        from = next;
    }
    Ok(epochs)
}

/// The epochs from `from` up to but not including `end` in which names changed, found likewise.
pub(crate) fn epochs_with_name_layers(
    layers: &impl ReadableTable<(u64, u64, &'static [u8]), (u64, u64)>,
    mut from: u64,
    end: u64,
) -> Result<Vec<u64>> {
    let mut epochs = Vec::new();
    while from < end {
        let Some(entry) = layers.range((from, 0, &[][..])..(end, 0, &[][..]))?.next() else {
            break;
        };
        let epoch = entry?.0.value().0;
        epochs.push(epoch);
        from = epoch.saturating_add(1);
    }
    Ok(epochs)
}
