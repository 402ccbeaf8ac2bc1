//! Between the API's types and the store's. Nothing is decided here.

use crate::problem::refuse;
use byteback_api::batch::{ContentBase, EntryRecord, Manifest, NodeRecord, ProofRecord, Totals};
use byteback_api::messages::{
    BatchApplied, BatchEvent, BatchStatus, ContentVersion, DamagedFrame, DamagedRange, DiffItem, EntryInfo, FolderInfo,
    FramePiece, NodeInfo, NodePlace, Snapshot, SnapshotLabel, VerifyEvent,
};
use byteback_api::{Attributes, ByteString, FileId, FolderName, NodeKind, Problem, Xattr};
use byteback_store::{model, read, verify};

pub(crate) fn file_to_store(id: FileId) -> model::FileId {
    model::FileId(id.0)
}

pub(crate) fn file(id: model::FileId) -> FileId {
    FileId(id.0)
}

fn kind_to_store(kind: NodeKind) -> model::NodeKind {
    match kind {
        NodeKind::File => model::NodeKind::File,
        NodeKind::Directory => model::NodeKind::Directory,
        NodeKind::Symlink => model::NodeKind::Symlink,
        NodeKind::Fifo => model::NodeKind::Fifo,
        NodeKind::Socket => model::NodeKind::Socket,
        NodeKind::CharDevice => model::NodeKind::CharDevice,
        NodeKind::BlockDevice => model::NodeKind::BlockDevice,
    }
}

fn kind(kind: model::NodeKind) -> NodeKind {
    match kind {
        model::NodeKind::File => NodeKind::File,
        model::NodeKind::Directory => NodeKind::Directory,
        model::NodeKind::Symlink => NodeKind::Symlink,
        model::NodeKind::Fifo => NodeKind::Fifo,
        model::NodeKind::Socket => NodeKind::Socket,
        model::NodeKind::CharDevice => NodeKind::CharDevice,
        model::NodeKind::BlockDevice => NodeKind::BlockDevice,
    }
}

pub(crate) fn attributes(a: model::Attributes) -> Attributes {
    let xattr = |(name, value)| Xattr {
        name: ByteString(name),
        value: ByteString(value),
    };
    Attributes {
        kind: kind(a.kind),
        mode: a.mode,
        uid: a.uid,
        gid: a.gid,
        size: a.size,
        mtime_ns: a.mtime_ns,
        rdev: a.rdev,
        inode_flags: a.inode_flags,
        target: a.target.map(ByteString),
        xattrs: a.xattrs.into_iter().map(xattr).collect(),
        user: a.user.map(ByteString),
        group: a.group.map(ByteString),
    }
}

fn attributes_to_store(a: Attributes) -> model::Attributes {
    model::Attributes {
        kind: kind_to_store(a.kind),
        mode: a.mode,
        uid: a.uid,
        gid: a.gid,
        size: a.size,
        mtime_ns: a.mtime_ns,
        rdev: a.rdev,
        inode_flags: a.inode_flags,
        target: a.target.map(ByteString::into_bytes),
        xattrs: a
            .xattrs
            .into_iter()
            .map(|xattr| (xattr.name.0, xattr.value.0))
            .collect(),
        user: a.user.map(ByteString::into_bytes),
        group: a.group.map(ByteString::into_bytes),
    }
}

pub(crate) fn label_to_store(label: SnapshotLabel) -> model::SnapshotLabel {
    model::SnapshotLabel {
        time_ns: label.time_ns,
        host: label.host.0,
        path: label.path.0,
        tags: label.tags,
    }
}

pub(crate) fn snapshot(snapshot: model::Snapshot) -> Snapshot {
    let label = snapshot.label;
    let label = SnapshotLabel {
        time_ns: label.time_ns,
        host: ByteString(label.host),
        path: ByteString(label.path),
        tags: label.tags,
    };
    Snapshot {
        id: snapshot.id,
        seq: snapshot.seq,
        label,
    }
}

pub(crate) fn manifest_to_store(manifest: Manifest) -> model::Manifest {
    model::Manifest {
        device: manifest.device,
        counter: manifest.counter,
        base_seq: manifest.base_seq,
        replaces: manifest.replaces,
        follows: manifest.follows,
        root: file_to_store(manifest.root),
        created_ns: manifest.created_ns,
        host: manifest.host.0,
        path: manifest.path.0,
        snapshot: manifest.snapshot.map(label_to_store),
    }
}

pub(crate) fn node_to_store(node: NodeRecord) -> model::NodeChange {
    let content = node.content.map(|content| model::ContentChange {
        deltas: content.deltas,
        base: match content.base {
            ContentBase::Previous => model::ContentBase::Previous,
            ContentBase::Empty => model::ContentBase::Empty,
            ContentBase::Of(file) => model::ContentBase::Of(file_to_store(file)),
            ContentBase::At { file, seq } => model::ContentBase::At {
                file: file_to_store(file),
                seq,
            },
        },
    });
    model::NodeChange {
        id: file_to_store(node.id),
        attributes: attributes_to_store(node.attributes),
        content,
    }
}

pub(crate) fn entry_to_store(entry: EntryRecord) -> model::EntryChange {
    model::EntryChange {
        parent: file_to_store(entry.parent),
        name: entry.name.0,
        child: entry.child.map(file_to_store),
    }
}

pub(crate) fn proof_to_store(proof: &ProofRecord) -> model::Proof {
    model::Proof {
        digest: proof.digest.0,
        sums: proof.sums,
    }
}

