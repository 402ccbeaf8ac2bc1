use super::*;
use crate::leaves::LeafKind;
use crate::model::noise;

fn stream(content: &[u8], params: SignatureParams, piece_len: usize) -> Vec<u8> {
    let mut writer = SignatureWriter::new(Vec::new(), params, content.len() as u64).unwrap();
    for piece in content.chunks(piece_len) {
        writer.push(piece).unwrap();
    }
    writer.finish().unwrap()
}

fn small(block_len_bytes: u32) -> SignatureParams {
    SignatureParams {
        block_len_bytes,
        strong_len_bytes: 8,
        ..SignatureParams::for_content(0, 0x0123_4567_89ab_cdef)
    }
}

#[test]
fn signature_reads_back_and_is_that_of_the_content() {
    for len in [0, 1, 99, 100, 101, 1024 * 100, 1024 * 100 + 1, 250_000] {
        let content = noise(len as u64, len);
        let params = small(100);
        let bytes = stream(&content, params, 33);
        assert_eq!(bytes.len() as u64, params.stream_len_bytes(len as u64));
        assert_eq!(bytes, stream(&content, params, 1 << 20), "pieces change nothing");
        let read = Signature::read(&bytes[..], u64::MAX).unwrap();
        let made = Signature::of(&content, params);
        assert_eq!(read.content_len_bytes(), len as u64);
        assert_eq!(read.params(), &params);
        assert_eq!((read.weak, read.strong), (made.weak, made.strong));
    }
}

#[test]
fn holes_have_the_checksums_of_zeros() {
    let mut content = noise(1, 450);
    content.resize(12_345, 0);
    content.extend(noise(2, 333));
    let mut writer = SignatureWriter::new(Vec::new(), small(100), content.len() as u64).unwrap();
    writer.push(&content[..450]).unwrap();
    writer.push_zeros(12_345 - 450).unwrap();
    writer.push(&content[12_345..]).unwrap();
    assert_eq!(writer.finish().unwrap(), stream(&content, small(100), 77));
}

#[test]
fn golden_bytes_of_version_1() {
    let bytes = stream(b"The quick brown fox.", small(16), 100);
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let expected = "89 42 42 53 49 47 0d 0a 01 00 01 01 08 00 00 00 10 00 00 00 14 00 00 00 00 00 00 00 \
                    ef cd ab 89 67 45 23 01 5a 64 85 47 c6 05 41 31 e0 3c 30 a1 68 62 80 90 7b 01 03 04 \
                    a2 47 c0 22 3e 01 c1 cd d7 b2 fd c0";
    assert_eq!(hex.join(" "), expected);
}

#[test]
fn blocks_are_as_long_as_rsync_chooses_them() {
    let block = |len| SignatureParams::for_content(len, 0).block_len_bytes;
    assert_eq!(block(0), 700);
    assert_eq!(block(490_000), 700);
    assert_eq!(block(1 << 20), 1024);
    assert_eq!(block(10_000_000), 3160);
    assert_eq!(block(64 << 20), 8192);
    assert_eq!(block(100 << 30), 128 * 1024);
    // Beyond 128 GiB, the number of blocks is bounded instead.
    assert_eq!(block(1 << 40), 1 << 20);
    for len in [0, 1, 1 << 20, 1 << 37, (1 << 37) + 1, 1 << 40, 1 << 44] {
        let params = SignatureParams::for_content(len, 0);
        assert!(params.blocks(len) <= BLOCKS_MAX, "{len}");
        assert!(check_lengths(&params, len).is_ok());
    }
    assert!(check_lengths(&SignatureParams::for_content(FILE_LEN_MAX, 0), FILE_LEN_MAX).is_ok());
}

#[test]
fn every_flipped_bit_is_noticed() {
    let bytes = stream(&noise(1, 3000), small(100), 1000);
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            assert!(Signature::read(&damaged[..], 1000).is_err(), "byte {at} bit {bit}");
        }
    }
}

