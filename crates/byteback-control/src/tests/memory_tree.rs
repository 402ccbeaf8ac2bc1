//! A tracked tree in memory: files with their changed ranges, cuts that keep the content of their
//! moment, consumers with marks.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex};

use byteback_extents::ByteRange;
use byteback_model::{Attributes, ByteString, NameChange, NodeId, NodeKind, Xattr};
use byteback_oplog::{Epoch, LedgerEntry, LedgerEvent, TreeId, Usage, WholeReason};

use crate::leaves::{LEAF_LEN_BYTES, LeafKind, LeafOffer, LeafPiece, LeafRequest, LeafSource, LeavesSummary};
use crate::service::{
    ConsumerStatus, CutId, CutInfo, CutRequest, DamagedFile, DirEntry, ErrorKind, FinishReport, NamedCut, NodeNames,
    Outcome, Piece, Result, ServiceError, TreeService, TreeStatus,
};
use crate::{ChangesCursor, ChangesPage, ContentChange, NodeChange};

/// Items in one page of changes, small, so that there are several.
const PAGE_ITEMS: usize = 3;
/// Bytes in one piece of content.
const PIECE_BYTES: usize = 100_000;
/// Reading this node panics.
pub(super) const PANICKING: NodeId = NodeId(666);
/// Reading this node waits until [`MemoryTree::open_gate`].
pub(super) const WAITING: NodeId = NodeId(777);

#[derive(Clone, Debug, Default)]
pub(super) struct MemoryFile {
    pub(super) name: Vec<u8>,
    /// `None`: a hole of this many bytes.
    pub(super) extents: Vec<Result<Vec<u8>, u64>>,
    pub(super) changed_in: u64,
}

#[derive(Clone, Debug, Default)]
struct Consumer {
    mark: Option<u64>,
    pending: Option<(u64, u64)>,
    note: Vec<u8>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    epoch: u64,
    next_cut: u64,
    pub(super) files: BTreeMap<u64, MemoryFile>,
    consumers: BTreeMap<String, Consumer>,
    cuts: BTreeMap<CutId, (CutRequest, u64, BTreeMap<u64, MemoryFile>)>,
    /// How each cut ended, in order.
    pub(super) finished: Vec<(CutId, Outcome)>,
    pub(super) unmounted: bool,
    named_cuts: Vec<NamedCut>,
    /// Calls of `read` that wait, and whether they may go on.
    pub(super) waiting: usize,
    gate_is_open: bool,
    pub(super) pieces_sent: u64,
    pub(super) cut_error: Option<ServiceError>,
}

#[derive(Debug, Default)]
pub(super) struct MemoryTree {
    state: Mutex<State>,
    changed: Condvar,
}

impl MemoryTree {
    pub(super) fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Writes a file: it changed in the current epoch.
    pub(super) fn write(&self, node: u64, name: &[u8], extents: Vec<Result<Vec<u8>, u64>>) {
        let mut state = self.state();
        let changed_in = state.epoch;
        let name = name.to_vec();
        state.files.insert(
            node,
            MemoryFile {
                name,
                extents,
                changed_in,
            },
        );
    }

    pub(super) fn open_gate(&self) {
        self.state().gate_is_open = true;
        self.changed.notify_all();
    }

    pub(super) fn open_cuts(&self) -> usize {
        self.state().cuts.len()
    }
}

fn lost() -> ServiceError {
    ServiceError::new(ErrorKind::PictureLost, "this cut is not open; begin a new backup")
}

fn unreadable(node: NodeId) -> ServiceError {
    ServiceError {
        kind: ErrorKind::Node,
        message: format!("cannot read node {node}: it is not there"),
        path: Some(ByteString::from(&b"odd\xff name"[..])),
    }
}

impl TreeService for MemoryTree {
    /// Says everything back, if there is a file to say so.
    fn carry_line(&self, connection: UnixStream) -> Result<()> {
        if self.state().files.is_empty() {
            return Err(ServiceError::new(ErrorKind::Refused, "no line"));
        }
        std::thread::spawn(move || std::io::copy(&mut &connection, &mut &connection));
        Ok(())
    }

