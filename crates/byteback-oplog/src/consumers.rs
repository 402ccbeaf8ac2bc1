//! Moving marks, and dropping or merging the layers that no mark needs apart (SolFS Fig. 8).
//!
//! Needed are the layers since the eldest mark or pending cut. Between two neighbouring ones nobody ever asks for a part, so
//! all layers of that stretch become one, in its eldest epoch. Without any consumer nothing is kept.

use redb::{ReadableTable, WriteTransaction};

use crate::database::{self, MARKS};
use crate::error::Result;
use crate::ids::{Epoch, NodeId};
use crate::layer::WholeReason;
use crate::ledger::LedgerEntry;
use crate::log::Log;
use crate::marks::{ConsumerState, PendingCut};

impl Log {
    /// All consumers with what is known of them, in order of their names.
    ///
    /// # Errors
    /// If the database cannot be read or is damaged.
    pub fn consumers(&self) -> Result<Vec<(String, ConsumerState)>> {
        let snapshot = self.database.snapshot()?;
        let table = snapshot.transaction().open_table(MARKS)?;
        let mut consumers = Vec::new();
        for entry in table.iter()? {
            let (name, state) = entry?;
            consumers.push((name.value().to_owned(), ConsumerState::decode(state.value())?));
        }
        Ok(consumers)
    }

    /// What is known of one consumer; nothing of one that never was here.
    ///
    /// # Errors
    /// If the database cannot be read or is damaged.
    pub fn consumer(&self, name: &str) -> Result<ConsumerState> {
        let snapshot = self.database.snapshot()?;
        let table = snapshot.transaction().open_table(MARKS)?;
        let state = table
            .get(name)?
            .map(|state| ConsumerState::decode(state.value()))
            .transpose()?;
        Ok(state.unwrap_or_default())
    }

    /// Remembers the number of the batch that carries the pending cut, durably, before it is sent. Only if the pending cut
    /// is the one that ended at `cut`: another one of the same consumer may have taken its place.
    ///
    /// # Errors
    /// A disk that cannot be written.
    pub fn note_batch(&self, consumer: &str, cut: Epoch, batch: u64) -> Result<()> {
        self.change_consumer(consumer, |state| {
            if let Some(pending) = state.pending.as_mut().filter(|pending| pending.epoch == cut) {
                pending.batch = batch;
            }
        })
    }

    /// The pending cut of `consumer` is saved: it becomes the mark, and `note` the memory of it. Where `cut` is said and
    /// another cut of the same consumer is pending by now, the mark stays: it must not move over what nobody saved.
    ///
    /// # Errors
    /// A disk that cannot be written: the mark then stays, and the next backup covers the same again.
    pub fn advance(&self, consumer: &str, cut: Option<Epoch>, note: &[u8]) -> Result<()> {
        let saved_at_ns = self.clock.now_ns();
        self.change_consumer(consumer, |state| {
            if let Some(pending) = state.pending.take_if(|pending| is_of(pending, cut)) {
                state.mark = Some(pending.epoch);
                state.saved_at_ns = saved_at_ns;
                state.note = note.to_vec();
            }
        })
    }

    /// Nodes that a consumer could not save are reported again, whole and with their names. Called before the mark moves
    /// over the cut that should have saved them.
    ///
    /// # Errors
    /// A disk that cannot be written: the mark must then not move.
    pub fn report_again(&self, nodes: &[NodeId]) -> Result<()> {
        let _one = self.checkpointing.lock();
        for node in nodes {
            self.with_places_of(*node, |state, places| {
                state.epoch_used = true;
                state.current.mark_whole(*node, WholeReason::Unsaved);
                for (parent, name) in places {
                    state.current.set_name(parent, &name, Some(*node));
                }
            })?;
        }
        self.flush()
    }

