//! The index of one file in memory, and how it is laid out into blocks.
//!
//! New entries go to the *index*, which is written anew with each change. If it has no room, its
//! entries of compact pages go to *leaves*, which are not overwritten: for a page, the newer entry
//! counts, and the index has a list of pages that are *ended*, of which no leaf counts. Leaves of
//! which little counts any more are *dissolved*: the entries that count go back to the index. So
//! the index costs one block for each change, as if it always had room, and a leaf for each
//! thousand deltas or so.
//!
//! **Invariants.** The combined content of the blocks ([`DeltaPlaces`]) equals that of memory
//! whenever the index was written. All that counts in a compact page is listed in a single block.
//!
//! Out of scope: any I/O; choosing what is packed together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::format::{
    Address, Block, CompactPage, DeltaIndex, DeltaPlace, DeltaPlaces, INDEX_HEAD_LEN_BYTES, Inode, Nid, PAGE_LEN_BYTES,
    PLACE_LEN_BYTES_MAX,
};

/// Bytes of most deltas in an index.
const PLACE_LEN_BYTES: usize = 4;

/// Most leaves of an index: some 130,000 deltas.
const LEAVES_MAX: usize = 100;

/// A compact page of a file.
#[derive(Debug, Default)]
pub(super) struct Compact {
    /// Its bytes, if they were needed.
    pub(super) block: Option<Arc<Block>>,
    /// Whether it lies in a segment that is cleaned.
    pub(super) is_to_move: bool,
    /// The leaf that tells of it, if it is not the index.
    pub(super) leaf: Option<Address>,
    /// Pages whose deltas in it count.
    pages: BTreeSet<u32>,
    /// Bytes of these deltas.
    len_bytes: usize,
}

impl Compact {
    /// A new one, of which nothing counts yet.
    pub(super) fn of(block: Arc<Block>) -> Self {
        Self {
            block: Some(block),
            ..Self::default()
        }
    }
}

/// A leaf of the index.
#[derive(Debug)]
pub(super) struct Leaf {
    pub(super) address: Address,
    /// Pages that it tells of, whether that counts or not.
    pages: Vec<u32>,
    /// Whether it lies in a segment that is cleaned.
    pub(super) is_to_move: bool,
}

/// The index of a file.
#[derive(Debug, Default)]
pub(crate) struct MainFile {
    pub(super) compacts: BTreeMap<Address, Compact>,
    places: BTreeMap<u32, (Address, DeltaPlace)>,
    /// Deltas that lie in the index itself.
    own: BTreeMap<u32, Vec<u8>>,
    /// Leaves, the oldest first.
    pub(super) leaves: Vec<Leaf>,
    /// How many leaves tell of a page, whether that counts or not.
    reported: BTreeMap<u32, usize>,
    /// Pages that leaves tell of and that have no delta any more.
    ended: BTreeSet<u32>,
    /// Whether it differs from the device.
    pub(super) is_changed: bool,
}

/// How blocks of an index are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    pub(super) ino: Nid,
    /// So much of a block is used.
    pub(super) room_bytes: usize,
}

impl Form {
    /// So many deltas may be in a compact page, as what an index tells of it must have room in a
    /// leaf.
    pub(super) fn packed_max(&self) -> usize {
        self.room_bytes.saturating_sub(INDEX_HEAD_LEN_BYTES + PAGE_LEN_BYTES) / PLACE_LEN_BYTES_MAX
    }

    /// Most leaves of an index: fewer where little of a block is used.
    pub(super) fn leaves_max(&self) -> usize {
        LEAVES_MAX.min(self.room_bytes / 8)
    }

    /// The bytes of an index, if it has room.
    pub(super) fn bytes(&self, index: &DeltaIndex, own: &BTreeMap<u32, Vec<u8>>) -> Option<Vec<u8>> {
        let own = own.iter().map(|(page, delta)| (*page, &delta[..]));
        let bytes = index.bytes(own);
        bytes.filter(|bytes| bytes.len() <= self.room_bytes)
    }

    /// How long an index with these compact pages is; more than there is room for, if it has none
    /// in any block.
    pub(super) fn len_bytes(&self, pages: Vec<CompactPage>) -> usize {
        let index = DeltaIndex {
            ino: self.ino,
            pages,
            ..DeltaIndex::default()
        };
        let bytes = index.bytes(std::iter::empty());
        bytes.map_or(usize::MAX, |bytes| bytes.len())
    }
}

/// Blocks of an index to write.
#[derive(Debug, Default)]
pub(super) struct Layout {
    /// New leaves: the bytes of each, and the pages that it tells of.
    pub(super) leaves: Vec<NewLeaf>,
    /// Leaves that are given up.
    pub(super) dissolved: Vec<Address>,
}

