//! A server as naive as can be: nodes with their contents, and names, in memory. It applies groups
//! and knows of versions.

use byteback_model::{Attributes, ByteString, NameChange, NodeId, NodeKind};
use std::collections::BTreeMap;
use std::path::PathBuf;

use byteback_control::{
    ChangesCursor, ContentChange, LiveContent, LiveFold, LiveGroup, LiveNode, LiveScope, LiveSource, LiveTree, Piece,
    TreeService,
};
use byteback_delta::{DeltaReader, apply_to_new};
use byteback_queue::{ClientId, GroupId, Position, Version};
use serde_json::{Value, json};

use crate::fixture::Served;

#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    pub(crate) kind: Option<NodeKind>,
    pub(crate) content: Vec<u8>,
    pub(crate) attributes: Option<Attributes>,
    pub(crate) version: Option<Version>,
}

/// A group with all the bytes that belong to it, as they were read: what is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) group: LiveGroup,
    bodies: Vec<Body>,
    fold: Option<Folded>,
}

/// Bytes with their offsets.
type Pieces = Vec<(u64, Vec<u8>)>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Body {
    Pieces(Vec<(u64, Vec<u8>)>),
    Delta(Vec<u8>),
}

/// The names, nodes and contents that were taken from a cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Folded {
    is_everything: bool,
    nodes: Vec<(NodeId, NodeKind, Attributes, Option<Pieces>)>,
    names: Vec<NameChange<NodeId>>,
}

impl Sent {
    /// How many bytes of content it carries.
    pub(crate) fn len_bytes(&self) -> usize {
        let pieces = |pieces: &[(u64, Vec<u8>)]| pieces.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
        let bodies = self.bodies.iter().map(|body| match body {
            Body::Pieces(of) => pieces(of),
            Body::Delta(delta) => delta.len(),
        });
        let folded = self.fold.iter().flat_map(|fold| &fold.nodes);
        bodies.sum::<usize>()
            + folded
                .map(|(_, _, _, of)| of.as_deref().map_or(0, pieces))
                .sum::<usize>()
    }

    /// How many contents are deltas of others.
    pub(crate) fn deltas(&self) -> usize {
        self.bodies.iter().filter(|body| matches!(body, Body::Delta(_))).count()
    }

    /// The number of these that are based on the previous bytes of the same file.
    pub(crate) fn rewritten(&self) -> usize {
        let of_itself =
            |content: &&LiveContent| matches!(content.source, LiveSource::Delta { base, .. } if base == content.node);
        self.group.contents.iter().filter(of_itself).count()
    }
}

/// Bytes as characters, so that nothing is lost on the way through JSON.
fn text_of(bytes: &[u8]) -> Value {
    Value::String(bytes.iter().map(|byte| char::from(*byte)).collect())
}

fn bytes_of(text: &Value) -> Vec<u8> {
    let chars = text.as_str().unwrap().chars();
    chars.map(|char| u8::try_from(u32::from(char)).unwrap()).collect()
}

fn pieces_to_json(pieces: &Pieces) -> Value {
    pieces.iter().map(|(at, bytes)| json!([at, text_of(bytes)])).collect()
}

fn pieces_of(value: &Value) -> Pieces {
    let pieces = value.as_array().unwrap().iter();
    pieces
        .map(|piece| (piece[0].as_u64().unwrap(), bytes_of(&piece[1])))
        .collect()
}

fn names_to_json(names: &[NameChange<NodeId>]) -> Value {
    serde_json::to_value(names).unwrap()
}

/// The form on the way from a process that is killed. Versions are left behind.
impl Sent {
    pub(crate) fn to_json(&self) -> Value {
        let group = &self.group;
        let nodes = group.nodes.iter();
        let nodes = nodes.map(|node| json!([node.node, node.kind, node.is_new, node.attributes]));
        let contents = group.contents.iter().zip(&self.bodies).map(|(content, body)| {
            let (base, body) = match (&content.source, body) {
                (LiveSource::Delta { base, .. }, Body::Delta(delta)) => (json!(base), text_of(delta)),
                (_, Body::Pieces(pieces)) => (Value::Null, pieces_to_json(pieces)),
                other => panic!("{other:?}"),
            };
            json!([content.node, content.len_bytes, content.is_gone, base, body])
        });
        let fold = self.fold.as_ref().map(|fold| {
            let nodes = fold.nodes.iter().map(|(node, kind, attributes, pieces)| {
                json!([node, kind, attributes, pieces.as_ref().map(pieces_to_json)])
            });
            json!({"everything": fold.is_everything, "nodes": nodes.collect::<Value>(), "names": names_to_json(&fold.names)})
        });
        json!({
            "id": group.id.0,
            "names": names_to_json(&group.names),
            "nodes": nodes.collect::<Value>(),
            "contents": contents.collect::<Value>(),
            "fold": fold,
        })
    }

