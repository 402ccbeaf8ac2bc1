use super::*;

#[test]
fn lengths_are_those_of_the_paper_until_contents_are_very_large() {
    let lens = |len| {
        let params = ChunkParams::for_content(len);
        (params.min_len(), params.avg_len(), params.max_len())
    };
    assert_eq!(lens(0), (4096, 8192, 12_288));
    assert_eq!(lens(8 << 30), (4096, 8192, 12_288));
    assert_eq!(lens((8 << 30) + 8192), (8192, 16_384, 24_576));
    assert_eq!(lens(u64::MAX), (2 << 20, 4 << 20, 6 << 20));
    for shift in 0..63 {
        let params = ChunkParams::for_content(1 << shift);
        assert_eq!(
            ChunkParams::new(params.min_len, params.avg_len, params.max_len),
            Some(params)
        );
    }
}

#[test]
fn lengths_that_cannot_be_are_refused() {
    for (min, avg, max) in [
        (63, 256, 512),
        (64, 128, 512),
        (64, 300, 512),
        (257, 256, 512),
        (64, 256, 255),
        (64, 8 << 20, 16 << 20),
        (64, 256, (16 << 20) + 1),
    ] {
        assert_eq!(ChunkParams::new(min, avg, max), None, "{min} {avg} {max}");
    }
    assert!(ChunkParams::new(64, 256, 256).is_some());
    assert!(ChunkParams::new(256, 256, 16 << 20).is_some());
}

#[test]
fn slack_goes_further_before_a_range_than_behind_it() {
    let params = ChunkParams::for_content(0);
    let mut ranges = ExtentSet::new();
    let range = |start, end| ByteRange::new(start, end).unwrap();
    ranges.insert(range(100, 200));
    ranges.insert(range(1_000_000, 1_000_001));
    ranges.insert(range(1_999_999, 2_000_000));
    let wider: Vec<ByteRange> = with_slack(&ranges, params, 2_000_000).iter().collect();
    let expected = [
        range(0, 200 + 12_288),
        range(1_000_000 - 98_304, 1_000_001 + 12_288),
        range(1_999_999 - 98_304, 2_000_000),
    ];
    assert_eq!(wider, expected);
}
