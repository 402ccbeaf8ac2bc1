//! Which deltas that wait are packed, and how: a file's pages are about to be written.
//!
//! **Invariant.** What is packed takes fewer blocks than its pages would, and has room: also the
//! leaves that the index then may need.
//!
//! Out of scope: writing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use super::MainWrite;
use super::file::{Form, MainFile};
use crate::error::{Result, VolumeError};
use crate::format::{Address, COMPACT_HEAD_LEN_BYTES, COMPACT_LEN_BYTES, CompactPage, DeltaPlace, Nid};
use crate::small::Small;
use crate::state::State;

/// Default for the fewest deltas in a compact page (DeltaFS section 4.2.1).
pub(crate) const PACKED_MIN: usize = 5;

/// When deltas go to compact pages, the index's entries of these go to leaves once they exceed this
/// fraction, as a divisor, of the index's room.
const TO_LEAVES_OF: usize = 4;

/// Where deltas go.
#[derive(Debug, Default)]
pub(super) struct Packing {
    /// Of each new compact page: pages with their deltas.
    pub(super) groups: Vec<Vec<(u32, Vec<u8>)>>,
    /// Deltas that will lie in the index itself.
    pub(super) own: BTreeMap<u32, Vec<u8>>,
    /// Whether the index's entries of compact pages go to leaves.
    pub(super) to_leaves: bool,
    /// Blocks that were set aside.
    pub(super) room_blocks: u32,
}

impl Packing {
    pub(super) fn pages(&self) -> impl Iterator<Item = u32> {
        let packed = self.groups.iter().flatten().map(|(page, _)| *page);
        packed.chain(self.own.keys().copied())
    }
}

/// Puts deltas into as few compact pages as there are when none is looked back to, as many into
/// each as `sizes` says: `first` into the first one. Answers the pages of each, and those that are
/// left.
pub(super) fn pack(
    first: &[(u32, usize)],
    fresh: &[(u32, usize)],
    sizes: RangeInclusive<usize>,
) -> (Vec<Vec<u32>>, Vec<u32>) {
    let mut groups = vec![first.iter().map(|(page, _)| *page).collect::<Vec<u32>>()];
    let mut taken: usize = first.iter().map(|(_, len)| len).sum();
    for (page, len) in fresh {
        let is_full = groups.last().is_some_and(|group| group.len() >= *sizes.end());
        if taken + len > COMPACT_LEN_BYTES || is_full {
            groups.push(Vec::new());
            taken = 0;
        }
        taken += len;
        if let Some(group) = groups.last_mut() {
            group.push(*page);
        }
    }
    fill_last(first.len(), fresh, *sizes.start(), &mut groups);
    let (groups, left): (Vec<_>, Vec<_>) = groups.into_iter().partition(|group| group.len() >= *sizes.start());
    (groups, left.into_iter().flatten().collect())
}

/// Lets the last compact page have some of the one before, if it would be too small and that can
/// spare them; for one delta it does not pay.
fn fill_last(kept: usize, fresh: &[(u32, usize)], min: usize, groups: &mut [Vec<u32>]) {
    let [.., before, last] = groups else { return };
    if last.len() < 2 || last.len() >= min {
        return;
    }
    let missing = min - last.len();
    // The last ones of all are in `fresh`, in this order.
    let taken: usize = fresh.iter().rev().take(min).map(|(_, len)| len).sum();
    let spared = before.len().checked_sub(missing).filter(|left| *left >= kept.max(min));
    if let Some(spared) = spared.filter(|_| taken <= COMPACT_LEN_BYTES) {
        last.splice(0..0, before.drain(spared..));
    }
}

/// The future index entry of a compact page that is not written yet.
fn places_of(group: &[(u32, Vec<u8>)]) -> CompactPage {
    let mut at = COMPACT_HEAD_LEN_BYTES;
    let mut places: Vec<DeltaPlace> = Vec::new();
    for (page, delta) in group {
        places.push(DeltaPlace {
            page: *page,
            at: u16::try_from(at).unwrap_or(u16::MAX),
            len: u16::try_from(delta.len()).unwrap_or(u16::MAX),
        });
        at += delta.len();
    }
    let address = Address::RESERVED;
    CompactPage { address, places }
}

impl Small {
    /// How indexes of a file are written.
    pub(super) fn index_form(&self, ino: Nid) -> Form {
        Form {
            ino,
            room_bytes: self.delta_index_len_bytes_max,
        }
    }
}

impl State {
    /// Of deltas that wait, those that are not packed become pages to be written. Answers whether
    /// the index is to be written, by [`State::write_main_deltas`], with what.
    pub(crate) fn choose_packing(&mut self, ino: Nid) -> Result<Option<MainWrite>> {
        let packing = match self.small.main.waiting.get(&ino).cloned() {
            Some(waiting) => {
                let packing = self.plan(ino, &waiting)?;
                let packed: BTreeSet<u32> = packing.iter().flat_map(Packing::pages).collect();
                for page in waiting.keys().filter(|page| !packed.contains(page)) {
                    let page = u64::from(*page);
                    self.small.delta_counts.unpacked += 1;
                    self.tree.pages.mark_dirty((ino, page));
                    self.forget_waiting(ino, page, page + 1);
                }
                packing
            }
            None => None,
        };
        let is_to_write = packing.is_some() || self.small.is_index_changed(ino);
        Ok(is_to_write.then_some(MainWrite { packing }))
    }

