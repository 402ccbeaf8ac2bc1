//! Modification times that the kernel keeps.
//!
//! In mode `fast` the kernel decides when a file was modified: by its own clock, when a program
//! writes. It hands the time on when it has moved, in a request of its own, before or after the
//! bytes. The writes that reach the daemon later would move the time of the file below once more;
//! programs, and the kernel, would not see that until the file is forgotten, and a backup would
//! save a time that nobody was shown. So after a change the time is put back to what it was before.
//!
//! A crash in between leaves the later time, and the log tells of the change anyway.

use std::hash::{BuildHasher, RandomState};

use byteback_host::tree::{Identity, SetTime};
use parking_lot::{Mutex, MutexGuard};

use super::TrackedResult;
use crate::handles::OpenFile;

/// Files that are changed at the same time rarely share a lock.
const LOCK_COUNT: usize = 32;

/// Orders what sets the times of a file and what puts them back.
pub(super) struct Times {
    hasher: RandomState,
    locks: [Mutex<()>; LOCK_COUNT],
}

impl Default for Times {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            locks: std::array::from_fn(|_| Mutex::new(())),
        }
    }
}

impl Times {
    /// Nobody else sets times of this inode, or puts them back, meanwhile.
    pub(super) fn order(&self, identity: &Identity) -> Option<MutexGuard<'_, ()>> {
        let hash = self.hasher.hash_one((identity.dev, identity.ino));
        let index = usize::try_from(hash % LOCK_COUNT as u64).ok()?;
        Some(self.locks.get(index)?.lock())
    }

    /// Performs a change of content. If the kernel keeps the file's time, it is the same
    /// afterwards.
    pub(super) fn keep<T>(&self, file: &OpenFile, change: impl FnOnce() -> TrackedResult<T>) -> TrackedResult<T> {
        if !file.kernel_keeps_time() {
            return change();
        }
        let _order = self.order(&file.identity());
        let before = file.stat().ok().map(|before| before.mtime_ns);
        let done = change();
        if let Some(before_ns) = before {
            // The daemon may be allowed to write another user's file and not to set its times: then
            // they move.
            let _ = file.set_times(SetTime::Keep, SetTime::To(before_ns));
        }
        done
    }
}