    /// The pending cut of `consumer` will not be saved: its mark stays where it is. Where `cut` is said, another cut of the
    /// same consumer stays pending.
    ///
    /// # Errors
    /// A disk that cannot be written.
    pub fn abandon(&self, consumer: &str, cut: Option<Epoch>) -> Result<()> {
        self.change_consumer(consumer, |state| {
            state.pending.take_if(|pending| is_of(pending, cut));
        })
    }

    /// What `consumer` has saved is worth nothing any more: its next backup covers everything.
    ///
    /// # Errors
    /// A disk that cannot be written.
    pub fn reset_mark(&self, consumer: &str) -> Result<()> {
        self.change_consumer(consumer, |state| state.mark = None)
    }

    /// The coverage ledger, eldest entry first.
    ///
    /// # Errors
    /// If the database cannot be read or is damaged.
    pub fn ledger(&self) -> Result<Vec<LedgerEntry>> {
        let snapshot = self.database.snapshot()?;
        let table = snapshot.transaction().open_table(database::LEDGER)?;
        table
            .iter()?
            .map(|entry| LedgerEntry::decode(entry?.1.value()))
            .collect()
    }

    fn change_consumer(&self, consumer: &str, change: impl FnOnce(&mut ConsumerState)) -> Result<()> {
        let _one = self.checkpointing.lock();
        let current = self.epoch();
        self.database.write(|txn| {
            {
                let mut marks = txn.open_table(MARKS)?;
                let mut state = marks
                    .get(consumer)?
                    .map(|value| ConsumerState::decode(value.value()))
                    .transpose()?;
                let state = state.get_or_insert_default();
                change(state);
                marks.insert(consumer, state.encode().as_slice())?;
            }
            compact(txn, current)
        })
    }
}

/// Whether `pending` is the cut that ended at `cut`, or any will do.
fn is_of(pending: &PendingCut, cut: Option<Epoch>) -> bool {
    cut.is_none_or(|cut| cut == pending.epoch)
}

/// Drops and merges what no consumer needs apart. `current` is the epoch that is being written.
fn compact(txn: &WriteTransaction, current: Epoch) -> Result<()> {
    let mut borders = Vec::new();
    for entry in txn.open_table(MARKS)?.iter()? {
        let state = ConsumerState::decode(entry?.1.value())?;
        borders.extend(state.borders());
    }
    borders.push(current);
    borders.sort_unstable();
    borders.dedup();

    let mut layers = txn.open_table(database::LAYERS)?;
    let mut name_layers = txn.open_table(database::NAME_LAYERS)?;
    let eldest = borders.first().copied().unwrap_or(current);
    layers.retain_in(..(eldest.0, 0), |_, _| false)?;
    name_layers.retain_in(..(eldest.0, 0, &[][..]), |_, _| false)?;

    for stretch in borders.windows(2) {
        let &[first, end] = stretch else { continue };
        // Layers of the first epoch stay where they are; the others are laid over them, eldest first.
        let mut moved = Vec::new();
        for entry in layers.range((first.0 + 1, 0)..(end.0, 0))? {
            let (place, layer) = entry?;
            moved.push((place.value(), database::decode_layer(layer.value())?));
        }
        for ((epoch, node), layer) in moved {
            let mut sum = match layers.get((first.0, node))? {
                Some(elder) => database::decode_layer(elder.value())?,
                None => crate::layer::Layer::default(),
            };
            sum.lay(&layer);
            layers.insert((first.0, node), sum.encode().as_slice())?;
            layers.remove((epoch, node))?;
        }
        let mut moved = Vec::new();
        for entry in name_layers.range((first.0 + 1, 0, &[][..])..(end.0, 0, &[][..]))? {
            let (key, child) = entry?;
            let (epoch, parent, name) = key.value();
            moved.push((epoch, parent, name.to_vec(), child.value()));
        }
        for (epoch, parent, name, child) in moved {
            name_layers.insert((first.0, parent, name.as_slice()), child)?;
            name_layers.remove((epoch, parent, name.as_slice()))?;
        }
    }
    Ok(())
}
