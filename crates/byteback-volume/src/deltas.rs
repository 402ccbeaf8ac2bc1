//! Deltas in the inode (DCI, DeltaFS section 4.1): a page that is overwritten, and is not much other than it was, is not written. What
//! changed of it is kept beside the addresses of its file, in the inode, which changes anyway; the page on the device, its *base*, stays.
//!
//! **Invariants.** A page with a delta has a base on the device, and the base is what its address says. In memory is the page as it is now, unchanged as
//! far as writing goes: who drops it can make it again. Where a page gets another address, its delta goes in the same change of the inode. So base and delta
//! belong together in every inode that ever reaches the device, and after a crash either the elder delta counts or the newer one.
//!
//! **No room.** Addresses that are needed push deltas out: their pages are written as pages. One delta makes room for another one only if what that spares is worth more than
//! writing its page (formulas 1 and 2), by costs that are measured while the volume is used.
//!
//! What this does not do: pages of directories; deltas in the main area.

use byteback_delta::{apply_page_delta, put_page_delta};

use crate::error::{Result, VolumeError};
use crate::format::{Block, DELTA_HEAD_LEN_BYTES, DELTA_LEN_BYTES_MAX, INLINE_LEN_BYTES, Inode, Nid};
use crate::state::State;

/// What things cost here, in nanoseconds where it is a time: means of which the past fades (DeltaFS formulas 1 and 2).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    /// alpha: a delta with its head, in bytes.
    delta_len_bytes: f64,
    /// beta: to keep a page's change as a delta.
    keep_ns: f64,
    /// gamma: to write a page.
    write_ns: f64,
    /// epsilon: to make a page of its base and delta.
    restore_ns: f64,
    /// HR: how often a base is in memory.
    hit_rate: f64,
    /// lambda: to find it there.
    hit_ns: f64,
    /// delta: to read it.
    miss_ns: f64,
}

/// So much of a mean is the last measurement's.
const FADING: f64 = 1.0 / 32.0;

impl Default for Costs {
    /// Before anything was measured: what a small flash card takes, so that pages are spared.
    fn default() -> Self {
        Self {
            delta_len_bytes: 72.0,
            keep_ns: 5_000.0,
            write_ns: 500_000.0,
            restore_ns: 5_000.0,
            hit_rate: 0.75,
            hit_ns: 1_000.0,
            miss_ns: 250_000.0,
        }
    }
}

fn fade(mean: &mut f64, measured: f64) {
    *mean += (measured - *mean) * FADING;
}

impl Costs {
    pub(crate) fn kept(&mut self, len_bytes: usize, ns: u64) {
        fade(&mut self.delta_len_bytes, len_bytes as f64);
        fade(&mut self.keep_ns, ns as f64);
    }

    pub(crate) fn wrote(&mut self, pages: u64, ns: u64) {
        fade(&mut self.write_ns, ns as f64 / pages.max(1) as f64);
    }

    fn restored(&mut self, ns: u64) {
        fade(&mut self.restore_ns, ns as f64);
    }

    fn looked(&mut self, is_hit: bool, ns: u64) {
        fade(&mut self.hit_rate, f64::from(u8::from(is_hit)));
        fade(if is_hit { &mut self.hit_ns } else { &mut self.miss_ns }, ns as f64);
    }

    /// Whether it pays to write the page of a delta in order to spare so many bytes.
    fn is_worth(&self, spared_bytes: usize) -> bool {
        let benefit = spared_bytes as f64 / self.delta_len_bytes.max(1.0) * (self.write_ns - self.keep_ns);
        let overhead =
            self.write_ns + self.restore_ns + self.hit_rate * self.hit_ns + (1.0 - self.hit_rate) * self.miss_ns;
        benefit > overhead
    }
}

/// What was done with deltas since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeltaCounts {
    /// Changes of pages that were kept as deltas.
    pub kept: u64,
    /// Deltas that had to make room, of which the pages were written.
    pub pushed_out: u64,
}

/// How a change of a page was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// As a delta: the page need not be written.
    AsDelta,
    /// Not at all.
    Not,
}

