//! Ranges against the CRC of their own bytes, and the number of bytes read.

use std::cell::RefCell;

use proptest::prelude::*;

use super::*;
use crate::model::noise;

/// A content that records the ranges read.
struct Recorded<'a>(&'a [u8], RefCell<Vec<ByteRange>>);

impl Base for Recorded<'_> {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.1
            .borrow_mut()
            .extend(ByteRange::from_offset_len(offset, buffer.len() as u64));
        self.0.read_range(offset, buffer)
    }
}

fn range(start: usize, end: usize) -> ByteRange {
    ByteRange::new(start as u64, end as u64).unwrap()
}

fn forget(list: &CrcList, unknown: impl Fn(u64) -> bool) -> CrcList {
    let mut partly = CrcList::new(list.layout);
    let mut list = list.clone();
    for block in 0..list.layout.blocks() {
        partly.push(list.crc(block).filter(|_| !unknown(block)));
    }
    partly
}

#[test]
fn crc_ranges_read_only_the_shorter_side_of_a_cut_block() {
    let content = noise(1, 10_000);
    let recorded = Recorded(&content, RefCell::default());
    let list = CrcList::of(&content, CrcKind::Crc32c, 1000, LastBlock::AsItIs);
    let mut crcs = RangeCrcs::new(list);
    let kind = CrcKind::Crc32c;
    assert_eq!(
        crcs.crc_of(range(2100, 7900), &recorded).unwrap(),
        kind.of(&content[2100..7900])
    );
    assert_eq!(recorded.1.take(), [range(2000, 2100), range(7900, 8000)]);
    // Equation 2: the next range begins where this one ended, and needs nothing of its beginning.
    assert_eq!(
        crcs.crc_of(range(7900, 9300), &recorded).unwrap(),
        kind.of(&content[7900..9300])
    );
    assert_eq!(recorded.1.take(), [range(9000, 9300)]);
    // From the previous border, as that is nearer than both ends of the block.
    assert_eq!(
        crcs.crc_of(range(9300, 9500), &recorded).unwrap(),
        kind.of(&content[9300..9500])
    );
    assert_eq!(recorded.1.take(), [range(9300, 9500)]);
    // Whole blocks need nothing.
    crcs.crc_of(range(0, 10_000), &recorded).unwrap();
    crcs.crc_of(range(3000, 4000), &recorded).unwrap();
    assert_eq!(recorded.1.take(), []);
    assert_eq!((crcs.read_bytes(), crcs.reads()), (700, 4));
    // A short range in the middle of a block is read itself.
    crcs.crc_of(range(4450, 4460), &recorded).unwrap();
    assert_eq!(recorded.1.take(), [range(4450, 4460)]);
    assert!(crcs.crc_of(range(9000, 10_001), &recorded).is_err());
}

#[test]
fn consecutive_range_crcs_read_less_than_half_a_block_each() {
    let content = noise(2, 1 << 20);
    let mut seed = 1_u64;
    let ends: Vec<u64> = std::iter::successors(Some(0_u64), |&end| {
        seed = seed.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
        (end < 1 << 20).then(|| (end + 1 + (seed >> 40) % 1500).min(1 << 20))
    })
    .skip(1)
    .collect();
    for kind in CrcKind::ALL {
        let list = CrcList::of(&content, kind, 512, LastBlock::AsItIs);
        let mut crcs = RangeCrcs::new(list);
        let mut found = Vec::new();
        let mut start = 0;
        for &end in &ends {
            found.push(
                crcs.crc_of(ByteRange::new(start, end).unwrap(), content.as_slice())
                    .unwrap(),
            );
            start = end;
        }
        let mut start = 0;
        for (&end, crc) in ends.iter().zip(&found) {
            assert_eq!(*crc, kind.of(&content[start as usize..end as usize]), "{start}..{end}");
            start = end;
        }
        assert_eq!(found.len(), ends.len());
        assert!(crcs.read_bytes() <= ends.len() as u64 * 256, "{}", crcs.read_bytes());
        // On average a quarter of a block per border.
        assert!(crcs.read_bytes() <= ends.len() as u64 * 140, "{}", crcs.read_bytes());
    }
}

#[test]
fn of_unknown_blocks_each_byte_is_read_once() {
    let content = noise(3, 100_000);
    let recorded = Recorded(&content, RefCell::default());
    let known = CrcList::of(&content, CrcKind::Crc32c, 4096, LastBlock::AsItIs);
    let mut crcs = RangeCrcs::new(forget(&known, |_| true));
    for start in 0..100 {
        crcs.crc_of(range(start * 1000, (start + 1) * 1000), &recorded).unwrap();
    }
    assert_eq!(crcs.read_bytes(), 100_000);
    let (mut next, reads) = (0, recorded.1.take());
    for read in reads {
        assert_eq!(read.start(), next);
        next = read.end();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn the_crc_of_any_range_is_that_of_its_bytes(
        seed in any::<u64>(),
        len in 1..5000_usize,
        block_len in prop_oneof![Just(1_u32), Just(2), Just(7), Just(64), Just(1000), Just(1 << 20)],
        unknown in prop_oneof![Just(0_u64), Just(u64::MAX), any::<u64>()],
        padded in any::<bool>(),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<bool>()), 1..30),
        kind in prop::sample::select(&CrcKind::ALL),
    ) {
        let content = noise(seed, len);
        let last = if padded { LastBlock::ZeroPadded } else { LastBlock::AsItIs };
        let list = CrcList::of(&content, kind, block_len, last);
        let list = forget(&list, |block| unknown & (1 << (block % 64)) != 0);
        let mut crcs = RangeCrcs::new(list);
        let mut before = 0;
        for (start, end, follows) in cuts {
            let (a, b) = (start.index(len), end.index(len) + 1);
            let a = if follows { before } else { a };
            let (start, end) = (a.min(b), a.max(b));
            before = end;
            let Some(range) = ByteRange::new(start as u64, end as u64) else { continue };
            let read_before = crcs.read_bytes();
            let crc = crcs.crc_of(range, content.as_slice()).unwrap();
            prop_assert_eq!(crc, kind.of(&content[start..end]), "{}..{}", start, end);
            let read = crcs.read_bytes() - read_before;
            prop_assert!(read <= (end - start) as u64);
            prop_assert!(unknown != 0 || read <= u64::from(block_len));
        }
    }
}
