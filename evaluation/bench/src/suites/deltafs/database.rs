//! A simulated database that works like PostgreSQL, in place of a recorded one.
//!
//! It performs PostgreSQL's benchmark: each transaction changes one number in a row of a large
//! table, adds a row to a history, and commits. Its files are written as PostgreSQL writes them:
//!
//! - Tables consist of pages of 8 KiB: a header, line pointers from the front, rows from the back.
//!   A changed row is written as a new version into the same page while there is room (a heap-only
//!   tuple), and the old one is marked with the transaction's number. A full page is pruned of old
//!   versions first.
//! - The log consists of segments of 16 MiB that were filled with zeros before. A commit writes the
//!   pages of 8 KiB that its records touch, a partly filled one from its beginning, and syncs them.
//!   The first change of a page after a checkpoint logs the whole page.
//! - A checkpoint, here every 500 transactions, writes the changed pages of the tables and syncs
//!   them.
//!
//! Out of scope: indexes, the files of the transaction status, vacuum.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::SuiteError;
use crate::random::Random;
use crate::traces::Trace;
use crate::traces::operation::{Operation, Payload, Timed};

const PAGE_LEN_BYTES: usize = 8192;
const HEADER_LEN_BYTES: usize = 24;
const LOG_SEGMENT_LEN_BYTES: usize = 16 << 20;
/// A header of 24 bytes, four numbers, and 84 spaces, as in `pgbench_accounts`.
const ROW_LEN_BYTES: usize = 128;
const ROWS_AT_FIRST: usize = 55;
const TABLE_PAGES: usize = 2048;
const TRANSACTIONS: usize = 2_000;
const CHECKPOINT_EVERY: usize = 500;
/// A commit every two milliseconds.
const TRANSACTION_US: u64 = 2_000;
const CHANGE_RECORD_LEN_BYTES: usize = 210;

/// The name of the database in figures.
pub(crate) const NAME: &str = "database-like-postgresql";

const TABLE: u64 = 1;
const HISTORY: u64 = 2;
const LOG: u64 = 3;

struct Page {
    bytes: Vec<u8>,
    /// The offset of each row, in the order of line pointers, and whether it is dead.
    rows: Vec<(usize, bool)>,
}

impl Page {
    fn new(first_row: u32) -> Self {
        let mut page = Self {
            bytes: vec![0; PAGE_LEN_BYTES],
            rows: Vec::new(),
        };
        for row in 0..ROWS_AT_FIRST {
            // Fits: 55 rows of 128 bytes with their pointers.
            let number = first_row + u32::try_from(row).unwrap_or(0);
            page.add(&row_bytes(2, number, 0));
        }
        page
    }

    fn lower(&self) -> usize {
        HEADER_LEN_BYTES + 4 * self.rows.len()
    }

    fn upper(&self) -> usize {
        self.rows.iter().map(|row| row.0).min().unwrap_or(PAGE_LEN_BYTES)
    }

    fn has_room(&self) -> bool {
        self.upper() >= self.lower() + 4 + ROW_LEN_BYTES
    }

    fn add(&mut self, row: &[u8; ROW_LEN_BYTES]) {
        let at = self.upper() - ROW_LEN_BYTES;
        self.bytes[at..at + ROW_LEN_BYTES].copy_from_slice(row);
        let pointer = u32::try_from(at | 1 << 15 | ROW_LEN_BYTES << 17).unwrap_or(0);
        let place = self.lower();
        self.bytes[place..place + 4].copy_from_slice(&pointer.to_le_bytes());
        self.rows.push((at, false));
    }

