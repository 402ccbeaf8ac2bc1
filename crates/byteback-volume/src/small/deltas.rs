//! Deltas in the inode (DCI, DeltaFS section 4.1): an overwritten page that differs little from its
//! previous content is not written. Its change is kept beside the addresses of its file, in the
//! inode, which changes anyway; the page on the device, its *base*, stays.
//!
//! **Invariants.** A page with a delta has a base on the device, and its address leads to the base.
//! Memory holds the page as it is now, unchanged as far as writing goes: once dropped, it can be
//! made again. Where a page gets another address, its delta goes in the same change of the inode.
//! So base and delta belong together in every inode that ever reaches the device, and after a crash
//! either the older delta counts or the newer one.
//!
//! **No room.** In a large file addresses leave the inode for a node of their own (`map`). If that
//! is not enough, the older half of the deltas is packed together, where the file may have some in
//! the main area; else one delta makes room for another one only if that saves more than writing
//! its page costs (formulas 1 and 2), by costs that are measured while the volume is used. In a
//! short file addresses that are needed push deltas out.
//!
//! Out of scope: pages of directories; deltas in the main area, see `main_deltas`.

use std::collections::BTreeSet;

use byteback_delta::{apply_page_delta, put_packed_page_delta};

use crate::error::{Result, VolumeError};
use crate::format::{Block, DELTA_HEAD_LEN_BYTES, DELTA_LEN_BYTES_MAX, INLINE_LEN_BYTES, Inode, Nid};
use crate::small::Small;
use crate::state::State;

/// Costs on this device, times in nanoseconds: means in which old measurements fade (DeltaFS
/// formulas 1 and 2).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    /// alpha: a delta with its head, in bytes.
    delta_len_bytes: f64,
    /// beta: keeping a page's change as a delta.
    keep_ns: f64,
    /// gamma: writing a page.
    write_ns: f64,
    /// epsilon: making a page from its base and delta.
    restore_ns: f64,
    /// HR: share of bases found in memory.
    hit_rate: f64,
    /// lambda: finding a base there.
    hit_ns: f64,
    /// delta: reading a base.
    miss_ns: f64,
}

/// Weight of the last measurement in a mean.
const FADING: f64 = 1.0 / 32.0;

impl Default for Costs {
    /// Before any measurement: the costs of a small flash card, so that pages are spared.
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

    /// Whether writing the page of a delta pays off, to save `spared_bytes` in the inode.
    fn is_worth(&self, spared_bytes: usize) -> bool {
        let benefit = spared_bytes as f64 / self.delta_len_bytes.max(1.0) * (self.write_ns - self.keep_ns);
        let overhead =
            self.write_ns + self.restore_ns + self.hit_rate * self.hit_ns + (1.0 - self.hit_rate) * self.miss_ns;
        benefit > overhead
    }
}

/// Where an overwritten page may be kept as a delta. Existing deltas are read in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeltaMode {
    /// Nowhere: the page is written.
    Off,
    /// In the inode of its file (DCI, DeltaFS section 4.1).
    Inode,
    /// In the main area, together with others of its file, if the file is written much and read
    /// little (DCM, section 4.2).
    Main,
    /// In the inode, and in the main area where the inode has no room.
    #[default]
    Both,
}

impl DeltaMode {
    pub(crate) fn uses_inode(self) -> bool {
        matches!(self, Self::Inode | Self::Both)
    }

    pub(crate) fn uses_main(self) -> bool {
        matches!(self, Self::Main | Self::Both)
    }
}

