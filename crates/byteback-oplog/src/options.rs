//! The options with which a log is opened. None of them is stored in the log: the next start may
//! choose others.

use std::time::Duration;

use crate::intents::HALF_SECTORS;
use crate::layer::{Bounds, Granularity};

/// When a silent consumer is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpiryPolicy {
    /// Silence after which its state says when it will be dropped.
    pub warn_after: Duration,
    /// Silence after which [`crate::Log::expire_consumers`] drops it.
    pub drop_after: Duration,
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl Default for ExpiryPolicy {
    fn default() -> Self {
        Self {
            warn_after: DAY * 90,
            drop_after: DAY * 180,
        }
    }
}

/// How a log is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// The most extents of one file, in memory as well as in one layer of the database; the paper's
    /// 5,000 by default.
    pub extents_per_file_max: u32,
    /// The units in which ranges are kept.
    pub granularity: Granularity,
    /// The policy for silent consumers.
    pub expiry: ExpiryPolicy,
    /// The most consumers: each keeps layers apart. One more is refused, except that half of this
    /// is only for those that have a mark of the whole tree: programs that save file by file, each
    /// user's, leave room for backups. Those that are known may go on even if there are more.
    pub consumers_max: u32,
    /// The number of entries after which a scan writes its findings to the database, so that memory
    /// does not grow with the tree; small in tests.
    pub(crate) scan_portion_entries: u64,
    /// Sectors in a half of the intents' file; small in tests.
    pub(crate) intent_half_sectors: u64,
}

impl LogOptions {
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds {
            extents_max: usize::try_from(self.extents_per_file_max.max(1)).unwrap_or(usize::MAX),
            granularity: self.granularity,
        }
    }
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            extents_per_file_max: 5000,
            granularity: Granularity::default(),
            expiry: ExpiryPolicy::default(),
            consumers_max: 1000,
            scan_portion_entries: 20_000,
            intent_half_sectors: HALF_SECTORS,
        }
    }
}
