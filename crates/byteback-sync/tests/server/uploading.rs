//! Groups of the sync queue on their way to a real server: the content of a file there afterwards
//! equals its content here, however it came about.

use byteback_backup::Silent;
use byteback_backup::file_id;
use byteback_client::{ClientOptions, TreePlace};
use byteback_control::{
    CutRequest, LiveContent, LiveFold, LiveGroup, LiveNode, LiveScope, LiveSource, LiveStatus, LiveTree, Piece, Result,
    ServiceError, TreeService, Work,
};
use byteback_delta::{DeltaReader, DeltaWriter, EmptyBase, WriterOptions, apply_to_new};
use byteback_extents::ByteRange;
use byteback_host::random::SplitMix64;
use byteback_model::{Attributes, FileId, NameChange, NodeId, NodeKind};
use byteback_oplog::TreeId;
use byteback_queue::queue::Resolution;
use byteback_queue::{ClientId, GroupId, Position, Version};
use byteback_sync::upload::{Footing, Sent, Upload, batch_counter};
use byteback_testkit::clients::{impatient, patient};
use byteback_testkit::rig::Rig;
use byteback_testkit::seed::seed;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// A tree that has nothing but the bytes of the groups in flight.
#[derive(Default)]
struct Bytes {
    pieces: BTreeMap<Position, Vec<(u64, Vec<u8>)>>,
    deltas: BTreeMap<u64, Vec<u8>>,
}

impl LiveTree for Bytes {
    fn fold(&self) {}

    fn read(&self, content: &LiveContent, sink: &mut dyn FnMut(Piece<'_>) -> Result<()>) -> Result<()> {
        for (offset, bytes) in &self.pieces[&content.at] {
            if bytes.iter().all(|byte| *byte == 0) {
                sink(Piece::Hole(
                    ByteRange::from_offset_len(*offset, bytes.len() as u64).unwrap(),
                ))?;
                continue;
            }
            for (index, chunk) in bytes.chunks(1000).enumerate() {
                let offset = offset + index as u64 * 1000;
                sink(Piece::Data { offset, bytes: chunk })?;
            }
        }
        Ok(())
    }

    fn read_delta(&self, stamp: u64, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.deltas[&stamp].chunks(100).try_for_each(sink)
    }

    fn poll(&self) -> Result<Work> {
        Ok(Work::Ended)
    }

    fn wait(&self, _: Duration) {}

    fn wake(&self) {}

    fn cut_fold(&self, _also: &[NodeId]) -> Result<Arc<LiveGroup>> {
        Err(ServiceError::new(
            byteback_control::ErrorKind::Refused,
            "nothing is folded",
        ))
    }

    fn applied(&self, _: GroupId) -> Result<()> {
        Ok(())
    }

    fn refused(&self, _: GroupId) -> Result<()> {
        Ok(())
    }

    fn resolve(&self, _: GroupId, _: &Resolution) -> Result<()> {
        Ok(())
    }

    fn unanswered(&self, _: Duration) {}

    fn never_arrived(&self, _: GroupId) -> Result<()> {
        Ok(())
    }

    fn unanswered_before(&self) -> Vec<GroupId> {
        Vec::new()
    }

    fn settled(&self, _: GroupId) {}

    fn known_up_to(&self, _: GroupId) -> byteback_control::Result<bool> {
        Ok(false)
    }

    fn give_up(&self, _: &str) {}

    fn unsaved(&self, _: &[NodeId]) {}

    fn status(&self) -> LiveStatus {
        LiveStatus::default()
    }
}

/// An origin: its state, and the group that it is making.
struct Origin {
    random: SplitMix64,
    names: BTreeMap<Vec<u8>, NodeId>,
    contents: BTreeMap<NodeId, Vec<u8>>,
    last_node: u64,
    position: u64,
    group: u64,
    live: Bytes,
    // Of the group in the making.
    changed_names: BTreeSet<Vec<u8>>,
    changed: Vec<LiveContent>,
    created: BTreeSet<NodeId>,
}

fn attributes(size: u64) -> Attributes {
    Attributes {
        kind: NodeKind::File,
        mode: 0o600,
        uid: 1,
        gid: 2,
        size,
        mtime_ns: 3,
        rdev: 0,
        inode_flags: 0,
        target: None,
        xattrs: Vec::new(),
        user: None,
        group: None,
    }
}

impl Origin {
    fn new(seed: u64) -> Self {
        Self {
            random: SplitMix64::new(seed),
            names: BTreeMap::new(),
            contents: BTreeMap::new(),
            last_node: 100,
            position: 0,
            group: 0,
            live: Bytes::default(),
            changed_names: BTreeSet::new(),
            changed: Vec::new(),
            created: BTreeSet::new(),
        }
    }

