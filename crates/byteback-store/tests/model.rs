//! Random batches against a naive model that holds all bytes of all moments.
//!
//! The model knows trees and contents as plain maps, one per sequence number. After the batches,
//! every moment is read back in several ways and compared; the store is reopened in between,
//! batches are sent twice, and some come too late.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

use byteback_delta::leaves::{LeafDigest, LeafKind};
use byteback_delta::{ContentDigest, DeltaWriter, WriterOptions};
use byteback_extents::ByteRange;
use byteback_host::random::SplitMix64;
use byteback_model::{
    Attributes, BatchApplied, ContentBase, ContentChange, FileId, Manifest, NameChange, NodeKind, NodeRecord,
    SnapshotLabel, Totals, Xattr,
};
use byteback_store::content::ContentReader;
use byteback_store::model::{Proof, ProofOf};
use byteback_store::read::{DiffCursor, DiffItem, TreeTarget};
use byteback_store::verify::VerifyEvent;
use byteback_store::{Store, StoreError, StoreLimits};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;

const ROOT: FileId = FileId(1);

#[derive(Clone, Default)]
struct Moment {
    /// Directory -> name -> child.
    directories: BTreeMap<FileId, BTreeMap<Vec<u8>, FileId>>,
    files: BTreeMap<FileId, Vec<u8>>,
    mode: BTreeMap<FileId, u32>,
}

fn attributes(kind: NodeKind, size: usize, mode: u32) -> Attributes {
    Attributes {
        kind,
        mode,
        uid: 1,
        gid: 2,
        size: size as u64,
        mtime_ns: -7,
        rdev: 0,
        inode_flags: 0,
        target: None,
        xattrs: vec![Xattr::new(b"user.x", vec![mode as u8])],
        user: None,
        group: None,
    }
}

/// A batch in the making: model changes and the records that carry them.
#[derive(Clone)]
struct Batch {
    nodes: Vec<NodeRecord>,
    entries: Vec<NameChange<FileId>>,
    deltas: Vec<(FileId, Vec<u8>)>,
    /// Proofs of some of the contents.
    proofs: Vec<(FileId, Proof)>,
    /// The batch holds the whole tree and replaces the one before, whose contents it refers to.
    replaces: bool,
}

struct Run {
    rng: SplitMix64,
    moments: Vec<Moment>,
    next_id: u128,
    counter: u64,
}

impl Run {
    fn pick<T: Clone>(&mut self, items: &[T]) -> Option<T> {
        if items.is_empty() {
            return None;
        }
        Some(items[self.rng.below(items.len() as u64) as usize].clone())
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        // Half of them compress.
        if self.rng.coin() {
            return vec![self.rng.next_u64() as u8; len];
        }
        (0..len).map(|_| self.rng.next_u64() as u8).collect()
    }

    /// A random delta of `base`: the stream and the resulting bytes.
    fn delta(&mut self, base: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let new_len = match self.rng.below(5) {
            0 => self.rng.below(base.len() as u64 + 1) as usize,
            1 => base.len() + self.rng.below(3000) as usize,
            2 if base.len() > 20_000 => self.rng.below(100) as usize,
            _ => base.len(),
        };
        // Without copies, the base is cut or zero-filled to any length that the delta gives.
        let copies = self.rng.below(3) > 0;
        let claimed_len = match self.rng.below(3) {
            _ if copies => base.len(),
            0 => new_len,
            1 => self.rng.below(2 * base.len() as u64 + 2) as usize,
            _ => base.len(),
        };
        let mut new = base.to_vec();
        new.resize(claimed_len, 0);
        new.resize(new_len, 0);
        let compress = self.rng.coin();
        let options = WriterOptions { copies, compress };
        let mut writer = DeltaWriter::new(Vec::new(), claimed_len as u64, new_len as u64, options).unwrap();
        let mut at = 0usize;
        for _ in 0..self.rng.below(12) {
            at += self.rng.below(1 + new_len as u64 / 6) as usize;
            if at >= new_len {
                break;
            }
            let len = (1 + self.rng.below(600) as usize).min(new_len - at);
            let range = ByteRange::from_offset_len(at as u64, len as u64).unwrap();
            match self.rng.below(4) {
                0 => {
                    writer.zero(range).unwrap();
                    new[at..at + len].fill(0);
                }
                1 if copies && len <= base.len() => {
                    let from = self.rng.below((base.len() - len + 1) as u64) as usize;
                    writer.copy(range, from as u64).unwrap();
                    new[at..at + len].copy_from_slice(&base[from..from + len]);
                }
                _ => {
                    let bytes = self.bytes(len);
                    writer.literal(range, &bytes[..]).unwrap();
                    new[at..at + len].copy_from_slice(&bytes);
                }
            }
            at += len;
        }
        (writer.finish().unwrap().0, new)
    }

