//! Random edits with partly known, stale and wrong checksums, checked by applying the delta to the
//! base; and the bytes read.

use proptest::prelude::*;

use super::*;
use crate::crc::{BlockCrcs, CrcList, LastBlock};
use crate::find::FoundExtents;
use crate::find::aligned::{CrcSums, SumKind, SumLayout, SumList};
use crate::find::edits::{Edit, base, compose, edit, edited, through_a_delta};
use crate::model::noise;
use crate::signature::SignatureParams;
use crate::strong::{StrongHasher, StrongKind};
use crate::weak::WeakKind;

const B: u32 = 64;

fn params(block_len: u32) -> SignatureParams {
    SignatureParams {
        block_len_bytes: block_len,
        weak: WeakKind::Crc32cPadded,
        strong: StrongKind::Sha256Padded,
        strong_len_bytes: 32,
        seed: 42,
    }
}

type KnownSums = Known<CrcSums<CrcList>, SumList>;

fn nothing() -> KnownSums {
    Known {
        crcs: None,
        strong: None,
    }
}

/// CRC-32C as btrfs keeps it, of the blocks that `is_known` names.
fn crcs(content: &[u8], block_len: u32, is_known: impl Fn(u64) -> bool) -> CrcSums<CrcList> {
    let mut all = CrcList::of(content, CrcKind::Crc32c, block_len, LastBlock::ZeroPadded);
    let mut list = CrcList::new(all.layout());
    for block in 0..all.layout().blocks() {
        list.push(all.crc(block).filter(|_| is_known(block)));
    }
    CrcSums(list)
}

/// SHA-256 as btrfs keeps it.
fn strong(content: &[u8], block_len: u32, is_known: impl Fn(u64) -> bool) -> SumList {
    let hasher = StrongHasher::for_blocks(StrongKind::Sha256Padded, 0, block_len as usize);
    let mut list = SumList::new(SumLayout {
        kind: SumKind::Sha256,
        sum_len_bytes: 32,
        block_len_bytes: block_len,
        content_len_bytes: content.len() as u64,
        last: LastBlock::ZeroPadded,
    });
    for (block, bytes) in (0..).zip(content.chunks(block_len as usize)) {
        let sum = hasher.of(bytes);
        list.push(is_known(block).then_some(&sum));
    }
    list
}

fn all_known(content: &[u8], block_len: u32) -> KnownSums {
    Known {
        crcs: Some(crcs(content, block_len, |_| true)),
        strong: Some(strong(content, block_len, |_| true)),
    }
}

/// Runs the finder, and checks that the extents make the new content, in memory and through the
/// stream.
fn check(base: &[u8], params: SignatureParams, new: &[u8], known: impl Fn() -> KnownSums) -> FindStats {
    let signature = Signature::of(base, params);
    let len = new.len() as u64;
    let (found, stats) = find_sky(&signature, known(), new, len, FoundExtents::default()).unwrap();
    assert!(
        compose(base, &found.extents) == new,
        "what was found is not the content"
    );
    assert_eq!(stats.literal_bytes + stats.copied_bytes + stats.zero_bytes, len);
    assert_eq!(stats.read_bytes + stats.unread_bytes, len);
    through_a_delta(base, new, |sink| {
        find_sky(&signature, known(), new, len, sink).unwrap();
    });
    stats
}

#[test]
fn sky_finder_does_not_read_proven_ranges() {
    let base = noise(1, 10_000);
    let stats = check(&base, params(B), &base, || all_known(&base, B));
    assert_eq!((stats.read_bytes, stats.strong_bytes, stats.literal_bytes), (0, 0, 0));
    // One changed block is read, and no other.
    let mut new = base.clone();
    new[5000] ^= 1;
    let stats = check(&base, params(B), &new, || all_known(&new, B));
    assert_eq!(
        (stats.read_bytes, stats.literal_bytes, stats.unread_bytes),
        (64, 64, 9936)
    );
    // The last block, too, although it is shorter.
    let mut new = base.clone();
    new[9999] ^= 1;
    let stats = check(&base, params(B), &new, || all_known(&new, B));
    assert_eq!((stats.read_bytes, stats.literal_bytes), (10_000 % 64, 10_000 % 64));
    // Appended to: the base's last block is found although it is no longer the last.
    let mut new = base.clone();
    new.extend(noise(2, 100));
    let stats = check(&base, params(B), &new, || all_known(&new, B));
    assert_eq!((stats.read_bytes, stats.literal_bytes), (10_000 % 64 + 100, 100));
    // Truncated.
    let stats = check(&base, params(B), &base[..6400], || all_known(&base[..6400], B));
    assert_eq!(stats.read_bytes, 0);
}

