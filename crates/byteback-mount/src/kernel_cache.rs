//! What the kernel may keep of a tree, and for how long.
//!
//! In mode `exact` it keeps what was read and passes each write on; in mode `fast` it collects writes as well. Where the directory can be
//! changed at its own place, beside the mount, nothing is kept for long.

use std::time::Duration;

use fuser::FopenFlags;

use crate::handles::OpenFile;

/// While all changes come through the mount, nothing that the kernel remembers grows old.
const TTL_EXCLUSIVE: Duration = Duration::from_secs(24 * 60 * 60);

/// With `--at` the directory can also be changed at its own place, which is noticed after this long.
const TTL_SHARED: Duration = Duration::from_secs(1);

/// How writes travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheMode {
    /// Each write reaches the gate before it is acknowledged, with its exact range and in program order.
    #[default]
    Exact,
    /// The kernel collects writes and hands them on as pages, later. Near-native small writes; the order across
    /// files is the flusher's, and what was not synced is lost if the daemon dies.
    Fast,
}

/// What the kernel may remember.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachePolicy {
    /// For how long names, also missing ones, and attributes stay true without asking.
    pub(crate) ttl: Duration,
    /// Whether all changes come through this mount, so that data stays true as well.
    pub(crate) exclusive: bool,
    pub(crate) mode: CacheMode,
}

impl CachePolicy {
    pub(crate) fn new(mode: CacheMode, exclusive: bool) -> Self {
        Self {
            ttl: if exclusive { TTL_EXCLUSIVE } else { TTL_SHARED },
            exclusive,
            mode,
        }
    }

    /// How an open file is cached.
    pub(crate) fn of_open(&self, file: &OpenFile) -> FopenFlags {
        let mut flags = FopenFlags::empty();
        if self.exclusive {
            flags |= FopenFlags::FOPEN_KEEP_CACHE;
        }
        // A write-back cache reads the rest of a page that is written in part; where that is forbidden, no cache.
        if self.mode == CacheMode::Fast && !file.readable() {
            flags = FopenFlags::FOPEN_DIRECT_IO;
        }
        flags
    }
}
