//! Reads the content of a file at the cut: all of it, with the digest made on the way, or some
//! ranges of it.
//!
//! The tree holds bytes still until they were read. Bytes that may be read again have to be peeked
//! at ([`Hold::Still`]): otherwise a program's later write would be seen, and the file saved in a
//! state that it never had.

use super::super::content::{Failure, len_u64};
use super::super::trim::{BlockSums, Gathering};
use super::{Examined, Place, Stop, disorder};
use crate::monitor::{Event, Monitor, check_cancelled};
use byteback_api::Digest;
use byteback_control::{ErrorKind, Piece, ServiceError};
use byteback_delta::ContentDigest;
use byteback_extents::ByteRange;
use byteback_model::NodeId;

/// Most ranges of one request to the tree.
const RANGES_PER_READ_MAX: usize = 4096;

/// The state of bytes after they were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// The bytes stay as they were at the cut, for they may be read once more.
    Still,
    /// The bytes may change: they are not read again.
    NoMore,
}

impl Hold {
    /// For the last look at a file of this length before it is in the batch: after it, the file is
    /// read again if it turns out to consist of too many pieces. `copy_len_min` is the shortest
    /// copy in bytes.
    pub(super) fn for_last_look(len_bytes: u64, copy_len_min: u64, extents_max: usize) -> Self {
        // A hole has at least the length of a file system's block.
        let pieces = len_bytes / copy_len_min.max(1) + len_bytes / 4096;
        match pieces.saturating_mul(2) < len_u64(extents_max).saturating_sub(4) {
            true => Self::NoMore,
            false => Self::Still,
        }
    }
}

/// A whole content's digest and holes, from reading it.
pub(super) struct WholeContent {
    /// The digest that proves it.
    pub(super) digest: Digest,
    /// Its bytes outside of holes.
    pub(super) data_bytes: u64,
    /// Its holes, ascending; of very many, the first.
    pub(super) holes: Vec<ByteRange>,
    gathering: Gathering,
}

impl WholeContent {
    /// Notes that the file is in the batch.
    pub(super) fn end(self, sums: &mut BlockSums<'_>) {
        self.gathering.end(sums);
    }
}

/// Reads all of a file, in order; `take` gets each piece.
pub(super) fn read_whole(
    place: Place<'_>,
    file: &Examined<'_>,
    hold: Hold,
    sums: &mut BlockSums<'_>,
    take: &mut dyn FnMut(Piece<'_>) -> Result<(), Stop>,
) -> Result<WholeContent, Stop> {
    let len = file.attributes.size;
    let mut digest = ContentDigest::new(len);
    let mut gathering = Gathering::of_file(sums, file.node, len);
    let mut data_bytes = 0;
    let mut holes: Vec<ByteRange> = Vec::new();
    read_ranges(
        place,
        file.node,
        hold,
        ByteRange::new(0, len).into_iter(),
        &mut |piece| {
            gathering.piece(piece, sums)?;
            match piece {
                Piece::Hole(range) => {
                    digest.push_zeros(range.len_bytes());
                    note_hole(&mut holes, range, place);
                }
                Piece::Data { bytes, .. } => {
                    data_bytes += len_u64(bytes.len());
                    digest.push(bytes);
                }
            }
            take(piece)
        },
    )?;
    let digest = digest.finish().ok_or_else(|| disorder("some of it is missing"))?;
    Ok(WholeContent {
        digest: Digest(digest),
        data_bytes,
        holes,
        gathering,
    })
}

/// Notes a hole that follows the others. In place of one hole too many the server's bytes stay as
/// they are there.
pub(super) fn note_hole(holes: &mut Vec<ByteRange>, hole: ByteRange, place: Place<'_>) {
    let is_room = holes.len() < place.job.options.limits.extents_max / 2;
    match holes.last_mut() {
        Some(last) if last.end() == hole.start() => *last = last.hull(hole),
        _ if is_room => holes.push(hole),
        _ => {}
    }
}

/// Reads ranges of a file, ascending and apart from each other; `take` gets each piece.
pub(super) fn read_ranges(
    place: Place<'_>,
    node: NodeId,
    hold: Hold,
    ranges: impl Iterator<Item = ByteRange>,
    take: &mut dyn FnMut(Piece<'_>) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let mut ranges = ranges.peekable();
    let mut some = Vec::new();
    while ranges.peek().is_some() {
        some.clear();
        some.extend(ranges.by_ref().take(RANGES_PER_READ_MAX));
        read_some(place, node, hold, &some, take)?;
    }
    Ok(())
}

fn read_some(
    place: Place<'_>,
    node: NodeId,
    hold: Hold,
    ranges: &[ByteRange],
    take: &mut dyn FnMut(Piece<'_>) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let monitor = place.job.monitor;
    let asked: Vec<(u64, u64)> = ranges.iter().map(|range| (range.start(), range.len_bytes())).collect();
    let mut left = ranges.iter();
    let mut rest = left.next().copied();
    // An error of our own has to pass through the service; it waits here meanwhile.
    let mut own_error = None;
    let mut sink = |piece: Piece<'_>| {
        let taken = check_cancelled(monitor).map_err(Stop::from).and_then(|()| {
            let (offset, len) = match piece {
                Piece::Hole(range) => (range.start(), range.len_bytes()),
                Piece::Data { offset, bytes } => (offset, len_u64(bytes.len())),
            };
            let came = ByteRange::from_offset_len(offset, len);
            let (Some(expected), Some(came)) = (rest, came) else {
                return Err(disorder(&format!("{len} bytes at {offset}, expected none")));
            };
            if came.start() != expected.start() || came.end() > expected.end() {
                let expected = expected.start();
                return Err(disorder(&format!("{len} bytes at {offset}, expected at {expected}")));
            }
            rest = ByteRange::new(came.end(), expected.end()).or_else(|| left.next().copied());
            if let Piece::Data { .. } = piece {
                monitor.event(Event::BytesRead(len));
            }
            take(piece)
        });
        taken.map_err(|error| {
            own_error = Some(error);
            ServiceError::new(ErrorKind::Protocol, "the file is given up")
        })
    };
    let tree = place.job.tree;
    let read = match hold {
        Hold::Still => tree.peek(place.cut, node, &asked, &mut sink),
        Hold::NoMore => tree.read(place.cut, node, &asked, &mut sink),
    };
    if let Some(error) = own_error {
        return Err(error);
    }
    if let Err(error) = read {
        return Err(Stop::Failure(match error.kind {
            ErrorKind::Node => Failure::File(error),
            _ => Failure::All(error.into()),
        }));
    }
    match rest {
        None => Ok(()),
        Some(rest) => Err(disorder(&format!(
            "it ended at {}, expected at {}",
            rest.start(),
            rest.end()
        ))),
    }
}
