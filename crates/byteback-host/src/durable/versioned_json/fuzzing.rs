//! Entry points of the fuzz targets.

use super::VersionedJson;

const FILE: VersionedJson = VersionedJson {
    name: "fuzzed.json",
    version: 1,
    len_max_bytes: 1 << 20,
};

/// Reads any bytes as a record; what is understood is written as the same bytes again.
///
/// # Panics
/// If other bytes come back.
pub fn versioned_json(data: &[u8]) {
    if let Ok(body) = FILE.body_of::<serde_json::Value>(data) {
        let again = FILE.bytes_of(&body);
        assert!(again.is_ok_and(|again| again == data), "other bytes come back");
    }
}

/// A file as it is written.
#[must_use]
pub fn versioned_json_seeds() -> Vec<Vec<u8>> {
    let body = serde_json::json!({ "limits": [7], "paused_since_ns": null });
    vec![FILE.bytes_of(&body).unwrap_or_default()]
}
