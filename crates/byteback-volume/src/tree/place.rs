//! Where a page of a file has its address: in which slot of which node, and which nodes lead there.
//!
//! As in F2FS: the inode's slots come first, then two direct nodes, two indirect ones with direct
//! nodes below, and one with indirect ones below. A node's *place* is its number in the order in
//! which a walk of the whole tree meets it, the inode being 0.

use crate::format::{DIRECT_SLOTS, Footer, INODE_SLOTS, MAX_FILE_BLOCKS};

const SLOTS: u32 = DIRECT_SLOTS;
const FIRST_INDIRECT: u32 = 3;
const SECOND_INDIRECT: u32 = FIRST_INDIRECT + 1 + SLOTS;
const DOUBLE_INDIRECT: u32 = SECOND_INDIRECT + 1 + SLOTS;

/// The way to a page's slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PagePath {
    /// Index among the inode's node numbers; `None`: the slot is the inode's own.
    pub(crate) node: Option<usize>,
    /// From that node on: the slots of indirect nodes, each with the place of the node that it
    /// leads to.
    pub(crate) steps: Vec<(u32, u32)>,
    /// The place of that first node.
    pub(crate) place: u32,
    /// The slot in the last node, or in the inode.
    pub(crate) slot: u32,
}

/// The way to page `index`; `None` beyond what a file can have.
pub(crate) fn way(index: u64) -> Option<PagePath> {
    if index >= MAX_FILE_BLOCKS {
        return None;
    }
    let slots = u64::from(SLOTS);
    let low = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let Some(mut rest) = index.checked_sub(u64::from(INODE_SLOTS)) else {
        return Some(PagePath {
            node: None,
            steps: Vec::new(),
            place: 0,
            slot: low(index),
        });
    };
    for (node, place) in [(0, 1), (1, 2)] {
        match rest.checked_sub(slots) {
            None => {
                return Some(PagePath {
                    node: Some(node),
                    steps: Vec::new(),
                    place,
                    slot: low(rest),
                });
            }
            Some(left) => rest = left,
        }
    }
    for (node, place) in [(2, FIRST_INDIRECT), (3, SECOND_INDIRECT)] {
        match rest.checked_sub(slots * slots) {
            None => {
                let step = low(rest / slots);
                return Some(PagePath {
                    node: Some(node),
                    steps: vec![(step, place + 1 + step)],
                    place,
                    slot: low(rest % slots),
                });
            }
            Some(left) => rest = left,
        }
    }
    let first = low(rest / (slots * slots));
    let second = low(rest / slots % slots);
    let below = DOUBLE_INDIRECT + 1 + first * (SLOTS + 1);
    Some(PagePath {
        node: Some(4),
        steps: vec![(first, below), (second, below + 1 + second)],
        place: DOUBLE_INDIRECT,
        slot: low(rest % slots),
    })
}

/// The place of the node with `levels` levels below it that covers the page `first`.
pub(crate) fn place_of(first: u64, levels: u32) -> u32 {
    let Some(way) = way(first) else { return Footer::XATTRS };
    let steps = way.steps.len();
    let above = usize::try_from(levels)
        .ok()
        .and_then(|levels| steps.checked_sub(levels));
    match above.map(|above| above.checked_sub(1)) {
        Some(None) => way.place,
        Some(Some(step)) => way.steps.get(step).map_or(Footer::XATTRS, |(_, place)| *place),
        None => Footer::XATTRS,
    }
}

/// Whether a node at this place holds numbers of nodes, not addresses of pages.
pub(crate) fn is_indirect(place: u32) -> bool {
    if place == Footer::XATTRS || place == Footer::MOVED_SLOTS {
        return false;
    }
    match place.checked_sub(DOUBLE_INDIRECT) {
        None => place == FIRST_INDIRECT || place == SECOND_INDIRECT,
        Some(0) => true,
        Some(below) => (below - 1).is_multiple_of(SLOTS + 1),
    }
}

/// Which of a file's nodes with addresses has a page's, in the order of the pages: 0 is the inode,
/// or the node with its slots.
pub(crate) fn addresses_node_of(page: u64) -> u64 {
    page.checked_sub(u64::from(INODE_SLOTS))
        .map_or(0, |behind| 1 + behind / u64::from(SLOTS))
}

/// Whether the nodes that one at this place leads to are indirect ones themselves.
pub(crate) fn is_double_indirect(place: u32) -> bool {
    place == DOUBLE_INDIRECT
}

/// How many levels of nodes are below the `index`th of an inode's nodes.
pub(crate) fn levels_below(index: usize) -> u32 {
    match index {
        0 | 1 => 0,
        2 | 3 => 1,
        _ => 2,
    }
}

/// Number of pages covered by a node with `levels` levels below it.
pub(crate) fn pages_of(levels: u32) -> u64 {
    u64::from(SLOTS).saturating_pow(levels + 1)
}

/// The first page of the `index`th of an inode's nodes.
pub(crate) fn first_page_of(index: usize) -> u64 {
    let before = (0..index).map(|index| pages_of(levels_below(index)));
    before.fold(u64::from(INODE_SLOTS), u64::saturating_add)
}

#[cfg(test)]
mod tests;
