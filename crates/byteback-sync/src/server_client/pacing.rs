//! No more than so many bytes per second, over all connections of a client and both directions together.
//!
//! A plain bucket: whoever has moved bytes waits until they are paid for. A pause is not saved up beyond a moment, so that the rate is kept
//! over any second and not only on average. Waiting in small steps lets somebody who wants to stop do so.

use super::CANCEL_WITHIN;
use byteback_host::clock::Clock;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// For how long silence is credited.
const CREDIT_NS: u64 = 50_000_000;

pub(super) struct Pacer {
    bytes_per_second: u64,
    clock: Arc<dyn Clock>,
    is_cancelled: Arc<dyn Fn() -> bool + Send + Sync>,
    /// When everything so far is paid for, on the monotonic clock.
    paid_at_ns: Mutex<u64>,
}

impl std::fmt::Debug for Pacer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pacer")
            .field("bytes_per_second", &self.bytes_per_second)
            .finish_non_exhaustive()
    }
}

impl Pacer {
    pub(super) fn new(
        bytes_per_second: u64,
        clock: Arc<dyn Clock>,
        is_cancelled: Arc<dyn Fn() -> bool + Send + Sync>,
    ) -> Self {
        let now_ns = clock.monotonic_ns();
        Self {
            bytes_per_second: bytes_per_second.max(1),
            clock,
            is_cancelled,
            paid_at_ns: Mutex::new(now_ns),
        }
    }

    /// So many bytes went by: waits until they are paid for.
    pub(super) fn moved(&self, bytes: usize) {
        let cost_ns = u128::try_from(bytes).unwrap_or(u128::MAX).saturating_mul(1_000_000_000)
            / u128::from(self.bytes_per_second);
        let cost_ns = u64::try_from(cost_ns).unwrap_or(u64::MAX);
        let paid_at_ns = {
            let mut paid_at_ns = self.paid_at_ns.lock().unwrap_or_else(PoisonError::into_inner);
            let credit_from = self.clock.monotonic_ns().saturating_sub(CREDIT_NS);
            *paid_at_ns = (*paid_at_ns).max(credit_from).saturating_add(cost_ns);
            *paid_at_ns
        };
        loop {
            let left_ns = paid_at_ns.saturating_sub(self.clock.monotonic_ns());
            if left_ns == 0 || (self.is_cancelled)() {
                return;
            }
            self.clock.sleep(Duration::from_nanos(left_ns).min(CANCEL_WITHIN));
        }
    }
}
