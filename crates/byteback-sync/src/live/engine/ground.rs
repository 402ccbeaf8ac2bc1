//! What is sent stands on this: how far others' changes are here, and this device's newest batch. Pure.
//!
//! The cursor moves over own batches by itself as long as nobody else's lie between: what they hold is here. Each batch follows the device's newest
//! one, also where its base would do: so one that was given up, and arrives late, comes out of order and counts no more.

use byteback_api::messages::BatchEvent;
use byteback_api::{DeviceId, Seq};

use crate::live::standing::OwnBatch;
use crate::live::upload::Footing;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ground {
    pub(super) cursor: Seq,
    pub(super) newest: Option<OwnBatch>,
}

impl Ground {
    /// The newest batch that is known of.
    pub(super) fn head(self) -> Seq {
        self.cursor.max(self.newest.map_or(0, |own| own.seq))
    }

    /// What the next batch stands on.
    pub(super) fn footing(self) -> Footing {
        Footing {
            base_seq: self.cursor,
            follows: self.newest.map(|own| own.counter),
        }
    }

    /// A batch of this device was applied. False if others' lie between.
    pub(super) fn applied(&mut self, own: OwnBatch) -> bool {
        if self.newest.is_none_or(|newest| newest.seq < own.seq) {
            self.newest = Some(own);
        }
        if self.cursor.checked_add(1) == Some(own.seq) {
            self.cursor = own.seq;
        }
        own.seq <= self.cursor
    }

    /// The batch behind the cursor, as the server tells of it. False if it is another device's.
    pub(super) fn heard(&mut self, batch: &BatchEvent, device: DeviceId) -> bool {
        let (counter, seq) = (batch.counter, batch.seq);
        batch.device == device && self.applied(OwnBatch { counter, seq })
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
        let mut ground = Ground::default();
        assert_eq!(ground.footing().follows, None);
        assert!(ground.applied(own(1)) && ground.applied(own(2)));
        assert_eq!((ground.cursor, ground.head()), (2, 2));
        // Applied before, and told once more.
        assert!(ground.applied(own(1)));
        assert_eq!(
            ground.footing(),
            Footing {
                base_seq: 2,
                follows: Some(20)
            }
        );
        let batch = |seq, device| BatchEvent {
            seq,
            device,
            counter: seq * 10,
            created_ns: 0,
            host: "h".into(),
        };
        // Somebody else's lies between.
        assert!(!ground.applied(own(4)));
        assert_eq!((ground.cursor, ground.head()), (2, 4));
        assert_eq!(
            ground.footing(),
            Footing {
                base_seq: 2,
                follows: Some(40)
            }
        );
        assert!(!ground.heard(&batch(3, 8), 7));
        assert_eq!(ground.cursor, 2);
        assert!(ground.heard(&batch(3, 7), 7));
        assert_eq!(ground.cursor, 3);
    }
}
