//! Reading much at once, past the pages in memory.
//!
//! A call that reads [`DIRECT_PAGES_MIN`] pages or more most likely goes through a file from
//! beginning to end, and its caller keeps what was read: the kernel does, above a mount. So pages
//! that are not in memory come from the device straight into the caller's buffer, adjacent ones at
//! once, and are checked there. Pages in memory, those with deltas, those compressed in a cluster
//! or in the inode, and those wanted only in part are read as always. part is wanted are read as
//! always. **Without the lock.** The blocks of such a read are found with the volume's lock held,
//! and read from the device without it, so that other calls need not wait. In between the file may
//! change, but its old blocks stay: a block that was in use is reused only after a later checkpoint
//! ([`crate::log::segments`]). So if no checkpoint came before the read ended, it returns what the
//! file held when the call began. If one did, the read is repeated, with the lock.
//!
//! **Damage.** Each page is compared with its checksum, on every read. If a page does not match, or
//! cannot be read, the read is repeated page by page, with the lock, which reports the damaged
//! page.

use byteback_host::block::BLOCK_LEN_BYTES;

use crate::error::Result;
use crate::format::{Address, CLUSTER_SLOT, Nid, page_checksum};
use crate::log::media::Media;
use crate::state::State;
use crate::tree::PAGE;

/// Least pages of a call that bypasses the memory: the kernel asks for fewer where it does not see
/// that a file is read in order.
pub(crate) const DIRECT_PAGES_MIN: u64 = 16;

/// Blocks that lie beside each other, and where in the caller's buffer they belong.
#[derive(Debug)]
struct Run {
    at: usize,
    first: Address,
    /// Of each of them.
    checksums: Vec<u32>,
}

/// The part of a call that is still to be read.
#[derive(Debug, Default)]
pub(crate) struct DirectRead {
    runs: Vec<Run>,
    /// The checkpoint at which these blocks were found.
    version: u64,
}

impl DirectRead {
    /// Whether nothing is left to read.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Whether what was found is still there: if so, what was read meanwhile is right.
    pub(crate) fn is_current(&self, state: &State) -> bool {
        self.version == state.durability.version
    }

    fn add(&mut self, at: usize, address: Address) {
        if let Some(last) = self.runs.last_mut() {
            let count = last.checksums.len();
            let is_next = u32::try_from(count).is_ok_and(|count| last.first.0.checked_add(count) == Some(address.0));
            if is_next && at == last.at + count * BLOCK_LEN_BYTES {
                last.checksums.push(0);
                return;
            }
        }
        self.runs.push(Run {
            at,
            first: address,
            checksums: vec![0],
        });
    }

    /// Reads it into the buffer of the call; false if something cannot be read or is not as it was
    /// written.
    pub(crate) fn perform(&self, media: &Media, buffer: &mut [u8]) -> bool {
        self.runs.iter().all(|run| {
            let end = run.at + run.checksums.len() * BLOCK_LEN_BYTES;
            let Some(blocks) = buffer.get_mut(run.at..end) else {
                return false;
            };
            media.device.read_blocks(u64::from(run.first.0), blocks).is_ok()
                && (blocks.chunks(BLOCK_LEN_BYTES).zip(&run.checksums)).all(|(block, sum)| page_checksum(block) == *sum)
        })
    }
}

impl State {
    /// Fills those pages of a call that are whole and holes, and finds those that are to be read
    /// past the memory; `offset` is that of the buffer. Answers, in order, the pages that are
    /// neither.
    pub(crate) fn find_direct(&mut self, ino: Nid, offset: u64, buffer: &mut [u8]) -> Result<(DirectRead, Vec<u64>)> {
        let end = offset.saturating_add(buffer.len() as u64);
        let (first, behind) = (offset.div_ceil(PAGE), end / PAGE);
        let mut direct = DirectRead {
            runs: Vec::new(),
            version: self.durability.version,
        };
        let mut others: Vec<u64> = (offset / PAGE..first).collect();
        let may_have_deltas = self.may_have_deltas(ino)?;
        let addresses = self.addresses_of(ino, first, behind)?;
        let are_kept = self.tree.pages.are_kept(ino, first, behind);
        for ((page, address), is_kept) in (first..).zip(addresses).zip(are_kept) {
            let at = usize::try_from(page * PAGE - offset).unwrap_or(usize::MAX);
            let is_other = is_kept || may_have_deltas && self.has_delta(ino, page) || self.is_in_cluster(address)?;
            match buffer.get_mut(at..at.saturating_add(BLOCK_LEN_BYTES)) {
                Some(hole) if !is_other && !address.is_block() => hole.fill(0),
                Some(_) if !is_other => direct.add(at, address),
                _ => others.push(page),
            }
        }
        others.extend(behind.max(first)..end.div_ceil(PAGE));
        for run in &mut direct.runs {
            self.put_checksums(run.first, &mut run.checksums)?;
        }
        Ok((direct, others))
    }

    /// Whether what lies at the address of a page is not the page, but several, compressed. (One in
    /// an inode has a delta.)
    fn is_in_cluster(&mut self, address: Address) -> Result<bool> {
        Ok(self.small.is_compressed
            && address.is_block()
            && self.space.summary_at(&self.media, address)?.slot == CLUSTER_SLOT)
    }

    /// The checksums that blocks beside each other were written with.
    fn put_checksums(&mut self, first: Address, checksums: &mut [u32]) -> Result<()> {
        let mut rest = checksums;
        let mut address = first;
        while !rest.is_empty() {
            let known = self.space.segments.put_checksums(address, rest);
            let (done, later) = match known {
                0 => {
                    // Reads the summaries.
                    let checksum = self.space.checksum_of(&self.media, address)?;
                    let (one, later) = rest.split_at_mut(1);
                    one.fill(checksum);
                    (1, later)
                }
                known => (known, rest.split_at_mut(known).1),
            };
            address = Address(address.0.saturating_add(u32::try_from(done).unwrap_or(u32::MAX)));
            rest = later;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
