//! Signatures of all kinds against the stock `rdiff`; the whole path from a signature to the new
//! content, each step by either program; hostile signatures.

use std::path::Path;
use std::process::Command;

use proptest::prelude::*;

use super::*;
use crate::find::edits::{base, compose, edit, edited, through_a_delta};
use crate::find::{BlockIndex, FixedFinder, FoundExtents, RollingFinder};
use crate::librsync::{IntoLibrsync, LibrsyncWriter, apply_librsync};
use crate::model::noise;

/// All kinds, as options of `rdiff`.
const ALL: [(&str, &str, WeakKind, StrongKind); 4] = [
    ("rollsum", "md4", WeakKind::LibrsyncRollsum, StrongKind::Md4),
    ("rollsum", "blake2", WeakKind::LibrsyncRollsum, StrongKind::Blake2b256),
    ("rabinkarp", "md4", WeakKind::LibrsyncRabinKarp, StrongKind::Md4),
    (
        "rabinkarp",
        "blake2",
        WeakKind::LibrsyncRabinKarp,
        StrongKind::Blake2b256,
    ),
];

fn params(block_len_bytes: u32, weak: WeakKind, strong: StrongKind, strong_len_bytes: u8) -> SignatureParams {
    SignatureParams {
        block_len_bytes,
        weak,
        strong,
        strong_len_bytes,
        seed: 0,
    }
}

fn ours(content: &[u8], params: SignatureParams, piece_len: usize) -> Vec<u8> {
    let mut writer = LibrsyncSignatureWriter::new(Vec::new(), params).unwrap();
    for piece in content.chunks(piece_len) {
        writer.push(piece).unwrap();
    }
    writer.finish().unwrap()
}

fn rdiff(dir: &Path, arguments: &[&str]) {
    let output = Command::new("rdiff")
        .current_dir(dir)
        .arg("-f")
        .args(arguments)
        .output()
        .expect("rdiff is needed: apt-get install rdiff");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "rdiff {arguments:?}: {said}");
}

#[test]
fn signatures_are_those_of_rdiff_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    for (index, len) in [0, 1, 255, 256, 257, 2047, 2048, 2049, 70_000, 300_001]
        .into_iter()
        .enumerate()
    {
        let content = noise(index as u64, len);
        std::fs::write(dir.path().join("base"), &content).unwrap();
        for (rollsum, hash, weak, strong) in ALL {
            for (block_len, strong_len) in [(256, 8), (700, 5), (2048, strong.len_bytes() as u8)] {
                let (block, sum) = (block_len.to_string(), strong_len.to_string());
                let options = ["-R", rollsum, "-H", hash, "-b", &block, "-S", &sum];
                rdiff(
                    dir.path(),
                    &[&options[..], &["signature", "base", "signature"]].concat(),
                );
                let theirs = std::fs::read(dir.path().join("signature")).unwrap();
                let params = params(block_len, weak, strong, strong_len);
                assert_eq!(
                    ours(&content, params, 999),
                    theirs,
                    "{rollsum} {hash} {block_len} of {len}"
                );
                let read = read_librsync_signature(&theirs[..], Some(len as u64), u64::MAX).unwrap();
                let made = Signature::of(&content, params);
                assert_eq!((read.params(), read.weak()), (&params, made.weak()));
                assert!((0..read.blocks()).all(|block| read.strong(block) == made.strong(block)));
            }
        }
        // And its own choice of parameters.
        rdiff(dir.path(), &["signature", "base", "signature"]);
        let theirs = std::fs::read(dir.path().join("signature")).unwrap();
        assert_eq!(
            ours(&content, librsync_params(len as u64), 4096),
            theirs,
            "chosen for {len}"
        );
    }
}

#[test]
fn holes_have_the_checksums_of_zeros() {
    let mut content = noise(1, 450);
    content.resize(12_345, 0);
    content.extend(noise(2, 333));
    let params = params(256, WeakKind::LibrsyncRabinKarp, StrongKind::Md4, 16);
    let mut writer = LibrsyncSignatureWriter::new(Vec::new(), params).unwrap();
    writer.push(&content[..450]).unwrap();
    writer.push_zeros(12_345 - 450).unwrap();
    writer.push(&content[12_345..]).unwrap();
    assert_eq!(writer.finish().unwrap(), ours(&content, params, 77));
}

/// A delta of librsync, made by our finder with a signature of unknown base length; checked as our
/// own delta, too.
fn our_delta(base: &[u8], signature: &[u8], base_len: Option<u64>, new: &[u8]) -> Vec<u8> {
    let index = BlockIndex::new(read_librsync_signature(signature, base_len, u64::MAX).unwrap());
    let base_len_most = index.signature().content_len_bytes();
    let mut writer = LibrsyncWriter::new(Vec::new(), base_len_most, new.len() as u64).unwrap();
    let mut finder = RollingFinder::new(&index, IntoLibrsync(&mut writer));
    for piece in new.chunks(70_001) {
        finder.push(piece).unwrap();
    }
    finder.finish().unwrap();
    let (delta, _) = writer.finish().unwrap();

    through_a_delta(base, new, |sink| {
        let mut finder = RollingFinder::new(&index, sink);
        finder.push(new).unwrap();
        finder.finish().unwrap();
    });
    let mut finder = FixedFinder::new(&index, FoundExtents::default());
    finder.push(new).unwrap();
    assert!(compose(base, &finder.finish().unwrap().0.extents) == new);
    delta
}

