//! One piece of content on its way from where it lies to its reader.

use std::io;

use byteback_checksums::written::Mismatch;
use byteback_extents::ByteRange;

use super::{Content, NodeState, PIECE_BYTES, PictureError, Source};

/// The part of `rest` to read next: some bytes, or all of a hole in which nothing was kept, however
/// long.
pub(super) fn next_piece(
    state: &NodeState,
    source: &Source,
    rest: ByteRange,
    known_data: Option<ByteRange>,
) -> ByteRange {
    let usual = rest
        .split_at(rest.start().saturating_add(PIECE_BYTES as u64))
        .0
        .unwrap_or(rest);
    let Source::File(file) = source else { return usual };
    if usual == rest || known_data.is_some_and(|known| known.covers(usual)) {
        return usual;
    }
    let Some((untouched, None)) = state.kept.tiles(rest).next() else {
        return usual;
    };
    let hole_end = match file.data_ranges(rest.start(), untouched.end()).next() {
        None => untouched.end(),
        Some(Ok(data)) => data.start,
        Some(Err(_)) => return usual,
    };
    ByteRange::new(rest.start(), hole_end).map_or(usual, |hole| hole.hull(usual))
}

/// A piece of content, read and not yet handed on.
#[derive(Debug, Default)]
pub(super) struct PieceRead {
    pub(super) bytes: Vec<u8>,
    /// In order: each range, and where its bytes begin, or that it is a hole.
    pub(super) parts: Vec<(ByteRange, Option<usize>)>,
    /// Where the backing file was found to have data, beyond this piece as well. Still read rightly
    /// if that is a hole by now.
    pub(super) known_data: Option<ByteRange>,
    /// The blocks that do not match their sums, unless something else explains that.
    pub(super) mismatch: Option<Mismatch>,
}

impl PieceRead {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.parts.clear();
        self.mismatch = None;
    }

    pub(super) fn hole(&mut self, range: ByteRange) {
        self.parts.push((range, None));
    }

    /// Room for the bytes of `range`, to be filled.
    pub(super) fn data(&mut self, range: ByteRange) -> io::Result<&mut [u8]> {
        let len = usize::try_from(range.len_bytes()).map_err(io::Error::other)?;
        let start = self.bytes.len();
        self.parts.push((range, Some(start)));
        self.bytes.resize(start.saturating_add(len), 0);
        Ok(self.bytes.get_mut(start..).unwrap_or_default())
    }

    pub(super) fn hand_on(
        &self,
        sink: &mut dyn FnMut(Content<'_>) -> Result<(), PictureError>,
    ) -> Result<(), PictureError> {
        for (range, start) in &self.parts {
            match start {
                None => sink(Content::Hole(*range))?,
                Some(start) => {
                    let len = usize::try_from(range.len_bytes()).unwrap_or(usize::MAX);
                    let bytes = self.bytes.get(*start..start.saturating_add(len)).unwrap_or_default();
                    sink(Content::Data(range.start(), bytes))?;
                }
            }
        }
        Ok(())
    }
}
