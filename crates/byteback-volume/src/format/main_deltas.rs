//! Deltas in the main area: the index of a file, and the compact pages that it names (DeltaFS
//! section 5).
//!
//! ```text
//! index   = ino (4) leaves (2) compact pages (2) own deltas (2) ended pages (2)
//!           leaf* ended* page* own*, and own deltas, concatenated
//! leaf    = address (4), the oldest first           ended = step
//! page    = address (4) places (2) place*
//! place   = step length, or 0 length: that many bytes of the compact page do not count
//! own     = step length                             compact = ino (4) deltas, concatenated
//! ```
//! Steps (from one page of the file to the next, the first one from -1) and lengths are LEB128
//! numbers. A leaf is such a block, too, with compact pages only. The start of a delta follows from
//! the lengths before it.
//!
//! The paper keeps a delta's length beside the delta, and in the index the room that a compact page
//! has left. Here all lengths are in the index: the room is known without reading a compact page.
//! Out of scope: telling which of several blocks counts, see [`super::DeltaPlaces`].

use super::{Address, Block, Nid, SEALED_LEN_BYTES, put, put_u32, u16_at, u32_at};

/// Slot in summaries of a file's index, and of its leaves.
pub const INDEX_SLOT: u16 = u16::MAX;

/// Slot in summaries of compact pages.
pub const COMPACT_SLOT: u16 = u16::MAX - 1;

/// Offset of the first delta in a compact page.
pub const COMPACT_HEAD_LEN_BYTES: usize = 4;

/// Room for deltas in a compact page, in bytes.
pub const COMPACT_LEN_BYTES: usize = SEALED_LEN_BYTES - COMPACT_HEAD_LEN_BYTES;

/// Room in an index or a leaf, in bytes.
pub const INDEX_LEN_BYTES: usize = SEALED_LEN_BYTES;

/// Head of an index, in bytes.
pub const INDEX_HEAD_LEN_BYTES: usize = 12;

/// Most bytes of a delta in an index: its page and length, and a gap before it.
pub const PLACE_LEN_BYTES_MAX: usize = 10;

/// Most bytes of a compact page in an index, beside its places.
pub const PAGE_LEN_BYTES: usize = 6;

/// The place of a delta in its compact page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeltaPlace {
    /// The page of the file.
    pub page: u32,
    /// Its start, in bytes from the beginning of the block.
    pub at: u16,
    /// Its length, in bytes.
    pub len: u16,
}

impl DeltaPlace {
    /// The bytes of the delta in its compact page.
    #[must_use]
    pub fn range(&self) -> std::ops::Range<usize> {
        let at = usize::from(self.at);
        at..at + usize::from(self.len)
    }
}

/// A compact page, and its deltas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompactPage {
    /// Where it is.
    pub address: Address,
    /// Deltas that count, in the order of their pages.
    pub places: Vec<DeltaPlace>,
}

/// An index of a file, or a leaf of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeltaIndex {
    /// The file.
    pub ino: Nid,
    /// Older parts of the index, the oldest first.
    pub leaves: Vec<Address>,
    /// Pages whose deltas in leaves are over, ascending.
    pub ended: Vec<u32>,
    /// Its compact pages.
    pub pages: Vec<CompactPage>,
    /// Deltas in the index itself, in the order of their pages.
    pub own: Vec<DeltaPlace>,
}

