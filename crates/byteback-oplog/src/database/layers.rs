//! The layers of the database, and the number of those that say "whole" for a reason that nobody wanted to hear.
//!
//! The number is for `status`, which must not read a million layers: each change of a layer changes it in the same transaction.

use redb::{ReadableTable, Table, WriteTransaction};

use super::{LAYERS, decode_layer, meta};
use crate::error::Result;
use crate::ids::NodeId;
use crate::layer::Layer;

/// The table of layers, open for writing. Every writer goes through this.
pub(crate) struct Layers<'t> {
    table: Table<'t, (u64, u64), &'static [u8]>,
    unknown: i64,
}

impl<'t> Layers<'t> {
    pub(crate) fn open(txn: &'t WriteTransaction) -> Result<Self> {
        Ok(Self {
            table: txn.open_table(LAYERS)?,
            unknown: 0,
        })
    }

    pub(crate) fn get(&self, epoch: u64, node: NodeId) -> Result<Option<Layer>> {
        let layer = self.table.get((epoch, node.0))?;
        layer.map(|layer| decode_layer(layer.value())).transpose()
    }

    pub(crate) fn put(&mut self, epoch: u64, node: NodeId, layer: &Layer) -> Result<()> {
        self.unknown += i64::from(layer.is_unknown());
        let before = self.table.insert((epoch, node.0), layer.encode().as_slice())?;
        if let Some(before) = before {
            self.unknown -= i64::from(Layer::says_unknown(before.value()));
        }
        Ok(())
    }

    pub(crate) fn remove(&mut self, epoch: u64, node: NodeId) -> Result<()> {
        if let Some(before) = self.table.remove((epoch, node.0))? {
            self.unknown -= i64::from(Layer::says_unknown(before.value()));
        }
        Ok(())
    }

    /// The epochs from `from` on that have layers, ascending.
    pub(crate) fn epochs(&self, from: u64) -> Result<Vec<u64>> {
        epochs_with_layers(&self.table, from)
    }

    /// Notes the number. Must be called in the end.
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

/// The epochs from `from` up to but not including `end` in which names changed, in the same way.
pub(crate) fn epochs_with_name_layers(
    layers: &impl ReadableTable<(u64, u64, &'static [u8]), u64>,
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
