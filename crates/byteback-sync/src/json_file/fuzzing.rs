//! Entry points of the fuzz targets.

use super::JsonFile;

const FILE: JsonFile = JsonFile {
    name: "fuzzed.json",
    new_name: "fuzzed.json.new",
    version: 1,
    len_max_bytes: 1 << 20,
};

/// Any bytes of a file: a body that is understood is written as the same bytes again.
pub(crate) fn json_file(data: &[u8]) {
    if let Ok(body) = FILE.body_of::<serde_json::Value>(data) {
        let again = FILE.bytes_of(&body);
        assert!(again.is_ok_and(|again| again == data), "other bytes come back");
    }
}

/// A valid file.
pub(crate) fn json_file_seed() -> Vec<u8> {
    FILE.bytes_of(&serde_json::json!({ "limits": [7], "paused_since_ns": null }))
        .unwrap_or_default()
}
