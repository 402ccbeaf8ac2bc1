//! Combined content of an index of deltas in the main area and its leaves.
//!
//! **Precedence.** For a page, the index counts; if it has no entry, and does not call the page
//! ended, the newest leaf that has one. A compact page is in use while a delta in it counts: a leaf
//! is never overwritten, so it names compact pages that are gone, or places that have other
//! contents by now.
//!
//! **Invariants.** No page is twice in a block, and one block alone names a compact page.

use std::collections::{BTreeMap, BTreeSet};

use super::{Address, Areas, Block, DeltaIndex, DeltaPlace, Kind, Nid};

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeltaPlaces {
    /// Leaves, the oldest first, and the pages that each lists, whether they count or not.
    pub leaves: Vec<(Address, Vec<u32>)>,
    /// Places of deltas, by page: the compact page, and the place in it.
    pub places: BTreeMap<u32, (Address, DeltaPlace)>,
    /// Deltas in the index itself.
    pub own: BTreeMap<u32, Vec<u8>>,
    /// Compact pages in use, with the leaf that names them; `None` if the index does.
    pub compacts: BTreeMap<Address, Option<Address>>,
}

impl DeltaPlaces {
    /// Reads the index of a file at an address, and its leaves, by `read`, which returns `None` for
    /// a block that is not whole.
    ///
    /// # Errors
    /// The first block that is not whole, or has an impossible content.
    pub fn read(
        (ino, address): (Nid, Address),
        areas: &Areas,
        mut read: impl FnMut(Address, Kind) -> Option<Box<Block>>,
    ) -> Result<Self, Address> {
        let mut index_at = |address: Address, kind: Kind| {
            areas.segment_of(address)?;
            let block = read(address, kind)?;
            let index = DeltaIndex::read(&block)?;
            let mut pages = BTreeSet::new();
            let mut addresses = BTreeSet::new();
            let own = index.own.iter().map(|place| place.page);
            let listed = index.pages.iter().flat_map(|page| &page.places).map(|place| place.page);
            let is_once = own.chain(listed).all(|page| pages.insert(page))
                && index.pages.iter().all(|page| addresses.insert(page.address));
            (index.ino == ino && is_once).then_some((block, index))
        };
        let (block, index) = index_at(address, Kind::DeltaMeta).ok_or(address)?;
        let mut all = Self::default();
        let mut visited = BTreeSet::from([address]);
        for leaf in &index.leaves {
            let is_leaf = |(_, leaf): &(Box<Block>, DeltaIndex)| {
                leaf.leaves.is_empty() && leaf.ended.is_empty() && leaf.own.is_empty()
            };
            let (_, found) = index_at(*leaf, Kind::DeltaLeaf).filter(is_leaf).ok_or(*leaf)?;
            if !visited.insert(*leaf) {
                return Err(*leaf);
            }
            all.add(&found);
            let pages = found.pages.iter().flat_map(|page| &page.places);
            all.leaves.push((*leaf, pages.map(|place| place.page).collect()));
        }
        all.places.retain(|page, _| index.ended.binary_search(page).is_err());
        // The leaf that names a compact page with deltas that count.
        let reported: BTreeMap<u32, Option<Address>> = (all.leaves.iter())
            .flat_map(|(leaf, pages)| pages.iter().map(|page| (*page, Some(*leaf))))
            .collect();
        all.add(&index);
        for place in &index.own {
            let delta = block.get(place.range()).ok_or(address)?.to_vec();
            all.places.remove(&place.page);
            all.own.insert(place.page, delta);
        }
        let listed: BTreeSet<u32> = (index.pages.iter())
            .flat_map(|page| page.places.iter().map(|place| place.page))
            .collect();
        for (page, (compact, _)) in &all.places {
            let leaf = match listed.contains(page) {
                true => None,
                false => reported.get(page).copied().flatten(),
            };
            let is_possible = areas.segment_of(*compact).is_some() && !visited.contains(compact);
            if !is_possible || *all.compacts.entry(*compact).or_insert(leaf) != leaf {
                return Err(leaf.unwrap_or(address));
            }
        }
        Ok(all)
    }

    fn add(&mut self, index: &DeltaIndex) {
        for page in &index.pages {
            for place in &page.places {
                self.places.insert(place.page, (page.address, *place));
            }
        }
    }

    /// The compact pages in use, with the deltas in each that count.
    #[must_use]
    pub fn by_compact_page(&self) -> BTreeMap<Address, Vec<DeltaPlace>> {
        let mut pages: BTreeMap<Address, Vec<DeltaPlace>> = BTreeMap::new();
        for (address, place) in self.places.values() {
            pages.entry(*address).or_default().push(*place);
        }
        pages
    }
}