    /// How deltas that wait are packed, if that pays; room for it is taken.
    fn plan(&mut self, ino: Nid, waiting: &BTreeMap<u32, Vec<u8>>) -> Result<Option<Packing>> {
        let inode = self.inode(ino)?;
        if self.main_file(ino).is_err() {
            return Ok(None);
        }
        let form = self.small.index_form(ino);
        let none = MainFile::default();
        let file = self.small.main.files.get(&ino).unwrap_or(&none);
        // Deltas that count, and still will when everything is written.
        let mut over: BTreeSet<u32> = inode.deltas_of().map(|(page, _)| u32::from(page)).collect();
        over.extend(waiting.keys());
        over.extend((self.tree.pages.dirty_of(ino).into_iter()).filter_map(|page| u32::try_from(page).ok()));
        let mut own = file.own().clone();
        own.retain(|page, _| !over.contains(page));
        own.extend(waiting.iter().map(|(page, delta)| (*page, delta.clone())));
        let as_pages = waiting.len() + usize::from(file.is_changed);
        let index = file.index(ino, &own, &over);
        let mut packing = Packing::default();
        let mut cost = 1;
        if form.bytes(&index, &own).is_some() {
            packing.own = own;
        } else {
            let emptiest = file.emptiest(&over);
            packing = self.pack_all(ino, own, emptiest, form.packed_max());
            let file = self.small.main.files.get(&ino).unwrap_or(&none);
            let packed: BTreeSet<u32> = packing.groups.iter().flatten().map(|(page, _)| *page).collect();
            over.extend(&packed);
            let mut index = file.index(ino, &packing.own, &over);
            index.ended.retain(|page| !packed.contains(page));
            index.pages.extend(packing.groups.iter().map(|group| places_of(group)));
            cost += packing.groups.len();
            let in_index_bytes = form.len_bytes(index.pages.clone());
            let has_room = form.bytes(&index, &packing.own).is_some();
            packing.to_leaves = !has_room || in_index_bytes > form.room_bytes / TO_LEAVES_OF;
            if packing.to_leaves {
                let leaves = file.new_leaves_max(
                    form,
                    index.pages.iter().map(|page| form.len_bytes(vec![page.clone()])).sum(),
                );
                if file.leaves.len() + leaves > form.leaves_max() {
                    return Ok(None);
                }
                cost += leaves;
                packing.room_blocks = u32::try_from(leaves).unwrap_or(u32::MAX);
            }
        }
        if cost >= as_pages {
            return Ok(None);
        }
        let new_index = usize::from(inode.delta_meta() == Address::NONE);
        let blocks = u32::try_from(packing.groups.len() + new_index).unwrap_or(u32::MAX);
        packing.room_blocks = packing.room_blocks.saturating_add(blocks);
        match self.space.take_room(&self.media.areas, packing.room_blocks) {
            Ok(()) => Ok(Some(packing)),
            Err(VolumeError::Full) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Puts deltas, and those of the emptiest compact page if that makes them fewer blocks, into
    /// compact pages; what is too few stays in the index.
    fn pack_all(
        &mut self,
        ino: Nid,
        mut deltas: BTreeMap<u32, Vec<u8>>,
        emptiest: Option<(Address, Vec<DeltaPlace>)>,
        max: usize,
    ) -> Packing {
        let mut fresh: Vec<(u32, usize)> = deltas.iter().map(|(page, delta)| (*page, delta.len())).collect();
        // Many small ones together.
        fresh.sort_by_key(|(page, len)| (*len, *page));
        let mut best = pack(&[], &fresh, self.small.packed_min..=max);
        if let Some((address, places)) = emptiest {
            let read = |place: DeltaPlace| Ok((place.page, self.delta_in(ino, address, place)?));
            // Deltas that cannot be read stay where they are.
            let there: Result<BTreeMap<u32, Vec<u8>>> = places.into_iter().map(read).collect();
            let there = there.unwrap_or_default();
            let first: Vec<(u32, usize)> = there.iter().map(|(page, delta)| (*page, delta.len())).collect();
            let with = pack(&first, &fresh, self.small.packed_min..=max);
            // None of those that are there already may be left over.
            let holds_all = first.iter().all(|(page, _)| !with.1.contains(page));
            if !first.is_empty() && holds_all && with.0.len() <= best.0.len() {
                deltas.extend(there);
                best = with;
            }
        }
        let mut take = |page: u32| deltas.remove(&page).map(|delta| (page, delta));
        let groups = best.0.into_iter().map(|mut group| {
            // As an index tells of them.
            group.sort_unstable();
            group.into_iter().filter_map(&mut take).collect()
        });
        let groups = groups.collect();
        Packing {
            groups,
            own: deltas,
            ..Packing::default()
        }
    }
}
