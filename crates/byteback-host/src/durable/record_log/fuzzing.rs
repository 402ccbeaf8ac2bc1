//! Entry points of the fuzz targets.

use super::{RecordLogContents, RecordLogFormat};

const FORMAT: RecordLogFormat = RecordLogFormat {
    name: "fuzzed",
    magic: *b"FUZZLOG",
    version: 1,
    len_max_bytes: 1 << 16,
    rewrite_from_bytes: 1 << 16,
};

/// Reads any bytes as a log, and looks for records in them. The contents, written anew,
/// read the same.
///
/// # Panics
/// If other records come back.
pub fn record_log(data: &[u8]) {
    let _ = FORMAT.salvage_bytes(data);
    let Ok(contents) = FORMAT.contents_of(data) else {
        return;
    };
    let again = FORMAT
        .bytes_of(&contents.head, &contents.records)
        .and_then(|bytes| FORMAT.contents_of(&bytes));
    let whole = RecordLogContents {
        tail_len_bytes: 0,
        has_records_in_tail: false,
        is_damaged: false,
        ..contents
    };
    assert_eq!(again.ok(), Some(whole), "other records come back");
}

/// A log as it is written, without records and with some.
#[must_use]
pub fn record_log_seeds() -> Vec<Vec<u8>> {
    let empty: [&[u8]; 0] = [];
    let some: [&[u8]; 3] = [b"", b"one", &[0; 300]];
    let seeds = [FORMAT.bytes_of(b"owner", empty), FORMAT.bytes_of(b"", some)];
    seeds.into_iter().flatten().collect()
}
