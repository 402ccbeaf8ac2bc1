//! Reading a journal at a start, whatever became of it meanwhile.
//!
//! Numbers of groups must never be given twice: the server takes a group with a number that it
//! knows for the one that it has. So of a damaged journal all records count that can still be read,
//! wherever they lie, and numbers go on far behind the last of them ([`SKIPPED`]). Its other
//! contents may be lost, above all names that came and went since the mark. Only sending everything
//! then sets the server's folder right, which is up to the caller ([`Found::is_damaged`]).
//!
//! The *end* of a journal is torn by a crash during a write: what is torn off there was never
//! handed out, and does not count as damage, unless a later part of the same write arrived: that
//! cannot be told from damage of the last group. The numbers of a torn end are skipped in either
//! case.

use std::io;

use byteback_host::durable::{DurableDir, RecordLogContents, RecordLogError};
use byteback_queue::queue::Numbers;
use byteback_queue::{GroupId, Position};

use super::{FORMAT, Noted, TAG_ANSWERED, TAG_HANDED};

/// Numbers that are skipped when some may have been lost. No process hands out as many without an
/// answer, and there are enough for sixty thousand skips.
pub(in crate::live) const SKIPPED: u64 = 1 << 20;

/// Greatest number that a device gives: bytes with a greater one are not a record.
const GROUPS_MAX: u64 = 1 << 40;

/// Bytes that the shortest record takes.
const RECORD_LEN_MIN: u64 = 20 + 1 + 3 * 8;

/// Why a journal is not used.
#[derive(Debug, thiserror::Error)]
pub(in crate::live) enum JournalError {
    /// The system's error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Another version of this program wrote the journal.
    #[error("its version is {0}")]
    Version(u8),
}

/// The remains of a journal.
#[derive(Default)]
pub(in crate::live) struct Found {
    pub(super) noted: Noted,
    /// Whether there is no journal.
    pub(in crate::live) is_missing: bool,
    /// Whether part of its contents is lost.
    pub(in crate::live) is_damaged: bool,
}

impl Found {
    /// Reads the journal in `dir`, if there is one.
    pub(in crate::live) fn read(dir: &dyn DurableDir) -> Result<Self, JournalError> {
        match FORMAT.read(dir) {
            Ok(None) => Ok(Self {
                is_missing: true,
                ..Self::default()
            }),
            Ok(Some(contents)) if !contents.has_records_in_tail => Ok(Self::of(&contents)),
            Ok(Some(_)) | Err(RecordLogError::Damaged { .. }) => match FORMAT.salvage(dir) {
                Ok(records) => Ok(Self::salvaged(&records)),
                Err(error) => Err(error.into_io().into()),
            },
            Err(RecordLogError::Version { found, .. }) => Err(JournalError::Version(found)),
            Err(error) => Err(error.into_io().into()),
        }
    }

    /// The contents of a journal that is whole, or has a torn end.
    fn of(contents: &RecordLogContents) -> Self {
        let mut found = Self::default();
        let taken = contents.records.iter().map(|record| found.noted.take(record));
        let makes_sense = taken.filter(Option::is_none).count() == 0;
        // A journal always begins with records.
        found.is_damaged = !makes_sense || contents.records.is_empty();
        // The numbers that would be lost, should they have been handed out after all.
        let torn = contents.tail_len_bytes.div_ceil(RECORD_LEN_MIN);
        let numbers = &mut found.noted.numbers;
        numbers.group.0 = numbers.group.0.saturating_add(torn);
        found
    }

    /// The contents of the records that lie anywhere in a damaged journal.
    fn salvaged(records: &[Vec<u8>]) -> Self {
        let mut found = Self {
            is_damaged: true,
            ..Self::default()
        };
        for record in records.iter().filter(|record| is_plausible(record)) {
            let _ = found.noted.take(record);
        }
        found
    }

    /// Skips numbers when it is unknown which were given: these, at least, and some behind all that
    /// are known.
    pub(in crate::live) fn skip(&mut self, known: Numbers) {
        let numbers = &mut self.noted.numbers;
        *numbers = Numbers {
            counter: numbers.counter.max(known.counter).saturating_add(SKIPPED),
            group: GroupId(numbers.group.max(known.group).0.saturating_add(SKIPPED)),
            position: Position(numbers.position.max(known.position).0.saturating_add(SKIPPED)),
        };
    }
}

/// Whether bytes that were found anywhere may be a record. A name has no zero bytes, so no part of
/// one looks like a record: its length has some.
fn is_plausible(record: &[u8]) -> bool {
    match record.split_first() {
        Some((&(TAG_HANDED | TAG_ANSWERED), fields)) => {
            let group = fields.first_chunk::<8>();
            group.is_some_and(|group| u64::from_le_bytes(*group) <= GROUPS_MAX)
        }
        _ => true,
    }
}
