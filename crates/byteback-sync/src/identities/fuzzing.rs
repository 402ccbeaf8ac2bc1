//! Entry points of the fuzz targets (`fuzz/`).

use byteback_model::{FileId, NodeId};
use byteback_oplog::TreeId;

use super::{IdentityChange, Known, head, parse};

/// A map that parses gives no file ID to two nodes, and is the same after being rewritten.
pub(crate) fn identities(data: &[u8]) {
    let Ok((mut known, _, _)) = parse(data) else { return };
    for (node, entry) in &known.nodes {
        assert_eq!(
            entry.file.and_then(|file| known.node_of(file)),
            entry.file.map(|_| *node)
        );
    }
    known.forget_what_is_gone();
    let mut bytes = head(known.tree);
    for (place, change) in (0..).zip(known.changes()) {
        bytes.extend(change.to_bytes(place));
    }
    let again = parse(&bytes).map(|(known, _, is_whole)| (known, is_whole));
    assert_eq!(again.ok(), Some((known, true)), "another map comes back");
}

/// A map of one node that took the ID of another.
pub(crate) fn identities_seed() -> Vec<u8> {
    let mut known = Known::new(TreeId(7));
    let changes = [
        IdentityChange::Forgotten(NodeId(2)),
        IdentityChange::Bound {
            node: NodeId(3),
            file: FileId((7 << 64) | 2),
            origin: None,
        },
    ];
    let mut bytes = head(known.tree);
    for (place, change) in (0..).zip(changes) {
        let _ = known.apply(&change);
        bytes.extend(change.to_bytes(place));
    }
    bytes
}
