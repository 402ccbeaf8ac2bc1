//! The ground on which batches are sent: how far others' changes are here, and this device's newest
//! batch. Pure.
//!
//! The cursor moves over own batches by itself as long as no batch of others lies between: their
//! changes are here. Each batch follows the device's newest one, even where its base would suffice:
//! so a batch that was given up and arrives late is out of order and does not count.

use byteback_api::messages::BatchEvent;
use byteback_model::{DeviceId, Seq};

use crate::upload::Footing;
use byteback_model::OwnBatch;

/// How far others' changes are here, and this device's newest batch: see the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ground {
    pub(super) cursor: Seq,
    pub(super) newest: Option<OwnBatch>,
    /// The newest known batch of others.
    pub(super) others: Seq,
}

impl Ground {
    /// The newest known batch.
    pub(super) fn head(self) -> Seq {
        self.seen().max(self.others)
    }

    /// The newest batch of which something is here.
    pub(super) fn seen(self) -> Seq {
        self.cursor.max(self.newest.map_or(0, |own| own.seq))
    }

    /// The moment that a fold of everything here replaces. Changes of others that are not here must
    /// not be undone unseen, even if an own batch came after them: then this is not the folder's
    /// newest moment, the server refuses to have it replaced, and others' changes come here first.
    pub(super) fn replaced(self) -> Seq {
        match self.has_news() {
            true => self.cursor,
            false => self.seen(),
        }
    }

    /// Whether others did something that is not here.
    pub(super) fn has_news(self) -> bool {
        self.others > self.cursor
    }

    /// Notes that others' changes are here up to `head`.
    pub(super) fn received(&mut self, head: Seq) {
        self.cursor = self.cursor.max(head);
    }

    /// The base and predecessor of the next batch.
    pub(super) fn footing(self) -> Footing {
        Footing {
            base_seq: self.cursor,
            follows: self.newest.map(|own| own.counter),
        }
    }

    /// Notes that a batch of this device was applied. Unknown batches between it and the cursor are
    /// others'.
    pub(super) fn applied(&mut self, own: OwnBatch) {
        if self.newest.is_none_or(|newest| newest.seq < own.seq) {
            self.newest = Some(own);
        }
        if self.cursor.checked_add(1) == Some(own.seq) {
            self.cursor = own.seq;
        }
        if own.seq > self.cursor && !self.has_news() {
            self.others = own.seq.saturating_sub(1);
        }
    }

    /// Notes the next batch, as the server reports it.
    pub(super) fn heard(&mut self, batch: &BatchEvent, device: DeviceId) {
        let (counter, seq) = (batch.counter, batch.seq);
        match batch.device == device {
            true => self.applied(OwnBatch { counter, seq }),
            false => self.others = self.others.max(seq),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(seq: Seq) -> OwnBatch {
        OwnBatch { counter: seq * 10, seq }
    }

    #[test]
    fn the_cursor_moves_over_own_batches_up_to_the_first_of_others() {
        let footing = |base_seq, follows| Footing { base_seq, follows };
        let mut ground = Ground::default();
        assert_eq!(ground.footing().follows, None);
        ground.applied(own(1));
        ground.applied(own(2));
        assert_eq!((ground.cursor, ground.head()), (2, 2));
        // Applied before, and reported once more.
        ground.applied(own(1));
        assert_eq!(ground.footing(), footing(2, Some(20)));
        assert!(!ground.has_news());
        let batch = |seq, device| BatchEvent {
            seq,
            device,
            counter: seq * 10,
            created_ns: 0,
            host: "h".into(),
        };
        // A batch of others lies between that was not heard of.
        ground.applied(own(4));
        assert_eq!((ground.cursor, ground.head(), ground.others), (2, 4, 3));
        assert_eq!(ground.replaced(), 2);
        assert_eq!(ground.footing(), footing(2, Some(40)));
        ground.heard(&batch(3, 8), 7);
        ground.heard(&batch(4, 7), 7);
        ground.heard(&batch(5, 8), 7);
        assert_eq!((ground.cursor, ground.others, ground.has_news()), (2, 5, true));
        ground.received(5);
        assert_eq!((ground.cursor, ground.has_news()), (5, false));
        assert_eq!(ground.replaced(), 5);
        ground.heard(&batch(6, 7), 7);
        assert_eq!(ground.footing(), footing(6, Some(60)));
    }
}
