//! The seed of a random test.

/// The seed of a test: `BYTEBACK_SEED` from the environment to repeat a run, otherwise `default`.
/// It is printed, so that a failed run can be repeated.
pub fn seed(default: u64) -> u64 {
    let seed = std::env::var("BYTEBACK_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(default);
    eprintln!("BYTEBACK_SEED={seed}");
    seed
}
