//! The records of a piece of a batch, many to a row of the catalog: a row for each would be an
//! insertion, a reading and a removal for each name, file and delta of a first backup.
//!
//! A *sheet* holds records in their order, each behind its length.

use crate::codec::{Reader, StagedRecord, Writer};
use crate::error::StoreError;

/// A sheet of this length is full, in bytes.
const SHEET_LEN: usize = 16 << 10;

/// Sheets that are being written.
#[derive(Debug, Default)]
pub(crate) struct Sheets {
    sheets: Vec<Vec<u8>>,
    records: u64,
}

impl Sheets {
    /// Adds a record behind those before it.
    pub(crate) fn push(&mut self, record: &StagedRecord) {
        let mut out = Writer {
            bytes: self.sheets.pop_if(|last| last.len() < SHEET_LEN).unwrap_or_default(),
        };
        out.bytes(&record.encode());
        self.sheets.push(out.bytes);
        self.records = self.records.saturating_add(1);
    }

    /// Number of records.
    pub(crate) const fn records(&self) -> u64 {
        self.records
    }

    /// The sheets, in order.
    pub(crate) fn as_slice(&self) -> &[Vec<u8>] {
        &self.sheets
    }
}

/// The records of a sheet, in order.
pub(crate) fn records_of(sheet: &[u8]) -> impl Iterator<Item = Result<StagedRecord, StoreError>> + '_ {
    let mut rest = Some(Reader::new(sheet, "a staged record"));
    std::iter::from_fn(move || {
        let mut reader = rest.take().filter(|reader| !reader.is_empty())?;
        let record = reader.bytes().and_then(StagedRecord::decode);
        // Behind a damaged record nothing is read.
        rest = record.is_ok().then_some(reader);
        Some(record)
    })
}

#[cfg(test)]
mod tests;
