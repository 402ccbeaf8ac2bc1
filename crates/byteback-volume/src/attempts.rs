//! Which pages that are overwritten are compared with what they were, to be kept as deltas.
//!
//! To compare a page takes longer than to write it to memory, more so if what it was must be read
//! first. That is lost where nothing comes of it: of a file that is written anew from its beginning
//! to its end, or one whose pages are compressed or encrypted. So where several pages of a file in
//! a row were compared in vain, the next ones of the same call are not, longer each time, until one
//! is kept. The first page of each call is always compared: a call that writes much tells little
//! about the next one, and one that writes one page costs little. Only counts of pages decide that:
//! the same calls give the same answers.
//!
//! Out of scope: looking at pages, see `deltas` and `byteback_delta`.

use std::collections::BTreeMap;

use crate::format::Nid;

/// So many pages in a row are compared in vain before any is left alone.
const MISSES_MIN: u32 = 16;

/// So many are left alone at most before one is compared again.
const SKIPPED_MAX: u32 = 64;

/// Files that are remembered at most.
const FILES_MAX: usize = 4096;

/// What became of the last pages of a file.
#[derive(Clone, Copy, Debug, Default)]
struct Misses {
    in_a_row: u32,
    to_skip: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    of: BTreeMap<Nid, Misses>,
}

impl Attempts {
    /// A file is written to by another call.
    pub(crate) fn begin(&mut self, ino: Nid) {
        if let Some(misses) = self.of.get_mut(&ino) {
            misses.to_skip = 0;
        }
    }

    /// Whether the next page of a file that is overwritten is to be compared.
    pub(crate) fn is_worth_one(&mut self, ino: Nid) -> bool {
        match self.of.get_mut(&ino) {
            Some(misses) if misses.to_skip > 0 => {
                misses.to_skip -= 1;
                false
            }
            _ => true,
        }
    }

    /// Whether the last page of a file that was compared was so in vain.
    pub(crate) fn is_in_doubt(&self, ino: Nid) -> bool {
        self.of.contains_key(&ino)
    }

    /// It was compared, and kept as a delta.
    pub(crate) fn hit(&mut self, ino: Nid) {
        self.of.remove(&ino);
    }

    /// It was compared in vain.
    pub(crate) fn missed(&mut self, ino: Nid) {
        if self.of.len() >= FILES_MAX && !self.of.contains_key(&ino) {
            // They are compared in vain a few times more.
            self.of.clear();
        }
        let misses = self.of.entry(ino).or_default();
        misses.in_a_row = misses.in_a_row.saturating_add(1);
        let too_many = misses.in_a_row.saturating_sub(MISSES_MIN);
        misses.to_skip = match too_many {
            0 => 0,
            // 1, 2, 4 and so on.
            more => 1u32.checked_shl(more - 1).unwrap_or(SKIPPED_MAX).min(SKIPPED_MAX),
        };
    }

    /// A file is gone: its number will be another one's.
    pub(crate) fn forget(&mut self, ino: Nid) {
        self.of.remove(&ino);
    }
}

#[cfg(test)]
mod tests;
