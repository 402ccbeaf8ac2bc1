//! What is made of leaves that come, and refused.

use byteback_delta::signature::SignatureRequest;
use byteback_delta::strong::StrongKind;
use byteback_delta::weak::WeakKind;

use super::*;

const TOLD: LeavesTold = LeavesTold {
    source: LeafSource::Kept,
    read_bytes: 0,
};

fn making(len: u64, with_crcs: bool) -> Making {
    let request = SignatureRequest {
        weak: vec![WeakKind::Crc32c],
        strong: vec![StrongKind::Tree(LeafKind::Blake3)],
        ..SignatureRequest::default()
    };
    let kind = ToldKind::Blake3;
    Making::begin(&request.params(len, 7), len, LeafRequest { kind, with_crcs }, true)
        .ok()
        .unwrap()
}

fn entries(content: &[u8]) -> Vec<u8> {
    let mut entries = Vec::new();
    for leaf in content.chunks(4096) {
        entries.extend((CrcKind::Crc32c.of(leaf) as u32).to_le_bytes());
        entries.extend(LeafKind::Blake3.leaf(leaf));
    }
    entries
}

fn sums(offset: u64, entries: &[u8]) -> LeafPiece<'_> {
    LeafPiece::Sums { offset, entries }
}

fn zeros(start: u64, end: u64) -> LeafPiece<'static> {
    LeafPiece::Zeros(ByteRange::new(start, end).unwrap())
}

#[test]
fn the_digest_is_that_of_the_content_however_it_is_told() {
    let mut content = vec![9; 500_001];
    content[8192..409_600].fill(0);
    let mut digest = LeafDigest::new(LeafKind::Blake3, content.len() as u64);
    digest.push(&content);
    let expected = Digest(digest.finish().unwrap());
    let mut whole = making(500_001, true);
    assert!(whole.add(0, sums(0, &entries(&content))).is_ok());
    let whole = whole.end(TOLD).ok().unwrap();
    assert_eq!((whole.digest, whole.holes.len()), (expected, 0));
    let mut parts = making(500_001, true);
    for piece in [
        (sums(0, &entries(&content[..8192]))),
        zeros(8192, 12_288),
        zeros(12_288, 409_600),
        sums(409_600, &entries(&content[409_600..])),
    ] {
        let start = parts.position;
        assert!(parts.add(start, piece).is_ok());
    }
    let parts = parts.end(TOLD).ok().unwrap();
    assert_eq!(parts.digest, expected);
    assert_eq!(parts.holes, [ByteRange::new(8192, 409_600).unwrap()]);
    // What is known of the leaves is the same, too.
    let (mut one, mut other) = (whole.crcs.unwrap(), parts.crcs.unwrap());
    use byteback_delta::crc::BlockCrcs;
    for leaf in 0..=500_001 / 4096 {
        assert!(one.crc(leaf).is_some());
        assert_eq!(one.crc(leaf), other.crc(leaf));
    }
}

#[test]
fn leaves_with_gaps_beyond_the_end_or_too_few_are_refused() {
    let entry = entries(&[1; 4096]);
    assert!(making(10_000, true).add(4096, sums(4096, &entry)).is_err());
    assert!(making(4096, true).add(0, sums(0, &entry.repeat(2))).is_err());
    assert!(making(10_000, true).add(0, zeros(0, 10_001)).is_err());
    assert!(making(10_000, true).add(0, zeros(0, 5000)).is_err());
    let mut short = making(10_000, true);
    assert!(short.add(0, sums(0, &entry)).is_ok());
    assert!(short.end(TOLD).is_err());
    let mut whole = making(10_000, false);
    assert!(whole.add(0, zeros(0, 8192)).is_ok());
    assert!(whole.add(8192, sums(8192, &[3; 32])).is_ok());
    assert!(whole.end(TOLD).is_ok());
}