/// Statistics of deltas since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeltaCounts {
    /// Overwritten pages whose previous content was on the device: candidates for deltas.
    pub overwritten: u64,
    /// Candidates that were compared; the rest were skipped, after several failures of their file.
    pub compared: u64,
    /// Compared pages kept as deltas, in the inode or to be packed.
    pub kept: u64,
    /// Kept deltas put into the inode: the others wait to be packed, and became `packed` or not.
    pub kept_in_inode: u64,
    /// Files whose addresses left the inode to make room for deltas.
    pub moved_slots: u64,
    /// Deltas that had to make room in the inode, and whose pages were written.
    pub pushed_out: u64,
    /// Deltas that had to make room in the inode, and are to be packed.
    pub moved_to_main: u64,
    /// Time that both took, in nanoseconds, without writing the pages later (DeltaFS figure 14).
    pub making_room_ns: u64,
    /// The longest single time of these, in nanoseconds.
    pub making_room_longest_ns: u64,
    /// Deltas written to compact pages.
    pub packed: u64,
    /// Leaves of indexes written.
    pub index_leaves: u64,
    /// Deltas to be packed whose pages were written instead, as that was less.
    pub unpacked: u64,
    /// Deltas in the main area whose pages were written in idle time (`BGRes`).
    pub restored: u64,
    /// Pages read and made from their base and a delta in the inode.
    pub read_with_inode: u64,
    /// Pages read and made from their base and a delta in the main area, or one waiting to be
    /// packed.
    pub read_with_main: u64,
    /// Pages written compressed, several in one block.
    pub compressed_pages: u64,
    /// Blocks that hold the compressed pages.
    pub clusters: u64,
    /// Pages put into inodes, compressed.
    pub pages_in_inodes: u64,
    /// Pages whose previous content was looked up for a comparison.
    pub looked_for: u64,
    /// Lookups found in memory: the others were read (`HR` of DeltaFS formula 2).
    pub found_in_memory: u64,
    /// Deltas in inodes now, less those when the volume was opened.
    pub more_in_inodes: i64,
}

/// Outcome of keeping a page's change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeepOutcome {
    /// As a delta: the page need not be written.
    AsDelta,
    /// Not kept.
    Not,
}

impl Small {
    /// Whether the next overwritten page of a file is to be compared with its previous content, see
    /// `attempts`.
    pub(crate) fn is_to_be_compared(&mut self, ino: Nid) -> bool {
        self.delta_counts.overwritten += 1;
        self.attempts.is_worth_one(ino)
    }

    /// The delta to replace with one of `len_bytes`: the longest, if that pays off and makes enough
    /// room.
    fn replaced_by(&self, inode: &Inode, len_bytes: usize) -> Option<u16> {
        let (page, longest) = inode.deltas_of().max_by_key(|(_, delta)| delta.len())?;
        let spared = longest.len().checked_sub(len_bytes)?;
        let is_enough = inode.delta_room() + longest.len() + inode.delta_head_len_bytes() >= len_bytes;
        (is_enough && self.costs.is_worth(spared)).then_some(page)
    }
}

impl State {
    /// Applies a page's delta to its base, if it has one.
    pub(crate) fn restore(&mut self, ino: Nid, page: u64, block: &mut Block) -> Result<()> {
        let started_ns = self.clock.monotonic_ns();
        let Some(delta) = self.delta_of(ino, page)? else {
            return Ok(());
        };
        let address = self.address_of(ino, page)?;
        let what = "delta of a page";
        apply_page_delta(&mut block[..], &delta).map_err(|_| VolumeError::Damaged { address, what })?;
        self.small
            .costs
            .restored(self.clock.monotonic_ns().saturating_sub(started_ns));
        match self.small.is_waiting(ino, page) || self.inode(ino)?.delta_of(page).is_none() {
            true => self.small.delta_counts.read_with_main += 1,
            false => self.small.delta_counts.read_with_inode += u64::from(!delta.is_empty()),
        }
        Ok(())
    }

    /// A page before it is overwritten, for the comparison; `wanted` pages from it on will be asked
    /// for next.
    pub(crate) fn page_before(&mut self, ino: Nid, page: u64, wanted: u64) -> Result<Option<&Block>> {
        let started_ns = self.clock.monotonic_ns();
        let is_hit = self.tree.pages.get((ino, page)).is_some();
        if !is_hit && wanted > 1 {
            self.read_ahead(ino, page, page.saturating_add(wanted))?;
        }
        self.page(ino, page)?;
        self.small
            .costs
            .looked(is_hit, self.clock.monotonic_ns().saturating_sub(started_ns));
        self.small.delta_counts.looked_for += 1;
        self.small.delta_counts.found_in_memory += u64::from(is_hit);
        Ok(self.tree.pages.get((ino, page)))
    }