#[derive(Debug)]
pub(super) struct NewLeaf {
    pub(super) bytes: Vec<u8>,
    compacts: Vec<Address>,
    pages: Vec<u32>,
}

impl MainFile {
    /// As it was read.
    pub(super) fn of(found: DeltaPlaces) -> Self {
        let mut file = Self::default();
        for (address, leaf) in found.compacts {
            let compact = Compact {
                leaf,
                ..Compact::default()
            };
            file.compacts.insert(address, compact);
        }
        for (address, pages) in found.leaves {
            file.push_leaf(address, pages);
        }
        for (page, (address, place)) in found.places {
            debug_assert_eq!(page, place.page, "a place is its page's");
            file.put_place(address, place);
        }
        for (page, delta) in found.own {
            file.put_own(page, delta);
        }
        file
    }

    pub(super) fn places(&self) -> &BTreeMap<u32, (Address, DeltaPlace)> {
        &self.places
    }

    pub(super) fn own(&self) -> &BTreeMap<u32, Vec<u8>> {
        &self.own
    }

    /// A delta lies in a compact page, which is known, and nowhere else.
    pub(super) fn put_place(&mut self, address: Address, place: DeltaPlace) {
        self.end(place.page);
        self.ended.remove(&place.page);
        self.places.insert(place.page, (address, place));
        if let Some(compact) = self.compacts.get_mut(&address) {
            compact.pages.insert(place.page);
            compact.len_bytes += usize::from(place.len);
        }
    }

    /// A delta lies in the index itself, and nowhere else.
    pub(super) fn put_own(&mut self, page: u32, delta: Vec<u8>) {
        self.end(page);
        self.ended.remove(&page);
        self.own.insert(page, delta);
    }

    /// Takes the deltas away that lie in the index itself.
    pub(super) fn take_own(&mut self) -> BTreeMap<u32, Vec<u8>> {
        let own = std::mem::take(&mut self.own);
        let is_reported = |page: &u32| self.reported.contains_key(page);
        self.ended.extend(own.keys().copied().filter(is_reported));
        own
    }

    /// A page has no delta any more; whether it had one.
    fn end(&mut self, page: u32) -> bool {
        let place = self.places.remove(&page);
        if let Some((address, place)) = place
            && let Some(compact) = self.compacts.get_mut(&address)
        {
            compact.pages.remove(&page);
            compact.len_bytes -= usize::from(place.len);
        }
        let had_one = self.own.remove(&page).is_some() | place.is_some();
        if had_one && self.reported.contains_key(&page) {
            self.ended.insert(page);
        }
        had_one
    }

    fn push_leaf(&mut self, address: Address, pages: Vec<u32>) {
        for page in &pages {
            *self.reported.entry(*page).or_default() += 1;
            if !self.places.contains_key(page) && !self.own.contains_key(page) {
                self.ended.insert(*page);
            }
        }
        self.leaves.push(Leaf {
            address,
            pages,
            is_to_move: false,
        });
    }

    /// Whether a page has a delta here, whether it counts or not.
    pub(super) fn has(&self, page: u64) -> bool {
        u32::try_from(page).is_ok_and(|page| self.own.contains_key(&page) || self.places.contains_key(&page))
    }

    /// A page has none any more.
    pub(super) fn remove(&mut self, page: u64) {
        if let Ok(page) = u32::try_from(page) {
            self.end(page);
            self.is_changed = true;
        }
    }

    /// Only of these pages they are kept.
    pub(super) fn retain(&mut self, is_kept: impl Fn(u32) -> bool) {
        let all = self.own.keys().chain(self.places.keys()).copied();
        let over: Vec<u32> = all.filter(|page| !is_kept(*page)).collect();
        for page in over {
            self.is_changed |= self.end(page);
        }
    }

    /// Ends deltas of pages of which the inode has a delta or a mark.
    pub(super) fn end_those_of(&mut self, inode: &Inode) {
        for (page, _) in inode.deltas_of() {
            self.is_changed |= self.end(u32::from(page));
        }
    }

    /// Takes those compact pages away of which nothing counts.
    pub(super) fn take_unused(&mut self) -> Vec<Address> {
        let unused = self.compacts.extract_if(.., |_, compact| compact.pages.is_empty());
        unused.map(|(address, _)| address).collect()
    }

    /// Deltas that count in a compact page, in the order of the pages.
    pub(super) fn places_in(&self, compact: Address) -> Vec<DeltaPlace> {
        let pages = self
            .compacts
            .get(&compact)
            .into_iter()
            .flat_map(|compact| &compact.pages);
        let places = pages.filter_map(|page| self.places.get(page));
        places.map(|(_, place)| *place).collect()
    }