    fn change_content(&mut self, now: &mut Moment, batch: &mut Batch, file: FileId, fresh: bool) {
        let (base, content) = match fresh || self.rng.below(8) == 0 {
            true => (ContentBase::Empty, Vec::new()),
            false => (ContentBase::Previous, now.files[&file].clone()),
        };
        self.content_over(now, batch, file, base, content);
    }

    /// Gives a file contents that follow from `content`.
    fn content_over(
        &mut self,
        now: &mut Moment,
        batch: &mut Batch,
        file: FileId,
        base: ContentBase,
        mut content: Vec<u8>,
    ) {
        let deltas = match base {
            ContentBase::Previous => 1 + self.rng.below(2),
            ContentBase::Empty | ContentBase::Of(_) | ContentBase::At { .. } => self.rng.below(3),
        };
        for _ in 0..deltas {
            let (stream, new) = self.delta(&content);
            batch.deltas.push((file, stream));
            content = new;
        }
        batch.nodes.push(NodeRecord {
            id: file,
            attributes: attributes(NodeKind::File, content.len(), now.mode[&file]),
            content: Some(ContentChange {
                deltas: deltas as u32,
                base,
            }),
        });
        if self.rng.coin() {
            let mut digest = ContentDigest::new(content.len() as u64);
            digest.push(&content);
            let mut proof = Proof::from(digest.finish().unwrap());
            match self.rng.below(4) {
                0 | 1 => {
                    let kind = LeafKind::ALL[self.rng.below(3) as usize];
                    let mut digest = LeafDigest::new(kind, content.len() as u64);
                    digest.push(&content);
                    proof.digest = digest.finish().unwrap();
                    proof.of = ProofOf::Leaves(kind);
                }
                2 => proof = self.proof_of_ranges(&content),
                _ => {}
            }
            batch.proofs.push((file, proof));
        }
        now.files.insert(file, content);
    }

    /// A proof of some ranges of a content.
    fn proof_of_ranges(&mut self, content: &[u8]) -> Proof {
        let mut ranges = Vec::new();
        let mut bytes = Vec::new();
        let mut at = self.rng.below(300) as usize;
        while at < content.len() {
            let end = (at + 1 + self.rng.below(2_000) as usize).min(content.len());
            ranges.push(ByteRange::new(at as u64, end as u64).unwrap());
            bytes.extend_from_slice(&content[at..end]);
            at = end + 1 + self.rng.below(5_000) as usize;
        }
        let mut digest = ContentDigest::new(bytes.len() as u64);
        digest.push(&bytes);
        Proof {
            digest: digest.finish().unwrap(),
            of: ProofOf::Ranges(ranges),
        }
    }