    /// Keeps the new content of a page, which is in memory and not waiting to be written, as a
    /// delta, if that is possible; the new content is in memory then.
    pub(crate) fn keep_as_delta(&mut self, ino: Nid, page: u64, new: &Block) -> Result<KeepOutcome> {
        let Ok(number) = u32::try_from(page) else {
            return Ok(KeepOutcome::Not);
        };
        if self.small.delta_mode == DeltaMode::Off || self.tree.pages.is_dirty((ino, page)) {
            return Ok(KeepOutcome::Not);
        }
        let started_ns = self.clock.monotonic_ns();
        let Some(before) = self.page(ino, page)? else {
            return Ok(KeepOutcome::Not);
        };
        // Applying its delta once more gives its base.
        let mut base = Box::new(*before);
        self.small.delta_counts.compared += 1;
        match self.delta_of(ino, page) {
            Ok(Some(delta)) if apply_page_delta(&mut base[..], &delta).is_err() => return Ok(KeepOutcome::Not),
            Ok(_) => {}
            // The page is in memory, and can be written.
            Err(error) if error.is_loss() => return Ok(KeepOutcome::Not),
            Err(error) => return Err(error),
        }
        let in_inode = if self.small.delta_mode.uses_inode() {
            DELTA_LEN_BYTES_MAX
        } else {
            0
        };
        let in_main = if self.small.delta_mode.uses_main() {
            self.small.main_delta_len_bytes_max()
        } else {
            0
        };
        let mut delta = Vec::with_capacity(DELTA_LEN_BYTES_MAX);
        if !put_packed_page_delta(&base[..], &new[..], in_inode.max(in_main), &mut delta) {
            self.small.attempts.missed(ino);
            return Ok(KeepOutcome::Not);
        }
        self.small.attempts.hit(ino);
        if delta.is_empty() {
            self.forget_waiting(ino, page, page + 1);
            self.change_inode(ino, |inode| inode.remove_deltas(|of| u64::from(of) == page))?;
            self.end_place(ino, page, true)?;
        } else if self.small.delta_mode.uses_inode() && self.keep_in_inode(ino, page, &delta)? {
            self.forget_waiting(ino, page, page + 1);
            self.small.delta_counts.kept_in_inode += 1;
        } else if self.main_takes(ino, delta.len()) {
            self.wait_for_packing(ino, number, delta.clone());
        } else {
            return Ok(KeepOutcome::Not);
        }
        if let Some(kept) = self.tree.pages.get_mut((ino, page)) {
            *kept = *new;
        }
        let ns = self.clock.monotonic_ns().saturating_sub(started_ns);
        self.small.costs.kept(delta.len() + DELTA_HEAD_LEN_BYTES, ns);
        self.small.delta_counts.kept += 1;
        Ok(KeepOutcome::AsDelta)
    }

    /// Keeps the delta of a page in the inode; false if there is no room, and none can be made.
    fn keep_in_inode(&mut self, ino: Nid, page: u64, delta: &[u8]) -> Result<bool> {
        let (Ok(number), true) = (u16::try_from(page), delta.len() <= DELTA_LEN_BYTES_MAX) else {
            return Ok(false);
        };
        let mut inode = self.inode(ino)?;
        inode.remove_deltas(|of| of == number);
        if !inode.put_delta(number, delta) && self.empty_inode(ino)? {
            inode = self.inode(ino)?;
            inode.remove_deltas(|of| of == number);
        }
        if inode.delta_of(page).is_none() && !inode.put_delta(number, delta) && self.move_slots(ino)? {
            inode = self.inode(ino)?;
            inode.remove_deltas(|of| of == number);
        }
        if inode.delta_of(page).is_none() && !inode.put_delta(number, delta) && self.spill(ino, number)? {
            inode = self.inode(ino)?;
            inode.remove_deltas(|of| of == number);
        }
        if inode.delta_of(page).is_none() && !inode.put_delta(number, delta) {
            let Some(other) = self.small.replaced_by(&inode, delta.len()) else {
                return Ok(false);
            };
            if !self.try_push_out(ino, other)? {
                return Ok(false);
            }
            inode = self.inode(ino)?;
            inode.remove_deltas(|of| of == number);
            if !inode.put_delta(number, delta) {
                return Ok(false);
            }
        }
        self.put_inode(ino, inode)?;
        Ok(true)
    }