fn check(dir: &Path, base: &[u8], new: &[u8], block_len: u32, kind: usize, is_len_known: bool) {
    let (rollsum, hash, weak, strong) = ALL[kind];
    let path = |name: &str| dir.join(name);
    std::fs::write(path("base"), base).unwrap();
    std::fs::write(path("new"), new).unwrap();
    let block = block_len.to_string();
    let options = ["-R", rollsum, "-H", hash, "-b", &block, "-S", "12"];
    // Their signature, our delta, applied by both.
    rdiff(dir, &[&options[..], &["signature", "base", "theirs"]].concat());
    let theirs = std::fs::read(path("theirs")).unwrap();
    let delta = our_delta(base, &theirs, is_len_known.then_some(base.len() as u64), new);
    std::fs::write(path("delta"), &delta).unwrap();
    rdiff(dir, &["patch", "base", "delta", "made"]);
    assert!(std::fs::read(path("made")).unwrap() == new, "their patch of our delta");
    let mut made = Vec::new();
    apply_librsync(base, &delta[..], &mut made, new.len() as u64).unwrap();
    assert!(made == new, "our patch of our delta");
    // Our signature, their delta, applied by us.
    let signature = ours(base, params(block_len, weak, strong, 12), 1000);
    std::fs::write(path("ours"), signature).unwrap();
    rdiff(dir, &["delta", "ours", "new", "their-delta"]);
    let their_delta = std::fs::read(path("their-delta")).unwrap();
    let mut made = Vec::new();
    let stats = apply_librsync(base, &their_delta[..], &mut made, new.len() as u64).unwrap();
    assert!(made == new, "our patch of their delta");
    assert_eq!(stats.literal_bytes + stats.copied_bytes, new.len() as u64);
    // Our delta finds no less, except in contents of few values: where many weak checksums agree in
    // vain, ours bounds its hashing (seen with zeros and ones in short blocks), and where many
    // blocks are alike, it may take another of them (once in five thousand, a block less).
    let values: std::collections::BTreeSet<u8> = base.iter().copied().collect();
    assert!(
        values.len() < 16 || delta.len() <= their_delta.len() + 64 + their_delta.len() / 20,
        "{} against {}",
        delta.len(),
        their_delta.len()
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn every_step_is_done_by_either_program(
        base in base(),
        edits in prop::collection::vec(edit(), 0..8),
        block_len in prop_oneof![Just(16_u32), Just(64), Just(256), Just(700), Just(4096)],
        kind in 0..4_usize,
        is_len_known in any::<bool>(),
    ) {
        let new = edited(&base, &edits);
        let dir = tempfile::tempdir().unwrap();
        check(dir.path(), &base, &new, block_len, kind, is_len_known);
    }
}

#[test]
fn larger_contents_go_through_every_step_too() {
    let dir = tempfile::tempdir().unwrap();
    let base = noise(5, 3_000_017);
    let mut new = base.clone();
    new.splice(1_000_000..1_000_000, noise(6, 3333));
    new.drain(2_000_000..2_100_001);
    new[500_000..500_100].fill(7);
    for kind in 0..4 {
        check(dir.path(), &base, &new, 2048, kind, false);
    }
}

#[test]
fn the_last_block_of_unknown_length_is_found_at_the_end() {
    let base = noise(5, 10_000);
    let signature = ours(&base, librsync_params(4 << 20), 10_000);
    let literals = |new: &[u8], len: Option<u64>| {
        let index = BlockIndex::new(read_librsync_signature(&signature[..], len, 100).unwrap());
        let mut finder = RollingFinder::new(&index, FoundExtents::default());
        finder.push(new).unwrap();
        let (found, stats) = finder.finish().unwrap();
        assert!(compose(&base, &found.extents) == new);
        stats.literal_bytes
    };
    assert_eq!((literals(&base, None), literals(&base, Some(10_000))), (0, 0));
    let mut longer = noise(6, 77);
    longer.extend_from_slice(&base);
    assert_eq!(literals(&longer, None), 77);
    // Only the shorter last block, after other bytes.
    assert_eq!(literals(&[&noise(7, 9)[..], &base[8192..]].concat(), None), 9);
    // After more than a block of other bytes: the last whole window lies before it.
    assert_eq!(literals(&[&noise(7, 9000)[..], &base[8192..]].concat(), None), 9000);
}

#[test]
fn a_signature_of_one_weak_checksum_costs_little_at_the_end() {
    // Every shorter window has the weak checksum of the last block: all zero bytes weigh nothing in
    // rsync's sums, so use many.
    let base = vec![0; 4096 + 1000];
    let params = params(4096, WeakKind::LibrsyncRollsum, StrongKind::Md4, 16);
    let index = BlockIndex::new(read_librsync_signature(&ours(&base, params, 9999)[..], None, 10).unwrap());
    let new = vec![0; 3 * 4096 + 2000];
    let mut finder = RollingFinder::new(&index, FoundExtents::default());
    finder.push(&new).unwrap();
    let (found, stats) = finder.finish().unwrap();
    assert!(compose(&base, &found.extents) == new);
    assert_eq!(stats.literal_bytes, 1000, "zeros before the last thousand");
}

#[test]
fn hostile_signatures_are_refused() {
    let good = ours(&noise(1, 3000), librsync_params(0), 3000);
    let read = |bytes: &[u8], len: Option<u64>| read_librsync_signature(bytes, len, 12);
    assert_eq!(read(&good, None).unwrap().blocks(), 12);
    assert_eq!(read(&good, Some(3000)).unwrap().content_len_bytes(), 3000);
    assert_eq!(read(&good, None).unwrap().content_len_bytes(), 12 * 256);
    // Cut off: at a block border it is another signature, elsewhere the cut shows. With the length
    // known it always shows.
    for at in 0..good.len() {
        let cut = &good[..at];
        let is_border = at >= HEADER_LEN && (at - HEADER_LEN).is_multiple_of(36);
        assert_eq!(read(cut, None).is_ok(), is_border, "{at}");
        assert!(read(cut, Some(3000)).is_err(), "{at}");
    }
    assert!(matches!(read(&good[..11], None), Err(SignatureError::Truncated { .. })));
    for len in [2816, 3073] {
        assert!(matches!(
            read(&good, Some(len)),
            Err(SignatureError::Impossible(_) | SignatureError::TooManyBlocks { .. })
        ));
    }
    assert!(matches!(
        read_librsync_signature(&good[..], None, 11),
        Err(SignatureError::TooManyBlocks {
            blocks: 12,
            blocks_max: 11
        })
    ));
    // A known length that promises too many blocks is refused before any is read.
    assert!(matches!(
        read_librsync_signature(&good[..HEADER_LEN], Some(1 << 60), 11),
        Err(SignatureError::TooManyBlocks { .. })
    ));
    let with = |at: usize, bytes: [u8; 4]| {
        let mut changed = good.clone();
        changed[at..at + 4].copy_from_slice(&bytes);
        read_librsync_signature(&changed[..], None, u64::MAX)
    };
    for magic in [[0x72, 0x73, 2, 0x36], [0x72, 0x73, 1, 0x38], [0; 4], *b"\x89BBS"] {
        assert!(matches!(with(0, magic), Err(SignatureError::NotASignature)));
    }
    for block_len in [0, BLOCK_LEN_MAX + 1, u32::MAX] {
        assert!(matches!(
            with(4, block_len.to_be_bytes()),
            Err(SignatureError::Impossible(_))
        ));
    }
    for strong_len in [0_u32, 1, 4, 33, 256 + 16, u32::MAX] {
        assert!(matches!(
            with(8, strong_len.to_be_bytes()),
            Err(SignatureError::Impossible(_))
        ));
    }
    // Longer than MD4.
    let mut md4 = good.clone();
    md4[3] = 0x46;
    assert!(matches!(read(&md4, None), Err(SignatureError::Impossible(_))));
    // Another format's kinds are not written.
    let of_ours = SignatureParams::for_content(1000, 7);
    assert!(LibrsyncSignatureWriter::new(Vec::new(), of_ours).is_err());
    assert!(crate::signature::SignatureWriter::new(Vec::new(), librsync_params(1000), 1000).is_err());
}

#[test]
fn an_end_of_the_last_blocks_weak_checksum_is_not_taken_for_it() {
    // +1 -1 -1 +1 changes neither sum.
    let base = vec![100; 4096 + 1000];
    let mut new = base.clone();
    for (index, byte) in [101, 99, 99, 101].into_iter().enumerate() {
        new[4500 + index] = byte;
    }
    let params = params(4096, WeakKind::LibrsyncRollsum, StrongKind::Md4, 16);
    assert_eq!(params.weak.of(&base[4096..]), params.weak.of(&new[4096..]));
    let index = BlockIndex::new(read_librsync_signature(&ours(&base, params, 9999)[..], None, 10).unwrap());
    let mut finder = RollingFinder::new(&index, FoundExtents::default());
    finder.push(&new).unwrap();
    let (found, stats) = finder.finish().unwrap();
    assert!(compose(&base, &found.extents) == new);
    assert_eq!(stats.literal_bytes, 1000);
}
