//! Ranges of a content from a client, and the answer of a server to them.
#![no_main]

use byteback_delta::excerpt::{Excerpt, ExcerptAnswer, ExcerptBytes};
use byteback_delta::find::{BlockIndex, FoundExtents, Gap, excerpt_for, find_in_excerpt};
use byteback_delta::signature::{SignatureParams, SignatureWriter};
use byteback_delta::{DeltaWriter, WriterOptions};
use byteback_extents::ByteRange;

byteback_fuzz::target!(check, seeds);

const BLOCKS_MAX: u64 = 1 << 14;

/// The excerpt that all answers here are about.
fn sought() -> Excerpt {
    let ranges = [(100, 1000), (5000, 9000)];
    Excerpt::new(
        &ranges
            .into_iter()
            .filter_map(|(start, end)| ByteRange::new(start, end))
            .collect(),
    )
}

fn check(data: &[u8]) {
    if let Ok(excerpt) = Excerpt::decode(data) {
        assert_eq!(excerpt.encode(), data, "another excerpt comes back");
        let all = ByteRange::new(0, excerpt.len_bytes());
        let parts = all.into_iter().flat_map(|all| excerpt.in_base(all));
        assert!(parts.eq(excerpt.ranges().iter().copied()));
    }
    if let Ok(answer) = ExcerptAnswer::read(data, &sought(), BLOCKS_MAX) {
        let base_len = answer.base_len_bytes;
        assert!(answer.excerpt.ranges().iter().all(|range| range.end() <= base_len));
        // A client that believes it tells every byte once, in order.
        let index = BlockIndex::new(answer.signature);
        let bytes = vec![1; 10_000];
        let Ok((found, stats)) = find_in_excerpt(&index, &answer.excerpt, (77, &bytes), FoundExtents::default());
        assert_eq!(stats.copied_bytes + stats.literal_bytes + stats.zero_bytes, 10_000);
        let mut end = 77;
        for (range, source) in &found.extents {
            assert_eq!(range.start(), end);
            end = range.end();
            if let byteback_delta::Source::Copy { base_offset } = source {
                assert!(base_offset + range.len_bytes() <= base_len);
            }
        }
        assert_eq!(end, 10_077);
    }
    if let Ok(answer) = ExcerptBytes::read(data, &sought()) {
        assert_eq!(answer.bytes.len() as u64, answer.excerpt.len_bytes());
        assert_eq!(answer.excerpt, sought().within(answer.base_len_bytes));
    }
    // Where to look, for gaps that a server's answers led to.
    let fields: Vec<u64> = data
        .as_chunks()
        .0
        .iter()
        .map(|bytes| u64::from_le_bytes(*bytes) >> 1)
        .collect();
    let gaps = fields
        .as_chunks::<4>()
        .0
        .iter()
        .filter_map(|[start, len, base_before, base_behind]| {
            Some(Gap {
                range: ByteRange::from_offset_len(*start, *len >> 40)?,
                base_before: *base_before,
                base_behind: *base_behind,
            })
        });
    let gaps: Vec<Gap> = gaps.collect();
    let base_len = fields.last().copied().unwrap_or(0);
    let unused = gaps.iter().map(|gap| gap.range).collect();
    let excerpt = excerpt_for(&gaps, &unused, base_len, 64);
    for range in excerpt.ranges() {
        assert!(range.end() <= base_len);
        assert!(range.len_bytes().is_multiple_of(64) || range.end() == base_len);
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![sought().encode(), Excerpt::default().encode()];
    for (base_len, byte) in [(20_000, 1), (6000, 1), (500, 2), (50, 3)] {
        let here = sought().within(base_len);
        let mut stream = Vec::new();
        ExcerptAnswer::write_head(base_len, &mut stream).expect("memory");
        let params = SignatureParams::for_excerpt(64, 5);
        let mut writer = SignatureWriter::new(stream, params, here.len_bytes()).expect("memory");
        writer.push(&vec![byte; here.len_bytes() as usize]).expect("memory");
        seeds.push(writer.finish().expect("memory"));
        let mut writer = DeltaWriter::new(Vec::new(), 0, base_len, WriterOptions::default()).expect("memory");
        for part in here.ranges() {
            let bytes = vec![byte; part.len_bytes() as usize];
            writer.literal(*part, &bytes[..]).expect("memory");
        }
        seeds.push(writer.finish().expect("memory").0);
    }
    seeds
}
