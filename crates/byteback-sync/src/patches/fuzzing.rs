//! Entry points of the fuzz targets (`fuzz/`).

use super::head::{Head, PatchInfo};

/// A head that parses encodes to the same bytes again.
pub(crate) fn head(data: &[u8]) {
    if let Some(head) = Head::from_bytes(data) {
        assert_eq!(head.to_bytes(), data, "another head comes back");
    }
}

/// A head of one patch.
pub(crate) fn head_seed() -> Vec<u8> {
    let patch = PatchInfo {
        node: 3,
        base_len_bytes: 4,
        new_len_bytes: 5,
        stream_at: 6,
        stream_end: 7,
        stream_crc: 8,
        sums_from: 9,
        sums_to: 10,
        sums_crc: 11,
        uncut_crc: 12,
        cut_crc: 13,
    };
    let head = Head {
        label: 1,
        patches: vec![patch],
    };
    head.to_bytes()
}
