//! Decides which overwritten pages are compared with their previous content, to be kept as deltas.
//!
//! Comparing a page takes longer than writing it to memory, more so if the previous content must be
//! read first. The time is wasted where no delta results: in a file that is rewritten from
//! beginning to end, or one whose pages are compressed or encrypted. So after several pages of a
//! file in a row were compared in vain, the next ones of the same call are skipped, longer each
//! time, until one is kept. The first page of each call is always compared: a call that writes much
//! says little about the next one, and one that writes a single page costs little. Only counts of
//! pages decide: the same calls give the same answers.
//!
//! Out of scope: comparing pages, see `deltas` and `byteback_delta`.

use std::collections::BTreeMap;

use crate::format::Nid;

/// Pages compared in vain in a row before any are skipped.
const MISSES_MIN: u32 = 16;

/// Most pages skipped before one is compared again.
const SKIPPED_MAX: u32 = 64;

/// Most files remembered.
const FILES_MAX: usize = 4096;

/// Recent failed comparisons of a file's pages.
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
    /// Another call begins to write to the file.
    pub(crate) fn begin(&mut self, ino: Nid) {
        if let Some(misses) = self.of.get_mut(&ino) {
            misses.to_skip = 0;
        }
    }

    /// Whether the next overwritten page of a file is to be compared.
    pub(crate) fn is_worth_one(&mut self, ino: Nid) -> bool {
        match self.of.get_mut(&ino) {
            Some(misses) if misses.to_skip > 0 => {
                misses.to_skip -= 1;
                false
            }
            _ => true,
        }
    }

    /// Whether the last comparison of a page of the file was in vain.
    pub(crate) fn is_in_doubt(&self, ino: Nid) -> bool {
        self.of.contains_key(&ino)
    }

    /// A page of the file was compared, and kept as a delta.
    pub(crate) fn hit(&mut self, ino: Nid) {
        self.of.remove(&ino);
    }

    /// A page of the file was compared in vain.
    pub(crate) fn missed(&mut self, ino: Nid) {
        if self.of.len() >= FILES_MAX && !self.of.contains_key(&ino) {
            // The only cost: their pages are compared in vain a few times more.
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

    /// Forgets a removed file: its number will be reused.
    pub(crate) fn forget(&mut self, ino: Nid) {
        self.of.remove(&ino);
    }
}

#[cfg(test)]
mod tests;
