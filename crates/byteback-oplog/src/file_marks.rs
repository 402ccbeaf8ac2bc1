//! Marks of single files: for programs that save file by file (SolFS: each app has a version of
//! each file).
//!
//! A mark of a file is a border for the layers of that file and of no other, so that a thousand
//! programs that each save their own files at their own times do not keep the whole tree's layers
//! apart. It can only be set at an epoch that is a border already (a held cut, a mark) or at the
//! current one: at any other, layers before and after it may have been merged.
//!
//! Invariant: a file mark's node has a record, and its consumer a row in `marks` that counts it.

use std::collections::BTreeMap;

use redb::{ReadableTable, ReadableTableMetadata, WriteTransaction};

use crate::database::rows::NodeRow;
use crate::database::{self, FILE_MARKS, MARKS};
use crate::error::{LogError, Result};
use crate::ids::Epoch;
use crate::log::Log;
use crate::marks::{ConsumerState, FileMark};
use crate::packed::PackedTable;
use byteback_model::NodeId;

impl Log {
    /// Records that `consumer` has saved `node` as it was when epoch `mark` began: a later
    /// [`crate::Cut::change_of`] since then is exact, until the node is gone or the consumer is
    /// dropped. `mark` is the [`crate::Cut::epoch`] of a cut that is still held.
    ///
    /// Returns whether the node exists; the mark of one that is gone is not kept.
    ///
    /// # Errors
    /// [`LogError::NotHeld`] if nothing holds that epoch any more; [`LogError::TooManyConsumers`].
    /// A disk that cannot be written: the old mark then stays.
    pub fn set_file_mark(&self, consumer: &str, node: NodeId, mark: Epoch) -> Result<bool> {
        let mut checkpointing = self.checkpointing.lock();
        let current = self.epoch();
        let room = self.make_room(consumer, u64::from(self.options.consumers_max / 2))?;
        let held = self.held.epochs();
        let now_ns = self.clock.now_ns();
        let mut exists = false;
        // A node that is only in memory so far gets its record first.
        let pending = self.take_pending();
        self.commit_pending(pending, |txn| {
            let is_held = mark == current || held.contains(&mark) || is_border(txn, node, mark)?;
            if !is_held {
                return Err(LogError::NotHeld { epoch: mark });
            }
            exists = PackedTable::<NodeRow>::open(txn, database::NODES)?
                .get(&node.0)?
                .is_some();
            if !exists {
                return Ok(());
            }
            let before = txn
                .open_table(FILE_MARKS)?
                .insert((node.0, consumer), FileMark(mark).encode().as_slice())?
                .is_some();
            room.take(txn)?;
            change_state(txn, consumer, |state| {
                state.file_marks += u64::from(!before);
                state.saved_at_ns = now_ns;
                state.heard_at_ns = now_ns;
                state.dropped = None;
            })
        })?;
        checkpointing.file_mark_changes += 1;
        Ok(exists)
    }

    /// The mark that `consumer` has of `node`.
    ///
    /// # Errors
    /// If the database cannot be read or is damaged.
    pub fn file_mark(&self, consumer: &str, node: NodeId) -> Result<Option<Epoch>> {
        let snapshot = self.database.snapshot()?;
        let table = snapshot.transaction().open_table(FILE_MARKS)?;
        let mark = table.get((node.0, consumer))?;
        Ok(mark
            .map(|mark| FileMark::decode(mark.value()))
            .transpose()?
            .map(|mark| mark.0))
    }
}

/// Changes the state of a consumer. A new one needs room, see [`Log::make_room`].
pub(crate) fn change_state(
    txn: &WriteTransaction,
    consumer: &str,
    change: impl FnOnce(&mut ConsumerState),
) -> Result<()> {
    let mut marks = txn.open_table(MARKS)?;
    let mut state = marks
        .get(consumer)?
        .map(|value| ConsumerState::decode(value.value()))
        .transpose()?;
    let state = state.get_or_insert_default();
    change(state);
    marks.insert(consumer, state.encode().as_slice())?;
    Ok(())
}

/// The marks that any consumer has of `node`, in no order.
pub(crate) fn marks_of(
    table: &impl ReadableTable<(u64, &'static str), &'static [u8]>,
    node: NodeId,
) -> Result<Vec<Epoch>> {
    let mut marks = Vec::new();
    for entry in table.range((node.0, "")..(node.0.saturating_add(1), ""))? {
        marks.push(FileMark::decode(entry?.1.value())?.0);
    }
    Ok(marks)
}

/// The borders that hold for every node.
pub(crate) fn borders_of_all(table: &impl ReadableTable<&'static str, &'static [u8]>) -> Result<Vec<Epoch>> {
    let mut borders = Vec::new();
    for entry in table.iter()? {
        borders.extend(ConsumerState::decode(entry?.1.value())?.borders());
    }
    Ok(borders)
}

fn is_border(txn: &WriteTransaction, node: NodeId, epoch: Epoch) -> Result<bool> {
    Ok(borders_of_all(&txn.open_table(MARKS)?)?.contains(&epoch)
        || marks_of(&txn.open_table(FILE_MARKS)?, node)?.contains(&epoch))
}

/// Removes the marks of nodes that are gone.
pub(crate) fn forget_nodes(txn: &WriteTransaction, gone: &[NodeId]) -> Result<()> {
    let mut lost: BTreeMap<String, u64> = BTreeMap::new();
    {
        let mut table = txn.open_table(FILE_MARKS)?;
        if table.is_empty()? {
            return Ok(());
        }
        for node in gone {
            table.retain_in((node.0, "")..(node.0.saturating_add(1), ""), |(_, consumer), _| {
                *lost.entry(consumer.to_owned()).or_default() += 1;
                false
            })?;
        }
    }
    for (consumer, count) in lost {
        change_state(txn, &consumer, |state| {
            state.file_marks = state.file_marks.saturating_sub(count);
        })?;
    }
    Ok(())
}

/// Removes all marks of files that `consumer` has.
pub(crate) fn forget_consumer(txn: &WriteTransaction, consumer: &str) -> Result<()> {
    txn.open_table(FILE_MARKS)?.retain(|(_, other), _| other != consumer)?;
    Ok(())
}
