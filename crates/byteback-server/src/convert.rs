//! Conversions between the API's types and the store's. Nothing is decided here.

use crate::problem::refuse;
use byteback_api::batch::{PROVEN_RANGES_MAX, ProofRecord};
use byteback_api::messages::{
    BatchEvent, BatchStatus, DamagedFrame, DamagedRange, DiffItem, EntryInfo, FolderInfo, FramePiece, VerifyEvent,
};
use byteback_api::{FolderName, Problem};
use byteback_model::{ByteString, FileId, NodeInfo, Place};
use byteback_store::{ByteRange, model, read, verify};

/// A proof; `None` if it contradicts itself.
pub(crate) fn proof_to_store(proof: &ProofRecord) -> Option<model::Proof> {
    let of = match (proof.sums, proof.ranges.as_slice()) {
        (None, []) => model::ProofOf::Bytes,
        (Some(kind), []) => model::ProofOf::Leaves(kind),
        (Some(_), _) => return None,
        (None, ranges) if ranges.len() > PROVEN_RANGES_MAX => return None,
        (None, ranges) => {
            let ranges = ranges
                .iter()
                .map(|(offset, len)| ByteRange::from_offset_len(*offset, *len));
            let ranges = ranges.collect::<Option<Vec<ByteRange>>>()?;
            let is_apart = ranges
                .windows(2)
                .all(|pair| matches!(pair, [one, next] if one.end() < next.start()));
            is_apart.then_some(model::ProofOf::Ranges(ranges))?
        }
    };
    let digest = proof.digest.0;
    Some(model::Proof { digest, of })
}

/// A folder. Its name was checked when it was created, so a failure means that the catalog is
/// damaged.
pub(crate) fn folder(folder: model::Folder) -> Result<FolderInfo, Box<Problem>> {
    let name: FolderName = folder.name.parse().map_err(|e| {
        let detail = format!("the stored folder name {:?} is not valid: {e}", folder.name);
        refuse(byteback_api::Code::StorageDamaged, detail)
    })?;
    Ok(FolderInfo {
        name,
        seq: folder.seq,
        root: folder.root,
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

pub(crate) fn place((parent, name): (FileId, Vec<u8>)) -> Place<FileId> {
    Place::new(parent, name)
}

pub(crate) fn entry((name, child): (Vec<u8>, NodeInfo)) -> EntryInfo {
    EntryInfo {
        name: ByteString(name),
        node: child,
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
            parent,
            name: ByteString(name),
            child,
            path: path.map(ByteString),
        },
        read::DiffItem::EntryRemoved {
            parent,
            name,
            child,
            path,
        } => DiffItem::EntryRemoved {
            parent,
            name: ByteString(name),
            child,
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
            id,
            path: path.map(ByteString),
            since: Some(since),
            before,
            after,
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
            id,
            path: path.map(ByteString),
            detail: error.to_string(),
            ranges: ranges.into_iter().map(damaged_range).collect(),
            lost_bytes,
        },
    }
}

pub(crate) fn batch_status(status: byteback_store::apply::BatchStatus, includes_digests: bool) -> BatchStatus {
    let digests = status.digests.into_iter().map(|digest| digest.map(hex));
    BatchStatus {
        applied: status.applied,
        staged_parts: status.staged_parts,
        digests: if includes_digests {
            digests.collect()
        } else {
            Vec::new()
        },
    }
}

/// A digest in hexadecimal.
pub(crate) fn hex(digest: [u8; 32]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A SHA-256 from hexadecimal.
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
        file: frame.file,
        at: frame.at,
        frame: format!("{}-{}", frame.segment, frame.offset),
        len: frame.raw_len,
        pieces: frame.pieces.into_iter().map(piece).collect(),
    }
}
