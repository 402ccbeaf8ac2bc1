//! Pages of a file that were written since the last checkpoint, and are still where they were
//! written to: with their checksums.
//!
//! A file that is synced says the sum of them all ([`page_sum`]), so that after a crash it is known
//! whether all of them came to the device. The sum follows each change. They are kept by *runs*, of
//! blocks beside each other: most calls write several.

use std::collections::BTreeMap;

use crate::format::{Address, page_sum};

/// A run is no longer than that: it is given up as a whole.
const RUN_BLOCKS_MAX: usize = 512;

#[derive(Debug)]
struct Run {
    /// `None` for a block that holds no page of the file any more.
    checksums: Vec<Option<u32>>,
    count: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct WrittenPages {
    /// By the first block of each.
    runs: BTreeMap<Address, Run>,
    sum: u64,
}

impl WrittenPages {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The sum over all of them.
    pub(crate) fn sum(&self) -> u64 {
        self.sum
    }

    /// A page was written to a block to which nothing was written since the checkpoint.
    pub(crate) fn add(&mut self, address: Address, checksum: u32) {
        self.sum = self.sum.wrapping_add(page_sum(address, checksum));
        let last = self.runs.range_mut(..address).next_back();
        if let Some((first, run)) = last
            && run.checksums.len() < RUN_BLOCKS_MAX
            && u64::from(first.0) + run.checksums.len() as u64 == u64::from(address.0)
        {
            run.checksums.push(Some(checksum));
            run.count += 1;
            return;
        }
        let checksums = vec![Some(checksum)];
        self.runs.insert(address, Run { checksums, count: 1 });
    }

    /// A block holds no page of the file any more, if it did.
    pub(crate) fn remove(&mut self, address: Address) {
        let Some((first, run)) = self.runs.range_mut(..=address).next_back() else {
            return;
        };
        let first = *first;
        let index = usize::try_from(address.0 - first.0).unwrap_or(usize::MAX);
        let Some(checksum) = run.checksums.get_mut(index).and_then(Option::take) else {
            return;
        };
        self.sum = self.sum.wrapping_sub(page_sum(address, checksum));
        run.count -= 1;
        if run.count == 0 {
            self.runs.remove(&first);
        }
    }
}

#[cfg(test)]
mod tests;