    /// Moves the older half of an inode's deltas to those waiting to be packed, so that new ones
    /// have room: the inode then collects what is packed together, and a sync of few small changes
    /// writes the inode alone. False if the file has nothing in the main area, or too few deltas to
    /// be packed.
    fn spill(&mut self, ino: Nid, except: u16) -> Result<bool> {
        if !self.main_takes(ino, 0) {
            return Ok(false);
        }
        let inode = self.inode(ino)?;
        let deltas: Vec<(u16, usize)> = inode
            .deltas_of()
            .filter(|(page, _)| *page != except)
            .map(|(page, delta)| (page, inode.delta_head_len_bytes() + delta.len()))
            .collect();
        let half = usize::from(inode.delta_bytes()) / 2;
        let mut spilled_bytes = 0;
        let mut spilled = Vec::new();
        for (page, len) in deltas.into_iter().rev() {
            if spilled_bytes >= half {
                break;
            }
            spilled_bytes += len;
            spilled.push(page);
        }
        if spilled.len() < self.small.packed_min {
            return Ok(false);
        }
        for page in spilled {
            self.try_push_out(ino, page)?;
        }
        Ok(true)
    }

    /// As [`State::push_out`], for a caller with an alternative: false if the page cannot be read,
    /// and its delta stays. One damaged page must not make others unwritable.
    pub(crate) fn try_push_out(&mut self, ino: Nid, page: u16) -> Result<bool> {
        match self.push_out(ino, page) {
            Ok(()) => Ok(true),
            Err(error) if error.is_loss() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes a delta out of an inode: it is packed with others, or its page is written.
    fn push_out(&mut self, ino: Nid, page: u16) -> Result<()> {
        let key = (ino, u64::from(page));
        let Some(delta) = self.inode(ino)?.delta_of(key.1).map(<[u8]>::to_vec) else {
            return Ok(());
        };
        let remove = |inode: &mut Inode| inode.remove_deltas(|of| of == page);
        if delta.is_empty() {
            // Without its index, only the mark says that a delta is over.
            self.main_file(ino)?;
        }
        if delta.is_empty() || self.small.is_waiting(ino, key.1) || self.tree.pages.is_dirty(key) {
            self.change_inode(ino, remove)?;
            // A mark, or a delta that is over: the index's delta does not count in any case.
            self.end_place(ino, key.1, false)?;
            return Ok(());
        }
        let started_ns = self.clock.monotonic_ns();
        self.page(ino, key.1)?;
        if self.address_of(ino, key.1)?.is_block() && self.main_takes(ino, delta.len()) {
            self.wait_for_packing(ino, u32::from(page), delta);
            self.small.delta_counts.moved_to_main += 1;
        } else {
            self.tree.pages.mark_dirty(key);
            self.change_slots_of(ino, key.1, key.1 + 1)?;
            self.small.delta_counts.pushed_out += 1;
        }
        self.change_inode(ino, remove)?;
        let ns = self.clock.monotonic_ns().saturating_sub(started_ns);
        self.small.delta_counts.making_room_ns += ns;
        self.small.delta_counts.making_room_longest_ns = self.small.delta_counts.making_room_longest_ns.max(ns);
        Ok(())
    }

    /// Makes room for the address of a page in an inode: deltas that lie there are pushed out. A
    /// delta whose page cannot be read stays; then all addresses leave the inode, or other deltas
    /// make the room: one damaged page must not make others unwritable.
    pub(crate) fn make_room_for_slot(&mut self, ino: Nid, slot: u32) -> Result<()> {
        let end = (usize::try_from(slot).unwrap_or(usize::MAX))
            .saturating_add(1)
            .saturating_mul(4);
        let mut rotten: BTreeSet<u16> = BTreeSet::new();
        let mut why = Ok(());
        loop {
            let inode = self.inode(ino)?;
            let start = INLINE_LEN_BYTES.saturating_sub(usize::from(inode.delta_bytes()));
            if end <= start || inode.moved_slots().is_some() {
                return Ok(());
            }
            // The newest delta lies next to the addresses.
            let mut pages = inode.deltas_of().map(|(page, _)| page);
            let Some(page) = pages.find(|page| !rotten.contains(page)) else {
                return why;
            };
            match self.push_out(ino, page) {
                Err(error) if error.is_loss() => {
                    if !self.move_all_slots(ino)? {
                        rotten.insert(page);
                        why = Err(error);
                    }
                }
                done => done?,
            }
        }
    }
}

#[cfg(test)]
mod tests;
