use super::*;

#[test]
fn signature_request_takes_its_first_known_kind_past_unknowns() {
    let mut request = SignatureRequest::default();
    request.prefer_weak("crc128,crc32c,rolling").unwrap();
    request.prefer_strong("tree-sha3,,tree-sha256,blake3-keyed").unwrap();
    assert_eq!(request.weak_names().as_deref(), Some("crc32c,rolling"));
    assert_eq!(request.strong_names().as_deref(), Some("tree-sha256,blake3-keyed"));
    let params = request.params(1 << 30, 7);
    assert_eq!(
        (params.weak, params.strong),
        (WeakKind::Crc32c, StrongKind::Tree(LeafKind::Sha256))
    );
    assert_eq!(params.seed, 7);
    let mut request = SignatureRequest::default();
    assert_eq!(request.prefer_weak("crc128"), Err(NoCommonKind { which: "weak" }));
    assert_eq!(request.prefer_strong(""), Err(NoCommonKind { which: "strong" }));
    // Kinds that only files of librsync have are not names.
    assert!(StrongKind::from_name("md4").is_none() && StrongKind::Md4.name().is_none());
    assert_eq!(request.weak_names(), None);
    assert_eq!(
        request.params(1 << 30, 7),
        SignatureParams::for_content(1 << 30, 7),
        "by default all is as before"
    );
}

#[test]
fn blocks_of_tree_kinds_are_made_of_whole_leaves() {
    let tree = |block_len_bytes| SignatureRequest {
        block_len_bytes,
        strong: vec![StrongKind::Tree(LeafKind::Blake3)],
        ..SignatureRequest::default()
    };
    for (len, block, expected) in [
        (0, None, 4096),
        (1 << 20, None, 4096),
        (10_000_000, None, 4096),
        (100_000_000, None, 12_288),
        (1 << 40, None, 1 << 20),
        (1 << 20, Some(1), 4096),
        (1 << 20, Some(4097), 8192),
        (1 << 20, Some(u32::MAX), BLOCK_LEN_MAX),
    ] {
        assert_eq!(tree(block).params(len, 0).block_len_bytes, expected, "{len} {block:?}");
    }
}

#[test]
fn lengths_of_strong_checksums_are_possible_ones() {
    let of = |strong, strong_len_bytes| {
        let request = SignatureRequest {
            strong: vec![strong],
            strong_len_bytes,
            ..SignatureRequest::default()
        };
        request.params(1 << 30, 0).strong_len_bytes
    };
    let tree = StrongKind::Tree(LeafKind::Sha256);
    assert_eq!(
        of(tree, None),
        SignatureParams::for_content(1 << 30, 0).strong_len_bytes
    );
    assert_eq!(of(StrongKind::Sha256, None), 20, "without a key");
    assert_eq!(
        (of(tree, Some(0)), of(tree, Some(32)), of(tree, Some(200))),
        (6, 32, 32)
    );
}

#[test]
fn names_are_of_one_kind_each() {
    for (kind, name) in WEAK_NAMES {
        assert_eq!((kind.name(), WeakKind::from_name(name)), (Some(name), Some(kind)));
    }
    for (kind, name) in STRONG_NAMES {
        assert_eq!((kind.name(), StrongKind::from_name(name)), (Some(name), Some(kind)));
    }
    for code in 0..=255 {
        assert_eq!(
            WeakKind::from_code(code).is_some(),
            WeakKind::from_code(code).and_then(WeakKind::name).is_some()
        );
        assert_eq!(
            StrongKind::from_code(code).is_some(),
            StrongKind::from_code(code).and_then(StrongKind::name).is_some()
        );
    }
}