impl State {
    /// Lays a page's delta over its base, if it has one.
    pub(crate) fn restore(&mut self, ino: Nid, page: u64, block: &mut Block) -> Result<()> {
        let inode = self.inode(ino)?;
        let Some(delta) = inode.delta_of(page) else {
            return Ok(());
        };
        let began_ns = self.clock.monotonic_ns();
        let address = self.address_of(ino, page)?;
        let what = "delta of a page";
        apply_page_delta(&mut block[..], delta).map_err(|_| VolumeError::Damaged { address, what })?;
        self.costs.restored(self.clock.monotonic_ns().saturating_sub(began_ns));
        Ok(())
    }

    /// Keeps what a page, which is in memory and not to be written yet, becomes as a delta, if that will do; then that is what is in memory.
    pub(crate) fn keep_as_delta(&mut self, ino: Nid, page: u64, new: &Block) -> Result<Kept> {
        let Ok(number) = u16::try_from(page) else {
            return Ok(Kept::Not);
        };
        if !self.keeps_deltas || self.pages.is_dirty((ino, page)) {
            return Ok(Kept::Not);
        }
        let began_ns = self.clock.monotonic_ns();
        let is_hit = self.pages.get((ino, page)).is_some();
        let Some(before) = self.page(ino, page)? else {
            return Ok(Kept::Not);
        };
        // With its delta once more it is its base.
        let mut base = Box::new(*before);
        self.costs
            .looked(is_hit, self.clock.monotonic_ns().saturating_sub(began_ns));
        let mut inode = self.inode(ino)?;
        if let Some(delta) = inode.delta_of(page)
            && apply_page_delta(&mut base[..], delta).is_err()
        {
            return Ok(Kept::Not);
        }
        let mut delta = Vec::with_capacity(DELTA_LEN_BYTES_MAX);
        if !put_page_delta(&base[..], &new[..], DELTA_LEN_BYTES_MAX, &mut delta) {
            return Ok(Kept::Not);
        }
        inode.remove_deltas(|of| of == number);
        let replaced = match delta.is_empty() || inode.put_delta(number, &delta) {
            true => None,
            false => match self.replaced_by(&inode, delta.len()) {
                Some(other) => Some(other),
                None => return Ok(Kept::Not),
            },
        };
        if let Some(other) = replaced {
            self.push_out(ino, other)?;
            inode = self.inode(ino)?;
            inode.remove_deltas(|of| of == number);
            if !inode.put_delta(number, &delta) {
                return Ok(Kept::Not);
            }
        }
        self.put_inode(ino, inode)?;
        if let Some(kept) = self.pages.get_mut((ino, page)) {
            *kept = *new;
        }
        let ns = self.clock.monotonic_ns().saturating_sub(began_ns);
        self.costs.kept(delta.len() + DELTA_HEAD_LEN_BYTES, ns);
        self.delta_counts.kept += 1;
        Ok(Kept::AsDelta)
    }

    /// The delta that is to make room for one of so many bytes: the longest, if that is worth it and enough.
    fn replaced_by(&self, inode: &Inode, len_bytes: usize) -> Option<u16> {
        let (page, longest) = inode.deltas_of().max_by_key(|(_, delta)| delta.len())?;
        let spared = longest.len().checked_sub(len_bytes)?;
        let is_enough = inode.delta_room() + longest.len() + DELTA_HEAD_LEN_BYTES >= len_bytes;
        (is_enough && self.costs.is_worth(spared)).then_some(page)
    }

    /// Takes a delta out of an inode: its page is to be written.
    fn push_out(&mut self, ino: Nid, page: u16) -> Result<()> {
        let key = (ino, u64::from(page));
        self.page(ino, key.1)?;
        self.pages.mark_dirty(key);
        self.change_inode(ino, |inode| inode.remove_deltas(|of| of == page))?;
        self.delta_counts.pushed_out += 1;
        Ok(())
    }

    /// Makes room for the address of a page in an inode: deltas that lie there are pushed out.
    pub(crate) fn make_room_for_slot(&mut self, ino: Nid, slot: u32) -> Result<()> {
        let end = (usize::try_from(slot).unwrap_or(usize::MAX))
            .saturating_add(1)
            .saturating_mul(4);
        loop {
            let inode = self.inode(ino)?;
            let start = INLINE_LEN_BYTES.saturating_sub(usize::from(inode.delta_bytes()));
            // The last one that came lies next to the addresses.
            let next = inode.deltas_of().next().map(|(page, _)| page);
            match next {
                Some(page) if end > start => self.push_out(ino, page)?,
                _ => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests;
