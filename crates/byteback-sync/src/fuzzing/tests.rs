use super::*;

#[test]
fn sync_state_seeds_hold() {
    sync_state_seeds().iter().for_each(|seed| sync_state(seed));
}
