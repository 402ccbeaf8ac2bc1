//! The scripted tree as a [`TreeService`]: cuts, pages of changes, reads, marks.

use super::leaves;
use super::{Changed, KnownBefore, OpenCut, PAGE_LEN, ScriptedTree};
use byteback_control::{
    ChangesCursor, ChangesPage, ConsumerStatus, ContentChange, CutId, CutInfo, CutRequest, DirEntry, ErrorKind,
    FinishReport, LeafOffer, LeafPiece, LeafRequest, LeavesSummary, NodeChange, NodeNames, Outcome, Piece, Result,
    ServiceError, TreeService, TreeStatus,
};
use byteback_extents::ByteRange;
use byteback_model::{Attributes, ByteString, NameChange, NodeId, NodeKind};
use byteback_oplog::{Epoch, WholeReason};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

impl ScriptedTree {
    fn pieces(
        &self,
        cut: CutId,
        node: NodeId,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        let (file, mut left) = {
            let state = self.lock();
            let open = &state.cuts[&cut.0];
            assert!(!open.look_only);
            open.assert_held(node, ranges);
            let file = open.picture.nodes[&node].clone();
            (file, state.failing.get(&node).copied().unwrap_or(usize::MAX))
        };
        for (offset, len) in ranges {
            let end = (offset + len).min(file.attributes.size);
            let Some(range) = ByteRange::new(*offset, end) else {
                continue;
            };
            for (piece, is_hole) in file.content.pieces(range) {
                if is_hole {
                    sink(Piece::Hole(piece))?;
                    continue;
                }
                let mut bytes = vec![0; piece.len_bytes() as usize];
                file.content.read(piece.start(), &mut bytes);
                for (index, chunk) in bytes.chunks(self.chunk_len.load(Ordering::Relaxed)).enumerate() {
                    if left < chunk.len() {
                        return Err(ServiceError::new(ErrorKind::Node, "the disk is broken here"));
                    }
                    left -= chunk.len();
                    self.lock().read_bytes += chunk.len() as u64;
                    sink(Piece::Data {
                        offset: piece.start() + (index * self.chunk_len.load(Ordering::Relaxed)) as u64,
                        bytes: chunk,
                    })?;
                }
            }
        }
        Ok(())
    }
}

impl TreeService for ScriptedTree {
    fn status(&self) -> Result<TreeStatus> {
        let state = self.lock();
        Ok(TreeStatus {
            path: "/scripted".into(),
            mounted_at: None,
            mode: None,
            tree: state.tree,
            epoch: Epoch(state.epoch),
            nodes: state.now.nodes.len() as u64,
            open_nodes: 0,
            pid: 0,
            consumers: state.consumers.values().cloned().collect(),
            ledger: Vec::new(),
            usage: byteback_oplog::Usage::default(),
            sync: None,
            damaged: Vec::new(),
            detached: None,
            volume_failure: None,
        })
    }

    fn resolve_pending(&self, consumer: &str, saved: Option<Vec<u8>>) -> Result<()> {
        let mut state = self.lock();
        if let Some(consumer) = state.consumers.get_mut(consumer)
            && let Some((epoch, _)) = consumer.pending.take()
            && let Some(note) = saved
        {
            consumer.mark = Some(epoch);
            consumer.note = note;
        }
        Ok(())
    }

    fn drop_consumer(&self, consumer: &str) -> Result<bool> {
        Ok(self.lock().consumers.remove(consumer).is_some())
    }

