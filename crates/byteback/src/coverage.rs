//! The coverage ledger in words: since when a folder is tracked without a gap, and every gap with
//! its cause.
//!
//! A *gap* begins when tracking ends (in good order, or because the daemon or the machine stopped)
//! and lasts until tracking begins again. Changes found by the comparison with the record belong to
//! the gap in which the comparison was made.

use byteback_oplog::{LedgerEntry, LedgerEvent};
use serde::Serialize;

use crate::timestamp;
use crate::wording::{counted, listed};

/// Why changes were not tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub(crate) enum Cause {
    /// The folder was unmounted.
    NotMounted,
    /// The daemon or the machine stopped.
    Interrupted {
        /// Files that were open for writing at that time.
        open_files: u64,
    },
    /// The log was damaged or removed, and its knowledge with it.
    LogLost,
}

/// A period in which changes were not tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// When tracking ended; for an interruption, when that was noticed: the exact time is unknown.
    pub(crate) from_ns: i64,
    /// When tracking began again; `None` if it has not.
    pub(crate) to_ns: Option<i64>,
    pub(crate) cause: Cause,
    /// Files found changed.
    pub(crate) changed_files: u64,
    /// Names found changed.
    pub(crate) changed_names: u64,
}

/// The content of the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Coverage {
    /// Start of tracking without a gap; `None` if the folder is not tracked now.
    pub(crate) tracked_since_ns: Option<i64>,
    /// Oldest first; the last one may not have ended.
    pub(crate) gaps: Vec<Gap>,
}

impl Coverage {
    /// Reads the ledger, oldest entry first.
    pub(crate) fn of(ledger: &[LedgerEntry]) -> Self {
        let mut coverage = Self::default();
        let mut gap: Option<Gap> = None;
        for entry in ledger {
            let begun = |cause| Gap {
                from_ns: entry.at_ns,
                to_ns: None,
                cause,
                changed_files: 0,
                changed_names: 0,
            };
            match entry.event {
                LedgerEvent::Created | LedgerEvent::ConsumerDropped { .. } => {}
                // The log of the time before is gone; the knowledge of this one begins here.
                LedgerEvent::LogLost { .. } => {
                    coverage.tracked_since_ns = None;
                    gap = Some(begun(Cause::LogLost));
                }
                LedgerEvent::TrackingBegan => {
                    if let Some(mut gap) = gap.take() {
                        gap.to_ns = Some(entry.at_ns);
                        coverage.gaps.push(gap);
                    }
                    coverage.tracked_since_ns = Some(entry.at_ns);
                }
                LedgerEvent::TrackingEnded => {
                    coverage.tracked_since_ns = None;
                    gap = Some(begun(Cause::NotMounted));
                }
                LedgerEvent::Interrupted { open_files } => {
                    coverage.tracked_since_ns = None;
                    gap = Some(begun(Cause::Interrupted { open_files }));
                }
                LedgerEvent::UntrackedChanges { files, names } => {
                    // Before the first mount there is no coverage that could have a gap.
                    if let Some(gap) = &mut gap {
                        gap.changed_files = gap.changed_files.saturating_add(files);
                        gap.changed_names = gap.changed_names.saturating_add(names);
                    }
                }
            }
        }
        coverage.gaps.extend(gap);
        coverage
    }
}

impl Gap {
    /// The gap as one line.
    pub(crate) fn words(&self) -> String {
        let from = timestamp::local(self.from_ns);
        let to = self.to_ns.map(timestamp::local);
        let time = match (self.cause, to) {
            (Cause::NotMounted, Some(to)) => format!("{from} to {to}"),
            (Cause::NotMounted, None) => format!("since {from}"),
            (Cause::Interrupted { .. } | Cause::LogLost, _) => format!("noticed {from}"),
        };
        let cause = match self.cause {
            Cause::NotMounted => "not mounted".to_owned(),
            Cause::LogLost => {
                "the log was damaged or missing and started anew; every file counts as changed".to_owned()
            }
            Cause::Interrupted { open_files: 0 } => {
                "the daemon or the machine stopped; no file was being changed".to_owned()
            }
            Cause::Interrupted { open_files } => format!(
                "the daemon or the machine stopped; {} being changed, to be read in full",
                counted(open_files, "file was", "files were")
            ),
        };
        let mut found = Vec::new();
        if self.changed_files > 0 {
            found.push(counted(self.changed_files, "file", "files"));
        }
        if self.changed_names > 0 {
            found.push(counted(self.changed_names, "name", "names"));
        }
        let found = match (found.as_slice(), self.to_ns) {
            ([], Some(_)) => "nothing else had changed".to_owned(),
            ([], None) => "not compared with the record since then".to_owned(),
            (found, _) => format!("found changed: {}", listed(found)),
        };
        format!("{time}: {cause}; {found}")
    }
}

#[cfg(test)]
mod tests;
