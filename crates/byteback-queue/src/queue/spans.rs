//! Changes that must be applied together: disjoint spans of positions, the merged backindexes of
//! DeltaCFS section III-E.
//!
//! A node that is operated again, or taken out, after others were enqueued behind it breaks the
//! order: it gets a backindex to where the later operation would have been. All from the node to
//! there is one span; spans that overlap are one.

use std::collections::BTreeMap;

use crate::ids::Position;

/// Disjoint spans, each with its first and last position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spans {
    ends: BTreeMap<Position, Position>,
}

impl Spans {
    /// Joins all from `first` to `last`, and the spans that this touches.
    pub(crate) fn join(&mut self, first: Position, last: Position) {
        let (mut first, mut last) = (first, last.max(first));
        while let Some((start, end)) = self.ends.range(..=last).next_back().map(|(start, end)| (*start, *end)) {
            if end < first {
                break;
            }
            self.ends.remove(&start);
            first = first.min(start);
            last = last.max(end);
        }
        self.ends.insert(first, last);
    }

    /// The last position that must be applied together with `position`.
    pub(crate) fn end_of(&self, position: Position) -> Position {
        match self.ends.range(..=position).next_back() {
            Some((_, &end)) => end.max(position),
            None => position,
        }
    }

    /// The first span.
    pub(crate) fn first(&self) -> Option<(Position, Position)> {
        self.ends.first_key_value().map(|(first, last)| (*first, *last))
    }

    /// Forgets the spans that begin at or before `position`.
    pub(crate) fn forget_to(&mut self, position: Position) {
        self.ends = self.ends.split_off(&Position(position.0.saturating_add(1)));
    }

    /// Forgets all spans that begin after `position`.
    pub(crate) fn forget_after(&mut self, position: Position) {
        self.ends.split_off(&Position(position.0.saturating_add(1)));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Position, Position)> + '_ {
        self.ends.iter().map(|(first, last)| (*first, *last))
    }
}
