//! The random choices of a run, from its seed: `BYTEBACK_SEED`, or one made from the time. The seed
//! repeats the choices of a run, not the kernel's order of events.

use byteback_host::random::SplitMix64;

/// The generator of a run's choices.
#[derive(Clone, Debug)]
pub(crate) struct Random(SplitMix64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap()
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// A number determined by `value`; near values lead to unrelated numbers.
pub(crate) fn mix(value: u64) -> u64 {
    SplitMix64::new(value).next_u64()
}

/// The seed of this run, printed.
pub(crate) fn seed() -> u64 {
    let seed = number("BYTEBACK_SEED").unwrap_or_else(|| {
        let since = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        u64::from(since.subsec_nanos()) ^ since.as_secs()
    });
    println!("BYTEBACK_SEED={seed}");
    seed
}

/// The number of rounds of a test: `BYTEBACK_ROUNDS`, or its default.
pub(crate) fn rounds(default: u64) -> u64 {
    number("BYTEBACK_ROUNDS").unwrap_or(default)
}

/// The number of lives of a test: `BYTEBACK_LIVES`, or its default.
pub(crate) fn lives(default: u64) -> u64 {
    number("BYTEBACK_LIVES").unwrap_or(default)
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}
