use super::*;

const KINDS: [StrongKind; 9] = [
    StrongKind::Blake3,
    StrongKind::Sha256,
    StrongKind::Sha256Padded,
    StrongKind::Blake2b256,
    StrongKind::Blake2b256Padded,
    StrongKind::Tree(LeafKind::Sha256),
    StrongKind::Tree(LeafKind::Blake2b256),
    StrongKind::Tree(LeafKind::Blake3),
    StrongKind::Md4,
];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn known_values() {
    let of = |kind| hex(&StrongHasher::new(kind, 0).of(b"abc"));
    // FIPS 180-4 and RFC 7693 (for 256 bits).
    let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let blake2b = "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319";
    assert_eq!(of(StrongKind::Sha256), sha256);
    assert_eq!(of(StrongKind::Blake2b256), blake2b);
    // Padded kinds differ for shorter blocks only.
    assert_eq!(
        hex(&StrongHasher::for_blocks(StrongKind::Sha256Padded, 0, 3).of(b"abc")),
        sha256
    );
    assert_eq!(
        hex(&StrongHasher::for_blocks(StrongKind::Sha256, 0, 99).of(b"abc")),
        sha256
    );
}

#[test]
fn zeros_follow_a_shorter_block_of_padded_kinds() {
    for block_len in [4, 100, 4096, 4097, 10_000] {
        for len in [0, 1, 3, block_len - 1, block_len] {
            let block = crate::model::noise(len as u64, len);
            let mut padded = block.clone();
            padded.resize(block_len, 0);
            for kind in KINDS {
                let hasher = StrongHasher::for_blocks(kind, 5, block_len);
                let summed = match kind.last_block() {
                    LastBlock::ZeroPadded => &padded,
                    LastBlock::AsItIs => &block,
                };
                assert_eq!(
                    hasher.of(&block),
                    StrongHasher::new(kind, 5).of(summed),
                    "{kind:?} {len} of {block_len}"
                );
            }
        }
    }
}

#[test]
fn codes_are_those_of_the_format() {
    for kind in KINDS {
        match kind {
            StrongKind::Md4 => assert_eq!(StrongKind::from_code(kind.code()), None),
            _ => assert_eq!(StrongKind::from_code(kind.code()), Some(kind)),
        }
    }
    assert_eq!(KINDS.map(StrongKind::code), [1, 2, 3, 4, 5, 6, 7, 8, 0xf0]);
    assert!(StrongKind::Sha256.is_proof(20) && !StrongKind::Sha256.is_proof(19) && !StrongKind::Md4.is_proof(16));
}
