use std::cell::Cell;

use proptest::prelude::*;

use super::*;
use crate::chunks::{list_chunks, with_slack};
use crate::crc::{BlockLayout, CrcKind, CrcList, LastBlock};
use crate::model::noise;

fn small() -> ChunkParams {
    ChunkParams::new(64, 256, 400).unwrap()
}

/// A content that counts the bytes read.
struct Counted<'a>(&'a [u8], Cell<u64>);

impl Base for Counted<'_> {
    fn len_bytes(&self) -> io::Result<u64> {
        Base::len_bytes(self.0)
    }

    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.1.set(self.1.get() + buffer.len() as u64);
        self.0.read_range(offset, buffer)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_list_is_the_one_that_summing_gives(
        seed in any::<u64>(),
        len in prop_oneof![0..3000_usize, 250_000..600_000_usize],
        block_len in prop_oneof![Just(16_u32), Just(100), Just(512), Just(4096), Just(65_536)],
        kind in prop_oneof![Just(CrcKind::Crc32c), Just(CrcKind::Crc32), Just(CrcKind::Crc64Nvme)],
        is_padded in any::<bool>(),
        unknown in 0..4_u64,
        large in any::<bool>(),
    ) {
        let content = noise(seed, len);
        let params = if large { ChunkParams::for_content(0) } else { small() };
        let last = if is_padded { LastBlock::ZeroPadded } else { LastBlock::AsItIs };
        let mut all = CrcList::of(&content, kind, block_len, last);
        let layout = BlockLayout { kind, block_len_bytes: block_len, content_len_bytes: len as u64, last };
        let mut some = CrcList::new(layout);
        for block in 0..layout.blocks() {
            // Every second, every third, ... block is unknown.
            let is_known = unknown == 0 || block % (unknown + 1) != 0;
            some.push(all.crc(block).filter(|_| is_known));
        }
        let (expected, _) = list_chunks(&content[..], None, params, kind).unwrap();
        let mut crcs = RangeCrcs::new(some);
        let (list, stats) = list_chunks_with_crcs(&content[..], None, params, &mut crcs).unwrap();
        prop_assert_eq!(list, expected);
        prop_assert_eq!(stats.examined_bytes, len as u64);
    }
}

#[test]
fn chunk_sums_cost_a_quarter_block_each_and_almost_no_rereading() {
    let content = noise(3, 20_000_000);
    let params = ChunkParams::for_content(0);
    let mut crcs = RangeCrcs::new(CrcList::of(&content, CrcKind::Crc32c, 4096, LastBlock::ZeroPadded));
    let counted = Counted(&content, Cell::new(0));
    let (list, stats) = list_chunks_with_crcs(&counted, None, params, &mut crcs).unwrap();
    assert_eq!(
        list,
        list_chunks(&content[..], None, params, CrcKind::Crc32c).unwrap().0
    );
    assert!(
        stats.summed_bytes < 1200 * list.len() as u64,
        "{stats:?}, {} chunks",
        list.len()
    );
    assert!(counted.1.get() < 20_400_000, "{} bytes were read", counted.1.get());
}

#[test]
fn holes_and_ranges_without_interest_are_passed() {
    let mut content = noise(1, 500_000);
    // Just long enough for a gap, and just too short.
    content.resize(565_536, 0);
    content.extend(noise(2, 100_000));
    content.extend([0; 65_535]);
    content.extend(noise(3, 400_000));
    /// A content with its holes.
    struct Sparse<'a>(&'a [u8]);
    impl Base for Sparse<'_> {
        fn len_bytes(&self) -> io::Result<u64> {
            Base::len_bytes(self.0)
        }
        fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
            self.0.read_range(offset, buffer)
        }
        fn next_data(&self, range: ByteRange) -> io::Result<Option<ByteRange>> {
            let data = [(0, 500_000), (565_536, 665_536), (731_071, u64::MAX)];
            Ok(data
                .iter()
                .find_map(|&(start, end)| ByteRange::new(start, end)?.intersect(range)))
        }
    }
    let params = ChunkParams::for_content(0);
    let mut look_at = ExtentSet::new();
    look_at.insert(ByteRange::new(100_000, 1_000_000).unwrap());
    for look_at in [None, Some(with_slack(&look_at, params, content.len() as u64))] {
        let mut crcs = RangeCrcs::new(CrcList::of(&content, CrcKind::Crc32c, 4096, LastBlock::ZeroPadded));
        let found = list_chunks_with_crcs(&Sparse(&content), look_at.as_ref(), params, &mut crcs).unwrap();
        let expected = list_chunks(&Sparse(&content), look_at.as_ref(), params, CrcKind::Crc32c).unwrap();
        assert_eq!(found.0, expected.0);
        assert_eq!(found.1.gap_bytes, expected.1.gap_bytes);
        assert_eq!(found.1.examined_bytes, expected.1.examined_bytes);
        assert!(found.1.gap_bytes >= 65_536);
    }
}

#[test]
fn a_content_that_shrank_is_an_error() {
    let content = noise(1, 100_000);
    let mut crcs = RangeCrcs::new(CrcList::of(
        &content[..50_000],
        CrcKind::Crc32c,
        4096,
        LastBlock::AsItIs,
    ));
    assert!(list_chunks_with_crcs(&content[..], None, small(), &mut crcs).is_err());
}
