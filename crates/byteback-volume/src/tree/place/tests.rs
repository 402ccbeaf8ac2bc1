use super::*;
use std::collections::BTreeMap;

#[test]
fn each_page_has_a_slot_of_its_own_and_places_are_unique() {
    let slots = u64::from(SLOTS);
    // All pages around each border, and some between.
    let mut pages: Vec<u64> = (0..4_000).collect();
    let borders = [
        first_page_of(2),
        first_page_of(3),
        first_page_of(4),
        first_page_of(4) + slots * slots,
        MAX_FILE_BLOCKS,
    ];
    for border in borders {
        pages.extend(border - 2_100..(border + 2_100).min(MAX_FILE_BLOCKS));
    }
    pages.extend((0..MAX_FILE_BLOCKS).step_by(999_983));
    let mut seen = BTreeMap::new();
    let (mut kinds, mut numbers) = (BTreeMap::new(), BTreeMap::new());
    for page in pages {
        let way = way(page).unwrap();
        let last = way.steps.last().map_or(way.place, |(_, place)| *place);
        let before = *seen.entry((last, way.slot)).or_insert(page);
        assert_eq!(before, page, "{way:?}");
        let limit = if way.node.is_none() { INODE_SLOTS } else { SLOTS };
        assert!(way.slot < limit && way.steps.iter().all(|(slot, _)| *slot < SLOTS));
        let mut indirect: Vec<u32> = way.steps.iter().map(|(_, place)| *place).collect();
        indirect.insert(0, way.place);
        indirect.pop();
        if way.node.is_some() {
            assert!(indirect.iter().all(|place| is_indirect(*place)), "{way:?}");
        }
        assert!(!is_indirect(last), "{way:?}");
        assert_eq!(
            *numbers.entry(last).or_insert(addresses_node_of(page)),
            addresses_node_of(page)
        );
        // A place always means the same pages.
        let start = page - u64::from(way.slot);
        assert_eq!(*kinds.entry(last).or_insert(start), start, "{way:?}");
        assert!(last < Footer::XATTRS);
    }
    let distinct: std::collections::BTreeSet<u64> = numbers.values().copied().collect();
    assert_eq!(distinct.len(), numbers.len());
    assert!(way(MAX_FILE_BLOCKS).is_none());
    assert!(!is_indirect(Footer::XATTRS));
}

#[test]
fn a_node_is_found_by_its_first_page() {
    let slots = u64::from(SLOTS);
    let direct = u64::from(INODE_SLOTS) + 2 * slots;
    assert_eq!(place_of(u64::from(INODE_SLOTS), 0), 1);
    assert_eq!(place_of(u64::from(INODE_SLOTS) + slots, 0), 2);
    assert_eq!(
        (place_of(direct, 1), place_of(direct, 0), place_of(direct + slots, 0)),
        (3, 4, 5)
    );
    let double = direct + 2 * slots * slots;
    assert_eq!(place_of(double, 2), DOUBLE_INDIRECT);
    assert_eq!(place_of(double, 1), DOUBLE_INDIRECT + 1);
    assert_eq!(place_of(double, 0), DOUBLE_INDIRECT + 2);
    assert_eq!(place_of(double + slots, 0), DOUBLE_INDIRECT + 3);
    assert_eq!(place_of(double + slots * slots, 1), DOUBLE_INDIRECT + 2 + SLOTS);
}
