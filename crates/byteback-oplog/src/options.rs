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
    /// The most extents of one file, in memory as well as in one layer of the database, which a
    /// checkpoint writes anew for each file that changed. 131,072 by default; the paper has 5,000.
    pub extents_per_file_max: u32,
    /// The most memory for extents of all files, in bytes: 16 MiB by default. A checkpoint empties
    /// it.
    pub extents_memory_bytes: u64,
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

/// Bytes of an extent in memory, twice: beside the pending log there may be one that a checkpoint
/// writes just then.
const PENDING_EXTENT_BYTES: u64 = 2 * 16;

impl LogOptions {
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds {
            extents_max: usize::try_from(self.extents_per_file_max.max(1)).unwrap_or(usize::MAX),
            granularity: self.granularity,
        }
    }

    /// The most ranges of all files in one pending log.
    pub(crate) fn pending_extents_max(&self) -> usize {
        usize::try_from(self.extents_memory_bytes / PENDING_EXTENT_BYTES).unwrap_or(usize::MAX)
    }
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            extents_per_file_max: 131_072,
            extents_memory_bytes: 16 << 20,
            granularity: Granularity::default(),
            expiry: ExpiryPolicy::default(),
            consumers_max: 1000,
            scan_portion_entries: 20_000,
            intent_half_sectors: HALF_SECTORS,
        }
    }
}
