//! Replay of a trace in which recorded time decides when everything is synced, on any file system.

use std::time::Instant;

use crate::SuiteError;
use crate::rig::interrupt;
use crate::traces::Trace;
use crate::traces::operation::Operation;

/// The recorded time between syncs of everything: the age at which Linux writes dirty data back
/// (`dirty_expire_centisecs`).
const SYNC_EVERY_US: u64 = 30_000_000;

/// The place where a trace is replayed.
pub(crate) trait Stage {
    /// Performs an operation of a program.
    fn carry_out(&mut self, operation: &Operation) -> Result<(), SuiteError>;

    /// Makes everything durable, after an idle time.
    fn sync(&mut self) -> Result<(), SuiteError>;
}

/// The durations of a replay.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Took {
    /// The number of calls that wrote.
    pub(crate) writes: u64,
    /// Their time in nanoseconds.
    pub(crate) write_ns: u64,
    /// The number of syncs that the program requested.
    pub(crate) syncs: u64,
    /// Their time in nanoseconds.
    pub(crate) sync_ns: u64,
    /// The total time in seconds, with the syncs that elapsed time caused.
    pub(crate) wall_s: f64,
}

/// Replays all of a trace, and syncs everything at its end.
///
/// # Errors
/// If an operation fails: each succeeded when it was recorded.
pub(crate) fn replay(trace: &Trace, stage: &mut impl Stage) -> Result<Took, SuiteError> {
    let mut took = Took::default();
    let started = Instant::now();
    let mut due_us = SYNC_EVERY_US;
    for (index, timed) in trace.operations.iter().enumerate() {
        if timed.at_us >= due_us {
            interrupt::check()?;
            stage.sync()?;
            due_us = timed.at_us + SYNC_EVERY_US;
        }
        let before = Instant::now();
        stage.carry_out(&timed.operation).map_err(|error| {
            format!(
                "{}: operation {} ({:?}): {error}",
                trace.name,
                index + 1,
                timed.operation
            )
        })?;
        let ns = u64::try_from(before.elapsed().as_nanos()).unwrap_or(u64::MAX);
        match timed.operation {
            Operation::Write { .. } => {
                took.writes += 1;
                took.write_ns += ns;
            }
            Operation::Fsync { .. } | Operation::FsyncDir { .. } => {
                took.syncs += 1;
                took.sync_ns += ns;
            }
            _ => {}
        }
    }
    stage.sync()?;
    took.wall_s = started.elapsed().as_secs_f64();
    Ok(took)
}