    pub(crate) fn from_json(value: &Value) -> Self {
        fn take<T: serde::de::DeserializeOwned>(value: &Value) -> T {
            serde_json::from_value(value.clone()).unwrap()
        }
        let version = Version {
            client: ClientId(0),
            counter: 0,
        };
        let nodes = value["nodes"].as_array().unwrap().iter().map(|node| LiveNode {
            node: take(&node[0]),
            kind: take(&node[1]),
            is_new: take(&node[2]),
            attributes: take(&node[3]),
        });
        let mut bodies = Vec::new();
        let contents = value["contents"].as_array().unwrap().iter().map(|content| {
            let source = match content[3].is_null() {
                true => {
                    bodies.push(Body::Pieces(pieces_of(&content[4])));
                    LiveSource::Ranges(Vec::new())
                }
                false => {
                    bodies.push(Body::Delta(bytes_of(&content[4])));
                    LiveSource::Delta {
                        base: take(&content[3]),
                        base_version: None,
                        stamp: 0,
                        len_bytes: 0,
                    }
                }
            };
            LiveContent {
                at: Position(0),
                node: take(&content[0]),
                version,
                base: None,
                len_bytes: take(&content[1]),
                is_gone: take(&content[2]),
                source,
            }
        });
        let (nodes, contents) = (nodes.collect(), contents.collect());
        let fold = Some(&value["fold"]).filter(|fold| !fold.is_null()).map(|fold| {
            let nodes = fold["nodes"].as_array().unwrap().iter();
            let nodes = nodes.map(|node| {
                let pieces = Some(&node[3]).filter(|pieces| !pieces.is_null()).map(pieces_of);
                (take(&node[0]), take(&node[1]), take(&node[2]), pieces)
            });
            Folded {
                is_everything: take(&fold["everything"]),
                nodes: nodes.collect(),
                names: take(&fold["names"]),
            }
        });
        Self {
            group: LiveGroup {
                id: GroupId(take(&value["id"])),
                up_to: Position(0),
                is_conflict: false,
                names: take(&value["names"]),
                nodes,
                contents,
                directory_times: Vec::new(),
                fold: None,
            },
            bodies,
            fold,
        }
    }
}

/// Pieces that lie side by side are one, however they were read.
fn push_piece(pieces: &mut Vec<(u64, Vec<u8>)>, piece: &Piece<'_>) {
    let (offset, bytes) = match piece {
        Piece::Data { offset, bytes } => (*offset, bytes.to_vec()),
        Piece::Hole(range) => (range.start(), vec![0; usize::try_from(range.len_bytes()).unwrap()]),
    };
    match pieces
        .last_mut()
        .filter(|(at, before)| at + before.len() as u64 == offset)
    {
        Some((_, before)) => before.extend(bytes),
        None => pieces.push((offset, bytes)),
    }
}

/// Reads all that belongs to a group; an error if it was given up.
pub(crate) fn read(served: &Served, group: &LiveGroup) -> byteback_control::Result<Sent> {
    let mut bodies = Vec::new();
    for content in &group.contents {
        bodies.push(read_content(&*served.live, content)?);
    }
    let fold = match &group.fold {
        Some(fold) => Some(read_fold(&*served.tree, fold)?),
        None => None,
    };
    Ok(Sent {
        group: group.clone(),
        bodies,
        fold,
    })
}

