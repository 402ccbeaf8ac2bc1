//! The change of one file since a mark, as a delta for `rdiff patch`.
//!
//! The old content is not looked at: ranges that the log does not report are copied from it,
//! reported ranges are read, as of one moment.
//!
//! **The old length.** A write beyond the end leaves a gap that the log does not report: the gap
//! reads as zeros, before as after, for a reader that takes a missing byte for zero. `rdiff` does
//! not; the delta must not make it copy bytes that the old copy lacks. The old length was not
//! recorded, but it can be bounded: bytes behind the last reported range were always there, and so
//! was whatever lies before a byte that is neither zero nor reported. Everything unreported behind
//! such a byte is zeros and can be written as such.
//!
//! **Holes.** librsync's format has no zeros, but a hole of the file that the log does not report
//! is one of the old copy too, and copying from that costs next to nothing. The holes are looked at
//! after the cut; a second look at the log then says which of them were there at the cut: those
//! without a write since.

use std::io::Write;

use byteback_control::{CutInfo, CutRequest, ErrorKind, Outcome, Piece, ServiceError, TreeService};
use byteback_delta::{LibrsyncStats, LibrsyncWriter};
use byteback_extents::{ByteRange, ExtentSet};
use byteback_model::{ByteString, NodeId};
use byteback_oplog::Epoch;
use serde::Serialize;

use crate::error::{BackupError, Result};
use crate::file_change::{FileContent, WholeFileReason, file_change};
use crate::monitor::{Event, Monitor, check_cancelled};

/// Bytes read at a time to find the last byte that is not zero: the window doubles while only zeros
/// are found.
const WINDOW_BYTES_MIN: u64 = 64 << 10;
const WINDOW_BYTES_MAX: u64 = 64 << 20;

/// Result of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ExportReport {
    /// The first epoch after the content that the delta makes.
    pub epoch: Epoch,
    /// The epoch of the old content; `None` if the log knows no such epoch.
    pub since: Option<Epoch>,
    /// Length of the new content.
    pub len_bytes: u64,
    /// Bytes of it reported as changed.
    pub changed_bytes: u64,
    /// Bytes that the delta carries.
    pub literal_bytes: u64,
    /// Zeros among the literal bytes that stand for holes.
    pub zero_bytes: u64,
    /// Bytes that the delta copies from the old content.
    pub copied_bytes: u64,
    /// Length of the delta.
    pub delta_bytes: u64,
    /// Why the delta carries all of the file, if it does.
    #[serde(skip)]
    pub whole: Option<WholeFileReason>,
}

/// The file to export, and since when.
#[derive(Clone, Copy, Debug)]
pub struct ExportRequest<'a> {
    /// The consumer whose mark is the start.
    pub consumer: &'a str,
    /// An epoch to start from in place of the mark.
    pub since: Option<Epoch>,
    /// Path of the file, below the root.
    pub path: &'a ByteString,
    /// Length of the old content, if it is known.
    pub old_len_bytes: Option<u64>,
}

/// Writes the change of a file to `out`, which should be buffered. `holes` returns the holes of the
/// file as it is now, if the tree is mounted; if it returns none, holes are written as zeros.
/// `Ok(None)`: there is no file of that name.
///
/// # Errors
/// If the tree cannot be asked, the file cannot be read, or `out` refuses the bytes. The output is
/// then incomplete, and `rdiff` refuses it.
pub fn export_delta(
    tree: &dyn TreeService,
    request: &ExportRequest<'_>,
    holes: impl FnOnce() -> ExtentSet,
    out: &mut dyn Write,
    monitor: &dyn Monitor,
) -> Result<Option<ExportReport>> {
    let cut = tree.cut(&CutRequest {
        since: request.since,
        anonymous: true,
        ..CutRequest::of(request.consumer)
    })?;
    let exported = export(tree, &cut, request, holes, out, monitor);
    // The export's own error is reported first.
    let finished = tree.finish(cut.cut, &Outcome::Abandoned);
    let exported = exported?;
    finished?;
    Ok(exported)
}