#[test]
fn blocks_that_moved_by_whole_blocks_are_not_read_either() {
    let base = noise(1, 6400);
    let mut new = noise(2, 128);
    new.extend_from_slice(&base[640..]);
    new.extend_from_slice(&base[..640]);
    let stats = check(&base, params(B), &new, || all_known(&new, B));
    assert_eq!(
        (stats.read_bytes, stats.strong_bytes, stats.literal_bytes),
        (128, 0, 128)
    );
    // But they are if the signature's checksums are cut too short to be a proof.
    let short = SignatureParams {
        strong_len_bytes: 19,
        ..params(B)
    };
    let stats = check(&base, short, &new, || all_known(&new, B));
    assert_eq!((stats.read_bytes, stats.literal_bytes), (6528, 128));
    let stats = check(&base, short, &base, || all_known(&base, B));
    assert_eq!((stats.read_bytes, stats.literal_bytes), (6400, 0));
}

#[test]
fn a_few_changed_blocks_between_others_are_not_rolled() {
    let base = noise(1, 6400);
    for (blocks, literal) in [(1, 64), (2, 128), (3, 192), (4, 256), (5, 64), (8, 64)] {
        // A byte fewer at the beginning, an extra one at the end: all between moved.
        let mut new = base.clone();
        new.remove(640);
        new.insert(640 + blocks * 64 - 1, 0);
        let stats = check(&base, params(B), &new, || all_known(&new, B));
        assert_eq!(
            (stats.read_bytes, stats.literal_bytes),
            (blocks as u64 * 64, literal),
            "{blocks}"
        );
    }
    // A block that equals another one of the base is found without rolling.
    let mut new = base.clone();
    new.copy_within(64..128, 640);
    let known = || Known {
        crcs: None,
        strong: Some(strong(&new, B, |_| true)),
    };
    let stats = check(&base, params(B), &new, known);
    assert_eq!((stats.read_bytes, stats.literal_bytes), (64, 0));
}

#[test]
fn crcs_alone_are_proven_by_reading() {
    let base = noise(1, 10_000);
    let mut new = base.clone();
    new[5000] ^= 1;
    for block_len in [64, 32, 128] {
        let stats = check(&base, params(B), &new, || Known {
            crcs: Some(crcs(&new, block_len, |_| true)),
            strong: None,
        });
        assert_eq!(stats.read_bytes, 10_000);
        assert_eq!(stats.literal_bytes, 64, "client's blocks of {block_len}");
    }
}

#[test]
fn an_insertion_costs_about_its_length() {
    let base = noise(1, 200_000);
    for block_len in [64_u32, 700, 4096] {
        for (at, len) in [(0, 1), (77, 256), (100_000, 300), (199_999, 5000)] {
            let mut new = base.clone();
            new.splice(at..at, noise(9, len));
            for known in [all_known(&new, block_len), nothing()] {
                let known = || Known {
                    crcs: known.crcs.clone(),
                    strong: known.strong.clone(),
                };
                let stats = check(&base, params(block_len), &new, known);
                let most = len as u64 + 2 * u64::from(block_len);
                assert!(stats.literal_bytes <= most, "{block_len} {at} {len}: {stats:?}");
                // Nothing before it is read if all is known.
                let unread = if known().strong.is_some() {
                    at as u64 / u64::from(block_len) * u64::from(block_len)
                } else {
                    0
                };
                assert!(stats.unread_bytes >= unread, "{stats:?}");
            }
        }
    }
}