pub(crate) fn totals_to_store(totals: Totals) -> model::Totals {
    model::Totals {
        nodes: totals.nodes,
        entries: totals.entries,
        deltas: totals.deltas,
        proofs: totals.proofs,
        directory_times: totals.directory_times,
    }
}

/// A folder. Its name was checked when it was created, so a failure means that the catalog is damaged.
pub(crate) fn folder(folder: model::Folder) -> Result<FolderInfo, Box<Problem>> {
    let name: FolderName = folder.name.parse().map_err(|e| {
        let detail = format!("the stored folder name {:?} is not valid: {e}", folder.name);
        refuse(byteback_api::Code::StorageDamaged, detail)
    })?;
    Ok(FolderInfo {
        name,
        seq: folder.seq,
        root: folder.root.map(file),
        entries: folder.entries,
        snapshots: folder.snapshots,
        stored_bytes: folder.stored_bytes,
        created_ns: folder.created_ns,
        knows_damage: false,
    })
}

pub(crate) fn batch(batch: read::AppliedBatch) -> BatchEvent {
    BatchEvent {
        seq: batch.seq,
        device: batch.device,
        counter: batch.counter,
        created_ns: batch.created_ns,
        host: ByteString(batch.host),
    }
}

/// A batch as one of the server-sent events.
pub(crate) fn event(applied: &read::AppliedBatch) -> String {
    let data = batch(applied.clone());
    // Numbers and a byte string always serialize, on one line.
    let data = serde_json::to_string(&data).unwrap_or_default();
    format!("id: {}\nevent: batch\ndata: {data}\n\n", applied.seq)
}

pub(crate) fn applied(applied: model::Applied) -> BatchApplied {
    BatchApplied {
        seq: applied.seq,
        snapshot_id: applied.snapshot_id,
        repeated: applied.repeated,
        stored_bytes: applied.stored_bytes,
    }
}

pub(crate) fn node(node: model::Node) -> NodeInfo {
    let version = |v: model::ContentVersion| ContentVersion {
        seq: v.seq,
        device: v.device,
        counter: v.counter,
    };
    NodeInfo {
        id: file(node.id),
        seq: node.seq,
        attributes: attributes(node.attributes),
        content: node.content.map(version),
        names: node.names.filter(|names| *names > 1),
        places: None,
    }
}

pub(crate) fn place((parent, name): (model::FileId, Vec<u8>)) -> NodePlace {
    NodePlace {
        parent: file(parent),
        name: ByteString(name),
    }
}

pub(crate) fn entry((name, child): (Vec<u8>, model::Node)) -> EntryInfo {
    EntryInfo {
        name: ByteString(name),
        node: node(child),
    }
}

pub(crate) fn diff_item(item: read::DiffItem) -> DiffItem {
    match item {
        read::DiffItem::EntryAdded {
            parent,
            name,
            child,
            path,
        } => DiffItem::EntryAdded {
            parent: file(parent),
            name: ByteString(name),
            child: file(child),
            path: path.map(ByteString),
        },
        read::DiffItem::EntryRemoved {
            parent,
            name,
            child,
            path,
        } => DiffItem::EntryRemoved {
            parent: file(parent),
            name: ByteString(name),
            child: file(child),
            path: path.map(ByteString),
        },
        read::DiffItem::NodeChanged {
            id,
            path,
            since,
            before,
            after,
            changed_bytes,
            content_changed,
        } => DiffItem::NodeChanged {
            id: file(id),
            path: path.map(ByteString),
            since: Some(since),
            before: before.map(|before| Box::new(attributes(*before))),
            after: Box::new(attributes(*after)),
            changed_bytes,
            content_changed,
        },
    }
}

pub(crate) fn verify_event(event: verify::VerifyEvent) -> VerifyEvent {
    match event {
        verify::VerifyEvent::Progress(totals) => VerifyEvent::Progress {
            files: totals.files,
            frames: totals.frames,
            bytes: totals.bytes,
        },
        verify::VerifyEvent::Damage {
            id,
            path,
            error,
            ranges,
            lost_bytes,
        } => VerifyEvent::Damage {
            id: file(id),
            path: path.map(ByteString),
            detail: error.to_string(),
            ranges: ranges.into_iter().map(damaged_range).collect(),
            lost_bytes,
        },
    }
}

pub(crate) fn batch_status(status: byteback_store::apply::BatchStatus, tells_digests: bool) -> BatchStatus {
    let digests = status.digests.into_iter().map(|digest| digest.map(hex));
    BatchStatus {
        applied: status.applied.map(applied),
        staged_parts: status.staged_parts,
        digests: if tells_digests { digests.collect() } else { Vec::new() },
    }
}

/// A digest in hexadecimal.
pub(crate) fn hex(digest: [u8; 32]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A SHA-256 in hexadecimal.
pub(crate) fn digest(text: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, at) in digest.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    Some(digest)
}

pub(crate) fn damaged_range(range: byteback_store::ByteRange) -> DamagedRange {
    DamagedRange {
        offset: range.start(),
        len: range.len_bytes(),
    }
}

pub(crate) fn damaged_frame(frame: byteback_store::damage::DamagedFrame) -> DamagedFrame {
    let piece = |piece: byteback_store::damage::FramePiece| FramePiece {
        skip: piece.skip,
        offset: piece.range.start(),
        len: piece.range.len_bytes(),
    };
    DamagedFrame {
        file: file(frame.file),
        at: frame.at,
        frame: format!("{}-{}", frame.segment, frame.offset),
        len: frame.raw_len,
        pieces: frame.pieces.into_iter().map(piece).collect(),
    }
}
