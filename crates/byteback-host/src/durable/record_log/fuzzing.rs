//! Entry points of the fuzz targets.

use super::RecordLogFormat;

const FORMAT: RecordLogFormat = RecordLogFormat {
    name: "fuzzed",
    magic: *b"FUZZLOG",
    version: 1,
    len_max_bytes: 1 << 16,
    rewrite_from_bytes: 1 << 16,
};

/// Reads any bytes as a log, and looks for records in them. What was understood is written as the
/// same bytes again.
///
/// # Panics
/// If other bytes come back.
pub fn record_log(data: &[u8]) {
    let _ = FORMAT.salvage_bytes(data);
    let Ok(parsed) = FORMAT.parse(data) else { return };
    let contents = parsed.contents;
    let read_len = data
        .len()
        .saturating_sub(usize::try_from(contents.tail_len_bytes).unwrap_or(usize::MAX));
    let again = FORMAT.bytes_with(parsed.generation, &contents.head, &contents.records);
    let again = again.ok().map(|(bytes, _)| bytes);
    assert_eq!(again.as_deref(), data.get(..read_len), "other bytes come back");
}

/// A log as it is written, without records and with some.
#[must_use]
pub fn record_log_seeds() -> Vec<Vec<u8>> {
    let empty: [&[u8]; 0] = [];
    let some: [&[u8]; 3] = [b"", b"one", &[0; 300]];
    let seeds = [FORMAT.bytes_of(b"owner", empty), FORMAT.bytes_of(b"", some)];
    seeds.into_iter().flatten().collect()
}
