//! Pages of files in memory. Those that changed stay until they are written; of the others as many
//! as there is room for.
//!
//! They are kept by *groups* of [`GROUP_PAGES`] that follow each other in a file, so that a long
//! call looks a group up, not each page. Pages that long calls wrote are *passing*: once they are
//! written nobody is expected to ask for them here, as above a mount the kernel has them. Their
//! memory is used again for the next ones. Their checksums are made when they are put, as they have
//! just been copied and are in the processor's caches then: when they are written they have long
//! been pushed out by others.

use std::collections::BTreeMap;

use crate::format::{Block, Nid, page_checksum};

/// A page of a file: the file, and the page's number.
pub(crate) type PageKey = (Nid, u64);

/// Pages of a group, as many as a mask has bits.
const GROUP_PAGES: u64 = 32;

#[derive(Debug)]
struct Page {
    block: Box<Block>,
    /// Checksum of the block, if known.
    checksum: Option<u32>,
}

/// Pages of one file that follow each other.
#[derive(Debug, Default)]
struct Group {
    pages: [Option<Page>; GROUP_PAGES as usize],
    /// Bits of changed pages.
    dirty: u32,
    /// Bits of pages that must stay in memory although they need not be written.
    pinned: u32,
    /// Bits of pages that are given up once they are written.
    passing: u32,
}

impl Group {
    fn get(&self, index: usize) -> Option<&Page> {
        self.pages.get(index)?.as_ref()
    }

