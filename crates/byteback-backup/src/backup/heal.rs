//! Heals contents that are damaged at the server and still whole here, before a backup.
//!
//! The server knows which frames it found damaged, and where their bytes lie in the folder's files
//! as they are now there. If the file is of this tree, those bytes are read here, at a cut of its
//! own that moves no mark, and offered; the server takes them only if they are proven to be what
//! was stored, so it does not matter whether the file changed here since. Accepted bytes heal all
//! versions and snapshots.
//!
//! A frame cannot be healed if the file shows only parts of it (the rest was overwritten since), or
//! if its header is damaged, too. Its file is then sent anew as a whole, without a comparison with
//! the server's version: by this backup if the file changed, otherwise by the next one, to which
//! the log reports it. That makes the newest version whole; those before stay damaged.
//!
//! Nothing here keeps a backup from being made: every failure is a warning.

use super::{BackupReport, Job, file_id};
use crate::Result;
use crate::monitor::{Event, Monitor, check_cancelled};
use byteback_api::messages::DamagedFrame;
use byteback_client::ServerErrorKind;
use byteback_control::{CutId, CutRequest, Outcome, Piece, ServiceError, TreeService};
use byteback_model::NodeId;
use byteback_oplog::TreeId;
use std::collections::BTreeSet;

/// Longest frame, in bytes.
const FRAME_LEN_MAX: u64 = 256 * 1024;

/// Rounds of damaged frames per backup: the server reports some at once, and more when these are
/// healed.
const ROUNDS_MAX: u32 = 100;

/// Heals what can be healed; returns the files of this tree that have to be sent anew.
pub(super) fn heal(job: &Job<'_>, report: &mut BackupReport) -> Result<BTreeSet<NodeId>> {
    let mut to_send = BTreeSet::new();
    if job.options.dry_run || !job.knows_damage.get() {
        return Ok(to_send);
    }
    let mut cut = None;
    let mut tried = BTreeSet::new();
    for _ in 0..ROUNDS_MAX {
        check_cancelled(job.monitor)?;
        let known = match job.server.known_damage(job.folder) {
            Ok(known) => known.frames,
            // A server that does not know the call, or a folder that is still empty.
            Err(error) if matches!(error.kind, ServerErrorKind::NotFound | ServerErrorKind::Refused) => break,
            Err(error) => {
                warn(job, &error.message);
                break;
            }
        };
        let known: Vec<DamagedFrame> = known
            .into_iter()
            .filter(|frame| tried.insert((frame.frame.clone(), frame.file)))
            .collect();
        if known.is_empty() {
            break;
        }
        let (cut, tree) = match cut {
            Some(cut) => cut,
            None => match job.tree.cut(&CutRequest {
                anonymous: true,
                ..CutRequest::of(&job.options.consumer)
            }) {
                Ok(made) => *cut.insert((made.cut, made.tree)),
                Err(error) => {
                    warn(job, &error.to_string());
                    break;
                }
            },
        };
        let healed_before = report.healed_frames;
        for frame in &known {
            check_cancelled(job.monitor)?;
            let Some(node) = node_of_frame(tree, frame).filter(|node| is_there(job.tree, cut, *node)) else {
                continue;
            };
            if heal_one(job, cut, node, frame) {
                report.healed_frames += 1;
            } else {
                to_send.insert(node);
            }
        }
        if report.healed_frames == healed_before {
            break;
        }
    }
    if let Some((cut, _)) = cut {
        // The cut holds nothing and moves nothing.
        let _ = job.tree.finish(cut, &Outcome::Abandoned);
    }
    report.damaged_files = u64::try_from(to_send.len()).unwrap_or(u64::MAX);
    Ok(to_send)
}

/// The node of this tree with a file's identity at the server.
fn node_of_frame(tree: TreeId, frame: &DamagedFrame) -> Option<NodeId> {
    let id = frame.file.to_bytes();
    let (_, node) = id.split_last_chunk()?;
    let node = NodeId(u64::from_be_bytes(*node));
    (file_id(tree, node) == frame.file).then_some(node)
}

fn is_there(tree: &dyn TreeService, cut: CutId, node: NodeId) -> bool {
    tree.attributes(cut, &[node])
        .is_ok_and(|found| found.iter().all(|found| found.is_ok()))
}

fn heal_one(job: &Job<'_>, cut: CutId, node: NodeId, frame: &DamagedFrame) -> bool {
    let Some(bytes) = bytes_here(job.tree, cut, node, frame) else {
        return false;
    };
    match job.server.heal(job.folder, frame, &bytes) {
        Ok(healed) => healed,
        Err(error) => {
            warn(job, &error.message);
            false
        }
    }
}

/// This machine's bytes of a frame, if the file shows all of it.
fn bytes_here(tree: &dyn TreeService, cut: CutId, node: NodeId, frame: &DamagedFrame) -> Option<Vec<u8>> {
    let len = usize::try_from(frame.len.min(FRAME_LEN_MAX)).ok()?;
    let mut bytes = Vec::with_capacity(len);
    for piece in &frame.pieces {
        let have = u64::try_from(bytes.len()).ok()?;
        let end = piece.skip.checked_add(piece.len)?;
        if piece.skip > have || end > FRAME_LEN_MAX {
            return None;
        }
        // The same bytes may be shown in several places.
        let Some(more) = end.checked_sub(have).filter(|more| *more > 0) else {
            continue;
        };
        let from = piece.offset.checked_add(have - piece.skip)?;
        let mut taken = 0u64;
        let read = tree.read(cut, node, &[(from, more)], &mut |piece: Piece<'_>| {
            match piece {
                Piece::Hole(range) => {
                    taken = taken.saturating_add(range.len_bytes());
                    let hole = usize::try_from(range.len_bytes().min(FRAME_LEN_MAX)).unwrap_or_default();
                    bytes.resize(bytes.len().saturating_add(hole), 0);
                }
                Piece::Data { bytes: data, .. } => {
                    taken = taken.saturating_add(u64::try_from(data.len()).unwrap_or(u64::MAX));
                    bytes.extend_from_slice(data);
                }
            }
            Ok::<(), ServiceError>(())
        });
        // A file that is shorter here has other bytes.
        if read.is_err() || taken != more {
            return None;
        }
    }
    (bytes.len() == len).then_some(bytes)
}

fn warn(job: &Job<'_>, why: &str) {
    let message = format!("cannot heal damaged files at the server: {why}; the backup continues");
    job.monitor.event(Event::Warning(&message));
}
