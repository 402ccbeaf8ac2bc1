//! The bytes that programs overwrote since a consumer's mark, for the backup that reads a cut.

use byteback_control::{CutId, Piece, Result, SYNC_CONSUMER};
use byteback_model::NodeId;

use super::Service;

/// Old bytes are handed on in pieces of this length.
const PIECE_LEN: usize = 256 << 10;

impl Service {
    pub(super) fn read_before_image(
        &self,
        cut: CutId,
        node: NodeId,
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<Option<u64>> {
        let open = self.cut_of(cut)?;
        let images = self.tree.before_images();
        let image = open.since.and_then(|since| images.image(node, since, open.cut.epoch()));
        let Some(image) = image else { return Ok(None) };
        for (start, old) in &image.pieces {
            let mut offset = *start;
            for bytes in old.bytes().chunks(PIECE_LEN) {
                sink(Piece::Data { offset, bytes })?;
                offset += bytes.len() as u64;
            }
        }
        Ok(Some(image.len_bytes))
    }

    /// Forgets old bytes that no consumer will ask for.
    pub(super) fn forget_before_images(&self) {
        // If the log cannot tell, they stay as long as there is room.
        let Ok(consumers) = self.tree.log().consumers() else {
            return;
        };
        let others = consumers.iter().filter(|(name, _)| name != SYNC_CONSUMER);
        let marks = others.flat_map(|(_, state)| state.mark.into_iter().chain(state.pending.map(|cut| cut.epoch)));
        if let Some(oldest) = marks.min() {
            self.tree.before_images().forget_before(oldest);
        }
    }
}
