//! Helpers that the tests of this crate share.

/// The seeds of a random test: 200, or as many as `BYTEBACK_SEEDS` says, or the one of
/// `BYTEBACK_SEED`.
pub(crate) fn seeds() -> std::ops::Range<u64> {
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|value: String| value.parse::<u64>().ok())
    };
    match number("BYTEBACK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("BYTEBACK_SEEDS").unwrap_or(200),
    }
}
