//! Writing whole pages, many with one call.
//!
//! The pages of such a call are put into memory by runs: their addresses are found by one walk of
//! the map, room is reserved for all of them at once, and nothing is looked up page by page but for
//! the pages that are compared with their previous content (`attempts`). Only of these is the
//! previous content read.
//!
//! Out of scope: calls that write less, parts of pages, and writing to the device, see
//! `file`.

use std::ops::Range;

use byteback_host::block::BLOCK_LEN_BYTES;

use crate::error::{Result, VolumeError};
use crate::format::{Address, Block, Nid};
use crate::small::deltas::{DeltaMode, KeepOutcome};
use crate::state::State;
use crate::tree::file::READ_AT_ONCE_PAGES;

/// Whole pages of a call, from `first` on.
#[derive(Clone, Copy)]
struct Whole<'a> {
    first: u64,
    blocks: &'a [Block],
}

impl Whole<'_> {
    /// The pages in this range of positions.
    fn part(self, places: Range<usize>) -> Self {
        Self {
            first: self.first + places.start as u64,
            blocks: self.blocks.get(places).unwrap_or_default(),
        }
    }
}

impl State {
    /// Writes whole pages from `first` on. Answers how many bytes were written, and why not more.
    pub(crate) fn write_whole_pages(&mut self, ino: Nid, first: u64, bytes: &[u8]) -> (usize, Result<()>) {
        let blocks = bytes.as_chunks::<BLOCK_LEN_BYTES>().0;
        let (count, done) = self.write_whole(ino, Whole { first, blocks });
        (count * BLOCK_LEN_BYTES, done)
    }

    /// The same in pages.
    fn write_whole(&mut self, ino: Nid, whole: Whole<'_>) -> (usize, Result<()>) {
        let end = whole.first + whole.blocks.len() as u64;
        let addresses = match self.addresses_of(ino, whole.first, end) {
            Ok(addresses) => addresses,
            Err(error) => return (0, Err(error)),
        };
        let mut put = 0;
        for (place, (block, address)) in whole.blocks.iter().zip(&addresses).enumerate() {
            let page = whole.first + place as u64;
            if !self.is_compared(ino, page, *address) {
                continue;
            }
            // In order: what comes before is there if this one fails.
            let (count, done) = self.put_whole(ino, whole.part(put..place), &addresses);
            put += count;
            if done.is_err() {
                return (put, done);
            }
            let left = u64::try_from(addresses.len() - place).unwrap_or(0);
            match self.compare_whole(ino, page, block, left) {
                Ok(KeepOutcome::AsDelta) => put = place + 1,
                Ok(KeepOutcome::Not) => {}
                Err(error) => return (put, Err(error)),
            }
        }
        let (count, done) = self.put_whole(ino, whole.part(put..whole.blocks.len()), &addresses);
        (put + count, done)
    }

    fn is_compared(&mut self, ino: Nid, page: u64, address: Address) -> bool {
        self.small.delta_mode != DeltaMode::Off
            && address.is_block()
            && !self.tree.pages.is_dirty((ino, page))
            && self.small.is_to_be_compared(ino)
    }

    /// Compares a page with what it is to become, and keeps what changes if that is little. `left`
    /// pages of the call are not written yet, with this one.
    fn compare_whole(&mut self, ino: Nid, page: u64, new: &Block, left: u64) -> Result<KeepOutcome> {
        // If the last one was not compared in vain, the next ones will be wanted, too.
        let wanted = match self.small.attempts.is_in_doubt(ino) {
            true => 1,
            false => left.min(READ_AT_ONCE_PAGES),
        };
        match self.page_before(ino, page, wanted) {
            Ok(Some(before)) if before == new => {
                self.small.attempts.hit(ino);
                self.small.delta_counts.compared += 1;
                self.small.delta_counts.kept += 1;
                Ok(KeepOutcome::AsDelta)
            }
            Ok(Some(_)) => self.keep_as_delta(ino, page, new),
            Ok(None) => Ok(KeepOutcome::Not),
            // Overwriting all of a damaged page heals it.
            Err(error) if error.is_loss() => Ok(KeepOutcome::Not),
            Err(error) => Err(error),
        }
    }

    /// Puts pages into memory, to be written; `addresses` says where pages of the call are, of
    /// which these may be some.
    fn put_whole(&mut self, ino: Nid, whole: Whole<'_>, addresses: &[Address]) -> (usize, Result<()>) {
        if whole.blocks.is_empty() {
            return (0, Ok(()));
        }
        let end = whole.first + whole.blocks.len() as u64;
        let has_holes = addresses.contains(&Address::NONE);
        let is_ready = match has_holes {
            true => self.set_aside(ino, whole.first, end),
            false => Ok(()),
        };
        let is_ready = is_ready.and_then(|()| self.change_slots_of(ino, whole.first, end));
        let is_ready = is_ready.and_then(|()| self.end_unknown_places(ino, whole));
        match is_ready {
            Ok((count, done)) => {
                let blocks = whole.part(0..count).blocks;
                self.tree.pages.put_passing(ino, whole.first, blocks);
                (count, done)
            }
            Err(VolumeError::Full) => self.put_one_by_one(ino, whole),
            Err(error) => (0, Err(error)),
        }
    }

    /// These pages are about to be written over: nothing that was kept of them counts. Answers of
    /// how many that could be said, as they must be written then, and why not of more.
    fn end_unknown_places(&mut self, ino: Nid, whole: Whole<'_>) -> Result<(usize, Result<()>)> {
        let (mut count, mut done) = (whole.blocks.len(), Ok(()));
        if self.may_have_deltas(ino)? {
            for (place, page) in (whole.first..).take(count).enumerate() {
                let ended = self.end_unknown_place(ino, page);
                if ended.is_err() {
                    (count, done) = (place, ended);
                    break;
                }
            }
            // The pages are written from memory, so no delta of them needs to be packed.
            self.forget_waiting(ino, whole.first, whole.first + count as u64);
        }
        Ok((count, done))
    }

    /// As many as there is room for.
    fn put_one_by_one(&mut self, ino: Nid, whole: Whole<'_>) -> (usize, Result<()>) {
        for (place, block) in whole.blocks.iter().enumerate() {
            match self.page_mut(ino, whole.first + place as u64, true) {
                Ok(page) => *page = *block,
                Err(error) => return (place, Err(error)),
            }
        }
        (whole.blocks.len(), Ok(()))
    }
}

#[cfg(test)]
mod tests;