    /// The batch of a sender that has lost its state: the whole tree, under other identities or the
    /// same ones, moved and changed a little, with contents that follow those of any file that the
    /// folder ever had.
    fn replace_all(&mut self, now: &mut Moment, batch: &mut Batch) {
        let before = now.clone();
        batch.replaces = true;
        now.directories.values_mut().for_each(BTreeMap::clear);
        let keeps_identities = self.rng.coin();
        let mut renamed = BTreeMap::from([(ROOT, ROOT)]);
        for id in reachable(&before) {
            if !keeps_identities || self.rng.below(4) == 0 {
                self.next_id += 1;
                renamed.entry(id).or_insert(FileId(self.next_id));
            }
            renamed.entry(id).or_insert(id);
        }
        let known: Vec<FileId> = before.files.keys().copied().collect();
        for (old, id) in &renamed {
            if before.directories.contains_key(old) {
                now.directories.insert(*id, BTreeMap::new());
                batch.nodes.push(NodeRecord {
                    id: *id,
                    attributes: attributes(NodeKind::Directory, 0, 0o755),
                    content: None,
                });
                continue;
            }
            now.mode.insert(*id, 0o640);
            let of = match self.rng.below(6) {
                0 => None,
                1 => self.pick(&known),
                _ => Some(*old),
            };
            let (base, content) = match of {
                Some(of) => (ContentBase::Of(of), before.files[&of].clone()),
                None => (ContentBase::Empty, Vec::new()),
            };
            self.content_over(now, batch, *id, base, content);
        }
        for (parent, name, child) in reachable_names(&before) {
            // A node may be gone, with everything in it, and files have other names now.
            let name = match self.rng.below(8) {
                0 => continue,
                1 if before.files.contains_key(&child) => [&name[..], b"-moved"].concat(),
                _ => name,
            };
            let (parent, child) = (renamed[&parent], renamed[&child]);
            let names = now.directories.get_mut(&parent).unwrap();
            if name.len() < 200 && !names.contains_key(&name) {
                names.insert(name.clone(), child);
                let child = Some(child);
                batch.entries.push(NameChange {
                    parent,
                    name: name.into(),
                    child,
                });
            }
        }
    }

    fn batch(&mut self) -> Batch {
        let mut now = self.moments.last().unwrap().clone();
        let mut batch = Batch {
            nodes: vec![],
            entries: vec![],
            deltas: vec![],
            proofs: vec![],
            replaces: false,
        };
        if self.moments.len() > 1 && self.rng.below(7) == 0 {
            self.replace_all(&mut now, &mut batch);
            self.moments.push(now);
            return batch;
        }
        if self.moments.len() == 1 {
            now.directories.insert(ROOT, BTreeMap::new());
            batch.nodes.push(NodeRecord {
                id: ROOT,
                attributes: attributes(NodeKind::Directory, 0, 0o755),
                content: None,
            });
        }
        let mut touched_nodes: BTreeSet<FileId> = batch.nodes.iter().map(|node| node.id).collect();
        let mut touched_names = BTreeSet::new();
        for _ in 0..=self.rng.below(5) {
            let directories: Vec<FileId> = reachable(&now)
                .into_iter()
                .filter(|id| now.directories.contains_key(id))
                .collect();
            let parent = self.pick(&directories).unwrap();
            let name = format!("n{}", self.rng.below(6)).into_bytes();
            let names: Vec<(FileId, Vec<u8>, FileId)> = reachable_names(&now);
            match self.rng.below(9) {
                0 | 1 => {
                    if !touched_names.insert((parent, name.clone())) {
                        continue;
                    }
                    self.next_id += 1;
                    let id = FileId(self.next_id);
                    touched_nodes.insert(id);
                    now.mode.insert(id, 0o600);
                    self.change_content(&mut now, &mut batch, id, true);
                    now.directories.get_mut(&parent).unwrap().insert(name.clone(), id);
                    batch.entries.push(NameChange {
                        parent,
                        name: name.into(),
                        child: Some(id),
                    });
                }
                2 => {
                    if !touched_names.insert((parent, name.clone())) {
                        continue;
                    }
                    self.next_id += 1;
                    let id = FileId(self.next_id);
                    touched_nodes.insert(id);
                    now.directories.insert(id, BTreeMap::new());
                    now.directories.get_mut(&parent).unwrap().insert(name.clone(), id);
                    batch.nodes.push(NodeRecord {
                        id,
                        attributes: attributes(NodeKind::Directory, 0, 0o755),
                        content: None,
                    });
                    batch.entries.push(NameChange {
                        parent,
                        name: name.into(),
                        child: Some(id),
                    });
                }
                3 => {
                    let Some((parent, name, _)) = self.pick(&names) else {
                        continue;
                    };
                    if touched_names.insert((parent, name.clone())) {
                        now.directories.get_mut(&parent).unwrap().remove(&name);
                        batch.entries.push(NameChange {
                            parent,
                            name: name.into(),
                            child: None,
                        });
                    }
                }
                4 => {
                    // Rename, over an existing node, too, but not a directory below itself.
                    let Some((old_parent, old_name, child)) = self.pick(&names) else {
                        continue;
                    };
                    let target = (parent, name.clone());
                    let source = (old_parent, old_name.clone());
                    if target == source || touched_names.contains(&target) || touched_names.contains(&source) {
                        continue;
                    }
                    if below(&now, child).contains(&parent) {
                        continue;
                    }
                    touched_names.extend([target, source]);
                    now.directories.get_mut(&old_parent).unwrap().remove(&old_name);
                    now.directories.get_mut(&parent).unwrap().insert(name.clone(), child);
                    batch.entries.push(NameChange {
                        parent,
                        name: name.into(),
                        child: Some(child),
                    });
                    batch.entries.push(NameChange {
                        parent: old_parent,
                        name: old_name.into(),
                        child: None,
                    });
                }
                5 => {
                    let files: Vec<_> = names
                        .iter()
                        .filter(|(_, _, child)| now.files.contains_key(child))
                        .cloned()
                        .collect();
                    let Some((_, _, child)) = self.pick(&files) else {
                        continue;
                    };
                    // A name that names the file already is no change, hence no conflict.
                    let there = now.directories[&parent].get(&name) == Some(&child);
                    if !there && touched_names.insert((parent, name.clone())) {
                        now.directories.get_mut(&parent).unwrap().insert(name.clone(), child);
                        batch.entries.push(NameChange {
                            parent,
                            name: name.into(),
                            child: Some(child),
                        });
                    }
                }
                _ => {
                    let files: Vec<_> = names
                        .iter()
                        .filter(|(_, _, child)| now.files.contains_key(child))
                        .cloned()
                        .collect();
                    let Some((_, _, child)) = self.pick(&files) else {
                        continue;
                    };
                    if touched_nodes.insert(child) {
                        if self.rng.below(5) == 0 {
                            let mode = self.rng.below(0o1000) as u32;
                            now.mode.insert(child, mode);
                            batch.nodes.push(NodeRecord {
                                id: child,
                                attributes: attributes(NodeKind::File, now.files[&child].len(), mode),
                                content: None,
                            });
                        } else {
                            self.change_content(&mut now, &mut batch, child, false);
                        }
                    }
                }
            }
        }
        self.moments.push(now);
        batch
    }
}