fn read_content(live: &dyn LiveTree, content: &LiveContent) -> byteback_control::Result<Body> {
    match &content.source {
        LiveSource::Ranges(ranges) => {
            let mut pieces = Vec::new();
            live.read(content, &mut |piece| {
                push_piece(&mut pieces, &piece);
                Ok(())
            })?;
            let read = pieces.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
            assert_eq!(read, ranges.iter().map(|(_, len)| len).sum::<u64>());
            Ok(Body::Pieces(pieces))
        }
        LiveSource::Delta { stamp, len_bytes, .. } => {
            let mut delta = Vec::new();
            live.read_delta(*stamp, &mut |bytes| {
                delta.extend_from_slice(bytes);
                Ok(())
            })?;
            assert_eq!(delta.len() as u64, *len_bytes);
            Ok(Body::Delta(delta))
        }
    }
}

fn read_fold(tree: &dyn TreeService, fold: &LiveFold) -> byteback_control::Result<Folded> {
    let cut = fold.cut.cut;
    let mut folded = Folded {
        is_everything: fold.cut.since.is_none(),
        ..Folded::default()
    };
    let has_content = |node: NodeId| match &fold.scope {
        LiveScope::Everything { .. } => true,
        LiveScope::Items { contents, .. } => contents.contains_key(&node),
    };
    let has_node = |node: NodeId| match &fold.scope {
        LiveScope::Everything { .. } => true,
        LiveScope::Items { attributes, .. } => has_content(node) || attributes.contains(&node),
    };
    let is_listed_only = matches!(fold.scope, LiveScope::Items { .. });
    let (LiveScope::Items { names, .. } | LiveScope::Everything { names }) = &fold.scope;
    folded.names.clone_from(names);
    // A part of the tree, also where the log reports everything.
    folded.is_everything &= !is_listed_only;
    let mut cursor = Some(ChangesCursor::default());
    while let Some(at) = cursor {
        let page = tree.changes(cut, &at)?;
        for change in page.nodes.iter().filter(|change| has_node(change.node)) {
            let attributes = tree.attributes(cut, &[change.node])?.remove(0)?;
            let ranges = match &change.content {
                ContentChange::Unchanged => None,
                ContentChange::Ranges(ranges) => {
                    Some(ranges.iter().map(|range| (range.start(), range.len_bytes())).collect())
                }
                ContentChange::Whole(_) => Some(vec![(0, attributes.size)]),
            };
            let mut pieces = Vec::new();
            if let Some(ranges) = ranges
                .as_ref()
                .filter(|_| has_content(change.node) && change.kind == NodeKind::File)
            {
                tree.peek(cut, change.node, ranges, &mut |piece| {
                    push_piece(&mut pieces, &piece);
                    Ok(())
                })?;
            }
            let is_listed = is_listed_only && has_content(change.node);
            let is_file = change.kind == NodeKind::File && (is_listed || ranges.is_some() && has_content(change.node));
            folded
                .nodes
                .push((change.node, change.kind, attributes, is_file.then_some(pieces)));
        }
        if !is_listed_only {
            folded.names.extend(page.names.iter().cloned());
        }
        cursor = page.next;
    }
    Ok(folded)
}

#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    pub(crate) names: BTreeMap<(NodeId, ByteString), NodeId>,
    /// Whether versions are not compared.
    is_lenient: bool,
}

impl Server {
    pub(crate) fn new() -> Self {
        let root = Node {
            kind: Some(NodeKind::Directory),
            ..Node::default()
        };
        Self {
            nodes: BTreeMap::from([(NodeId::ROOT, root)]),
            names: BTreeMap::new(),
            is_lenient: false,
        }
    }

    /// Applies a group of a process after others that were killed: nodes may be known already, and
    /// versions may be others.
    pub(crate) fn apply_any(&mut self, sent: &Sent) {
        self.is_lenient = true;
        self.apply(sent);
    }