#[test]
fn wrong_crcs_never_make_a_wrong_delta() {
    // Even if the CRCs of the client's or the server's storage are wrong, strong checksums decide.
    let base = noise(1, 20_000);
    let mut new = base.clone();
    new[3000..3100].fill(7);
    new.splice(9000..9000, noise(5, 333));
    // CRCs of the content before its change, passed off as those of the new one.
    let mut stale = base.clone();
    stale.resize(new.len(), 0);
    let stats = check(&base, params(B), &new, || Known {
        crcs: Some(crcs(&stale, B, |_| true)),
        strong: None,
    });
    assert_eq!(stats.read_bytes, new.len() as u64);
    // Stale CRCs beside fresh strong checksums.
    check(&base, params(B), &new, || Known {
        crcs: Some(crcs(&stale, B, |_| true)),
        strong: Some(strong(&new, B, |block| block % 3 > 0)),
    });
    // A signature whose CRCs are those of other blocks.
    let made = Signature::of(&base, params(B));
    let mut writer = crate::signature::SignatureWriter::new(Vec::new(), params(B), base.len() as u64).unwrap();
    for block in 0..made.blocks() {
        let weak = made.weak()[(block + 1) % made.blocks()];
        writer.push_sums(weak, made.strong(block).unwrap()).unwrap();
    }
    let wrong = Signature::read(&writer.finish().unwrap()[..], 1000).unwrap();
    for known in [all_known(&new, B), nothing()] {
        let (found, _) = find_sky(&wrong, known, new.as_slice(), new.len() as u64, FoundExtents::default()).unwrap();
        assert!(compose(&base, &found.extents) == new);
    }
}

#[test]
fn checksums_of_another_kind_or_length_are_left_aside() {
    let base = noise(1, 5000);
    let mut other_kind = strong(&base, B, |_| true).layout();
    other_kind.kind = SumKind::Blake2b256;
    let stats = check(&base, params(B), &base, || Known {
        crcs: Some(crcs(&base, 48, |_| true)),
        strong: Some(SumList::new(other_kind)),
    });
    assert_eq!((stats.read_bytes, stats.literal_bytes), (5000, 0));
    // Checksums of a content of another length, which cannot be this one.
    let stats = check(&base, params(B), &base[..4000], || all_known(&base, B));
    assert_eq!(stats.read_bytes, 4000);
    let rsync = SignatureParams {
        weak: WeakKind::Rsync,
        ..params(B)
    };
    let signature = Signature::of(&base, rsync);
    let refused = find_sky(&signature, nothing(), base.as_slice(), 5000, FoundExtents::default());
    assert!(matches!(refused, Err(SkyError::WeakKind)));
}

#[test]
fn a_content_that_ends_early_is_an_error() {
    let base = noise(1, 5000);
    let signature = Signature::of(&noise(2, 5000), params(B));
    let refused = find_sky(&signature, nothing(), &base[..4000], 5000, FoundExtents::default());
    assert!(matches!(refused, Err(SkyError::Read { .. })));
}

#[test]
fn crafted_windows_cost_little_more_than_the_content() {
    // Every window of zeros has the CRC of a block whose strong checksum differs.
    let zeros = vec![0; 64];
    let weak = WeakKind::Crc32cPadded.of(&zeros);
    let blocks = 1000;
    let mut writer = crate::signature::SignatureWriter::new(Vec::new(), params(B), blocks * u64::from(B)).unwrap();
    for block in 0..blocks {
        writer.push_sums(weak, &[block as u8; 32]).unwrap();
    }
    let signature = Signature::read(&writer.finish().unwrap()[..], blocks).unwrap();
    let new = vec![0; 1 << 20];
    let (_, stats) = find_sky(&signature, nothing(), new.as_slice(), 1 << 20, FoundExtents::default()).unwrap();
    assert_eq!(stats.literal_bytes, 1 << 20);
    assert!(stats.strong_bytes <= (1 << 20) + (64 << 10), "{stats:?}");
}

/// A file with holes.
struct Sparse<'a>(&'a [u8], Vec<ByteRange>);

impl Base for Sparse<'_> {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_range(offset, buffer)
    }

    fn next_data(&self, range: ByteRange) -> io::Result<Option<ByteRange>> {
        Ok(self.1.iter().find_map(|data| data.intersect(range)))
    }
}