    fn cut(&self, request: &CutRequest) -> Result<CutInfo> {
        let mut state = self.lock();
        let ended = state.epoch;
        state.epoch += 1;
        let epoch = state.epoch;
        let consumer = state
            .consumers
            .entry(request.consumer.clone())
            .or_insert_with(|| ConsumerStatus {
                name: request.consumer.clone(),
                ..ConsumerStatus::default()
            });
        assert!(
            consumer.pending.is_none() || request.look_only,
            "a pending cut has to be settled first"
        );
        if !request.look_only {
            consumer.pending = Some((Epoch(epoch), 0));
        }
        let since = request.since.or(consumer.mark).filter(|_| !request.everything);
        let picture = state.now.clone();
        state.moments.insert(epoch, picture.clone());
        let before = since.and_then(|since| state.moments.get(&since.0).cloned());
        let mut nodes: BTreeMap<NodeId, Changed> = BTreeMap::new();
        let mut names: BTreeMap<(NodeId, Vec<u8>), Option<NodeId>> = BTreeMap::new();
        match since {
            Some(since) => {
                for (_, log) in state.log.range(since.0..=ended) {
                    for (node, changed) in &log.nodes {
                        let sum = nodes.entry(*node).or_default();
                        sum.ranges.union_with(&changed.ranges);
                        sum.whole = changed.whole.or(sum.whole);
                        sum.is_new |= changed.is_new;
                    }
                    for (name, was) in &log.names {
                        names.entry(name.clone()).or_insert(*was);
                    }
                }
            }
            None => {
                for node in picture.nodes.keys() {
                    let whole = Some(WholeReason::NoMark);
                    nodes.insert(
                        *node,
                        Changed {
                            whole,
                            is_new: true,
                            ..Changed::default()
                        },
                    );
                }
                names.extend(picture.names.keys().map(|name| (name.clone(), None)));
            }
        }
        let mut content_bytes = 0;
        let nodes: Vec<NodeChange> = nodes
            .into_iter()
            .filter_map(|(node, changed)| {
                let there = picture.nodes.get(&node)?;
                let content = match (there.attributes.kind, changed.whole) {
                    (NodeKind::File, _) if changed.is_new && since.is_some() => {
                        ContentChange::Whole(WholeReason::Created)
                    }
                    (NodeKind::File, Some(reason)) => ContentChange::Whole(reason),
                    (NodeKind::File, None) if !changed.ranges.is_empty() => {
                        ContentChange::Ranges(changed.ranges.clone())
                    }
                    _ => ContentChange::Unchanged,
                };
                if let ContentChange::Ranges(ranges) = &content {
                    content_bytes += ranges.total_len_bytes();
                }
                Some(NodeChange {
                    node,
                    kind: there.attributes.kind,
                    content,
                    is_new: changed.is_new,
                })
            })
            .collect();
        let stood_for = names.iter().filter_map(|(name, was)| Some((name.clone(), (*was)?)));
        let stood_for = stood_for.collect();
        let names: Vec<NameChange<NodeId>> = names
            .into_keys()
            .map(|(parent, name)| NameChange {
                parent,
                child: picture.names.get(&(parent, name.clone())).copied(),
                name: name.into(),
            })
            .collect();
        let id = state.next_cut;
        state.next_cut += 1;
        let info = CutInfo {
            cut: CutId(id),
            tree: state.tree,
            epoch: Epoch(epoch),
            since,
            nodes: nodes.len() as u64,
            names: names.len() as u64,
            content_bytes,
            tree_nodes: picture.nodes.len() as u64,
            unreadable: Vec::new(),
        };
        let cut = OpenCut {
            consumer: request.consumer.clone(),
            before,
            look_only: request.look_only,
            whole_files: request.whole_files,
            epoch,
            picture,
            nodes,
            names,
            stood_for,
            given_up: BTreeMap::new(),
            peeked: BTreeSet::new(),
        };
        state.cuts.insert(id, cut);
        Ok(info)
    }

    fn changes(&self, cut: CutId, cursor: &ChangesCursor) -> Result<ChangesPage> {
        let state = self.lock();
        let cut = &state.cuts[&cut.0];
        let told_node = |last: NodeId| cut.nodes.iter().position(|change| change.node == last).unwrap() + 1;
        let told_name = |(parent, name): &(NodeId, ByteString)| {
            let is_last = |change: &NameChange<NodeId>| change.parent == *parent && change.name == *name;
            cut.names.iter().position(is_last).unwrap() + 1
        };
        let node = cursor.node.map_or(0, told_node);
        let name = cursor.name.as_ref().map_or(0, told_name);
        let nodes: Vec<_> = cut.nodes.iter().skip(node).take(PAGE_LEN).cloned().collect();
        let left = PAGE_LEN - nodes.len();
        let names: Vec<_> = cut.names.iter().skip(name).take(left).cloned().collect();
        let is_last = node + nodes.len() == cut.nodes.len() && name + names.len() == cut.names.len();
        let last_name = names.last().map(|change| (change.parent, change.name.clone()));
        let next = ChangesCursor {
            node: nodes.last().map(|change| change.node).or(cursor.node),
            name: last_name.or_else(|| cursor.name.clone()),
        };
        Ok(ChangesPage {
            nodes,
            names,
            next: (!is_last).then_some(next),
        })
    }

