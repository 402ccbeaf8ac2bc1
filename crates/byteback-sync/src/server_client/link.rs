//! What the link to the server was seen to carry: what the planner's estimates go by.
//!
//! No measurement of its own: bodies that have to be sent anyway are timed if they are long enough
//! to say something about the rate, and answers without a long body tell how long a round trip
//! takes. The server's work on them is included, as whoever sends has to wait for it, too. Young
//! measurements count more than old ones.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Shorter bodies say more about latency than about the rate.
const TIMED_LEN_MIN: u64 = 256 * 1024;

/// Beyond so many bytes, what was measured before counts half.
const REMEMBERED_BYTES: u64 = 64 << 20;

/// What was seen so far.
#[derive(Debug, Default)]
pub(super) struct LinkMeter(Mutex<Seen>);

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    bytes: u64,
    ns: u64,
    round_trip_ns: Option<u64>,
}

impl LinkMeter {
    /// A body of so many bytes was taken by the server within so many nanoseconds.
    pub(super) fn sent(&self, bytes: u64, ns: u64) {
        if bytes < TIMED_LEN_MIN {
            return;
        }
        let mut seen = self.seen();
        seen.bytes = seen.bytes.saturating_add(bytes);
        seen.ns = seen.ns.saturating_add(ns);
        while seen.bytes > REMEMBERED_BYTES {
            seen.bytes /= 2;
            seen.ns /= 2;
        }
    }

    /// A short request was answered within so many nanoseconds; the shortest time is the nearest to
    /// the link's.
    pub(super) fn answered(&self, ns: u64) {
        let mut seen = self.seen();
        seen.round_trip_ns = Some(seen.round_trip_ns.map_or(ns, |least| least.min(ns)));
    }

    /// Bytes per second towards the server, if enough was sent.
    pub(super) fn bytes_per_s(&self) -> Option<u64> {
        let seen = *self.seen();
        let rate = u128::from(seen.bytes) * 1_000_000_000 / u128::from(seen.ns.max(1));
        (seen.bytes > 0).then(|| u64::try_from(rate).unwrap_or(u64::MAX))
    }

    /// From a request to its answer, in nanoseconds.
    pub(super) fn round_trip_ns(&self) -> Option<u64> {
        self.seen().round_trip_ns
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