    fn some_bytes(&mut self) -> Vec<u8> {
        let len = 1 + self.random.below(5000) as usize;
        match self.random.below(4) {
            0 => vec![0; len],
            _ => (0..len).map(|_| self.random.next_u64() as u8).collect(),
        }
    }

    fn some_name(&mut self) -> Option<Vec<u8>> {
        let at = self.random.below(self.names.len().max(1) as u64) as usize;
        self.names.keys().nth(at).cloned()
    }

    fn content(&mut self, node: NodeId, len: usize, source: impl FnOnce(&mut Self) -> LiveSource) {
        self.position += 1;
        let source = source(self);
        self.changed.push(LiveContent {
            at: Position(self.position),
            node,
            version: byteback_queue::Version {
                client: byteback_queue::ClientId(1),
                counter: self.position,
            },
            base: None,
            len_bytes: len as u64,
            is_gone: false,
            source,
        });
    }

    fn overwrite(&mut self, node: NodeId) {
        let mut content = self.contents.get(&node).cloned().unwrap_or_default();
        // Begin of the change: bytes that were cut off and gained again count, too.
        let mut borders = BTreeSet::new();
        if self.random.below(3) == 0 && !content.is_empty() {
            content.truncate(self.random.below(content.len() as u64) as usize);
            borders.insert(content.len());
        }
        let mut at = 0;
        for _ in 0..self.random.below(3) {
            at += self.random.below(3000) as usize;
            let bytes = self.some_bytes();
            let end = at + bytes.len();
            if content.len() < end {
                content.resize(end, 0);
            }
            content[at..end].copy_from_slice(&bytes);
            borders.insert(at);
            at = end;
        }
        let len = content.len();
        let borders: Vec<usize> = borders.into_iter().filter(|at| *at < len).collect();
        let ends = borders.iter().skip(1).copied().chain([len]);
        let pieces: Vec<_> = borders
            .iter()
            .zip(ends)
            .map(|(from, to)| (*from as u64, content[*from..to].to_vec()))
            .collect();
        self.contents.insert(node, content);
        self.content(node, len, |origin| {
            let ranges = pieces.iter().map(|(at, bytes)| (*at, bytes.len() as u64)).collect();
            origin.live.pieces.insert(Position(origin.position), pieces);
            LiveSource::Ranges(ranges)
        });
    }

    fn create(&mut self) -> NodeId {
        self.last_node += 1;
        let node = NodeId(self.last_node);
        self.created.insert(node);
        self.contents.insert(node, Vec::new());
        let name = format!("file {}", self.last_node).into_bytes();
        self.changed_names.insert(name.clone());
        self.names.insert(name, node);
        node
    }

    /// Saves by renaming a temporary file with an insertion over the name.
    fn save_by_rename(&mut self, name: Vec<u8>) {
        let base = self.names[&name];
        let node = self.create();
        let temporary = format!("file {}", node.0).into_bytes();
        self.names.remove(&temporary);
        let old = self.contents[&base].clone();
        let at = self.random.below(old.len() as u64 + 1);
        let inserted = self.some_bytes();
        let mut new = old.clone();
        new.splice(at as usize..at as usize, inserted.iter().copied());
        let options = WriterOptions {
            copies: true,
            compress: true,
        };
        let mut writer = DeltaWriter::new(Vec::new(), old.len() as u64, new.len() as u64, options).unwrap();
        let behind = at + inserted.len() as u64;
        writer
            .literal(ByteRange::new(at, behind).unwrap(), &inserted[..])
            .unwrap();
        if let Some(moved) = ByteRange::new(behind, new.len() as u64) {
            writer.copy(moved, at).unwrap();
        }
        let (delta, len) = (writer.finish().unwrap().0, new.len());
        self.contents.insert(node, new);
        self.content(node, len, |origin| {
            let (stamp, len_bytes) = (origin.position, delta.len() as u64);
            origin.live.deltas.insert(stamp, delta);
            LiveSource::Delta {
                base,
                base_version: None,
                stamp,
                len_bytes,
            }
        });
        self.changed_names.insert(name.clone());
        self.names.insert(name, node);
        self.contents.remove(&base);
    }