    fn status(&self) -> Result<TreeStatus> {
        let state = self.state();
        Ok(TreeStatus {
            path: ByteString::from(&b"/data/\xfe"[..]),
            mounted_at: Some(ByteString::from("/data")),
            detached: None,
            volume_failure: None,
            mode: Some("exact".to_owned()),
            tree: TreeId(u64::MAX),
            epoch: Epoch(state.epoch),
            nodes: state.files.len() as u64,
            open_nodes: state.cuts.len() as u64,
            pid: 4242,
            consumers: state
                .consumers
                .iter()
                .map(|(name, consumer)| ConsumerStatus {
                    name: name.clone(),
                    mark: consumer.mark.map(Epoch),
                    pending: consumer.pending.map(|(epoch, batch)| (Epoch(epoch), batch)),
                    saved_at_ns: i64::MIN,
                    note: consumer.note.clone(),
                    heard_at_ns: 7,
                    file_marks: u64::MAX,
                    expires_at_ns: Some(-1),
                    dropped: None,
                })
                .collect(),
            ledger: vec![LedgerEntry {
                at_ns: -5,
                event: LedgerEvent::Interrupted { open_files: 3 },
            }],
            sync: None,
            usage: Usage {
                pending_extents: 3,
                ..Usage::default()
            },
            damaged: vec![DamagedFile {
                node: NodeId(3),
                path: Some(ByteString::from(&b"odd\xff name"[..])),
                after_crash: true,
                found_at_ns: -5,
                ranges: vec![(4096, 8192)],
            }],
        })
    }

    fn resolve_pending(&self, consumer: &str, saved: Option<Vec<u8>>) -> Result<()> {
        let mut state = self.state();
        let Some(consumer) = state.consumers.get_mut(consumer) else {
            return Err(ServiceError::new(ErrorKind::Log, "no such consumer"));
        };
        let pending = consumer.pending.take();
        if let (Some(note), Some((epoch, _))) = (saved, pending) {
            consumer.mark = Some(epoch);
            consumer.note = note;
        }
        Ok(())
    }

    fn drop_consumer(&self, consumer: &str) -> Result<bool> {
        Ok(self.state().consumers.remove(consumer).is_some())
    }

    fn cut(&self, request: &CutRequest) -> Result<CutInfo> {
        let mut state = self.state();
        if let Some(error) = state.cut_error.take() {
            return Err(error);
        }
        state.epoch += 1;
        state.next_cut += 1;
        let (cut, epoch) = (CutId(state.next_cut), state.epoch);
        let files = state.files.clone();
        let consumer = state.consumers.entry(request.consumer.clone()).or_default();
        let mark = if request.everything {
            None
        } else {
            request.since.map(|since| since.0).or(consumer.mark)
        };
        if !request.look_only {
            consumer.pending = Some((epoch, 0));
        }
        let changed = files
            .values()
            .filter(|file| mark.is_none_or(|mark| file.changed_in >= mark))
            .count() as u64;
        let tree_nodes = files.len() as u64;
        let request = CutRequest {
            since: mark.map(Epoch),
            ..request.clone()
        };
        state.cuts.insert(cut, (request, epoch, files));
        Ok(CutInfo {
            cut,
            tree: TreeId(u64::MAX),
            epoch: Epoch(epoch),
            since: mark.map(Epoch),
            nodes: changed,
            names: changed,
            content_bytes: 0,
            tree_nodes,
            unreadable: vec![unreadable(NodeId(9))],
        })
    }