#[test]
fn stream_truncation_is_noticed_and_nothing_read_beyond_the_end() {
    let bytes = stream(&noise(1, 150_000), small(100), 1000);
    for len in (0..bytes.len()).step_by(13) {
        let error = Signature::read(&bytes[..len], 10_000).unwrap_err();
        assert!(matches!(error, SignatureError::Truncated { .. }), "{len}: {error}");
    }
    let mut longer = bytes.clone();
    longer.extend_from_slice(b"rest");
    let mut rest = &longer[..];
    Signature::read(&mut rest, 10_000).unwrap();
    assert_eq!(rest, b"rest");
}

#[test]
fn exchanged_groups_are_noticed() {
    let content = noise(1, 300_000);
    let bytes = stream(&content, small(100), 1000);
    let group = 1024 * 12 + 4;
    let mut exchanged = bytes.clone();
    exchanged[wire::HEADER_LEN..][..group].copy_from_slice(&bytes[wire::HEADER_LEN + group..][..group]);
    exchanged[wire::HEADER_LEN + group..][..group].copy_from_slice(&bytes[wire::HEADER_LEN..][..group]);
    assert!(matches!(
        Signature::read(&exchanged[..], 10_000),
        Err(SignatureError::Checksum { block: 0 })
    ));
    // A group of another signature, at the same place.
    let other = stream(&content, SignatureParams { seed: 1, ..small(100) }, 1000);
    let mut mixed = bytes;
    mixed[wire::HEADER_LEN..][..group].copy_from_slice(&other[wire::HEADER_LEN..][..group]);
    assert!(Signature::read(&mixed[..], 10_000).is_err());
}

#[test]
fn hostile_headers_reserve_nothing_and_are_refused() {
    let with = |change: &dyn Fn(&mut [u8])| {
        let mut bytes = wire::header(&small(100), 1000).0;
        change(&mut bytes);
        let crc = crc32c::crc32c(&bytes[..36]);
        bytes[36..].copy_from_slice(&crc.to_le_bytes());
        Signature::read(&bytes[..], 1 << 20).unwrap_err()
    };
    // A petabyte in blocks of a byte.
    let huge = with(&|bytes| {
        bytes[16..20].copy_from_slice(&1_u32.to_le_bytes());
        bytes[20..28].copy_from_slice(&(1_u64 << 50).to_le_bytes());
    });
    assert!(matches!(huge, SignatureError::TooManyBlocks { .. }));
    // As many announced blocks as allowed, none of which comes.
    let short = with(&|bytes| bytes[20..28].copy_from_slice(&100_000_000_u64.to_le_bytes()));
    assert!(matches!(short, SignatureError::Truncated { blocks: 0 }));
    for (at, value) in [(16, 0_u32), (16, u32::MAX), (24, u32::MAX)] {
        let error = with(&|bytes| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes()));
        assert!(matches!(error, SignatureError::Impossible(_)), "{at}: {error}");
    }
    for value in [0, 5, 33, 255] {
        assert!(matches!(
            with(&|bytes| bytes[12] = value),
            SignatureError::Impossible(_)
        ));
    }
    assert!(matches!(with(&|bytes| bytes[13] = 1), SignatureError::Impossible(_)));
    assert!(matches!(with(&|bytes| bytes[8] = 2), SignatureError::Version(2)));
    assert!(matches!(with(&|bytes| bytes[0] = 0), SignatureError::NotASignature));
    assert!(matches!(
        with(&|bytes| bytes[10] = 9),
        SignatureError::Kind { which: "weak", code: 9 }
    ));
    assert!(matches!(
        with(&|bytes| bytes[11] = 0),
        SignatureError::Kind {
            which: "strong",
            code: 0
        }
    ));
}

#[test]
fn a_writer_wants_just_the_announced_bytes() {
    let mut writer = SignatureWriter::new(Vec::new(), small(100), 10).unwrap();
    writer.push(&[1; 9]).unwrap();
    assert!(writer.finish().is_err());
    let mut writer = SignatureWriter::new(Vec::new(), small(100), 10).unwrap();
    assert!(writer.push(&[1; 11]).is_err());
    assert!(
        SignatureWriter::new(
            Vec::new(),
            SignatureParams {
                block_len_bytes: 0,
                ..small(1)
            },
            10
        )
        .is_err()
    );
}

