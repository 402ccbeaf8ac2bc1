//! Time behind a trait, so that decisions based on it can be replayed.
//!
//! Two readings are kept apart: *wall-clock time* is what people and file systems write down and
//! may jump; *monotonic time* measures waiting and never goes back. Only this module may ask the
//! system for either (`clippy.toml` and `cargo xtask tidy` hold the line).

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A source of time.
pub trait Clock: Send + Sync {
    /// Wall-clock time in nanoseconds since 1970-01-01 UTC; may jump in either direction.
    fn now_ns(&self) -> i64;

    /// Nanoseconds since an arbitrary start, never going back; only differences mean something.
    fn monotonic_ns(&self) -> u64;

    /// [`Clock::monotonic_ns`] as of the last tick of the system's timer: never later, usually a
    /// few milliseconds earlier, and much cheaper.
    fn coarse_monotonic_ns(&self) -> u64 {
        self.monotonic_ns()
    }

    /// Lets at least `duration` pass.
    fn sleep(&self, duration: Duration);
}

/// The machine's own clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealClock;

impl Clock for RealClock {
    fn now_ns(&self) -> i64 {
        let now = clock_gettime(ClockId::Realtime);
        now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
    }

    fn monotonic_ns(&self) -> u64 {
        monotonic(ClockId::Monotonic)
    }

    fn coarse_monotonic_ns(&self) -> u64 {
        monotonic(ClockId::MonotonicCoarse)
    }

    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}

fn monotonic(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let ns = now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec);
    u64::try_from(ns).unwrap_or(0)
}

/// A clock that stands still until it is told to move; sleeping moves it and returns at once.
#[derive(Debug)]
pub struct SimClock {
    wall_ns: AtomicI64,
    monotonic_ns: AtomicU64,
}

impl SimClock {
    /// A clock that shows `start_ns` nanoseconds since 1970 and has just been started.
    #[must_use]
    pub fn new(start_ns: i64) -> Self {
        Self {
            wall_ns: AtomicI64::new(start_ns),
            monotonic_ns: AtomicU64::new(0),
        }
    }

    /// Lets `duration` pass on both clocks.
    pub fn advance(&self, duration: Duration) {
        let ns = duration.as_nanos();
        let wall = i64::try_from(ns).unwrap_or(i64::MAX);
        let mono = u64::try_from(ns).unwrap_or(u64::MAX);
        // Each closure returns Some, so neither update can be refused.
        let _ = self
            .wall_ns
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |t| Some(t.saturating_add(wall)));
        let _ = self
            .monotonic_ns
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |t| Some(t.saturating_add(mono)));
    }

    /// Sets the wall clock alone, as an administrator or a time daemon does: it may go back.
    pub fn set_wall_ns(&self, now_ns: i64) {
        self.wall_ns.store(now_ns, Ordering::SeqCst);
    }
}

impl Clock for SimClock {
    fn now_ns(&self) -> i64 {
        self.wall_ns.load(Ordering::SeqCst)
    }

    fn monotonic_ns(&self) -> u64 {
        self.monotonic_ns.load(Ordering::SeqCst)
    }

    fn sleep(&self, duration: Duration) {
        self.advance(duration);
    }
}

#[cfg(test)]
mod tests;
