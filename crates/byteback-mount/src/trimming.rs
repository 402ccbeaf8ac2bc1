//! Whether comparing the bytes of writes with the old ones pays for one open file.
//!
//! `tracked/trim` compares, and learns here; an open file (`handles`) keeps what was learnt.

use std::sync::atomic::{AtomicU32, Ordering};

/// Writes in a row that are compared in vain before some are skipped.
const FRUITLESS_MAX: u32 = 16;
/// Writes that are then not compared at all.
const SKIPPED_MAX: u32 = 64;

/// Whether comparing pays for one open file. A guess: threads may overwrite each other's counts.
#[derive(Debug, Default)]
pub(crate) struct Trimming {
    fruitless: AtomicU32,
    skipped: AtomicU32,
}

impl Trimming {
    pub(crate) fn is_worth_a_look(&self) -> bool {
        if self.fruitless.load(Ordering::Relaxed) < FRUITLESS_MAX {
            return true;
        }
        let skipped = self.skipped.load(Ordering::Relaxed);
        let look = skipped >= SKIPPED_MAX;
        self.skipped
            .store(if look { 0 } else { skipped + 1 }, Ordering::Relaxed);
        look
    }

    pub(crate) fn learn(&self, was_of_use: bool) {
        let fruitless = if was_of_use {
            0
        } else {
            self.fruitless.load(Ordering::Relaxed).saturating_add(1)
        };
        self.fruitless.store(fruitless, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
