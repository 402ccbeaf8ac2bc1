//! The speed at which the wire to a server may be used, if at all: limits by the time of day, and a
//! pause. Both may change during use.
//!
//! A [`Throttle`] is shared by the caller that sets it and the connections of a client
//! ([`crate::ClientOptions::throttle`]), which ask it before and after each piece that they move.
//! So there is one place for both directions, and for everything that is sent or received: no layer
//! above has to know. A connection that is held for long may be closed by the server, as after any
//! silence, and is handled as usual then.
//!
//! The user's setting ([`Wish`]) is kept durably ([`noted`]), so that it outlives the process.
//!
//! Out of scope: counting bytes or waiting (`server_client/pacing`); knowing the time or the time
//! zone.

mod noted;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use noted::NotedError;
use serde::{Deserialize, Serialize};

/// Minutes of a day.
pub const MINUTES_PER_DAY: u16 = 24 * 60;

/// A part of each day, in minutes since midnight, local time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartOfDay {
    /// The first minute, less than [`MINUTES_PER_DAY`].
    pub from_minute: u16,
    /// The first minute behind its end. Less than `from_minute`: the part reaches over midnight.
    pub to_minute: u16,
}

impl PartOfDay {
    /// From the beginning of one minute to that of another; `None` if there is no such part: it
    /// would be empty, or a day has fewer minutes.
    #[must_use]
    pub fn new(from_minute: u16, to_minute: u16) -> Option<Self> {
        let is_one = from_minute < MINUTES_PER_DAY && to_minute <= MINUTES_PER_DAY && from_minute != to_minute;
        is_one.then_some(Self { from_minute, to_minute })
    }

    /// Whether it contains this minute.
    #[must_use]
    pub fn contains(self, minute: u16) -> bool {
        match self.from_minute < self.to_minute {
            true => (self.from_minute..self.to_minute).contains(&minute),
            false => minute >= self.from_minute || minute < self.to_minute,
        }
    }
}

/// `08:00-18:00`, as people write it; with `{:#}`, `from 08:00 to 18:00`.
impl fmt::Display for PartOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [from, to] =
            [self.from_minute, self.to_minute].map(|minute| format!("{:02}:{:02}", minute / 60, minute % 60));
        match f.alternate() {
            true => write!(f, "from {from} to {to}"),
            false => write!(f, "{from}-{to}"),
        }
    }
}

/// A speed limit, and when it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimit {
    /// The part of the day; `None`: always.
    pub during: Option<PartOfDay>,
    /// Bytes per second, both directions together. 0: none at all. `None`: unlimited.
    pub bytes_per_second_max: Option<u64>,
}

/// Several limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RateLimits(pub Vec<RateLimit>);

impl RateLimits {
    /// The limit at a minute of the day: the last one with a part of the day that contains it,
    /// otherwise the last one without a part of the day, otherwise none.
    #[must_use]
    pub fn bytes_per_second_max_at(&self, minute: u16) -> Option<u64> {
        let last = |is_meant: &dyn Fn(&RateLimit) -> bool| self.0.iter().rfind(|limit| is_meant(limit));
        let named = last(&|limit| limit.during.is_some_and(|during| during.contains(minute)));
        let counts = named.or_else(|| last(&|limit| limit.during.is_none()));
        counts.and_then(|limit| limit.bytes_per_second_max)
    }

    fn depend_on_the_time(&self) -> bool {
        self.0.iter().any(|limit| limit.during.is_some())
    }
}

/// The user's setting for the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// The start of a pause, in nanoseconds since 1970; `None`: there is no pause.
    pub paused_since_ns: Option<i64>,
    /// The limits outside of a pause.
    pub limits: RateLimits,
}

/// The current limit of the wire; see the module.
pub struct Throttle {
    wish: Mutex<Wish>,
    /// Number of changes.
    generation: AtomicU64,
    minute_of_day: Box<dyn Fn() -> u16 + Send + Sync>,
}

impl fmt::Debug for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Throttle")
            .field("wish", &*self.lock())
            .finish_non_exhaustive()
    }
}

impl Throttle {
    /// Follows `wish` until that is changed; `minute_of_day` returns the time, in the terms of
    /// [`PartOfDay`].
    pub fn new(wish: Wish, minute_of_day: impl Fn() -> u16 + Send + Sync + 'static) -> Self {
        Self {
            wish: Mutex::new(wish),
            generation: AtomicU64::new(0),
            minute_of_day: Box::new(minute_of_day),
        }
    }

    /// A limit that is always the same.
    #[must_use]
    pub fn fixed(bytes_per_second_max: u64) -> Self {
        let limit = RateLimit {
            during: None,
            bytes_per_second_max: Some(bytes_per_second_max),
        };
        let wish = Wish {
            paused_since_ns: None,
            limits: RateLimits(vec![limit]),
        };
        Self::new(wish, || 0)
    }

    fn lock(&self) -> MutexGuard<'_, Wish> {
        // Each change is complete by itself.
        self.wish.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current setting.
    #[must_use]
    pub fn wish(&self) -> Wish {
        self.lock().clone()
    }

    /// Changes the setting.
    pub fn set(&self, wish: Wish) {
        *self.lock() = wish;
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Bytes per second that may move now; 0: none; `None`: unlimited.
    #[must_use]
    pub fn bytes_per_second_max(&self) -> Option<u64> {
        let wish = self.lock();
        if wish.paused_since_ns.is_some() {
            return Some(0);
        }
        let minute = match wish.limits.depend_on_the_time() {
            true => (self.minute_of_day)(),
            false => 0,
        };
        wish.limits.bytes_per_second_max_at(minute)
    }

    /// Changes with each [`set`](Self::set).
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests;
