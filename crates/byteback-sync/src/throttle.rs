//! How fast the wire to a server may be used, and whether at all: limits by the time of day, and a
//! pause. Both may change while it is used.
//!
//! A [`Throttle`] is shared by whoever says so and the connections of a client
//! ([`crate::ClientOptions::throttle`]), which ask it before and after each piece that they move.
//! So there is one place for both directions, and for whatever is sent or received over it: nobody
//! above has to know. Who is held for long may find his connection closed by the server, as after
//! any silence, and does what he does then.
//!
//! What is wanted ([`Wish`]) is kept durably ([`noted`]), so that it outlives the process.
//!
//! Out of scope: count bytes or wait (`server_client/pacing`); know the clock or where on
//! earth the machine is.

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
    /// It begins with this minute, less than [`MINUTES_PER_DAY`].
    pub from_minute: u16,
    /// This is the first minute that does not belong to it. Less than `from_minute`: it reaches
    /// over midnight.
    pub to_minute: u16,
}

impl PartOfDay {
    /// From the beginning of one minute to that of another; `None` if there is no such part: it
    /// would be empty, or a day has not that many minutes.
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

/// How fast, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimit {
    /// When; `None`: always.
    pub during: Option<PartOfDay>,
    /// Bytes per second, both directions together. 0: none at all. `None`: as fast as it goes.
    pub bytes_per_second_max: Option<u64>,
}

/// Several of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RateLimits(pub Vec<RateLimit>);

impl RateLimits {
    /// What counts at a minute of the day: the last that names a part of the day with it in it,
    /// otherwise the last that names none, otherwise no limit.
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

/// What somebody wants of the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// Nothing is to move, and since when somebody wants that, nanoseconds since 1970.
    pub paused_since_ns: Option<i64>,
    /// How fast, otherwise.
    pub limits: RateLimits,
}

/// See the module.
pub struct Throttle {
    wish: Mutex<Wish>,
    /// How often it was changed.
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
    /// As `wish` wants it, until it is changed; `minute_of_day` tells the time, as [`PartOfDay`]
    /// means it.
    pub fn new(wish: Wish, minute_of_day: impl Fn() -> u16 + Send + Sync + 'static) -> Self {
        Self {
            wish: Mutex::new(wish),
            generation: AtomicU64::new(0),
            minute_of_day: Box::new(minute_of_day),
        }
    }

    /// Always the same.
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
        // Each change is whole by itself.
        self.wish.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is wanted now.
    #[must_use]
    pub fn wish(&self) -> Wish {
        self.lock().clone()
    }

    /// From now on, this is wanted.
    pub fn set(&self, wish: Wish) {
        *self.lock() = wish;
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Bytes per second that may move now; 0: none; `None`: as fast as it goes.
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
