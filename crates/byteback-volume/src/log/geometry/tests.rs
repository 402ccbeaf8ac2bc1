use super::*;

#[test]
fn devices_of_all_sizes_are_divided_without_waste() {
    let mut blocks = 2_000;
    let mut divided = 0;
    while blocks <= BLOCKS_MAX {
        match divide(blocks) {
            Ok(areas) => {
                divided += 1;
                assert!(areas.is_sound(), "{areas:?}");
                let main_blocks = u64::from(areas.main_segments) * u64::from(areas.segment_blocks);
                let rest = blocks - main_blocks;
                // Blocks outside the main area: below 2 %, and a little for packs and rounding.
                assert!(rest <= blocks / 50 + 1_200, "{rest} of {blocks}: {areas:?}");
                assert!(u64::from(areas.node_table_blocks) * u64::from(NODES_PER_BLOCK) > main_blocks);
            }
            Err(VolumeError::TooSmall { min_bytes, .. }) => assert!(blocks * 4096 < min_bytes, "{blocks}"),
            Err(error) => panic!("{blocks}: {error}"),
        }
        blocks += blocks / 7 + 1;
    }
    assert!(divided > 50);
    assert!(matches!(divide(BLOCKS_MAX + 1), Err(VolumeError::TooLarge { .. })));
    assert!(matches!(divide(0), Err(VolumeError::TooSmall { .. })));
}

#[test]
fn the_smallest_size_that_is_told_will_do() {
    let blocks = min_bytes() / 4096;
    assert!(divide(blocks).is_ok());
    assert!(divide(blocks - 1).is_err());
    assert!(min_bytes() < 10 << 20, "{}", min_bytes());
}

#[test]
fn volume_near_the_length_of_long_segments_has_enough_of_them() {
    for blocks in LONG_SEGMENTS_FROM_BLOCKS - 1000..LONG_SEGMENTS_FROM_BLOCKS + 1000 {
        assert!(divide(blocks).is_ok(), "{blocks}");
    }
    // 64 MiB.
    assert!(divide(1 << 14).is_ok());
}