fn export(
    tree: &dyn TreeService,
    cut: &CutInfo,
    request: &ExportRequest<'_>,
    holes: impl FnOnce() -> ExtentSet,
    out: &mut dyn Write,
    monitor: &dyn Monitor,
) -> Result<Option<ExportReport>> {
    let path = request.path;
    let Some(change) = file_change(tree, cut, path)? else {
        return Ok(None);
    };
    let attributes = tree.attributes(cut.cut, &[change.node])?.into_iter().next();
    let attributes = attributes.unwrap_or_else(|| Err(ServiceError::new(ErrorKind::Protocol, "no answer")))?;
    let len_bytes = attributes.size;
    let all = ByteRange::new(0, len_bytes);
    let (changed, base_len_bytes, whole) = match change.content {
        FileContent::Whole(reason) => (all.into_iter().collect(), 0, Some(reason)),
        FileContent::Ranges(mut ranges) => {
            let proven = match request.old_len_bytes {
                Some(old_len_bytes) => old_len_bytes.min(len_bytes),
                None => proven_old_len(tree, cut, change.node, &ranges, len_bytes, monitor)?,
            };
            ranges.truncate(len_bytes);
            (ranges, proven, None)
        }
    };
    let failed = |source| BackupError::Delta {
        subject: path.to_string(),
        source: Box::new(source),
    };
    let mut writer = LibrsyncWriter::new(out, base_len_bytes, len_bytes).map_err(failed)?;
    if whole.is_none()
        && let Some(zeros) = zeros_in_base(tree, cut, path, &changed, base_len_bytes, holes)?
    {
        writer.zeros_in_base(zeros);
    }
    let changed_bytes = changed.total_len_bytes();
    monitor.event(Event::Totals {
        files: 1,
        bytes: changed_bytes,
    });
    let ranges: Vec<(u64, u64)> = changed.iter().map(|range| (range.start(), range.len_bytes())).collect();
    let mut stopped = None;
    let read = tree.read(cut.cut, change.node, &ranges, &mut |piece| {
        let written = check_cancelled(monitor).and_then(|()| match piece {
            Piece::Hole(range) => writer.zero(range).map_err(failed),
            Piece::Data { offset, bytes } => match ByteRange::from_offset_len(offset, bytes.len() as u64) {
                Some(range) => {
                    monitor.event(Event::BytesRead(range.len_bytes()));
                    writer.literal(range, bytes).map_err(failed)
                }
                None => Ok(()),
            },
        });
        written.map_err(|error| {
            stopped = Some(error);
            ServiceError::new(ErrorKind::Node, "stopped")
        })
    });
    if let Some(error) = stopped {
        return Err(error);
    }
    read?;
    let (_, stats) = writer.finish().map_err(failed)?;
    let LibrsyncStats {
        literal_bytes,
        zero_bytes,
        copied_bytes,
        wire_bytes,
    } = stats;
    Ok(Some(ExportReport {
        epoch: cut.epoch,
        since: cut.since,
        len_bytes,
        changed_bytes,
        literal_bytes,
        zero_bytes,
        copied_bytes,
        delta_bytes: wire_bytes,
        whole,
    }))
}

/// The longest hole that was one at the mark, too.
fn zeros_in_base(
    tree: &dyn TreeService,
    cut: &CutInfo,
    path: &ByteString,
    changed: &ExtentSet,
    base_len_bytes: u64,
    holes: impl FnOnce() -> ExtentSet,
) -> Result<Option<ByteRange>> {
    let mut zeros = holes();
    zeros.truncate(base_len_bytes);
    if zeros.is_empty() {
        return Ok(None);
    }
    let look = tree.cut(&CutRequest {
        look_only: true,
        since: Some(cut.epoch),
        ..CutRequest::of("")
    })?;
    let later = file_change(tree, &look, path);
    tree.finish(look.cut, &Outcome::Abandoned)?;
    let Some(FileContent::Ranges(later)) = later?.map(|change| change.content) else {
        return Ok(None);
    };
    zeros.subtract(&later);
    zeros.subtract(changed);
    Ok(zeros.iter().max_by_key(|zeros| zeros.len_bytes()))
}

/// A length that the old content surely had, such that everything unreported behind it is zeros.
/// `changed` is not cut off at the file's end.
fn proven_old_len(
    tree: &dyn TreeService,
    cut: &CutInfo,
    node: NodeId,
    changed: &ExtentSet,
    len_bytes: u64,
    monitor: &dyn Monitor,
) -> Result<u64> {
    // A file grows by reported writes, and the gap up to its old end lies before them.
    if changed.hull().is_none_or(|hull| hull.end() < len_bytes) {
        return Ok(len_bytes);
    }
    let Some(all) = ByteRange::new(0, len_bytes) else {
        return Ok(0);
    };
    let unreported: Vec<ByteRange> = changed.gaps_within(all).collect();
    let mut window_bytes = WINDOW_BYTES_MIN;
    for piece in unreported.into_iter().rev() {
        let mut end = piece.end();
        while end > piece.start() {
            check_cancelled(monitor)?;
            let start = end.saturating_sub(window_bytes).max(piece.start());
            let mut last = None;
            tree.read(cut.cut, node, &[(start, end - start)], &mut |piece| {
                if let Piece::Data { offset, bytes } = piece
                    && let Some(at) = bytes.iter().rposition(|byte| *byte != 0)
                {
                    last = Some(offset + at as u64);
                }
                Ok(())
            })?;
            if let Some(last) = last {
                return Ok(last + 1);
            }
            end = start;
            window_bytes = (window_bytes * 2).min(WINDOW_BYTES_MAX);
        }
    }
    Ok(0)
}
