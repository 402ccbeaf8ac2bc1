//! Moving marks, and giving consumers up.
//!
//! Moving a mark changes one small row, whatever lies behind it: layers that are not needed any
//! more go in the background ([`Log::compact`]).
//!
//! A consumer is given up by order ([`Log::drop_consumer`]) or because it was silent for longer
//! than the policy allows ([`Log::expire_consumers`]). The ledger records it in the same
//! transaction, and a tombstone stays: a consumer that returns gets everything, with the reason. If
//! tombstones leave no room for a new consumer, the oldest go. Silence is measured by the wall
//! clock: a clock that jumps ahead by months makes backups read everything once, no more.

use std::time::Duration;

use redb::{ReadableTable, ReadableTableMetadata, WriteTransaction};

use crate::database::{self, MARKS};
use crate::error::{CONSUMER_BYTES_MAX, LogError, Result};
use crate::file_marks::{change_state, forget_consumer};
use crate::ids::Epoch;
use crate::layer::WholeReason;
use crate::ledger::{LedgerEntry, LedgerEvent};
use crate::log::{Log, append_to_ledger};
use crate::marks::{ConsumerState, DropReason, Dropped, PendingCut};
use byteback_model::NodeId;

/// Room for a new consumer: the tombstones that have to go for it.
pub(crate) struct Room(Vec<String>);

impl Room {
    /// Removes them, in the transaction that adds the consumer.
    pub(crate) fn take(&self, txn: &WriteTransaction) -> Result<()> {
        let mut table = txn.open_table(MARKS)?;
        for tombstone in &self.0 {
            table.remove(tombstone.as_str())?;
        }
        Ok(())
    }
}

impl Log {
    /// Room for `consumer` among `limit` others, if it is not known. A caller that adds one holds
    /// `checkpointing` from here to the end of its transaction.
    ///
    /// # Errors
    /// [`LogError::TooManyConsumers`], [`LogError::ConsumerName`]; if the database cannot be read.
    pub(crate) fn make_room(&self, consumer: &str, limit: u64) -> Result<Room> {
        if consumer.is_empty() || consumer.len() > CONSUMER_BYTES_MAX {
            let len_bytes = consumer.len();
            return Err(LogError::ConsumerName { len_bytes });
        }
        let snapshot = self.database.snapshot()?;
        let table = snapshot.transaction().open_table(MARKS)?;
        let count = table.len()?;
        if count < limit || table.get(consumer)?.is_some() {
            return Ok(Room(Vec::new()));
        }
        let mut tombstones: Vec<(i64, String)> = Vec::new();
        for (name, state) in self.read_consumers()? {
            if let Some(dropped) = state.dropped.filter(|_| state.is_tombstone()) {
                tombstones.push((dropped.at_ns, name));
            }
        }
        if count - tombstones.len() as u64 >= limit {
            return Err(LogError::TooManyConsumers { limit });
        }
        tombstones.sort_unstable();
        // One more than the excess over the limit.
        tombstones.truncate(usize::try_from(count - limit).map_or(usize::MAX, |many| many.saturating_add(1)));
        Ok(Room(tombstones.into_iter().map(|(_, name)| name).collect()))
    }

    /// All consumers with what is known of them, in order of their names.
    ///
    /// # Errors
    /// If the database cannot be read or is damaged.
    pub fn consumers(&self) -> Result<Vec<(String, ConsumerState)>> {
        self.damage.watch(self.read_consumers())
    }

    fn read_consumers(&self) -> Result<Vec<(String, ConsumerState)>> {
        let snapshot = self.database.snapshot()?;
        let table = snapshot.transaction().open_table(MARKS)?;
        let mut consumers = Vec::new();
        for entry in table.iter()? {
            let (name, state) = entry?;
            consumers.push((name.value().to_owned(), ConsumerState::decode(state.value())?));
        }
        Ok(consumers)
    }

    /// The state of one consumer; the default for one that was never here.
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

    /// Remembers the number of the batch that carries the pending cut, durably, before it is sent.
    /// Only if the pending cut is the one that ended at `cut`: another one of the same consumer may
    /// have taken its place.
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

    /// The pending cut of `consumer` is saved: it becomes the mark, and `note` is stored with it.
    /// If `cut` is given and another cut of the same consumer is pending by now, the mark stays: it
    /// must not move past unsaved changes.
    ///
    /// # Errors
    /// A disk that cannot be written: the mark then stays, and the next backup covers the same
    /// changes again.
    pub fn advance(&self, consumer: &str, cut: Option<Epoch>, note: &[u8]) -> Result<()> {
        let saved_at_ns = self.clock.now_ns();
        self.change_consumer(consumer, |state| {
            if let Some(pending) = state.pending.take_if(|pending| is_of(pending, cut)) {
                state.mark = Some(pending.epoch);
                state.saved_at_ns = saved_at_ns;
                state.note = note.to_vec();
                state.dropped = None;
            }
        })
    }

    /// Reports nodes again that a consumer could not save, whole and with their names. Call this
    /// before the mark moves over the cut that should have saved them.
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

