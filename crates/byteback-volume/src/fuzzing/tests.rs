//! The fuzz target's function, with its seeds and with noise.

use super::*;

#[test]
fn damaged_images_are_opened_used_and_repaired() {
    for seed in volume_seeds() {
        volume(&seed);
    }
    let first = std::env::var("BYTEBACK_SEED").map_or(1, |seed| seed.parse().unwrap());
    let count = std::env::var("BYTEBACK_SEEDS").map_or(30, |count: String| count.parse().unwrap());
    for seed in first..first + count {
        println!("BYTEBACK_SEED={seed}");
        let mut random = SplitMix64::new(seed);
        let mut data = vec![random.below(4) as u8, 1 + random.below(8) as u8];
        data.extend(random.bytes(250));
        // Edits near the beginning of blocks are those that say most.
        for edit in 0..usize::from(data[1]) {
            if random.coin() {
                data[2 + 6 * edit + 3] = 0;
            }
        }
        volume(&data);
    }
}

#[test]
fn images_have_deltas_in_the_main_area_and_clusters() {
    for number in 0..4 {
        let image = image_of(number);
        let has = |kind| image.blocks.iter().any(|(_, found)| *found == Some(kind));
        for kind in [Kind::DeltaMeta, Kind::DeltaCompact, Kind::DeltaLeaf] {
            assert!(has(kind), "{kind:?}, {number}");
        }
        assert_eq!(has(Kind::Cluster), number & 2 != 0, "{number}");
    }
}
