use super::*;
use byteback_delta::find::{BlockIndex, LeafLookup};
use byteback_delta::signature::Signature;
use byteback_host::random::{SplitMix64, noise};

fn range(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end).unwrap()
}

#[test]
fn blocks_are_whole_and_inside_the_file() {
    let set: ExtentSet = [
        range(100, 4000),
        range(5000, 20_000),
        range(40_960, 45_056),
        range(90_000, 120_000),
    ]
    .into_iter()
    .collect();
    let of = |len| blocks_in(reported(&set, len)).collect::<Vec<_>>();
    let all = [range(8192, 16_384), range(40_960, 45_056), range(90_112, 118_784)];
    assert_eq!(of(1 << 20), all);
    assert_eq!(of(45_055), all[..1]);
    assert_eq!(of(0), []);
    assert_eq!(block_bytes(&set, 1 << 20), 8192 + 4096 + 28_672);
}

/// Random ranges of a file of few different blocks, some of which the base has: the parts are the
/// ranges, and what they say of the base is so.
#[test]
fn parts_are_the_ranges_and_lie_where_they_say() {
    let mut found_bytes = 0;
    for seed in 0..300 {
        let mut random = SplitMix64::new(seed);
        let mut content = |blocks: u64, kinds: u64| {
            let block = |_| noise(1 + random.below(kinds), BLOCK_LEN as usize);
            (0..blocks).flat_map(block).collect::<Vec<u8>>()
        };
        let (base, mut new) = (content(12, 30), content(20, 40));
        new.extend_from_slice(&noise(seed, random.below(4096) as usize));
        let mut set = ExtentSet::new();
        for _ in 0..random.below(6) {
            let start = random.below(new.len() as u64);
            set.extend(ByteRange::from_offset_len(start, 1 + random.below(20_000)));
        }
        let len = new.len() as u64;
        let sought: Vec<ByteRange> = blocks_in(reported(&set, len)).collect();
        let of = |range: &ByteRange| new[range.start() as usize..range.end() as usize].to_vec();
        let sought_bytes: Vec<u8> = sought.iter().flat_map(of).collect();
        let params = SignatureParams {
            weak: WeakKind::Crc32c,
            strong: StrongKind::Tree(LeafKind::Blake3),
            ..SignatureParams::with_block_len(len, LEAF_LEN_BYTES, 1)
        };
        let index = BlockIndex::new(Signature::of(&sought_bytes, params));
        let mut lookup = LeafLookup::new(&index, base.len() as u64);
        for block in base.chunks(BLOCK_LEN as usize) {
            let crc = byteback_delta::crc::CrcKind::Crc32c.of(block);
            lookup.push(crc as u32, &LeafKind::Blake3.leaf(block));
        }
        let list = lookup.finish();
        let mut parts = parts(reported(&set, len), &sought, &list);
        let ranges_max = random.below(4) as usize;
        let all: ExtentSet = parts.iter().map(|part| part.range).collect();
        assert_eq!(all, reported(&set, len).collect(), "seed {seed}");
        assert!(parts.windows(2).all(|two| two[0].range.end() <= two[1].range.start()));
        let is_in_base = |block: &[u8]| base.chunks(BLOCK_LEN as usize).any(|other| other == block);
        let expected = sought_bytes
            .chunks(BLOCK_LEN as usize)
            .filter(|block| is_in_base(block))
            .count();
        let found = |parts: &[Part]| -> u64 {
            let found = parts.iter().filter(|part| part.base_offset.is_some());
            found.map(|part| part.range.len_bytes()).sum()
        };
        assert_eq!(found(&parts), expected as u64 * BLOCK_LEN, "seed {seed}");
        found_bytes += found(&parts);
        for part in &parts {
            if let Some(base_offset) = part.base_offset {
                let there = &base[base_offset as usize..][..part.range.len_bytes() as usize];
                assert!(of(&part.range) == there, "seed {seed}");
            }
        }
        let kept = keep_longest(&mut parts, ranges_max);
        assert!(kept.len() <= ranges_max);
        assert_eq!(kept.total_len_bytes(), found(&parts));
        assert!(
            parts
                .iter()
                .all(|part| part.base_offset.is_none() || kept.intersects(part.range))
        );
    }
    assert!(found_bytes > 1 << 18, "{found_bytes}");
}