    /// Applies a group as one transaction.
    pub(crate) fn apply(&mut self, sent: &Sent) {
        if let Some(folded) = &sent.fold {
            let fold = sent.group.fold.as_ref();
            self.apply_fold(folded, fold.map(|fold| fold.version));
            return;
        }
        let group = &sent.group;
        for node in &group.nodes {
            let known = self.nodes.entry(node.node).or_default();
            assert!(
                self.is_lenient || node.is_new == known.kind.is_none(),
                "group {}: {node:?}",
                group.id
            );
            known.kind = Some(node.kind);
        }
        for (content, body) in group.contents.iter().zip(&sent.bodies) {
            let len = usize::try_from(content.len_bytes).unwrap();
            let bytes = match (&content.source, body) {
                (LiveSource::Ranges(_), Body::Pieces(pieces)) => {
                    let mut bytes = self.nodes.entry(content.node).or_default().content.clone();
                    lay(&mut bytes, pieces, len);
                    bytes
                }
                (LiveSource::Delta { base, base_version, .. }, Body::Delta(delta)) => {
                    let base = &self.nodes[base];
                    if base_version.is_some() && !self.is_lenient {
                        assert_eq!(base.version, *base_version, "group {}: base of {content:?}", group.id);
                    }
                    let mut reader = DeltaReader::new(delta.as_slice()).unwrap();
                    let mut bytes = Vec::new();
                    apply_to_new(base.content.as_slice(), &mut reader, &mut bytes).unwrap();
                    assert_eq!(bytes.len(), len, "group {}: {content:?}", group.id);
                    bytes
                }
                other => panic!("{other:?}"),
            };
            let node = self.nodes.entry(content.node).or_default();
            if content.base.is_some() && !self.is_lenient {
                assert_eq!(node.version, content.base, "group {}: {content:?}", group.id);
            }
            node.content = bytes;
            node.version = Some(content.version);
        }
        for node in &group.nodes {
            let known = self.nodes.get_mut(&node.node).unwrap();
            if node.kind == NodeKind::File {
                assert_eq!(
                    known.content.len() as u64,
                    node.attributes.size,
                    "group {}: {node:?}",
                    group.id
                );
            }
            known.attributes = Some(node.attributes.clone());
        }
        self.rename(&group.names);
        self.forget_nameless();
    }

    fn apply_fold(&mut self, folded: &Folded, version: Option<Version>) {
        if folded.is_everything {
            self.names.clear();
        }
        for (node, kind, attributes, pieces) in &folded.nodes {
            let known = self.nodes.entry(*node).or_default();
            known.kind = Some(*kind);
            if let Some(pieces) = pieces {
                lay(&mut known.content, pieces, usize::try_from(attributes.size).unwrap());
                known.version = version;
            }
            known.attributes = Some(attributes.clone());
        }
        self.rename(&folded.names);
        self.forget_nameless();
    }

    fn rename(&mut self, names: &[NameChange<NodeId>]) {
        for change in names {
            let place = (change.parent, change.name.clone());
            match change.child {
                Some(child) => self.names.insert(place, child),
                None => self.names.remove(&place),
            };
        }
    }

    pub(crate) fn forget_nameless(&mut self) {
        loop {
            let named = self.names.values().copied().collect::<std::collections::BTreeSet<_>>();
            let before = self.nodes.len();
            self.nodes
                .retain(|node, _| *node == NodeId::ROOT || named.contains(node));
            let nodes = &self.nodes;
            let stray = self
                .names
                .iter()
                .find(|((parent, _), child)| !nodes.contains_key(parent) || !nodes.contains_key(child));
            assert!(stray.is_none(), "{stray:?} is in nothing, or stands for nothing");
            if self.nodes.len() == before {
                return;
            }
        }
    }

    /// All paths below the one that is called `under`, with what they stand for.
    pub(crate) fn paths(&self, under: &str) -> BTreeMap<PathBuf, NodeId> {
        let mut children: BTreeMap<NodeId, Vec<(&ByteString, NodeId)>> = BTreeMap::new();
        for ((parent, name), child) in &self.names {
            children.entry(*parent).or_default().push((name, *child));
        }
        let mut found = BTreeMap::new();
        let top = NodeId::ROOT;
        let mut todo = vec![(PathBuf::new(), top)];
        while let Some((path, node)) = todo.pop() {
            for (name, child) in children.get(&node).into_iter().flatten() {
                let path = path.join(String::from_utf8(name.as_bytes().to_vec()).unwrap());
                if !under.is_empty() && !path.starts_with(under) {
                    continue;
                }
                todo.push((path.clone(), *child));
                found.insert(path, *child);
            }
        }
        found
    }
}

fn lay(content: &mut Vec<u8>, pieces: &[(u64, Vec<u8>)], len: usize) {
    content.resize(len, 0);
    for (offset, bytes) in pieces {
        let at = usize::try_from(*offset).unwrap();
        content[at..at + bytes.len()].copy_from_slice(bytes);
    }
}