    /// The compact page with the fewest bytes that count, if these pages' do not, with those that
    /// do.
    pub(super) fn emptiest(&self, over: &BTreeSet<u32>) -> Option<(Address, Vec<DeltaPlace>)> {
        let mut len_bytes: BTreeMap<Address, usize> = (self.compacts.iter())
            .map(|(address, compact)| (*address, compact.len_bytes))
            .collect();
        for (address, place) in over.iter().filter_map(|page| self.places.get(page)) {
            if let Some(len_bytes) = len_bytes.get_mut(address) {
                *len_bytes -= usize::from(place.len);
            }
        }
        let some = len_bytes.into_iter().filter(|(_, len)| *len > 0);
        let (address, _) = some.min_by_key(|(address, len)| (*len, *address))?;
        let mut places = self.places_in(address);
        places.retain(|place| !over.contains(&place.page));
        Some((address, places))
    }

    pub(super) fn len(&self) -> usize {
        self.own.len() + self.places.len()
    }

    /// Pages with deltas that count in the index itself.
    pub(crate) fn living_own(&self, inode: &Inode) -> Vec<u32> {
        let pages = self.own.keys().copied();
        pages
            .filter(|page| inode.delta_of(u64::from(*page)).is_none())
            .collect()
    }

    /// Pages with deltas that count, by compact page.
    pub(crate) fn living(&self, inode: &Inode) -> BTreeMap<Address, Vec<DeltaPlace>> {
        let mut living: BTreeMap<Address, Vec<DeltaPlace>> =
            self.compacts.keys().map(|address| (*address, Vec::new())).collect();
        let over: BTreeSet<u32> = inode.deltas_of().map(|(page, _)| u32::from(page)).collect();
        for (address, place) in self.places.values() {
            if !over.contains(&place.page) {
                living.entry(*address).or_default().push(*place);
            }
        }
        living
    }

    pub(crate) fn is_changed(&self) -> bool {
        self.is_changed
    }

    pub(crate) fn change(&mut self) {
        self.is_changed = true;
    }

    /// Blocks beside the index and the compact pages.
    pub(super) fn leaf_addresses(&self) -> impl Iterator<Item = Address> {
        self.leaves.iter().map(|leaf| leaf.address)
    }

    /// The index, if its own deltas were `own` alone, and no other deltas of the pages `over`
    /// counted.
    pub(super) fn index(&self, ino: Nid, own: &BTreeMap<u32, Vec<u8>>, over: &BTreeSet<u32>) -> DeltaIndex {
        let in_index = self.compacts.iter().filter(|(_, compact)| compact.leaf.is_none());
        let page = |address: Address| {
            let mut places = self.places_in(address);
            places.retain(|place| !over.contains(&place.page));
            CompactPage { address, places }
        };
        let mut pages: Vec<CompactPage> = in_index.map(|(address, _)| page(*address)).collect();
        pages.retain(|page| !page.places.is_empty());
        let mut ended = self.ended.clone();
        ended.extend(over.iter().filter(|page| self.reported.contains_key(page)));
        ended.retain(|page| !own.contains_key(page));
        DeltaIndex {
            ino,
            leaves: self.leaf_addresses().collect(),
            ended: ended.into_iter().collect(),
            pages,
            own: Vec::new(),
        }
    }

    /// The bytes of the index as it is, if it has room in a block.
    pub(super) fn index_bytes(&self, form: Form) -> Option<Vec<u8>> {
        form.bytes(&self.index(form.ino, &self.own, &BTreeSet::new()), &self.own)
    }

    /// Size of the entries that count in each leaf, about in bytes.
    fn living_of_leaves(&self) -> BTreeMap<Address, usize> {
        let mut living = BTreeMap::new();
        for compact in self.compacts.values().filter(|compact| !compact.pages.is_empty()) {
            if let Some(leaf) = compact.leaf {
                *living.entry(leaf).or_insert(INDEX_HEAD_LEN_BYTES) +=
                    PAGE_LEN_BYTES + PLACE_LEN_BYTES * compact.pages.len();
            }
        }
        living
    }

    /// How many leaves are written at most, if what the index tells of compact pages, and so much
    /// more, goes to leaves.
    pub(super) fn new_leaves_max(&self, form: Form, in_index_bytes: usize) -> usize {
        let living = self.living_of_leaves();
        let dissolved: usize = living.values().filter(|len| form.is_little(**len)).sum();
        // Each but the last is filled but for what has no room in it.
        let filled = (form.room_bytes / 2).max(1);
        (in_index_bytes + dissolved).div_ceil(filled) + 1
    }