    fn is_empty(&self) -> bool {
        self.pages.iter().all(Option::is_none)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Pages {
    groups: BTreeMap<PageKey, Group>,
    count: usize,
    /// Groups with pages that changed, and how many.
    dirty: BTreeMap<PageKey, u32>,
    dirty_count: u32,
    pinned_count: usize,
    /// Most pages kept, beside those that changed.
    clean_max: usize,
    dirty_max: u32,
    /// The group whose pages are given up next.
    hand: PageKey,
    /// Memory of pages that were given up.
    spare: Vec<Box<Block>>,
}

/// The group of a page, the page's place in it, and the bit of that.
fn place_of((nid, page): PageKey) -> (PageKey, usize, u32) {
    let index = page % GROUP_PAGES;
    (
        (nid, page / GROUP_PAGES),
        usize::try_from(index).unwrap_or(0),
        1 << index,
    )
}

/// A page with this content, which is copied once: the place is not zeroed first.
fn copy_of(block: &Block) -> Option<Box<Block>> {
    block.to_vec().into_boxed_slice().try_into().ok()
}

impl Pages {
    pub(crate) fn new(clean_max: usize, dirty_max: u32) -> Self {
        Self {
            groups: BTreeMap::new(),
            count: 0,
            dirty: BTreeMap::new(),
            dirty_count: 0,
            pinned_count: 0,
            clean_max,
            dirty_max,
            hand: (Nid::NONE, 0),
            spare: Vec::new(),
        }
    }

    pub(crate) fn get(&self, key: PageKey) -> Option<&Block> {
        let (group, index, _) = place_of(key);
        Some(&self.groups.get(&group)?.get(index)?.block)
    }

    pub(crate) fn get_mut(&mut self, key: PageKey) -> Option<&mut Block> {
        let (group, index, _) = place_of(key);
        let page = self.groups.get_mut(&group)?.pages.get_mut(index)?.as_mut()?;
        page.checksum = None;
        Some(&mut page.block)
    }

    /// The checksum of a page that is kept.
    pub(crate) fn checksum_of(&self, key: PageKey) -> Option<u32> {
        let (group, index, _) = place_of(key);
        let page = self.groups.get(&group)?.get(index)?;
        Some(page.checksum.unwrap_or_else(|| page_checksum(&page.block[..])))
    }

    /// Whether each of the pages from `first` to before `end` is in memory, in order.
    pub(crate) fn are_kept(&self, nid: Nid, first: u64, end: u64) -> Vec<bool> {
        let mut kept = Vec::with_capacity(usize::try_from(end.saturating_sub(first)).unwrap_or(0));
        let mut page = first;
        while page < end {
            let (key, index, _) = place_of((nid, page));
            let behind = end.min((key.1 + 1) * GROUP_PAGES);
            let count = usize::try_from(behind - page).unwrap_or(0);
            match self.groups.get(&key) {
                Some(group) => kept.extend(group.pages.iter().skip(index).take(count).map(Option::is_some)),
                None => kept.extend(std::iter::repeat_n(false, count)),
            }
            page = behind;
        }
        kept
    }

    /// Keeps a page as the device has it.
    pub(crate) fn keep(&mut self, key: PageKey, page: Box<Block>) {
        self.make_room(1);
        let (group, index, bit) = place_of(key);
        let group = self.groups.entry(group).or_default();
        group.passing &= !bit;
        if let Some(place) = group.pages.get_mut(index) {
            let (block, checksum) = (page, None);
            self.count += usize::from(place.replace(Page { block, checksum }).is_none());
        }
    }

    /// Puts whole pages that a long call writes from `first` on; they count as changed.
    pub(crate) fn put_passing(&mut self, nid: Nid, first: u64, blocks: &[Block]) {
        let mut blocks = blocks;
        let mut page = first;
        while !blocks.is_empty() {
            let (key, index, _) = place_of((nid, page));
            let count = blocks.len().min(GROUP_PAGES as usize - index);
            let (now, later) = blocks.split_at(count);
            self.make_room(count);
            let group = self.groups.entry(key).or_default();
            let mut added = 0;
            for ((place, bit), block) in (group.pages.iter_mut().zip(0u32..)).skip(index).zip(now) {
                let bit = 1 << bit;
                let memory = place.take().map(|there| there.block);
                self.count += usize::from(memory.is_none());
                let put = match memory.or_else(|| self.spare.pop()) {
                    Some(mut memory) => {
                        *memory = *block;
                        Some(memory)
                    }
                    None => copy_of(block),
                };
                let checksum = Some(page_checksum(block));
                *place = put.map(|block| Page { block, checksum });
                group.passing |= bit;
                added += u32::from(group.dirty & bit == 0);
                group.dirty |= bit;
            }
            if added > 0 {
                *self.dirty.entry(key).or_default() += added;
                self.dirty_count += added;
            }
            page += count as u64;
            blocks = later;
        }
    }

    /// Makes room for `count` more pages.
    fn make_room(&mut self, count: usize) {
        let kept_max = self.clean_max + usize::try_from(self.dirty_count).unwrap_or(0) + self.pinned_count;
        if self.count + count > kept_max {
            self.give_up_some(count);
        }
    }

    /// Gives up all that can be read again.
    #[cfg(test)]
    pub(crate) fn forget_unchanged(&mut self) {
        self.give_up_some(usize::MAX);
    }

    fn give_up_some(&mut self, count: usize) {
        let wanted = (self.clean_max / 8).max(count);
        let from = self.hand;
        let after = self.groups.range(from..).chain(self.groups.range(..from));
        let is_clean = |group: &Group| {
            group
                .pages
                .iter()
                .zip(0..)
                .any(|(page, bit)| page.is_some() && (group.dirty | group.pinned) >> bit & 1 == 0)
        };
        let mut given_up = 0;
        let mut chosen: Vec<PageKey> = Vec::new();
        for (key, group) in after {
            if given_up >= wanted {
                break;
            }
            if is_clean(group) {
                given_up += group.pages.iter().flatten().count();
                chosen.push(*key);
            }
        }
        for key in &chosen {
            let Some(group) = self.groups.get_mut(key) else {
                continue;
            };
            let kept = group.dirty | group.pinned;
            for (page, bit) in group.pages.iter_mut().zip(0..) {
                if kept >> bit & 1 == 0 && page.take().is_some() {
                    self.count -= 1;
                }
            }
            group.passing &= kept;
            if group.is_empty() {
                self.groups.remove(key);
            }
        }
        if let Some((nid, group)) = chosen.last() {
            self.hand = (*nid, group + 1);
        }
    }

    pub(crate) fn is_dirty(&self, key: PageKey) -> bool {
        let (group, _, bit) = place_of(key);
        self.groups.get(&group).is_some_and(|group| group.dirty & bit != 0)
    }

    /// A page that is kept has changed.
    pub(crate) fn mark_dirty(&mut self, key: PageKey) {
        let (key, index, bit) = place_of(key);
        let Some(group) = self.groups.get_mut(&key) else { return };
        if group.dirty & bit == 0 && group.get(index).is_some() {
            group.dirty |= bit;
            *self.dirty.entry(key).or_default() += 1;
            self.dirty_count += 1;
        }
    }

    /// Marks a page as written.
    pub(crate) fn mark_clean(&mut self, key: PageKey) {
        let (key, index, bit) = place_of(key);
        let Some(group) = self.groups.get_mut(&key) else { return };
        if group.dirty & bit != 0 {
            group.dirty &= !bit;
            self.count_clean(key, 1);
        }
        let Some(group) = self.groups.get_mut(&key) else { return };
        if group.passing & bit != 0 && group.pinned & bit == 0 {
            group.passing &= !bit;
            let page = group.pages.get_mut(index).and_then(Option::take);
            if group.is_empty() {
                self.groups.remove(&key);
            }
            if let Some(page) = page {
                self.count -= 1;
                self.add_spare(vec![page.block]);
            }
        }
    }

    /// Gives up pages of a file that are about to be written, if all of them are passing; they
    /// count as written.
    pub(crate) fn take_passing(&mut self, nid: Nid, pages: &[u64]) -> Option<Vec<Box<Block>>> {
        let is_passing = |page: &u64| {
            let (key, index, bit) = place_of((nid, *page));
            let group = self.groups.get(&key);
            group.is_some_and(|group| group.passing & !group.pinned & bit != 0 && group.get(index).is_some())
        };
        if !pages.iter().all(is_passing) {
            return None;
        }
        let mut taken = Vec::with_capacity(pages.len());
        let mut rest = pages;
        while let Some(first) = rest.first() {
            let (key, ..) = place_of((nid, *first));
            let in_group = rest.iter().take_while(|page| place_of((nid, **page)).0 == key).count();
            let (now, later) = rest.split_at(in_group);
            let Some(group) = self.groups.get_mut(&key) else { break };
            let mut cleaned = 0;
            for page in now {
                let (_, index, bit) = place_of((nid, *page));
                let page = group.pages.get_mut(index).and_then(Option::take);
                taken.extend(page.map(|page| page.block));
                cleaned += u32::from(group.dirty & bit != 0);
                group.dirty &= !bit;
                group.passing &= !bit;
            }
            self.count -= now.len();
            if group.is_empty() {
                self.groups.remove(&key);
            }
            self.count_clean(key, cleaned);
            rest = later;
        }
        Some(taken)
    }

    /// Memory that may be used for pages; no more is kept than they might take.
    pub(crate) fn add_spare(&mut self, blocks: Vec<Box<Block>>) {
        let room = self.clean_max.saturating_sub(self.count + self.spare.len());
        self.spare.extend(blocks.into_iter().take(room));
    }

    /// Counts `cleaned` pages of a group as unchanged.
    fn count_clean(&mut self, key: PageKey, cleaned: u32) {
        self.dirty_count -= cleaned;
        if let Some(count) = self.dirty.get_mut(&key) {
            *count -= cleaned;
            if *count == 0 {
                self.dirty.remove(&key);
            }
        }
    }

    /// Keeps a page in memory until [`Pages::unpin`].
    pub(crate) fn pin(&mut self, key: PageKey) {
        let (key, index, bit) = place_of(key);
        let Some(group) = self.groups.get_mut(&key) else { return };
        if group.pinned & bit == 0 && group.get(index).is_some() {
            group.pinned |= bit;
            self.pinned_count += 1;
        }
    }

    pub(crate) fn unpin(&mut self, key: PageKey) {
        let (key, _, bit) = place_of(key);
        let Some(group) = self.groups.get_mut(&key) else { return };
        if group.pinned & bit != 0 {
            group.pinned &= !bit;
            self.pinned_count -= 1;
        }
    }

    pub(crate) fn dirty_count(&self) -> u32 {
        self.dirty_count
    }

    pub(crate) fn dirty_max(&self) -> u32 {
        self.dirty_max
    }

    /// Files with changed pages.
    pub(crate) fn dirty_files(&self) -> Vec<Nid> {
        let mut files: Vec<Nid> = self.dirty.keys().map(|(nid, _)| *nid).collect();
        files.dedup();
        files
    }

    /// Whether pages of a file changed.
    pub(crate) fn has_dirty(&self, nid: Nid) -> bool {
        self.dirty.range((nid, 0)..=(nid, u64::MAX)).next().is_some()
    }

    /// The changed pages of a file, in order.
    pub(crate) fn dirty_of(&self, nid: Nid) -> Vec<u64> {
        let mut pages = Vec::new();
        for (key, _) in self.dirty.range((nid, 0)..=(nid, u64::MAX)) {
            let dirty = self.groups.get(key).map_or(0, |group| group.dirty);
            pages.extend(
                (0..GROUP_PAGES)
                    .filter(|bit| dirty >> bit & 1 == 1)
                    .map(|bit| key.1 * GROUP_PAGES + bit),
            );
        }
        pages
    }

    /// Forgets pages of a file from `first` to before `end`, changed or not.
    pub(crate) fn forget(&mut self, nid: Nid, first: u64, end: u64) {
        if first >= end {
            return;
        }
        let groups = (nid, first / GROUP_PAGES)..=(nid, (end - 1) / GROUP_PAGES);
        let groups: Vec<PageKey> = self.groups.range(groups).map(|(key, _)| *key).collect();
        for (nid, group) in groups {
            let start = group.saturating_mul(GROUP_PAGES);
            for page in first.max(start)..end.min(start.saturating_add(GROUP_PAGES)) {
                self.forget_one((nid, page));
            }
        }
    }

    fn forget_one(&mut self, key: PageKey) {
        self.unpin(key);
        self.mark_clean(key);
        let (key, index, bit) = place_of(key);
        let Some(group) = self.groups.get_mut(&key) else { return };
        group.passing &= !bit;
        if group.pages.get_mut(index).and_then(Option::take).is_some() {
            self.count -= 1;
        }
        if group.is_empty() {
            self.groups.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests;
