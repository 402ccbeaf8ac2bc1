//! Contents of short files, read many at a time: a call to the folder's daemon for each would take
//! longer than what it answers.
//!
//! Only files of which everything is sent or compared are read here. They stay as they were at the
//! cut until their records are made, so that whatever is not found here can still be read: a file
//! with holes, one that changed since it was looked at, and all of them if the call fails.

use byteback_control::{ContentChange, CutId, NodeChange, Piece, ServiceError, TreeService};
use byteback_model::{Attributes, NodeId, NodeKind};
use std::collections::HashMap;
use std::ops::Range;

/// Longer files are read by themselves, in bytes.
const SHORT_LEN_MAX: u64 = 64 << 10;

/// Most bytes that are read ahead with one call's attributes.
const TOTAL_LEN_MAX: u64 = 4 << 20;

/// Contents of short files, whole.
#[derive(Debug, Default)]
pub(in crate::backup) struct ShortContents {
    /// The contents end to end.
    bytes: Vec<u8>,
    places: HashMap<NodeId, Range<usize>>,
}

impl ShortContents {
    /// Reads the contents of those files among `changes` that are short and new as a whole.
    pub(super) fn read(
        tree: &dyn TreeService,
        cut: CutId,
        changes: &[NodeChange],
        attributes: &[Result<Attributes, ServiceError>],
    ) -> Self {
        let mut total_bytes = 0;
        let short = changes.iter().zip(attributes).filter_map(|(change, attributes)| {
            let attributes = attributes.as_ref().ok()?;
            let is_whole = attributes.kind == NodeKind::File && matches!(change.content, ContentChange::Whole(_));
            let is_short = (1..=SHORT_LEN_MAX.min(TOTAL_LEN_MAX - total_bytes)).contains(&attributes.size);
            if !is_whole || !is_short {
                return None;
            }
            total_bytes += attributes.size;
            Some((change.node, attributes.size))
        });
        let files: Vec<(NodeId, u64)> = short.collect();
        match files.len() {
            0 | 1 => Self::default(),
            _ => Self::of_files(tree, cut, &files).unwrap_or_default(),
        }
    }

    /// Reads files; `None` if they have to be read by themselves.
    fn of_files(tree: &dyn TreeService, cut: CutId, files: &[(NodeId, u64)]) -> Option<Self> {
        let mut bytes: Vec<u8> = Vec::new();
        let mut places = Vec::new();
        for (_, len_bytes) in files {
            let start = places.last().map_or(0, |place: &Range<usize>| place.end);
            places.push(start..start.checked_add(usize::try_from(*len_bytes).ok()?)?);
        }
        bytes.resize(places.last()?.end, 0);
        // How much of each file came, from its beginning.
        let mut filled = vec![0; files.len()];
        let unread = tree.peek_many(cut, files, &mut |piece| {
            if let Piece::Data { offset, bytes: piece } = piece {
                take(offset, piece, &places, &mut filled, &mut bytes);
            }
            Ok(())
        });
        for (place, _) in unread.ok()? {
            *filled.get_mut(place)? = 0;
        }
        let whole = files.iter().zip(places).zip(filled);
        let whole = whole.filter(|((_, place), filled)| place.len() == *filled);
        Some(Self {
            places: whole.map(|(((node, _), place), _)| (*node, place)).collect(),
            bytes,
        })
    }

    /// The files that were read.
    pub(in crate::backup) fn nodes(&self) -> Vec<NodeId> {
        self.places.keys().copied().collect()
    }

    /// The whole content of a file, if it was read.
    pub(in crate::backup) fn of(&self, node: NodeId) -> Option<&[u8]> {
        self.bytes.get(self.places.get(&node)?.clone())
    }
}

/// Takes in a piece. One that does not follow the one before it in a file leaves that incomplete.
fn take(offset: u64, piece: &[u8], places: &[Range<usize>], filled: &mut [usize], bytes: &mut [u8]) {
    let Ok(offset) = usize::try_from(offset) else { return };
    let file = places.partition_point(|place| place.end <= offset);
    let (Some(place), Some(filled)) = (places.get(file), filled.get_mut(file)) else {
        return;
    };
    let end = offset.saturating_add(piece.len());
    if place.start + *filled != offset || end > place.end {
        return;
    }
    if let Some(to) = bytes.get_mut(offset..end) {
        to.copy_from_slice(piece);
        *filled += piece.len();
    }
}

#[cfg(test)]
mod tests;
