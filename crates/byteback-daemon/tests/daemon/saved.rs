//! The naive server of these tests: it applies to bytes in memory all that a backup is passed.

use byteback_model::{Attributes, ByteString, NameChange, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use byteback_control::{ChangesCursor, ContentChange, CutInfo, CutRequest, NodeChange, Outcome, Piece, TreeService};

/// The state that one consumer has saved.
#[derive(Clone, Default)]
pub(crate) struct Saved {
    nodes: BTreeMap<NodeId, (Attributes, Vec<u8>)>,
    names: BTreeMap<(NodeId, ByteString), NodeId>,
    /// Bytes of content requested in the last backup.
    pub(crate) requested_bytes: u64,
    pub(crate) whole_files: u64,
}

/// A cut whose changes are known and whose content is not read yet.
pub(crate) struct OpenBackup {
    info: CutInfo,
    nodes: Vec<NodeChange>,
    names: Vec<NameChange<NodeId>>,
}

impl OpenBackup {
    pub(crate) fn cut(tree: &dyn TreeService, consumer: &str) -> Self {
        let request = CutRequest::of(consumer);
        let info = tree.cut(&request).unwrap();
        let (mut nodes, mut names) = (Vec::new(), Vec::new());
        let mut cursor = Some(ChangesCursor::default());
        while let Some(at) = cursor {
            let page = tree.changes(info.cut, &at).unwrap();
            nodes.extend(page.nodes);
            names.extend(page.names);
            cursor = page.next;
        }
        assert_eq!((nodes.len() as u64, names.len() as u64), (info.nodes, info.names));
        Self { info, nodes, names }
    }

    /// Reads everything and applies it to `saved`, as a server would.
    pub(crate) fn save(self, tree: &dyn TreeService, saved: &mut Saved) {
        (saved.requested_bytes, saved.whole_files) = (0, 0);
        if self.info.since.is_none() {
            *saved = Saved::default();
        }
        let ids: Vec<NodeId> = self.nodes.iter().map(|change| change.node).collect();
        let attributes = tree.attributes(self.info.cut, &ids).unwrap();
        for (change, attributes) in self.nodes.iter().zip(attributes) {
            let attributes = attributes.unwrap_or_else(|error| panic!("{:?}: {error}", change));
            let known = saved.nodes.remove(&change.node);
            assert!(
                known.is_some() || change.is_new,
                "{change:?} is said to be known, but was never saved"
            );
            let mut bytes = known.map(|(_, bytes)| bytes).unwrap_or_default();
            let size = usize::try_from(attributes.size).unwrap();
            let ranges = match &change.content {
                ContentChange::Unchanged => Vec::new(),
                ContentChange::Ranges(ranges) => {
                    ranges.iter().map(|range| (range.start(), range.len_bytes())).collect()
                }
                ContentChange::Whole(_) => {
                    // Nothing of the old version may shine through.
                    bytes = vec![0xAA; size];
                    saved.whole_files += 1;
                    vec![(0, attributes.size)]
                }
            };
            // Bytes beyond the old end that are in no range are zeros.
            bytes.resize(size, 0);
            let mut expected: u64 = ranges
                .iter()
                .map(|(at, len)| (at + len).min(attributes.size).saturating_sub(*at))
                .sum();
            saved.requested_bytes += expected;
            let ranges: Vec<(u64, u64)> = ranges
                .into_iter()
                .filter(|(at, len)| *len > 0 && *at < attributes.size)
                .collect();
            if !ranges.is_empty() {
                tree.read(self.info.cut, change.node, &ranges, &mut |piece| {
                    let (at, len) = match piece {
                        Piece::Data { offset, bytes: data } => {
                            let at = usize::try_from(offset).unwrap();
                            bytes[at..at + data.len()].copy_from_slice(data);
                            (offset, data.len() as u64)
                        }
                        Piece::Hole(range) => {
                            let (start, end) = (
                                usize::try_from(range.start()).unwrap(),
                                usize::try_from(range.end()).unwrap(),
                            );
                            bytes[start..end].fill(0);
                            (range.start(), range.len_bytes())
                        }
                    };
                    assert!(
                        ranges
                            .iter()
                            .any(|(from, count)| *from <= at && at + len <= from + count),
                        "not asked for"
                    );
                    expected -= len;
                    Ok(())
                })
                .unwrap();
            }
            assert_eq!(expected, 0, "{change:?}: not everything that was asked for came");
            saved.nodes.insert(change.node, (attributes, bytes));
        }
        for change in self.names {
            let place = (change.parent, change.name);
            match change.child {
                Some(child) => saved.names.insert(place, child),
                None => saved.names.remove(&place),
            };
        }
        let outcome = Outcome::Saved {
            note: b"saved".to_vec(),
            unsaved: Vec::new(),
        };
        tree.finish(self.info.cut, &outcome).unwrap();
    }

    /// Asks for the attributes of all that changed, as a backup does first.
    pub(crate) fn try_attributes(&self, tree: &dyn TreeService) -> byteback_control::Result<()> {
        let ids: Vec<NodeId> = self.nodes.iter().map(|change| change.node).collect();
        tree.attributes(self.info.cut, &ids).map(drop)
    }

    pub(crate) fn abandon(self, tree: &dyn TreeService) {
        tree.finish(self.info.cut, &Outcome::Abandoned).unwrap();
    }
}

impl Saved {
    /// The saved tree by path: attributes, content, and for files with several names a number that
    /// they share.
    pub(crate) fn tree(&self) -> BTreeMap<PathBuf, (Attributes, Vec<u8>, NodeId)> {
        let mut tree = BTreeMap::new();
        let mut to_visit = vec![(PathBuf::new(), NodeId::ROOT)];
        let mut seen_directories = BTreeSet::new();
        while let Some((path, node)) = to_visit.pop() {
            let (attributes, bytes) = self
                .nodes
                .get(&node)
                .unwrap_or_else(|| panic!("{path:?} names node {node}, which was never saved"));
            tree.insert(path.clone(), (attributes.clone(), bytes.clone(), node));
            if attributes.kind == byteback_model::NodeKind::Directory {
                assert!(
                    seen_directories.insert(node),
                    "{path:?} is a second name of a directory"
                );
                for ((parent, name), child) in &self.names {
                    if *parent == node {
                        let name = OsString::from_vec(name.as_bytes().to_vec());
                        to_visit.push((path.join(name), *child));
                    }
                }
            }
        }
        tree
    }
}
