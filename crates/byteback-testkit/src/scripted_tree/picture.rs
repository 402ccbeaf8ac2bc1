//! A tree at one moment, and whether a directory is that tree again.

use super::content::Content;
use byteback_host::tree::{self};
use byteback_model::{Attributes, ByteString, NodeId, NodeKind};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub attributes: Attributes,
    pub content: Content,
}

/// The tree that a restore must bring back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picture {
    pub nodes: BTreeMap<NodeId, Node>,
    pub names: BTreeMap<(NodeId, Vec<u8>), NodeId>,
    /// Short holes may have become zeros, as where checksums come from a source that does not see
    /// them.
    pub may_lose_holes: bool,
}

impl Picture {
    pub fn names_in(&self, dir: NodeId) -> impl Iterator<Item = (&[u8], NodeId)> {
        let all = (dir, Vec::new())..(NodeId(dir.0 + 1), Vec::new());
        self.names
            .range(all)
            .map(|((_, name), child)| (name.as_slice(), *child))
    }

    pub fn path_of(&self, node: NodeId) -> Option<Vec<u8>> {
        if node == NodeId::ROOT {
            return Some(Vec::new());
        }
        let ((parent, name), _) = self.names.iter().find(|(_, child)| **child == node)?;
        let mut path = self.path_of(*parent)?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Some(path)
    }

    /// The picture without the nodes that `is_lost` names, and without their names and all below.
    pub fn without(&self, is_lost: impl Fn(NodeId) -> bool) -> Self {
        let mut left = self.clone();
        left.names.retain(|_, child| !is_lost(*child));
        left
    }
}

/// Compares a directory with a picture: every name, kind, attribute, byte and hole, and which names
/// are one file.
pub fn assert_restored(picture: &Picture, dir: &Path) {
    let mut to_do = vec![(NodeId::ROOT, dir.to_path_buf())];
    let mut inodes: BTreeMap<NodeId, u64> = BTreeMap::new();
    let mut nodes: BTreeMap<u64, NodeId> = BTreeMap::new();
    while let Some((id, path)) = to_do.pop() {
        let node = &picture.nodes[&id];
        assert_node(node, &path, picture.may_lose_holes);
        let shown = path.display();
        let ino = std::fs::symlink_metadata(&path).unwrap().ino();
        let first = *inodes.entry(id).or_insert(ino);
        assert_eq!(first, ino, "{shown} is no longer the same file as its other name");
        let first = *nodes.entry(ino).or_insert(id);
        assert_eq!(first, id, "{shown} is a name of a file that it was no name of");
        if node.attributes.kind == NodeKind::Directory {
            let mut found: BTreeSet<Vec<u8>> = std::fs::read_dir(&path)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_vec())
                .collect();
            for (name, child) in picture.names_in(id) {
                assert!(found.remove(name), "{shown} lacks {:?}", OsStr::from_bytes(name));
                to_do.push((child, path.join(OsStr::from_bytes(name))));
            }
            assert!(found.is_empty(), "{shown} has too much: {found:?}");
        }
    }
}

fn assert_node(node: &Node, path: &Path, may_lose_holes: bool) {
    let wanted = &node.attributes;
    let shown = path.display();
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::NOFOLLOW;
    let fd = rustix::fs::open(path, flags, rustix::fs::Mode::empty());
    let fd = fd.unwrap_or_else(|error| panic!("{shown}: {error}"));
    let stat = tree::stat_fd(&fd).unwrap();
    let kind = stat.kind;
    assert_eq!(kind, wanted.kind, "kind of {shown}");
    assert_eq!(stat.mtime_ns, wanted.mtime_ns, "mtime of {shown}");
    assert_eq!((stat.uid, stat.gid), (wanted.uid, wanted.gid), "owner of {shown}");
    if kind == NodeKind::Symlink {
        let target = std::fs::read_link(path).unwrap().into_os_string().into_vec();
        assert_eq!(Some(ByteString::from(target)), wanted.target, "target of {shown}");
        return;
    }
    assert_eq!(stat.mode, wanted.mode, "mode of {shown}");
    let mut xattrs = Vec::new();
    for name in tree::list_xattrs(&fd).unwrap() {
        if !name.as_bytes().starts_with(b"security.") {
            let value = tree::get_xattr(&fd, &name).unwrap().unwrap();
            xattrs.push((ByteString::from(name.into_vec()), ByteString::from(value)));
        }
    }
    xattrs.sort();
    let wanted_xattrs = wanted
        .xattrs
        .iter()
        .map(|xattr| (xattr.name.clone(), xattr.value.clone()));
    assert_eq!(xattrs, wanted_xattrs.collect::<Vec<_>>(), "xattrs of {shown}");
    if kind == NodeKind::File {
        assert_eq!(stat.size, node.content.len(), "length of {shown}");
        assert_content(&node.content, path, may_lose_holes);
    }
}

fn assert_content(content: &Content, path: &Path, may_lose_holes: bool) {
    let file = File::open(path).unwrap();
    let shown = path.display();
    let mut stored_max = 0;
    for range in content.data() {
        let (mut found, mut wanted) = (vec![0; range.len_bytes() as usize], vec![0; range.len_bytes() as usize]);
        file.read_exact_at(&mut found, range.start()).unwrap();
        content.read(range.start(), &mut wanted);
        let differs = found.iter().zip(&wanted).position(|(a, b)| a != b);
        let differs = differs.map(|at| range.start() + at as u64);
        assert_eq!(differs, None, "first byte that differs in {shown}");
        stored_max += range.len_bytes() + 2 * 4096;
    }
    // Everything else that the file system stores must be zero.
    for range in tree::data_ranges(&file, 0, content.len()) {
        let range = range.unwrap();
        let len = range.end - range.start;
        assert!(len < 1 << 30, "{shown} stores {len} bytes");
        let (mut found, mut wanted) = (vec![0; len as usize], vec![0; len as usize]);
        file.read_exact_at(&mut found, range.start).unwrap();
        content.read(range.start, &mut wanted);
        assert!(found == wanted, "{shown} is not zero in a hole");
    }
    let stored = file.metadata().unwrap().blocks() * 512;
    assert!(
        may_lose_holes || stored <= stored_max + 64 * 1024,
        "{shown} takes {stored} bytes, its holes were filled"
    );
}