    fn changes(&self, cut: CutId, cursor: &ChangesCursor) -> Result<ChangesPage> {
        let state = self.state();
        let (request, _, files) = state.cuts.get(&cut).ok_or_else(lost)?;
        let changed: Vec<_> = files
            .iter()
            .filter(|(_, file)| request.since.is_none_or(|mark| file.changed_in >= mark.0))
            .collect();
        let behind = |last: Option<u64>| {
            let place = |last: u64| changed.iter().position(|(node, _)| **node == last);
            last.map_or(0, |last| place(last).map_or(changed.len(), |place| place + 1))
        };
        let told_nodes = behind(cursor.node.map(|node| node.0));
        // The names of this tree come in the order of their nodes.
        let named = |name: &ByteString| {
            changed
                .iter()
                .find(|(_, file)| file.name == name.as_bytes())
                .map(|(node, _)| **node)
        };
        let told_names = behind(cursor.name.as_ref().and_then(|(_, name)| named(name)));
        let mut page = ChangesPage::default();
        for (node, file) in changed.iter().skip(told_nodes).take(PAGE_ITEMS) {
            let content = match file.extents.len() {
                0 => ContentChange::Unchanged,
                1 => ContentChange::Whole(WholeReason::Interrupted),
                count => ContentChange::Ranges(
                    (0..count as u64)
                        .filter_map(|at| ByteRange::from_offset_len(at * 10, 5))
                        .collect(),
                ),
            };
            page.nodes.push(NodeChange {
                node: NodeId(**node),
                kind: NodeKind::File,
                content,
                is_new: *node % 2 == 0,
            });
        }
        for (node, file) in changed.iter().skip(told_names).take(PAGE_ITEMS - page.nodes.len()) {
            let name = ByteString::from(&file.name[..]);
            let child = (**node != 3).then_some(NodeId(**node));
            page.names.push(NameChange {
                parent: NodeId::ROOT,
                name,
                child,
            });
        }
        let reported = told_nodes + told_names + page.nodes.len() + page.names.len();
        let last_node = page.nodes.last().map(|change| change.node);
        let last_name = page.names.last().map(|change| (change.parent, change.name.clone()));
        page.next = (reported < 2 * changed.len()).then(|| ChangesCursor {
            node: last_node.or(cursor.node),
            name: last_name.or_else(|| cursor.name.clone()),
        });
        Ok(page)
    }

    fn attributes(&self, cut: CutId, nodes: &[NodeId]) -> Result<Vec<Result<Attributes>>> {
        let state = self.state();
        let (_, _, files) = state.cuts.get(&cut).ok_or_else(lost)?;
        let attributes = |node: &NodeId| {
            let file = files.get(&node.0).ok_or_else(|| unreadable(*node))?;
            Ok(Attributes {
                kind: NodeKind::File,
                mode: 0o4755,
                uid: u32::MAX,
                gid: 0,
                size: file.extents.len() as u64,
                mtime_ns: -1,
                rdev: 0,
                inode_flags: 0,
                target: Some(ByteString::from(&file.name[..])),
                xattrs: vec![Xattr {
                    name: ByteString::from("user.x"),
                    value: ByteString::from(&b"\0\xff"[..]),
                }],
                user: None,
                group: Some(ByteString::from("users")),
            })
        };
        Ok(nodes.iter().map(attributes).collect())
    }

    fn peek(
        &self,
        cut: CutId,
        node: NodeId,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        self.read(cut, node, ranges, sink)
    }

    fn read(
        &self,
        cut: CutId,
        node: NodeId,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        assert_ne!(node, PANICKING, "asked to");
        let file = {
            let state = self.state();
            let (_, _, files) = state.cuts.get(&cut).ok_or_else(lost)?;
            files.get(&node.0).cloned().ok_or_else(|| unreadable(node))?
        };
        if node == WAITING {
            let mut state = self.state();
            state.waiting += 1;
            while !state.gate_is_open {
                state = self.changed.wait(state).unwrap();
            }
            state.waiting -= 1;
        }
        for (from, len) in ranges {
            let to = from.saturating_add(*len);
            let mut at = 0;
            for extent in &file.extents {
                let end = at + extent.as_ref().map_or_else(|len| *len, |bytes| bytes.len() as u64);
                if let Some(range) = ByteRange::new(at.max(*from), end.min(to)) {
                    match extent {
                        Err(_) => sink(Piece::Hole(range))?,
                        Ok(bytes) => {
                            let inside = |offset: u64| usize::try_from(offset - at).unwrap();
                            let mut offset = range.start();
                            for bytes in bytes[inside(range.start())..inside(range.end())].chunks(PIECE_BYTES) {
                                sink(Piece::Data { offset, bytes })?;
                                offset += bytes.len() as u64;
                                self.state().pieces_sent += 1;
                            }
                        }
                    }
                }
                at = end;
            }
        }
        Ok(())
    }

