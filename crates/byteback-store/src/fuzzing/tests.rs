use super::*;

#[test]
fn the_seeds_are_blobs_and_hold() {
    for (number, seed) in blob_seeds().iter().enumerate() {
        blob(seed);
        assert!(is_read(seed), "seed {number} is no blob");
    }
}
