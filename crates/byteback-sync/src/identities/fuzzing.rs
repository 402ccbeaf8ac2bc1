//! Entry points of the fuzz targets (`fuzz/`).

use byteback_model::{FileId, NodeId};
use byteback_oplog::TreeId;

use super::{FORMAT, IdentityChange, Known, head, known_of};

/// The map in these bytes, and whether all of it is whole.
fn parse(bytes: &[u8]) -> Option<(Known, bool)> {
    let contents = FORMAT.contents_of(bytes).ok()?;
    let (known, is_whole) = known_of(&contents.head, &contents.records).ok()?;
    Some((known, is_whole && contents.tail_len_bytes == 0))
}

fn to_bytes(known: &Known) -> Vec<u8> {
    FORMAT.bytes_of(&head(known.tree), known.records()).unwrap_or_default()
}

/// A map that parses gives no file ID to two nodes, and is the same after being rewritten.
pub(crate) fn identities(data: &[u8]) {
    let Some((mut known, _)) = parse(data) else { return };
    for (node, entry) in &known.nodes {
        assert_eq!(
            entry.file.and_then(|file| known.node_of(file)),
            entry.file.map(|_| *node)
        );
    }
    known.forget_removed();
    let again = parse(&to_bytes(&known));
    assert_eq!(again, Some((known, true)), "another map comes back");
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
    for change in changes {
        let _ = known.apply(&change);
    }
    to_bytes(&known)
}
