//! Replaying a trace where its time decides when everything is synced, whatever the file system.

use std::time::Instant;

use crate::SuiteError;
use crate::rig::interrupt;
use crate::traces::Trace;
use crate::traces::operation::Operation;

/// So much of recorded time may pass before everything is synced: as old as Linux lets what was
/// written become (`dirty_expire_centisecs`).
const SYNC_EVERY_US: u64 = 30_000_000;

/// Where a trace is carried out.
pub(crate) trait Stage {
    /// Does what a program did.
    fn carry_out(&mut self, operation: &Operation) -> Result<(), SuiteError>;

    /// Makes everything durable; time has passed in which nobody did anything.
    fn sync(&mut self) -> Result<(), SuiteError>;
}

/// How long a replay took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Took {
    /// Calls that wrote.
    pub(crate) writes: u64,
    /// Nanoseconds of those.
    pub(crate) write_ns: u64,
    /// Syncs that the program asked for.
    pub(crate) syncs: u64,
    /// Nanoseconds of those.
    pub(crate) sync_ns: u64,
    /// All of it, in seconds, with what was synced because time had passed.
    pub(crate) wall_s: f64,
}

/// Carries all of a trace out, and syncs everything at its end.
///
/// # Errors
/// If an operation fails: each did succeed when it was recorded.
pub(crate) fn replay(trace: &Trace, stage: &mut impl Stage) -> Result<Took, SuiteError> {
    let mut took = Took::default();
    let began = Instant::now();
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
    took.wall_s = began.elapsed().as_secs_f64();
    Ok(took)
}
