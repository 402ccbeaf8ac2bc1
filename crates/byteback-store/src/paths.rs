//! Paths of nodes, found by walking from a node up to the root.

use crate::catalog::CatalogRead;
use crate::error::StoreError;
use crate::numbers::NodeNumber;
use byteback_model::Seq;

/// Deepest path that is reported. Deeper nodes exist, only without a path in messages.
const DEPTH_MAX: usize = 4096;

/// One path of `node` from `root` at `at`, without a leading slash; empty for the root itself,
/// `None` for a node that the root does not reach.
pub(crate) fn path_of(
    catalog: &dyn CatalogRead,
    root: NodeNumber,
    node: NodeNumber,
    at: Seq,
) -> Result<Option<Vec<u8>>, StoreError> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut current = node;
    while current != root {
        // A file may have several names, some of them unreachable; directories have one.
        let Some(entry) = catalog.parents(current, at, 1)?.pop() else {
            return Ok(None);
        };
        names.push(entry.name);
        current = entry.parent;
        if names.len() > DEPTH_MAX {
            return Ok(None);
        }
    }
    names.reverse();
    Ok(Some(names.join(&b'/')))
}

/// The path of a name in a directory.
pub(crate) fn path_in(
    catalog: &dyn CatalogRead,
    root: NodeNumber,
    parent: NodeNumber,
    name: &[u8],
    at: Seq,
) -> Result<Option<Vec<u8>>, StoreError> {
    let Some(mut path) = path_of(catalog, root, parent, at)? else {
        return Ok(None);
    };
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    Ok(Some(path))
}
