//! Reading a journal at a start, whatever became of it meanwhile.
//!
//! Numbers of groups must never be given twice: the server takes a group with a number that it
//! knows for the one that it has. So of a damaged journal all records count that can still be read,
//! wherever they lie, and numbers go on far behind the last of them ([`SKIPPED`]). Its other
//! contents may be lost, above all names that came and went since the mark. Only sending everything
//! then sets the server's folder right, which is up to the caller ([`Found::is_damaged`]).
//!
//! The *end* of a journal is torn by a crash during a write: what is torn off there was never
//! handed out, and does not count as damage, unless a later part of the same write arrived: a tear
//! with whole records behind it looks like any other damage. The numbers of a torn end are skipped
//! in either case.

use std::io;

use byteback_host::durable::DurableDir;
use byteback_queue::queue::Numbers;
use byteback_queue::{GroupId, Position};

use super::{HEADER_LEN, JOURNAL_MAGIC, JOURNAL_NAME, JOURNAL_VERSION, Noted, RECORD_LEN, read_all, record_len};

/// Numbers that are skipped when some may have been lost. No process hands out as many without an
/// answer, and there are enough for sixty thousand skips.
pub(in crate::live) const SKIPPED: u64 = 1 << 20;

/// Greatest number that a device gives: bytes with a greater one are not a record.
const GROUPS_MAX: u64 = 1 << 40;

/// Longest record of a name, or of a set of files, that is looked for in a damaged journal.
const SALVAGED_LEN_MAX: usize = 16 << 10;

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
        match read_all(dir, JOURNAL_NAME)? {
            Some(bytes) => Self::parse(&bytes),
            None => Ok(Self {
                is_missing: true,
                ..Self::default()
            }),
        }
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, JournalError> {
        let mut found = Self::default();
        let Some(records) = records_of(bytes)? else {
            found.is_damaged = true;
            found.salvage(bytes);
            return Ok(found);
        };
        let mut rest = records;
        while let Some(behind) = found.noted.read(rest) {
            rest = behind;
        }
        // A journal always begins with records.
        found.is_damaged = rest.len() == records.len();
        if found.salvage(rest) {
            found.is_damaged = true;
        } else if !rest.is_empty() {
            // The numbers that would be lost, should they have been handed out after all.
            let numbers = &mut found.noted.numbers;
            numbers.group.0 = numbers.group.0.saturating_add(rest.len().div_ceil(RECORD_LEN) as u64);
        }
        Ok(found)
    }

    /// Takes in the records that lie anywhere in these bytes. Returns whether there was one.
    fn salvage(&mut self, mut rest: &[u8]) -> bool {
        let mut is_found = false;
        while !rest.is_empty() {
            rest = match self.salvaged(rest) {
                Some(behind) => {
                    is_found = true;
                    behind
                }
                None => rest.get(1..).unwrap_or_default(),
            };
        }
        is_found
    }

    fn salvaged<'a>(&mut self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let len = record_len(bytes).filter(|len| *len <= SALVAGED_LEN_MAX)?;
        // A name has no zero bytes, so no part of one looks like a record of a number that is
        // given.
        let group = bytes.get(1..9)?.first_chunk::<8>()?;
        if len == RECORD_LEN && u64::from_le_bytes(*group) > GROUPS_MAX {
            return None;
        }
        self.noted.read(bytes)
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

/// The header of a journal.
pub(super) fn header() -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    let (begin, check) = header.split_at_mut(HEADER_LEN - 4);
    if let Some((version, magic)) = begin.split_last_mut() {
        magic.copy_from_slice(&JOURNAL_MAGIC);
        *version = JOURNAL_VERSION;
    }
    check.copy_from_slice(&crc32c::crc32c(begin).to_le_bytes());
    header
}

/// The records behind the header of a journal; `None` if the header is damaged. Another version
/// says so in a header that is whole.
fn records_of(bytes: &[u8]) -> Result<Option<&[u8]>, JournalError> {
    let Some((version, behind)) = bytes.strip_prefix(&JOURNAL_MAGIC).and_then(<[u8]>::split_first) else {
        return Ok(None);
    };
    let begin = bytes.get(..HEADER_LEN - 4).unwrap_or_default();
    match behind.split_first_chunk::<4>() {
        Some((check, records)) if crc32c::crc32c(begin) == u32::from_le_bytes(*check) => match *version {
            JOURNAL_VERSION => Ok(Some(records)),
            version => Err(JournalError::Version(version)),
        },
        _ => Ok(None),
    }
}