    /// Decides what goes where, if what the index tells of compact pages goes to leaves, or it has
    /// no room otherwise: new leaves, which the index does not know before they are written.
    /// Afterwards [`MainFile::index_bytes`] answers something, but if deltas of its own are too
    /// many.
    pub(super) fn lay_out(&mut self, form: Form, to_leaves: bool) -> Layout {
        let mut layout = Layout::default();
        let living = self.living_of_leaves();
        let mut dissolves = |file: &mut Self, is_chosen: &dyn Fn(&Leaf) -> bool| {
            let chosen: Vec<Leaf> = file.leaves.extract_if(.., |leaf| is_chosen(leaf)).collect();
            chosen
                .iter()
                .flat_map(|leaf| &leaf.pages)
                .for_each(|page| file.untell(*page));
            let chosen: BTreeSet<Address> = chosen.iter().map(|leaf| leaf.address).collect();
            let is_in = |compact: &&mut Compact| compact.leaf.is_some_and(|leaf| chosen.contains(&leaf));
            let of_chosen = file.compacts.values_mut().filter(is_in);
            of_chosen.for_each(|compact| compact.leaf = None);
            layout.dissolved.extend(chosen);
        };
        dissolves(self, &|leaf| leaf.is_to_move || !living.contains_key(&leaf.address));
        if !to_leaves && self.index_bytes(form).is_some() {
            return layout;
        }
        dissolves(self, &|leaf| {
            living.get(&leaf.address).is_none_or(|len| form.is_little(*len))
        });
        let mut leaves = self.leaves_of_index(form);
        let len_bytes = self.index_len_with(form, &leaves);
        if len_bytes > form.room_bytes {
            // Then no page is ended.
            dissolves(self, &|_| true);
            leaves = self.leaves_of_index(form);
        }
        layout.leaves = leaves;
        layout
    }

    /// How long the index is when these leaves are written.
    fn index_len_with(&self, form: Form, leaves: &[NewLeaf]) -> usize {
        let moved: BTreeSet<Address> = leaves.iter().flat_map(|leaf| &leaf.compacts).copied().collect();
        let mut index = self.index(form.ino, &self.own, &BTreeSet::new());
        index.pages.retain(|page| !moved.contains(&page.address));
        index.leaves.extend(leaves.iter().map(|_| Address::NONE));
        let bytes = form.bytes(&index, &self.own);
        bytes.map_or(usize::MAX, |bytes| bytes.len())
    }

    /// The index's entries of compact pages, as leaves.
    fn leaves_of_index(&self, form: Form) -> Vec<NewLeaf> {
        let mut leaves = Vec::new();
        let mut taken: Vec<CompactPage> = Vec::new();
        let mut taken_bytes = INDEX_HEAD_LEN_BYTES;
        let mut close = |pages: &mut Vec<CompactPage>| {
            let index = DeltaIndex {
                ino: form.ino,
                pages: std::mem::take(pages),
                ..DeltaIndex::default()
            };
            // Entries that do not fit stay in the index.
            if let Some(bytes) = form.bytes(&index, &BTreeMap::new()).filter(|_| !index.pages.is_empty()) {
                leaves.push(NewLeaf {
                    bytes,
                    compacts: index.pages.iter().map(|page| page.address).collect(),
                    pages: (index.pages.iter())
                        .flat_map(|page| page.places.iter().map(|place| place.page))
                        .collect(),
                });
            }
        };
        for page in self.index(form.ino, &self.own, &BTreeSet::new()).pages {
            let len = form.len_bytes(vec![page.clone()]).saturating_sub(INDEX_HEAD_LEN_BYTES);
            if taken_bytes.saturating_add(len) > form.room_bytes {
                close(&mut taken);
                taken_bytes = INDEX_HEAD_LEN_BYTES;
            }
            taken_bytes = taken_bytes.saturating_add(len);
            taken.push(page);
        }
        close(&mut taken);
        leaves
    }

    /// A leaf was written.
    pub(super) fn add_leaf(&mut self, address: Address, leaf: NewLeaf) {
        for compact in &leaf.compacts {
            if let Some(compact) = self.compacts.get_mut(compact) {
                compact.leaf = Some(address);
            }
        }
        self.push_leaf(address, leaf.pages);
    }

    /// Counts one leaf fewer that lists a page.
    fn untell(&mut self, page: u32) {
        let Some(count) = self.reported.get_mut(&page) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.reported.remove(&page);
            self.ended.remove(&page);
        }
    }
}

impl Form {
    /// Whether a leaf of which so much counts is dissolved.
    fn is_little(&self, len_bytes: usize) -> bool {
        len_bytes < self.room_bytes / 2
    }
}