fn from_storage(weak: WeakKind, strong: StrongKind) -> SignatureParams {
    SignatureParams {
        weak,
        strong,
        strong_len_bytes: 20,
        ..small(16)
    }
}

#[test]
fn golden_bytes_of_the_checksums_that_storage_keeps() {
    // Computed with Python's hashlib and zlib, CRC-32C bit by bit; without header and the group's
    // CRC.
    let check = |weak, strong, expected: &str| {
        let bytes = stream(b"The quick brown fox.", from_storage(weak, strong), 100);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex[20..24], format!("{:02x}{:02x}", weak.code(), strong.code()));
        assert_eq!(hex[80..176], *expected, "{weak:?} {strong:?}");
    };
    check(
        WeakKind::Crc32c,
        StrongKind::Sha256,
        "1e99f93b1b0b70a113cd4065b095bae73fba840f3b93912e\
         7e15a9342812b8411ec3d22952843de55a4e42f52ef205a8",
    );
    check(
        WeakKind::Crc32cPadded,
        StrongKind::Sha256Padded,
        "1e99f93b1b0b70a113cd4065b095bae73fba840f3b93912e\
         afbdc279717db8c53ce7f0e9f4a10c2f7a8700ff7270e9c9",
    );
    check(
        WeakKind::Crc32,
        StrongKind::Blake2b256,
        "7c2a1bc82cdcb86a8b3265e23acc44cc852684b54e7fae97\
         ef05b247bfdfed1f661662302a7797078833649ebe031570",
    );
    check(
        WeakKind::Crc32Padded,
        StrongKind::Blake2b256Padded,
        "7c2a1bc82cdcb86a8b3265e23acc44cc852684b54e7fae97\
         7ec37300b439403086338fda1ee577c2a666ac9beffeae3d",
    );
}

#[test]
fn checksums_that_storage_has_make_the_same_stream_as_the_bytes() {
    let content = noise(4, 50_000);
    let params = SignatureParams {
        strong_len_bytes: 32,
        ..from_storage(WeakKind::Crc32cPadded, StrongKind::Sha256Padded)
    };
    let mut writer = SignatureWriter::new(Vec::new(), params, content.len() as u64).unwrap();
    let made = Signature::of(&content, params);
    // Some blocks are unknown to the storage.
    for (block, bytes) in content.chunks(16).enumerate() {
        match block % 3 {
            0 => writer.push(bytes).unwrap(),
            _ => writer
                .push_sums(made.weak()[block], made.strong(block).unwrap())
                .unwrap(),
        }
    }
    assert!(writer.push_sums(0, &[0; 32]).is_err(), "one too many");
    assert_eq!(writer.finish().unwrap(), stream(&content, params, 100));
    let mut writer = SignatureWriter::new(Vec::new(), params, 100).unwrap();
    assert!(writer.push_sums(0, &[0; 31]).is_err(), "too short");
    writer.push(&[1]).unwrap();
    assert!(writer.push_sums(0, &[0; 32]).is_err(), "inside a block");
}

#[test]
fn golden_bytes_of_a_tree_kind() {
    let params = SignatureParams {
        block_len_bytes: 4096,
        weak: WeakKind::Crc32c,
        strong: StrongKind::Tree(LeafKind::Sha256),
        ..small(0)
    };
    let bytes = stream(&[b'x'; 4097], params, 1000);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex[20..26], *"020608");
    assert_eq!(hex[80..], *"1fb26aa406904fef28ee94a3935f3ca96b41d2425a95f68bcc08c06a");
    // By the definition: the key, and the leaves (here one per block).
    let key = blake3::derive_key(
        "byteback 2026-11 strong checksums of a signature's blocks from their leaves",
        &params.seed.to_le_bytes(),
    );
    let leaf = LeafKind::Sha256.leaf(&[b'x'; 4096]);
    assert_eq!(bytes[44..52], blake3::keyed_hash(&key, &leaf).as_bytes()[..8]);
    assert_eq!(LeafKind::Sha256.leaf(b"x")[..4], [0x2d, 0x71, 0x16, 0x42]);
}
