//! Pages of files in memory. Those that changed stay until they are written; of the others as many as there is room for.

use std::collections::{BTreeMap, BTreeSet};

use crate::format::{Block, Nid};

/// A page of a file: the file, and the page's number.
pub(crate) type PageKey = (Nid, u64);

/// See the module.
#[derive(Debug)]
pub(crate) struct Pages {
    pages: BTreeMap<PageKey, Box<Block>>,
    dirty: BTreeMap<Nid, BTreeSet<u64>>,
    dirty_count: u32,
    /// Pages that did not change for who writes them, and are not given up all the same.
    pinned: BTreeSet<PageKey>,
    /// Pages that are kept at most, beside those that changed.
    clean_max: usize,
    dirty_max: u32,
    /// Where pages are given up next.
    hand: PageKey,
}

impl Pages {
    pub(crate) fn new(clean_max: usize, dirty_max: u32) -> Self {
        Self {
            pages: BTreeMap::new(),
            dirty: BTreeMap::new(),
            dirty_count: 0,
            pinned: BTreeSet::new(),
            clean_max,
            dirty_max,
            hand: (Nid::NONE, 0),
        }
    }

    pub(crate) fn get(&self, key: PageKey) -> Option<&Block> {
        self.pages.get(&key).map(|page| &**page)
    }

    pub(crate) fn get_mut(&mut self, key: PageKey) -> Option<&mut Block> {
        self.pages.get_mut(&key).map(|page| &mut **page)
    }

    /// Keeps a page as the device has it.
    pub(crate) fn keep(&mut self, key: PageKey, page: Box<Block>) {
        let kept_max = self.clean_max + usize::try_from(self.dirty_count).unwrap_or(0) + self.pinned.len();
        if self.pages.len() >= kept_max {
            self.give_up_some();
        }
        self.pages.insert(key, page);
    }

    fn give_up_some(&mut self) {
        let count = (self.clean_max / 8).max(1);
        let is_clean = |key: &PageKey| !self.is_dirty(*key) && !self.pinned.contains(key);
        let from = self.hand;
        let after = self.pages.range(from..).chain(self.pages.range(..from));
        let chosen: Vec<PageKey> = after.map(|(key, _)| *key).filter(is_clean).take(count).collect();
        for key in &chosen {
            self.pages.remove(key);
        }
        if let Some((nid, page)) = chosen.last() {
            self.hand = (*nid, page.saturating_add(1));
        }
    }

    pub(crate) fn is_dirty(&self, (nid, page): PageKey) -> bool {
        self.dirty.get(&nid).is_some_and(|pages| pages.contains(&page))
    }

    /// A page that is kept has changed.
    pub(crate) fn mark_dirty(&mut self, (nid, page): PageKey) {
        if self.dirty.entry(nid).or_default().insert(page) {
            self.dirty_count += 1;
        }
    }

    /// It was written.
    pub(crate) fn mark_clean(&mut self, (nid, page): PageKey) {
        let Some(pages) = self.dirty.get_mut(&nid) else { return };
        if pages.remove(&page) {
            self.dirty_count -= 1;
        }
        if pages.is_empty() {
            self.dirty.remove(&nid);
        }
    }

    /// Keeps a page in memory until [`Pages::unpin`].
    pub(crate) fn pin(&mut self, key: PageKey) {
        self.pinned.insert(key);
    }

    pub(crate) fn unpin(&mut self, key: PageKey) {
        self.pinned.remove(&key);
    }

    pub(crate) fn dirty_count(&self) -> u32 {
        self.dirty_count
    }

    pub(crate) fn dirty_max(&self) -> u32 {
        self.dirty_max
    }

    /// Files of which pages changed.
    pub(crate) fn dirty_files(&self) -> Vec<Nid> {
        self.dirty.keys().copied().collect()
    }

    /// The pages of a file that changed.
    pub(crate) fn dirty_of(&self, nid: Nid) -> Vec<u64> {
        self.dirty
            .get(&nid)
            .map_or_else(Vec::new, |pages| pages.iter().copied().collect())
    }

    /// Forgets pages of a file from `first` to before `end`, changed or not.
    pub(crate) fn forget(&mut self, nid: Nid, first: u64, end: u64) {
        if first >= end {
            return;
        }
        let keys: Vec<PageKey> = self
            .pages
            .range((nid, first)..(nid, end))
            .map(|(key, _)| *key)
            .collect();
        for key in keys {
            self.pages.remove(&key);
            self.mark_clean(key);
            self.pinned.remove(&key);
        }
    }
}