impl DeltaIndex {
    /// Its bytes, followed by deltas of its own, in the order of their pages; `None` if anything is
    /// out of the order of pages, or if a block has too little room. The field `own` is not used.
    #[must_use]
    pub fn bytes<'d>(&self, own: impl Iterator<Item = (u32, &'d [u8])>) -> Option<Vec<u8>> {
        let own: Vec<(u32, &[u8])> = own.collect();
        let mut bytes = self.ino.0.to_le_bytes().to_vec();
        for count in [self.leaves.len(), self.pages.len(), own.len(), self.ended.len()] {
            bytes.extend(u16::try_from(count).ok()?.to_le_bytes());
        }
        for leaf in &self.leaves {
            bytes.extend(leaf.0.to_le_bytes());
        }
        let mut ended = Steps::default();
        for page in &self.ended {
            put_number(&mut bytes, ended.to(*page)?);
        }
        for page in &self.pages {
            bytes.extend(page.address.0.to_le_bytes());
            let at = bytes.len();
            let (mut steps, mut end, mut count) = (Steps::default(), COMPACT_HEAD_LEN_BYTES, 0u16);
            bytes.extend(count.to_le_bytes());
            for place in &page.places {
                let gap = usize::from(place.at).checked_sub(end)?;
                if gap > 0 {
                    put_number(&mut bytes, 0);
                    put_number(&mut bytes, u32::try_from(gap).ok()?);
                    count = count.checked_add(1)?;
                }
                put_number(&mut bytes, steps.to(place.page)?);
                put_number(&mut bytes, u32::from(place.len));
                count = count.checked_add(1)?;
                end = place.range().end;
            }
            put(&mut bytes, at, &count.to_le_bytes());
        }
        let mut steps = Steps::default();
        for (page, delta) in &own {
            put_number(&mut bytes, steps.to(*page)?);
            put_number(&mut bytes, u32::try_from(delta.len()).ok()?);
        }
        own.iter().for_each(|(_, delta)| bytes.extend_from_slice(delta));
        (bytes.len() <= INDEX_LEN_BYTES).then_some(bytes)
    }

    /// Reads it; `None` if its content is impossible: an end beyond the block's, a delta outside
    /// the room of a compact page, pages out of order.
    #[must_use]
    pub fn read(block: &Block) -> Option<Self> {
        let count = |at: usize| u16_at(block, at);
        let mut rest = block.get(INDEX_HEAD_LEN_BYTES..SEALED_LEN_BYTES)?;
        let mut leaves = Vec::new();
        for _ in 0..count(4) {
            leaves.push(Address(take_u32(&mut rest)?));
        }
        let (mut steps, mut ended) = (Steps::default(), Vec::new());
        for _ in 0..count(10) {
            ended.push(steps.by(take_number(&mut rest)?)?);
        }
        let mut pages = Vec::new();
        for _ in 0..count(6) {
            let address = Address(take_u32(&mut rest)?);
            let place_count = take_u16(&mut rest)?;
            let (mut steps, mut at, mut places) = (Steps::default(), COMPACT_HEAD_LEN_BYTES, Vec::new());
            for _ in 0..place_count {
                take_place(&mut rest, &mut steps, &mut at, &mut places)?;
            }
            if places.is_empty() {
                return None;
            }
            pages.push(CompactPage { address, places });
        }
        let mut own = Vec::new();
        let (mut steps, mut len_bytes) = (Steps::default(), 0);
        for _ in 0..count(8) {
            take_place(&mut rest, &mut steps, &mut len_bytes, &mut own)?;
        }
        // The start of the own deltas is known only now.
        let start = SEALED_LEN_BYTES.checked_sub(rest.len())?;
        for place in &mut own {
            place.at = place.at.checked_add(u16::try_from(start).ok()?)?;
            if place.range().end > SEALED_LEN_BYTES {
                return None;
            }
        }
        Some(Self {
            ino: Nid(u32_at(block, 0)),
            leaves,
            ended,
            pages,
            own,
        })
    }
}

/// Converts between page numbers and steps.
#[derive(Default)]
struct Steps {
    /// The page after the previous one.
    next: u32,
}

impl Steps {
    /// The step to a page; `None` if it does not come later.
    fn to(&mut self, page: u32) -> Option<u32> {
        let step = page.checked_sub(self.next)?.checked_add(1)?;
        self.next = page.checked_add(1)?;
        Some(step)
    }

    /// The page that a step leads to.
    fn by(&mut self, step: u32) -> Option<u32> {
        let page = self.next.checked_add(step.checked_sub(1)?)?;
        self.next = page.checked_add(1)?;
        Some(page)
    }
}

fn take_place(rest: &mut &[u8], steps: &mut Steps, at: &mut usize, places: &mut Vec<DeltaPlace>) -> Option<()> {
    let step = take_number(rest)?;
    let len = usize::try_from(take_number(rest)?).ok().filter(|len| *len > 0)?;
    let end = at.checked_add(len).filter(|end| *end <= SEALED_LEN_BYTES)?;
    if step > 0 {
        places.push(DeltaPlace {
            page: steps.by(step)?,
            at: u16::try_from(*at).ok()?,
            len: u16::try_from(len).ok()?,
        });
    }
    *at = end;
    Some(())
}

fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    let (bytes, behind) = rest.split_first_chunk::<4>()?;
    *rest = behind;
    Some(u32::from_le_bytes(*bytes))
}

fn take_u16(rest: &mut &[u8]) -> Option<u16> {
    let (bytes, behind) = rest.split_first_chunk::<2>()?;
    *rest = behind;
    Some(u16::from_le_bytes(*bytes))
}

fn put_number(bytes: &mut Vec<u8>, mut number: u32) {
    while number >= 0x80 {
        bytes.push(u8::try_from(number & 0x7f).unwrap_or(0) | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).unwrap_or(0));
}

fn take_number(rest: &mut &[u8]) -> Option<u32> {
    let mut number = 0u64;
    for shift in (0..35).step_by(7) {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return u32::try_from(number).ok();
        }
    }
    None
}

/// Writes the file's number and deltas, concatenated, into an empty block; returns the place of
/// each.
pub fn fill_compact_page<'d>(
    block: &mut Block,
    ino: Nid,
    deltas: impl Iterator<Item = (u32, &'d [u8])>,
) -> Vec<DeltaPlace> {
    put_u32(block, 0, ino.0);
    let mut at = COMPACT_HEAD_LEN_BYTES;
    let mut places = Vec::new();
    for (page, delta) in deltas {
        put(block, at, delta);
        places.push(DeltaPlace {
            page,
            at: u16::try_from(at).unwrap_or(u16::MAX),
            len: u16::try_from(delta.len()).unwrap_or(u16::MAX),
        });
        at += delta.len();
    }
    places
}

/// The file that a compact page belongs to.
#[must_use]
pub fn compact_page_ino(block: &Block) -> Nid {
    Nid(u32_at(block, 0))
}