    /// Removes dead rows, and moves the others to the end.
    fn prune(&mut self) {
        let alive: Vec<[u8; ROW_LEN_BYTES]> = self
            .rows
            .iter()
            .filter(|row| !row.1)
            .filter_map(|row| self.bytes[row.0..row.0 + ROW_LEN_BYTES].try_into().ok())
            .collect();
        self.rows.clear();
        for row in &alive {
            self.add(row);
        }
        let (lower, upper) = (self.lower(), self.upper());
        // PostgreSQL would leave the old bytes, too, because it does not clear the hole: only the
        // bounds change.
        let bounds = [lower, upper].map(|bound| u16::try_from(bound).unwrap_or(u16::MAX).to_le_bytes());
        self.bytes[12..14].copy_from_slice(&bounds[0]);
        self.bytes[14..16].copy_from_slice(&bounds[1]);
    }

    /// Writes a new version of one of the page's rows.
    fn change(&mut self, pick: usize, transaction: u32, balance: u32, position: u64) {
        if !self.has_room() {
            self.prune();
        }
        let alive: Vec<usize> = (0..self.rows.len()).filter(|row| !self.rows[*row].1).collect();
        let old = alive[pick % alive.len()];
        let at = self.rows[old].0;
        self.rows[old].1 = true;
        let number = u32::from_le_bytes(self.bytes[at + 24..at + 28].try_into().unwrap_or_default());
        self.bytes[at + 4..at + 8].copy_from_slice(&transaction.to_le_bytes());
        self.add(&row_bytes(transaction, number, balance));
        let bounds = [self.lower(), self.upper()].map(|bound| u16::try_from(bound).unwrap_or(u16::MAX).to_le_bytes());
        self.bytes[..8].copy_from_slice(&position.to_le_bytes());
        self.bytes[12..14].copy_from_slice(&bounds[0]);
        self.bytes[14..16].copy_from_slice(&bounds[1]);
    }
}

fn row_bytes(transaction: u32, number: u32, balance: u32) -> [u8; ROW_LEN_BYTES] {
    let mut row = [0; ROW_LEN_BYTES];
    row[..4].copy_from_slice(&transaction.to_le_bytes());
    row[22] = 24;
    row[24..28].copy_from_slice(&number.to_le_bytes());
    row[28..32].copy_from_slice(&(number / 100_000 + 1).to_le_bytes());
    row[32..36].copy_from_slice(&balance.to_le_bytes());
    row[36] = 0xab;
    row[37..121].fill(b' ');
    row
}

/// The log, with the content of its current segment.
struct Log {
    bytes: Vec<u8>,
    filled: usize,
    synced: usize,
}

/// Writes the database's operations as a trace.
#[derive(Default)]
struct Writer {
    operations: Vec<Timed>,
    payload: Vec<u8>,
    at_us: u64,
}

impl Writer {
    fn push(&mut self, operation: Operation) {
        let at_us = self.at_us;
        self.operations.push(Timed { at_us, operation });
    }

    fn open(&mut self, path: &str, handle: u64) {
        self.push(Operation::Open {
            path: Some(PathBuf::from(path)),
            handle,
            trunc: false,
        });
    }

    fn write(&mut self, handle: u64, offset: usize, bytes: &[u8]) {
        let data = Payload {
            start: self.payload.len(),
            len: bytes.len(),
        };
        self.payload.extend_from_slice(bytes);
        self.push(Operation::Write {
            handle,
            offset: offset as u64,
            data,
        });
    }

    fn sync(&mut self, handle: u64) {
        self.push(Operation::Fsync {
            path: None,
            handle: Some(handle),
            data_only: true,
        });
    }
}

impl Log {
    fn append(&mut self, record: &[u8]) {
        let end = (self.filled + record.len()).min(self.bytes.len());
        let len = end - self.filled;
        self.bytes[self.filled..end].copy_from_slice(&record[..len]);
        self.filled = end;
    }

    fn commit(&mut self, to: &mut Writer) {
        let start = self.synced / PAGE_LEN_BYTES * PAGE_LEN_BYTES;
        let end = self.filled.next_multiple_of(PAGE_LEN_BYTES).min(self.bytes.len());
        to.write(LOG, start, &self.bytes[start..end]);
        to.sync(LOG);
        self.synced = self.filled;
        if self.filled + 4 * PAGE_LEN_BYTES > self.bytes.len() {
            // The next segment replaces an old one, which is what this one has become by then.
            self.filled = 0;
            self.synced = 0;
        }
    }
}