    fn attributes(&self, cut: CutId, nodes: &[NodeId]) -> Result<Vec<Result<Attributes>>> {
        let state = self.lock();
        let cut = &state.cuts[&cut.0];
        let attributes = nodes.iter().map(|node| {
            if state.nameless.contains(node) {
                return Err(ServiceError::new(ErrorKind::Node, "no attributes for you"));
            }
            Ok(cut.picture.nodes[node].attributes.clone())
        });
        Ok(attributes.collect())
    }

    fn read(
        &self,
        cut: CutId,
        node: NodeId,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut is_other =
            self.is_peek_wrong.load(Ordering::Relaxed) && self.lock().cuts[&cut.0].peeked.contains(&node);
        let read = self.pieces(cut, node, ranges, &mut |piece| match piece {
            Piece::Data { offset, bytes } if is_other => {
                is_other = false;
                let mut bytes = bytes.to_vec();
                bytes[0] ^= 1;
                sink(Piece::Data { offset, bytes: &bytes })
            }
            piece => sink(piece),
        });
        if let Some(open) = self.lock().cuts.get_mut(&cut.0) {
            open.give_up(node, ranges);
        }
        read
    }

    fn peek(
        &self,
        cut: CutId,
        node: NodeId,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        if let Some(open) = self.lock().cuts.get_mut(&cut.0) {
            open.peeked.insert(node);
        }
        self.pieces(cut, node, ranges, sink)
    }