    fn leaf_offer(&self, cut: CutId, node: NodeId) -> Result<LeafOffer> {
        let state = self.state();
        let (_, _, files) = state.cuts.get(&cut).ok_or_else(lost)?;
        let file = files.get(&node.0).ok_or_else(|| unreadable(node))?;
        Ok(LeafOffer {
            kind: LeafKind::Blake2b256,
            source: LeafSource::Kept,
            has_crcs: file.name.len() > 4,
        })
    }

    /// Leaf n of an extent of bytes is summed as n in every byte, and the first extent is delivered
    /// once in vain.
    fn leaf_sums(
        &self,
        cut: CutId,
        node: NodeId,
        request: LeafRequest,
        sink: &mut dyn FnMut(LeafPiece<'_>) -> Result<()>,
    ) -> Result<LeavesSummary> {
        let file = {
            let state = self.state();
            let (_, _, files) = state.cuts.get(&cut).ok_or_else(lost)?;
            files.get(&node.0).cloned().ok_or_else(|| unreadable(node))?
        };
        let (mut offset, mut read_bytes) = (0, 0);
        for extent in file.extents.first().into_iter().chain(&file.extents) {
            match extent {
                Ok(bytes) => {
                    // More than one frame takes, of long ones.
                    let leaves = match bytes.len() {
                        1_000_000.. => 60_000,
                        len => len.div_ceil(LEAF_LEN_BYTES as usize),
                    };
                    let entries: Vec<u8> = (0..leaves)
                        .flat_map(|leaf| vec![leaf as u8; request.entry_len()])
                        .collect();
                    sink(LeafPiece::Sums {
                        offset,
                        entries: &entries,
                    })?;
                    // Not of the extent's true length, so that all begin with a leaf.
                    offset += leaves as u64 * LEAF_LEN_BYTES;
                }
                Err(len) => {
                    let range = ByteRange::from_offset_len(offset, len.next_multiple_of(LEAF_LEN_BYTES)).unwrap();
                    sink(LeafPiece::Zeros(range))?;
                    offset = range.end();
                }
            }
            if read_bytes == 0 {
                offset = 0;
            }
            read_bytes += offset + 1;
        }
        Ok(LeavesSummary {
            source: LeafSource::Btrfs,
            read_bytes,
        })
    }

    fn path(&self, cut: CutId, node: NodeId) -> Result<Option<ByteString>> {
        let state = self.state();
        let (_, _, files) = state.cuts.get(&cut).ok_or_else(lost)?;
        Ok(files.get(&node.0).map(|file| ByteString::from(&file.name[..])))
    }

    fn names(&self, cut: CutId, nodes: &[NodeId]) -> Result<Vec<NodeNames>> {
        let state = self.state();
        let (_, _, files) = state.cuts.get(&cut).ok_or_else(lost)?;
        let names = |node: &NodeId| match files.get(&node.0) {
            Some(file) => NodeNames {
                kind: Some(NodeKind::File),
                names: vec![(NodeId::ROOT, ByteString::from(&file.name[..]))],
                stood_for: None,
                copied_from: None,
            },
            None => NodeNames::default(),
        };
        Ok(nodes.iter().map(names).collect())
    }

    fn entries(&self, cut: CutId, directory: NodeId, after: Option<&ByteString>) -> Result<Vec<DirEntry>> {
        let state = self.state();
        let (_, _, files) = state.cuts.get(&cut).ok_or_else(lost)?;
        let mut entries: Vec<_> = files
            .iter()
            .filter(|_| directory == NodeId::ROOT)
            .map(|(node, file)| DirEntry {
                name: ByteString::from(&file.name[..]),
                node: NodeId(*node),
                kind: NodeKind::File,
            })
            .filter(|entry| after.is_none_or(|after| entry.name.as_bytes() > after.as_bytes()))
            .collect();
        entries.sort_by(|a, b| a.name.as_bytes().cmp(b.name.as_bytes()));
        entries.truncate(PAGE_ITEMS);
        Ok(entries)
    }

    fn find(&self, cut: CutId, path: &ByteString) -> Result<Option<NodeId>> {
        let state = self.state();
        let (_, _, files) = state.cuts.get(&cut).ok_or_else(lost)?;
        let found = files.iter().find(|(_, file)| file.name == path.as_bytes());
        Ok(found.map(|(node, _)| NodeId(*node)))
    }

    fn advance(&self, consumer: &str, cut: Epoch) -> Result<bool> {
        let mut state = self.state();
        let Some(consumer) = state.consumers.get_mut(consumer) else {
            return Ok(false);
        };
        let Some((epoch, _)) = consumer.pending.take_if(|(epoch, _)| *epoch == cut.0) else {
            return Ok(false);
        };
        consumer.mark = Some(epoch);
        Ok(true)
    }

    fn note_batch(&self, cut: CutId, batch: u64) -> Result<()> {
        let mut state = self.state();
        let consumer = state.cuts.get(&cut).ok_or_else(lost)?.0.consumer.clone();
        let pending = &mut state.consumers.get_mut(&consumer).unwrap().pending;
        *pending = pending.map(|(epoch, _)| (epoch, batch));
        Ok(())
    }

    fn finish(&self, cut: CutId, outcome: &Outcome) -> Result<FinishReport> {
        let mut state = self.state();
        let (request, epoch, _) = state.cuts.remove(&cut).ok_or_else(lost)?;
        state.finished.push((cut, outcome.clone()));
        let consumer = state.consumers.get_mut(&request.consumer).unwrap();
        match outcome {
            Outcome::Saved { note, .. } => {
                consumer.mark = Some(epoch);
                consumer.note.clone_from(note);
                consumer.pending = None;
            }
            Outcome::Abandoned => consumer.pending = None,
            Outcome::Unknown => {}
        }
        Ok(FinishReport {
            read_bytes: u64::MAX,
            kept_bytes: 1,
            cpu_ns: 2,
        })
    }

    fn unmount(&self) -> Result<()> {
        let mut state = self.state();
        if !state.cuts.is_empty() {
            return Err(ServiceError::new(ErrorKind::Gone, "busy: a backup is reading"));
        }
        state.unmounted = true;
        Ok(())
    }

    fn open_cut(&self, name: &ByteString) -> Result<NamedCut> {
        let mut state = self.state();
        if state.named_cuts.iter().any(|cut| cut.name == *name) {
            return Err(ServiceError::new(ErrorKind::Refused, "there is one of this name"));
        }
        let cut = NamedCut {
            name: name.clone(),
            path: ByteString::from(&b"/data/\xfe"[..]),
            epoch: Epoch(state.epoch),
            opened_at_ns: -1,
            kept_bytes: u64::MAX,
            is_ended: false,
            lost: Some("full".to_owned()),
        };
        state.named_cuts.push(cut.clone());
        Ok(cut)
    }

    fn close_cut(&self, name: &ByteString) -> Result<()> {
        let mut state = self.state();
        let before = state.named_cuts.len();
        state.named_cuts.retain(|cut| cut.name != *name);
        if state.named_cuts.len() == before {
            return Err(ServiceError::new(ErrorKind::Refused, "there is none of this name"));
        }
        Ok(())
    }

    fn list_cuts(&self) -> Result<Vec<NamedCut>> {
        Ok(self.state().named_cuts.clone())
    }
}
