//! Limits the bytes per second, over all connections of a client and both directions together, and
//! holds everything during a pause.
//!
//! A plain bucket: a thread that has moved bytes waits until they are paid for. Silence is not
//! saved up beyond a moment, so that the rate is kept over any second and not only on average.
//! Waiting in small steps lets a request to stop, or a changed limit, take effect at once.

use super::CANCEL_WITHIN;
use crate::throttle::Throttle;
use byteback_host::clock::Clock;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Longest silence that is credited, in nanoseconds.
const CREDIT_NS: u64 = 50_000_000;

/// Interval of checks whether a pause is over: it may last for hours, and each check wakes the
/// processor.
const PAUSE_NAP: Duration = Duration::from_millis(250);

pub(super) struct Pacer {
    throttle: Arc<Throttle>,
    clock: Arc<dyn Clock>,
    is_cancelled: Arc<dyn Fn() -> bool + Send + Sync>,
    paid: Mutex<Paid>,
}

impl std::fmt::Debug for Pacer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pacer")
            .field("throttle", &self.throttle)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug)]
struct Paid {
    /// When everything so far is paid for, on the monotonic clock.
    at_ns: u64,
    /// The generation of the limits that it was computed with.
    generation: u64,
}

impl Pacer {
    pub(super) fn new(
        throttle: Arc<Throttle>,
        clock: Arc<dyn Clock>,
        is_cancelled: Arc<dyn Fn() -> bool + Send + Sync>,
    ) -> Self {
        let paid = Paid {
            at_ns: clock.monotonic_ns(),
            generation: throttle.generation(),
        };
        Self {
            throttle,
            clock,
            is_cancelled,
            paid: Mutex::new(paid),
        }
    }

    /// Waits until a pause is over.
    pub(super) fn wait_for_the_end_of_a_pause(&self) {
        while self.throttle.bytes_per_second_max() == Some(0) && !(self.is_cancelled)() {
            self.clock.sleep(PAUSE_NAP);
        }
    }

    /// Waits until these bytes, which were moved, are paid for.
    pub(super) fn moved(&self, bytes: usize) {
        let generation = self.throttle.generation();
        // Without a limit nothing is charged; in a pause the next mover waits.
        let Some(bytes_per_second) = self.throttle.bytes_per_second_max().filter(|rate| *rate > 0) else {
            return;
        };
        let cost_ns =
            u128::try_from(bytes).unwrap_or(u128::MAX).saturating_mul(1_000_000_000) / u128::from(bytes_per_second);
        let cost_ns = u64::try_from(cost_ns).unwrap_or(u64::MAX);
        let paid_at_ns = {
            let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
            let credit_from = self.clock.monotonic_ns().saturating_sub(CREDIT_NS);
            let debt_until = match paid.generation == generation {
                true => paid.at_ns,
                // Debts of slower limits are forgiven.
                false => credit_from,
            };
            *paid = Paid {
                at_ns: debt_until.max(credit_from).saturating_add(cost_ns),
                generation,
            };
            paid.at_ns
        };
        loop {
            let left_ns = paid_at_ns.saturating_sub(self.clock.monotonic_ns());
            if left_ns == 0 || (self.is_cancelled)() || self.throttle.generation() != generation {
                return;
            }
            self.clock.sleep(Duration::from_nanos(left_ns).min(CANCEL_WITHIN));
        }
    }
}