    fn before_image(
        &self,
        cut: CutId,
        node: NodeId,
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<Option<u64>> {
        let state = self.lock();
        let (known, cut) = (state.known_before, &state.cuts[&cut.0]);
        let before = cut.before.as_ref().and_then(|before| before.nodes.get(&node));
        let change = cut.nodes.iter().find(|change| change.node == node);
        let (Some(file), Some(ContentChange::Ranges(ranges))) = (before, change.map(|change| &change.content)) else {
            return Ok(None);
        };
        if known == KnownBefore::Nothing {
            return Ok(None);
        }
        let file = file.content.clone();
        let ranges = ranges.clone();
        drop(state);
        for range in ranges.iter().filter_map(|range| range.split_at(file.len()).0) {
            let mut offset = range.start();
            while offset < range.end() {
                let end = range.end().min((offset / 1000 + 1) * 1000);
                let mut bytes = vec![0; (end - offset) as usize];
                file.read(offset, &mut bytes);
                if known == KnownBefore::Wrong {
                    bytes.iter_mut().for_each(|byte| *byte ^= 1);
                    // Something of it must be found, too.
                    let there = self.lock().now.nodes.get(&node).cloned();
                    if let Some(there) = there.filter(|there| there.content.len() >= end) {
                        there.content.read(offset, &mut bytes);
                    }
                }
                if known != KnownBefore::Half || offset / 1000 % 2 == 0 {
                    sink(Piece::Data { offset, bytes: &bytes })?;
                }
                offset = end;
            }
        }
        if known == KnownBefore::Longer
            && let Some(start) = ranges.iter().next().map(ByteRange::start)
        {
            let mut bytes = vec![0; 8192];
            self.lock().now.nodes[&node].content.read(start, &mut bytes);
            let offset = file.len();
            sink(Piece::Data { offset, bytes: &bytes })?;
            return Ok(Some(offset + bytes.len() as u64));
        }
        Ok(Some(file.len()))
    }

    fn leaf_offer(&self, cut: CutId, node: NodeId) -> Result<LeafOffer> {
        let state = self.lock();
        let _ = state.cuts[&cut.0]
            .picture
            .nodes
            .get(&node)
            .ok_or_else(leaves::no_file)?;
        state.leaves.offer()
    }

    fn leaf_sums(
        &self,
        cut: CutId,
        node: NodeId,
        request: LeafRequest,
        sink: &mut dyn FnMut(LeafPiece<'_>) -> Result<()>,
    ) -> Result<LeavesSummary> {
        let (leaves, file, is_failing) = {
            let state = self.lock();
            let file = state.cuts[&cut.0].picture.nodes[&node].clone();
            (state.leaves, file, state.failing.contains_key(&node))
        };
        let reported = leaves.tell(&file.content, request, sink)?;
        self.lock().read_bytes += reported.read_bytes;
        match is_failing {
            true => Err(leaves::no_file()),
            false => Ok(reported),
        }
    }

    fn path(&self, cut: CutId, node: NodeId) -> Result<Option<ByteString>> {
        let state = self.lock();
        Ok(state.cuts[&cut.0].picture.path_of(node).map(ByteString::from))
    }

    fn names(&self, cut: CutId, nodes: &[NodeId]) -> Result<Vec<NodeNames>> {
        let state = self.lock();
        let OpenCut { picture, stood_for, .. } = &state.cuts[&cut.0];
        let names = |node: &NodeId| {
            let names = || picture.names.iter().filter(|(_, child)| *child == node);
            let predecessors = names().filter_map(|(name, _)| stood_for.get(name).copied());
            NodeNames {
                kind: picture.nodes.get(node).map(|node| node.attributes.kind),
                names: names()
                    .map(|((parent, name), _)| (*parent, name.as_slice().into()))
                    .collect(),
                stood_for: predecessors.into_iter().find(|before| before != node),
                copied_from: state.copied_from.get(node).copied(),
            }
        };
        Ok(nodes.iter().map(names).collect())
    }

    fn entries(&self, cut: CutId, directory: NodeId, after: Option<&ByteString>) -> Result<Vec<DirEntry>> {
        let state = self.lock();
        let picture = &state.cuts[&cut.0].picture;
        let behind = picture
            .names_in(directory)
            .filter(|(name, _)| after.is_none_or(|after| *name > after.as_bytes()));
        let entry = |(name, node): (&[u8], NodeId)| DirEntry {
            name: name.into(),
            node,
            kind: picture.nodes[&node].attributes.kind,
        };
        Ok(behind.take(PAGE_LEN).map(entry).collect())
    }

    fn find(&self, cut: CutId, path: &ByteString) -> Result<Option<NodeId>> {
        let state = self.lock();
        let picture = &state.cuts[&cut.0].picture;
        let mut node = NodeId::ROOT;
        for name in path.as_bytes().split(|byte| *byte == b'/') {
            match picture.names.get(&(node, name.to_vec())) {
                Some(child) => node = *child,
                None => return Ok(None),
            }
        }
        Ok(Some(node))
    }

    fn note_batch(&self, cut: CutId, batch: u64) -> Result<()> {
        let mut state = self.lock();
        let name = state.cuts[&cut.0].consumer.clone();
        let consumer = state.consumers.get_mut(&name).unwrap();
        consumer.pending = consumer.pending.map(|(epoch, _)| (epoch, batch));
        Ok(())
    }

    fn finish(&self, cut: CutId, outcome: &Outcome) -> Result<FinishReport> {
        let mut state = self.lock();
        let cut = state.cuts.remove(&cut.0).unwrap();
        if !cut.look_only {
            let consumer = state.consumers.get_mut(&cut.consumer).unwrap();
            match outcome {
                Outcome::Saved { note, unsaved } => {
                    consumer.pending = None;
                    consumer.mark = Some(Epoch(cut.epoch));
                    consumer.note.clone_from(note);
                    for node in unsaved {
                        if state.now.nodes.contains_key(node) {
                            state.mark_whole(*node, WholeReason::Unsaved);
                        }
                    }
                }
                Outcome::Abandoned => consumer.pending = None,
                Outcome::Unknown => {}
            }
        }
        let read_bytes = std::mem::take(&mut state.read_bytes);
        Ok(FinishReport {
            read_bytes,
            kept_bytes: 0,
            cpu_ns: 0,
        })
    }

    fn unmount(&self) -> Result<()> {
        Err(ServiceError::new(ErrorKind::Protocol, "it is not mounted"))
    }
}
