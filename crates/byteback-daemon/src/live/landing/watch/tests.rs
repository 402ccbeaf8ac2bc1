use super::*;

#[test]
fn a_full_set_of_landed_files_has_every_file() {
    let landed = LandedIn::default();
    assert!(!landed.has(NodeId(7)));
    for number in 0..LandedIn::NODES_MAX as u64 - 1 {
        landed.insert(NodeId(number * 2));
        landed.insert(NodeId(number * 2));
    }
    assert!(landed.has(NodeId(8)) && !landed.has(NodeId(7)));
    landed.insert(NodeId(7));
    landed.insert(NodeId(9));
    assert!([7, 8, 9, 11].into_iter().all(|number| landed.has(NodeId(number))));
    assert!(landed.nodes.lock().capacity() == 0, "it takes no room any more");
}