#[test]
fn long_holes_stay_holes_and_are_not_read() {
    let mut new = noise(1, 300_000);
    new.extend(vec![0; 1_000_000]);
    new.extend(noise(2, 100_000));
    let data = vec![
        ByteRange::new(0, 300_000).unwrap(),
        ByteRange::new(1_300_000, 1_400_000).unwrap(),
    ];
    let base = noise(1, 250_000);
    let signature = Signature::of(&base, params(1000));
    let sparse = Sparse(&new, data);
    let (found, stats) = find_sky(&signature, nothing(), &sparse, 1_400_000, FoundExtents::default()).unwrap();
    assert!(compose(&base, &found.extents) == new);
    assert_eq!((stats.zero_bytes, stats.read_bytes), (1_000_000, 400_000));
    assert_eq!(stats.copied_bytes, 250_000);
}

#[test]
fn rolled_crcs_are_those_of_their_windows() {
    let content = noise(7, 20_000);
    for (kind, weak) in [(CrcKind::Crc32c, WeakKind::Crc32c), (CrcKind::Crc32, WeakKind::Crc32)] {
        for block_len in [1_u32, 63, 700, 4096] {
            let signature = Signature::of(
                &content,
                SignatureParams {
                    weak,
                    ..params(block_len)
                },
            );
            let search = BlockSearch::new(&signature, kind);
            let len = block_len as usize;
            let at = |from: usize| kind.of(&content[from..from + len]) as u32;
            for (from, upto) in [(0, 5), (3, 3 + 4096), (17, 15_000), (0, content.len() - len)] {
                let mut rolled = roll::Rolled { from, crc: at(from) };
                let mut hits = Vec::new();
                while rolled.from < upto {
                    let before = rolled.from;
                    search.roll(&content, &mut rolled, upto, &mut hits);
                    assert!(rolled.from > before && rolled.from <= upto);
                    assert_eq!(rolled.crc, at(rolled.from), "{kind:?} {block_len} at {}", rolled.from);
                }
                let expected: Vec<_> = (from + 1..=upto)
                    .map(|from| (from, at(from)))
                    .filter(|(_, crc)| signature.weak()[..search.whole_blocks()].contains(crc))
                    .collect();
                assert_eq!(hits, expected);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn base_and_what_is_found_make_the_new_content(
        base in base(),
        edits in prop::collection::vec(edit(), 0..8),
        block_len in prop_oneof![Just(1_u32), Just(7), Just(64), Just(700), Just(4096)],
        known_crcs in prop_oneof![Just(0_u64), Just(u64::MAX), any::<u64>()],
        known_strong in prop_oneof![Just(0_u64), Just(u64::MAX), any::<u64>()],
        client_blocks in prop::sample::select(vec![1_u32, 2, 3]),
        stale in any::<bool>(),
        strong_len in prop_oneof![Just(32_u8), Just(20), Just(8)],
    ) {
        let new = edited(&base, &edits);
        let params = SignatureParams { strong_len_bytes: strong_len, ..params(block_len) };
        let mut of_crcs = new.clone();
        if stale {
            // CRCs of the file's previous content, resized to the current length.
            of_crcs.clone_from(&base);
            of_crcs.resize(new.len(), 0);
        }
        let is = |known: u64| move |block: u64| known & (1 << (block % 64)) != 0;
        let known = || Known {
            crcs: Some(crcs(&of_crcs, block_len * client_blocks, is(known_crcs))),
            strong: Some(strong(&new, block_len, is(known_strong))),
        };
        check(&base, params, &new, known);
    }
}

#[test]
fn edits_of_one_kind_each() {
    let base = noise(3, 50_000);
    for edit in [
        Edit::Delete(10_000, 777),
        Edit::Move(1000, 3000, 40_000),
        Edit::Duplicate(5000, 2500, 20_001),
        Edit::Zeros(30_000, 500),
    ] {
        let new = edited(&base, std::slice::from_ref(&edit));
        let stats = check(&base, params(B), &new, || all_known(&new, B));
        assert!(stats.literal_bytes <= 700, "{edit:?}: {stats:?}");
    }
}
