//! Node numbers; what is in the folder is tested on real mounts.

use super::*;

#[test]
fn hidden_node_numbers_name_their_node_and_none_of_the_tree() {
    let frozen = |serial, node| HiddenNode::Frozen {
        serial,
        node: NodeId(node),
    };
    let nodes = [
        HiddenNode::Top,
        HiddenNode::Cuts,
        HiddenNode::Deltas,
        HiddenNode::Delta(1),
        HiddenNode::Delta((1 << KIND_SHIFT) - 1),
        frozen(0, 1),
        frozen(0, LOGGED_MAX),
        frozen(SERIAL_MAX, 1),
        frozen(SERIAL_MAX, LOGGED_MAX),
        frozen(7, 0),
    ];
    let mut numbers = Vec::new();
    for node in nodes {
        let number = node.number().unwrap();
        assert_eq!(HiddenNode::of(number), Some(Some(node)));
        numbers.push(number);
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), nodes.len());
    assert!(frozen(0, LOGGED_MAX + 1).number().is_err());
    assert!(frozen(SERIAL_MAX + 1, 1).number().is_err());
    assert!(HiddenNode::Delta(1 << KIND_SHIFT).number().is_err());
    for live in [
        InodeNumber::ROOT,
        InodeNumber::new(u64::MAX >> 1),
        InodeNumber::new(0b10 << 62),
    ] {
        assert_eq!(HiddenNode::of(live), None);
    }
    for never_given in [u64::MAX, 0b11 << 62, (0b11 << 62) | 4] {
        assert_eq!(HiddenNode::of(InodeNumber::new(never_given)), Some(None));
    }
}