/// The trace of the database, from existing tables and an empty log.
///
/// # Errors
/// Only if the imitation is wrong.
pub(crate) fn trace() -> Result<Trace, SuiteError> {
    let mut random = Random::new(0xDB);
    let mut pages: Vec<Page> = (0..TABLE_PAGES)
        .map(|page| Page::new(u32::try_from(page * ROWS_AT_FIRST).unwrap_or(0)))
        .collect();
    let mut to = Writer::default();
    let initial = vec![
        (
            "table",
            pages.iter().flat_map(|page| page.bytes.iter().copied()).collect(),
        ),
        ("history", Vec::new()),
        ("log", vec![0; LOG_SEGMENT_LEN_BYTES]),
    ];
    for (name, handle) in [("table", TABLE), ("history", HISTORY), ("log", LOG)] {
        to.open(name, handle);
    }
    let mut log = Log {
        bytes: vec![0; LOG_SEGMENT_LEN_BYTES],
        filled: 0,
        synced: 0,
    };
    let mut changed: BTreeMap<usize, ()> = BTreeMap::new();
    let mut history: Vec<u8> = Vec::new();
    let mut history_written = 0;
    for transaction in 0..TRANSACTIONS {
        to.at_us += TRANSACTION_US;
        let id = u32::try_from(1_000 + transaction).unwrap_or(u32::MAX);
        // A fifth of the rows takes four fifths of the changes.
        let hot = random.below(5) < 4;
        let span = if hot { TABLE_PAGES / 5 } else { TABLE_PAGES };
        let index = usize::try_from(random.below(span as u64)).unwrap_or(0);
        let position = (log.filled as u64) << 1;
        let page = &mut pages[index];
        let pick = usize::try_from(random.below(1 << 16)).unwrap_or(0);
        let balance = u32::try_from(random.below(1 << 20)).unwrap_or(0);
        page.change(pick, id, balance, position);
        if changed.insert(index, ()).is_none() {
            log.append(&page.bytes);
        }
        let mut record = [0; CHANGE_RECORD_LEN_BYTES];
        record[..4].copy_from_slice(&(CHANGE_RECORD_LEN_BYTES as u32).to_le_bytes());
        record[4..8].copy_from_slice(&id.to_le_bytes());
        record[8..16].copy_from_slice(&position.to_le_bytes());
        record[16..20].copy_from_slice(&u32::try_from(random.below(1 << 32)).unwrap_or(0).to_le_bytes());
        record[20..24].copy_from_slice(&u32::try_from(index).unwrap_or(0).to_le_bytes());
        record[32..160].copy_from_slice(&row_bytes(id, 0, balance));
        log.append(&record);
        log.commit(&mut to);
        let mut row = [0; 48];
        row[..4].copy_from_slice(&id.to_le_bytes());
        row[8..12].copy_from_slice(&balance.to_le_bytes());
        history.extend_from_slice(&row);
        if (transaction + 1) % CHECKPOINT_EVERY == 0 {
            for index in std::mem::take(&mut changed).into_keys() {
                to.write(TABLE, index * PAGE_LEN_BYTES, &pages[index].bytes);
            }
            let start = history_written / PAGE_LEN_BYTES * PAGE_LEN_BYTES;
            let mut tail = history[start..].to_vec();
            tail.resize(tail.len().next_multiple_of(PAGE_LEN_BYTES), 0);
            to.write(HISTORY, start, &tail);
            history_written = history.len();
            to.sync(TABLE);
            to.sync(HISTORY);
        }
    }
    let about = "A database that commits changes of single rows, imitated.";
    Trace::imitated(NAME, about, initial, to.operations, to.payload)
}