    /// Gives up the pending cut of `consumer`: its mark stays where it is. If `cut` is given,
    /// another cut of the same consumer stays pending.
    ///
    /// # Errors
    /// A disk that cannot be written.
    pub fn abandon(&self, consumer: &str, cut: Option<Epoch>) -> Result<()> {
        self.change_consumer(consumer, |state| {
            state.pending.take_if(|pending| is_of(pending, cut));
        })
    }

    /// Discards the mark of `consumer`: its backups are worthless now, and the next one covers
    /// everything.
    ///
    /// # Errors
    /// A disk that cannot be written.
    pub fn reset_mark(&self, consumer: &str) -> Result<()> {
        self.change_consumer(consumer, |state| state.mark = None)
    }

    /// The coverage ledger, oldest entry first.
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

    /// Gives `name` up: changes that it has not saved are not kept for it any longer, and if it
    /// returns it gets everything. A second call also removes the tombstone. Returns whether there
    /// was anything to give up.
    ///
    /// # Errors
    /// A disk that cannot be written.
    pub fn drop_consumer(&self, name: &str) -> Result<bool> {
        self.drop_if(name, DropReason::Ordered, |_| true)
    }

    /// Drops the consumers that have been silent for `older_than`, and returns their names.
    ///
    /// # Errors
    /// A disk that cannot be written.
    pub fn expire_consumers(&self, older_than: Duration) -> Result<Vec<String>> {
        let now_ns = self.clock.now_ns();
        let limit_ns = i64::try_from(older_than.as_nanos()).unwrap_or(i64::MAX);
        let is_silent =
            |state: &ConsumerState| now_ns.saturating_sub(state.heard_at_ns) > limit_ns && !state.is_tombstone();
        let mut expired = Vec::new();
        for (name, state) in self.consumers()? {
            if is_silent(&state) && self.drop_if(&name, DropReason::Expired, is_silent)? {
                expired.push(name);
            }
        }
        Ok(expired)
    }

    /// When a consumer in this state expires by the policy of this log, nanoseconds since 1970;
    /// `None` while no warning is due.
    #[must_use]
    pub fn expires_at_ns(&self, state: &ConsumerState) -> Option<i64> {
        let ns = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let silent_ns = self.clock.now_ns().saturating_sub(state.heard_at_ns);
        let is_warned = !state.is_tombstone() && silent_ns > ns(self.options.expiry.warn_after);
        is_warned.then(|| state.heard_at_ns.saturating_add(ns(self.options.expiry.drop_after)))
    }

    /// Why a consumer in this state that has no mark gets everything.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn full_changes_reason(&self, state: &ConsumerState) -> Result<WholeReason> {
        if state.dropped.is_some() {
            return Ok(WholeReason::Dropped);
        }
        let was_lost = self
            .database
            .snapshot()?
            .number_if_any(database::meta::FOLLOWS_A_LOSS)?
            .is_some();
        Ok(if was_lost {
            WholeReason::LogLost
        } else {
            WholeReason::NoMark
        })
    }

    fn drop_if(&self, name: &str, reason: DropReason, may: impl FnOnce(&ConsumerState) -> bool) -> Result<bool> {
        let mut checkpointing = self.checkpointing.lock();
        let at_ns = self.clock.now_ns();
        let is_done = self.database.write(|txn| {
            let state = txn
                .open_table(MARKS)?
                .get(name)?
                .map(|value| ConsumerState::decode(value.value()))
                .transpose()?;
            let Some(state) = state.filter(may) else {
                return Ok(false);
            };
            if state.is_tombstone() {
                txn.open_table(MARKS)?.remove(name)?;
                return Ok(true);
            }
            forget_consumer(txn, name)?;
            change_state(txn, name, |state| {
                *state = ConsumerState {
                    saved_at_ns: state.saved_at_ns,
                    heard_at_ns: state.heard_at_ns,
                    dropped: Some(Dropped { at_ns, reason }),
                    ..ConsumerState::default()
                };
            })?;
            let event = LedgerEvent::ConsumerDropped {
                consumer: name.to_owned(),
                reason,
            };
            append_to_ledger(txn, &LedgerEntry { at_ns, event })?;
            Ok(true)
        })?;
        checkpointing.file_mark_changes += 1;
        Ok(is_done)
    }

    /// Changes the state of a consumer; does nothing if it is not known.
    fn change_consumer(&self, consumer: &str, change: impl FnOnce(&mut ConsumerState)) -> Result<()> {
        let _one = self.checkpointing.lock();
        let heard_at_ns = self.clock.now_ns();
        self.database.write(|txn| {
            if txn.open_table(MARKS)?.get(consumer)?.is_none() {
                return Ok(());
            }
            change_state(txn, consumer, |state| {
                state.heard_at_ns = heard_at_ns;
                change(state);
            })
        })
    }
}

/// Whether `pending` is the cut that ended at `cut`; `None` matches any.
fn is_of(pending: &PendingCut, cut: Option<Epoch>) -> bool {
    cut.is_none_or(|cut| cut == pending.epoch)
}
