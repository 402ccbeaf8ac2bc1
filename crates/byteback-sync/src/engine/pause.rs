//! How long to wait before something is tried again. Pure.

use std::time::Duration;

use byteback_backup::BackupError;
use byteback_client::ServerErrorKind;

/// Lengths of pauses after failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseOptions {
    /// Pause after the first failure; it doubles with each that follows.
    pub first: Duration,
    /// Longest pause, also used after a failure that will not pass by itself.
    pub longest: Duration,
}

impl Default for PauseOptions {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(60),
        }
    }
}

/// Failures in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Failures {
    in_a_row: u32,
}

impl Failures {
    /// Something worked.
    pub(super) fn end(&mut self) {
        self.in_a_row = 0;
    }

    /// Notes a failure and returns how long to wait. `random` draws from the upper half of the
    /// pause, so that clients which lost the same server do not all come back at once.
    pub(super) fn next(&mut self, options: PauseOptions, is_passing: bool, random: u64) -> Duration {
        let doubled = 1u32.checked_shl(self.in_a_row.min(31)).unwrap_or(u32::MAX);
        self.in_a_row = self.in_a_row.saturating_add(1);
        let all = match is_passing {
            true => options.first.saturating_mul(doubled).min(options.longest),
            false => options.longest,
        };
        let half_ns = u64::try_from(all.as_nanos() / 2).unwrap_or(u64::MAX);
        all.saturating_sub(Duration::from_nanos(random.checked_rem(half_ns).unwrap_or(0)))
    }
}

/// Whether a failure may pass by itself, so that nothing has to be done about it.
pub(super) fn is_passing(error: &BackupError) -> bool {
    match error {
        BackupError::OutcomeUnknown { .. } | BackupError::Cancelled => true,
        BackupError::Server(error) => {
            error.kind.is_transient()
                || matches!(
                    error.kind,
                    ServerErrorKind::Conflict | ServerErrorKind::OutOfOrder | ServerErrorKind::PartsMissing
                )
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_are_never_less_than_half() {
        let options = PauseOptions {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(60),
        };
        let mut failures = Failures::default();
        for expected in [1, 2, 4, 8, 16, 32, 60, 60] {
            let mut same = failures;
            assert_eq!(same.next(options, true, 0), Duration::from_secs(expected));
            let least = failures.next(options, true, u64::MAX);
            assert!(least >= Duration::from_secs(expected) / 2, "{least:?}");
            assert!(least <= Duration::from_secs(expected), "{least:?}");
        }
        for _ in 0..100 {
            assert_eq!(failures.next(options, true, 0), Duration::from_secs(60));
        }
        failures.end();
        assert_eq!(failures.next(options, false, 0), Duration::from_secs(60));
        let none = PauseOptions {
            first: Duration::ZERO,
            longest: Duration::ZERO,
        };
        assert_eq!(failures.next(none, true, 7), Duration::ZERO);
    }
}