    fn operation(&mut self) {
        let Some(name) = self.some_name().filter(|_| self.random.below(5) > 0) else {
            let node = self.create();
            if self.random.below(4) > 0 {
                self.overwrite(node);
            }
            return;
        };
        let node = self.names[&name];
        match self.random.below(8) {
            0 => {
                self.names.remove(&name);
                self.contents.remove(&node);
                self.changed_names.insert(name);
            }
            1 => {
                let to = format!("moved {}", self.random.below(1000)).into_bytes();
                if !self.names.contains_key(&to) {
                    self.names.remove(&name);
                    self.names.insert(to.clone(), node);
                    self.changed_names.extend([name, to]);
                }
            }
            // The queue takes no base that vanishes unsent.
            2..5 if !self.created.contains(&node) => self.save_by_rename(name),
            _ => self.overwrite(node),
        }
    }

    /// Ends the group in the making.
    fn group(&mut self) -> LiveGroup {
        self.group += 1;
        let names = std::mem::take(&mut self.changed_names);
        let mut contents = std::mem::take(&mut self.changed);
        let created = std::mem::take(&mut self.created);
        for content in &mut contents {
            content.is_gone = !self.contents.contains_key(&content.node);
        }
        let mut nodes: BTreeSet<NodeId> = contents.iter().map(|content| content.node).collect();
        nodes.extend(&created);
        nodes.retain(|node| self.contents.contains_key(node));
        LiveGroup {
            id: GroupId(self.group),
            up_to: Position(self.position),
            is_conflict: false,
            directory_times: Vec::new(),
            names: names
                .into_iter()
                .map(|name| NameChange {
                    parent: NodeId::ROOT,
                    child: self.names.get(&name).copied(),
                    name: name.into(),
                })
                .collect(),
            nodes: nodes
                .into_iter()
                .map(|node| LiveNode {
                    node,
                    kind: NodeKind::File,
                    is_new: created.contains(&node),
                    attributes: attributes(self.contents[&node].len() as u64),
                })
                .collect(),
            contents,
            fold: None,
        }
    }
}

/// Sends a group as this rig's device.
fn send(rig: &Rig, tree: TreeId, live: &dyn LiveTree, group: &LiveGroup, footing: Footing) -> Sent {
    try_send(rig, tree, live, group, footing).unwrap()
}

fn try_send(
    rig: &Rig,
    tree: TreeId,
    live: &dyn LiveTree,
    group: &LiveGroup,
    footing: Footing,
) -> byteback_backup::Result<Sent> {
    let upload = Upload {
        server: &rig.client,
        folder: &rig.folder,
        device: rig.options.device,
        live,
        tree,
        file_id: &move |node| file_id(tree, node),
        root: file_id(tree, NodeId::ROOT),
        host: "h".into(),
        path: "/p".into(),
        part_len_bytes: 8 * 1024,
        monitor: &Silent,
    };
    upload.send(group, footing)
}

fn assert_server_has(rig: &Rig, tree: TreeId, seq: u64, origin: &Origin) {
    let page = rig
        .client
        .tree_page(&rig.folder, seq, TreePlace::Path(b""), None)
        .unwrap();
    assert!(page.next_cursor.is_none());
    let names: BTreeMap<Vec<u8>, FileId> = page
        .entries
        .into_iter()
        .map(|entry| (entry.name.0, entry.node.id))
        .collect();
    let expected = origin
        .names
        .iter()
        .map(|(name, node)| (name.clone(), file_id(tree, *node)));
    assert_eq!(names, expected.collect());
    for (node, content) in &origin.contents {
        let id = file_id(tree, *node);
        let reader = rig.client.content(&rig.folder, id, seq, 0, &|_| true).unwrap();
        let mut held = Vec::new();
        apply_to_new(&EmptyBase, &mut DeltaReader::new(reader).unwrap(), &mut held).unwrap();
        assert!(held == *content, "node {} at {seq}", node.0);
    }
}

/// An empty folder at the server.
fn begun(seed: u64, options: ClientOptions) -> (Rig, TreeId) {
    let rig = Rig::with(seed, options);
    rig.backup().unwrap();
    let tree = TreeService::status(&rig.tree).unwrap().tree;
    (rig, tree)
}

#[test]
fn upload_of_random_group_chains_leaves_the_server_equal() {
    let seed = seed(71);
    for life in 0..2 {
        let (rig, tree) = begun(seed + life, patient());
        let mut origin = Origin::new(seed + life);
        let mut footing = Footing {
            base_seq: 1,
            follows: None,
        };
        let mut grown_from_others = 0;
        for round in 0..40 {
            for _ in 0..1 + origin.random.below(6) {
                origin.operation();
            }
            let group = origin.group();
            grown_from_others += group
                .contents
                .iter()
                .filter(|content| matches!(content.source, LiveSource::Delta { .. }))
                .count();
            if origin.random.below(4) == 0 {
                // The answer, or the batch itself, is lost once.
                rig.cutter.cut_after(origin.random.below(9000) as i64, false);
            }
            match send(&rig, tree, &origin.live, &group, footing) {
                Sent::Applied(applied) => assert_eq!(applied.seq, round + 2, "seed {seed}"),
                other => panic!("seed {seed}, life {life}, round {round}: {other:?}"),
            }
            rig.cutter.heal();
            footing.follows = Some(batch_counter(tree, group.id));
            assert_server_has(&rig, tree, round + 2, &origin);
        }
        assert!(grown_from_others > 10, "{grown_from_others}");
        let status = rig
            .client
            .batch_status(&rig.folder, batch_counter(tree, GroupId(40)))
            .unwrap();
        assert_eq!(status.applied.unwrap().seq, 41);
    }
}

#[test]
fn a_group_that_is_sent_again_after_no_answer_is_applied_once() {
    let options = ClientOptions {
        idle_timeout: Duration::from_millis(500),
        ..impatient()
    };
    let (rig, tree) = begun(5, options);
    let mut origin = Origin::new(5);
    let mut footing = Footing {
        base_seq: 1,
        follows: None,
    };
    let (mut unanswered, mut applied) = (0, 0);
    for _ in 0..8 {
        origin.operation();
        let group = origin.group();
        let mut most = 4000;
        loop {
            rig.cutter.cut_after(origin.random.below(most) as i64, false);
            // A group may be longer than that.
            most += 500;
            match send(&rig, tree, &origin.live, &group, footing) {
                Sent::Applied(_) => break,
                Sent::Unanswered(_) => unanswered += 1,
                other => panic!("{other:?}"),
            }
        }
        rig.cutter.heal();
        applied += 1;
        assert_eq!(rig.seq(), applied + 1);
        footing.follows = Some(batch_counter(tree, group.id));
    }
    assert!(unanswered > 2, "{unanswered}");
    assert_server_has(&rig, tree, rig.seq(), &origin);
}

#[test]
fn what_cannot_be_sent_says_why_and_changes_nothing() {
    let (rig, tree) = begun(6, patient());
    let mut origin = Origin::new(6);
    let node = origin.create();
    origin.overwrite(node);
    let first = origin.group();
    let mut footing = Footing {
        base_seq: 1,
        follows: None,
    };
    assert!(matches!(
        send(&rig, tree, &origin.live, &first, footing),
        Sent::Applied(_)
    ));
    origin.create();
    let second = origin.group();
    // On top of a group that never arrived.
    footing.follows = Some(batch_counter(tree, GroupId(77)));
    let sent = send(&rig, tree, &origin.live, &second, footing);
    assert!(matches!(sent, Sent::Refused(_)), "{sent:?}");
    // Without a mention of the group before, its file looks like another device's.
    footing.follows = None;
    origin.overwrite(node);
    while origin.changed.is_empty() {
        origin.overwrite(node);
    }
    let third = origin.group();
    let sent = send(&rig, tree, &origin.live, &third, footing);
    assert!(matches!(sent, Sent::Refused(_)), "{sent:?}");
    // From a file that the server does not have.
    footing.follows = Some(batch_counter(tree, GroupId(1)));
    let unknown = origin.create();
    origin.created.clear();
    origin.changed_names.clear();
    origin.names.insert(b"x".to_vec(), unknown);
    origin.save_by_rename(b"x".to_vec());
    let fourth = origin.group();
    let sent = send(&rig, tree, &origin.live, &fourth, footing);
    assert!(matches!(sent, Sent::Unsendable(_)), "{sent:?}");
    // A delta longer than a part.
    let mut long = fourth.clone();
    for content in &mut long.contents {
        if let LiveSource::Delta { len_bytes, .. } = &mut content.source {
            *len_bytes = 9000;
        }
    }
    let sent = send(&rig, tree, &origin.live, &long, footing);
    assert!(
        matches!(&sent, Sent::Unsendable(why) if why.contains("longer than a part")),
        "{sent:?}"
    );
    // A base that is not in the group itself.
    let conflict = LiveGroup {
        is_conflict: true,
        ..second.clone()
    };
    let fold = LiveFold {
        version: Version {
            client: ClientId(7),
            counter: 1,
        },
        cut: rig.tree.cut(&CutRequest::of("sync")).unwrap(),
        scope: LiveScope::Everything { names: Vec::new() },
    };
    let fold = LiveGroup {
        fold: Some(fold),
        ..second
    };
    for group in [conflict, fold] {
        let error = try_send(&rig, tree, &origin.live, &group, footing).unwrap_err();
        assert!(
            matches!(&error, byteback_backup::BackupError::Tree(why) if why.message.contains("must be taken from a cut")),
            "{error:?}"
        );
    }
    assert_eq!(rig.seq(), 2);
}
