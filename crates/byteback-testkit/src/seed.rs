//! The seed of a random test, and the numbers that say how long it takes.

use byteback_host::random::SplitMix64;
use std::time::UNIX_EPOCH;

/// The seed of a test: `BYTEBACK_SEED` from the environment to repeat a run, otherwise `default`.
/// It is printed, so that a failed run can be repeated.
pub fn seed(default: u64) -> u64 {
    let seed = number("BYTEBACK_SEED").unwrap_or(default);
    eprintln!("BYTEBACK_SEED={seed}");
    seed
}

/// As [`seed`], by default another one in each run. It repeats the choices of a run, not the
/// kernel's order of events.
pub fn fresh_seed() -> u64 {
    let since = UNIX_EPOCH.elapsed().unwrap();
    seed(u64::from(since.subsec_nanos()) ^ since.as_secs())
}

/// The number of rounds of a test: `BYTEBACK_ROUNDS`, or its default.
pub fn rounds(default: u64) -> u64 {
    number("BYTEBACK_ROUNDS").unwrap_or(default)
}

/// The number of lives of a test: `BYTEBACK_LIVES`, or its default.
pub fn lives(default: u64) -> u64 {
    number("BYTEBACK_LIVES").unwrap_or(default)
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

/// A number determined by `value`; near values lead to unrelated numbers.
pub fn mix(value: u64) -> u64 {
    SplitMix64::new(value).next_u64()
}

/// Choices that tests draw from a generator.
pub trait Draw {
    /// An index into a list of `len`.
    fn index(&mut self, len: usize) -> usize;

    /// True in `percent` of 100 draws.
    fn chance(&mut self, percent: u64) -> bool;
}

impl Draw for SplitMix64 {
    fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap()
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
