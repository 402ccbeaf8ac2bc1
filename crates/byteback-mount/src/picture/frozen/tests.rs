//! The memory of nodes that were only looked at; the rest is tested on real mounts
//! (`byteback-daemon`, `cuts`).

use std::fs;

use super::*;
use crate::picture::Pictures;

#[test]
fn picture_forgets_nodes_only_visited_and_keeps_saved_ones() {
    let dir = tempfile::tempdir().unwrap();
    let (pictures, picture) = (Pictures::default(), Picture::new(dir.path()));
    pictures.open(Arc::clone(&picture));
    let listed = || picture.nodes.lock().nodes.len();

    for node in 1..1000 {
        drop(picture.visit(NodeId(node)).unwrap());
    }
    assert_eq!(listed(), 0);

    // Two at a time: the last one forgets.
    let (one, other) = (picture.visit(NodeId(7)).unwrap(), picture.visit(NodeId(7)).unwrap());
    drop(one);
    assert_eq!(listed(), 1);
    drop(other);
    assert_eq!(listed(), 0);

    let file = byteback_host::tree::Inode::from(fs::File::create(dir.path().join("file")).unwrap());
    let visit = picture.visit(NodeId(7)).unwrap();
    pictures.before_attributes(NodeId(7), &file);
    drop(visit);
    assert_eq!(listed(), 1);
    drop(picture.visit(NodeId(7)).unwrap());
    assert_eq!(listed(), 1);

    // Nodes that came after the cut are no part of it.
    picture.ends_with(NodeId(6));
    assert_eq!(listed(), 0);
    pictures.before_attributes(NodeId(7), &file);
    assert_eq!(listed(), 0);
    assert!(picture.visit(NodeId(7)).is_err());
}
