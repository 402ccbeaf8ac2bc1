//! Checksums of a file's leaves that its file system keeps: btrfs with SHA-256 or BLAKE2b.
//!
//! They count if the file afterwards still has its stamp, as for everything that is read of it.
//! Parts that btrfs has no checksums of (a last sector that is not full, compressed or unsummed
//! extents) are read. If btrfs offered checksums of a file and then cannot deliver them, the
//! request fails and is tried again, as for a file that changes while it is read: mostly that is
//! the cause. The cause may also be a file time in the future, as clocks are set back; so the next
//! try reads ([`LocalContent::only_read`]). Files on other file systems get no offer: the caller
//! reads them.

use super::{LocalContent, changed, no_log, unreadable};
use byteback_checksums::btrfs;
use byteback_checksums::source::{Extraction, Kind, Layout, Run, SourceError, Tail};
use byteback_control::{
    ErrorKind, LEAF_LEN_BYTES, LEAF_SUM_LEN, LeafKind, LeafOffer, LeafPiece, LeafRequest, LeafSource, LeavesSummary,
    ServiceError,
};
use byteback_extents::ByteRange;
use byteback_host::clock::RealClock;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

/// Bytes read and summed at once, in whole leaves.
const BUFFER_LEN: u64 = 64 * LEAF_LEN_BYTES;

type Sink<'a> = &'a mut dyn FnMut(LeafPiece<'_>) -> Result<(), ServiceError>;

/// The checksums that the file system has of the file.
pub(super) fn offer(content: &LocalContent) -> Result<LeafOffer, ServiceError> {
    match btrfs::layout(&content.file).ok().as_ref().and_then(kind_of) {
        Some(kind) if !content.is_only_read => Ok(LeafOffer {
            kind,
            source: LeafSource::Btrfs,
            has_crcs: false,
        }),
        _ => no_log(),
    }
}

/// Reports the file system's checksums, and reads the rest.
pub(super) fn tell(
    content: &LocalContent,
    request: LeafRequest,
    sink: Sink<'_>,
) -> Result<LeavesSummary, ServiceError> {
    let offer = offer(content)?;
    if request.kind != offer.kind || request.with_crcs {
        return no_log();
    }
    let mut extraction = btrfs::begin(&content.file, &RealClock).map_err(|error| untold(&error))?;
    if extraction.len_bytes() != content.stamp.size {
        return Err(changed());
    }
    let layout = Layout {
        tail: Tail::AsIs,
        ..extraction.layout().clone()
    };
    let (mut position, mut read_bytes) = (0, 0);
    while let Some(run) = extraction.next_run().map_err(|error| untold(&error))? {
        let range = run.range();
        if range.start() != position || position % LEAF_LEN_BYTES != 0 {
            return Err(changed());
        }
        match run {
            Run::Sums { sums, .. } => {
                let leaves = range.len_bytes().div_ceil(LEAF_LEN_BYTES);
                if sums.len() as u64 != leaves.saturating_mul(LEAF_SUM_LEN as u64) {
                    return Err(changed());
                }
                sink(LeafPiece::Sums {
                    offset: range.start(),
                    entries: sums,
                })?;
            }
            Run::Zeros { range } => sink(LeafPiece::Zeros(range))?,
            // Chunks are not leaves.
            Run::Unknown { range, .. } | Run::Chunks { range, .. } => {
                sum(content, &layout, range, sink)?;
                read_bytes += range.len_bytes();
            }
        }
        position = range.end();
    }
    if position != content.stamp.size {
        return Err(changed());
    }
    extraction.finish().map_err(|error| untold(&error))?;
    content.check()?;
    Ok(LeavesSummary {
        source: offer.source,
        read_bytes,
    })
}

/// Sums a range from its bytes; it begins with a leaf, and ends with one or with the file.
fn sum(content: &LocalContent, layout: &Layout, range: ByteRange, sink: Sink<'_>) -> Result<(), ServiceError> {
    let (mut at, mut entries) = (range.start(), Vec::new());
    let mut buffer = vec![0; BUFFER_LEN as usize];
    while at < range.end() {
        let some_len = BUFFER_LEN.min(range.end() - at);
        let some = buffer.get_mut(..some_len as usize).unwrap_or_default();
        content
            .file
            .read_exact_at(some, at)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => changed(),
                _ => unreadable(&error),
            })?;
        content.read_bytes.fetch_add(some_len, Ordering::Relaxed);
        entries.clear();
        for leaf in some.chunks(LEAF_LEN_BYTES as usize) {
            layout.append_sum(leaf, &mut entries);
        }
        sink(LeafPiece::Sums {
            offset: at,
            entries: &entries,
        })?;
        at += some_len;
    }
    Ok(())
}

/// The kind of leaves that a layout's checksums are, if they are of leaves.
fn kind_of(layout: &Layout) -> Option<LeafKind> {
    let is_plain = u64::from(layout.block_len) == LEAF_LEN_BYTES && layout.salt.is_empty();
    match layout.kind {
        Kind::Sha256 if is_plain => Some(LeafKind::Sha256),
        Kind::Blake2b256 if is_plain => Some(LeafKind::Blake2b256),
        _ => None,
    }
}

fn untold(error: &SourceError) -> ServiceError {
    ServiceError::new(ErrorKind::Node, error.to_string())
}
