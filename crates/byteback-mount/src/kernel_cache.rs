//! The kernel's caching of a tree: which data it may keep, and for how long.
//!
//! In mode `exact` the kernel keeps data that it read and passes each write on; in mode `fast` it
//! collects writes as well. Where the directory can be changed at its own place, beside the mount,
//! nothing is kept for long.

use std::time::Duration;

use fuser::{FileAttr, FopenFlags};

use crate::handles::OpenFile;

/// While all changes come through the mount, nothing that the kernel remembers grows old.
const TTL_EXCLUSIVE: Duration = Duration::from_secs(24 * 60 * 60);

/// With `--at` the directory can also be changed at its own place, which is noticed after this
/// long.
const TTL_SHARED: Duration = Duration::from_secs(1);

/// For how long attributes are believed that the kernel changes by itself, without a word to us,
/// while a file is in use.
const TTL_IN_USE: Duration = Duration::from_secs(1);

/// The least space of a file of which the kernel may hold stores, in units of 512 bytes: a page.
const BLOCKS_HELD: u64 = 8;

/// How writes travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheMode {
    /// Each write reaches the gate before it is acknowledged, with its exact range and in program
    /// order.
    #[default]
    Exact,
    /// The kernel collects writes and hands them on as pages, later. Near-native small writes; the
    /// order across files is the flusher's, and what was not synced is lost if the daemon dies.
    Fast,
}

/// The data that the kernel may remember.
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

    /// Whether the kernel may hold stores that came through this open file and have not passed the
    /// gate: what was stored into a shared mapping, which must be readable, or collected writes.
    pub(crate) fn holds_stores(&self, file: &OpenFile) -> bool {
        let is_cached = file.for_writing() && !file.only_appends();
        is_cached && (self.mode == CacheMode::Fast || file.for_reading())
    }

    /// The attributes that the kernel is told of a regular file of which it may hold stores, and
    /// for how long it believes them.
    ///
    /// Programs take a file that has a length and no blocks for one hole, and do not look further
    /// (`tar -S`). So it has some as long as the file below has none. Where it has fewer than its
    /// length needs, programs ask for the holes and get the right answer. The final number cannot
    /// be known here, so the kernel asks again soon. In mode `exact` a write to an empty file
    /// changes its attributes, and the kernel asks again for that reason.
    pub(crate) fn of_held(&self, attributes: &mut FileAttr) -> Duration {
        if attributes.blocks == 0 && (self.mode == CacheMode::Fast || attributes.size > 0) {
            attributes.blocks = BLOCKS_HELD;
        } else if self.mode == CacheMode::Exact {
            return self.ttl;
        }
        self.ttl.min(TTL_IN_USE)
    }

    /// How an open file is cached. In mode `fast` the kernel keeps the modification time of a file,
    /// and hands it on when it has moved by its own clock, unless the file is opened past the
    /// cache.
    pub(crate) fn of_open(&self, file: &OpenFile) -> FopenFlags {
        let mut flags = FopenFlags::empty();
        if self.exclusive {
            flags |= FopenFlags::FOPEN_KEEP_CACHE;
        }
        // A write-back cache reads the rest of a page that is written in part; where that is
        // forbidden, no cache.
        let needs_reads = self.mode == CacheMode::Fast && !file.readable();
        // Appended bytes must come in order and in one piece, and such a file is not mapped to be
        // written.
        if needs_reads || file.only_appends() {
            flags = FopenFlags::FOPEN_DIRECT_IO;
        } else if self.mode == CacheMode::Fast {
            file.let_kernel_keep_time();
        }
        flags
    }
}
