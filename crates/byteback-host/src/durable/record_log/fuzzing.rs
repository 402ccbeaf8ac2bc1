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
    let Ok((mut bytes, tag)) = FORMAT.head_bytes(parsed.generation, &contents.head) else {
        panic!("a head that was read is too long to be written");
    };
    for record in &contents.records {
        assert!(
            FORMAT.put(&mut bytes, tag, record).is_ok(),
            "a record that was read is too long"
        );
    }
    let read_len = data
        .len()
        .saturating_sub(usize::try_from(contents.tail_len_bytes).unwrap_or(usize::MAX));
    assert_eq!(Some(&bytes[..]), data.get(..read_len), "other bytes come back");
}

/// A log as it is written, without records and with some.
#[must_use]
pub fn record_log_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    if let Ok((mut bytes, tag)) = FORMAT.head_bytes(7, b"owner") {
        seeds.push(bytes.clone());
        for record in [&b""[..], b"one", &[0; 300]] {
            let _ = FORMAT.put(&mut bytes, tag, record);
        }
        seeds.push(bytes);
    }
    seeds
}
