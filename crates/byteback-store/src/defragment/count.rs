//! Counts what contents need of each frame, and chooses the frames whose pieces are moved.

use super::{SHORT_LEN_MAX, WASTE_LEFT_PERCENT, cost, is_worn, percent};
use crate::catalog::FragmentationRow;
use crate::resolve::Piece;
use crate::segments::{FRAME_HEADER_LEN, FrameRef};
use byteback_delta::Source;
use byteback_extents::ByteRange;
use std::collections::{HashMap, HashSet};

/// Bytes of an extent in a page, with its share of the page's frames, at most.
const EXTENT_LEN: u64 = 32;

/// Pieces of one frame that contents need.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Live {
    bytes: u64,
    /// New frames that they take, at most.
    frames: u64,
}

impl Live {
    /// Stored bytes that they take in new frames, at most.
    fn cost(self) -> u64 {
        self.bytes.saturating_add(self.frames.saturating_mul(FRAME_HEADER_LEN))
    }

    /// Stored bytes of their frame that they need.
    pub(super) fn needed(self, frame: &FrameRef) -> u64 {
        let raw = u64::from(frame.raw_len).max(1);
        let stored = u64::from(frame.stored_len).saturating_mul(self.bytes.min(raw)) / raw;
        FRAME_HEADER_LEN.saturating_add(stored)
    }
}

/// The frames that contents need.
#[derive(Debug, Default)]
pub(super) struct FrameCount {
    frames: HashMap<FrameRef, Live>,
    pieces: u64,
}

/// Frames whose pieces are to be written again.
#[derive(Default)]
pub(super) struct Chosen {
    pub(super) frames: HashSet<FrameRef>,
    /// There are more.
    pub(super) is_cut_short: bool,
}

impl FrameCount {
    pub(super) fn add(&mut self, (range, source): Piece) {
        self.pieces = self.pieces.saturating_add(1);
        let Source::Literal(literal) = source else { return };
        let live = self.frames.entry(literal.frame).or_default();
        live.bytes = live.bytes.saturating_add(range.len_bytes());
        live.frames = live.frames.saturating_add(parts(range));
    }

    pub(super) fn live(&self, frame: &FrameRef) -> Live {
        self.frames.get(frame).copied().unwrap_or_default()
    }

    /// The count, as it is noted.
    pub(super) fn row(&self) -> FragmentationRow {
        let frames = || self.frames.iter();
        let needed_bytes = frames().map(|(frame, live)| live.needed(frame)).sum();
        let cost_bytes: u64 = frames().map(|(frame, _)| cost(frame)).sum();
        FragmentationRow {
            needed_bytes,
            waste_bytes: cost_bytes.saturating_sub(needed_bytes),
            ..FragmentationRow::default()
        }
    }

    /// The deadest frames: as many as it takes to come down to the waste that may stay, and as the
    /// credit pays for, if it helps more than it costs.
    pub(super) fn choose(&self, noted: &FragmentationRow, pieces_max: u64) -> Chosen {
        let row = self.row();
        let mut chosen = Chosen::default();
        if !is_worn(&row) {
            return chosen;
        }
        let mut frames: Vec<(&FrameRef, Live)> = self.frames.iter().map(|(frame, live)| (frame, *live)).collect();
        frames.retain(|(frame, live)| live.cost() < cost(frame));
        // Live bytes in a thousand stored ones; a frame has at most 256 KiB.
        frames.sort_unstable_by_key(|(frame, live)| (live.bytes.saturating_mul(1000) / cost(frame), **frame));
        let pages_bytes = self.pieces.saturating_mul(EXTENT_LEN);
        let mut credit = noted.credit_bytes.saturating_sub(pages_bytes);
        let mut room = pieces_max / 2;
        let (mut waste, mut saved) = (row.waste_bytes, 0_u64);
        for (frame, live) in frames {
            if waste <= percent(row.needed_bytes, WASTE_LEFT_PERCENT) {
                break;
            }
            let paid = live.cost().saturating_add(live.frames.saturating_mul(EXTENT_LEN));
            let Some(left) = credit.checked_sub(paid) else { break };
            let Some(room_left) = room.checked_sub(live.frames) else {
                chosen.is_cut_short = true;
                break;
            };
            (credit, room) = (left, room_left);
            waste = waste.saturating_sub(cost(frame).saturating_sub(live.needed(frame)));
            saved = saved.saturating_add(cost(frame).saturating_sub(live.cost()));
            chosen.frames.insert(*frame);
        }
        match saved > pages_bytes {
            true => chosen,
            false => Chosen::default(),
        }
    }
}

/// Number of parts in which a piece is moved, at most.
fn parts(range: ByteRange) -> u64 {
    match range.len_bytes() {
        0..=SHORT_LEN_MAX => 1,
        len_bytes => (len_bytes / SHORT_LEN_MAX).saturating_add(2),
    }
}
