//! The measured speed of the link to the server: the basis of the planner's estimates.
//!
//! Nothing is sent for the measurement: bodies that have to be sent anyway are timed if they are
//! long enough to say something about the rate, and answers without a long body give the time of a
//! round trip. The server's work on them is included, as the sender has to wait for it, too. New
//! measurements count more than old ones.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Shorter bodies say more about latency than about the rate.
const TIMED_LEN_MIN: u64 = 256 * 1024;

/// After this number of bytes, earlier measurements count half.
const REMEMBERED_BYTES: u64 = 64 << 20;

/// The measurements so far.
#[derive(Debug, Default)]
pub(super) struct LinkMeter(Mutex<Seen>);

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    bytes: u64,
    ns: u64,
    round_trip_ns: Option<u64>,
}

impl LinkMeter {
    /// Notes that the server took a body of `bytes` within `ns` nanoseconds.
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

    /// Notes that a short request was answered within `ns` nanoseconds; the shortest time is the
    /// nearest to the link's.
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

    /// Time from a request to its answer, in nanoseconds.
    pub(super) fn round_trip_ns(&self) -> Option<u64> {
        self.seen().round_trip_ns
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