fn below(now: &Moment, from: FileId) -> BTreeSet<FileId> {
    let mut found = BTreeSet::new();
    let mut todo = vec![from];
    while let Some(id) = todo.pop() {
        if found.insert(id)
            && let Some(entries) = now.directories.get(&id)
        {
            todo.extend(entries.values());
        }
    }
    found
}

fn reachable(now: &Moment) -> Vec<FileId> {
    below(now, ROOT).into_iter().collect()
}

fn reachable_names(now: &Moment) -> Vec<(FileId, Vec<u8>, FileId)> {
    let mut names = Vec::new();
    for id in reachable(now) {
        for (name, child) in now.directories.get(&id).into_iter().flatten() {
            names.push((id, name.clone(), *child));
        }
    }
    names
}

fn send(
    store: &Store,
    device: u64,
    counter: u64,
    base_seq: Option<u64>,
    batch: &Batch,
    parts: u32,
) -> Result<BatchApplied, StoreError> {
    let manifest = Manifest {
        device,
        counter,
        base_seq: base_seq.filter(|_| !batch.replaces),
        replaces: base_seq.filter(|_| batch.replaces),
        follows: None,
        root: ROOT,
        created_ns: 5,
        host: b"h".to_vec().into(),
        path: b"/p".to_vec().into(),
        snapshot: counter.is_multiple_of(3).then(SnapshotLabel::default),
    };
    enum Item<'a> {
        Node(&'a NodeRecord),
        Entry(&'a NameChange<FileId>),
        Delta(&'a (FileId, Vec<u8>)),
        Proof(&'a (FileId, Proof)),
    }
    let mut items: Vec<Item<'_>> = batch.entries.iter().map(Item::Entry).collect();
    // Proofs stand anywhere.
    let late = batch.proofs.len() / 2;
    items.extend(batch.proofs[..late].iter().map(Item::Proof));
    items.extend(batch.nodes.iter().map(Item::Node));
    items.extend(batch.deltas.iter().map(Item::Delta));
    items.extend(batch.proofs[late..].iter().map(Item::Proof));
    let per_piece = items.len() / (parts as usize + 1) + 1;
    let mut pieces = items.chunks(per_piece);
    let mut staged = 0;
    let mut writer = store.begin_part("f", device, counter)?;
    writer.manifest(manifest)?;
    for piece in 0..=parts {
        for item in pieces.next().unwrap_or_default() {
            match item {
                Item::Node(node) => writer.node((*node).clone())?,
                Item::Entry(entry) => writer.entry((*entry).clone())?,
                Item::Proof((file, proof)) => writer.proof(*file, proof.clone())?,
                Item::Delta((file, stream)) => writer.delta(*file, &stream[..])?,
            }
        }
        if piece < parts {
            staged += 1;
            store.stage(writer, staged)?;
            writer = store.begin_part("f", device, counter)?;
        }
    }
    writer.end(Totals {
        nodes: batch.nodes.len() as u64,
        entries: batch.entries.len() as u64,
        deltas: batch.deltas.len() as u64,
        proofs: batch.proofs.len() as u64,
        directory_times: 0,
    })?;
    store.commit(writer, staged)
}

fn read_all(mut reader: ContentReader, chunk: usize) -> Vec<u8> {
    let mut all = Vec::new();
    let mut bytes = Vec::new();
    loop {
        reader.next_chunk(&mut bytes, chunk).unwrap();
        if bytes.is_empty() {
            return all;
        }
        all.extend_from_slice(&bytes);
    }
}

fn check_moment(store: &Store, run: &mut Run, seq: u64) {
    let moment = run.moments[seq as usize].clone();
    for id in reachable(&moment) {
        if let Some(entries) = moment.directories.get(&id) {
            let mut found = BTreeMap::new();
            let mut after: Option<Vec<u8>> = None;
            loop {
                let page = store
                    .tree("f", Some(seq), &TreeTarget::Node(id), after.as_deref(), 2)
                    .unwrap();
                after = page.entries.last().map(|(name, _)| name.clone());
                found.extend(page.entries.into_iter().map(|(name, node)| (name, node.id)));
                if !page.more {
                    break;
                }
            }
            assert_eq!(&found, entries, "directory {id} at {seq}");
            continue;
        }
        let expected = &moment.files[&id];
        let node = store.node("f", id, Some(seq)).unwrap();
        assert_eq!(
            node.attributes,
            attributes(NodeKind::File, expected.len(), moment.mode[&id])
        );
        let chunk = 1 + run.rng.below(5000) as usize;
        let got = read_all(store.content("f", id, Some(seq), None).unwrap(), chunk);
        assert!(got == *expected, "contents of {id} at {seq}");
        if !expected.is_empty() {
            let start = run.rng.below(expected.len() as u64);
            let end = start + 1 + run.rng.below(expected.len() as u64 - start);
            let range = ByteRange::new(start, end).unwrap();
            let got = read_all(store.content("f", id, Some(seq), Some(range)).unwrap(), chunk);
            assert!(
                got == expected[start as usize..end as usize],
                "range {range} of {id} at {seq}"
            );
        }
        let mut stream = Vec::new();
        store
            .content("f", id, Some(seq), None)
            .unwrap()
            .write_delta(&mut stream)
            .unwrap()
            .unwrap();
        let mut rebuilt = vec![0u8; expected.len()];
        let mut raw = Vec::new();
        let mut decoder = byteback_delta::FrameDecoder::new().unwrap();
        for block in byteback_delta::DeltaReader::new(&stream[..]).unwrap() {
            let block = block.unwrap();
            block.frame.decode(&mut decoder, &mut raw).unwrap();
            for extent in &block.extents {
                if let byteback_delta::Source::Literal(slice) = extent.source {
                    let skip = slice.skip_bytes as usize;
                    let len = extent.range.len_bytes() as usize;
                    rebuilt[extent.range.start() as usize..][..len].copy_from_slice(&raw[skip..skip + len]);
                }
            }
        }
        assert!(rebuilt == *expected, "delta over nothing of {id} at {seq}");
        let mut offset = Some(0);
        let mut end = 0;
        while let Some(from) = offset {
            let page = store.extents("f", id, Some(seq), from, 3).unwrap();
            for extent in &page.extents {
                assert_eq!(extent.range.start(), end);
                end = extent.range.end();
                let bytes = &expected[extent.range.start() as usize..end as usize];
                assert!(extent.is_data || bytes.iter().all(|byte| *byte == 0));
            }
            offset = page.next_offset;
        }
        assert_eq!(end, expected.len() as u64);
    }
}

/// Every byte that differs is reported, and the tree's differences turn one moment into the other.
fn check_diff(store: &Store, run: &mut Run, from: u64, to: u64) {
    let (older, newer) = (run.moments[from as usize].clone(), run.moments[to as usize].clone());
    let mut names: BTreeMap<(FileId, Vec<u8>), FileId> = all_names(&older)
        .into_iter()
        .map(|(parent, name, child)| ((parent, name), child))
        .collect();
    let mut cursor: Option<DiffCursor> = None;
    loop {
        let limit = 1 + run.rng.below(4) as u32;
        let page = store.diff("f", (from, Some(to)), None, cursor, limit).unwrap();
        for change in page.changes {
            match change {
                DiffItem::EntryRemoved {
                    parent, name, child, ..
                } => {
                    assert_eq!(names.remove(&(parent, name)), Some(child));
                }
                DiffItem::EntryAdded {
                    parent, name, child, ..
                } => {
                    assert_eq!(names.insert((parent, name), child), None);
                }
                DiffItem::NodeChanged {
                    id,
                    content_changed,
                    changed_bytes,
                    ..
                } => {
                    if let (Some(old), Some(new)) = (older.files.get(&id), newer.files.get(&id)) {
                        assert!(content_changed || old == new);
                        let differing = (0..new.len()).filter(|at| old.get(*at).copied().unwrap_or(0) != new[*at]);
                        assert!(changed_bytes >= differing.count() as u64);
                    }
                }
            }
        }
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    let expected: BTreeMap<_, _> = all_names(&newer)
        .into_iter()
        .map(|(parent, name, child)| ((parent, name), child))
        .collect();
    assert_eq!(names, expected, "names from {from} to {to}");
    for (id, new) in &newer.files {
        let Ok(first) = store.changes("f", *id, (from, Some(to)), 0, 2) else {
            continue;
        };
        let old = older.files.get(id).cloned().unwrap_or_default();
        assert_eq!((first.size_from, first.size_to), (old.len() as u64, new.len() as u64));
        let mut reported = vec![false; new.len()];
        let mut offset = Some(0);
        while let Some(from_offset) = offset {
            let page = store.changes("f", *id, (from, Some(to)), from_offset, 2).unwrap();
            for range in page.ranges {
                reported[range.start() as usize..range.end() as usize].fill(true);
            }
            offset = page.next_offset;
        }
        for (at, reported) in reported.iter().enumerate() {
            assert!(
                *reported || old.get(at) == Some(&new[at]),
                "byte {at} of {id} from {from} to {to}"
            );
        }
    }
}

fn all_names(moment: &Moment) -> Vec<(FileId, Vec<u8>, FileId)> {
    let entries = moment.directories.iter();
    entries
        .flat_map(|(id, entries)| entries.iter().map(|(name, child)| (*id, name.clone(), *child)))
        .collect()
}

fn open(path: &Path) -> Store {
    Store::open(path, StoreLimits::default()).unwrap()
}

fn join(store: &Store) -> u64 {
    let token = store.create_join_token(i64::MAX / 2).unwrap();
    store.roster().join(&token, "test", None).unwrap().device
}

fn run(seed: u64, batches: u64) {
    #[allow(clippy::print_stdout, reason = "shown only when the test fails")]
    {
        println!("BYTEBACK_SEED={seed}");
    }
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    store.create_folder("f").unwrap();
    let device = join(&store);
    let other = join(&store);
    let mut run = Run {
        rng: SplitMix64::new(seed),
        moments: vec![Moment::default()],
        next_id: 100,
        counter: 0,
    };
    // Attributes as they were last sent, before the present batch.
    let mut reported: BTreeMap<FileId, Attributes> = BTreeMap::new();
    let mut telling: Vec<NodeRecord> = Vec::new();
    for seq in 1..=batches {
        reported.extend(telling.drain(..).map(|node| (node.id, node.attributes)));
        let batch = run.batch();
        telling.clone_from(&batch.nodes);
        run.counter += 1;
        let base = if seq == 1 { None } else { Some(seq - 1) };
        let parts = run.rng.below(3) as u32;
        if let Some(proof) = run.pick(&batch.proofs) {
            // With a single wrong proof nothing of the batch is applied; with the right one the
            // same batch is.
            let mut wrong = batch.clone();
            let at = wrong.proofs.iter().position(|known| *known == proof).unwrap();
            wrong.proofs[at].1.digest[7] ^= 1;
            match send(&store, device, run.counter, base, &wrong, parts) {
                Err(StoreError::ContentMismatch { files }) => assert_eq!(files, [proof.0]),
                other => panic!("{other:?}"),
            }
            assert_eq!(store.folder("f").unwrap().seq, seq - 1);
        }
        let applied = send(&store, device, run.counter, base, &batch, parts).unwrap();
        assert_eq!((applied.seq, applied.repeated), (seq, false));
        if run.rng.below(6) == 0 {
            drop(store);
            store = open(dir.path());
        }
        if run.rng.below(4) == 0 {
            let again = send(&store, device, run.counter, base, &batch, parts).unwrap();
            assert_eq!(
                (again.seq, again.repeated, again.snapshot_id),
                (seq, true, applied.snapshot_id)
            );
        }
        let changes_something = !batch.nodes.is_empty() || !batch.entries.is_empty();
        if seq > 1 && changes_something && run.rng.below(4) == 0 {
            // Another device, with the same old picture, changes the same things. A directory that
            // was sent unchanged is in no conflict.
            let is_same = |node: &NodeRecord| {
                node.attributes.kind == NodeKind::Directory && reported.get(&node.id) == Some(&node.attributes)
            };
            let counter = 1_000_000 + seq;
            let late = Batch {
                nodes: batch
                    .nodes
                    .iter()
                    .filter(|node| node.content.is_none() && !is_same(node))
                    .cloned()
                    .collect(),
                entries: batch.entries.clone(),
                deltas: vec![],
                proofs: vec![],
                replaces: false,
            };
            if !late.nodes.is_empty() || !late.entries.is_empty() {
                match send(&store, other, counter, Some(seq - 1), &late, 0) {
                    Err(StoreError::Conflict { conflicts }) => {
                        assert!(conflicts.iter().all(|conflict| conflict.seq == seq));
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        if seq > 1 && batch.replaces {
            // The same whole tree from a sender that replaces the moment before that: nothing may
            // be undone unseen.
            match send(&store, other, 2_000_000 + seq, Some(seq - 1), &batch, 0) {
                Err(StoreError::Conflict { conflicts }) => {
                    assert_eq!((conflicts.len(), conflicts[0].id, conflicts[0].seq), (1, ROOT, seq));
                }
                other => panic!("{other:?}"),
            }
        }
        let at = 1 + run.rng.below(seq);
        check_moment(&store, &mut run, at);
    }
    drop(store);
    store = open(dir.path());
    for seq in 1..=batches {
        check_moment(&store, &mut run, seq);
        let from = run.rng.below(seq + 1);
        check_diff(&store, &mut run, from, seq);
    }
    let last = store.folder("f").unwrap();
    assert_eq!(last.seq, batches);
    assert_eq!(last.entries, all_names(run.moments.last().unwrap()).len() as u64);
    let totals = store
        .verify("f", None, |event| match event {
            VerifyEvent::Damage { error, .. } => panic!("{error}"),
            VerifyEvent::Progress(_) => ControlFlow::Continue(()),
        })
        .unwrap();
    let files = reachable(run.moments.last().unwrap())
        .into_iter()
        .filter(|id| run.moments.last().unwrap().files.contains_key(id));
    assert_eq!(totals.files, files.count() as u64);
}

#[test]
fn every_moment_reads_as_the_model_says() {
    match std::env::var("BYTEBACK_SEED") {
        Ok(seed) => run(seed.parse().unwrap(), 80),
        Err(_) => (0..12).for_each(|seed| run(seed, 60)),
    }
}
